"""The remote client, the teachers and the ensemble against a local server that misbehaves in every known way."""

from __future__ import annotations

import asyncio
import json
import logging
from collections import Counter
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from random import Random

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from alphazero_llm_trainer.config.load import load_config
from alphazero_llm_trainer.config.sections import TeacherModel, TeachersConfig
from alphazero_llm_trainer.engine.protocol import TeacherLedger, TeacherProposal
from alphazero_llm_trainer.errors import ConfigError, TeacherError
from alphazero_llm_trainer.teachers.answer import CallError, Failure
from alphazero_llm_trainer.teachers.breaker import Breaker
from alphazero_llm_trainer.teachers.build import build_teachers, build_terminal_checker
from alphazero_llm_trainer.teachers.client import ChatClient, Endpoint, RetryPolicy, open_endpoint, retry_after
from alphazero_llm_trainer.teachers.ensemble import TeacherEnsemble
from alphazero_llm_trainer.teachers.openai_teacher import OpenAITeacher, TerminalChecker, parse_step
from alphazero_llm_trainer.types import Direction, Problem

PROBLEM = Problem("p/0", "Ana has 3 apples and buys 4. How many has she?", "test")
MODEL = TeacherModel(model="test/model", prompt_cost=2.0, completion_cost=10.0)
QUICK = RetryPolicy(timeout=10.0, retries=2, first_wait=0.01, longest_wait=0.05)
IMPATIENT = RetryPolicy(timeout=0.4, retries=2, first_wait=0.01, longest_wait=0.05)
USAGE = {"prompt_tokens": 100, "completion_tokens": 7, "prompt_tokens_details": {"cached_tokens": 40}}
KEY = "sk-secret-0123456789"


def answer(text="3 + 4 = 7", **message):
    return {"choices": [{"message": {"role": "assistant", "content": text, **message}}], "usage": USAGE}


def ok(text="3 + 4 = 7", **message):
    return lambda: web.json_response(answer(text, **message))


def status(code, **headers):
    return lambda: web.json_response(
        {"error": {"message": f"bad key {KEY}", "code": code}}, status=code, headers=headers
    )


def body(text, content_type="application/json"):
    return lambda: web.Response(text=text, content_type=content_type)


def payload(value):
    return body(json.dumps(value))


async def hang():
    await asyncio.sleep(5)
    return web.json_response(answer())


async def drip(request):
    """Headers at once, then a byte now and then: no single read takes long."""
    response = web.StreamResponse(headers={"Content-Type": "application/json"})
    await response.prepare(request)
    for _ in range(100):
        await response.write(b" ")
        await asyncio.sleep(0.05)
    return response


async def cut(request):
    """Half of the promised body, then a closed connection."""
    response = web.StreamResponse(headers={"Content-Type": "application/json", "Content-Length": "1000"})
    await response.prepare(request)
    await response.write(b'{"choices": [{"mess')
    request.transport.close()
    return response


async def close(request):
    request.transport.close()
    return web.Response()


class Server:
    """Answers request i with script[i]; the last entry goes on for ever. Records what was asked."""

    def __init__(self, script):
        self.script, self.asked, self.live, self.most_live = list(script), [], 0, 0

    async def handle(self, request):
        handler = self.script[min(len(self.asked), len(self.script) - 1)]
        self.asked.append((dict(request.headers), await request.json()))
        self.live += 1
        self.most_live = max(self.most_live, self.live)
        try:
            result = handler(request) if handler in (drip, cut, close) else handler()
            return await result if asyncio.iscoroutine(result) else result
        finally:
            self.live -= 1

    @asynccontextmanager
    async def running(self):
        app = web.Application()
        app.router.add_post("/v1/chat/completions", self.handle)
        server = TestServer(app)
        await server.start_server(shutdown_timeout=0.01)
        try:
            yield str(server.make_url("/v1"))
        finally:
            await server.close()


