"""What teachers are asked, who is asked, and the tiers of the configuration."""

from __future__ import annotations

import asyncio

import pytest
from fault_server import FaultServer
from test_teacher_faults import KEY, ONE, PROBLEM, play

from alphazero_llm_trainer.config.load import load_config
from alphazero_llm_trainer.config.sections import TeachersConfig
from alphazero_llm_trainer.engine.protocol import TeacherLedger, TeacherProposal
from alphazero_llm_trainer.errors import ConfigError
from alphazero_llm_trainer.teachers.answer import CallError
from alphazero_llm_trainer.teachers.build import build_teachers, build_terminal_checker, open_remote
from alphazero_llm_trainer.teachers.client import ChatClient
from alphazero_llm_trainer.teachers.ensemble import TeacherEnsemble
from alphazero_llm_trainer.teachers.openai_teacher import OpenAITeacher, TerminalChecker, parse_step
from alphazero_llm_trainer.types import Direction, Opening


class Fake:
    """FAKE teacher: what it says names the direction and the seed; `fails` says which of its calls fail."""

    def __init__(self, name, fails=lambda call: False, says=None):
        self.name, self.fails, self.says, self.ledger = name, fails, says, TeacherLedger()

    async def propose(self, problem, steps, direction, seed):
        self.ledger.calls += 1
        if self.fails(self.ledger.calls):
            raise CallError("http 500", f"{self.name} is down")
        return TeacherProposal(self.says or f"{direction} {seed}", f"teacher:{self.name}", direction)


def ensemble_of(teachers, *, seed=0, strengths=None, **settings):
    return TeacherEnsemble(teachers, TeachersConfig(**settings), seed, strengths=strengths)


def ask(ensemble, seed=0):
    return asyncio.run(ensemble.propose(PROBLEM, [], seed))


# -- what is asked -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "step"),
    [
        ("  3 + 4 = 7  \n#### 7", "3 + 4 = 7"),
        ("#### 7", "#### 7"),
        ("Next line: 3 + 4 = 7", "3 + 4 = 7"),
        ("2. 3 + 4 = 7", "3 + 4 = 7"),
        ("**3 + 4 = 7**", "3 + 4 = 7"),
        ("```\n3 + 4 = 7\n```", "3 + 4 = 7"),
        ("Sure, here is the next step:\n\n3 + 4 = 7", "3 + 4 = 7"),
        ("<think>3 + 5 = 8? no\n</think>\n3 + 4 = 7", "3 + 4 = 7"),
        ("3 + 5 = 8? no\n</think>\n3 + 4 = 7", "3 + 4 = 7"),
        ("<think>still going", None),
        ("I'm sorry, I can't write wrong steps.", None),
        ("x" * 301, None),
    ],
)
def test_parse_step(text, step):
    assert parse_step(text) == step


def test_a_teacher_proposes_one_line():
    async def use(endpoint):
        teacher = OpenAITeacher(ChatClient(endpoint, ONE))
        asks = (Direction.RIGHT, Direction.WRONG, Direction.RIGHT)
        return [await teacher.propose(PROBLEM, ["3 + 4 = 7"], direction, seed=2**40) for direction in asks], teacher

    said = iter(["<think>hm</think>#### 7", "#### 8", "3 + 4 = 7"])
    server = FaultServer(lambda number, asked: "ok", lambda asked: next(said))
    found, teacher = play(server, use)
    assert found == [
        TeacherProposal("#### 7", "teacher:test/one", Direction.RIGHT),
        TeacherProposal("#### 8", "teacher:test/one", Direction.WRONG),
        None,  # the last step again
    ]
    asked = [request["messages"][1]["content"] for request in server.requests]
    assert all(PROBLEM.question in text and "3 + 4 = 7" in text for text in asked)
    assert "correct" in asked[0] and "mistake" in asked[1]
    assert teacher.ledger.calls == 3 and teacher.ledger.failures == {"unusable": 1}


