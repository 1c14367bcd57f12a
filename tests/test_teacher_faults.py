"""Budgets, cache and breakers against a server that misbehaves in every known way and keeps its own books."""

from __future__ import annotations

import asyncio
import json
import logging
import random
import tracemalloc
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from fault_server import FAULTS, FREE, GOOD, LOST, FaultServer
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from alphazero_llm_trainer.config.sections import BudgetConfig, SpendLimits, TeacherModel, TeachersConfig
from alphazero_llm_trainer.teachers.answer import CallError, Failure, read_answer
from alphazero_llm_trainer.teachers.budget import Books, Spent
from alphazero_llm_trainer.teachers.cache import AnswerCache
from alphazero_llm_trainer.teachers.client import ChatClient, Endpoint, RetryPolicy
from alphazero_llm_trainer.teachers.ensemble import TeacherEnsemble
from alphazero_llm_trainer.teachers.openai_teacher import OpenAITeacher, TerminalChecker
from alphazero_llm_trainer.types import Problem

KEY = "sk-secret-0123456789"
PRICES = {"test/one": (2.0, 10.0), "test/two": (0.5, 1.0)}
ONE, TWO = (TeacherModel(model=name, prompt_cost=a, completion_cost=b) for name, (a, b) in PRICES.items())
QUICK = RetryPolicy(timeout=0.4, retries=2, first_wait=0.001, longest_wait=0.01)
PATIENT = replace(QUICK, timeout=30.0)  # where nothing hangs: no answer may come too late on a busy machine
MOST_ATTEMPTS = 4  # retries, the first one, and one with more room for thinking
PROBLEM = Problem("p/0", "Ana has 3 apples and buys 4. How many has she?", "test")
QUESTION = [{"role": "user", "content": "What next?"}]


@asynccontextmanager
async def endpoint_at(url, *, policy=QUICK, max_concurrent=8):
    endpoint = Endpoint(url, KEY, policy, max_concurrent)
    try:
        yield endpoint
    finally:
        await endpoint.close()


def play(server, use, **more):
    """`use(endpoint)` against a running server."""

    async def main(url):
        async with endpoint_at(url, **more) as endpoint:
            return await use(endpoint)

    with server.running() as url:
        return asyncio.run(main(url))


def always(fault, **more):
    return FaultServer(lambda number, asked: fault, prices=PRICES, hang=2.0, **more)


KINDS = {
    "429": Failure.RATE_LIMIT,
    "429-seconds": Failure.RATE_LIMIT,
    "429-date": Failure.RATE_LIMIT,
    "500": Failure.SERVER,
    "502": Failure.SERVER,
    "503": Failure.SERVER,
    "error-200": Failure.SERVER,
    "hang": Failure.TIMEOUT,
    "drip": Failure.TIMEOUT,
    "cut": Failure.CONNECTION,
    "close": Failure.CONNECTION,
    "400": Failure.BAD_REQUEST,
    "401": Failure.REFUSED_KEY,
    "402": Failure.REFUSED_KEY,
    "403": Failure.REFUSED_KEY,
    "403-moderation": Failure.REFUSAL,
    "404": Failure.NOT_FOUND,
    "307": Failure.BAD_REQUEST,
    "huge": Failure.TOO_LARGE,
    "bomb": Failure.TOO_LARGE,
    "packed-otherwise": Failure.BAD_JSON,
    "truncated": Failure.BAD_JSON,
    "html": Failure.BAD_JSON,
    "deep": Failure.BAD_JSON,
    "empty-choices": Failure.EMPTY_CHOICES,
    "no-content": Failure.NO_CONTENT,
    "refusal": Failure.REFUSAL,
    "content-filter": Failure.REFUSAL,
}
RETRIED = {"429", "429-seconds", "429-date", "500", "502", "503", "error-200", "hang", "drip", "cut", "close"}


@pytest.fixture(scope="module", autouse=True)
def warm():
    """The SDK imports much on its first call, which would time out some tests."""
    play(always("ok"), lambda endpoint: ChatClient(endpoint, ONE).complete(QUESTION), policy=RetryPolicy())