def play(script, use, *, policy=QUICK, max_concurrent=8, model=MODEL, key=KEY):
    """Run `use(client)` against a server with `script`; returns its result, the server and the client."""
    server = Server(script)

    async def main():
        async with server.running() as url:
            endpoint = Endpoint(url, key, policy, max_concurrent)
            client = ChatClient(endpoint, model, seed=1)
            try:
                return await use(client), server, client
            finally:
                await endpoint.close()

    return asyncio.run(main())


async def call(client):
    return await client.complete([{"role": "user", "content": "What next?"}])


async def fail(client):
    with pytest.raises(CallError) as caught:
        await call(client)
    return caught.value


@pytest.fixture(scope="module", autouse=True)
def warm():
    """The SDK imports much on its first call, which would time out some tests."""
    play([ok()], call)


def test_a_call_and_its_cost():
    completion, server, client = play([ok()], call)
    assert completion.text == "3 + 4 = 7"
    cost = completion.cost
    assert (cost.prompt_tokens, cost.cached_tokens, cost.sampled_tokens, cost.calls) == (60, 40, 7, 1)
    assert cost.dollars == pytest.approx((100 * 2 + 7 * 10) / 1e6)
    assert 0 < cost.seconds < 5
    assert client.cost == cost
    assert client.books.ledgers == {"test/model": TeacherLedger(cost=cost)}
    headers, request = server.asked[0]
    assert headers["Authorization"] == f"Bearer {KEY}"
    assert request["model"] == "test/model"


@pytest.mark.parametrize("usage", [None, "many", {}, {"prompt_tokens": None, "completion_tokens": -4}])
def test_tokens_are_estimated_where_no_usage_is_reported(usage):
    completion, _, _ = play([payload({**answer("3 + 4 = 7"), "usage": usage})], call)
    assert (completion.cost.prompt_tokens, completion.cost.sampled_tokens) == (3, 3)
    assert completion.cost.dollars > 0


@pytest.mark.parametrize(
    ("faults", "attempts"),
    [
        ([status(429)], 2),
        ([status(429, **{"Retry-After": "0"}), status(503)], 3),
        ([status(500), status(502)], 3),
        ([status(408)], 2),
        ([status(409)], 2),
        ([hang], 2),
        ([drip], 2),
        ([cut], 2),
        ([close], 2),
        ([payload({"error": {"code": 502, "message": "upstream"}})], 2),
        ([payload({"choices": [{"error": {"code": 429}, "message": {"content": ""}}]})], 2),
    ],
)
def test_passing_faults_are_retried(faults, attempts):
    completion, server, _ = play([*faults, ok()], call, policy=IMPATIENT if faults[0] in (hang, drip) else QUICK)
    assert completion.text == "3 + 4 = 7"
    assert len(server.asked) == completion.cost.calls == attempts


