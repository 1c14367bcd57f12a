"""What teachers are asked, who is asked, and what becomes of it where a server misbehaves in every
known way.
"""

import asyncio
import json
import logging
import random

import pytest
from fault_server import FAULTS, GOOD, FaultServer
from tables import table

from alphazero_llm_trainer.chat import client as client_module
from alphazero_llm_trainer.chat.answer import CallError, read_answer
from alphazero_llm_trainer.chat.budget import Ledgers
from alphazero_llm_trainer.chat.client import ChatClient, Endpoint
from alphazero_llm_trainer.chat.ensemble import TeacherEnsemble
from alphazero_llm_trainer.chat.judge import Judge
from alphazero_llm_trainer.chat.openai_teacher import OpenAITeacher, TerminalChecker, parse_step
from alphazero_llm_trainer.chat.teachers import build_teachers, build_terminal_checker, open_remote
from alphazero_llm_trainer.cli.main import main
from alphazero_llm_trainer.config.load import load_config
from alphazero_llm_trainer.config.sections import (
    BudgetConfig,
    JudgeConfig,
    TeacherModel,
    TeachersConfig,
)
from alphazero_llm_trainer.engine.protocol import Judgement, TeacherLedger, TeacherProposal
from alphazero_llm_trainer.errors import ConfigError, DataError
from alphazero_llm_trainer.report.eval_page import evaluation_text
from alphazero_llm_trainer.types import Cost, Direction, Opening, Problem, Step

CASES = table("teachers")
KEY = "sk-secret-0123456789"
PRICES = {"test/one": (2.0, 10.0), "test/two": (0.5, 1.0)}
ONE, TWO = (
    TeacherModel(model=name, prompt_cost=a, completion_cost=b) for name, (a, b) in PRICES.items()
)
PROBLEM = Problem("p/0", "Ana has 3 apples and buys 4. How many has she?", "test")
QUESTION = [{"role": "user", "content": "What next?"}]


def play(server, use, *, key=KEY, **changes):
    """`use(endpoint)` against a running server."""
    wanted = TeachersConfig(**{"timeout_seconds": 20.0, "max_tokens": 64, **changes})

    async def main(url):
        endpoint = Endpoint(url, key, wanted)
        async with endpoint.session():
            return await use(endpoint)

    with server.running() as url:
        return asyncio.run(main(url))


def always(fault, **more):
    return FaultServer(lambda number, asked: fault, prices=PRICES, hang=2.0, **more)


def complete(endpoint):
    return ChatClient(endpoint, ONE).complete(QUESTION)


@pytest.fixture(autouse=True)
def once(monkeypatch):
    monkeypatch.setattr(client_module, "TEACHER_RETRIES", 0)


@pytest.fixture(scope="module", autouse=True)
def warm():
    """The SDK imports much on its first call, which would time out some tests."""
    play(always("ok"), complete)


# -- a judge -----------------------------------------------------------------------------------


def judged_by_rule(asked):
    """A judge that can reckon: 1 for a last step whose calculation is right, or that is an
    answer."""
    text = asked["messages"][1]["content"].partition("Solution so far:\n")[2].partition("\n\n")[0]
    a, op, b, _, c = [*text.splitlines()[-1].split(), "", "", "", "", ""][:5]
    wrong = c and {"+": int(a) + int(b), "-": int(a) - int(b)}.get(op, int(c)) != int(c)
    return f"Let me see. SCORE: {0 if wrong else 0.9}"


def steps(*texts):
    return [Step((), (), text) for text in texts]


def judge_at(endpoint):
    return Judge(JudgeConfig(base_url=endpoint.base_url, model="judge"), endpoint.settings)


