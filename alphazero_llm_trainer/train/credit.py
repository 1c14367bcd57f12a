"""Credit assignment: what each token of each response is worth to the policy. Pure functions over numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence

EPSILON = 0.05  # added to a group's standard deviation, so that nearly even groups are not blown up


def mean_and_std(rewards: Sequence[float], counts: Sequence[int]) -> tuple[float, float]:
    """Mean and population standard deviation of rewards that occur `counts` times each."""
    total = sum(counts)
    mean = math.fsum(r * c for r, c in zip(rewards, counts, strict=True)) / total
    variance = math.fsum(c * (r - mean) ** 2 for r, c in zip(rewards, counts, strict=True)) / total
    return mean, math.sqrt(variance)


def is_flat(rewards: Sequence[float], tolerance: float = 1e-9) -> bool:
    """True for a group that teaches nothing: fewer than two rewards, or all the same (DAPO's zero-variance groups)."""
    return len(rewards) < 2 or max(rewards) - min(rewards) <= tolerance


def group_advantages(
    rewards: Sequence[float], counts: Sequence[int], *, clip: float, weigh_repeats: bool
) -> list[float]:
    """`(r - mean) / (std + EPSILON)`, clipped to [-clip, clip]: one number a distinct response `[G]`.

    GRPO (Shao et al. 2024, DeepSeekMath, section 4.1.2, outcome supervision); mean and deviation are over all samples.
    A response that was sampled `count` times stands for one row, or with `weigh_repeats` for that many (clipped after).
    """
    mean, std = mean_and_std(rewards, counts)
    weights = counts if weigh_repeats else [1] * len(counts)
    return [clamp(w * (r - mean) / (std + EPSILON), clip) for r, w in zip(rewards, weights, strict=True)]


def step_advantages(
    values: Sequence[tuple[float, float]], lengths: Sequence[int], *, scale: float, clip: float
) -> list[float]:
    """`(Q(child) - V(parent)) / scale` on every token of each step, clipped: one number a token `[T]`.

    The advantage of taking a step, read off the tree's own statistics (ReST-MCTS*, Zhang et al. 2024, section 3;
    TreeRL, Hou et al. 2025, equation 6).

    Args:
        values: `(Q(child), V(parent))` of each step.
        lengths: tokens of each step.
        scale: the standard deviation that the batch's step differences are divided by.
    """
    advantages: list[float] = []
    for (child, parent), length in zip(values, lengths, strict=True):
        advantages += [clamp((child - parent) / scale, clip)] * length
    return advantages


def asymmetric(advantages: Sequence[float], negative_weight: float) -> list[float]:
    """Advantages with those below 0 times `negative_weight`; 0 is positives-only."""
    return [a if a >= 0 else a * negative_weight for a in advantages]


def clamp(value: float, limit: float) -> float:
    return max(-limit, min(limit, value))