@pytest.mark.parametrize(
    ("fault", "kind", "attempts"),
    [
        (status(429), Failure.RATE_LIMIT, 3),
        (status(429, **{"Retry-After": "3600"}), Failure.RATE_LIMIT, 3),
        (status(500), Failure.SERVER, 3),
        (status(529), Failure.SERVER, 3),
        (hang, Failure.TIMEOUT, 3),
        (drip, Failure.TIMEOUT, 3),
        (cut, Failure.CONNECTION, 3),
        (close, Failure.CONNECTION, 3),
        (status(400), Failure.BAD_REQUEST, 1),
        (status(401), Failure.REFUSED_KEY, 1),
        (status(402), Failure.REFUSED_KEY, 1),
        (status(403), Failure.REFUSED_KEY, 1),
        (status(404), Failure.NOT_FOUND, 1),
        (payload({"error": {"code": 404}}), Failure.NOT_FOUND, 1),
        (payload({"error": "down"}), Failure.SERVER, 3),
        (body("<html>busy</html>", "text/html"), Failure.BAD_JSON, 1),
        (body('{"choices": [{"mess'), Failure.BAD_JSON, 1),
        (body(""), Failure.BAD_JSON, 1),
        (payload([1, 2]), Failure.BAD_JSON, 1),
        (payload(None), Failure.BAD_JSON, 1),
        (payload({}), Failure.EMPTY_CHOICES, 1),
        (payload({"choices": []}), Failure.EMPTY_CHOICES, 1),
        (payload({"choices": None}), Failure.EMPTY_CHOICES, 1),
        (payload({"choices": ["x"]}), Failure.EMPTY_CHOICES, 1),
        (payload({"choices": [{"message": None}]}), Failure.NO_CONTENT, 1),
        (payload({"choices": [{"message": {"content": None, "reasoning_content": "hm"}}]}), Failure.NO_CONTENT, 1),
        (payload({"choices": [{"message": {"content": [1]}}]}), Failure.NO_CONTENT, 1),
        (ok("  \n"), Failure.NO_CONTENT, 1),
        (ok(None, refusal="I won't."), Failure.REFUSAL, 1),
    ],
)
def test_lasting_faults_end_after_a_bounded_number_of_attempts(fault, kind, attempts):
    error, server, client = play([fault], fail, policy=IMPATIENT if kind is Failure.TIMEOUT else QUICK)
    assert error.kind is kind
    assert len(server.asked) == client.cost.calls == attempts
    assert "test/model" in str(error)
    assert "\n" not in str(error)
    assert KEY not in str(error)


def test_a_refusal_is_still_paid_for():
    _, _, client = play([ok(None, refusal="no")], fail)
    assert client.cost.sampled_tokens == 7
    assert client.cost.dollars > 0


def test_nobody_listens():
    async def main():
        client = ChatClient(Endpoint("http://127.0.0.1:9/v1", None, QUICK, 1), MODEL)
        return await fail(client), client.cost.calls

    error, calls = asyncio.run(main())
    assert error.kind is Failure.CONNECTION
    assert calls == 3


def waits(script, monkeypatch, policy):
    slept = []

    async def sleep(seconds):
        slept.append(seconds)

    async def use(client):
        with monkeypatch.context() as patch:
            patch.setattr("alphazero_llm_trainer.teachers.client.asyncio.sleep", sleep)
            return await fail(client)

    play(script, use, policy=policy)
    return slept


def test_backoff_doubles_with_seeded_jitter(monkeypatch):
    policy = RetryPolicy(timeout=10.0, retries=5, first_wait=0.5, longest_wait=4.0)
    slept = waits([status(500)], monkeypatch, policy)
    assert slept == waits([status(500)], monkeypatch, policy)
    for attempt, seconds in enumerate(slept):
        assert min(4.0, 0.25 * 2**attempt) <= seconds <= min(4.0, 0.5 * 2**attempt)
    assert len(slept) == 5


def test_retry_after_is_honoured_and_bounded(monkeypatch):
    policy = RetryPolicy(timeout=10.0, retries=4, first_wait=0.5, longest_wait=4.0)
    date = format_datetime(datetime.now(UTC) + timedelta(seconds=1000), usegmt=True)
    asked = ["1.5", "3600", date, "soon"]
    slept = waits([status(429, **{"Retry-After": value}) for value in asked] + [status(429)], monkeypatch, policy)
    assert slept[:3] == [1.5, 4.0, 4.0]
    assert 2.0 <= slept[3] <= 4.0  # what can't be read is no reason to hurry


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (None, None),
        ("2", 2.0),
        ("0.5", 0.5),
        ("-3", 0.0),
        ("inf", None),
        ("nan", None),
        ("", None),
        ("Thu, 01 Jan 2026 00:00:30 GMT", 30.0),
        ("Thu, 01 Jan 2026 00:00:30 -0000", 30.0),
        ("Wed, 31 Dec 2025 00:00:00 GMT", 0.0),
    ],
)
def test_retry_after_values(value, seconds):
    assert retry_after(value, datetime(2026, 1, 1, tzinfo=UTC)) == seconds


