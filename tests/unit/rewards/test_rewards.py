import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tables import table

from alphazero_llm_trainer.config.sections import RewardConfig
from alphazero_llm_trainer.errors import ConfigError
from alphazero_llm_trainer.rewards.combined import combined, steps_of
from alphazero_llm_trainer.rewards.perplexity import pre

CASES = table("rewards")

shares = st.floats(0, 1)
logprobs = st.lists(st.floats(-2000, 0), max_size=8)


@pytest.mark.parametrize(
    "ppl, base, expected",
    CASES["perplexities"],
)
def test_pre_closed_forms(ppl, base, expected):
    assert pre([-math.log(ppl)] * 3, [-math.log(base)] * 5) == pytest.approx(expected)


def test_pre_with_nothing_to_measure():
    assert pre([], [-1.0]) == 0.0
    assert pre([-1.0], []) == 0.5
    assert pre([], []) == 0.0
    assert pre([-5000.0], [-1.0]) == 0.0
    assert pre([-1.0], [-5000.0]) == 1.0
    assert pre([-math.inf], [-1.0]) == 0.0
    assert pre([-math.inf], [-math.inf]) == 0.5


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
    "hre_part, pre_part, steps, right, wrong, total",
    CASES["combined"],
)
def test_combined_with_the_shipped_weights(hre_part, pre_part, *, steps, right, wrong, total):
    parts = combined(
        hre_part, pre_part, steps=steps, right=right, wrong=wrong, weights=RewardConfig()
    )
    assert parts.total == pytest.approx(total)
    assert (parts.hre, parts.pre) == (hre_part, pre_part)


def test_weights_are_renormalised():
    weights = RewardConfig(hre_weight=0.2, pre_weight=0.2, step_penalty=0.1)
    assert combined(1.0, 0.0, steps=0, right=0, wrong=0, weights=weights).total == pytest.approx(
        0.5
    )
    assert combined(1.0, 0.0, steps=1, right=0, wrong=0, weights=weights).total == pytest.approx(
        0.4
    )
    assert combined(1.0, 0.0, steps=0, right=1, wrong=0, weights=weights).total == pytest.approx(
        0.6
    )
    assert combined(1.0, 0.0, steps=0, right=0, wrong=1, weights=weights).total == pytest.approx(
        0.45
    )
    assert (
        combined(1.0, None, steps=9, right=1, wrong=0, weights=RewardConfig(step_penalty=0)).total
        == 1.0
    )


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


@pytest.mark.parametrize(
    "response, steps",
    [
        ("", 0),
        ("\n \n", 0),
        ("1 + 1 = 2", 1),
        ("1 + 1 = 2\n\n  \n2 + 2 = 4\n", 2),
        ("1 + 1 = 2\n#### 2", 2),
        ("\n#### 2\nand so on\n#### 3", 1),
        ("#### \nso it is\n#### 3\n", 3),
    ],
)
def test_steps_are_lines_down_to_the_final_answer(response, steps):
    assert steps_of(response) == steps