def test_a_teacher_that_continues_is_asked_in_the_students_chat():
    opening = Opening("Think step by step.", (("What is 1 + 1?", "1 + 1 = 2\n#### 2"),), shots=1)
    config = load_config(overrides=["teachers.tier=local", "teachers.right=2", "teacher_tiers.local.prompt=continue"])

    async def use(endpoint):
        ensemble = build_teachers(config, lambda: Fake("x"), endpoint, opening)
        return [await ensemble.propose(PROBLEM, steps, 1) for steps in ([], ["3 + 4 = 7", "7 + 1 = 8"])]

    lines = iter(["3 + 4 = 7", "", "#### 8 ", "two\nlines"])
    server = FaultServer(lambda number, asked: "ok", lambda asked: next(lines))
    model = config.teacher_tiers["local"].teachers[0].model
    first, second = play(server, use)
    assert first == [TeacherProposal("3 + 4 = 7", f"teacher:{model}", Direction.RIGHT)]
    # The first words of a server that doesn't stop where it is told to.
    assert [proposal.text for proposal in second] == ["#### 8", "two"]
    assert len(server.requests) == 4  # none for a wrong step: the default asks for one
    beginning = [*opening.messages(PROBLEM.question), {"role": "user", "content": PROBLEM.question}]
    assert [request["messages"] for request in server.requests[:2]] == [beginning] * 2
    # A chat model may begin with an empty line: it is told no place to stop, and its first words count.
    chatty = FaultServer(lambda number, asked: "ok", lambda asked: "\n\n7 + 1 = 8\n\n#### 8")
    config = load_config(
        overrides=[{"search": {"step": "thought"}}, config.model_dump(include={"teachers", "teacher_tiers"})]
    )
    (found, _) = play(chatty, use)
    assert [one.text for one in found] == ["7 + 1 = 8"] and not any("stop" in request for request in chatty.requests)
    with pytest.raises(ConfigError, match=r"teachers\.right is 0 and a teacher that continues"):
        config = load_config(overrides=[config.model_dump(include={"teachers", "teacher_tiers"}), "teachers.right=0"])
        play(chatty, use)
    for request in server.requests[2:]:
        assert request["messages"] == [*beginning, {"role": "assistant", "content": "3 + 4 = 7\n7 + 1 = 8\n"}]
        assert request["continue_final_message"] and not request["add_generation_prompt"] and request["stop"] == ["\n"]


def test_the_terminal_checker():
    async def use(endpoint):
        checker = TerminalChecker(ChatClient(endpoint, ONE, "terminal checker"))
        rules = [True, True, False, False, True]
        return [await checker.finished(PROBLEM, f"3 + {i} = 7", rule) for i, rule in enumerate(rules)], checker

    said = iter(["FINISHED", "unfinished.", "<think>unfinished?</think> Finished", "maybe"])
    server = FaultServer(lambda number, asked: "400" if number == 4 else "ok", lambda asked: next(said, ""))
    verdicts, checker = play(server, use)
    #                  agrees, disagrees, disagrees, unreadable, failed
    assert verdicts == [True, False, True, False, True]
    assert checker.ledger.failures == {"unusable": 1, "http 400": 1} and checker.ledger.calls == 5


# -- who is asked, and when --------------------------------------------------------------------------------------------


def test_the_ensemble_asks_for_both_directions():
    def made():
        return ensemble_of([Fake("a"), Fake("b"), Fake("c")], right=2, wrong=1, seed=5)

    found = ask(made(), 11)
    assert [p.direction for p in found] == [Direction.RIGHT, Direction.RIGHT, Direction.WRONG]
    assert {p.source for p in found} == {"teacher:a", "teacher:b", "teacher:c"}
    assert ask(made(), 11) == found