def test_concurrency_is_bounded():
    async def slow():
        await asyncio.sleep(0.02)
        return web.json_response(answer())

    async def use(client):
        asked = [{"role": "user", "content": "What next?"}]
        return await asyncio.gather(*(client.complete(asked, seed=seed) for seed in range(12)))

    completions, server, client = play([slow], use, max_concurrent=3)
    assert len(completions) == client.cost.calls == 12
    assert server.most_live == 3


def test_one_client_serves_several_event_loops():
    endpoints = []

    async def round_of_calls(url_of):
        async with Server([ok()]).running() as url:
            if not endpoints:
                endpoints.append(ChatClient(Endpoint(url, None, QUICK, 1), MODEL))
            endpoints[0].endpoint.base_url = url
            return await asyncio.gather(call(endpoints[0]), call(endpoints[0]))

    for number in range(2):
        assert len(asyncio.run(round_of_calls(number))) == 2


def test_no_key_of_another_service_is_sent(monkeypatch):
    for name in ("OPENAI_API_KEY", "OPENAI_ADMIN_KEY", "OPENAI_ORG_ID", "OPENAI_PROJECT_ID"):
        monkeypatch.setenv(name, KEY)
    _, server, _ = play([ok()], call, key=None)
    assert KEY not in json.dumps(server.asked)


def test_missing_key_is_one_sentence(monkeypatch):
    monkeypatch.delenv("OPENROUTER_API_KEY", raising=False)
    config = load_config(overrides=["teachers.tier=free", "teachers.terminal_checker=true"])
    for build in (lambda: build_teachers(config, lambda: Fake("x")), lambda: build_terminal_checker(config)):
        with pytest.raises(ConfigError, match=r"teachers\.tier free needs a key: set OPENROUTER_API_KEY"):
            build()
    monkeypatch.setenv("OPENROUTER_API_KEY", "  ")
    with pytest.raises(ConfigError, match="set OPENROUTER_API_KEY"):
        open_endpoint("free", config.teacher_tiers["free"], config.teachers)


@pytest.mark.parametrize("key", ["sk-\u00e9t\u00e9", "sk-one\nsk-two", "sk one"])
def test_a_key_that_no_header_holds_is_one_sentence_without_it(monkeypatch, key):
    monkeypatch.setenv("OPENROUTER_API_KEY", key)
    config = load_config(overrides=["teachers.tier=free"])
    with pytest.raises(ConfigError, match=r"OPENROUTER_API_KEY has a space or another") as caught:
        open_endpoint("free", config.teacher_tiers["free"], config.teachers)
    assert key not in str(caught.value)


def test_the_key_is_in_no_log_and_no_repr(caplog, monkeypatch):
    monkeypatch.setenv("OPENROUTER_API_KEY", KEY)
    config = load_config(overrides=["teachers.tier=production"])
    ensemble = build_teachers(config, lambda: Fake("x"))
    assert [teacher.name for teacher in ensemble.teachers][:1] == ["deepseek/deepseek-v3.2"]
    caplog.set_level(logging.DEBUG)
    _, _, client = play([status(401)], fail)
    assert KEY not in caplog.text + repr(client) + repr(client.endpoint) + repr(vars(ensemble))