def test_every_fault_is_covered():
    assert {*KINDS, *GOOD, "ok-no-usage", "thinks"} == set(FAULTS)


@pytest.mark.parametrize("fault", sorted(KINDS))
def test_a_fault_that_lasts(fault):
    """Its kind, a bounded number of attempts, and no word of the server's in the error."""

    async def use(endpoint):
        client = ChatClient(endpoint, ONE)
        with pytest.raises(CallError) as caught:
            await client.complete(QUESTION)
        return caught.value, client

    server = always(fault, echo=KEY)
    error, client = play(server, use)
    assert error.kind is KINDS[fault]
    assert len(server.served) == client.cost.calls == (3 if fault in RETRIED else 1)
    assert "test/one" in str(error) and KEY not in str(error) and "\n" not in str(error)
    books = client.books
    tokens, dollars = server.charged(told=True)
    assert client.cost.dollars == pytest.approx(dollars)
    assert client.cost.prompt_tokens + client.cost.cached_tokens + client.cost.sampled_tokens == tokens
    # What was charged and never arrived is presumed, at its most.
    assert (books.presumed.tokens > 0) is (fault in LOST or fault in ("close", "cut"))
    assert books.spent.dollars >= server.charged()[1] - 1e-12
    assert books.spent.calls == len(server.served)


def test_a_bomb_takes_no_more_memory_than_its_limit():
    """A megabyte on the wire that unpacks to 256."""

    async def use(endpoint):
        client = ChatClient(endpoint, ONE)
        tracemalloc.start()
        with pytest.raises(CallError):
            await client.complete(QUESTION)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return peak

    assert play(always("bomb"), use, policy=PATIENT) < 16 << 20


@pytest.mark.parametrize("fault", [*GOOD, "ok-no-usage"])
def test_an_answer_in_any_dress(fault):
    async def use(endpoint):
        client = ChatClient(endpoint, ONE)
        return await client.complete(QUESTION), client

    server = always(fault)
    completion, client = play(server, use)
    assert completion.text.strip() == "3 + 4 = 7"
    if fault == "ok-no-usage":
        assert client.cost.sampled_tokens > 0 and client.books.spent.dollars >= server.charged()[1]
    else:
        assert client.cost.dollars == pytest.approx(server.charged()[1])
        assert client.books.presumed.tokens == 0


def test_thinking_that_eats_the_answer_gets_more_room_once():
    async def use(endpoint):
        client = ChatClient(endpoint, ONE)
        first = await client.complete(QUESTION, max_tokens=100)
        second = await client.complete(QUESTION, max_tokens=200)
        with pytest.raises(CallError) as caught:
            await client.complete(QUESTION, max_tokens=110)
        return first, second, caught.value

    server = always("thinks")
    server.choose = lambda number, asked: "thinks" if asked["max_tokens"] in (100, 440) else "ok"
    first, second, error = play(server, use)
    assert first.text == second.text == "3 + 4 = 7"
    # The model is known to think from then on: no second call is wasted.
    assert [asked["max_tokens"] for asked in server.requests] == [100, 400, 800, 440]
    assert error.kind is Failure.LENGTH
    assert "teachers.max_tokens" in str(error)


def test_a_refused_key_takes_the_whole_tier_out(caplog):
    async def use(endpoint):
        books = Books()
        teachers = [OpenAITeacher(ChatClient(endpoint, model, books=books)) for model in (ONE, TWO)]
        ensemble = TeacherEnsemble(teachers, TeachersConfig(), books=books)
        checker = TerminalChecker(ChatClient(endpoint, TWO, books=books, name="terminal checker"))
        found = [await ensemble.propose(PROBLEM, [], seed) for seed in range(4)]
        return found, ensemble, await checker.finished(PROBLEM, "3 + 4 = 7", True)

    server = always("402", echo=KEY)
    found, ensemble, said = play(server, use, max_concurrent=1)
    assert found == [[], [], [], []] and said is True
    assert len(server.served) == 1
    assert ensemble.active == []
    said = [record.getMessage() for record in caplog.records if "left out for the rest" in record.getMessage()]
    assert len(said) == 3 and all("refused the key (HTTP 402)" in text for text in said)


