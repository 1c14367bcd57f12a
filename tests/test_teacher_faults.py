"""The remote client, its budget and the teachers against a server that misbehaves in every known way and keeps its own
books."""

from __future__ import annotations

import asyncio
import logging
import random

import pytest
from fault_server import FAULTS, GOOD, LOST, FaultServer
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from alphazero_llm_trainer.config.sections import BudgetConfig, TeacherModel, TeachersConfig
from alphazero_llm_trainer.teachers import client as client_module
from alphazero_llm_trainer.teachers.answer import UNUSABLE, CallError, read_answer
from alphazero_llm_trainer.teachers.budget import Books, Spent
from alphazero_llm_trainer.teachers.client import ChatClient, Endpoint
from alphazero_llm_trainer.teachers.ensemble import TeacherEnsemble
from alphazero_llm_trainer.teachers.openai_teacher import OpenAITeacher
from alphazero_llm_trainer.types import Cost, Problem

KEY = "sk-secret-0123456789"
PRICES = {"test/one": (2.0, 10.0), "test/two": (0.5, 1.0)}
ONE, TWO = (TeacherModel(model=name, prompt_cost=a, completion_cost=b) for name, (a, b) in PRICES.items())
PROBLEM = Problem("p/0", "Ana has 3 apples and buys 4. How many has she?", "test")
QUESTION = [{"role": "user", "content": "What next?"}]


def play(server, use, *, books=None, key=KEY, **changes):
    """`use(endpoint)` against a running server."""
    wanted = TeachersConfig(**{"timeout_seconds": 20.0, "max_retries": 0, "max_tokens": 64, **changes})

    async def main(url):
        endpoint = Endpoint(url, key, wanted, books)
        async with endpoint.session():
            return await use(endpoint)

    with server.running() as url:
        return asyncio.run(main(url))


def always(fault, **more):
    return FaultServer(lambda number, asked: fault, prices=PRICES, hang=2.0, **more)


KINDS = {
    **{status: f"http {status}" for status in ("307", "400", "401", "404", "429", "500")},
    "error-200": "http 502",
    "hang": "timeout",
    "drip": "timeout",
    "cut": "connection",
    "close": "connection",
    "huge": "unreadable",
    "bomb": "unreadable",
    "html": "unreadable",
    "no-content": "empty",
    "thinks": "length",
    "refusal": "refusal",
    "content-filter": "refusal",
}


@pytest.fixture(scope="module", autouse=True)
def warm():
    """The SDK imports much on its first call, which would time out some tests."""
    play(always("ok"), lambda endpoint: ChatClient(endpoint, ONE).complete(QUESTION))


@pytest.mark.parametrize("fault", sorted(KINDS))
def test_a_fault_that_lasts(fault):
    """Its kind, one sentence without a word of the server's, and what it may have charged."""

    async def use(endpoint):
        client = ChatClient(endpoint, ONE)
        with pytest.raises(CallError) as caught:
            await client.complete(QUESTION)
        return caught.value, endpoint.books

    server = always(fault, echo=KEY)
    patience = 0.4 if fault in ("hang", "drip") else 20.0
    error, books = play(server, use, timeout_seconds=patience)
    assert error.kind == KINDS[fault]
    assert "test/one" in str(error) and KEY not in str(error) and "\n" not in str(error)
    cost = books.ledgers["test/one"].cost
    tokens, dollars = server.charged(told=True)
    assert cost.dollars == pytest.approx(dollars)
    assert cost.prompt_tokens + cost.cached_tokens + cost.sampled_tokens == tokens
    # What was charged and never arrived counts at its most.
    assert (books.spent.tokens > tokens) is (fault in LOST or fault in ("close", "cut"))
    assert books.spent.dollars >= server.charged()[1] - 1e-12
    assert books.spent.calls == 1 == len(server.served)
    assert {*KINDS, *GOOD, "ok-no-usage"} == set(FAULTS)