@pytest.mark.parametrize("tier", ["free", "production", "local"])
def test_shipped_tiers(tier, monkeypatch):
    monkeypatch.setenv("OPENROUTER_API_KEY", KEY)
    config = load_config(overrides=[f"teachers.tier={tier}", "teachers.terminal_checker=true"])
    shipped = config.teacher_tiers[tier]
    assert len(build_teachers(config, lambda: Fake("x")).teachers) == len(shipped.teachers) >= 1
    for model in shipped.teachers:
        assert "/" in model.model
        assert model.model.endswith(":free") is (tier == "free")
        assert (model.prompt_cost > 0) is (tier == "production")
        assert model.strengths
    if tier == "local":
        with pytest.raises(ConfigError, match=r"teacher_tiers\.local\.terminal_checker is missing"):
            build_terminal_checker(config)
    else:
        assert "nvidia/nemotron-nano-9b-v2" in shipped.terminal_checker.model
        assert build_terminal_checker(config) is not None


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("gpt-4.1-mini", "write vendor/model or vendor/model:variant"),
        ("a/b/c", "write vendor/model or vendor/model:variant"),
        ("a model", "teacher_tiers.free.teachers.0.model"),
        ("vendor/model:", "teacher_tiers.free.teachers.0.model"),
        ("", "teacher_tiers.free.teachers.0.model"),
    ],
)
def test_model_ids_are_checked_for_form_when_they_are_loaded(model, words):
    with pytest.raises(ConfigError) as caught:
        load_config(overrides=[{"teacher_tiers": {"free": {"teachers": [{"model": model}]}}}])
    assert words in str(caught.value) and repr(model) in str(caught.value) and "\n" not in str(caught.value)
    # A server of one's own may call its models what it likes.
    own = load_config(overrides=[{"teacher_tiers": {"local": {"teachers": [{"model": "qwen3:8b"}]}}}])
    assert own.teacher_tiers["local"].teachers[0].model == "qwen3:8b"


def test_a_budget_is_shared_out_among_processes():
    whole = load_config(overrides=["teachers.budget.run.calls=10", "teachers.budget.question.calls=4"]).teachers.budget
    part = whole.share(4)
    assert (part.run.dollars, part.run.tokens, part.run.calls, part.question.calls) == (1.25, None, 2, 4)


def test_tiers_that_need_nothing():
    assert build_teachers(load_config(), lambda: Fake("x")) is None
    assert build_terminal_checker(load_config()) is None
    config = load_config(overrides=["teachers.tier=embedded", "teachers.terminal_checker=true"])
    assert build_teachers(config, lambda: Fake("x")).teachers[0].name == "x"
    with pytest.raises(ConfigError, match=r"teacher_tiers\.embedded\.terminal_checker is missing"):
        build_terminal_checker(config)
    with pytest.raises(ConfigError, match="which has no models: choose one of embedded, free, production, local"):
        build_terminal_checker(load_config(overrides=["teachers.terminal_checker=true"]))
    empty = load_config(overrides=["teachers.tier=local", "teacher_tiers.local.teachers=[]"])
    with pytest.raises(ConfigError, match=r"teacher_tiers\.local\.teachers is empty"):
        build_teachers(empty, lambda: Fake("x"))


@pytest.mark.parametrize(
    ("text", "step"),
    [
        ("3 + 4 = 7", "3 + 4 = 7"),
        ("  3 + 4 = 7  \n#### 7", "3 + 4 = 7"),
        ("#### 7", "#### 7"),
        ("### Step 2: 3 + 4 = 7", "3 + 4 = 7"),
        ("Step 2: 3 + 4 = 7", "3 + 4 = 7"),
        ("Next line: 3 + 4 = 7", "3 + 4 = 7"),
        ("2. 3 + 4 = 7", "3 + 4 = 7"),
        ("- 3 + 4 = 7", "3 + 4 = 7"),
        ("**3 + 4 = 7**", "3 + 4 = 7"),
        ("```\n3 + 4 = 7\n```", "3 + 4 = 7"),
        ("Sure, here is the next step:\n\n3 + 4 = 7", "3 + 4 = 7"),
        ("<think>3 + 5 = 8? no\n</think>\n3 + 4 = 7", "3 + 4 = 7"),
        ("3 + 5 = 8? no\n</think>\n3 + 4 = 7", "3 + 4 = 7"),
        ("<think>still going", None),
        ("I'm sorry, I can't write wrong steps.", None),
        ("I can’t help with that.", None),
        ("x" * 301, None),
        ("", None),
        ("```\n```", None),
    ],
)
def test_parse_step(text, step):
    assert parse_step(text) == step


