"""Verifiers against hand-computed scores."""

import asyncio
import math
from pathlib import Path

import pytest
import torch
from support import tiny_engine, tiny_llama

from alphazero_llm_trainer.engine.protocol import Judgement
from alphazero_llm_trainer.errors import ConfigError
from alphazero_llm_trainer.eval.verifiers import (
    Calculator,
    LogProbability,
    NoVerifier,
    Product,
    named_verifier,
)
from alphazero_llm_trainer.policy.critic import Critic, CriticVerifier
from alphazero_llm_trainer.problems.load import load_tasks
from alphazero_llm_trainer.problems.step_checks import UNJUDGED
from alphazero_llm_trainer.types import Problem, Step

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
