"""What the server is made of, without one: text as it comes, traces, models, the door, watched
engines, answers in time.
"""

import asyncio
import subprocess
import sys
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted import run

from alphazero_llm_trainer.engine.inprocess import InProcessEngine
from alphazero_llm_trainer.errors import ConfigError
from alphazero_llm_trainer.mcts.choose import Choice
from alphazero_llm_trainer.policy.critic import Critic, CriticVerifier
from alphazero_llm_trainer.problems.embedded import build_task
from alphazero_llm_trainer.problems.step_checks import Calculator
from alphazero_llm_trainer.serve import app, listen
from alphazero_llm_trainer.serve.answerer import Answerer
from alphazero_llm_trainer.serve.requests import (
    ApiError,
    ChatBody,
    Models,
    ServedMethod,
    chat_request,
)
from alphazero_llm_trainer.serve.service import Service
from alphazero_llm_trainer.serve.text_reader import TextReader
from alphazero_llm_trainer.serve.wire import AnswerOutcome, Wire
from alphazero_llm_trainer.tree.arena import Tree
from alphazero_llm_trainer.types import Cost, Step

# -- text ------------------------------------------------------------------------------------------


def byte_decode(ids):
    """A byte-level tokenizer: each id is a byte, characters may take several."""
    return bytes(ids).decode("utf-8", errors="replace")


@settings(max_examples=200, deadline=None)
@given(
    st.text(alphabet="ab=\né€𝄞 ", max_size=30),
    st.lists(st.text(alphabet="ab=\né", min_size=1, max_size=4), max_size=4),
    st.lists(st.integers(1, 5), min_size=1, max_size=8),
)
def test_deltas_join_to_the_whole_and_stop_strings_cut_exactly(text, stops, sizes):
    ids = list(text.encode())
    reader, told, at, turn = TextReader(byte_decode, stops), "", 0, 0
    while at < len(ids) and reader.stop is None:
        size = sizes[turn % len(sizes)]
        reader.read(ids[: at + size])
        told += reader.delta()
        at, turn = at + size, turn + 1
    reader.end()
    told += reader.delta(final=True)
    # By definition: the text up to where the first stop string is complete, character by character.
    found = [
        end for end in range(len(text) + 1) if any(text[:end].endswith(stop) for stop in stops)
    ]
    expected = text
    if found:
        whole = text[: found[0]]
        expected = whole[: min(whole.find(stop) for stop in stops if stop in whole)]
    assert told == reader.text == expected
    assert (reader.stop is not None) == bool(found)
    assert "".join(reader.pieces[: reader.count_kept()]).startswith(expected)


# -- traces and models -----------------------------------------------------------------------------


def test_a_full_disk_costs_the_journal_and_no_answer(tmp_path, student, config):
    answerer = Answerer(student, config)
    service = Service(answerer, Models("student"), config.serve, tmp_path)
    service.journal._file = open("/dev/full", "ab")  # noqa: SIM115
    tree = Tree()
    tree.attach(0, Step((1,), (-0.5,), "text\n"))
    choice = Choice(1, "text", None, 1, 1.0, "first")
    outcome = AnswerOutcome(
        "text", "stop", 7, Cost(), "finished", tree=tree, choice=choice, trace_id="tr-a"
    )
    service.keep(wanted(student, config, "beam"), outcome)
    assert service.journal is None
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError):
        Service(answerer, Models("student"), config.serve, tmp_path / "file" / "folder")


def test_models_say_how_an_answer_is_made():
    models = Models("student", "mcts")
    assert models.of("student") == ServedMethod("mcts", "mcts")
    assert models.of("student@best-of-64") == ServedMethod("best-of-64", "best-of-n", 64)
    assert models.of("student", "majority-3") == ServedMethod("majority-3", "majority", 3)
    assert models.of("student@beam", "beam") == ServedMethod("beam", "beam")
    for model in ("gpt", "student@best-of-65", "student@best-of-08", "student@"):
        with pytest.raises(ApiError) as refused:
            models.of(model)
        assert (refused.value.status_code, refused.value.code) == (404, "model_not_found")
    with pytest.raises(ApiError):
        models.of("student@mcts", "beam")
    with pytest.raises(ConfigError):
        Models("student", "magic")
    assert all(models.of(model) for model in models.listed)
    assert Models("s", judged=False).listed == ["s", "s@sample", "s@mcts", "s@majority-8"]


# -- answering -------------------------------------------------------------------------------------

QUESTION = build_task("test", 1, 1).problem.question


