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
from faults import wait_for
from processes import served as served_in
from processes import url
from support import EPISODES, SUM, SYSTEM, TOOLS, TWO, library_logprobs, tool_student
from tables import CHECKOUT, read_jsonl, table

from alphazero_llm_trainer.cli.main import main
from alphazero_llm_trainer.cli.vf_eval import main as vf_eval
from alphazero_llm_trainer.config.load import load_config
from alphazero_llm_trainer.policy.student import load_student
from alphazero_llm_trainer.problems.load import load_tasks
from alphazero_llm_trainer.problems.registry import open_source
from alphazero_llm_trainer.tree.arena import Tree

QUESTIONS = [task.problem.question for task in load_tasks("embedded", "test", 40, start=300)]
OPEN = "Zoe has "  # what follows may be many things
LONG = {"method": "beam", "budget_tokens": 20_000, "n": 4}  # seconds of search
FRESH = iter(QUESTIONS[20:])  # questions that nobody asked before: nothing of them is cached


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


def said(client, messages, model="student", **more):
    """The text of a chat's first choice."""
    answer = client.chat.completions.create(model=model, messages=messages, **more)
    return answer.choices[0].message.content


# -- the openai client -----------------------------------------------------------------------------


def test_the_example_client_reads_an_answer_of_each_method(served, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["client", f"{served.url}/v1"])
    runpy.run_path(str(CHECKOUT / "examples" / "serve_client.py"), run_name="__main__")
    lines = re.findall(r"^(\S+): #### 8 \(\d+ tokens\)$", capsys.readouterr().out, re.M)
    assert lines == ["student", "student@mcts"]