def test_a_judge_scores_each_step_once_and_leaves_what_it_does_not_say_unchecked():
    server = FaultServer(write=judged_by_rule)

    async def use(endpoint):
        judge = judge_at(endpoint)
        both = await judge(PROBLEM, (), steps("3 + 4 = 7\n", "7 - 2 = 4\n"))
        assert both == Judgement((0.9, 0.0), 0.0)
        assert await judge(PROBLEM, (), steps("3 + 4 = 7\n")) == Judgement((0.9,), 0.9)
        assert len(server.served) == 2 and judge.scored_tokens > 0
        return [judge]

    [judge] = play(server, use)
    assert judge.client.ledgers.of("judge").calls == 2
    # In another event loop what is known is known, and what fails is unchecked.
    unchecked = asyncio.run(judge(PROBLEM, (), steps("3 + 4 = 7\n", "7 + 1 = 8\n")))
    assert unchecked == Judgement((0.9, 1.0), 0.9, frozenset({1}), unread=frozenset({1}))
    assert unchecked.checked and not unchecked.sure


@pytest.mark.parametrize("said, score", CASES["scores"])
def test_what_a_judge_says_is_a_number_from_0_to_1_or_nothing(said, score):
    async def use(endpoint):
        return await judge_at(endpoint)(PROBLEM, (), steps("3 + 4 = 7"))

    judged = play(always("ok", write=lambda asked: said), use)
    assert (None if judged.unchecked else judged.total) == score


def test_a_judge_that_is_spent_says_no_more():
    server = FaultServer(write=judged_by_rule)

    async def use(endpoint):
        three = steps("3 + 4 = 7\n", "7 - 2 = 4\n", "4 + 1 = 5\n")
        return await judge_at(endpoint)(PROBLEM, (), three)

    judged = play(server, use, budget={"calls": 1})
    assert len(server.served) == 1 and len(judged.unchecked) == 2


def test_eval_by_a_judge_says_how_far_it_agrees_with_gold(tmp_path, capsys):
    server, rubric = FaultServer(write=judged_by_rule), tmp_path / "r.txt"
    rubric.write_text("Be strict.")
    flags = ["eval", "-n", "8", "--methods", "adaptive-best-of-n", "--model", "embedded", "--json"]
    with server.running() as url:
        judge = ["--judge-url", url, "--judge-model", "judge", "--rubric", str(rubric)]
        out = ["--reward", "judge", "--out", str(tmp_path / "out")]
        assert main([*flags, "--verifier", "judge", *judge, *out]) == 0
        results = json.loads(capsys.readouterr().out)
    said = results["judge"]["embedded"]
    assert said["judged"] == 8 and said["agreement"][0] >= 0.75  # it can reckon
    assert results["rows"][0]["reward"][0] > 0 and results["rows"][0]["scored_tokens"] > 0
    assert server.requests[0]["messages"][0]["content"] == "Be strict."
    assert "judge and gold agree on" in evaluation_text(results)


@pytest.mark.parametrize(
    "words", [["train", "--dry-run", "-n", "8", "--use-grpo"], ["eval", "--methods", "greedy"]]
)
def test_a_judge_that_does_not_answer_is_refused_before_a_student_is_loaded(words, capsys):
    judge = ["--reward", "judge", "--judge-url", "http://127.0.0.1:9/v1", "--judge-model", "judge"]
    assert main([*words, "--model", "embedded", *judge]) == 2
    said = capsys.readouterr().err
    assert "--judge-url: " in said and "127.0.0.1:9" in said and "loading" not in said


# -- a call ----------------------------------------------------------------------------------------

KINDS = CASES["faults"]


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_that_lasts(fault):
    """Its kind, one sentence without a word of the server's, and the cost that the server told."""

    async def use(endpoint):
        try:
            found = await complete(endpoint)
        except CallError as error:
            found = error
        return found, endpoint.ledgers.sum_spending()

    server = always(fault, echo=KEY)
    found, spent = play(server, use, timeout_seconds=0.4 if fault in ("hang", "drip") else 20.0)
    if fault in GOOD:
        assert found.strip() == "3 + 4 = 7"
    else:
        assert found.kind == KINDS[fault]
        assert "test/one" in str(found) and KEY not in str(found) and "\n" not in str(found)
    tokens, dollars = server.charged(told=True)
    assert spent == {
        "dollars": pytest.approx(dollars), "tokens": tokens, "calls": len(server.served)
    }  # fmt: skip