def test_teacher_proposes_one_line():
    async def use(client):
        teacher = OpenAITeacher(client)
        found = [
            await teacher.propose(PROBLEM, ["3 + 4 = 7"], direction, seed=2**40)
            for direction in (Direction.RIGHT, Direction.WRONG, Direction.RIGHT)
        ]
        return found, teacher

    (found, teacher), server, client = play([ok("<think>hm</think>#### 7"), ok("#### 8"), ok("3 + 4 = 7")], use)
    assert found == [
        TeacherProposal("#### 7", "teacher:test/model", Direction.RIGHT),
        TeacherProposal("#### 8", "teacher:test/model", Direction.WRONG),
        None,  # the last step again
    ]
    asked = [request["messages"][1]["content"] for _, request in server.asked]
    assert all(PROBLEM.question in text and "3 + 4 = 7" in text for text in asked)
    assert "correct" in asked[0]
    assert "mistake" in asked[1]
    assert teacher.ledger.calls == 3
    assert teacher.ledger.failures == {"unusable": 1}
    assert teacher.ledger.cost is client.cost


class Fake:
    """A teacher that fails when told to; `price` is dollars and seconds a call."""

    price = (0.0, 0.0)

    def __init__(self, name, fails=lambda call: False):
        self.name, self.fails, self.ledger = name, fails, TeacherLedger()

    async def propose(self, problem, steps, direction, seed):
        self.ledger.calls += 1
        number = self.ledger.calls
        await asyncio.sleep(0)
        self.ledger.cost.dollars += self.price[0]
        self.ledger.cost.seconds += self.price[1]
        if self.fails(number):
            raise TeacherError(f"{self.name} is down")
        return TeacherProposal(f"{direction} {seed}", f"teacher:{self.name}", direction)


def ensemble_of(teachers, *, right=1, wrong=1, seed=0, books=None, strengths=None, clock=None, **settings):
    clocks = {} if clock is None else {"clock": clock}
    settings = TeachersConfig(right=right, wrong=wrong, **settings)
    return TeacherEnsemble(teachers, settings, seed, books=books, strengths=strengths, **clocks)


def ask(ensemble, seed=0, steps=()):
    return asyncio.run(ensemble.propose(PROBLEM, list(steps), seed))


class Clock:
    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


def test_ensemble_asks_for_both_directions():
    def made():
        return ensemble_of([Fake("a"), Fake("b"), Fake("c")], right=2, wrong=1, seed=5)

    found = ask(made(), 11)
    assert [p.direction for p in found] == [Direction.RIGHT, Direction.RIGHT, Direction.WRONG]
    assert found[0].source != found[1].source
    assert {p.source for p in found} == {"teacher:a", "teacher:b", "teacher:c"}
    assert ask(made(), 11) == found


def test_ensemble_spreads_its_requests():
    ensemble = ensemble_of([Fake("a"), Fake("b")], right=1, wrong=0)
    asked = Counter(ask(ensemble, seed)[0].source for seed in range(200))
    assert min(asked.values()) > 60


def test_identical_proposals_are_merged():
    class Same(Fake):
        async def propose(self, problem, steps, direction, seed):
            await super().propose(problem, steps, direction, seed)
            return TeacherProposal("3 + 4 = 7", f"teacher:{self.name}", direction)

    ensemble = ensemble_of([Same("a"), Same("b")], right=2, wrong=2)
    assert [(p.text, p.direction) for p in ask(ensemble)] == [
        ("3 + 4 = 7", Direction.RIGHT),
        ("3 + 4 = 7", Direction.WRONG),
    ]


def test_wrong_steps_gain_by_being_wrong():
    ensemble = ensemble_of([Fake("a")])
    right, wrong = ask(ensemble)
    ensemble.learn(right, 1.0, 0.5)
    ensemble.learn(wrong, 0.0, 0.5)
    assert ensemble.ledgers["a"].as_dict()["mean_value"] == pytest.approx(0.75)


