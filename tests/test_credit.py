"""Credit: closed forms against hand loops."""

from __future__ import annotations

import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alphazero_llm_trainer.train.credit import (
    EPSILON,
    asymmetric,
    clamp,
    group_advantages,
    is_flat,
    mean_and_std,
    step_advantages,
)

groups = st.lists(st.tuples(st.floats(0, 1), st.integers(1, 5)), min_size=1, max_size=8)
FAR = 1e9  # a clip that never bites


@given(groups)
def test_mean_and_std_equal_the_written_out_group(group: list[tuple[float, int]]) -> None:
    written_out = [reward for reward, count in group for _ in range(count)]
    mean, std = mean_and_std([r for r, _ in group], [c for _, c in group])
    assert mean == pytest.approx(statistics.fmean(written_out), abs=1e-12)
    assert std == pytest.approx(statistics.pstdev(written_out), abs=1e-7)


@given(groups)
def test_group_advantages_equal_a_hand_loop(group: list[tuple[float, int]]) -> None:
    rewards, counts = [r for r, _ in group], [c for _, c in group]
    written_out = [reward for reward, count in group for _ in range(count)]
    total = 0.0
    for reward in written_out:
        total += reward
    mean = total / len(written_out)
    variance = 0.0
    for reward in written_out:
        variance += (reward - mean) ** 2 / len(written_out)
    expected = [c * (r - mean) / (math.sqrt(variance) + EPSILON) for r, c in group]
    assert group_advantages(rewards, counts, clip=FAR, weigh_repeats=True) == pytest.approx(expected, abs=1e-5)


@given(groups)
def test_a_count_stands_for_that_many_rows(group: list[tuple[float, int]]) -> None:
    """A response with count c earns c times what each of c written-out copies earns."""
    plain = group_advantages(
        [r for r, c in group for _ in range(c)], [1 for _, c in group for _ in range(c)], clip=FAR, weigh_repeats=True
    )
    folded = group_advantages([r for r, _ in group], [c for _, c in group], clip=FAR, weigh_repeats=True)
    at = 0
    for (_, count), advantage in zip(group, folded, strict=True):
        assert advantage == pytest.approx(count * plain[at], abs=1e-5)
        assert sum(plain[at : at + count]) == pytest.approx(advantage, abs=1e-5)
        at += count


def test_without_weighing_a_repeated_response_counts_once() -> None:
    """Mean and deviation are over all samples, the advantage is that of one row."""
    plain = group_advantages([1.0, 0.0, 0.0, 0.0], [1, 1, 1, 1], clip=FAR, weigh_repeats=True)
    folded = group_advantages([1.0, 0.0], [1, 3], clip=FAR, weigh_repeats=False)
    assert folded == pytest.approx(plain[:2])
    heavy = group_advantages([1.0, 0.0], [1, 3], clip=FAR, weigh_repeats=True)
    assert heavy == pytest.approx([folded[0], 3 * folded[1]])


def test_group_advantages_by_hand() -> None:
    # 1 right of 4: mean 1/4, deviation sqrt(3)/4 = 0.4330127.
    right, wrong = group_advantages([1.0, 0.0], [1, 3], clip=3.0, weigh_repeats=True)
    assert right == pytest.approx(0.75 / (0.4330127 + 0.05)) == pytest.approx(1.552755, abs=1e-6)
    assert wrong == pytest.approx(-3 * 0.25 / 0.4830127)
    # Without counts the advantages of a group add up to nothing.
    assert math.fsum(group_advantages([0.1, 0.4, 0.9], [1, 1, 1], clip=3.0, weigh_repeats=True)) == pytest.approx(
        0.0, abs=1e-12
    )


def test_advantages_are_clipped_on_both_sides() -> None:
    rewards, counts = [1.0, *[0.0] * 30], [1] * 31
    assert max(group_advantages(rewards, counts, clip=FAR, weigh_repeats=True)) > 3.0
    assert max(group_advantages(rewards, counts, clip=3.0, weigh_repeats=True)) == 3.0
    flipped = [1 - reward for reward in rewards]
    assert min(group_advantages(flipped, counts, clip=3.0, weigh_repeats=True)) == -3.0
    assert [clamp(value, 2.0) for value in (-5.0, -2.0, 0.5, 2.0, 5.0)] == [-2.0, -2.0, 0.5, 2.0, 2.0]


@pytest.mark.parametrize(
    ("rewards", "flat"),
    [
        ([], True),
        ([1.0], True),
        ([0.3, 0.3], True),
        ([0.3, 0.3 + 1e-12], True),
        ([0.0, 1.0], False),
        ([0, 0, 1e-6], False),
    ],
)
def test_flat_groups(rewards: list[float], flat: bool) -> None:
    assert is_flat(rewards) is flat
    if rewards and flat:
        assert group_advantages(rewards, [2] * len(rewards), clip=3.0, weigh_repeats=True) == pytest.approx(
            [0.0] * len(rewards), abs=1e-9
        )


def test_step_advantages_equal_a_hand_loop() -> None:
    values, lengths = [(0.5, 0.25), (0.75, 0.5), (0.0, 0.75)], [3, 1, 2]
    found = step_advantages(values, lengths, scale=0.5, clip=1.2)
    assert found == [0.5, 0.5, 0.5, 0.5, -1.2, -1.2]
    assert len(found) == sum(lengths)
    # Unclipped step advantages telescope from the root's value to the leaf's.
    far = step_advantages(values, [1, 1, 1], scale=1.0, clip=FAR)
    assert math.fsum(far) == pytest.approx(values[-1][0] - values[0][1])
    assert step_advantages([], [], scale=1.0, clip=1.0) == []
    with pytest.raises(ValueError):
        step_advantages(values, [1, 2], scale=1.0, clip=1.0)


def test_asymmetric() -> None:
    assert asymmetric([1.5, -2.0, 0.0, -0.5], 0.25) == [1.5, -0.5, 0.0, -0.125]
    assert asymmetric([1.5, -2.0], 0.0) == [1.5, 0.0]  # positives-only
    assert asymmetric([1.5, -2.0], 1.0) == [1.5, -2.0]
