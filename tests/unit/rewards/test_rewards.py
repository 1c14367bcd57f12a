import asyncio
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tables import table

from alphazero_llm_trainer.config.sections import RewardConfig
from alphazero_llm_trainer.engine.protocol import Generated
from alphazero_llm_trainer.errors import ConfigError
from alphazero_llm_trainer.rewards.combined import combined, steps_of
from alphazero_llm_trainer.rewards.perplexity import Perplexity, pre
from alphazero_llm_trainer.types import Observation, Problem, Step

CASES = table("rewards")

shares = st.floats(0, 1)
logprobs = st.lists(st.floats(-2000, 0), max_size=8)


@pytest.mark.parametrize("own, base, expected", CASES["logprobs"])
def test_pre_closed_forms(own, base, expected):
    assert pre(own, base) == pytest.approx(expected)


@pytest.mark.parametrize("ppl, base, expected", CASES["perplexities"])
def test_pre_of_perplexities(ppl, base, expected):
    assert pre([-math.log(ppl)] * 3, [-math.log(base)] * 5) == pytest.approx(expected)


@given(logprobs.filter(bool), logprobs.filter(bool))
def test_pre_is_the_design_formula(a, b):
    losses = [-math.fsum(one) / len(one) for one in (a, b)]
    value = pre(a, b)
    assert 0.0 <= value <= 1.0
    if max(losses) < 700:  # where a float holds the perplexities
        ppl, base = map(math.exp, losses)
        clipped = max(-1.0, min(1.0, (base - ppl) / base))
        assert value == pytest.approx((clipped + 1) / 2, abs=1e-9)


@pytest.mark.parametrize(
    "hre_part, pre_part, steps, right, wrong, total, weights", CASES["combined"]
)
def test_combined(hre_part, pre_part, *, steps, right, wrong, total, weights):
    parts = combined(
        hre_part, pre_part, steps=steps, right=right, wrong=wrong, weights=RewardConfig(**weights)
    )
    assert parts.total == pytest.approx(total)
    assert (parts.hre, parts.pre) == (hre_part, pre_part)


@pytest.mark.parametrize("hre_part, pre_part", [(None, None), (1.0, None)])
def test_no_weight_at_all_is_said(hre_part, pre_part):
    with pytest.raises(ConfigError, match=r"rewards\.hre_weight is 0\.0 .* weigh nothing"):
        combined(
            hre_part, pre_part, steps=1, right=0, wrong=0, weights=RewardConfig(hre_weight=0.0)
        )


@given(shares, st.none() | shares, st.integers(0, 50), st.integers(0, 9), st.integers(0, 9))
def test_combined_stays_in_range_and_is_monotonic(h, p, steps, right, wrong):
    def total(h, steps, right, wrong):
        return combined(h, p, steps=steps, right=right, wrong=wrong, weights=RewardConfig()).total

    value = total(h, steps, right, wrong)
    assert 0.0 <= value <= 1.0
    assert total(1.0, steps, right, wrong) >= value >= total(h, steps + 1, right, wrong)
    assert total(h, steps, right + 1, wrong) >= value >= total(h, steps, right, wrong + 1)


@pytest.mark.parametrize("response, steps", CASES["steps"])
def test_steps_are_lines_down_to_the_final_answer(response, steps):
    assert steps_of(response) == steps


@given(shares, st.none() | shares, shares, st.none() | shares, *[st.integers(0, 3)] * 6)
def test_a_response_without_an_answer_earns_no_more_than_a_wrong_one(
    weight, pre_part, other, custom, steps, more, right, wrong, bonus, penalty
):
    """Whatever their perplexities, lengths and directions are; a reward of one's own joins both
    alike, where they are as long and the same was proposed as wrong.
    """
    weights = RewardConfig(pre_weight=weight)

    def earned(pre_part, custom, steps, right, wrong, answered):
        parts = combined(
            0.0, pre_part, custom, steps=steps, right=right, wrong=wrong, weights=weights,
            answered=answered,
        )  # fmt: skip
        assert (parts.hre, parts.pre, parts.custom) == (0.0, pre_part, custom)
        return parts.total

    other = None if pre_part is None else other
    assert earned(pre_part, None, steps, right, wrong, False) == 0.0
    assert earned(other, None, more, bonus, penalty, True) >= 0.0
    same = steps, right, wrong
    assert earned(pre_part, custom, *same, False) <= earned(other, custom, *same, True)


def test_perplexity_is_of_drawn_tokens_alone():
    """A world's answer is state: likely or not, it changes no PRE, scored or sampled."""

    class Frozen:
        """Scores each token with minus its id, whose greedy answer has -1 a token."""

        def __init__(self):
            self.engine = self

        def prompt_ids(self, question):
            return (1,)

        async def score(self, asked):
            return [[-float(token) for token in ids] for _, ids in asked]

        async def generate(self, requests):
            return [[Generated((1, 1), (-1.0, -1.0), "eos")]]

    turn = Step((2, 3, 50, 60), (-2.0, -3.0, 0.0, 0.0), "turn", Observation(2, "answer"))
    plain = Step((2, 3), (-2.0, -3.0), "turn")
    last = Step((4,), (-4.0,), "end")

    async def measure(*steps, own):
        return (await Perplexity(Frozen(), 8, own=own)(Problem("p", "q", "s"), steps))[0]

    for own in (True, False):
        value = asyncio.run(measure(turn, last, own=own))
        assert value == asyncio.run(measure(plain, last, own=own)) == pre([-2, -3, -4], [-1, -1])