def test_the_key_is_nowhere(tmp_path, caplog):
    """Logs of every library, errors, books, cache, ledgers and representations."""
    caplog.set_level(logging.DEBUG)
    wanted = random.Random(5)
    errors = []

    async def use(endpoint):
        books, cache = Books(), AnswerCache(tmp_path / "cache")
        books.open(tmp_path / "books.jsonl")
        client = ChatClient(endpoint, ONE, books=books, cache=cache)
        for seed in range(40):
            try:
                await client.complete(QUESTION, seed=seed)
            except CallError as error:
                errors.append(f"{error} {error!r} {error.__cause__!r}")
        ensemble = TeacherEnsemble([OpenAITeacher(client)], books=books)
        books.close()
        return json.dumps([books.as_dict(), ensemble.ledgers["test/one"].as_dict()]), client

    faults = [fault for fault in FAULTS if fault not in ("hang", "drip", "401", "402", "403")]
    server = FaultServer(lambda number, asked: wanted.choice(faults), prices=PRICES, echo=KEY)
    card, client = play(server, use)
    assert server.keys == {f"Bearer {KEY}"}
    files = "".join(path.read_text() for path in tmp_path.rglob("*") if path.is_file())
    assert len(files) > 1000 and len(errors) > 5
    shown = files + card + repr(client) + repr(client.endpoint) + repr(vars(client.books))
    assert KEY not in shown + "".join(errors)
    assert KEY not in caplog.text


# -- budgets -----------------------------------------------------------------------------------------------------------


def spend(server, limits, asks, *, questions=3, books=None, max_concurrent=16):
    """Ask many things at once for several questions; returns the books and what failed by kind."""

    async def use(endpoint):
        kept = Books(limits) if books is None else books
        clients = [ChatClient(endpoint, model, books=kept) for model in (ONE, TWO)]

        async def one(number):
            try:
                await clients[number % 2].complete(
                    QUESTION, max_tokens=40 + number % 7, seed=number, question=f"q{number % questions}"
                )
            except CallError as error:
                return str(error.kind)
            return "ok"

        return kept, await asyncio.gather(*(one(number) for number in range(asks)))

    policy = RetryPolicy(timeout=20.0, retries=2, first_wait=0.001, longest_wait=0.01)
    return play(server, use, policy=policy, max_concurrent=max_concurrent)


# No shrinking: every example starts a server.
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow], phases=[Phase.generate])
@given(
    st.integers(0, 10**6),
    st.one_of(st.none(), st.floats(0, 0.02)),
    st.one_of(st.none(), st.integers(0, 3000)),
    st.one_of(st.none(), st.integers(0, 40)),
    st.one_of(st.none(), st.integers(0, 900)),
    st.one_of(st.none(), st.integers(0, 12)),
)
def test_no_budget_is_ever_exceeded(seed, dollars, tokens, calls, question_tokens, question_calls):
    """By the server's own count, lost answers included, with many calls at once."""
    wanted = random.Random(seed)
    faults = [fault for fault in FAULTS if fault not in ("hang", "drip", "401", "402", "403", "404", "huge")]
    server = FaultServer(lambda number, asked: wanted.choice(faults), prices=PRICES)
    limits = BudgetConfig(
        run=SpendLimits(dollars=dollars, tokens=tokens, calls=calls),
        question=SpendLimits(tokens=question_tokens, calls=question_calls),
    )
    books, ended = spend(server, limits, 40)
    taken, paid = server.charged()
    assert dollars is None or paid <= dollars + 1e-12
    assert tokens is None or taken <= tokens
    assert calls is None or len(server.served) <= calls
    assert question_calls is None or len(server.served) <= 3 * question_calls
    assert question_tokens is None or taken <= 3 * question_tokens
    # A call whose connection was lost before the server had read it counts here alone.
    assert books.spent.calls >= len(server.served)
    assert books.spent.tokens >= taken and books.spent.dollars >= paid - 1e-12
    assert max(server.attempts.values(), default=0) <= MOST_ATTEMPTS
    assert ended.count("budget") <= books.refused


