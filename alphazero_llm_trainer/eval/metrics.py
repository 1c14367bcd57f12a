"""Figures with their uncertainty. Pure functions over numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from ..types import Task

Z95 = 1.959963984540054


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate and its 95% interval, which always holds the estimate.

    Rounding puts Wilson's lower end for 0 of 50 at 5e-19, and a bootstrap's ends may miss a mean by
    as little: the ends are moved out to the estimate, also where they were read from a file.
    """

    value: float
    low: float
    high: float

    @classmethod
    def of_draws(cls, value: float, drawn: Any) -> Self:
        """An estimate, and where 95% of its bootstrap's draws lie; one that is NaN isn't there."""
        return cls(float(value), *map(float, np.nanquantile(drawn, [0.025, 0.975])))

    def __post_init__(self) -> None:
        object.__setattr__(self, "low", min(self.low, self.value))
        object.__setattr__(self, "high", max(self.high, self.value))

    @property
    def kind(self) -> str:
        """Of a difference: "good" where all of the interval is above 0, "bad" where it is below,
        else "".
        """
        return "good" if self.low > 0 else "bad" if self.high < 0 else ""

    def __str__(self) -> str:
        return format(self)

    def __format__(self, sign: str) -> str:
        """`0.713 [0.650, 0.768]`; with "+" as the format every number has its sign. "unknown" where
        one is NaN.
        """
        numbers = (self.value, self.low, self.high)
        if any(map(math.isnan, numbers)):
            return "unknown"
        value, low, high = (f"{number:{sign}.3f}" for number in numbers)
        return f"{value} [{low}, {high}]"


def wilson(successes: int, trials: int, distinct: int | None = None) -> Interval:
    """A proportion with Wilson's score interval at 95% (Wilson 1927).

    Where trials repeat each other, `distinct` is how many there are without repeats: the interval
    is that of so many.
    """
    if trials == 0:
        return Interval(float("nan"), 0.0, 1.0)
    p, z2 = successes / trials, Z95**2
    trials = trials if distinct is None else distinct
    centre = (p + z2 / (2 * trials)) / (1 + z2 / trials)
    half = Z95 * math.sqrt(p * (1 - p) / trials + z2 / (4 * trials**2)) / (1 + z2 / trials)
    return Interval(p, max(0.0, centre - half), min(1.0, centre + half))


def paired_bootstrap(
    after: Sequence[float],
    before: Sequence[float],
    seed: int = 0,
    draws: int = 10_000,
    groups: Sequence[int] | None = None,
) -> Interval:
    """Mean of `after - before` over the same problems `[n]`, with the 95% percentile bootstrap
    interval.

    Problems of one group (see `repeats`) are drawn together: they are no independent evidence.
    """
    difference = np.asarray(after, dtype=float) - np.asarray(before, dtype=float)
    if difference.size == 0:
        return Interval(float("nan"), float("nan"), float("nan"))
    _, numbers = np.unique(
        range(difference.size) if groups is None else groups, return_inverse=True
    )
    sums, counts = np.bincount(numbers, difference), np.bincount(numbers)
    rng = np.random.default_rng(seed)
    means = []
    for _ in range(draws // 500):  # blocks keep the index matrix small for thousands of problems
        drawn = rng.integers(0, sums.size, (500, sums.size))
        means.append(sums[drawn].sum(1) / counts[drawn].sum(1))
    return Interval.of_draws(difference.mean(), means)


def bootstrap_over_seeds(
    after: Sequence[Sequence[float]],
    before: Sequence[Sequence[float]],
    *,
    seed: int = 0,
    draws: int = 10_000,
    groups: Sequence[int] | None = None,
) -> Interval:
    """Mean of `after - before` of trained students, with an interval over problems and over the
    seeds of training.

    `after` `[S, n]` and `before` `[R, n]` hold the results of S and R seeds on the same n problems.
    Each draw takes problems (by `groups`, see `repeats`), and on either side seeds, with
    replacement. Few seeds are few: the variance between S of them comes out too small by `(S - 1) /
    S`.
    """
    sides = [np.asarray(side, dtype=float) for side in (after, before)]
    group = np.arange(sides[0].shape[1]) if groups is None else np.asarray(groups)
    sums = [np.stack([np.bincount(group, row) for row in side]) for side in sides]  # [S, G]
    counts, rng = np.bincount(group), np.random.default_rng(seed)
    means = []
    for _ in range(draws // 500):  # blocks keep the index matrix small for thousands of problems
        taken = rng.multinomial(counts.size, np.full(counts.size, 1 / counts.size), 500)  # [500, G]
        value = []
        for rows in sums:
            # [500, S]
            of_seeds = rng.multinomial(len(rows), np.full(len(rows), 1 / len(rows)), 500) / len(
                rows
            )
            value.append((of_seeds * (taken @ rows.T)).sum(1) / (taken @ counts))
        means.append(value[0] - value[1])
    return Interval.of_draws(sides[0].mean() - sides[1].mean(), means)


def repeats(tasks: Sequence[Task]) -> list[int]:
    """The group of each task, numbered from 0: tasks with one question are one problem, and with
    one worked solution one in other words.
    """
    numbers: dict[str, int] = {}
    keys = (task.solution or task.problem.question for task in tasks)
    return [numbers.setdefault(key, len(numbers)) for key in keys]


def mean_interval(values: Sequence[float]) -> Interval:
    """The mean of one number a problem: Wilson's interval where every number is 0 or 1, else the
    bootstrap's.
    """
    if set(values) <= {0.0, 1.0}:
        return wilson(round(sum(values)), len(values))
    return paired_bootstrap(values, [0.0] * len(values))


def pass_at_k(samples: int, correct: int, k: int) -> float:
    """Unbiased probability that one of k samples is right: `1 - C(n-c, k)/C(n, k)` (Chen et al.
    2021, equation 1).
    """
    if k > samples:
        raise ValueError(f"k is {k} with {samples} samples: draw more samples")
    return 1.0 - math.comb(samples - correct, k) / math.comb(samples, k)