def test_strengths_say_who_is_asked_first():
    for seed in range(20):
        ensemble = ensemble_of(
            [Fake("a"), Fake("b"), Fake("c")], strengths={"b": ["cheap", "wrong"], "c": ["right"]}, seed=seed
        )
        assert [p.source for p in ask(ensemble, seed)] == ["teacher:c", "teacher:b"]


def test_when_teachers_are_asked():
    assert ensemble_of([], ask="always").asks(1.0, 1.0)
    uncertain = ensemble_of([], ask="uncertain", uncertain_below=0.75)
    assert uncertain.asks(0.5, 1.0) and not uncertain.asks(0.75, 0.0)
    failing = ensemble_of([], ask="failing", failing_below=0.5)
    assert failing.asks(1.0, 0.0) and not failing.asks(0.25, 1.0)


# -- who fails ---------------------------------------------------------------------------------------------------------


def test_a_failing_teacher_is_left_out_for_a_while_and_says_so(caplog):
    caplog.set_level(logging.INFO)
    clock, down = Clock(), [True]
    bad, good = Fake("bad", lambda call: down[0]), Fake("good")
    ensemble = ensemble_of([bad, good], clock=clock, cool_down_seconds=10.0)
    for seed in range(10):
        assert len(ask(ensemble, seed)) == (1 if seed < 3 else 2)
    assert bad.ledger.calls == 3
    assert bad.ledger.failures == {"other": 3}
    assert ensemble.active == [good]
    clock.now += 10.0  # half-open: one probe, which fails
    assert len(ask(ensemble, 20)) == 1 and len(ask(ensemble, 21)) == 2
    assert bad.ledger.calls == 4
    clock.now += 19.9
    assert len(ask(ensemble, 22)) == 2
    clock.now += 0.1
    down[0] = False
    assert len(ask(ensemble, 23)) == 2
    assert bad.ledger.calls == 5
    assert ensemble.active == [bad, good]
    assert [record.getMessage() for record in caplog.records] == [
        "teacher bad failed 3 times in a row and is left out for 10 s: bad is down",
        "teacher bad is tried again",
        "teacher bad failed 4 times in a row and is left out for 20 s: bad is down",
        "teacher bad is tried again",
        "teacher bad answers again",
    ]


def test_breaks_double_up_to_a_limit_and_heed_retry_after():
    clock = Clock()
    breaker = Breaker("x", limit=1, cool_down=10.0, longest=35.0, clock=clock)
    waits = []
    for error in (TeacherError("down"), TeacherError("down"), TeacherError("down"), TeacherError("down")):
        ticket = breaker.enter()
        breaker.leave(ticket, error)
        before = clock.now
        while not breaker.available:
            clock.now += 0.5
        waits.append(clock.now - before)
    assert waits == [10.0, 20.0, 35.0, 35.0]
    breaker.leave(breaker.enter())
    assert breaker.closed
    breaker.leave(breaker.enter(), CallError(Failure.RATE_LIMIT, "slow down", wait=25.0))
    clock.now += 24.0
    assert not breaker.available
    clock.now += 1.0
    assert breaker.available


def test_one_probe_at_a_time_and_late_failures_count_nothing():
    clock = Clock()
    breaker = Breaker("x", limit=1, cool_down=10.0, clock=clock)
    late = breaker.enter()
    breaker.leave(breaker.enter(), TeacherError("down"))
    breaker.leave(late, TeacherError("down"))
    assert breaker.opened == 1
    clock.now += 10.0
    probe = breaker.enter()
    assert probe is not None and breaker.enter() is None
    breaker.leave(probe, told=False)  # cancelled: the next one may try
    probe = breaker.enter()
    breaker.leave(probe)
    assert breaker.closed and breaker.enter() is not None


def test_only_failures_in_a_row_count():
    flaky = Fake("flaky", lambda call: call % 3 != 0)
    ensemble = ensemble_of([flaky], right=1, wrong=0)
    for seed in range(30):
        ask(ensemble, seed)
    assert flaky.ledger.calls == 30
    assert flaky.ledger.failures == {"other": 20}
    assert ensemble.active == [flaky]