@pytest.mark.parametrize("fault", [*GOOD, "ok-no-usage"])
def test_an_answer_in_any_dress(fault):
    async def use(endpoint):
        return await ChatClient(endpoint, ONE).complete(QUESTION), endpoint.books

    server = always(fault)
    text, books = play(server, use)
    assert text.strip() == "3 + 4 = 7"
    if fault == "ok-no-usage":
        assert books.ledgers["test/one"].cost.sampled_tokens > 0 and books.spent.dollars >= server.charged()[1]
    else:
        assert books.ledgers["test/one"].cost.dollars == pytest.approx(server.charged()[1])
        assert books.spent.dollars == pytest.approx(server.charged()[1])


@pytest.mark.parametrize("fault", ["429", "500", "close"])
def test_passing_faults_are_tried_again(fault):
    server = FaultServer(lambda number, asked: fault if number == 0 else "ok", prices=PRICES)
    text = play(server, lambda endpoint: ChatClient(endpoint, ONE).complete(QUESTION), max_retries=1)
    assert text == "3 + 4 = 7" and len(server.served) == 2


def test_concurrency_is_bounded(monkeypatch):
    monkeypatch.setattr(client_module, "MOST_CALLS", 3)

    async def use(endpoint):
        client = ChatClient(endpoint, ONE)
        return await asyncio.gather(*(client.complete(QUESTION, seed=seed) for seed in range(12)))

    server = FaultServer(lambda number, asked: "hang", hang=0.1)
    assert len(play(server, use)) == 12 and server.most_live == 3


def test_the_key_is_nowhere(tmp_path, caplog):
    """Logs of every library, errors, books and representations."""
    caplog.set_level(logging.DEBUG)
    wanted, errors = random.Random(5), []
    faults = [fault for fault in FAULTS if fault not in ("hang", "drip")]

    async def use(endpoint):
        endpoint.books.open(tmp_path / "books.jsonl")
        client = ChatClient(endpoint, ONE)
        for seed in range(40):
            try:
                await client.complete(QUESTION, seed=seed)
            except CallError as error:
                errors.append(f"{error} {error!r} {error.__cause__!r}")
        return repr(client) + repr(endpoint) + repr(vars(endpoint.books))

    server = FaultServer(lambda number, asked: wanted.choice(faults), prices=PRICES, echo=KEY)
    shown = play(server, use)
    assert server.keys == {f"Bearer {KEY}"} and len(errors) > 5
    assert KEY not in shown + "".join(errors) + (tmp_path / "books.jsonl").read_text() + caplog.text


def test_no_key_of_another_service_is_sent(monkeypatch):
    for name in ("OPENAI_API_KEY", "OPENAI_ADMIN_KEY", "OPENAI_ORG_ID", "OPENAI_PROJECT_ID"):
        monkeypatch.setenv(name, KEY)
    server = always("ok")
    play(server, lambda endpoint: ChatClient(endpoint, ONE).complete(QUESTION), key=None)
    assert server.keys == {"Bearer none"}


# -- the budget --------------------------------------------------------------------------------------------------------


def spend(server, limits, asks, **more):
    """Ask many things at once; returns the books and what failed by kind."""
    kept = Books(limits)

    async def use(endpoint):
        clients = [ChatClient(endpoint, model) for model in (ONE, TWO)]

        async def one(number):
            try:
                await clients[number % 2].complete(QUESTION, seed=number)
            except CallError as error:
                return error.kind
            return "ok"

        return kept, await asyncio.gather(*(one(number) for number in range(asks)))

    return play(server, use, books=kept, **more)