@pytest.mark.parametrize("fault", ["429", "500", "close"])
def test_passing_faults_are_tried_again(fault, monkeypatch):
    monkeypatch.setattr(client_module, "TEACHER_RETRIES", 1)
    server = FaultServer(lambda number, asked: fault if number == 0 else "ok", prices=PRICES)
    assert play(server, complete) == "3 + 4 = 7" and len(server.served) == 2


async def each(client, times):
    """What so many calls give: a text, or the kind of their failure."""
    for seed in range(times):
        try:
            yield await client.complete(QUESTION, seed=seed)
        except CallError as error:
            client.ledgers.count_failure(client.name, error)
            yield error.kind


async def call_thrice(endpoint):
    return [found async for found in each(ChatClient(endpoint, ONE), 3)]


@pytest.mark.parametrize("fault", ["500", "no-content"])
def test_a_model_that_fails_ten_times_in_a_row_rests(fault, caplog):
    """One answer among them begins the count anew. It is said once, and no failure of a call."""

    async def use(endpoint):
        client = ChatClient(endpoint, ONE)
        kinds = [kind async for kind in each(client, 25)]
        return kinds, endpoint.ledgers.of(client.name).failures

    server = FaultServer(lambda number, asked: "ok" if number == 9 else fault, prices=PRICES)
    kinds, failures = play(server, use)
    assert len(server.served) == 20 and kinds[-5:] == ["rests"] * 5
    assert sum(failures.values()) == 19 and "rests" not in failures
    assert sum("rests for the run" in line for line in caplog.messages) == 1


def test_a_model_that_the_server_does_not_have_is_called_once(caplog):
    server = always("404")
    assert play(server, call_thrice) == ["http 404", "rests", "rests"] and len(server.served) == 1
    assert sum("rests for the run" in line for line in caplog.messages) == 1


def test_info_calls_each_teacher_once(monkeypatch, capsys):
    monkeypatch.setenv("OPENROUTER_API_KEY", KEY)

    async def use(endpoint):
        tier = [f"teacher_tiers.free.base_url={endpoint.base_url}", "teachers.tier=free"]
        words = [word for override in tier for word in ("--set", override)]
        command = [*"info --model embedded --json --check-teachers".split(), *words]
        return await asyncio.to_thread(main, command)

    server = FaultServer(lambda n, asked: "429" if n == 0 else "ok", prices=PRICES)
    assert play(server, use) == 1
    said = json.loads(capsys.readouterr().out)["teachers"]
    free = load_config().teacher_tiers["free"]
    assert list(said) == [model.model for model in (*free.teachers, free.terminal_checker)]
    assert len(server.served) == len(said) and KEY not in str(said)
    assert sum(words.startswith("fails: ") and "429" in words for words in said.values()) == 1
    assert sum(words.startswith("answers in ") for words in said.values()) == len(said) - 1


def test_concurrency_is_bounded(monkeypatch):
    monkeypatch.setattr(client_module, "TEACHER_CALLS", 3)

    async def use(endpoint):
        client = ChatClient(endpoint, ONE)
        return await asyncio.gather(*(client.complete(QUESTION, seed=seed) for seed in range(12)))

    server = FaultServer(lambda number, asked: "hang", hang=0.1)
    assert len(play(server, use)) == 12 and server.most_live == 3


def test_the_key_is_nowhere(tmp_path, caplog):
    """Logs of every library, errors, ledgers and representations."""
    caplog.set_level(logging.DEBUG)
    wanted, errors = random.Random(5), []
    faults = [fault for fault in FAULTS if fault not in ("hang", "drip", "ok-no-usage")]

    async def use(endpoint):
        endpoint.ledgers.open(tmp_path / "ledgers.json")
        client = ChatClient(endpoint, ONE)
        for seed in range(40):
            try:
                await client.complete(QUESTION, seed=seed)
            except CallError as error:
                errors.append(f"{error} {error!r} {error.__cause__!r}")
        return [client, endpoint, vars(endpoint.ledgers)]

    server = FaultServer(lambda number, asked: wanted.choice(faults), prices=PRICES, echo=KEY)
    shown = f"{play(server, use)!r} {errors} {caplog.text}"
    assert server.keys == {f"Bearer {KEY}"} and len(errors) > 5
    assert KEY not in shown + (tmp_path / "ledgers.json").read_text()


