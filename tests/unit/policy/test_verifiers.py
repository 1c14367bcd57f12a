"""Verifiers against hand-computed scores."""

import asyncio
import math
from pathlib import Path
from random import Random

import pytest
import torch
from support import tiny_engine, tiny_llama

import alphazero_llm_trainer as az
from alphazero_llm_trainer.engine.protocol import UNJUDGED, Judgement
from alphazero_llm_trainer.errors import ConfigError, EngineError
from alphazero_llm_trainer.eval.named_verifiers import (
    Calculator,
    LogProbability,
    NoVerifier,
    Product,
    named_verifier,
)
from alphazero_llm_trainer.mcts.metered import MeteredVerifier
from alphazero_llm_trainer.policy.critic import Critic, CriticVerifier
from alphazero_llm_trainer.problems.load import load_tasks
from alphazero_llm_trainer.problems.pancake import Pancake, random_flips
from alphazero_llm_trainer.problems.step_checks import check_last, check_states
from alphazero_llm_trainer.types import Cost, Problem, Step, StepCheck

PROBLEM = Problem("p", "question", "test")
PROMPT = (10, 11, 12)
RIGHT = Step((5, 6), (math.log(0.9), math.log(0.4)), "16 - 3 = 13\n")
WRONG = Step((7,), (math.log(0.5),), "13 * 2 = 27\n")
END = Step((8, 1), (math.log(0.8), 0.0), "#### 27")


def judged(verifier, *steps):
    return asyncio.run(verifier(PROBLEM, PROMPT, steps))


def test_log_probability_is_what_the_policy_gave():
    mean = judged(LogProbability(), RIGHT, WRONG)
    assert mean.steps == pytest.approx((math.sqrt(0.9 * 0.4), 0.5))
    assert mean.total == pytest.approx((0.9 * 0.4 * 0.5) ** (1 / 3))
    assert judged(LogProbability()) == Judgement((), 1.0)


def test_the_calculator_rejects_false_arithmetic_alone():
    assert judged(Calculator(), RIGHT, WRONG, END) == Judgement(
        (1.0, 0.0, 1.0), 0.0, frozenset({2})
    )
    assert judged(Calculator(), RIGHT, END) == Judgement((1.0, 1.0), 1.0, frozenset({1}))
    assert judged(NoVerifier(), WRONG) == Judgement((1.0,), 1.0)


def test_a_response_in_which_nothing_was_checked_is_unjudged():
    """It stands between those that passed and those with a rejected step."""
    words = Step((6,), (math.log(0.99),), "She has some eggs left.\n")
    ranked = Product([Calculator(), LogProbability()])
    assert judged(Calculator(), END) == Judgement((1.0,), UNJUDGED, frozenset({0}))
    for verifier in (Calculator(), ranked):
        passed, bare, failed = (judged(verifier, one, END) for one in (RIGHT, words, WRONG))
        assert [one.checked for one in (passed, bare, failed)] == [True, False, True]
        assert passed.rank > bare.rank > failed.rank
    # What another part of a product scores was checked; what merely ranks checks nothing.
    assert judged(Product([Calculator(), NoVerifier()]), END).checked
    assert not judged(ranked, END).checked and judged(LogProbability(), END).checked


UNREADABLE = ("9 * 2 =  = 8\n", "9 * 2 = \n", "9 * 2 = now?\n", "11 / 3 = #### 3", "2x + 1 = 7\n")


@pytest.mark.parametrize("text", UNREADABLE)
def test_a_calculation_that_cannot_be_read_is_never_right(text):
    """It is wrong where steps are calculations, and elsewhere keeps a response from being sure."""
    line = Step((6,), (math.log(0.99),), text)
    ranked = Product([Calculator(), LogProbability()])
    for verifier in (Calculator(), ranked):
        passed, unread, bare, failed = (
            judged(verifier, *steps) for steps in ((RIGHT,), (RIGHT, line), (END,), (WRONG,))
        )
        assert unread.checked and not unread.sure and passed.sure
        assert unread.unread == unread.unchecked == {1} and not unread.rejects(0.5)
        assert passed.rank > unread.rank > bare.rank > failed.rank
    assert UNJUDGED < judged(Calculator(), RIGHT, line).total == 0.75
    assert judged(Calculator(), line).total == UNJUDGED
    # What another part scored was checked.
    assert judged(Product([Calculator(), NoVerifier()]), RIGHT, line).sure
    strict = load_tasks("embedded", "test", 1)[0].problem
    assert asyncio.run(Calculator()(strict, PROMPT, [line])).total == 0.0


def test_a_step_check_of_ones_own_that_says_none_is_not_checked():
    class Own(az.Source):
        name, said = "own", None

        def load(self, split, count, start=0):
            return []

        def check_step(self, problem, steps):
            return self.said

    own = Own()
    for said, check in (
        (True, StepCheck.RIGHT),
        (False, StepCheck.WRONG),
        (None, StepCheck.UNCHECKED),
        (StepCheck.NOTHING, StepCheck.NOTHING),
    ):
        own.said = said
        assert check_last(own, PROBLEM, ["x"]) is check
    own.said = "yes"
    with pytest.raises(ConfigError, match="check_step of source 'own' says 'yes'"):
        check_last(own, PROBLEM, ["x"])