def test_with_nobody_left_the_search_goes_on_alone(caplog):
    ensemble = ensemble_of([Fake("a", lambda call: True)], failures_in_a_row=1)
    for seed in range(3):
        assert ask(ensemble, seed) == []
    assert ensemble.active == []
    assert ensemble.ledgers["a"].calls == 2  # both directions of the first call were already under way
    assert [record.getMessage() for record in caplog.records] == [
        "teacher a failed 1 times in a row and is left out for 30 s: a is down",
        "no teacher is left for now: the search goes on with the student alone",
    ]


def test_ensemble_survives_a_vanished_model_and_adds_up_costs():
    async def use(client):
        gone = OpenAITeacher(ChatClient(client.endpoint, TeacherModel(model="gone"), seed=0, books=client.books))
        ensemble = ensemble_of([OpenAITeacher(client), gone], books=client.books)
        return [await ensemble.propose(PROBLEM, [], seed) for seed in range(6)], ensemble

    server = Server([])

    async def by_model(request):
        asked = await request.json()
        server.asked.append(asked["model"])
        return status(404)() if asked["model"] == "gone" else web.json_response(answer(f"{len(server.asked)} + 1 = 5"))

    server.handle = by_model

    async def main():
        async with server.running() as url:
            return await use(ChatClient(Endpoint(url, KEY, QUICK, 8), MODEL))

    found, ensemble = asyncio.run(main())
    assert [len(proposals) for proposals in found] == [1, 2, 2, 2, 2, 2]
    assert ensemble.ledgers["gone"].failures == {"not_found": 1}
    assert server.asked.count("gone") == 1  # out for the run at once
    assert ensemble.cost.calls == 12
    assert ensemble.cost.dollars == pytest.approx(11 * (100 * 2 + 7 * 10) / 1e6)


def test_hundreds_of_requests_with_random_faults():
    rng = Random(3)
    faults = [
        status(429),
        status(500),
        status(400),
        cut,
        close,
        body("{"),
        payload({}),
        ok(None),
        ok("Sorry, no"),
        ok(),
    ]
    script = [faults[rng.randrange(len(faults))] for _ in range(4000)]

    async def use(client):
        ensemble = ensemble_of([OpenAITeacher(client)], failures_in_a_row=10**9, books=client.books)
        return await asyncio.gather(*(ensemble.propose(PROBLEM, [], seed) for seed in range(150))), ensemble

    policy = RetryPolicy(timeout=10.0, retries=2, first_wait=0.001, longest_wait=0.002)
    (found, ensemble), server, client = play(script, use, policy=policy, max_concurrent=16)
    ledger = ensemble.ledgers["test/model"]
    assert ledger.calls == 300
    assert sum(map(len, found)) + sum(ledger.failures.values()) == 300 - ledger.cached
    assert 290 < client.cost.calls == len(server.asked) <= 900
    assert server.most_live <= 16
    assert {"bad_request", "bad_json", "empty_choices", "no_content", "unusable"} <= set(ledger.failures)


def test_terminal_checker():
    async def use(client):
        checker = TerminalChecker(client)
        rules = [True, True, False, False, True, True, True, True]
        said = [await checker.finished(PROBLEM, f"3 + {i} = 7", rule) for i, rule in enumerate(rules)]
        return said, checker

    script = [ok("FINISHED"), ok("unfinished."), ok("<think>unfinished?</think> Finished"), ok("maybe"), status(400)]
    (verdicts, checker), server, client = play(script, use)
    #                  agrees, disagrees, disagrees, unreadable, 3 failures, then not asked any more
    assert verdicts == [True, False, True, False, True, True, True, True]
    assert checker.disagreements == 2
    assert checker.ledger.failures == {"unusable": 1, "bad_request": 3}
    assert checker.ledger.calls == len(server.asked) == 7
    assert checker.ledger.cost is client.cost
    assert checker.as_dict()["disagreements"] == 2