def test_no_key_of_another_service_is_sent(monkeypatch):
    for name in ("OPENAI_API_KEY", "OPENAI_ADMIN_KEY", "OPENAI_ORG_ID", "OPENAI_PROJECT_ID"):
        monkeypatch.setenv(name, KEY)
    server = always("ok")
    play(server, complete, key=None)
    assert server.keys == {"Bearer none"}


@pytest.mark.parametrize("body", [*CASES["bodies"], "[" * 9999])
def test_any_json_is_an_answer_or_a_failure(body):
    try:
        answer = read_answer(body.encode(), "m")
    except CallError as error:
        assert "\n" not in str(error)
    else:
        assert answer.usage is None and (answer.failure is not None or answer.text == "a")


# -- the budget ------------------------------------------------------------------------------------


@pytest.mark.parametrize("unit, limit", [("dollars", 0.002), ("tokens", 900), ("calls", 7)])
def test_a_spent_budget_ends_the_calls_and_is_said_once(unit, limit, caplog, monkeypatch):
    async def use(endpoint):
        teachers = [OpenAITeacher(ChatClient(endpoint, model)) for model in (ONE, TWO)]
        ensemble = TeacherEnsemble(teachers, endpoint.settings, ledgers=endpoint.ledgers)
        for seed in range(30):
            await ensemble.propose(PROBLEM, [], seed)
        return endpoint.ledgers.as_dict()

    server = FaultServer(lambda number, asked: "500" if number == 2 else "ok", prices=PRICES)
    monkeypatch.setattr(client_module, "TEACHER_CALLS", 1)
    card = play(server, use, budget={"dollars": None, unit: limit})
    tokens, dollars = server.charged()
    taken = {"dollars": dollars, "tokens": tokens, "calls": len(server.served)}
    assert card["spent"] == pytest.approx(taken) and card["refused"] > 10
    last = server.served[-1]
    one = {"dollars": last.dollars, "tokens": last.prompt + last.sampled, "calls": 1}[unit]
    assert limit <= taken[unit] < limit + one + 1e-9  # no call is begun beyond it
    [said] = [message for message in caplog.messages if "budget" in message]
    assert unit in said


@pytest.mark.parametrize(
    "dollars, kinds, calls", [(1.0, ["no usage"] * 3, 1), (None, ["3 + 4 = 7"] * 3, 3)]
)
def test_a_model_that_tells_no_usage_is_asked_where_calls_alone_are_limited(dollars, kinds, calls):
    server, budget = always("ok-no-usage"), {"dollars": dollars}
    assert play(server, call_thrice, budget=budget) == kinds and len(server.served) == calls


def test_a_resumed_run_goes_on_with_what_is_left(tmp_path):
    path = tmp_path / "ledgers.json"

    def opened():
        ledgers = Ledgers(BudgetConfig(calls=3))
        ledgers.open(path)
        return ledgers

    first = opened()
    first.begin("a")
    first.add("a", Cost(prompt_tokens=3, sampled_tokens=4, calls=1, dollars=0.25))
    first.count_use("a", 0.75)
    first.begin("a")
    first.count_failure("a", CallError("http 500", "a is down"))
    again, own = opened(), first.of("a")
    assert (
        again.sum_spending() == {"dollars": 0.25, "tokens": 7, "calls": 2} and again.session == {}
    )
    assert again.of("a") == own == TeacherLedger(2, 1, 0.75, {"http 500": 1}, own.cost)
    again.begin("a")
    with pytest.raises(CallError):
        again.begin("a")
    path.write_text('{"a": {"calls": "x"}}')
    with pytest.raises(DataError):
        opened()


