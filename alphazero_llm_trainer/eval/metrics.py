"""Figures with their uncertainty. Pure functions over numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

Z95 = 1.959963984540054


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate and its 95% interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.3f} [{self.low:.3f}, {self.high:.3f}]"


def wilson(successes: int, trials: int) -> Interval:
    """A proportion with Wilson's score interval at 95% (Wilson 1927)."""
    if trials == 0:
        return Interval(float("nan"), 0.0, 1.0)
    p, z2 = successes / trials, Z95**2
    centre = (p + z2 / (2 * trials)) / (1 + z2 / trials)
    half = Z95 * math.sqrt(p * (1 - p) / trials + z2 / (4 * trials**2)) / (1 + z2 / trials)
    return Interval(p, max(0.0, centre - half), min(1.0, centre + half))


def paired_bootstrap(after: Sequence[float], before: Sequence[float], seed: int = 0, draws: int = 10_000) -> Interval:
    """Mean of `after - before` over the same problems `[n]`, with the 95% percentile bootstrap interval."""
    difference = np.asarray(after, dtype=float) - np.asarray(before, dtype=float)
    if difference.size == 0:
        return Interval(float("nan"), float("nan"), float("nan"))
    rng = np.random.default_rng(seed)
    # Blocks keep the index matrix small for thousands of problems.
    means = np.concatenate(
        [difference[rng.integers(0, difference.size, (500, difference.size))].mean(1) for _ in range(draws // 500)]
    )
    low, high = np.quantile(means, [0.025, 0.975])
    return Interval(float(difference.mean()), float(low), float(high))


def pass_at_k(samples: int, correct: int, k: int) -> float:
    """Unbiased probability that one of k samples is right: `1 - C(n-c, k)/C(n, k)` (Chen et al. 2021, equation 1)."""
    if k > samples:
        raise ValueError(f"k is {k} with {samples} samples: draw more samples")
    return 1.0 - math.comb(samples - correct, k) / math.comb(samples, k)