def wanted(student, config, method, before="", **more):
    messages = (
        [{"role": "user", "content": before}, {"role": "assistant", "content": "#### 1"}]
        if before
        else []
    )
    body = {
        "model": f"student@{method}",
        "messages": [*messages, {"role": "user", "content": QUESTION}],
        **more,
    }
    return chat_request(ChatBody.model_validate(body), student, Models("student"))


async def answered(answerer, one, due=None):
    return await answerer(one, one.seed, due, lambda text, tokens: None, "p")


def prm_over(engine):
    """A process reward model of random numbers."""
    torch.manual_seed(10)
    engine.set_value(torch.randn(engine.model.config.hidden_size) * 0.1, 0.5)
    return CriticVerifier(Critic(engine, 1.0, {}), "prm")


def engine_like(student, config, **more):
    own = student.engine
    ends = {"eos_id": own.eos_id, "step_ends": own.step_ends, "settings": config.engine}
    return InProcessEngine(student.model, **ends, **more)


@pytest.mark.parametrize("method", ["best-of-4", "mcts"])
def test_a_network_judges_each_request_by_its_own_chat(student, config, method):
    prm = prm_over(engine_like(student, config))
    answerer = Answerer(student, config, prm)

    async def ask(before):
        one = wanted(student, config, method, before, seed=3, temperature=1.0)
        outcome = await answerer(one, one.seed, None, lambda text, tokens: None, f"p{len(before)}")
        return one, outcome

    async def main():
        # The same last question, after different chats, at the same time.
        chats, compared = ["", "Tom has 3 cards.", "Ana gets 25 apples on Monday."], []
        together = await asyncio.gather(*map(ask, chats))
        for chat, (one, outcome) in zip(chats, together, strict=True):
            _, alone = await ask(chat)
            assert alone.text == outcome.text
            assert alone.cost.sampled_tokens == outcome.cost.sampled_tokens
            # Such a network reads the prompt once and each judged token once.
            assert outcome.cost.scored_tokens > len(one.prompt)
            usage, tree = Wire([one], "").usage([outcome]), outcome.tree
            scored = usage["completion_tokens_details"]["scored_tokens"]
            assert scored == outcome.cost.scored_tokens
            assert usage["completion_tokens"] == outcome.cost.sampled_tokens > 0
            # What the budget's end left unjudged has the reward 0; random numbers may reject all of
            # a tree.
            for leaf in tree.leaves():
                if tree.verdict[leaf] != "rejected" and tree.reward[leaf]:
                    judged = await prm(
                        build_task("test", 0, 1).problem, one.prompt, tree.steps(leaf)
                    )
                    assert tree.reward[leaf] == pytest.approx(min(judged.steps), abs=1e-5)
                    compared.append(leaf)
        assert compared

    run(main)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 40), st.sampled_from(["mcts", "beam", "best-of-8", "majority-8", "sample"]))
def test_whenever_the_time_is_over_there_is_an_answer_and_nothing_is_left_behind(
    student, config, milliseconds, method
):
    answerer = Answerer(student, config, Calculator())

    async def main():
        student.engine.tree.clear()
        loop = asyncio.get_running_loop()
        one = wanted(student, config, method, seed=milliseconds, temperature=2.0)
        due = loop.time() + milliseconds / 1000
        outcome = await answered(answerer, one, due)
        assert outcome.finish in ("stop", "length")
        # An answer that is due waits for no cancellation: the search may still be ending.
        for _ in range(400):
            if not student.engine.queue and (outcome.tree is None or not any(outcome.tree.virtual)):
                break
            await asyncio.sleep(0.005)
        assert outcome.tree is None or not any(outcome.tree.virtual)
        assert not student.engine.queue and not student.engine._wakes

    run(main)


def test_every_end_token_ends_a_sample_and_is_no_text(student, config):
    """Chat models have several end tokens; here a line end is made one."""
    ends = frozenset({student.encode("\n")[-1]})
    several = replace(student, engine=engine_like(student, config, eos_ids=ends))
    one = wanted(student, config, "sample", seed=1, temperature=0, logprobs=True, top_logprobs=1)
    outcome = run(lambda: answered(Answerer(several, config), one))
    assert outcome.finish == "stop" and "\n" not in outcome.text and outcome.text
    assert "".join(token.text for token in outcome.tokens) == outcome.text


# -- connections -----------------------------------------------------------------------------------

HEAD = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
HALF = HEAD.replace(b"GET", b"POST").replace(b"\r\n\r\n", b"\r\nContent-Length: 99\r\n\r\n{")
LARGE = HEAD.replace(b"/health", b"/large")
ENDS = b"Connection: close\r\n\r\n"