class Fake:
    """FAKE teacher: what it says names the direction and the seed; `fails` says which of its calls
    fail.
    """

    def __init__(self, name, fails=lambda call: False):
        self.name, self.fails, self.ledger = name, fails, TeacherLedger()

    async def propose(self, problem, steps, direction, seed):
        self.ledger.calls += 1
        if self.fails(self.ledger.calls):
            raise CallError("http 500", f"{self.name} is down")
        return TeacherProposal(f"{direction} {seed}", f"teacher:{self.name}", direction)


def ensemble_of(teachers, *, seed=0, **settings):
    return TeacherEnsemble(teachers, TeachersConfig(**settings), seed)


def ask(ensemble, seed=0):
    return asyncio.run(ensemble.propose(PROBLEM, [], seed))


# -- what is asked ---------------------------------------------------------------------------------


@pytest.mark.parametrize("text, step", [*CASES["steps"], ("x" * 301, None)])
def test_parse_step(text, step):
    assert parse_step(text) == step


def test_a_teacher_proposes_one_line():
    async def use(endpoint):
        teacher, before = OpenAITeacher(ChatClient(endpoint, ONE)), ["3 + 4 = 7"]
        for text, way in (("#### 7", Direction.RIGHT), ("#### 8", Direction.WRONG)):
            found = await teacher.propose(PROBLEM, before, way, seed=2**40)
            assert found == TeacherProposal(text, "teacher:test/one", way)
        with pytest.raises(CallError):  # the last step again
            await teacher.propose(PROBLEM, before, Direction.RIGHT, seed=0)
        return teacher.ledger.calls

    said = iter(["<think>hm</think>#### 7", "#### 8", "3 + 4 = 7"])
    server = FaultServer(write=lambda asked: next(said))
    assert play(server, use) == 3 and all(request["seed"] < 2**31 for request in server.requests)
    asked = [request["messages"][1]["content"] for request in server.requests]
    assert all(PROBLEM.question in text and "3 + 4 = 7" in text for text in asked)
    assert "correct" in asked[0] and "mistake" in asked[1]


def test_a_teacher_that_continues_is_asked_in_the_students_chat():
    opening = Opening("Think step by step.", (("What is 1 + 1?", "1 + 1 = 2\n#### 2"),), shots=1)
    tier = ["teachers.tier=local", "teacher_tiers.local.prompt=continue"]

    def proposed(server, *more):
        config = load_config(overrides=[*tier, "teachers.right=2", *more])

        async def use(endpoint):
            teachers = build_teachers(config, lambda: Fake("x"), endpoint, opening)
            lines = [], ["3 + 4 = 7", "7 + 1 = 8"]
            return [await teachers.propose(PROBLEM, before, 1) for before in lines], teachers

        return play(server, use)

    lines = iter(["3 + 4 = 7", "", "#### 8 ", "two\nlines"])
    server = FaultServer(write=lambda asked: next(lines))
    [first, second], teachers = proposed(server)
    source = f"teacher:{teachers.teachers[0].name}"
    assert first == [TeacherProposal("3 + 4 = 7", source, Direction.RIGHT)]
    # The first words of a server that doesn't stop where it is told to.
    assert [proposal.text for proposal in second] == ["#### 8", "two"]
    assert len(server.requests) == 4  # none for a wrong step: the default asks for one
    beginning = [*opening.messages(PROBLEM.question), {"role": "user", "content": PROBLEM.question}]
    assert [request["messages"] for request in server.requests[:2]] == [beginning] * 2
    begun = {"role": "assistant", "content": "3 + 4 = 7\n7 + 1 = 8\n"}
    for request in server.requests[2:]:
        assert request["messages"] == [*beginning, begun] and request["stop"] == ["\n"]
        assert request["continue_final_message"] and not request["add_generation_prompt"]
    # A chat model may begin with an empty line: it is told no place to stop, and its first words
    # count.
    chatty = FaultServer(write=lambda asked: "\n\n7 + 1 = 8\n\n#### 8")
    [[one, *_], _], _ = proposed(chatty, "search.step=thought")
    assert one.text == "7 + 1 = 8" and not any("stop" in request for request in chatty.requests)
    with pytest.raises(ConfigError, match=r"teachers\.right"):
        proposed(chatty, "teachers.right=0")