def test_what_is_left_is_used():
    """Reserving the worst case doesn't strand the budget: settled calls give back what they didn't take."""
    limits = BudgetConfig(run=SpendLimits(tokens=1000))
    server = always("ok")
    _, ended = spend(server, limits, 200, max_concurrent=1)
    worst = max(len(QUESTION[0]["content"]) + 32 + 46, 1)
    assert 1000 - worst <= server.charged()[0] <= 1000
    assert ended.count("budget") == 200 - len(server.served)


def test_out_of_budget_is_said_once_and_a_cheaper_teacher_may_go_on(caplog):
    async def use(endpoint):
        books = Books(BudgetConfig(run=SpendLimits(dollars=0.004)))
        teachers = [OpenAITeacher(ChatClient(endpoint, model, books=books), 64) for model in (ONE, TWO)]
        ensemble = TeacherEnsemble(teachers, TeachersConfig(), books=books)
        for seed in range(60):
            await ensemble.propose(PROBLEM, [], seed)
        return ensemble, books

    server = always("ok")
    ensemble, books = play(server, use)
    asked = [one.model for one in server.served]
    assert asked[-8:] == ["test/two"] * 8 and asked.count("test/one") > 0
    assert server.charged()[1] <= 0.004
    assert ensemble.active == list(ensemble.teachers)  # the teachers themselves are well
    assert ensemble.ledgers["test/one"].failures == {}
    said = [r.getMessage() for r in caplog.records if "budget" in r.getMessage()]
    assert len(said) == 1 and "dollars" in said[0]
    assert books.as_dict()["refused"] > 60


def test_a_question_out_of_budget_leaves_the_others_alone():
    limits = BudgetConfig(question=SpendLimits(calls=2))
    server = always("ok")
    books, ended = spend(server, limits, 30, questions=5)
    assert len(server.served) == 10 and ended.count("ok") == 10
    assert books.as_dict()["spent"]["calls"] == 10


def test_a_resumed_run_counts_what_was_spent_before_and_what_was_under_way(tmp_path):
    """The books of a process that died in the middle of calls."""
    path, copy = tmp_path / "books.jsonl", tmp_path / "died.jsonl"
    limits = BudgetConfig(run=SpendLimits(tokens=1500), question=SpendLimits(calls=6))

    async def use(endpoint):
        books = Books(limits)
        books.open(path)
        client = ChatClient(endpoint, ONE, books=books)
        await asyncio.gather(*(client.complete(QUESTION, seed=n, max_tokens=50, question=f"q{n}") for n in range(3)))
        asks = [asyncio.ensure_future(client.complete(QUESTION, seed=n, question="q0")) for n in (7, 8)]
        while len(server.served) < 5:
            await asyncio.sleep(0.01)
        # As SIGKILL would leave it, with half a line at the end.
        copy.write_bytes(path.read_bytes() + b'{"event": "settle", "id"')
        for ask in asks:
            ask.cancel()
        await asyncio.gather(*asks, return_exceptions=True)
        books.close()
        return books

    server = FaultServer(lambda number, asked: "ok" if number < 3 else "hang", prices=PRICES, hang=0.3)
    before = play(server, use)
    assert before.spent.calls == 5
    again = Books(limits)
    again.open(copy)
    assert again.spent.calls == 5 == again.ledgers["test/one"].cost.calls
    assert again.ledgers["test/one"].cost.dollars == pytest.approx(server.charged(told=True)[1])
    assert again.spent.tokens >= server.charged()[0]
    assert again.spent.as_dict() == pytest.approx(before.spent.as_dict())
    # q0 had three of its six calls; another process goes on with the rest and with what is left of the tokens.
    server = always("ok")
    books, _ = spend(server, limits, 20, questions=1, books=again)
    assert len(server.served) == 3
    again.close()
    third = Books(limits)
    third.open(copy)
    assert third.spent.as_dict() == pytest.approx(books.spent.as_dict())


