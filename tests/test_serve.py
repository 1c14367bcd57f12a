"""The real server process with the real student, asked by the real openai client, curl and vf-eval."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from alphazero_llm_trainer.cli.main import main
from alphazero_llm_trainer.environment.front_end import run as vf_eval
from alphazero_llm_trainer.mcts.tree import Tree
from alphazero_llm_trainer.problems.load import load_tasks

ROOT = Path(__file__).parents[1]
KEYS = "first-key,second-key"
TASKS = load_tasks("embedded", "test", 40, start=300)
QUESTIONS = [task.problem.question for task in TASKS]
LONG: dict[str, Any] = {"method": "beam", "budget_tokens": 20_000, "n": 4}  # seconds of search
FRESH = iter(QUESTIONS[20:])  # questions that nobody asked before: nothing of them is cached


@dataclass
class Served:
    process: subprocess.Popen[str]
    url: str
    folder: Path

    def metric(self, name: str, **labels: str) -> float:
        text = httpx.get(f"{self.url}/metrics", headers={"Authorization": "Bearer first-key"}).text
        wanted = [f'{key}="{value}"' for key, value in labels.items()]
        lines = [line for line in text.splitlines() if line.startswith((f"{name}{{", f"{name} "))]
        return sum(float(line.rpartition(" ")[2]) for line in lines if all(one in line for one in wanted))


def start(folder: Path, *arguments: str, **variables: str) -> subprocess.Popen[str]:
    """`alphazero-llm-trainer serve` on a free port, in a process of its own."""
    environment = {k: v for k, v in os.environ.items() if k != "ALPHAZERO_API_KEY"}
    environment |= {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), **variables}
    code = "import sys; from alphazero_llm_trainer.cli.main import main; sys.exit(main())"
    with (folder / "stderr").open("w") as errors:
        return subprocess.Popen(
            [sys.executable, "-c", code, "serve", "--student", "embedded", "--port", "0", *arguments],
            cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=errors, text=True,
        )  # fmt: skip


def ready(process: subprocess.Popen[str], folder: Path) -> Served:
    assert process.stdout is not None
    line = process.stdout.readline()
    assert "answers at http://127.0.0.1:" in line, (folder / "stderr").read_text()
    return Served(process, line.split("answers at ")[1].split("/v1")[0], folder)


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Served, Served]]:
    """An open server, and one with keys and small bounds: started side by side."""
    folders = [tmp_path_factory.mktemp(name) for name in ("open", "small")]
    processes = [
        start(folders[0], "--keep-traces", "kept", "--set", "serve.progress_seconds=0.05"),
        start(
            folders[1], "--set", "serve.concurrent=1", "--set", "serve.queue=2", "--set", "serve.max_body_bytes=4000",
            "--set", "serve.grace_seconds=8", ALPHAZERO_API_KEY=KEYS,
        ),
    ]  # fmt: skip
    try:
        first, second = (ready(process, folder) for process, folder in zip(processes, folders, strict=True))
        yield first, second
    finally:
        for process in processes:
            process.kill()
            process.wait()


@pytest.fixture
def served(both: tuple[Served, Served]) -> Served:
    return both[0]


@pytest.fixture
def client(served: Served) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{served.url}/v1", api_key="anything", max_retries=0, timeout=60) as made:
        yield made


def asked(question: str) -> Any:
    return [{"role": "user", "content": question}]


def details(answer: Any) -> dict[str, Any]:
    return answer.model_extra["alphazero"]


# -- the openai client -------------------------------------------------------------------------------------------------


def test_models(client: openai.OpenAI) -> None:
    names = [model.id for model in client.models.list()]
    assert {"student", "student@mcts", "student@best-of-8", "student@majority-8", "student@step-rejection"} <= {*names}
    assert client.models.retrieve("student@best-of-3").id == "student@best-of-3"
    with pytest.raises(openai.NotFoundError) as refused:
        client.chat.completions.create(model="gpt-4", messages=asked("?"))
    assert refused.value.code == "model_not_found" and refused.value.param == "model"


def test_the_example_client_reads_an_answer_of_each_method(served: Served) -> None:
    command = [sys.executable, str(ROOT / "examples" / "serve_client.py"), f"{served.url}/v1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    lines = re.findall(r"^(\S+): #### -?[\d.]+ \((\d+) tokens\)$", done.stdout, re.MULTILINE)
    assert [name for name, _ in lines] == ["student", "student@mcts"], done.stdout


def test_a_chat_answer(client: openai.OpenAI) -> None:
    raw = client.chat.completions.with_raw_response.create(
        model="student", messages=asked(QUESTIONS[0]), seed=1, temperature=0, logprobs=True, top_logprobs=3
    )
    assert raw.headers["content-type"] == "application/json"
    answer = raw.parse()
    [choice] = answer.choices
    assert choice.finish_reason == "stop" and "####" in (choice.message.content or "")
    assert choice.logprobs is not None and choice.logprobs.content is not None
    tokens = choice.logprobs.content
    assert "".join(token.token for token in tokens) == choice.message.content
    for token in tokens:
        assert len(token.top_logprobs) == 3
        # Greedy: the token is its own likeliest alternative.
        assert token.top_logprobs[0].token == token.token
        assert token.top_logprobs[0].logprob == pytest.approx(token.logprob, abs=1e-6)
    assert answer.usage is not None
    assert answer.usage.completion_tokens == len(tokens) + 1  # and the end token
    assert answer.usage.completion_tokens_details.reasoning_tokens == 0  # type: ignore[union-attr]
    assert answer.system_fingerprint and answer.id.startswith("chatcmpl-")


def test_n_choices_have_draws_of_their_own(client: openai.OpenAI) -> None:
    def ask(n: int, seed: int) -> list[str | None]:
        answer = client.chat.completions.create(
            model="student", messages=asked(QUESTIONS[1]), n=n, seed=seed, temperature=2.0, max_tokens=40
        )
        assert [choice.index for choice in answer.choices] == list(range(n))
        return [choice.message.content for choice in answer.choices]

    four = ask(4, seed=5)
    assert len(set(four)) > 1
    assert ask(4, seed=5) == four and ask(1, seed=5) == four[:1]
    assert ask(4, seed=6) != four


def test_stop_strings_cut_exactly(client: openai.OpenAI) -> None:
    common: dict[str, Any] = {"model": "student", "messages": asked(QUESTIONS[2]), "seed": 3, "temperature": 0}
    whole = client.chat.completions.create(**common).choices[0].message.content or ""
    spanning = whole[3:9]  # begins and ends inside tokens
    for stop in (["\n"], [spanning], ["no such text", "\n####"], "=", [whole[-1:], whole[:2]]):
        stops = [stop] if isinstance(stop, str) else stop
        expected = whole[: min(at for at in map(whole.find, stops) if at >= 0)]
        answer = client.chat.completions.create(**common, stop=stop, logprobs=True)
        choice = answer.choices[0]
        assert (choice.message.content, choice.finish_reason) == (expected, "stop")
        assert choice.model_extra is not None and choice.model_extra["stop_reason"] in stops
        assert choice.logprobs is not None and choice.logprobs.content is not None
        assert "".join(token.token for token in choice.logprobs.content).startswith(expected)
        streamed = client.chat.completions.create(**common, stop=stop, stream=True)
        assert "".join(chunk.choices[0].delta.content or "" for chunk in streamed) == expected
        searched = client.chat.completions.create(**common | {"model": "student@majority-2"}, stop=stop)
        assert searched.choices[0].message.content is not None
        assert not any(one in searched.choices[0].message.content for one in stops)


def test_limits_of_tokens(client: openai.OpenAI) -> None:
    for name in ("max_tokens", "max_completion_tokens"):
        answer = client.chat.completions.create(model="student", messages=asked(QUESTIONS[3]), **{name: 4})
        assert answer.choices[0].finish_reason == "length"
        assert answer.usage is not None and answer.usage.completion_tokens == 4


def test_streaming_tokens(served: Served) -> None:
    async def ask(stream: bool, question: str) -> Any:
        async with openai.AsyncOpenAI(base_url=f"{served.url}/v1", api_key="x", max_retries=0) as client:
            common: dict[str, Any] = {"model": "student", "messages": asked(question), "seed": 8, "n": 2}
            if not stream:
                return await client.chat.completions.create(**common)
            more: dict[str, Any] = {"stream_options": {"include_usage": True}, "logprobs": True}
            return [one async for one in await client.chat.completions.create(**common, **more, stream=True)]

    question = next(FRESH)
    chunks = asyncio.run(ask(True, question))
    whole = asyncio.run(ask(False, question))
    *pieces, last = chunks
    assert last.choices == [] and last.usage.completion_tokens == whole.usage.completion_tokens
    assert all(chunk.usage is None for chunk in pieces)
    for index in (0, 1):
        own = [c for chunk in pieces for c in chunk.choices if c.index == index]
        assert own[0].delta.role == "assistant" and own[-1].finish_reason == "stop"
        texts = [c.delta.content or "" for c in own]
        assert "".join(texts) == whole.choices[index].message.content
        assert len([text for text in texts if text]) > 5  # they came one after another
        tokens = [t.token for c in own if c.logprobs for t in c.logprobs.content]
        assert "".join(tokens) == whole.choices[index].message.content


def test_completions(client: openai.OpenAI) -> None:
    prompt = f"{QUESTIONS[4]}\n"
    chat = client.chat.completions.create(model="student", messages=asked(QUESTIONS[4]), seed=2, temperature=0)
    answer = client.completions.create(
        model="student", prompt=[prompt, prompt], seed=2, temperature=0, max_tokens=80, logprobs=2
    )
    text = chat.choices[0].message.content
    assert [choice.text for choice in answer.choices] == [text, text]
    found = answer.choices[0].logprobs
    assert found is not None and found.tokens is not None and found.text_offset is not None
    assert "".join(found.tokens) == text
    assert [text[at:].startswith(token) for at, token in zip(found.text_offset, found.tokens, strict=True)]
    assert found.top_logprobs is not None and len(found.top_logprobs[0]) == 2
    assert client.completions.create(model="student", prompt=prompt).usage.completion_tokens == 16  # type: ignore[union-attr]
    streamed = client.completions.create(
        model="student", prompt=prompt, seed=2, temperature=0, max_tokens=80, stream=True
    )
    assert "".join(chunk.choices[0].text for chunk in streamed) == text
    search = client.completions.create(model="student@mcts", prompt=prompt, seed=2)
    assert "####" in search.choices[0].text


def test_a_chat_that_has_begun_goes_on(client: openai.OpenAI) -> None:
    first = client.chat.completions.create(
        model="student", messages=asked(QUESTIONS[5]), temperature=0, stop=["\n"]
    ).choices[0]
    whole = client.chat.completions.create(model="student", messages=asked(QUESTIONS[5]), temperature=0).choices[0]
    begun = [*asked(QUESTIONS[5]), {"role": "assistant", "content": first.message.content}]
    for model in ("student", "student@mcts"):
        rest = client.chat.completions.create(model=model, messages=begun, temperature=0).choices[0]
        assert f"{first.message.content}\n{rest.message.content}" == whole.message.content


# -- search ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "method", ["mcts", "best-of-4", "majority-4", "weighted-majority-4", "step-rejection", "early-abort", "beam",
               "adaptive-best-of-n"],
)  # fmt: skip
def test_search_by_name_and_by_method(client: openai.OpenAI, served: Served, method: str) -> None:
    question = QUESTIONS[6]
    by_name = client.chat.completions.create(
        model=f"student@{method}", messages=asked(question), seed=4, logprobs=True, extra_body={"return_tree": True}
    )
    by_body = client.chat.completions.create(
        model="student", messages=asked(question), seed=4, extra_body={"method": method, "budget_tokens": 1000}
    )
    assert by_name.choices[0].message.content == by_body.choices[0].message.content
    assert by_name.choices[0].finish_reason == "stop"
    about = details(by_name)
    assert about["method"] == method and not about["deadline_hit"] and about["seed"] == 4
    tokens = by_name.choices[0].logprobs
    assert tokens is not None and tokens.content is not None
    assert "".join(token.token for token in tokens.content) == by_name.choices[0].message.content
    # Hidden tokens are counted: those of the tree and those that were rejected.
    usage = by_name.usage
    assert usage is not None and usage.completion_tokens_details is not None
    tree = Tree.from_dict(about["tree"])
    assert (
        usage.completion_tokens
        == about["sampled_tokens"]
        >= max(sum(len(tree.token_ids[node]) for node in tree.path(leaf)) for leaf in range(len(tree)))
    )
    extra = usage.completion_tokens_details.model_extra or {}
    assert extra["sampled_tokens"] == usage.completion_tokens
    record = httpx.get(f"{served.url}/v1/traces/{about['trace_id']}").json()
    assert Tree.from_dict(record["tree"]).to_dict() == tree.to_dict()
    assert record["problem"]["question"] == question and record["served"]["response"]
    assert tree.response(record["served"]["node"]) == by_name.choices[0].message.content


def test_the_page_of_a_trace(client: openai.OpenAI, served: Served) -> None:
    pytest.importorskip("alphazero_llm_trainer.viewer.page")
    answer = client.chat.completions.create(model="student@best-of-8", messages=asked("<script>alert(1)</script>"))
    page = httpx.get(f"{served.url}/traces/{details(answer)['trace_id']}")
    assert page.status_code == 200 and page.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert "<script>alert(1)" not in page.text
    assert httpx.get(f"{served.url}/traces/tr-none").json()["error"]["code"] == "not_found"
    # It shows the answer that was given, reads tokens as text, and leads back to the list.
    record = httpx.get(f"{served.url}/v1/traces/{details(answer)['trace_id']}").json()
    assert f'"chosen":{record["served"]["node"]},"answer":' in page.text
    assert '"pieces":{' in page.text and '"home":"/"' in page.text


def test_the_list_of_traces(both: tuple[Served, Served], client: openai.OpenAI) -> None:
    served, small = both
    auth = {"Authorization": "Bearer second-key"}
    empty = httpx.get(f"{small.url}/", headers=auth)
    assert empty.status_code == 200 and "No traces yet" in empty.text and "<td" not in empty.text
    asked_for = {}
    for question in ("<img src=x> & more?", "And what is 2 + 3?"):
        answer = client.chat.completions.create(model="student@best-of-8", messages=asked(question))
        asked_for[details(answer)["trace_id"]] = details(answer)
    page = httpx.get(f"{served.url}/")
    assert page.status_code == 200 and page.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in page.headers["content-security-policy"] and "<script" not in page.text
    assert "<img" not in page.text and "&lt;img src=x&gt; &amp; more?" in page.text
    first, second = asked_for
    assert page.text.index(second) < page.text.index(first)  # the newest first
    for name, about in asked_for.items():
        [line] = [line for line in page.text.splitlines() if name in line]
        assert f'href="/traces/{name}"' in line and ">best-of-8</td>" in line
        assert f">{about['sampled_tokens']:,}</td>" in line and re.search(r">\d+ (s|min)</td>", line)
    assert httpx.get(f"{served.url}/traces/{first}").status_code == 200


def test_a_streamed_search_tells_how_far_it_is(client: openai.OpenAI) -> None:
    chunks = list(
        client.chat.completions.create(
            model="student",
            messages=asked(next(FRESH)),
            stream=True,
            temperature=2,
            extra_body=LONG | {"deadline_ms": 500},
        )
    )
    events = [c.model_extra["alphazero"] for c in chunks if c.model_extra and "alphazero" in c.model_extra]
    progress = [event["progress"] for event in events if "progress" in event and event["index"] == 0]
    assert len(progress) >= 3
    assert [p["sampled_tokens"] for p in progress] == sorted(p["sampled_tokens"] for p in progress)
    assert events[-1]["deadline_hit"] and chunks[-1].choices[0].finish_reason
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert text and sum(bool(chunk.choices[0].delta.content) for chunk in chunks) <= 4


@pytest.mark.parametrize("method", ["beam", "mcts", "sample"])
def test_at_the_deadline_the_best_so_far_comes_back(client: openai.OpenAI, method: str) -> None:
    body: dict[str, Any] = {"deadline_ms": 400, "method": method}
    if method != "sample":
        body["budget_tokens"] = 20_000
    # A chat beyond anything the student learned: it babbles until a limit ends it.
    question = " ".join(QUESTIONS[:4]) if method == "mcts" else next(FRESH)
    began = time.perf_counter()
    answer = client.chat.completions.create(
        model="student",
        messages=asked(question),
        temperature=2,
        seed=1,
        n=1 if method == "sample" else 4,
        extra_body=body,
    )
    seconds = time.perf_counter() - began
    about = details(answer)
    first = about["choices"][0] if "choices" in about else about
    assert seconds < 0.4 + 0.25  # other processes of the tests share two cores with the server
    if method == "beam":
        assert (
            first["deadline_hit"] and first["ended_by"] == "deadline" and first["seconds"] >= 0.2
        )  # a busy server stops early
        assert answer.choices[0].message.content


def test_a_deadline_too_short_for_anything_is_still_an_answer_or_an_error_in_time(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="student@beam", messages=asked(next(FRESH)), extra_body={"deadline_ms": 1}
    )
    assert details(answer)["deadline_hit"] and answer.choices[0].finish_reason == "length"


def test_a_seed_gives_the_same_alone_and_beside_others(served: Served) -> None:
    models = ["student", "student@mcts", "student@best-of-4", "student@majority-4", "student@step-rejection"]
    wanted = [(models[i % 5], QUESTIONS[i % 10], i) for i in range(20)]

    async def ask(client: openai.AsyncOpenAI, model: str, question: str, seed: int) -> tuple[Any, ...]:
        answer = await client.chat.completions.create(
            model=model, messages=asked(question), seed=seed, temperature=1.5, max_tokens=60
        )
        assert answer.usage is not None
        return answer.choices[0].message.content, answer.usage.completion_tokens

    async def everything() -> tuple[list[Any], list[Any]]:
        async with openai.AsyncOpenAI(base_url=f"{served.url}/v1", api_key="x", max_retries=0) as client:
            alone = [await ask(client, *one) for one in wanted]
            return alone, await asyncio.gather(*(ask(client, *one) for one in wanted))

    alone, together = asyncio.run(everything())
    assert alone == together


# -- many clients, and clients that go ---------------------------------------------------------------------------------


def test_64_clients_at_once(served: Served) -> None:
    async def one(client: openai.AsyncOpenAI, number: int) -> None:
        end, turn = time.perf_counter() + 2.0, 0
        while time.perf_counter() < end:
            model = ("student", "student@mcts", "student@best-of-4")[(number + turn) % 3]
            answer = await client.chat.completions.create(
                model=model, messages=asked(QUESTIONS[(number + turn) % 20]), extra_body={"deadline_ms": 5000}
            )
            assert answer.choices[0].message.content and not details(answer)["deadline_hit"]
            turn += 1

    async def everyone() -> None:
        limits = httpx.Limits(max_connections=64)
        async with (
            httpx.AsyncClient(limits=limits, timeout=30) as http,
            openai.AsyncOpenAI(base_url=f"{served.url}/v1", api_key="x", max_retries=0, http_client=http) as client,
        ):
            await asyncio.gather(*(one(client, number) for number in range(64)))

    before = served.metric("alphazero_requests_total", status="200")
    asyncio.run(everyone())
    assert served.metric("alphazero_requests_total", status="200") >= before + 64
    assert served.metric("alphazero_live_requests") == served.metric("alphazero_queue_depth") == 0
    assert served.metric("alphazero_live_searches") == served.metric("alphazero_engine_live_rows") == 0


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_goes_ends_its_search(served: Served, stream: bool) -> None:
    body = LONG | {"model": "student", "messages": asked(next(FRESH)), "temperature": 2, "stream": stream}
    before = served.metric("alphazero_clients_gone_total"), served.metric("alphazero_traces")
    url = f"{served.url}/v1/chat/completions"
    with pytest.raises(httpx.ReadTimeout), httpx.stream("POST", url, json=body, timeout=0.4) as response:
        for _ in response.iter_raw():
            time.sleep(0.1)
            raise httpx.ReadTimeout("that is enough")
    wait_until(lambda: served.metric("alphazero_clients_gone_total") == before[0] + 1)
    assert served.metric("alphazero_engine_live_rows") == served.metric("alphazero_engine_waiting_rows") == 0
    assert served.metric("alphazero_live_requests") == served.metric("alphazero_live_searches") == 0
    forwards = served.metric("alphazero_engine_forwards")
    time.sleep(0.2)
    assert served.metric("alphazero_engine_forwards") == forwards
    assert served.metric("alphazero_traces") == before[1]


def wait_until(true: Any, seconds: float = 5.0) -> None:
    end = time.perf_counter() + seconds
    while not true():
        assert time.perf_counter() < end, "it never came"
        time.sleep(0.02)


# -- what is refused ---------------------------------------------------------------------------------------------------

REFUSED: list[tuple[dict[str, Any], str | None, str]] = [
    ({"messages": None}, "messages", "invalid_value"),
    ({"messages": []}, "messages", "invalid_value"),
    ({"messages": [{"role": "system", "content": "x"}]}, "messages", "invalid_value"),
    ({"messages": [{"role": "tool", "content": "x"}]}, "messages", "invalid_value"),
    ({"messages": asked("apples " * 2000)}, "messages", "context_length_exceeded"),
    ({"messages": asked("apples " * 10_000)}, "messages", "context_length_exceeded"),
    ({"temperature": 3}, "temperature", "invalid_value"),
    ({"temperature": "hot"}, "temperature", "invalid_value"),
    ({"temperature": 1e-39}, "temperature", "invalid_value"),
    ({"n": 0}, "n", "invalid_value"),
    ({"n": 17}, "n", "invalid_value"),
    ({"n": True}, "n", "invalid_value"),
    ({"max_tokens": 100_000}, "max_tokens", "invalid_value"),
    ({"stop": ["a", "b", "c", "d", "e"]}, "stop", "invalid_value"),
    ({"stop": ""}, "stop", "invalid_value"),
    ({"top_logprobs": 3}, "top_logprobs", "invalid_value"),
    ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools", "unsupported_parameter"),
    ({"response_format": {"type": "json_object"}}, "response_format", "unsupported_parameter"),
    ({"presence_penalty": 0.5}, "presence_penalty", "unsupported_parameter"),
    ({"top_p": 0.9}, "top_p", "unsupported_parameter"),
    ({"budget_token": 5}, "budget_token", "unknown_parameter"),
    ({"budget_tokens": 5}, "budget_tokens", "invalid_value"),
    ({"model": "student@mcts", "budget_tokens": 1_000_000}, "budget_tokens", "invalid_value"),
    ({"model": "student@mcts", "simulations": 100_000}, "simulations", "invalid_value"),
    ({"model": "student@best-of-4", "simulations": 3}, "simulations", "invalid_value"),
    ({"model": "student@mcts", "method": "beam"}, "method", "invalid_value"),
    ({"model": "student@mcts", "logprobs": True, "top_logprobs": 2}, "top_logprobs", "unsupported_parameter"),
    ({"deadline_ms": 10**9}, "deadline_ms", "invalid_value"),
    ({"method": "magic"}, "method", "invalid_value"),
    ({"model": None}, "model", "invalid_value"),
    ({"messages": asked("\ud800")}, None, "invalid_json"),
]


def test_wrong_requests_get_openais_errors(served: Served) -> None:
    with httpx.Client(base_url=f"{served.url}/v1") as http:
        for more, param, code in REFUSED:
            body = json.dumps({"model": "student", "messages": asked("What is 1 + 1?")} | more)
            for stream in ("false", "true"):
                sent = f'{body[:-1]}, "stream": {stream}}}'
                response = http.post("/chat/completions", content=sent)
                error = response.json()["error"]
                assert (response.status_code, error["param"], error["code"]) == (400, param, code), more
                assert error["type"] == "invalid_request_error" and len(error["message"]) < 300
                assert str(ROOT) not in response.text
        for content in (b"", b"{", b"[]", b'"text"', b"\xff\xfe", b"[" * 100_000):
            response = http.post("/chat/completions", content=content)
            assert (response.status_code, response.json()["error"]["code"]) == (400, "invalid_json")
        for prompt in ("", [], [[]], [10**6], [-1]):
            response = http.post("/completions", json={"model": "student", "prompt": prompt})
            assert (response.status_code, response.json()["error"]["param"]) == (400, "prompt"), prompt
        neutral = {"tools": [], "top_p": 1.0, "presence_penalty": 0.0, "response_format": {"type": "text"}, "user": "u"}
        body = {"model": "student", "messages": asked("What is 1 + 1?"), "logit_bias": None, "max_tokens": 2} | neutral
        assert http.post("/chat/completions", json=body).status_code == 200
        assert http.get("/nothing").json()["error"]["code"] == "not_found"
        assert http.get("/chat/completions").status_code == 405


def test_who_may_ask(both: tuple[Served, Served]) -> None:
    small = both[1]
    body = {"model": "student", "messages": asked(QUESTIONS[0])}
    with openai.OpenAI(base_url=f"{small.url}/v1", api_key="wrong", max_retries=0) as client:
        with pytest.raises(openai.AuthenticationError) as refused:
            client.models.list()
        assert refused.value.code == "invalid_api_key"
    with openai.OpenAI(base_url=f"{small.url}/v1", api_key="second-key", max_retries=0) as client:
        assert client.chat.completions.create(**body).choices[0].message.content  # type: ignore[call-overload]
    with httpx.Client(base_url=small.url, headers={"Authorization": "Bearer first-key"}) as http:
        assert httpx.get(f"{small.url}/health").json()["status"] == "ok"
        assert http.get("/metrics").status_code == 200 and httpx.get(f"{small.url}/metrics").status_code == 401
        basic = httpx.get(f"{small.url}/traces/tr-x", auth=("me", "first-key"))
        assert basic.status_code == 404
        assert "Basic" in httpx.get(f"{small.url}/traces/tr-x").headers["www-authenticate"]
        assert http.get("/health", headers={"Host": "evil.example"}).status_code == 421
        assert http.get("/health", headers={"Origin": "http://evil.example"}).status_code == 403
        large = http.post("/v1/chat/completions", json=body | {"user": "x" * 5000})
        assert (large.status_code, large.json()["error"]["code"]) == (413, "request_too_large")
        # Without a length, as a stream: the limit holds all the same.
        chunked = http.post("/v1/chat/completions", content=(b"x" * 1000 for _ in range(10)))
        assert chunked.status_code == 413


def test_a_full_queue_answers_429_and_clients_take_turns(both: tuple[Served, Served]) -> None:
    small = both[1]

    async def ask(http: httpx.AsyncClient, key: str, **more: Any) -> httpx.Response:
        body = {"model": "student", "messages": asked(QUESTIONS[11]), **more}
        headers = {"Authorization": f"Bearer {key}"}
        return await http.post(f"{small.url}/v1/chat/completions", json=body, headers=headers, timeout=30)

    async def everyone() -> tuple[list[httpx.Response], list[str]]:
        ended: list[str] = []

        async def named(http: httpx.AsyncClient, name: str, key: str, **more: Any) -> httpx.Response:
            response = await ask(http, key, **more)
            ended.append(name)
            return response

        long = LONG | {"temperature": 2, "deadline_ms": 1200}
        async with httpx.AsyncClient() as http:
            asking = [asyncio.ensure_future(named(http, "running", "first-key", **long))]
            await asyncio.sleep(0.3)
            for name in ("first", "second", "third"):
                asking.append(asyncio.ensure_future(named(http, name, "first-key")))
                await asyncio.sleep(0.1)
            asking.append(asyncio.ensure_future(named(http, "other", "second-key")))
            await asyncio.sleep(0.1)
            late = await ask(http, "second-key", deadline_ms=50)
            assert late.status_code in (429, 503) and late.json()["error"]["code"] in (
                "deadline_exceeded",
                "queue_full",
            )
            return await asyncio.gather(*asking), ended

    responses, ended = asyncio.run(everyone())
    statuses = [response.status_code for response in responses]
    # The line holds two: the third one finds it full, and the other client's makes the second one go.
    assert statuses == [200, 200, 429, 429, 200]
    assert int(responses[3].headers["retry-after"]) >= 1
    assert responses[3].json()["error"]["type"] == "rate_limit_error"
    assert ended[-1] in ("first", "other") and ended.index("running") < ended.index("other")
    assert small.metric("alphazero_requests_total", status="429") >= 2


# -- curl, vf-eval, journals, the end ----------------------------------------------------------------------------------


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
def test_curl(served: Served) -> None:
    body = json.dumps({"model": "student", "messages": asked(QUESTIONS[0]), "stream": True})
    url = f"{served.url}/v1/chat/completions"
    done = subprocess.run(["curl", "-sN", url, "-d", body], capture_output=True, text=True, timeout=30, check=True)
    events = [line.removeprefix("data: ") for line in done.stdout.splitlines() if line]
    assert events[-1] == "[DONE]" and all(json.loads(one)["object"] == "chat.completion.chunk" for one in events[:-1])


def test_vf_eval_answers_through_the_server(served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("PRIME_API_KEY", "OPENROUTER_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    before = served.metric("alphazero_requests_total", model="student@mcts", status="200")
    words = ["alphazero-llm-trainer", "-n", "3", "-m", "student@mcts", "--client.base-url", f"{served.url}/v1"]
    assert vf_eval([*words, "--env.taskset.source", "embedded", "-o", str(tmp_path / "out")]) == 0
    assert served.metric("alphazero_requests_total", model="student@mcts", status="200") == before + 3
    [traces] = (tmp_path / "out").rglob("traces.jsonl")
    episodes = [json.loads(line) for line in traces.read_text().splitlines()]
    assert len(episodes) == 3 and "####" in traces.read_text()


def test_served_trees_are_kept_for_export_and_hold_no_gold(served: Served, tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow.parquet")
    journal = served.folder / "kept"
    lines = [json.loads(line) for line in (journal / "journal.jsonl").read_text().splitlines()]
    assert len(lines) > 60 and len({line["key"] for line in lines}) == len(lines)
    assert all(line["split"] == "served" and set(line["tree"]["hre"]) == {None} for line in lines)
    # Nobody graded them, so training doesn't take them by mistake.
    assert main(["export", "--data", str(journal), "--kind", "policy", "--out", str(tmp_path / "p.parquet")]) == 2
    exported = [
        "export",
        "--data",
        str(journal),
        "--kind",
        "policy",
        "--out",
        str(tmp_path / "p.parquet"),
        "--any-split",
    ]
    assert main(exported) == 0
    assert pyarrow.read_table(tmp_path / "p.parquet").num_rows > 0


def test_the_log_tells_no_prompts(both: tuple[Served, Served]) -> None:
    for one in both:
        said = (one.folder / "stderr").read_text().splitlines()
        assert all(line.startswith("loading") for line in said), said


def test_wrong_command_lines_are_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ALPHAZERO_API_KEY", raising=False)
    judge = str(tmp_path)  # a folder is all that is looked at before flags are held against each other
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        for arguments, words in [
            (["--port", port], "can't be listened on"),
            (["--host", "0.0.0.0", "--port", "0"], "ALPHAZERO_API_KEY isn't set"),
            (["--port", "70000"], "give one of 0 to 65535"),
            (["--host", "no.such.host.invalid", "--port", "0", "--insecure"], "no address of this machine"),
            (["--port", "0", "--search", "magic"], "--search is 'magic'"),
            (["--port", "0", "--verifier", "magic"], "--verifier is 'magic'"),
            (["--port", "0", "--path", "nowhere"], "no config.json"),
            (["--port", "0", "--prm", judge, "--value", judge], "--value is given and --verifier is 'calculator+prm'"),
            (["--port", "0", "--prm", judge, "--verifier", "calculator"], "which doesn't ask it"),
            (["--port", "0", "--prm", "nowhere"], "--prm nowhere is no folder"),
        ]:
            assert main(["serve", "--student", "embedded", *arguments]) == 2, arguments
            error = capsys.readouterr().err
            assert words in error and error.count("\n") == 1, error


def test_sigterm_lets_requests_end_and_ctrl_c_too(both: tuple[Served, Served]) -> None:
    """The last test: it ends both servers."""

    async def ask(one: Served, number: int) -> tuple[int, dict[str, Any]]:
        body = LONG | {"model": "student", "messages": asked(next(FRESH)), "temperature": 2, "deadline_ms": 1000}
        headers = {"Authorization": "Bearer first-key"}
        async with httpx.AsyncClient(timeout=30) as http:
            asking = asyncio.ensure_future(http.post(f"{one.url}/v1/chat/completions", json=body, headers=headers))
            await asyncio.sleep(0.3)
            one.process.send_signal(number)
            await asyncio.sleep(0.3)
            late = await http.get(f"{one.url}/health")
            assert late.status_code == 503 and int(late.headers["retry-after"]) > 0
            assert late.json()["error"]["code"] == "shutting_down"
            assert not asking.done()
            response = await asking
            return response.status_code, response.json()

    for one, number, code in zip(both, (signal.SIGTERM, signal.SIGINT), (0, 130), strict=True):
        status, body = asyncio.run(ask(one, number))
        assert status == 200 and len(body["choices"]) == 4
        assert one.process.wait(timeout=10) == code
        said = (one.folder / "stderr").read_text().splitlines()
        assert all(line.startswith("loading") for line in said), said