@pytest.mark.parametrize("said", [math.nan, 1.5, -0.1])
def test_a_number_that_is_no_share_is_refused(said):
    class Says:
        name, checks, guides, computes, scored_tokens = "value", False, True, False, 0

        async def __call__(self, problem, prompt_ids, steps):
            return Judgement((said,), 0.5, frozenset({0}), (said,))

    with pytest.raises(EngineError, match=f"value says {said}"):
        asyncio.run(MeteredVerifier(Says(), PROBLEM, PROMPT, Cost())([RIGHT]))


def test_every_line_of_the_game_of_numbers_is_checked():
    problem = load_tasks("numbers", "test", 1)[0].problem
    for line in ("#### 24", "words"):
        found = asyncio.run(Calculator()(problem, PROMPT, [Step((5,), (0.0,), line)]))
        assert found.checked and found.total == 0.0


def test_in_a_product_log_probability_ranks_and_rejects_nothing():
    product = Product([Calculator(), LogProbability()])
    assert product.name == "calculator+log-probability" and not product.computes
    found = judged(product, RIGHT, END)
    assert found.steps == (1.0, 1.0)
    assert found.total == pytest.approx((0.9 * 0.4 * 0.8) ** 0.25)
    assert judged(product, RIGHT, WRONG).steps == (1.0, 0.0)
    assert judged(product, RIGHT, WRONG).total == 0.0


def test_a_value_network_scores_the_state_after_each_step_once():
    engine = tiny_engine(tiny_llama(3))
    torch.manual_seed(0)
    engine.set_value(torch.randn(32), 0.1)
    verifier = CriticVerifier(Critic(engine, 0.0, {}), "value")
    steps = [Step((20, 21, 2), (-1.0,) * 3, "a\n"), Step((22, 2), (-1.0,) * 2, "b\n")]

    def values(*steps):
        ids = [PROMPT]
        for step in steps:
            ids.append(ids[-1] + step.token_ids)
        return tuple(asyncio.run(engine.values(ids[1:])))

    for given, scored in ((steps[:1], 6), (steps, 8), (steps, 8)):  # the prompt, too
        found = judged(verifier, *given)
        assert verifier.scored_tokens == scored
    expected = values(*steps)
    assert found == Judgement(expected, expected[1], frozenset({0, 1}), expected)
    assert not found.checked and not found.rejects(1.0) and not verifier.checks
    # Beside a rule it ranks what the rule lets pass.
    both = Product([Calculator(), verifier])
    for last, score in ((END, 1.0), (WRONG, 0.0)):
        found, value = judged(both, steps[0], RIGHT, last), values(steps[0], RIGHT, last)[-1]
        assert found.steps == (1.0, 1.0, score) and found.total == pytest.approx(score * value)
        assert found.checked and found.rejects(0.5) == (last is WRONG)
        assert found.values[2] == value
    # Beside what merely ranks it is the only score of a state.
    ranked = Product([LogProbability(), verifier])
    found = judged(ranked, *steps)
    assert found.steps == expected and not found.checked and not ranked.checks


@pytest.mark.parametrize(
    "name, value, said",
    [
        ("none+calculator", None, r"none\+calculator"),
        ("calculator+calculator", None, r"calculator\+calculator"),
        ("calculator+value", None, "--value"),
        ("prm+value", Path("b"), "two networks"),
    ],
)
def test_a_verifier_that_cannot_be_is_one_sentence(name, value, said):
    with pytest.raises(ConfigError, match=said):
        named_verifier(name, value, value)


def test_two_states_of_one_name_are_refused(monkeypatch):
    """By what may follow them, and only where as many steps led there."""
    row, goal = "3142", "1234"
    problem = az.Problem("own/1", f"9 flips: {row}", "pancake", 1)
    ways = [
        [f"{k}:{after}" for k, after in random_flips(Random(seed), row, 4)] for seed in range(300)
    ]
    ways = [way for way in ways if not any(step.endswith(goal) for step in way)]
    reached = [{(at, way[at][2:]): tuple(way[: at + 1]) for at in range(3)} for way in ways]
    alike = {(key, one) for at in reached for key, one in at.items()}
    assert len(alike) > len({key for key, _ in alike})  # rows that two ways led to
    responses = ["\n".join(way) for way in ways]
    check_states(problem, responses)
    check_states(problem, ["2:9999\n2:1342", *responses])  # a wrong step has no state
    monkeypatch.setattr(Pancake, "state", lambda self, problem, steps: steps[-1][2:4])
    with pytest.raises(ConfigError, match=r"`state` of source 'pancake' says '\d\d' after '\d:"):
        check_states(problem, responses)
