"""The real server process with the real student, asked by the real openai client, by vf-eval and by
clients that misbehave.
"""

from __future__ import annotations

import asyncio
import json
import re
import runpy
import signal
import socket
import sys
import time

import httpx
import openai
import pytest
from processes import served as served_in
from processes import url
from support import library_logprobs
from tables import CHECKOUT, read_jsonl, table

from alphazero_llm_trainer.cli.main import main
from alphazero_llm_trainer.config.load import load_config
from alphazero_llm_trainer.environment.front_end import run as vf_eval
from alphazero_llm_trainer.mcts.tree import Tree
from alphazero_llm_trainer.policy.student import load_student
from alphazero_llm_trainer.problems.load import load_tasks

QUESTIONS = [task.problem.question for task in load_tasks("embedded", "test", 40, start=300)]
OPEN = "Zoe has "  # what follows may be many things
LONG = {"method": "beam", "budget_tokens": 20_000, "n": 4}  # seconds of search
FRESH = iter(QUESTIONS[20:])  # questions that nobody asked before: nothing of them is cached
CROWDED = "connections are open, as many as there may be"
METHODS = ("mcts", "best-of-4")


class Served:
    """A server with the embedded student."""

    def __init__(self, folder, *arguments, **more):
        self.folder = folder
        self.process = served_in(folder, "--model", "embedded", *arguments, **more)

    def ready(self):
        self.url = url(self.process)
        return self

    def live(self):
        return int(httpx.get(f"{self.url}/health").json()["live"])


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """An open server, and one with keys and small bounds, started side by side."""
    folders = [tmp_path_factory.mktemp(name) for name in ("open", "small")]
    bounds = ["serve.concurrent=1", "serve.queue=2"]
    small = [word for bound in bounds for word in ("--set", bound)]
    started = [
        Served(folders[0], "--keep-traces", "kept"),
        Served(folders[1], *small, ALPHAZERO_API_KEY="first-key,second-key"),
    ]
    try:
        yield started[0].ready(), started[1].ready()
    finally:
        for one in started:
            one.process.kill()


@pytest.fixture
def served(both):
    return both[0]


@pytest.fixture
def client(served):
    with openai.OpenAI(
        base_url=f"{served.url}/v1", api_key="anything", max_retries=0, timeout=60
    ) as made:
        yield made


def asked(question):
    return [{"role": "user", "content": question}]


def details(answer):
    return answer.model_extra["alphazero"]


def wait_until(true, seconds=10.0):
    end = time.perf_counter() + seconds
    while not true():
        assert time.perf_counter() < end, "it never came"
        time.sleep(0.02)


# -- the openai client -----------------------------------------------------------------------------


def test_the_example_client_reads_an_answer_of_each_method(served, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["client", f"{served.url}/v1"])
    runpy.run_path(str(CHECKOUT / "examples" / "serve_client.py"), run_name="__main__")
    lines = re.findall(r"^(\S+): #### 8 \(\d+ tokens\)$", capsys.readouterr().out, re.M)
    assert lines == ["student", "student@mcts"]


def test_a_chat_answer(client):
    answer = client.chat.completions.create(
        model="student", messages=asked(QUESTIONS[0]), seed=1, temperature=0, logprobs=True, top_logprobs=3,
        extra_body={"return_token_ids": True},
    )  # fmt: skip
    [choice] = answer.choices
    assert choice.finish_reason == "stop" and "####" in (choice.message.content or "")
    assert choice.logprobs.content is not None
    tokens = choice.logprobs.content
    assert "".join(token.token for token in tokens) == choice.message.content
    for token in tokens:  # greedy: the token is its own likeliest alternative
        assert len(token.top_logprobs) == 3 and token.top_logprobs[0].token == token.token
        assert token.top_logprobs[0].logprob == pytest.approx(token.logprob, abs=1e-6)
    more = choice.model_extra
    # And the end token.
    assert len(more["token_ids"]) == len(more["token_logprobs"]) == len(tokens) + 1
    assert answer.usage.completion_tokens == len(tokens) + 1
    assert answer.usage.completion_tokens_details.reasoning_tokens == 0