def test_unreadable_books_lose_no_more_than_their_lines(tmp_path, caplog):
    path = tmp_path / "books.jsonl"
    books = Books()
    books.open(path)
    for kind in ("right", "wrong"):
        books.note("a", "call", kind)
    books.close()
    lines = path.read_text().splitlines()
    settle = {"event": "settle", "id": "x-1", "teacher": "a", "question": "q"}
    spent, cost = {"dollars": 0.0, "tokens": 0, "calls": 0}, {"calls": 1}
    wrong = [
        "nonsense", '{"event": "settle"}', "[1]",
        json.dumps({**settle, "cost": {**cost, "dollars": "1"}, "presumed": spent}),
        json.dumps({**settle, "cost": cost, "presumed": {**spent, "dollars": float("nan")}}),
        json.dumps({**settle, "cost": {**cost, "euros": 1}, "presumed": spent}),
        json.dumps({**settle, "id": [1], "cost": cost, "presumed": spent}),
        json.dumps({**settle, "cost": {**cost, "dollars": -5.0}, "presumed": spent}),
    ]  # fmt: skip
    path.write_text("\n".join([lines[0], *wrong, lines[1]]) + "\n")
    again = Books(BudgetConfig(run=SpendLimits(dollars=0.0, calls=1)))
    assert len(again.open(path)) == 2
    assert again.ledgers["a"].calls == 2 and again.spent.calls == 0
    assert len([r for r in caplog.records if "can't be read and is left out" in r.getMessage()]) == len(wrong)
    with pytest.raises(CallError):
        again.reserve("a", "q", Spent(0.01, 1, 1))


def test_a_provider_that_takes_more_than_it_may_is_held_at_what_it_took(tmp_path, caplog):
    """Prices that have risen: the provider's own figure counts, and the next calls reserve as much."""
    cheap, path = TeacherModel(model="test/one", prompt_cost=0.02, completion_cost=0.1), tmp_path / "books.jsonl"

    async def use(endpoint):
        books = Books(BudgetConfig(run=SpendLimits(dollars=0.01)))
        books.open(path)
        client = ChatClient(endpoint, cheap, books=books)
        paid = 0.0
        for seed in range(100):
            try:
                paid += (await client.complete(QUESTION, seed=seed, max_tokens=50)).cost.dollars
            except CallError as error:
                assert error.kind is Failure.BUDGET
                break
        return books, paid

    server = always("ok-priced")
    write = server._answered

    async def priced(request, asked, fault):
        response = await write(request, asked, "ok")
        body = json.loads(response.body)
        body["usage"]["cost"] = 0.002
        response.body = json.dumps(body).encode()
        return response

    server._answered = priced
    books, paid = play(server, use)
    assert len(server.served) == 5 and paid == pytest.approx(0.01)
    assert books.spent.dollars == pytest.approx(0.01)
    # A resumed run knows it too.
    again = Books()
    again.open(path)
    assert again._excess == pytest.approx(books._excess) and again._excess["test/one"] > 1
    assert any("check its costs in" in record.getMessage() for record in caplog.records)


# -- cache and sharing -------------------------------------------------------------------------------------------------


def test_answers_are_kept_and_cost_nothing_again(tmp_path, caplog):
    async def use(endpoint):
        books = Books(BudgetConfig(run=SpendLimits(calls=3)))
        client = ChatClient(endpoint, ONE, books=books, cache=AnswerCache(tmp_path))
        first = [await client.complete(QUESTION, seed=seed) for seed in range(2)]
        # Another process, later.
        later = ChatClient(endpoint, ONE, books=books, cache=AnswerCache(tmp_path))
        again = [await later.complete(QUESTION, seed=seed) for seed in range(2)]
        for path in list(tmp_path.rglob("*.json"))[:1]:
            path.write_bytes(path.read_bytes()[:20])
        last = [await later.complete(QUESTION, seed=seed) for seed in range(2)]
        return first, again, last, books

    server = always("ok")
    first, again, last, books = play(server, use)
    assert [c.text for c in first] == [c.text for c in again] == [c.text for c in last]
    assert [c.cached for c in first + again] == [False, False, True, True]
    assert sum(c.cached for c in last) == 1
    assert all(c.cost.calls == 0 and c.cost.dollars == 0 for c in again)
    assert len(server.served) == books.spent.calls == 3
    assert len([r for r in caplog.records if "can't be read" in r.getMessage()]) == 1
    assert not list(tmp_path.rglob("*.part"))


