"""What a critic is worth on held-out questions: the order of sibling steps, AUC, calibration, and its weight in search.

Pure functions over numbers, for a value network and a PRM alike. Every interval is a 95% percentile bootstrap over
*questions*: the states of one question are not independent of each other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from .metrics import Interval

DRAWS = 1000
BINS = 10
CHANCE = 0.5  # of pair accuracy and AUC

Statistic = Callable[[np.ndarray], float]


@dataclass(frozen=True, slots=True)
class States:
    """States of held-out questions, one entry each `[N]`.

    `question` numbers the question; `target` in [0, 1] is what the critic should say, `count` the state's weight, `square`
    the mean of the single outcomes' squares (the target itself where each is 0 or 1); `logprob` (nats) is the policy's
    of the step that led there, NaN where it is unknown; `final` tells that the response ends there.
    """

    question: np.ndarray
    target: np.ndarray
    count: np.ndarray
    square: np.ndarray
    logprob: np.ndarray
    final: np.ndarray


@dataclass(frozen=True, slots=True)
class Pairs:
    """Sibling steps `[P]`: the states after the better and after the worse one, and their question's number."""

    better: np.ndarray
    worse: np.ndarray
    question: np.ndarray


def resampled(question: np.ndarray, statistic: Statistic, seed: int = 0) -> Interval:
    """`statistic` of weights `[N]` (1 each; then how often each item's question was drawn) with its interval.

    Draws that give no number (no pair in them, say) are left out.
    """
    if question.size == 0:
        return Interval(float("nan"), float("nan"), float("nan"))
    _, index = np.unique(question, return_inverse=True)
    total = int(index.max()) + 1
    rng = np.random.default_rng(seed)
    values = []
    for _ in range(DRAWS):
        drawn = np.bincount(rng.integers(0, total, total), minlength=total)
        values.append(statistic(drawn[index].astype(float)))
    usable = np.asarray(values)[np.isfinite(values)]
    low, high = np.quantile(usable, [0.025, 0.975]) if usable.size else (float("nan"), float("nan"))
    return Interval(float(statistic(np.ones(question.size))), float(low), float(high))


def ratio(top: np.ndarray, bottom: np.ndarray) -> Statistic:
    """The weighted sum of `top` `[N]` over that of `bottom` `[N]`."""
    return lambda drawn: float(drawn @ top / (drawn @ bottom)) if drawn @ bottom > 0 else float("nan")


def brier(value: np.ndarray, states: States, seed: int = 0) -> Interval:
    """Mean squared error of `value` against each single outcome o (Brier 1950), states weighted by their counts.

    `E[(V - o)^2] = (V - target)^2 + Var(o)`: the second term is what nobody can predict.
    """
    loss = (value - states.target) ** 2 + states.square - states.target**2
    return resampled(states.question, ratio(states.count * loss, states.count), seed)


def auc(score: np.ndarray, states: States, seed: int = 0) -> Interval:
    """The probability that a state with a right outcome scores above one with a wrong outcome; ties 0.5.

    A state counts with `count * target` right and `count * (1 - target)` wrong outcomes.
    """
    order = np.argsort(score, kind="stable")
    right = (states.count * states.target)[order]
    wrong = (states.count * (1 - states.target))[order]
    ranked = score[order]
    starts = np.flatnonzero(np.r_[True, ranked[1:] != ranked[:-1]])  # of each run of equal scores

    def statistic(drawn: np.ndarray) -> float:
        weight = drawn[order]
        ups, downs = np.add.reduceat(weight * right, starts), np.add.reduceat(weight * wrong, starts)
        below = np.cumsum(downs) - downs
        pairs = ups.sum() * downs.sum()
        return float((ups @ (below + 0.5 * downs)) / pairs) if pairs > 0 else float("nan")

    return resampled(states.question, statistic, seed)