def test_streaming_tokens(client):
    common = {"model": "student", "messages": asked(next(FRESH)), "seed": 8, "n": 2}
    more = {"stream_options": {"include_usage": True}, "stream": True}
    common |= {"logprobs": True, "top_logprobs": 2}
    *pieces, last = client.chat.completions.create(**common, **more)
    whole = client.chat.completions.create(**common)
    assert last.choices == [] and last.usage.completion_tokens == whole.usage.completion_tokens
    for index in (0, 1):
        own = [c for chunk in pieces for c in chunk.choices if c.index == index]
        assert own[0].delta.role == "assistant" and own[-1].finish_reason == "stop"
        texts = [c.delta.content or "" for c in own]
        assert "".join(texts) == whole.choices[index].message.content
        assert len([text for text in texts if text]) > 5  # they came one after another
        told = [c.logprobs.content for c in own if c.logprobs is not None]
        assert [token for tokens in told for token in tokens] == whole.choices[
            index
        ].logprobs.content
        for choice, tokens in zip([c for c in own if c.logprobs is not None], told, strict=True):
            assert choice.delta.content == "".join(token.token for token in tokens)
        stop = texts[3] + texts[4]
        cut = client.chat.completions.create(**common, stream=True, stop=stop)
        said = "".join(c.delta.content or "" for k in cut for c in k.choices if c.index == index)
        assert said == "".join(texts).partition(stop)[0]


def test_a_chat_that_has_begun_goes_on(client):
    ask = {"model": "student", "temperature": 0}
    first = (
        client.chat.completions.create(**ask, messages=asked(QUESTIONS[5]), stop=["\n"])
        .choices[0]
        .message.content
    )
    whole = (
        client.chat.completions.create(**ask, messages=asked(QUESTIONS[5]))
        .choices[0]
        .message.content
    )
    begun = [*asked(QUESTIONS[5]), {"role": "assistant", "content": first}]
    for model in ("student", "student@mcts"):
        rest = (
            client.chat.completions.create(**ask | {"model": model}, messages=begun)
            .choices[0]
            .message.content
        )
        assert f"{first}\n{rest}" == whole
    # As vLLM's clients ask for the rest of a message, which may end within a line.
    part = first[: first.index(" ")]
    begun[-1] = {"role": "assistant", "content": part}
    going_on = {"continue_final_message": True, "add_generation_prompt": False}
    rest = (
        client.chat.completions.create(**ask, messages=begun, extra_body=going_on)
        .choices[0]
        .message.content
    )
    assert f"{part}{rest}" == whole


# -- completions -----------------------------------------------------------------------------------


def test_a_completion_goes_on_from_a_prompt_as_it_stands(client):
    question = next(FRESH)
    prompt = f"{question}\n"
    ask = {"model": "student", "temperature": 0, "max_tokens": 40}
    *chunks, last = list(
        client.completions.create(
            **ask, prompt=prompt, echo=True, stream=True, stream_options={"include_usage": True}
        )
    )
    chat = (
        client.chat.completions.create(**ask, messages=asked(question)).choices[0].message.content
    )
    answer = client.completions.create(**ask, prompt=prompt)
    assert (answer.object, answer.choices[0].text) == ("text_completion", chat)
    assert "".join(chunk.choices[0].text for chunk in chunks) == prompt + chat
    assert len(chunks) > 5 and last.choices == []
    assert last.usage.completion_tokens == answer.usage.completion_tokens
    nucleus = client.completions.create(**ask | {"temperature": 2}, prompt=prompt, top_p=1e-6)
    assert nucleus.choices[0].text == chat