# No shrinking: every example starts a server.
@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.too_slow], phases=[Phase.generate])
@given(
    st.integers(0, 10**6),
    st.one_of(st.none(), st.floats(0, 0.02)),
    st.one_of(st.none(), st.integers(0, 3000)),
    st.one_of(st.none(), st.integers(0, 40)),
)
def test_no_budget_is_ever_exceeded(seed, dollars, tokens, calls):
    """By the server's own count, lost answers included, with many calls at once."""
    wanted = random.Random(seed)
    faults = [fault for fault in FAULTS if fault not in ("hang", "drip", "huge")]
    server = FaultServer(lambda number, asked: wanted.choice(faults), prices=PRICES)
    books, ended = spend(server, BudgetConfig(dollars=dollars, tokens=tokens, calls=calls), 40)
    taken, paid = server.charged()
    assert dollars is None or paid <= dollars + 1e-12
    assert tokens is None or taken <= tokens
    assert calls is None or len(server.served) <= calls
    assert books.spent.calls >= len(server.served)
    assert books.spent.tokens >= taken and books.spent.dollars >= paid - 1e-12
    assert ended.count("budget") == books.refused


def test_out_of_budget_is_said_once_and_a_cheaper_teacher_goes_on(caplog):
    async def use(endpoint):
        teachers = [OpenAITeacher(ChatClient(endpoint, model)) for model in (ONE, TWO)]
        ensemble = TeacherEnsemble(teachers, endpoint.settings, books=endpoint.books)
        for seed in range(60):
            await ensemble.propose(PROBLEM, [], seed)
        return ensemble, endpoint.books

    server = always("ok")
    ensemble, books = play(server, use, budget={"dollars": 0.004})
    asked = [one.model for one in server.served]
    assert asked[-8:] == ["test/two"] * 8 and asked.count("test/one") > 0
    assert server.charged()[1] <= 0.004
    assert ensemble.ledgers["test/one"].failures == {}
    said = [r.getMessage() for r in caplog.records if "budget" in r.getMessage()]
    assert len(said) == 1 and "dollars" in said[0]
    assert books.as_dict()["refused"] > 60


def test_a_resumed_run_counts_what_was_spent_before_and_what_was_under_way(tmp_path):
    path, most = tmp_path / "books.jsonl", Spent(0.5, 100, 1)
    books = Books(BudgetConfig(calls=3))
    books.open(path)
    books.reserve("a", most)
    books.settle("a", most, Cost(prompt_tokens=3, sampled_tokens=4, calls=1, dollars=0.25), sure=True)
    books.note("a", "failure", UNUSABLE)
    books.reserve("a", most)
    path.write_bytes(path.read_bytes() + b'{"teacher": "a", "sp')  # as SIGKILL leaves it
    again = Books(BudgetConfig(calls=3))
    again.open(path)
    assert again.spent == Spent(0.75, 107, 2)
    assert again.ledgers["a"].failures == {"unusable": 1} and again.ledgers["a"].cost.calls == 1
    again.reserve("a", most)
    with pytest.raises(CallError, match=r"teachers\.budget\.calls allows no further call of a \(3 of 3 are spent\)"):
        again.reserve("a", most)
    third = Books(BudgetConfig())
    third.open(path)
    assert third.spent == again.spent


# -- what answers hold -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body",
    [
        "[1, 2]", "{}", '{"choices": ["x"]}', '{"choices": [{"message": {"content": 7}}]}', '{"error": {"code": "x"}}',
        "[" * 9999,
        '{"choices": [{"message": {"content": "a"}}], "usage": {"prompt_tokens": true, "completion_tokens": -1}}',
        '{"choices": [{"message": {"content": "a"}}], "usage": {"prompt_tokens": 1, "completion_tokens": 1e999}}',
    ],
)  # fmt: skip
def test_any_json_is_an_answer_or_a_failure(body):
    try:
        answer = read_answer(body.encode(), "m")
    except CallError as error:
        assert "\n" not in str(error)
    else:
        assert answer.usage is None and (answer.failure is not None or answer.text == "a")


def test_nothing_is_charged_for_what_was_never_sent():
    nobody = Endpoint("http://127.0.0.1:9/v1", KEY, TeachersConfig(max_retries=0))
    with pytest.raises(CallError, match="check the URL"):
        asyncio.run(ChatClient(nobody, ONE).complete(QUESTION))
    assert nobody.books.spent == Spent(0.0, 0, 1)
