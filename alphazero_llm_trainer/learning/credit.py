"""Credit assignment: how much each token of each response is to be encouraged. Pure functions over
numbers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean

EPSILON = 0.05  # added to a group's standard deviation, so that nearly even groups are not blown up
ADVANTAGE_CLIP = 3.0  # the largest advantage of one sample, either way


def mean_and_std(rewards: Sequence[float], counts: Sequence[int]) -> tuple[float, float]:
    """Mean and population standard deviation of rewards that occur `counts` times each."""
    mean = fmean(rewards, counts)
    return mean, math.sqrt(fmean([(r - mean) ** 2 for r in rewards], counts))


def zero_variance(rewards: Sequence[float]) -> bool:
    """True for a group that teaches nothing: fewer than two rewards, or all the same (DAPO's
    zero-variance groups).
    """
    return len(rewards) < 2 or max(rewards) - min(rewards) <= 1e-9


def group_advantages(rewards: Sequence[float], counts: Sequence[int]) -> list[float]:
    """`(r - mean) / (std + EPSILON)`, clipped to [-ADVANTAGE_CLIP, ADVANTAGE_CLIP]: one number a
    distinct response `[G]`.

    GRPO (Shao et al. 2024, DeepSeekMath, section 4.1.2, outcome supervision); mean and deviation
    are over all samples, a response's `counts` of them. Over all samples the advantages sum to 0,
    but where the clip bites. It can't at 3 in a group of 10 samples or fewer: no sample of n is
    further than `sqrt(n - 1)` deviations from the mean.
    """
    mean, std = mean_and_std(rewards, counts)
    return [clamp((r - mean) / (std + EPSILON), ADVANTAGE_CLIP) for r in rewards]


def step_advantages(
    values: Sequence[tuple[float, float]], lengths: Sequence[int], *, scale: float
) -> list[float]:
    """`(Q(child) - V(parent)) / scale` on every token of each step, clipped: one number a token
    `[T]`.

    The advantage of taking a step, from Monte Carlo estimates of both values, as in VinePPO
    (Kazemnejad et al. 2024); here the tree's own statistics are the estimates. It is the local term
    of TreeRL's process reward (Hou et al. 2025) alone: TreeRL adds a global one, `V(child) -
    V(root)`, and scales down what many responses share.

    Args:
        values: `(Q(child), V(parent))` of each step.
        lengths: tokens of each step.
        scale: the standard deviation that the batch's step differences are divided by.
    """
    advantages: list[float] = []
    for (child, parent), length in zip(values, lengths, strict=True):
        advantages += [clamp((child - parent) / scale, ADVANTAGE_CLIP)] * length
    return advantages


def process_advantages(
    scores: Sequence[Sequence[float]], lengths: Sequence[Sequence[int]], counts: Sequence[int]
) -> list[list[float]]:
    """Process supervision of a group: for each response, one number a token.

    Step scores are normalised over all steps of the group, each response's as often as it was
    sampled, and a token's advantage is the sum of the normalised scores of its own step and of
    those after it (Shao et al. 2024, DeepSeekMath, section 4.1.3), clipped.

    Args:
        scores: a process reward model's score of each step of each response.
        lengths: tokens of each of these steps.
        counts: how often each response was sampled.
    """
    steps = [(score, count) for row, count in zip(scores, counts, strict=True) for score in row]
    if zero_variance([score for score, _ in steps]):
        return [[0.0] * sum(row) for row in lengths]
    mean, std = mean_and_std([score for score, _ in steps], [count for _, count in steps])
    made = []
    for row, tokens in zip(scores, lengths, strict=True):
        advantages: list[list[float]] = []
        left = 0.0  # the sum from here to the end: a step answers for what comes after it
        for score, length in zip(reversed(row), reversed(tokens), strict=True):
            left += (score - mean) / (std + EPSILON)
            advantages.append([clamp(left, ADVANTAGE_CLIP)] * length)
        made.append([a for step in reversed(advantages) for a in step])
    return made


def gae(
    rewards: Sequence[float], values: Sequence[float], *, gamma: float, lam: float
) -> tuple[list[float], list[float]]:
    """Advantages and returns of one finished response: both `[T]`.

    `delta_t = r_t + gamma * V(s_t+1) - V(s_t)`, `A_t = delta_t + gamma * lambda * A_t+1` (Schulman
    et al. 2016, "High-dimensional continuous control using generalized advantage estimation",
    equation 16), V after the end 0; the return that the critic is fitted to is `A_t + V(s_t)`.

    Args:
        rewards: what each token earned.
        values: V of the state in which each token was chosen.
    """
    advantages = [0.0] * len(rewards)
    following, after = 0.0, 0.0  # A_t+1 and V(s_t+1): backwards, because A_t is made of A_t+1
    for t in reversed(range(len(rewards))):
        following = rewards[t] + gamma * after - values[t] + gamma * lam * following
        advantages[t], after = following, values[t]
    return advantages, [a + v for a, v in zip(advantages, values, strict=True)]


def asymmetric(advantages: Sequence[float], negative_weight: float) -> list[float]:
    """Advantages with those below 0 times `negative_weight`; 0 is positives-only."""
    return [a if a >= 0 else a * negative_weight for a in advantages]


def clamp(value: float, limit: float) -> float:
    """The nearest number in [-limit, limit]."""
    return max(-limit, min(limit, value))