async def tiny_app(scope, receive, send):
    """Answers a whole request after a while, on `/large` by more than any buffer holds."""
    while (message := await receive()).get("more_body"):
        pass
    if message["type"] == "http.disconnect":
        return
    await asyncio.sleep(0.5)
    await send({"type": "http.response.start", "status": 200, "headers": []})
    pieces = 300 if scope["path"] == "/large" else 1
    for _ in range(pieces):
        await send({"type": "http.response.body", "body": b"x" * 100_000, "more_body": True})
    await send({"type": "http.response.body", "body": b"", "more_body": False})


@asynccontextmanager
async def listening():
    """A server of `tiny_app`, and what opens a connection to it that reads little."""
    bound = listen.open_socket("127.0.0.1", 0)
    place = bound.getsockname()
    running, task = listen.start_server(tiny_app, bound)

    async def client(says=b""):
        reader, writer = await asyncio.open_connection(*place[:2], limit=1000)
        writer.write(says)
        return reader, writer

    try:
        yield running, client
    finally:
        running.should_exit = True
        await asyncio.wait_for(task, 10)


@pytest.mark.parametrize(
    "says, drips",
    [
        (b"", b""),
        (HEAD[:9], b"x"),
        (HALF, b" "),
        (HEAD, b""),
        (HEAD + HEAD[:9], b"x"),
        (HEAD + HALF, b" "),
        (LARGE, b""),
        (LARGE.removesuffix(b"\r\n") + ENDS, b""),
        (HEAD.replace(b"/health", b"\xff"), b"x"),
    ],
)
def test_a_client_is_waited_for_as_long_as_said(says, drips, monkeypatch):
    """Whatever it sends and leaves out, and however it drips: a slow answer isn't its fault."""
    monkeypatch.setattr(listen, "CLIENT_PATIENCE", dict.fromkeys(listen.CLIENT_PATIENCE, 0.3))

    async def one():
        async with listening() as (running, client):
            reader, writer = await client(says)
            if says.startswith(HEAD):
                assert (await reader.readline()).startswith(b"HTTP/1.1 200")
            for _ in range(40):
                await asyncio.sleep(0.1)
                if not (running.server_state.connections or running.server_state.tasks):
                    break
                writer.write(drips)
            else:
                pytest.fail("it is waited for")
            writer.transport.abort()

    asyncio.run(one())


def test_a_new_connection_takes_the_place_of_a_silent_one(monkeypatch, caplog):
    monkeypatch.setattr(listen, "connection_room", lambda: 8)
    listen.warn_full.cache_clear()

    async def crowd():
        async with listening() as (running, client):
            reader, writer = await client(HEAD)
            await asyncio.sleep(0.1)  # its request is under way and stays so
            crowd = [await client((b"", HEAD[:9], HALF)[number % 3]) for number in range(30)]
            for _ in range(3):
                fresh, out = await client(HEAD)
                assert (await fresh.readline()).startswith(b"HTTP/1.1 200")
                out.close()
            assert (await reader.readline()).startswith(b"HTTP/1.1 200")
            assert len(running.server_state.connections) <= 8
            for _, one in [*crowd, (reader, writer)]:
                one.transport.abort()

    asyncio.run(crowd())
    assert len(caplog.messages) == 1 and "8 connections" in caplog.text


def test_files_leave_room_for_connections():
    code = """
import resource, sys
hard = int(sys.argv[2])
resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[1]), hard))
from alphazero_llm_trainer.serve.listen import connection_room
print(connection_room(), resource.getrlimit(resource.RLIMIT_NOFILE)[0])
"""
    rooms = []
    for soft, hard in ((64, 64), (200, 300), (512, 2000)):
        command = [sys.executable, "-c", code, str(soft), str(hard)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        rooms.append([int(word) for word in done.stdout.split()])
    assert [files for _, files in rooms] == [64, 300, 2000]
    assert rooms[0][0] == 8 and 150 < rooms[1][0] < 204 and rooms[2][0] == 896


def test_large_bodies_leave_room_for_small_ones(monkeypatch):
    monkeypatch.setattr(app, "MOST_BODY_BYTES", 200_000)
    held = []

    async def reads(scope, receive, send):
        while (await receive()).get("more_body"):
            pass

    bounded = app.Bounded(reads)

    async def body(size, more):
        pieces = iter([{"body": b"x" * size, "more_body": True}] * more + [{"body": b""}])

        async def receive():
            await asyncio.sleep(0.01)
            held.append(bounded.held)
            return next(pieces)

        await bounded({}, receive, None)

    async def everyone():
        large = [body(60_000, 3) for _ in range(3)]
        return await asyncio.gather(*large, body(1000, 3), return_exceptions=True)

    results = asyncio.run(everyone())
    assert {getattr(error, "code", None) for error in results[:3]} == {"bodies_full", None}
    assert results[3] is None and bounded.held == 0 and max(held) < 500_000