def test_what_is_asked_decides_the_entry(tmp_path):
    async def use(endpoint):
        cache = AnswerCache(tmp_path)
        for model in (ONE, TWO):
            client = ChatClient(endpoint, model, cache=cache)
            await client.complete(QUESTION)
            await client.complete(QUESTION, temperature=0.5)
            await client.complete(QUESTION, max_tokens=9)
            await client.complete(QUESTION, seed=1)
            await client.complete([{"role": "user", "content": "Else?"}])
        endpoint.base_url += "/"
        await ChatClient(endpoint, TWO, cache=cache).complete(QUESTION)

    server = always("ok")
    play(server, use)
    assert len(server.served) == 11 == len(list(tmp_path.rglob("*.json")))


def test_failures_are_not_kept_and_a_broken_folder_costs_the_cache_alone(tmp_path, caplog):
    (tmp_path / "file").write_text("in the way")

    async def use(endpoint):
        client = ChatClient(endpoint, ONE, cache=AnswerCache(tmp_path / "file"))
        with pytest.raises(CallError):
            await client.complete(QUESTION)
        return [await client.complete(QUESTION, seed=seed) for seed in (None, 1)]

    server = FaultServer(lambda number, asked: "400" if number == 0 else "ok")
    assert [c.cached for c in play(server, use)] == [False, False]
    assert len([r for r in caplog.records if "can't be cached" in r.getMessage()]) == 1


def test_a_request_under_way_is_shared():
    async def use(endpoint):
        client = ChatClient(endpoint, ONE)
        asks = [asyncio.ensure_future(client.complete(QUESTION, seed=1)) for _ in range(20)]
        while not server.served:
            await asyncio.sleep(0.01)
        asks[0].cancel()  # who asked first gives up; the others get the answer
        found = await asyncio.gather(*asks, return_exceptions=True)
        alone = asyncio.ensure_future(client.complete(QUESTION, seed=2))
        while len(server.served) < 2:
            await asyncio.sleep(0.01)
        alone.cancel()
        await asyncio.gather(alone, return_exceptions=True)
        return found, client

    server = FaultServer(lambda number, asked: "hang", prices=PRICES, hang=0.2)
    found, client = play(server, use, policy=RetryPolicy(timeout=5.0))
    assert isinstance(found[0], asyncio.CancelledError)
    assert {c.text for c in found[1:]} == {"3 + 4 = 7"}
    assert len(server.served) == 2
    # The abandoned call may have been charged: it counts at its most.
    assert client.books.spent.calls == 2 and client.books.presumed.tokens > 0
    assert client._under_way == {}


def test_who_asks_while_an_abandoned_request_ends_gets_an_answer():
    async def use(endpoint):
        client = ChatClient(endpoint, ONE)
        first = asyncio.ensure_future(client.complete(QUESTION, seed=1))
        while not server.served:
            await asyncio.sleep(0.01)
        first.cancel()
        await asyncio.sleep(0)  # the request is being cancelled, and isn't over yet
        second = await client.complete(QUESTION, seed=1)
        await asyncio.gather(first, return_exceptions=True)
        return second, client

    server = FaultServer(lambda number, asked: "hang" if number == 0 else "ok", prices=PRICES, hang=0.2)
    second, client = play(server, use, policy=RetryPolicy(timeout=5.0))
    assert second.text == "3 + 4 = 7" and not second.cached
    assert client._under_way == {}


# -- what answers hold -------------------------------------------------------------------------------------------------


