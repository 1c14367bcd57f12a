"""Figures with their uncertainty, against published values and enumeration."""

import math
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from tables import table

from alphazero_llm_trainer.eval.metrics import (
    bootstrap_over_seeds,
    paired_bootstrap,
    pass_at_k,
    repeats,
    wilson,
)
from alphazero_llm_trainer.problems.load import load_tasks

CASES = table("metrics")


@pytest.mark.parametrize(
    "successes, trials, low, high",
    CASES["wilson"],
)
def test_wilson_against_published_values(successes, trials, low, high):
    found = wilson(successes, trials)
    assert found.value == successes / trials
    assert (found.low, found.high) == (pytest.approx(low, abs=5e-5), pytest.approx(high, abs=5e-5))


def test_the_paired_bootstrap_is_paired_seeded_and_near_the_normal_interval():
    rng = np.random.default_rng(1)
    before, after = (rng.random(1000) < 0.5).astype(float), (rng.random(1000) < 0.6).astype(float)
    difference, found = after - before, paired_bootstrap(after, before)
    half = 1.96 * difference.std() / math.sqrt(1000)
    assert found.value == pytest.approx(difference.mean())
    assert (found.value - found.low, found.high - found.value) == (
        pytest.approx(half, abs=0.004),
        pytest.approx(half, abs=0.004),
    )
    assert paired_bootstrap(after, before) == found != paired_bootstrap(after, before, seed=1)
    same = paired_bootstrap(before + 0.05, before)  # the same gain on each: no uncertainty at all
    assert (same.value, same.low, same.high) == pytest.approx((0.05, 0.05, 0.05))


def test_the_bootstrap_over_seeds_is_as_wide_as_the_seeds_differ():
    """Problems that all say the same leave the seeds alone: the interval is that of means of three
    drawn ones.
    """
    after, before = [[0.1] * 50, [0.2] * 50, [0.3] * 50], [[0.0] * 50]
    found = bootstrap_over_seeds(after, before)
    # One seed in 27 draws is 0.1 thrice: more than 2.5% of them at either end.
    assert (found.value, found.low, found.high) == pytest.approx((0.2, 0.1, 0.3))
    both = bootstrap_over_seeds(after, after)  # either side draws seeds of its own
    assert both.value == 0.0 and both.low == pytest.approx(-both.high) and both.high > 0.1


def test_intervals_of_nothing_and_of_unequal_lengths():
    assert math.isnan(paired_bootstrap([], []).value)
    nothing = wilson(0, 0)
    assert math.isnan(nothing.value) and (nothing.low, nothing.high) == (0.0, 1.0)
    assert str(wilson(50, 100)) == "0.500 [0.404, 0.596]"
    with pytest.raises(ValueError):
        paired_bootstrap([1.0, 0.0, 1.0], [1.0, 0.0])


def test_pass_at_k_equals_enumeration():
    for samples in range(1, 8):
        for correct in range(samples + 1):
            for k in range(1, samples + 1):
                draws = list(combinations([i < correct for i in range(samples)], k))
                expected = sum(any(draw) for draw in draws) / len(draws)
                assert pass_at_k(samples, correct, k) == pytest.approx(expected)


def test_problems_that_repeat_each_other_are_one_piece_of_evidence():
    once = [1.0, 0.0, 1.0, 1.0, 0.0, 1.0], [0.0, 0.0, 1.0, 0.0, 1.0, 1.0]
    eight = [side * 8 for side in once]
    # Every problem eight times: no more evidence than six problems.
    assert paired_bootstrap(*eight, groups=[i % 6 for i in range(48)]) == paired_bootstrap(*once)
    assert paired_bootstrap(*eight, groups=list(range(48))) == paired_bootstrap(*eight)
    few = wilson(32, 48, 6)
    assert (few.low, few.high) == (wilson(4, 6).low, wilson(4, 6).high)


def test_tasks_with_one_worked_solution_are_one_problem():
    tasks = load_tasks("embedded", "test", 1000)
    groups = repeats(tasks)
    assert len(set(groups)) == len({task.solution for task in tasks}) == 876
    assert groups[0] == 0 and max(groups) == 875
    unsolved = [replace(task, solution=None) for task in tasks[:50]]
    assert repeats(unsolved) == list(range(50))
