"""How well a critic does on held-out questions: the order of states and of sibling steps, and its
weight in search.

Pure functions over numbers, for a value network and a PRM alike.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..policy.states import States, ranking_of
from .metrics import Interval, paired_bootstrap

CHANCE = 0.5  # of AUC and pair accuracy
LEAST_QUESTIONS = 10  # questions that an interval can be read off


@dataclass(frozen=True, slots=True)
class StatePairs:
    """Sibling steps `[P]`: the states after the better and after the worse one, and their
    question's number.
    """

    better: np.ndarray
    worse: np.ndarray
    question: np.ndarray


def auc(value: np.ndarray, states: States, seed: int = 0, draws: int = 1000) -> Interval:
    """The chance that a state which ends right has a higher value `[N]` than one that ends wrong;
    ties count half.

    Each question counts the same. The interval is the bootstrap's over questions; of fewer than
    `LEAST_QUESTIONS`, or without draws, it is all of [0, 1].
    """
    area = ranking_of(value, states)
    count = states.question.max(initial=-1) + 1
    whole = area(np.ones(count))
    if count < LEAST_QUESTIONS or not draws or np.isnan(whole):
        return Interval(whole, 0.0, 1.0)
    rng = np.random.default_rng(seed)
    drawn = [area(times) for times in rng.multinomial(count, np.full(count, 1 / count), draws)]
    return Interval.of_draws(whole, drawn)


def score_order(score: np.ndarray, pairs: StatePairs) -> np.ndarray:
    """1 where `score` `[N]` puts a pair in the right order, 0.5 where it ties `[P]`."""
    difference = score[pairs.better] - score[pairs.worse]
    return (difference > 0) + 0.5 * (difference == 0)


def pair_accuracy(
    value: np.ndarray, states: States, pairs: StatePairs, seed: int = 0
) -> dict[str, Interval]:
    """The share of pairs in the right order, by `value` `[N]` and by the policy's log-probability
    where that is known.

    The intervals are over questions: the pairs of one question are not independent of each other.
    Of fewer than `LEAST_QUESTIONS` they are all that can be.
    """
    groups = pairs.question.tolist()

    def interval(after: list[float], before: list[float], least: float = 0.0) -> Interval:
        figure = paired_bootstrap(after, before, seed=seed, groups=groups)
        return Interval(figure.value, least, 1.0) if len(set(groups)) < LEAST_QUESTIONS else figure

    ordered = score_order(value, pairs).tolist()
    nothing = [0.0] * len(ordered)
    figures = {"pair accuracy": interval(ordered, nothing)}
    if np.isfinite(states.logprob[np.r_[pairs.better, pairs.worse]]).all():
        likely = score_order(states.logprob, pairs).tolist()
        figures["pair accuracy, log-probability"] = interval(likely, nothing)
        figures["pair accuracy over log-probability"] = interval(ordered, likely, -1.0)
    return figures


def fit_blend(value: np.ndarray, states: States) -> float:
    """The weight lambda of `Q = (1 - lambda)*Q_value + lambda*Q_rollout` with the least squared
    error; NaN without data.

    At a state with n outcomes of the sum k, one outcome o is the rollout and another o' is what is
    to be predicted. The squared error of `(1 - lambda)*V + lambda*o` against o', over all ordered
    pairs, is a parabola in lambda with its least value at `E[(o - V)(o' - V)] / E[(o - V)^2]`, here
    over states before the end with two outcomes or more, each weighted by its count, clipped to [0,
    1].
    """
    kept = (states.weight >= 2) & ~states.final
    n = states.weight[kept].astype(float)
    v = value[kept]
    target = states.target[kept]
    square = states.square[kept]
    if not kept.any():
        return float("nan")
    k = n * target
    both = (k * k - n * square) / (n * (n - 1)) - 2 * v * target + v * v
    spread = square - 2 * v * target + v * v
    if n @ spread <= 0:
        return 0.0  # V is never wrong
    return float(np.clip(n @ both / (n @ spread), 0.0, 1.0))