def test_several_prompts_have_choices_and_draws_of_their_own(client):
    prompts = [OPEN, *(f"{question}\n" for question in QUESTIONS[:2])]
    ask = {
        "model": "student",
        "seed": 4,
        "temperature": 2.0,
        "max_tokens": 12,
        "n": 2,
    }
    answer = client.completions.create(**ask, prompt=[*prompts, prompts[0]], echo=True)
    assert [choice.index for choice in answer.choices] == list(range(8))
    for choice in answer.choices:
        assert choice.text.startswith([*prompts, prompts[0]][choice.index // 2])
    # One prompt, four draws.
    assert len({choice.text for choice in answer.choices[:2] + answer.choices[6:]}) == 4
    alone = client.completions.create(**ask, prompt=prompts[0], echo=True)
    assert [choice.text for choice in alone.choices] == [
        choice.text for choice in answer.choices[:2]
    ]
    assert alone.usage is not None
    each = [
        client.completions.create(**ask, prompt=prompt).usage.prompt_tokens for prompt in prompts
    ]
    assert answer.usage.prompt_tokens == sum(each) + each[0]


@pytest.mark.parametrize("drawn", [0, 1, 60])
def test_echoed_log_probabilities_are_the_models(client, drawn):
    student = load_student(load_config(overrides=["student=embedded"]))
    text = f"{QUESTIONS[3]}\n3 * 4 = 12\n"
    ids = student.encode(text)
    ask = {"model": "student", "temperature": 0, "max_tokens": drawn, "echo": True}
    for logprobs in (0, 1, 3):
        answer = client.completions.create(
            **ask, prompt=ids, logprobs=logprobs, extra_body={"return_token_ids": True}
        )
        [choice] = answer.choices
        found, extra = choice.logprobs, choice.model_extra
        assert found.tokens and found.token_logprobs and found.text_offset and extra
        whole = [*ids, *extra["token_ids"]]
        # The end token is told with no text: lm-eval counts one token for `max_tokens: 1`, whatever
        # it is.
        assert (
            len(found.tokens) == len(found.token_logprobs) == len(found.text_offset) == len(whole)
        )
        table = library_logprobs(student.model, whole)
        assert found.token_logprobs[0] is None
        own = [float(table[at, token]) for at, token in enumerate(whole[1:])]
        assert found.token_logprobs[1:] == pytest.approx(own, abs=1e-4)
        assert "".join(found.tokens) == choice.text and choice.text.startswith(text)
        for at, token in zip(found.text_offset, found.tokens, strict=True):
            assert choice.text[at : at + len(token)] == token
        if logprobs == 0:
            assert found.top_logprobs is None
            continue
        assert found.top_logprobs[0] is None
        for at, (value, top) in enumerate(
            zip(found.token_logprobs[1:], found.top_logprobs[1:], strict=True)
        ):
            # Exactly, as lm-eval compares them.
            assert (value == max(top.values())) == (int(table[at].argmax()) == whole[at + 1])
    assert (answer.usage.completion_tokens > 0) == (drawn > 0)


# -- search ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
def test_search_by_name_and_by_method(client, served, method):
    question = QUESTIONS[6]
    by_name = client.chat.completions.create(
        model=f"student@{method}",
        messages=asked(question),
        seed=4,
        extra_body={"return_tree": True},
    )
    by_body = client.chat.completions.create(
        model="student", messages=asked(question), seed=4, extra_body={"method": method}
    )
    assert by_name.choices[0].message.content == by_body.choices[0].message.content
    assert by_name.choices[0].finish_reason == "stop"
    about = details(by_name)
    assert about["method"] == method and not about["deadline_hit"] and about["seed"] == 4
    # Hidden tokens are counted: those of the tree and those that were rejected.
    tree = Tree.from_dict(about["tree"])
    longest = max(
        sum(len(tree.token_ids[node]) for node in tree.path(leaf)) for leaf in range(len(tree))
    )
    assert by_name.usage.completion_tokens == about["sampled_tokens"] >= longest
    lines = (served.folder / "kept" / "journal.jsonl").read_text().splitlines()
    [record] = [record for record in map(json.loads, lines) if record["key"] == about["trace_id"]]
    assert record["tree"] == about["tree"] and record["problem"]["question"] == question
    assert tree.response(record["served"]["node"]) == by_name.choices[0].message.content


@pytest.mark.parametrize("deadline", [1, 400])
def test_at_the_deadline_the_best_so_far_comes_back(client, deadline):
    answer = client.chat.completions.create(
        model="student",
        messages=asked(next(FRESH)),
        temperature=2,
        extra_body=LONG | {"deadline_ms": deadline},
    )
    assert all(
        one["deadline_hit"] and one["ended_by"] == "deadline" for one in details(answer)["choices"]
    )
    assert deadline == 1 or answer.choices[0].message.content


def test_vf_eval_answers_through_the_server(served, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    journal = served.folder / "kept" / "journal.jsonl"
    for name in ("PRIME_API_KEY", "OPENROUTER_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    words = f"alphazero-llm-trainer -n 3 -m student@mcts --client.base-url {served.url}/v1".split()
    before = len(journal.read_text().splitlines())
    assert vf_eval([*words, *f"--env.taskset.source embedded -o {tmp_path / 'out'}".split()]) == 0
    assert len(journal.read_text().splitlines()) == before + 3


# -- clients that go, and what is refused ----------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_goes_ends_its_search(served, stream):
    body = LONG | {
        "model": "student",
        "messages": asked(next(FRESH)),
        "temperature": 2,
        "stream": stream,
    }
    url = f"{served.url}/v1/chat/completions"
    with (
        pytest.raises(httpx.ReadTimeout),
        httpx.stream("POST", url, json=body, timeout=0.4) as response,
    ):
        next(response.iter_raw())
        raise httpx.ReadTimeout("that is enough")
    wait_until(lambda: not served.live())


WRONG = table("requests")
WRONG["chat"] += [
    ({"messages": asked("\ud800")}, None),
    ({"messages": asked("apples " * 2000)}, None),
    ({"y" * 300: 5}, "y" * 200),
    ({"deadline_ms": 10**400}, "deadline_ms"),
]
WRONG["completions"] += [({"prompt": [5] * 1024}, None)]


def test_wrong_requests_get_openais_errors(served):
    with httpx.Client(
        base_url=f"{served.url}/v1", headers={"Content-Type": "application/json"}
    ) as http:
        chat = {
            "model": "student",
            "messages": asked("What is 1 + 1?"),
            "stream": True,
        }
        completion = {"model": "student", "prompt": "x"}
        wrong = [("/chat/completions", chat | more, param) for more, param in WRONG["chat"]]
        wrong += [
            ("/completions", completion | more, param) for more, param in WRONG["completions"]
        ]
        for path, body, param in wrong:
            response = http.post(path, content=json.dumps(body))
            error = response.json()["error"]
            assert (response.status_code, error["param"]) == (400, param), (body, error)
            assert error["type"] == "invalid_request_error" and len(error["message"]) < 300
        for content in (
            b"",
            b"{",
            b"[]",
            b'"text"',
            b"\xff\xfe",
            b"[" * 100_000,
            b"1" * 5000,
            b'{"\\ud800": 1}',
        ):
            response = http.post("/chat/completions", content=content)
            assert response.status_code == 400 and len(response.content) < 1000
        neutral = {"tools": [], "tool_choice": "none", "top_k": 0, "min_p": 0, "user": "u"}
        body = (
            chat
            | {"stream": False, "logit_bias": None, "max_tokens": 2, "temperature": 0}
            | neutral
        )
        answer = http.post("/chat/completions", json=body).json()
        assert (
            answer["choices"][0]["finish_reason"] == "length"
            and answer["usage"]["completion_tokens"] == 2
        )
        assert (
            http.get("/nothing").status_code == 404
            and http.get("/chat/completions").status_code == 405
        )
        assert (
            httpx.get(f"{served.url}/openapi.json").status_code
            == httpx.get(f"{served.url}/docs").status_code
            == 200
        )


def test_who_may_ask(both):
    small = both[1]
    body = {"model": "student", "messages": asked(QUESTIONS[0])}
    with httpx.Client(base_url=small.url, headers={"Authorization": "Bearer second-key"}) as http:
        assert httpx.get(f"{small.url}/health").json()["status"] == "ok"
        listed = http.get("/v1/models").json()["data"]
        assert {"student", "student@mcts", "student@best-of-8"} <= {card["id"] for card in listed}
        assert httpx.get(f"{small.url}/v1/models").status_code == 401
        assert http.get("/health", headers={"Host": "evil.example"}).status_code == 400
        # What a web page may send without leave.
        assert http.post("/v1/chat/completions", content=json.dumps(body)).status_code == 400
        large = http.post("/v1/chat/completions", json=body | {"user": "x" * (1 << 20)})
        assert (large.status_code, large.json()["error"]["code"]) == (413, "request_too_large")
        # Without a length, as a stream: the limit holds all the same.
        assert (
            http.post(
                "/v1/chat/completions", content=(b"x" * 100_000 for _ in range(20))
            ).status_code
            == 413
        )


def test_a_full_queue_and_a_deadline_that_passes_in_it(both):
    small = both[1]

    async def everyone():
        headers = {"Authorization": "Bearer first-key"}
        async with httpx.AsyncClient(base_url=small.url, headers=headers, timeout=30) as http:

            async def ask(**more):
                body = {"model": "student", "messages": asked(QUESTIONS[11]), **more}
                return await http.post("/v1/chat/completions", json=body)

            async def until(live, waiting):
                while (await http.get("/health")).json() != {
                    "status": "ok",
                    "live": live,
                    "waiting": waiting,
                }:
                    await asyncio.sleep(0.01)

            running = asyncio.ensure_future(ask(**LONG, temperature=2, deadline_ms=3000))
            await until(1, 0)
            late = await ask(deadline_ms=50)
            assert (late.status_code, late.json()["error"]["code"]) == (503, "deadline_exceeded")
            waiting = [asyncio.ensure_future(ask()) for _ in range(2)]
            await until(1, 2)
            full = await ask()
            assert (full.status_code, full.json()["error"]["type"]) == (429, "rate_limit_error")
            assert int(full.headers["retry-after"]) >= 1
            assert [one.status_code for one in await asyncio.gather(running, *waiting)] == [
                200,
                200,
                200,
            ]

    asyncio.run(asyncio.wait_for(everyone(), 60))


# -- journals, command lines, the end --------------------------------------------------------------


def test_served_trees_are_kept_for_export_and_hold_no_gold(served, tmp_path):
    journal = served.folder / "kept"
    lines = read_jsonl(journal / "journal.jsonl")
    assert len(lines) > 10 and len({line["key"] for line in lines}) == len(lines)
    assert all(line["split"] == "served" and set(line["tree"]["hre"]) == {None} for line in lines)
    # Nobody graded them, so training doesn't take them by mistake.
    out = tmp_path / "rollouts.jsonl"
    exported = f"export --data {journal} --kind rollouts --out {out}".split()
    assert main(exported) == 2
    assert main([*exported, "--any-split"]) == 0
    assert out.read_text().count("\n") > 0


def test_a_port_that_is_taken_is_one_sentence(capsys):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        assert main(f"serve --model embedded --port {port}".split()) == 2
    error = capsys.readouterr().err
    assert port in error and error.count("\n") == 1


# -- the page ------------------------------------------------------------------------------------


def test_a_streamed_search_sends_its_tree_while_it_grows(both):
    body = {
        "model": "student@beam", "budget_tokens": 4_000, "stream": True, "return_tree": True,
        "messages": [{"role": "user", "content": OPEN}], "seed": 3,
    }  # fmt: skip
    trees = []
    with httpx.stream("POST", f"{both[0].url}/v1/chat/completions", json=body, timeout=60) as sent:
        for line in sent.iter_lines():
            if line.startswith("data: {"):
                about = json.loads(line[6:]).get("alphazero") or {}
                trees += [about["tree"]] if "tree" in about else []
    sizes = [len(Tree.from_dict(tree)) for tree in trees]
    assert len(sizes) > 1 and sizes == sorted(sizes) and sizes[0] < sizes[-1]


def test_a_search_goes_on_from_a_beginning(both):
    question = (
        "Ana has 3 pens. She buys 4 more pens. She loses 2 pens. How many pens does Ana have?"
    )
    body = {
        "model": "student@mcts", "budget_tokens": 400, "seed": 3, "add_generation_prompt": False,
        "messages": [{"role": "user", "content": question},
                     {"role": "assistant", "content": "3 + 4 = 7\n"}],
    }  # fmt: skip
    url = f"{both[0].url}/v1/chat/completions"
    answer = httpx.post(url, json={**body, "continue_final_message": True}, timeout=60)
    text = answer.json()["choices"][0]["message"]["content"]
    assert "3 + 4" not in text and text.startswith("7 ")


def test_the_page_loads_nothing_from_elsewhere(both):
    page = httpx.get(f"{both[0].url}/").text
    assert "default-src 'none'; connect-src 'self'" in page and "student@mcts" in page
    assert not re.findall(r"(?:src|href)=", page.partition("<script")[0])
    assert httpx.get(f"{both[1].url}/").status_code == 200  # a key is for what it asks


@pytest.mark.slow
def test_the_page_in_a_browser(both, browser):
    def until(holds):
        for _ in range(300):
            if holds():
                return
            time.sleep(0.2)
        raise AssertionError("it never came")

    one = lambda css: browser.find_element("css selector", css)  # noqa: E731
    for width in (1400, 390):
        metrics = {"width": width, "height": 844, "deviceScaleFactor": 1, "mobile": False}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        browser.get(f"{both[0].url}/")
        one("#question").send_keys(f"{QUESTIONS[0]} <img src=x onerror='window.hacked=1'>")
        one("#ask button[type=submit]").click()
        until(lambda: "tokens" in one("#answer").text)
        cards = browser.find_elements("css selector", ".card")
        assert len(cards) > 1
        wide = "return document.documentElement.scrollWidth <= innerWidth"
        assert browser.execute_script(wide)
        cards[1].click()
        before = one("#panel-text").text
        browser.execute_script("document.getElementById('further').click()")
        until(lambda: "tokens" in one("#answer").text and before in one("#answer").text)
        assert browser.execute_script("return window.hacked === undefined")
    assert browser.get_log("browser") == []


# -- the end -------------------------------------------------------------------------------------


def test_sigterm_lets_requests_end_and_ctrl_c_too(both):
    """The last test: it ends both servers. A half-sent body is not waited for. Their logs tell no
    prompts.
    """

    async def ask(one, number):
        body = LONG | {
            "model": "student",
            "messages": asked(next(FRESH)),
            "temperature": 2,
            "deadline_ms": 5000,
        }
        headers = {"Authorization": "Bearer first-key"}
        async with httpx.AsyncClient(base_url=one.url, timeout=30, headers=headers) as http:
            asking = asyncio.ensure_future(http.post("/v1/chat/completions", json=body))
            while not asking.done() and not (await http.get("/health")).json()["live"]:
                await asyncio.sleep(0.01)
            one.process.signal(number)
            return await asking

    for one, number, code in zip(both, (signal.SIGTERM, signal.SIGINT), (0, 130), strict=True):
        response = asyncio.run(ask(one, number))
        assert response.status_code == 200 and len(response.json()["choices"]) == 4
        assert one.process.wait(60) == code
        said = one.process.said("stderr").splitlines()
        assert all(line.startswith("loading") or CROWDED in line for line in said), said