def test_a_chat_answer(client):
    answer = client.chat.completions.create(
        model="student", messages=asked(QUESTIONS[0]), seed=1, temperature=0, logprobs=True,
        top_logprobs=3, extra_body={"return_token_ids": True},
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
    common |= {"logprobs": True, "top_logprobs": 2}
    create = client.chat.completions.create
    *pieces, last = create(**common, stream=True, stream_options={"include_usage": True})
    whole = create(**common)
    assert last.choices == [] and last.usage.completion_tokens == whole.usage.completion_tokens
    for index, expected in enumerate(whole.choices):
        own = [c for chunk in pieces for c in chunk.choices if c.index == index]
        assert own[0].delta.role == "assistant" and own[-1].finish_reason == "stop"
        texts = [c.delta.content or "" for c in own]
        assert "".join(texts) == expected.message.content
        assert len([text for text in texts if text]) > 5  # they came one after another
        logged = []
        for c in own:
            if c.logprobs is not None:
                assert c.delta.content == "".join(token.token for token in c.logprobs.content)
                logged += c.logprobs.content
        assert logged == expected.logprobs.content
        stop = texts[3] + texts[4]
        cut = create(**common, stream=True, stop=stop)
        said = "".join(c.delta.content or "" for k in cut for c in k.choices if c.index == index)
        assert said == "".join(texts).partition(stop)[0]


@pytest.mark.parametrize("model", ["student", "student@mcts"])
def test_a_chat_that_has_begun_goes_on(client, model):
    question, extra = asked(QUESTIONS[5]), {"temperature": 0}
    first = said(client, question, **extra, stop=["\n"])
    whole = said(client, question, **extra)
    begun = {"role": "assistant", "content": first}
    assert f"{first}\n{said(client, [*question, begun], model, **extra)}" == whole
    # As vLLM's clients ask for the rest of a message, which may end within a line.
    begun["content"] = part = first[: first.index(" ")]
    extra["extra_body"] = {"continue_final_message": True, "add_generation_prompt": False}
    assert f"{part}{said(client, [*question, begun], model, **extra)}" == whole


# -- completions -----------------------------------------------------------------------------------


def test_a_completion_goes_on_from_a_prompt_as_it_stands(client):
    question, create = next(FRESH), client.completions.create
    ask = {"model": "student", "prompt": f"{question}\n", "temperature": 0, "max_tokens": 40}
    streamed = {"stream": True, "stream_options": {"include_usage": True}}
    *chunks, last = create(**ask, **streamed)
    chat, answer = said(client, asked(question), temperature=0), create(**ask)
    assert (answer.object, answer.choices[0].text) == ("text_completion", chat)
    assert "".join(chunk.choices[0].text for chunk in chunks) == chat
    assert len(chunks) > 5 and last.choices == []
    assert last.usage.completion_tokens == answer.usage.completion_tokens
    assert create(**ask | {"temperature": 2}, top_p=1e-6).choices[0].text == chat


def test_several_prompts_have_choices_and_draws_of_their_own(client):
    prompts = [OPEN, *(f"{question}\n" for question in QUESTIONS[:2]), OPEN]

    def drawn(prompt):
        answer = client.completions.create(
            model="student", prompt=prompt, seed=4, temperature=2.0, max_tokens=12, n=2
        )
        return answer.usage.prompt_tokens, [choice.text for choice in answer.choices]

    tokens, texts = drawn(prompts)
    assert len(texts) == 8
    assert len({*texts[:2], *texts[6:]}) == 4  # one prompt, four draws
    each = [drawn(prompt) for prompt in prompts]
    assert each[0][1] == texts[:2] and tokens == sum(count for count, _ in each)


@pytest.mark.parametrize("logprobs", [0, 1, 3])
@pytest.mark.parametrize("drawn", [0, 1, 60])
def test_log_probabilities_of_a_completion_are_the_models(client, drawn, logprobs):
    student = load_student(load_config(overrides=["student=embedded"]))
    text = f"{QUESTIONS[3]}\n3 * 4 = 12\n"
    ids = student.encode(text)
    answer = client.completions.create(
        model="student", prompt=ids, temperature=0, max_tokens=drawn, logprobs=logprobs,
        extra_body={"return_token_ids": True},
    )  # fmt: skip
    [choice] = answer.choices
    found, response = choice.logprobs, choice.model_extra["token_ids"]
    # The end token is told with no text: clients count tokens.
    assert len(found.tokens) == len(found.token_logprobs) == len(found.text_offset) == len(response)
    table = library_logprobs(student.model, [*ids, *response])[len(ids) - 1 :]
    own = [float(table[at, token]) for at, token in enumerate(response)]
    assert found.token_logprobs == pytest.approx(own, abs=1e-4)
    assert "".join(found.tokens) == choice.text
    for at, token in zip(found.text_offset, found.tokens, strict=True):
        assert choice.text[at : at + len(token)] == token
    if not logprobs:
        assert found.top_logprobs is None
    for at, top in enumerate(found.top_logprobs or []):
        likeliest = found.token_logprobs[at] == max(top.values())
        assert likeliest == (int(table[at].argmax()) == response[at])
    assert (answer.usage.completion_tokens > 0) == (drawn > 0)


# -- search ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["mcts", "best-of-4"])
def test_search_by_name_and_by_method(client, served, method):
    question = asked(QUESTIONS[6])
    answer = client.chat.completions.create(
        model=f"student@{method}", messages=question, seed=4, extra_body={"return_tree": True}
    )
    text = answer.choices[0].message.content
    assert said(client, question, seed=4, extra_body={"method": method}) == text
    assert answer.choices[0].finish_reason == "stop"
    about = answer.model_extra["alphazero"]
    assert about["method"] == method and not about["deadline_hit"] and about["seed"] == 4
    # Hidden tokens are counted: those of the tree and those that were rejected.
    tree = Tree.from_dict(about["tree"])
    longest = max(len(tree.sequence(leaf)[0]) for leaf in range(len(tree)))
    assert answer.usage.completion_tokens == about["sampled_tokens"] >= longest
    lines = read_jsonl(served.folder / "kept" / "journal.jsonl")
    [record] = [record for record in lines if record["key"] == about["trace_id"]]
    assert record["tree"] == about["tree"] and record["problem"]["question"] == QUESTIONS[6]
    assert tree.response(record["served"]["node"]) == text


# -- tools -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tooled(tmp_path_factory):
    """openai's client of a server with a student that calls tools."""
    folder = tmp_path_factory.mktemp("tools")
    process = served_in(folder, "--model", str(tool_student(folder / "student")))
    try:
        with openai.OpenAI(base_url=f"{url(process)}/v1", api_key="x", max_retries=0) as client:
            yield client
    finally:
        process.kill()


def ask_turn(client, messages, model="student", **more):
    """A choice with tools."""
    common = {"temperature": 0, "tools": TOOLS, "max_tokens": 120} | more
    answer = client.chat.completions.create(model=model, messages=[SYSTEM, *messages], **common)
    return answer.choices[0]


def gather_stream(client, messages, **more):
    """What a streamed choice's deltas join to: content, calls (id, name, arguments), finish."""
    common = {"temperature": 0, "tools": TOOLS, "max_tokens": 120, "stream": True} | more
    content, calls, finish = "", {}, None
    for chunk in client.chat.completions.create(
        model="student", messages=[SYSTEM, *messages], **common
    ):
        [choice] = chunk.choices
        content += choice.delta.content or ""
        finish = choice.finish_reason or finish
        for call in choice.delta.tool_calls or ():
            known = calls.setdefault(call.index, [call.id, call.function.name, ""])
            known[2] += call.function.arguments
    return content, [calls[index] for index in sorted(calls)], finish


@pytest.mark.parametrize("question", ["What is 12 times 7?", "Two things?"])
@pytest.mark.parametrize("model", ["student", "student@majority-3"])
def test_an_agent_calls_the_clients_tools_until_it_answers(tooled, question, model):
    run = {"calculate": lambda expression: "84", "look": lambda at: "seen"}
    messages, turns = asked(question), []
    while True:
        choice = ask_turn(tooled, messages, model)
        message = choice.message
        turns.append(message)
        messages.append(message.model_dump())
        if not message.tool_calls:
            break
        assert choice.finish_reason == "tool_calls"
        # Answers may come in any order.
        for call in reversed(message.tool_calls):
            content = run[call.function.name](**json.loads(call.function.arguments))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": content})
    first, last = turns
    wanted = EPISODES[question][0]
    assert (first.content or "") == wanted["content"]
    calls = [(call.type, call.function) for call in first.tool_calls]
    assert [(kind, one.name, json.loads(one.arguments)) for kind, one in calls] == [
        ("function", *call["function"].values()) for call in wanted["tool_calls"]
    ]
    assert len({call.id for call in first.tool_calls}) == len(first.tool_calls)
    assert choice.finish_reason == "stop" and last.content == EPISODES[question][-1]


def test_turns_with_tools_are_streamed(tooled):
    content, calls, finish = gather_stream(tooled, asked("Two things?"))
    assert (content, finish) == ("", "tool_calls") and all(call[0] for call in calls)
    assert [(name, json.loads(text)) for _, name, text in calls] == [SUM, TWO]
    content, [call], finish = gather_stream(tooled, asked("What is 12 times 7?"))
    assert content == "I compute." and call[1] == "calculate"
    assert gather_stream(tooled, asked("Hello?")) == ("Hi.", [], "stop")


def test_what_is_no_call_of_these_tools_stays_content(tooled):
    for question, more in (
        ("Hello?", {}),
        ("Bad?", {}),
        ("Other?", {}),
        ("Two things?", {"max_tokens": 40}),  # cut in a call
    ):
        choice = ask_turn(tooled, asked(question), **more)
        assert choice.message.tool_calls is None and choice.finish_reason == (
            "length" if more else "stop"
        )
        assert ("<tool_call>" in choice.message.content) == (question != "Hello?")
    one = ask_turn(tooled, asked("Two things?"), parallel_tool_calls=False).message.tool_calls
    assert [call.function.name for call in one] == ["calculate"]
    unasked = ask_turn(tooled, asked("Two things?"), tool_choice="none").message
    assert unasked.tool_calls is None


def test_wrong_requests_with_tools(tooled, client):
    call = {"id": "a", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    turn = {"role": "assistant", "tool_calls": [call]}
    answer = {"role": "tool", "tool_call_id": "a", "content": "x"}
    for more, param in table("requests")["tools"]:
        with pytest.raises(openai.BadRequestError) as refused:
            ask_turn(tooled, asked("Hello?"), **more)
        assert refused.value.param == param, more
    broken = {**turn, "tool_calls": [{**call, "function": {"name": "look", "arguments": "[1]"}}]}
    for messages in ([answer], [turn, answer, answer], [broken], [{**turn, "role": "user"}]):
        with pytest.raises(openai.BadRequestError) as refused:
            ask_turn(tooled, [*asked("Hello?"), *messages])
        assert refused.value.param == "messages"
    for messages, tools in (([], TOOLS), ([turn, answer], [])):  # the embedded student
        with pytest.raises(openai.BadRequestError, match="shows no tools"):
            ask_turn(client, [*asked("Hello?"), *messages], tools=tools)


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
    more = {"messages": asked(next(FRESH)), "temperature": 2, "stream": stream}
    url = f"{served.url}/v1/chat/completions"
    with (
        pytest.raises(httpx.ReadTimeout),
        httpx.stream("POST", url, json=LONG | {"model": "student"} | more, timeout=0.4) as response,
    ):
        next(response.iter_raw())
        raise httpx.ReadTimeout("that is enough")
    wait_for(lambda: not served.live())


WRONG = table("requests")
WRONG["chat"] += [
    ({"messages": asked("\ud800")}, None),
    ({"messages": asked("apples " * 2000)}, None),
    ({"y" * 300: 5}, "y" * 200),
    ({"deadline_ms": 10**400}, "deadline_ms"),
]
WRONG["completions"] += [({"prompt": [5] * 1024}, None)]


BODIES = b"", b"{", b"[]", b'"text"', b"\xff\xfe", b"[" * 100_000, b"1" * 5000, b'{"\\ud800": 1}'


def test_wrong_requests_get_openais_errors(served):
    kind = {"Content-Type": "application/json"}
    with httpx.Client(base_url=f"{served.url}/v1", headers=kind) as http:
        chat = {"model": "student", "messages": asked("What is 1 + 1?")}
        bodies = {
            "chat": chat | {"stream": True},
            "completions": {"model": "student", "prompt": "x"},
        }
        for name, path in (("chat", "/chat/completions"), ("completions", "/completions")):
            for more, param in WRONG[name]:
                response = http.post(path, content=json.dumps(bodies[name] | more))
                error = response.json()["error"]
                assert (response.status_code, error["param"]) == (400, param), (more, error)
                assert error["type"] == "invalid_request_error" and len(error["message"]) < 300
        for content in BODIES:
            response = http.post("/chat/completions", content=content)
            assert response.status_code == 400 and len(response.content) < 1000
        neutral = {"tools": [], "tool_choice": "none", "top_k": 0, "min_p": 0, "user": "u"}
        short = {"logit_bias": None, "max_tokens": 2, "temperature": 0}
        answer = http.post("/chat/completions", json=chat | neutral | short).json()
        assert answer["choices"][0]["finish_reason"] == "length"
        assert answer["usage"]["completion_tokens"] == 2
        for path, status in {
            "/v1/nothing": 404, "/v1/chat/completions": 405, "/openapi.json": 200, "/docs": 200
        }.items():  # fmt: skip
            assert httpx.get(f"{served.url}{path}").status_code == status


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


def test_a_full_queue_and_a_deadline_that_passes_in_it_or_in_the_search(both):
    headers = {"Authorization": "Bearer first-key"}

    async def everyone():
        async with httpx.AsyncClient(base_url=both[1].url, headers=headers, timeout=30) as http:

            async def ask(**more):
                body = {"model": "student", "messages": asked(QUESTIONS[11]), **more}
                return await http.post("/v1/chat/completions", json=body)

            async def until(live, waiting):
                state = {"status": "ok", "live": live, "waiting": waiting}
                while (await http.get("/health")).json() != state:
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
            first, *others = await asyncio.gather(running, *waiting)
            assert [one.status_code for one in (first, *others)] == [200] * 3
            answer = first.json()  # the best so far
            assert all(one["deadline_hit"] for one in answer["alphazero"]["choices"])
            assert answer["choices"][0]["message"]["content"]

    asyncio.run(asyncio.wait_for(everyone(), 60))


# -- journals, command lines, the end --------------------------------------------------------------


def test_served_trees_are_kept_for_export_and_hold_no_gold(served, tmp_path):
    journal = served.folder / "kept"
    lines = read_jsonl(journal / "journal.jsonl")
    assert len(lines) > 5 and len({line["key"] for line in lines}) == len(lines)
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
        "model": "student@beam", "budget_tokens": 10_000, "stream": True, "return_tree": True,
        "messages": [{"role": "user", "content": OPEN}], "seed": 3,
    }  # fmt: skip
    trees, pieces = [], {}
    with httpx.stream("POST", f"{both[0].url}/v1/chat/completions", json=body, timeout=60) as sent:
        for line in sent.iter_lines():
            if line.startswith("data: {"):
                about = json.loads(line[6:]).get("alphazero") or {}
                trees += [about["tree"]] if "tree" in about else []
                pieces |= about.get("pieces", {})
    assert pieces and all(type(text) is str for text in pieces.values())
    sizes = [len(Tree.from_dict(tree)) for tree in trees]
    assert len(sizes) > 1 and sizes == sorted(sizes) and sizes[0] < sizes[-1]


def test_the_page_loads_nothing_from_elsewhere(both):
    page = httpx.get(f"{both[0].url}/").text
    assert "default-src 'none'; connect-src 'self'" in page and "student@mcts" in page
    assert not re.findall(r"(?:src|href)=", page.partition("<script")[0])
    [example] = re.findall(r'<textarea .* placeholder="(.*?)"', page)
    assert example == open_source(load_config()).load("validation", 1)[0].problem.question
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
        assert not one("#further").is_displayed()
        assert "2 · 1.00" in one("#legend").text
        one("#question").send_keys(f"{QUESTIONS[0]} <img src=x onerror='window.hacked=1'>")
        one("#ask button[type=submit]").click()
        until(lambda: "tokens" in one("#answer").text)
        slider = "const now = document.getElementById('slider'); return [+now.value, +now.max]"
        steps = []

        def replayed():
            at, most = browser.execute_script(slider)
            steps.append(at)
            return at == most

        until(replayed)
        # Few trees came on the way, or the tree grew again.
        assert len(steps) > 1 or browser.execute_script("return viewer.view.model.steps") > 3
        place = browser.execute_script(
            "return document.getElementById('answer').getBoundingClientRect().toJSON()"
        )
        assert 0 <= place["top"] < place["bottom"] <= 844
        cards = browser.find_elements("css selector", ".card")
        assert len(cards) > 1
        wide = "return document.documentElement.scrollWidth <= innerWidth"
        assert browser.execute_script(wide)
        cards[1].click()
        before = one("#panel-text").text
        assert "⟨" not in one("#tokens").text and "undefined" not in one("#panel").text
        one("#further").click()
        until(lambda: "tokens" in one("#answer").text and before in one("#answer").text)
        assert browser.execute_script("return window.hacked === undefined")
    assert browser.get_log("browser") == []


# -- the end -------------------------------------------------------------------------------------


def test_sigterm_lets_requests_end_and_ctrl_c_too(both):
    """The last test: it ends both servers. Their logs tell no prompts."""

    async def ask(one, number, question):
        body = LONG | {"model": "student", "messages": asked(question)}
        headers = {"Authorization": "Bearer first-key"}
        async with httpx.AsyncClient(base_url=one.url, timeout=30, headers=headers) as http:
            body |= {"temperature": 2, "deadline_ms": 5000}
            asking = asyncio.ensure_future(http.post("/v1/chat/completions", json=body))
            while not asking.done() and not (await http.get("/health")).json()["live"]:
                await asyncio.sleep(0.01)
            one.process.signal(number)
            return await asking

    for one, number, code in zip(both, (signal.SIGTERM, signal.SIGINT), (0, 130), strict=True):
        question = next(FRESH)
        response = asyncio.run(ask(one, number, question))
        assert response.status_code == 200 and len(response.json()["choices"]) == 4
        assert one.process.wait(60) == code
        told = one.process.said("stderr")
        assert question not in told and "Traceback" not in told