def test_half_a_character_becomes_one_that_tokenizers_take():
    body = rb'{"choices": [{"message": {"content": "3 + 4 = 7 \ud83d"}, "finish_reason": "stop"}]}'
    assert read_answer(body, "m", "http://x").text == "3 + 4 = 7 ?"
    assert read_answer(body.replace(rb"\ud83d", rb"\ud83d\ude00"), "m", "http://x").text == "3 + 4 = 7 \U0001f600"


def test_an_error_in_the_middle_of_an_answer_may_have_been_charged():
    wrong = '{"code": 502, "message": "upstream"}'
    for body, unknown in [
        (f'{{"error": {wrong}}}', False),
        (f'{{"error": {wrong}, "usage": {{"prompt_tokens": 9, "completion_tokens": 9}}}}', True),
        (f'{{"choices": [{{"message": {{"content": "3 +"}}, "finish_reason": "error", "error": {wrong}}}]}}', True),
    ]:
        with pytest.raises(CallError) as caught:
            read_answer(body.encode(), "m", "http://x")
        assert (caught.value.kind, caught.value.unknown) == (Failure.SERVER, unknown)


# -- through the ensemble ----------------------------------------------------------------------------------------------


def test_every_ask_ends_as_a_proposal_or_a_counted_failure(tmp_path):
    wanted = random.Random(9)
    faults = [fault for fault in FAULTS if fault not in ("401", "402", "403", "404", "hang", "drip", "huge")]

    async def use(endpoint):
        books = Books()
        books.open(tmp_path / "books.jsonl")
        teachers = [OpenAITeacher(ChatClient(endpoint, model, books=books)) for model in (ONE, TWO)]
        ensemble = TeacherEnsemble(teachers, TeachersConfig(failures_in_a_row=10**9), books=books)
        found = await asyncio.gather(*(ensemble.propose(PROBLEM, [f"{n} + 1"], n) for n in range(100)))
        for proposals in found:
            for proposal in proposals:
                ensemble.learn(proposal, 0.75, 0.5)
        books.close()
        return ensemble, found

    server = FaultServer(
        lambda number, asked: wanted.choice([*faults, "ok", "ok", "ok", "ok"]),
        lambda asked: f"{len(asked['messages'][1]['content'])} + 1 = {wanted.randrange(10**9)}",
        prices=PRICES,
    )
    ensemble, found = play(server, use, policy=PATIENT, max_concurrent=16)
    ledgers = ensemble.ledgers.values()
    calls, failures = sum(led.calls for led in ledgers), sum(sum(led.failures.values()) for led in ledgers)
    assert calls == 200 == sum(map(len, found)) + failures
    assert sum(led.used for led in ledgers) == sum(map(len, found))
    told = sum(led.cost.dollars for led in ledgers)
    assert told >= server.charged(told=True)[1] - 1e-12
    # Another process learns from the books what this one knew.
    books = Books()
    books.open(Path(tmp_path / "books.jsonl"))
    again = TeacherEnsemble(
        [
            OpenAITeacher(ChatClient(Endpoint("http://127.0.0.1:9/v1", None, QUICK, 1), m, books=books))
            for m in (ONE, TWO)
        ],
        books=books,
    )
    assert {n: led.as_dict() for n, led in again.ledgers.items()} == {
        n: led.as_dict() for n, led in ensemble.ledgers.items()
    }


def test_nothing_is_charged_for_what_was_refused_or_never_sent():
    async def use(endpoint):
        client = ChatClient(endpoint, ONE)
        for seed in range(6):
            with pytest.raises(CallError):
                await client.complete(QUESTION, seed=seed)
        return client

    order = [fault for fault in FREE if fault not in ("close", "401", "402", "403")]
    server = FaultServer(lambda number, asked: order[number % len(order)], prices=PRICES)
    client = play(server, use, policy=PATIENT)
    assert client.cost.dollars == 0 and client.books.spent.tokens == 0
    nobody = ChatClient(Endpoint("http://127.0.0.1:9/v1", KEY, QUICK, 1), ONE)
    with pytest.raises(CallError):
        asyncio.run(nobody.complete(QUESTION))
    assert nobody.books.spent.tokens == 0 and nobody.books.spent.calls == 3