def test_the_terminal_checker():
    async def use(endpoint):
        checker = TerminalChecker(ChatClient(endpoint, ONE, "terminal checker"))
        for i, (rule, verdict) in enumerate(rules):
            assert await checker.is_finished(PROBLEM, f"3 + {i} = 7", rule) is verdict
        return checker.ledger

    #         agrees, disagrees twice, unreadable, failed
    rules = [(True, True), (True, False), (False, True), (False, False), (True, True)]
    said = iter(["FINISHED", "unfinished.", "<think>unfinished?</think> Finished", "maybe"])
    server = FaultServer(
        lambda number, asked: "400" if number == 4 else "ok", lambda asked: next(said, "")
    )
    ledger = play(server, use)
    assert ledger.failures == {"unusable": 1, "http 400": 1} and ledger.calls == 5


# -- who is asked, and when ------------------------------------------------------------------------


def test_the_ensemble_asks_for_both_directions():
    def found():
        return ask(ensemble_of([*map(Fake, "abc")], right=2, wrong=1, seed=5), 11)

    assert [p.direction for p in found()] == [Direction.RIGHT, Direction.RIGHT, Direction.WRONG]
    assert {p.source for p in found()} == {"teacher:a", "teacher:b", "teacher:c"}
    assert found() == found()


def test_wrong_steps_gain_by_being_wrong():
    ensemble = ensemble_of([Fake("a")])
    right, wrong = ask(ensemble)
    ensemble.learn(right, 1.0, 0.5)
    ensemble.learn(wrong, 0.0, 0.5)
    assert ensemble.ledgers.of("a").as_dict()["mean_value"] == pytest.approx(0.75)


@pytest.mark.parametrize(
    "when, agreement, best, asked",
    [
        ("always", 1.0, 1.0, True), ("uncertain", 0.5, 1.0, True), ("uncertain", 0.75, 0.0, False),
        ("failing", 1.0, 0.0, True), ("failing", 0.0, 0.5, False),
    ],
)  # fmt: skip
def test_when_teachers_are_asked(when, agreement, best, asked):
    assert ensemble_of([], ask=when).asks(agreement, best) is asked


def test_where_one_fails_the_next_is_asked_and_it_is_said_once(caplog):
    bad = Fake("bad", lambda call: True)
    ensemble = ensemble_of([bad, Fake("good")])
    for seed in range(5):
        assert [one.source for one in ask(ensemble, seed)] == ["teacher:good"] * 2
    assert bad.ledger.failures == {"http 500": bad.ledger.calls} and len(caplog.messages) == 1
    assert ask(ensemble_of([bad])) == []


# -- tiers -----------------------------------------------------------------------------------------


def test_a_key_of_two_lines_is_refused_and_not_shown(monkeypatch):
    monkeypatch.setenv("OPENROUTER_API_KEY", "sk-one\nsk-two")
    with pytest.raises(ConfigError, match=r"OPENROUTER_API_KEY has a space or another") as caught:
        open_remote(load_config(overrides=["teachers.tier=free"]))
    assert "sk-one" not in str(caught.value)


def test_a_tier_without_a_checker_or_a_teacher_is_one_sentence():
    config = load_config(overrides=["teachers.tier=local", "teachers.terminal_checker=true"])
    endpoint = open_remote(config)
    with pytest.raises(ConfigError, match=r"teacher_tiers\.local\.terminal_checker is missing"):
        build_terminal_checker(config, endpoint)
    empty = load_config(overrides=["teachers.tier=local", "teacher_tiers.local.teachers=[]"])
    with pytest.raises(ConfigError, match=r"teacher_tiers\.local\.teachers is empty"):
        build_teachers(empty, lambda: Fake("x"), endpoint)


def test_tiers_that_need_nothing():
    assert build_teachers(load_config(), lambda: Fake("x"), None) is None
    assert build_terminal_checker(load_config(), None) is None
    config = load_config(overrides=["teachers.tier=embedded"])
    assert build_teachers(config, lambda: Fake("x"), None).teachers[0].name == "x"
