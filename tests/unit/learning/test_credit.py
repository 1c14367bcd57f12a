"""Credit: closed forms against hand loops."""

import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alphazero_llm_trainer.learning.credit import (
    ADVANTAGE_CLIP,
    EPSILON,
    asymmetric,
    clamp,
    gae,
    group_advantages,
    process_advantages,
    step_advantages,
    zero_variance,
)

groups = st.lists(st.tuples(st.floats(0, 1), st.integers(1, 5)), min_size=1, max_size=8)


@given(groups)
def test_group_advantages_equal_a_hand_loop_over_all_samples(
    group,
):
    rewards, counts = [r for r, _ in group], [c for _, c in group]
    written_out = [reward for reward, count in group for _ in range(count)]
    mean, std = statistics.fmean(written_out), statistics.pstdev(written_out)
    found = group_advantages(rewards, counts)
    expected = [clamp((r - mean) / (std + EPSILON), ADVANTAGE_CLIP) for r in rewards]
    assert found == pytest.approx(expected, abs=1e-5)
    # The clip spares small groups, whose samples' advantages add up to nothing.
    if sum(counts) <= 10:
        assert math.fsum(c * a for c, a in zip(counts, found, strict=True)) == pytest.approx(
            0.0, abs=1e-6
        )


def test_group_advantages_are_clipped_on_both_sides():
    rewards, counts = [1.0, *[0.0] * 30], [1] * 31
    assert max(group_advantages(rewards, counts)) == 3.0
    assert min(group_advantages([1 - reward for reward in rewards], counts)) == -3.0


@pytest.mark.parametrize("rewards", [[], [1.0], [0.3, 0.3], [0.3, 0.3 + 1e-12]])
def test_a_group_that_teaches_nothing(rewards):
    assert zero_variance(rewards) and not zero_variance([*rewards, 2.0, 2.0 + 1e-6])
    if rewards:
        assert group_advantages(rewards, [2] * len(rewards)) == pytest.approx(
            [0.0] * len(rewards), abs=1e-9
        )


def test_step_advantages_equal_a_hand_loop():
    values, lengths = [(0.5, 0.25), (0.75, 0.5), (0.0, 0.75)], [3, 1, 2]
    found = step_advantages(values, lengths, scale=0.2)
    assert found == pytest.approx([1.25, 1.25, 1.25, 1.25, -3.0, -3.0])
    # Unclipped step advantages telescope from the root's value to the leaf's.
    far = step_advantages(values, [1, 1, 1], scale=1.0)
    assert math.fsum(far) == pytest.approx(values[-1][0] - values[0][1])
    assert step_advantages([], [], scale=1.0) == []
    with pytest.raises(ValueError):
        step_advantages(values, [1, 2], scale=1.0)


def test_asymmetric():
    assert asymmetric([1.5, -2.0, 0.0, -0.5], 0.25) == [1.5, -0.5, 0.0, -0.125]
    assert asymmetric([1.5, -2.0], 0.0) == [1.5, 0.0]  # positives-only


# -- inside a tree ---------------------------------------------------------------------------------

groups_of_steps = st.lists(
    st.tuples(
        st.lists(st.tuples(st.floats(0, 1), st.integers(1, 3)), min_size=1, max_size=4),
        st.integers(1, 3),
    ),
    min_size=1,
    max_size=5,
)


@given(groups_of_steps)
def test_process_advantages_equal_a_hand_loop(
    group,
):
    scores = [[score for score, _ in row] for row, _ in group]
    lengths = [[length for _, length in row] for row, _ in group]
    counts = [count for _, count in group]
    found = process_advantages(scores, lengths, counts)
    every = [
        score
        for row, count in zip(scores, counts, strict=True)
        for score in row
        for _ in range(count)
    ]
    distinct = [score for row in scores for score in row]
    mean, std = statistics.fmean(every), statistics.pstdev(every)
    teaches = len(distinct) > 1 and max(distinct) - min(distinct) > 1e-9
    for row, tokens, got in zip(scores, lengths, found, strict=True):
        expected = []
        for i, length in enumerate(tokens):
            to_go = sum((score - mean) / (std + EPSILON) for score in row[i:]) if teaches else 0.0
            expected += [clamp(to_go, ADVANTAGE_CLIP)] * length
        assert got == pytest.approx(expected, abs=1e-4)


@given(
    st.lists(st.tuples(st.floats(-1, 1), st.floats(-1, 1)), min_size=1, max_size=8),
    st.floats(0, 1),
    st.floats(0, 1),
)
def test_gae_equals_its_definition(steps, gamma, lam):
    """Equation 16 written out: the sum of (gamma * lambda)^l times the TD errors ahead."""
    rewards, values = [r for r, _ in steps], [v for _, v in steps]
    after = [*values[1:], 0.0]
    errors = [r + gamma * n - v for r, v, n in zip(rewards, values, after, strict=True)]
    expected = [
        sum((gamma * lam) ** (k - t) * errors[k] for k in range(t, len(errors)))
        for t in range(len(errors))
    ]
    advantages, returns = gae(rewards, values, gamma=gamma, lam=lam)
    assert advantages == pytest.approx(expected, abs=1e-9)
    assert returns == pytest.approx(
        [a + v for a, v in zip(expected, values, strict=True)], abs=1e-9
    )