def test_wrong_steps_gain_by_being_wrong():
    ensemble = ensemble_of([Fake("a")])
    right, wrong = ask(ensemble)
    ensemble.learn(right, 1.0, 0.5)
    ensemble.learn(wrong, 0.0, 0.5)
    assert ensemble.ledgers["a"].as_dict()["mean_value"] == pytest.approx(0.75)


def test_strengths_say_who_is_asked_first():
    strengths = {"b": ["cheap", "wrong"], "c": ["right"]}
    for seed in range(20):
        ensemble = ensemble_of([Fake("a"), Fake("b"), Fake("c")], strengths=strengths, seed=seed)
        assert [p.source for p in ask(ensemble, seed)] == ["teacher:c", "teacher:b"]


def test_when_teachers_are_asked():
    assert ensemble_of([], ask="always").asks(1.0, 1.0)
    uncertain, failing = ensemble_of([], ask="uncertain"), ensemble_of([], ask="failing")
    assert uncertain.asks(0.5, 1.0) and not uncertain.asks(0.75, 0.0)
    assert failing.asks(1.0, 0.0) and not failing.asks(0.0, 0.5)


def test_where_one_fails_the_next_is_asked_and_it_is_said_once(caplog):
    bad = Fake("bad", lambda call: True)
    ensemble = ensemble_of([bad, Fake("good")])
    assert [[one.source for one in ask(ensemble, seed)] for seed in range(5)] == [["teacher:good"] * 2] * 5
    assert bad.ledger.failures == {"http 500": bad.ledger.calls}
    assert [record.getMessage() for record in caplog.records] == ["a call of bad failed: bad is down"]
    assert ask(ensemble_of([bad])) == []


# -- tiers -------------------------------------------------------------------------------------------------------------


def test_a_missing_key_is_one_sentence(monkeypatch):
    monkeypatch.delenv("OPENROUTER_API_KEY", raising=False)
    config = load_config(overrides=["teachers.tier=free"])
    with pytest.raises(ConfigError, match=r"teachers\.tier free needs a key: set OPENROUTER_API_KEY"):
        open_remote(config)
    monkeypatch.setenv("OPENROUTER_API_KEY", "sk-one\nsk-two")
    with pytest.raises(ConfigError, match=r"OPENROUTER_API_KEY has a space or another") as caught:
        open_remote(config)
    assert "sk-one" not in str(caught.value)


@pytest.mark.parametrize("tier", ["free", "production", "local"])
def test_shipped_tiers(tier, monkeypatch):
    monkeypatch.setenv("OPENROUTER_API_KEY", KEY)
    config = load_config(overrides=[f"teachers.tier={tier}", "teachers.terminal_checker=true"])
    shipped = config.teacher_tiers[tier]
    endpoint = open_remote(config)
    assert len(build_teachers(config, lambda: Fake("x"), endpoint).teachers) == len(shipped.teachers) >= 1
    for model in shipped.teachers:
        assert model.model.endswith(":free") is (tier == "free")
        assert (model.prompt_cost > 0) is (tier == "production")
    if tier == "local":
        with pytest.raises(ConfigError, match=r"teacher_tiers\.local\.terminal_checker is missing"):
            build_terminal_checker(config, endpoint)
        empty = load_config(overrides=["teachers.tier=local", "teacher_tiers.local.teachers=[]"])
        with pytest.raises(ConfigError, match=r"teacher_tiers\.local\.teachers is empty"):
            build_teachers(empty, lambda: Fake("x"), endpoint)
    else:
        assert build_terminal_checker(config, endpoint) is not None


def test_tiers_that_need_nothing():
    assert build_teachers(load_config(), lambda: Fake("x"), None) is None
    assert build_terminal_checker(load_config(), None) is None
    config = load_config(overrides=["teachers.tier=embedded"])
    assert build_teachers(config, lambda: Fake("x"), None).teachers[0].name == "x"
    with pytest.raises(ConfigError, match="which has no models: choose one of embedded, free, production, local"):
        open_remote(load_config(overrides=["teachers.terminal_checker=true"]))