def calibration_error(value: np.ndarray, states: States, seed: int = 0) -> Interval:
    """Expected calibration error over `BINS` equal bins: the mean gap between V and the outcomes (Guo et al. 2017)."""
    bin_of = np.minimum((value * BINS).astype(int), BINS - 1)
    gap = states.count * (value - states.target)

    def statistic(drawn: np.ndarray) -> float:
        total = float(drawn @ states.count)
        return float(np.abs(np.bincount(bin_of, drawn * gap, BINS)).sum() / total) if total > 0 else float("nan")

    return resampled(states.question, statistic, seed)


def reliability(value: np.ndarray, states: States) -> list[tuple[float, float, float]]:
    """(mean V, mean outcome, share of the outcomes) of each bin of V that has any: a reliability diagram's points."""
    bin_of = np.minimum((value * BINS).astype(int), BINS - 1)
    sums = [np.bincount(bin_of, states.count * x, BINS) for x in (value, states.target, np.ones(value.size))]
    total = float(sums[2].sum())
    return [(float(v / n), float(o / n), float(n / total)) for v, o, n in zip(*sums, strict=True) if n > 0]


def in_order(score: np.ndarray, pairs: Pairs) -> np.ndarray:
    """1 where `score` `[N]` puts a pair in the right order, 0.5 where it ties `[P]`."""
    difference = score[pairs.better] - score[pairs.worse]
    return (difference > 0) + 0.5 * (difference == 0)


def blend(value: np.ndarray, states: States) -> float:
    """The weight lambda of `Q = (1 - lambda)*Q_value + lambda*Q_rollout` with the least Brier score; NaN without data.

    At a state with n outcomes of the sum k, one outcome o is the rollout and another o' is what is to be
    predicted. The squared error of `(1 - lambda)*V + lambda*o` against o', over all ordered pairs, is a parabola in
    lambda with its least value at `E[(o - V)(o' - V)] / E[(o - V)^2]`, here over states before the end with two outcomes
    or more, each weighted by its count, clipped to [0, 1].
    """
    kept = (states.count >= 2) & ~states.final
    n, v, target, square = states.count[kept].astype(float), value[kept], states.target[kept], states.square[kept]
    if not kept.any():
        return float("nan")
    k = n * target
    both = (k * k - n * square) / (n * (n - 1)) - 2 * v * target + v * v
    spread = square - 2 * v * target + v * v
    if n @ spread <= 0:
        return 0.0  # V is never wrong
    return float(np.clip(n @ both / (n @ spread), 0.0, 1.0))


def measure(value: np.ndarray, states: States, pairs: Pairs, base: float, seed: int = 0) -> dict[str, Interval]:
    """Every figure of `value` `[N]` on held-out states; `base` is the training questions' mean target.

    Where the policy's log-probabilities are known, the order that they put siblings in is what a critic has to beat.
    """
    ordered = in_order(value, pairs)
    ones = np.ones(pairs.question.size)
    found = {"pair accuracy": resampled(pairs.question, ratio(ordered, ones), seed)}
    likely = in_order(states.logprob, pairs)
    if np.isfinite(states.logprob[np.r_[pairs.better, pairs.worse]]).all():
        found["pair accuracy, log-probability"] = resampled(pairs.question, ratio(likely, ones), seed)
        found["pair accuracy over log-probability"] = resampled(pairs.question, ratio(ordered - likely, ones), seed)
    return found | {
        "AUC": auc(value, states, seed),
        "calibration error": calibration_error(value, states, seed),
        "Brier score": brier(value, states, seed),
        "Brier score of the base rate": brier(np.full(value.size, base), states, seed),
    }


def verdict(figures: dict[str, Interval]) -> tuple[bool, str]:
    """Whether a critic beats chance at pairs and in AUC, by its intervals' lower ends, and that in words."""
    for name in ("pair accuracy", "AUC"):
        if not figures[name].low > CHANCE:
            return False, f"{name} {figures[name]} doesn't beat chance ({CHANCE})"
    return True, f"pair accuracy {figures['pair accuracy']} and AUC {figures['AUC']} beat chance ({CHANCE})"
