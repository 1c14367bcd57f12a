"""What the server is made of, without one: the queue, text as it comes, traces, names, the guard, and watched engines."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from alphazero_llm_trainer.cli.serve_run import STEPWISE, by_eval
from alphazero_llm_trainer.config.load import Config, load_config
from alphazero_llm_trainer.config.sections import ServeConfig
from alphazero_llm_trainer.engine.inprocess import InProcessEngine
from alphazero_llm_trainer.engine.protocol import GenerateRequest, Watch
from alphazero_llm_trainer.errors import ConfigError
from alphazero_llm_trainer.mcts.tree import Tree
from alphazero_llm_trainer.policy.critic import Critic, CriticVerifier
from alphazero_llm_trainer.policy.student import Student, load_student
from alphazero_llm_trainer.problems.embedded import build
from alphazero_llm_trainer.problems.step_checks import Calculator
from alphazero_llm_trainer.problems.tokenizer import build_tokenizer
from alphazero_llm_trainer.serve.answering import Answerer, in_time
from alphazero_llm_trainer.serve.app import Answering, make_app
from alphazero_llm_trainer.serve.conversation import Conversation
from alphazero_llm_trainer.serve.failures import ApiError
from alphazero_llm_trainer.serve.fair import FairQueue
from alphazero_llm_trainer.serve.guard import Guard, is_loopback
from alphazero_llm_trainer.serve.lag import Lag
from alphazero_llm_trainer.serve.names import Method, Names
from alphazero_llm_trainer.serve.outcomes import Outcome
from alphazero_llm_trainer.serve.prometheus import Metrics
from alphazero_llm_trainer.serve.server import listen, serve
from alphazero_llm_trainer.serve.token_text import TextReader
from alphazero_llm_trainer.serve.traces import KeptJournal, Trace, TraceStore
from alphazero_llm_trainer.serve.wanted import Wanted, chat_request
from alphazero_llm_trainer.serve.wire import usage
from alphazero_llm_trainer.types import Cost, Step
from alphazero_llm_trainer.viewer.traces import TraceLine, age, traces_page
from tests.support import run, tiny_engine

# -- text --------------------------------------------------------------------------------------------------------------


def byte_decode(ids: Any) -> str:
    """A byte-level tokenizer: each id is a byte, characters may take several."""
    return bytes(ids).decode("utf-8", errors="replace")


@settings(max_examples=200, deadline=None)
@given(
    st.text(alphabet="ab=\né€𝄞 ", max_size=30),
    st.lists(st.text(alphabet="ab=\né", min_size=1, max_size=4), max_size=4),
    st.lists(st.integers(1, 5), min_size=1, max_size=8),
)
def test_deltas_join_to_the_whole_and_stop_strings_cut_exactly(text: str, stops: list[str], sizes: list[int]) -> None:
    ids = list(text.encode())
    reader, told, at, turn = TextReader(byte_decode, stops), "", 0, 0
    while at < len(ids) and reader.stop is None:
        size = sizes[turn % len(sizes)]
        reader.feed(ids[at : at + size])
        told += reader.delta()
        at, turn = at + size, turn + 1
    reader.end()
    told += reader.delta(final=True)
    # By definition: the text up to where the first stop string is complete, character by character.
    found = [end for end in range(len(text) + 1) if any(text[:end].endswith(stop) for stop in stops)]
    expected = text
    if found:
        whole = text[: found[0]]
        expected = whole[: min(whole.find(stop) for stop in stops if stop in whole)]
    assert told == reader.text == expected
    assert (reader.stop is not None) == bool(found)
    assert "".join(reader.pieces[: reader.kept()]).startswith(expected)


def test_an_unfinished_character_is_told_at_the_end() -> None:
    reader = TextReader(byte_decode)
    reader.feed("a€".encode()[:-1])
    assert reader.delta() == "a"
    reader.end()
    assert reader.delta(final=True) == "\ufffd"
    assert len(reader.pieces) == 3


def test_the_embedded_tokenizer_reads_token_by_token_as_at_once() -> None:
    tokenizer, rng = build_tokenizer(), Random(0)

    def decode(ids: Any) -> str:
        return tokenizer.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False)

    for _ in range(20):
        ids = [rng.randrange(len(tokenizer)) for _ in range(40)]
        reader = TextReader(decode)
        for token in ids:
            reader.feed([token])
        assert reader.text == decode(ids)


# -- the queue ---------------------------------------------------------------------------------------------------------


def test_turns_go_round_the_clients() -> None:
    async def main() -> list[str]:
        queue, order = FairQueue(1, 20), []

        async def ask(client: str) -> None:
            async with queue.turn(client):
                order.append(client)
                await asyncio.sleep(0)

        asking = [asyncio.ensure_future(ask(client)) for client in ("a",) * 6 + ("b",) * 2 + ("c",)]
        await asyncio.gather(*asking)
        assert (queue.live, queue.waiting) == (0, 0)
        return order

    # The first one has its place at once; then each client in turn.
    assert "".join(run(main)) == "aabcabaaa"


def test_a_full_line_refuses_the_greediest() -> None:
    async def main() -> None:
        queue = FairQueue(1, 3)
        gate = asyncio.Event()

        async def ask(client: str) -> str:
            async with queue.turn(client):
                await gate.wait()
            return client

        greedy = [asyncio.ensure_future(ask("a")) for _ in range(4)]
        await asyncio.sleep(0)
        with pytest.raises(ApiError) as refused:
            await ask("a")
        assert refused.value.status == 429
        assert int(refused.value.headers["Retry-After"]) >= 1
        other = asyncio.ensure_future(ask("b"))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert isinstance(greedy[3].exception(), ApiError)  # the newest of a's made room
        gate.set()
        assert await asyncio.gather(*greedy[:3], other) == ["a", "a", "a", "b"]
        assert (queue.live, queue.waiting) == (0, 0)

    run(main)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 6), st.booleans()), max_size=25), st.integers(1, 3))
def test_no_place_is_ever_lost(script: list[tuple[str, int, bool]], places: int) -> None:
    async def main() -> None:
        queue, most = FairQueue(places, 5), 0

        async def ask(client: str, turns: int) -> None:
            nonlocal most
            async with queue.turn(client):
                most = max(most, queue.live)
                for _ in range(turns):
                    await asyncio.sleep(0)

        asking = []
        for client, turns, cancel in script:
            asking.append(asyncio.ensure_future(ask(client, turns)))
            await asyncio.sleep(0)
            if cancel:
                asking[len(asking) // 2].cancel()
        await asyncio.gather(*asking, return_exceptions=True)
        assert (queue.live, queue.waiting) == (0, 0)
        assert most <= places

    run(main)


def test_a_late_loop_brings_deadlines_forward() -> None:
    async def main() -> None:
        lag = Lag()
        assert lag.early(1.0) == 0.0
        for _ in range(4):
            await asyncio.sleep(0.03)
            time.sleep(0.12)  # somebody holds the loop up
        assert 0.1 < lag.early(1.0) <= 0.5 and lag.early(0.1) == 0.05
        high = lag.seconds
        await asyncio.sleep(0.6)
        assert lag.seconds < high / 2

    run(main)


# -- traces ------------------------------------------------------------------------------------------------------------


def trace(name: str, nodes: int = 0) -> Trace:
    tree = Tree()
    for i in range(nodes):
        tree.attach(0, Step((i,), (-0.5,), f"step {i}\n"))
    return Trace(name, "?", (1, 2), Outcome("text", "stop", 7, Cost(), "finished", tree=tree, node=nodes), "beam", 3)


def test_traces_are_bounded_by_number_size_and_age() -> None:
    now = [0.0]
    store = TraceStore(3, 20 * trace("x").size, 10.0, clock=lambda: now[0])
    for name in "abcd":
        store.put(trace(name))
    assert store.get("a") is None
    assert store.get("b") is not None
    store.put(trace("e"))
    assert store.get("c") is None and store.get("b") is not None  # least recently used
    store.put(trace("large", nodes=30))
    assert store.get("large") is None and len(store) == 3
    now[0] = 5.0
    store.put(trace("wide", nodes=18))
    assert len(store) == 1 and store.bytes <= store.size
    for number in range(50):
        store.put(trace(f"n{number}"))
    # One that is asked for all the time is kept, and holds up no memory of the others.
    store.put(trace("asked"))
    for number in range(50, 100):
        store.get("asked")
        store.put(trace(f"n{number}"))
    assert len(store) == len(store._ages) == 3 and store.get("asked") is not None
    now[0] = 15.5
    assert store.get("n99") is None
    assert (len(store), store.bytes, len(store._ages)) == (0, 0, 0)


def test_the_newest_traces_come_first_and_listing_them_keeps_none() -> None:
    now = [0.0]
    store = TraceStore(2, 20 * trace("x").size, 10.0, clock=lambda: now[0])
    for seconds, name in enumerate("ab"):
        now[0] = float(seconds)
        store.put(trace(name))
    now[0] = 3.0
    store.get("a")
    assert [(kept.name, age) for kept, age in store.newest()] == [("b", 2.0), ("a", 3.0)]
    store.put(trace("c"))  # in place of b, which was used less recently than a
    assert [kept.name for kept, _ in store.newest()] == ["c", "a"]
    now[0] = 11.5
    assert [kept.name for kept, _ in store.newest()] == ["c"]


def test_a_page_of_traces_escapes_what_it_lists() -> None:
    hostile = '"><script>alert(1)</script>\ud83d'
    page = traces_page([TraceLine(hostile, hostile, hostile, hostile, 12_345, 7300.0)], hostile)
    assert "<script" not in page and "&lt;script&gt;" in page and "12,345" in page and "2 h" in page
    assert 'href="/traces/%22%3E%3Cscript' in page
    page.encode()
    assert [age(seconds) for seconds in (-1.0, 0.4, 59, 61, 3600, 200_000)] == [
        "0 s",
        "0 s",
        "59 s",
        "1 min",
        "1 h",
        "2 d",
    ]


def test_a_trace_as_a_record_is_a_journal_line_without_gold() -> None:
    record = trace("tr-1", nodes=2).record()
    assert {"key", "problem", "ended_by", "policy_version", "prompt_ids", "cost", "tree"} <= record.keys()
    assert record["split"] == "served" and record["served"]["node"] == 2
    assert Tree.from_dict(json.loads(json.dumps(record))["tree"]).text == ["", "step 0\n", "step 1\n"]


# -- names and the guard -----------------------------------------------------------------------------------------------


def test_names_say_how_an_answer_is_found() -> None:
    names = Names("mcts", ("beam",), 64)
    assert names.method("student", None) == Method("mcts")
    assert names.method("student@sample", None) == Method("sample")
    assert names.method("student@best-of-64", None) == Method("best-of", 64)
    assert names.method("student", "majority-3") == Method("majority", 3)
    assert names.method("student@beam", "beam") == Method("beam")
    wrong = [
        "gpt",
        "student@",
        "student@best-of-65",
        "student@best-of-0",
        "student@best-of-08",
        "student@best-of-",
        "student@best-of-٣",
    ]
    for model in [*wrong, "student@Mcts", "student@beam-3", "student@@mcts"]:
        with pytest.raises(ApiError) as refused:
            names.method(model, None)
        assert (refused.value.status, refused.value.body["error"]["code"]) == (404, "model_not_found")
    with pytest.raises(ApiError, match="name one of them"):
        names.method("student@mcts", "beam")
    with pytest.raises(ConfigError, match="--search is 'magic'"):
        Names("magic", (), 64)
    assert all(names.method(model, None) for model in names.models())
    assert "student@best-of-8" not in Names("mcts", (), 64, judged=False).models()


@pytest.mark.parametrize(
    ("host", "loopback"),
    [("127.0.0.1", True), ("localhost", True), ("::1", True), ("[::1]", True), ("0.0.0.0", False), ("evil.com", False),
     ("127.0.0.1.evil.com", False), ("", False)],
)  # fmt: skip
def test_which_hosts_are_this_machine(host: str, loopback: bool) -> None:
    assert is_loopback(host) == loopback


def test_the_guards_questions() -> None:
    def status(path: str = "/v1/models", keys: tuple[str, ...] = (), **headers: str) -> int:
        guard = Guard(None, None, keys, True, 100)  # type: ignore[arg-type]
        try:
            guard.check(path, {"host": "127.0.0.1:8000"} | {k.replace("_", "-"): v for k, v in headers.items()})
        except ApiError as error:
            return error.status
        return 200

    assert status() == 200
    assert status(host="[::1]:8000") == status(host="localhost") == status(host="LocalHost:8000") == 200
    assert status(host="LocalHost:8000", origin="http://localhost:8000") == 200
    assert status(host="evil.com:8000") == status(host="") == 421
    assert status(origin="http://127.0.0.1:8000") == 200
    assert status(origin="http://127.0.0.1:9000") == status(origin="null") == 403
    assert status(content_length="101") == 413
    keys = ("one", "two")
    assert status(keys=keys) == status(keys=keys, authorization="Bearer on") == 401
    assert status(keys=keys, authorization="Bearer two") == status("/health", keys) == 200
    assert status(keys=keys, authorization="Basic Om9uZQ==") == 401  # ":one", which pages alone take
    assert status("/traces/tr-1", keys, authorization="Basic Om9uZQ==") == 200
    assert status("/", keys) == status("/", keys, authorization="Basic Om9uZ===") == 401
    assert status("/", keys, authorization="Basic Om9uZQ==") == status("/", keys, authorization="Bearer two") == 200


def test_a_client_is_its_address_and_key_however_it_spells_that() -> None:
    def client(keys: tuple[str, ...], loopback: bool, authorization: str, address: str = "10.0.0.1") -> str:
        guard = Guard(None, None, keys, loopback, 100)  # type: ignore[arg-type]
        return guard.client_of({"client": (address, 1)}, {"authorization": authorization})

    assert client(("one",), False, "Bearer one") == client(("one",), False, "bearer   one ")
    assert client(("one", "two"), False, "Bearer one") != client(("one", "two"), False, "Bearer two")
    assert client(("one",), False, "Bearer one") != client(("one",), False, "Bearer one", "10.0.0.2")
    # Without keys another machine is one client, whatever it makes up; programs of this one may tell themselves apart.
    assert client((), False, "Bearer a") == client((), False, "Bearer b")
    assert client((), True, "Bearer a") != client((), True, "Bearer b")


def test_a_port_that_was_taken_while_the_student_loaded_is_one_sentence() -> None:
    with listen("127.0.0.1", 0) as first, listen("127.0.0.1", first.getsockname()[1]) as second:
        first.listen()
        with pytest.raises(ConfigError, match="can't be listened on"):
            serve(None, second, None, ServeConfig(), lambda: None)


def test_a_full_disk_costs_the_kept_trees_and_no_answer(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    kept = KeptJournal(tmp_path)
    kept._journal._file = open("/dev/full", "ab")  # noqa: SIM115
    for name in ("a", "b"):
        kept.append(trace(name).record())
    kept.close()
    assert [record.getMessage().partition(" (")[0] for record in caplog.records] == [
        "served trees can't be kept any more"
    ]
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="--keep-traces is"):
        KeptJournal(tmp_path / "file" / "folder")


class Broken:
    """A service whose answers fail with an error of their own, after `chunks` events; with `wait` they never end."""

    def __init__(self, error: Exception, chunks: int) -> None:
        self.error, self.chunks, self.wait = error, chunks, False
        self.settings, self.closed = ServeConfig(), lambda: None
        queue = FairQueue(1, 1)
        self.metrics = Metrics(queue, TraceStore(1, 1, 1.0), Lag(), None)

    async def __call__(self, wanted: Any, client: str, arrived: float, emit: Any) -> Any:
        for _ in range(self.chunks):
            emit({"choices": []})
        if self.wait:
            await asyncio.Event().wait()
        raise self.error


@pytest.mark.parametrize("error", [ValueError("secret"), OSError("secret")])
@pytest.mark.parametrize(("stream", "chunks"), [(False, 0), (True, 0), (True, 2)])
def test_a_failure_of_the_server_is_told_and_counted_as_one(error: Exception, stream: bool, chunks: int) -> None:
    service: Any = Broken(error, chunks)
    one: Any = SimpleNamespace(stream=stream, model="student")
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def main() -> None:
        answer = Answering(service, one, "me", asyncio.get_running_loop().time())
        await answer({"type": "http"}, asyncio.Event().wait, send)  # type: ignore[arg-type]

    with pytest.raises(type(error), match="secret"):
        run(main)
    said = b"".join(message.get("body", b"") for message in sent).decode()
    assert "secret" not in said and ("internal_error" in said) == bool(chunks)
    text = service.metrics.text().decode()
    assert 'alphazero_requests_total{model="student",status="500"} 1.0' in text
    assert "alphazero_clients_gone_total 0.0" in text


@pytest.mark.parametrize(("chunks", "words"), [(0, b"shutting_down"), (2, b"data: [DONE]")])
def test_a_request_that_the_ending_server_cancels_is_told_so(chunks: int, words: bytes) -> None:
    service: Any = Broken(ValueError(), chunks)
    service.wait = True
    one: Any = SimpleNamespace(stream=True, model="student")
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def main() -> None:
        answer = Answering(service, one, "me", asyncio.get_running_loop().time())
        task = asyncio.ensure_future(answer({"type": "http"}, asyncio.Event().wait, send))  # type: ignore[arg-type]
        await asyncio.sleep(0.05)
        task.cancel()
        await task

    run(main)
    assert sent[0]["status"] == (200 if chunks else 503) and not sent[-1].get("more_body")
    assert b"shutting_down" in sent[-1]["body"] and words in sent[-1]["body"]
    assert 'status="503"} 1.0' in service.metrics.text().decode()


@pytest.mark.parametrize(("gone", "status"), [(True, "499"), (False, "408")])
def test_a_body_that_never_comes_whole_is_waited_for_no_longer(
    monkeypatch: pytest.MonkeyPatch, gone: bool, status: str
) -> None:
    monkeypatch.setattr("alphazero_llm_trainer.serve.app.BODY_SECONDS", 0.05)
    service: Any = Broken(ValueError(), 0)
    service.settings = ServeConfig()
    app = make_app(service, (), True)
    path = "/v1/chat/completions"
    scope = {"type": "http", "method": "POST", "path": path, "raw_path": path.encode(), "query_string": b"",
             "headers": [(b"host", b"localhost")], "client": ("127.0.0.1", 9), "http_version": "1.1"}  # fmt: skip
    messages: list[Any] = [{"type": "http.request", "body": b"{", "more_body": True}]
    messages += [{"type": "http.disconnect"}] if gone else []
    sent: list[Any] = []

    async def main() -> None:
        async def receive() -> Any:
            return messages.pop(0) if messages else await asyncio.Event().wait()

        async def send(message: Any) -> None:
            sent.append(message)

        await app(scope, receive, send)

    run(main)
    assert sent[0]["status"] == int(status)
    assert f'alphazero_requests_total{{model="none",status="{status}"}} 1.0' in service.metrics.text().decode()


# -- a watched engine --------------------------------------------------------------------------------------------------


def test_a_watch_sees_the_samples_grow_and_changes_nothing() -> None:
    request = GenerateRequest((5, 9, 11), n=3, max_new_tokens=20, seed=4, top_k=2)

    async def main() -> None:
        [alone] = await tiny_engine().generate([request])
        engine, counts = tiny_engine(), []
        watch = Watch()
        watch.wake = lambda: counts.append([len(sample.tokens) for sample in watch.samples])
        [watched], [other] = await asyncio.gather(
            engine.generate([request], watch),
            engine.generate([GenerateRequest((7, 8), max_new_tokens=30, seed=1)]),
        )
        assert [(one.token_ids, one.finish) for one in watched] == [(one.token_ids, one.finish) for one in alone]
        assert [tuple(sample.tokens) for sample in watch.samples] == [one.token_ids for one in watched]
        assert [tuple(sample.top) for sample in watch.samples] == [one.top for one in watched]
        assert counts[0] == [1, 1, 1] and counts == sorted(counts)
        assert other[0].token_ids and not engine._wakes

    run(main)


def test_a_watched_call_that_is_cancelled_leaves_nothing() -> None:
    async def main() -> None:
        engine, watch, woken = tiny_engine(), Watch(), asyncio.Event()
        watch.wake = woken.set
        drawing = asyncio.ensure_future(engine.generate([GenerateRequest((5, 9), max_new_tokens=200)], watch))
        await woken.wait()
        drawing.cancel()
        await asyncio.gather(drawing, return_exceptions=True)
        drawn = len(watch.samples[0].tokens)
        await asyncio.sleep(0.05)
        assert drawn == len(watch.samples[0].tokens) >= 1
        assert not engine.queue and not engine._wakes

    run(main)


# -- answering ---------------------------------------------------------------------------------------------------------

QUESTION = build("test", 1, 1).problem.question


@pytest.fixture(scope="module")
def config() -> Config:
    return load_config(overrides=["student=embedded"])


@pytest.fixture(scope="module")
def student(config: Config) -> Student:
    return load_student(config)


def wanted(student: Student, config: Config, method: str, before: str = "", **more: Any) -> Wanted:
    messages = [{"role": "user", "content": before}, {"role": "assistant", "content": "#### 1"}] if before else []
    body = {"model": f"student@{method}", "messages": [*messages, {"role": "user", "content": QUESTION}], **more}
    names = Names("sample", STEPWISE, 64)
    return chat_request(
        json.dumps(body).encode(), student, student.engine.capabilities.max_context, names, config.serve
    )


@pytest.mark.parametrize("name", ["n", "max_tokens", "budget_tokens", "simulations", "deadline_ms"])
def test_an_endless_number_is_not_repeated(student: Student, config: Config, name: str) -> None:
    with pytest.raises(ApiError, match=f"{name} is 1000.*: at most") as refused:
        wanted(student, config, "mcts", **{name: 10**4000})
    assert len(str(refused.value)) < 150


def test_a_temperature_is_0_or_large_enough_to_draw(student: Student, config: Config) -> None:
    for fine in (0, 0.01, 2, None):
        assert wanted(student, config, "sample", temperature=fine).temperature == fine
    with pytest.raises(ApiError) as refused:
        wanted(student, config, "sample", temperature=1e-39)
    assert str(refused.value) == "temperature is 1e-39: give 0 for the likeliest tokens, or at least 0.01"


def prm_over(engine: InProcessEngine) -> CriticVerifier:
    """A process reward model of random numbers."""
    torch.manual_seed(5)
    engine.set_value(torch.randn(engine.model.config.hidden_size) * 0.1, 0.5)
    return CriticVerifier(Critic(engine, 1.0, {}), "prm")


@pytest.mark.parametrize("method", ["best-of-4", "weighted-majority-4", "mcts", "step-rejection", "beam"])
def test_a_network_judges_each_request_by_its_own_chat(student: Student, config: Config, method: str) -> None:
    engine = InProcessEngine(
        student.model, eos_id=student.engine.eos_id, step_ends=student.engine.step_ends, settings=config.engine
    )
    prm = prm_over(engine)
    stepwise = {name: partial(by_eval, name) for name in STEPWISE}
    answerer = Answerer(student, config, prm, None, stepwise)

    async def ask(before: str) -> Outcome:
        one = wanted(student, config, method, before, seed=3, temperature=1.0)
        return await answerer(one, one.prompts[0], 0, one.seed, None, lambda told: None, f"p{len(before)}")

    async def main() -> None:
        # The same last question, after different chats, at the same time.
        chats = ["", "Tom has 3 cards.", "Ana gets 25 apples on Monday."]
        together = await asyncio.gather(*(asyncio.ensure_future(ask(chat)) for chat in chats))
        for chat, outcome in zip(chats, together, strict=True):
            alone = await asyncio.ensure_future(ask(chat))
            assert (alone.text, alone.cost.sampled_tokens) == (outcome.text, outcome.cost.sampled_tokens)
            prompt = wanted(student, config, method, chat).prompts[0].token_ids
            # Such a network reads the prompt once and each judged token once.
            assert outcome.cost.scored_tokens > len(prompt)
            tree = outcome.tree
            assert tree is not None
            # One that the budget's end left unjudged has the reward 0.
            leaf = next(leaf for leaf in tree.leaves() if tree.verdict[leaf] != "rejected" and tree.reward[leaf])
            steps = tree.steps(leaf)
            judged = await prm(build("test", 0, 1).problem, prompt, steps)
            assert tree.reward[leaf] == pytest.approx(min(judged.steps), abs=1e-5)

    run(main)


def test_a_request_is_charged_with_what_it_takes(student: Student, config: Config) -> None:
    answerer = Answerer(student, config, Calculator(), None, {name: partial(by_eval, name) for name in STEPWISE})

    async def main() -> None:
        for method in ("sample", "majority-6", "mcts", "beam", "step-rejection"):
            before = student.engine.cost.sampled_tokens
            more = {} if method == "sample" else {"budget_tokens": 300}
            one = wanted(student, config, method, seed=5, temperature=2.0, **more)
            outcome = await answerer(one, one.prompts[0], 0, one.seed, None, lambda told: None, "p")
            assert outcome.cost.sampled_tokens == student.engine.cost.sampled_tokens - before > 0
            if method != "sample":
                assert outcome.cost.sampled_tokens <= 300

    run(main)


@pytest.mark.parametrize("budget", [40, 200])
@pytest.mark.parametrize("judge", ["none", "value", "prm"])
def test_all_that_is_computed_for_a_request_is_in_its_budget_and_usage(
    student: Student, config: Config, judge: str, budget: int
) -> None:
    engine = InProcessEngine(
        student.model, eos_id=student.engine.eos_id, step_ends=student.engine.step_ends, settings=config.engine
    )
    verifier, value, methods = None, None, ["mcts", "majority-6"]
    if judge == "prm":
        verifier = prm_over(engine)
        methods = ["mcts", "best-of-6", "weighted-majority-6"]
    elif judge == "value":
        engine.set_value(torch.zeros(student.model.config.hidden_size), 0.5)
        value, methods = Critic(engine, 0.5, {}), ["mcts"]
    answerer = Answerer(student, config, verifier, value)

    async def main() -> None:
        for method in methods:
            engine.forget()
            drawn, read = student.engine.cost.sampled_tokens, engine.stats.computed_tokens
            more = {"simulations": 60} if method == "mcts" else {}
            one = wanted(student, config, method, seed=5, temperature=1.0, budget_tokens=budget, **more)
            outcome = await answerer(one, one.prompts[0], 0, one.seed, None, lambda told: None, "p")
            sampled, scored = outcome.cost.sampled_tokens, outcome.cost.scored_tokens
            assert sampled == student.engine.cost.sampled_tokens - drawn
            assert sampled + scored <= budget
            # What a network computed; the last token of a response needs no forward where a PRM scores tokens.
            assert engine.stats.computed_tokens - read <= scored
            assert sampled > 0 and outcome.text
            if budget == 200:
                assert (scored > 0) == (judge != "none")
            told = usage(one, [outcome])
            assert told["completion_tokens"] == sampled
            assert told["completion_tokens_details"]["scored_tokens"] == scored

    run(main)


def test_without_a_verifier_the_search_votes_and_says_what_needs_one(student: Student, config: Config) -> None:
    answerer = Answerer(student, config)

    async def main() -> None:
        one = wanted(student, config, "mcts", seed=5, simulations=6)
        outcome = await answerer(one, one.prompts[0], 0, one.seed, None, lambda told: None, "p")
        assert outcome.simulations >= 6 and outcome.tree is not None and "vote" in (outcome.why or "")
        assert {value is None for value in outcome.tree.hre} == {True}
        one = wanted(student, config, "best-of-4")
        with pytest.raises(ApiError, match="needs a verifier"):
            await answerer(one, one.prompts[0], 0, one.seed, None, lambda told: None, "p")

    run(main)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 40), st.sampled_from(["mcts", "beam", "best-of-8", "majority-8", "sample"]))
def test_whenever_the_time_is_over_there_is_an_answer_and_nothing_is_left_behind(
    student: Student, config: Config, milliseconds: int, method: str
) -> None:
    answerer = Answerer(student, config, Calculator(), None, {name: partial(by_eval, name) for name in STEPWISE})

    async def main() -> None:
        student.engine.tree.clear()
        loop = asyncio.get_running_loop()
        one = wanted(student, config, method, seed=milliseconds, temperature=2.0)
        due = loop.time() + milliseconds / 1000
        outcome = await answerer(one, one.prompts[0], 0, one.seed, due, lambda told: None, "p")
        assert outcome.finish in ("stop", "length")
        if outcome.deadline_hit:
            assert outcome.ended_by == "deadline"
        for _ in range(400):  # an answer that is due waits for no cancellation: the search may still be ending
            if not student.engine.queue and (outcome.tree is None or not any(outcome.tree.virtual)):
                break
            await asyncio.sleep(0.005)
        assert outcome.tree is None or not any(outcome.tree.virtual)
        assert not student.engine.queue and not student.engine._wakes

    run(main)


def test_an_answer_that_is_due_waits_for_no_cancellation(student: Student, config: Config) -> None:
    """What is let go at the deadline takes its time to end; what it had drawn by then is counted once."""

    async def main() -> None:
        one = wanted(student, config, "beam", temperature=2.0)
        conversation, ended = Conversation(student, one.prompts[0].token_ids), asyncio.Event()

        async def slow_to_end() -> None:
            try:
                request = GenerateRequest(conversation.prompt, max_new_tokens=400, temperature=2.0, seed=1, n=4)
                await conversation.engine.generate([request])
                await asyncio.Event().wait()
            finally:
                await asyncio.sleep(0.2)
                ended.set()

        student.engine.tree.clear()
        working = asyncio.ensure_future(in_time(slow_to_end(), asyncio.get_running_loop().time() + 0.3, conversation))
        assert await working is None and not ended.is_set()
        drawn = conversation.engine.cost.sampled_tokens
        await ended.wait()
        assert conversation.engine.cost.sampled_tokens == drawn == conversation.engine.sampled_tokens

    run(main)


def test_the_shipped_bounds_are_sound() -> None:
    serve = load_config().serve
    assert serve.budget_tokens <= serve.max_budget_tokens
    assert serve.deadline_seconds is None or serve.deadline_seconds <= serve.max_deadline_seconds


def test_every_end_token_ends_a_sample_and_is_no_text(student: Student, config: Config) -> None:
    """Chat models have several end tokens; here a line end is made one."""
    newline = student.encode("\n")[-1]
    engine = InProcessEngine(
        student.model,
        eos_id=student.engine.eos_id,
        eos_ids=frozenset({newline}),
        step_ends=student.engine.step_ends,
        settings=config.engine,
    )
    several = replace(student, engine=engine)
    answerer = Answerer(several, config, None, None, {})

    async def main() -> None:
        one = wanted(student, config, "sample", seed=1, temperature=0.0, logprobs=True, top_logprobs=1)
        outcome = await answerer(one, one.prompts[0], 0, one.seed, None, lambda told: None, "p")
        assert outcome.finish == "stop" and "\n" not in outcome.text and outcome.text
        assert outcome.tokens is not None
        assert "".join(token.text for token in outcome.tokens) == outcome.text

    run(main)
