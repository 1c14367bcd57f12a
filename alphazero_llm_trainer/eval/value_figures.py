"""Does a value function earn its place? Brier, AUC, calibration, sibling ranking and the blend with rollouts.

Pure functions over numbers. Every interval is a 95% percentile bootstrap over *questions*: the states of one question
are not independent of each other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from .metrics import Interval

DRAWS = 1000
BINS = 10

Statistic = Callable[[np.ndarray], float]


@dataclass(frozen=True, slots=True)
class States:
    """States of held-out questions, one entry each `[N]`.

    `question` numbers the question, `group` the parent state (siblings share it; -1 for a root), `target` in [0, 1] is
    the mean outcome of `count` finished responses, `depth` the number of steps and `length` of tokens down to the state,
    `logprob` (nats) the policy's log-probability of those tokens, `final` tells that the response ends there.
    """

    question: np.ndarray
    group: np.ndarray
    target: np.ndarray
    count: np.ndarray
    depth: np.ndarray
    length: np.ndarray
    logprob: np.ndarray
    final: np.ndarray

    def where(self, kept: np.ndarray) -> States:
        """The states that a boolean mask `[N]` keeps."""
        return States(*(getattr(self, name)[kept] for name in self.__slots__))


def resampled(question: np.ndarray, statistic: Statistic, seed: int = 0, draws: int = DRAWS) -> Interval:
    """`statistic` of weights `[N]` (1 each; then how often each item's question was drawn) with its interval.

    Draws that give no number (no pair in them, say) are left out.
    """
    if question.size == 0:
        return Interval(float("nan"), float("nan"), float("nan"))
    _, index = np.unique(question, return_inverse=True)
    total = int(index.max()) + 1
    rng = np.random.default_rng(seed)
    values = []
    for _ in range(draws):
        drawn = np.bincount(rng.integers(0, total, total), minlength=total)
        values.append(statistic(drawn[index].astype(float)))
    usable = np.asarray(values)[np.isfinite(values)]
    low, high = np.quantile(usable, [0.025, 0.975]) if usable.size else (float("nan"), float("nan"))
    return Interval(float(statistic(np.ones(question.size))), float(low), float(high))


def mean(values: np.ndarray) -> Statistic:
    """The weighted mean of `values` `[N]`."""
    return lambda drawn: float(drawn @ values / drawn.sum()) if drawn.sum() > 0 else float("nan")


def brier(value: np.ndarray, states: States, seed: int = 0) -> Interval:
    """Mean squared error of `value` against each single outcome (Brier 1950), states weighted by their counts.

    `E[(V - o)^2] = (V - target)^2 + target*(1 - target)`: the second term is what nobody can predict.
    """
    weight, loss = states.count, (value - states.target) ** 2 + states.target * (1 - states.target)
    return resampled(states.question, _ratio(weight * loss, weight), seed)


def brier_skill(value: np.ndarray, states: States, base: float, seed: int = 0) -> Interval:
    """How much lower the Brier score is than that of always saying `base` (the training questions' rate); 0 is none."""
    weight, noise = states.count, states.target * (1 - states.target)
    gain = (base - states.target) ** 2 - (value - states.target) ** 2
    return resampled(states.question, _ratio(weight * gain, weight * ((base - states.target) ** 2 + noise)), seed)


def _ratio(top: np.ndarray, bottom: np.ndarray) -> Statistic:
    return lambda drawn: float(drawn @ top / (drawn @ bottom)) if drawn @ bottom > 0 else float("nan")


def auc(score: np.ndarray, states: States, seed: int = 0) -> Interval:
    """The probability that a state on the way to a correct end scores above one on the way to a wrong end; ties 0.5.

    A state counts with `count * target` correct and `count * (1 - target)` wrong outcomes.
    """
    order = np.argsort(score, kind="stable")
    right = (states.count * states.target)[order]
    wrong = (states.count * (1 - states.target))[order]
    ranked = score[order]
    starts = np.flatnonzero(np.r_[True, ranked[1:] != ranked[:-1]])

    def statistic(drawn: np.ndarray) -> float:
        weight = drawn[order]
        ups, downs = np.add.reduceat(weight * right, starts), np.add.reduceat(weight * wrong, starts)
        below = np.cumsum(downs) - downs
        pairs = ups.sum() * downs.sum()
        return float((ups @ (below + 0.5 * downs)) / pairs) if pairs > 0 else float("nan")

    return resampled(states.question, statistic, seed)


def calibration_error(value: np.ndarray, states: States, seed: int = 0, bins: int = BINS) -> Interval:
    """Expected calibration error over `bins` equal bins: the mean gap between V and the outcomes (Guo et al. 2017)."""
    bin_of = np.minimum((value * bins).astype(int), bins - 1)
    gap = states.count * (value - states.target)

    def statistic(drawn: np.ndarray) -> float:
        total = float(drawn @ states.count)
        return float(np.abs(np.bincount(bin_of, drawn * gap, bins)).sum() / total) if total > 0 else float("nan")

    return resampled(states.question, statistic, seed)


def reliability(value: np.ndarray, states: States, bins: int = BINS) -> list[tuple[float, float, float]]:
    """(mean V, mean outcome, share of the outcomes) of each bin of V that has any: a reliability diagram's points."""
    bin_of = np.minimum((value * bins).astype(int), bins - 1)
    sums = [np.bincount(bin_of, states.count * x, bins) for x in (value, states.target, np.ones(value.size))]
    total = float(sums[2].sum())
    return [(float(v / n), float(o / n), float(n / total)) for v, o, n in zip(*sums, strict=True) if n > 0]


@dataclass(frozen=True, slots=True)
class Pairs:
    """Sibling pairs `[P]`: indices of the states with the better and the worse mean outcome, and the question's number."""

    better: np.ndarray
    worse: np.ndarray
    question: np.ndarray


def sibling_pairs(states: States, least: int = 1, margin: float = 0.0) -> Pairs:
    """All pairs of siblings whose targets differ by more than `margin`, each with `least` outcomes or more."""
    better, worse = [], []
    members: dict[int, list[int]] = {}
    for i, group in enumerate(states.group.tolist()):
        if group >= 0 and states.count[i] >= least:
            members.setdefault(group, []).append(i)
    for group_members in members.values():
        for at, a in enumerate(group_members):
            for b in group_members[at + 1 :]:
                if abs(states.target[a] - states.target[b]) > margin:
                    first, second = (a, b) if states.target[a] > states.target[b] else (b, a)
                    better.append(first)
                    worse.append(second)
    up, down = np.asarray(better, dtype=int), np.asarray(worse, dtype=int)
    return Pairs(up, down, states.question[up])


def ranking(score: np.ndarray, pairs: Pairs, seed: int = 0) -> Interval:
    """The share of sibling pairs that `score` `[N]` puts in the right order; ties count half. Chance is 0.5."""
    return resampled(pairs.question, mean(in_order(score, pairs)), seed)


def ranking_gain(score: np.ndarray, other: np.ndarray, pairs: Pairs, seed: int = 0) -> Interval:
    """How much larger the share of `score` `[N]` is than that of `other` `[N]` on the same sibling pairs."""
    return resampled(pairs.question, mean(in_order(score, pairs) - in_order(other, pairs)), seed)


def in_order(score: np.ndarray, pairs: Pairs) -> np.ndarray:
    """1 where `score` puts a pair in the right order, 0.5 where it ties `[P]`."""
    difference = score[pairs.better] - score[pairs.worse]
    return (difference > 0) + 0.5 * (difference == 0)


def blend(value: np.ndarray, states: States) -> float:
    """The weight lambda of `Q = (1 - lambda)*Q_value + lambda*Q_rollout` with the least Brier score; NaN without data.

    At a state with n outcomes, k of them correct, one outcome o is the rollout and another o' is what is to be
    predicted. The squared error of `(1 - lambda)*V + lambda*o` against o', over all ordered pairs, is a parabola in
    lambda with its least value at `E[(o - V)(o' - V)] / E[(o - V)^2]`, here over states with two outcomes or more,
    each weighted by its count, clipped to [0, 1].
    """
    kept = states.count >= 2
    n, v, target = states.count[kept].astype(float), value[kept], states.target[kept]
    if not kept.any():
        return float("nan")
    k = n * target
    both = (k * k - k) / (n * (n - 1)) - 2 * v * target + v * v
    spread = target - 2 * v * target + v * v
    if n @ spread <= 0:
        return 0.0  # V is never wrong
    return float(np.clip(n @ both / (n @ spread), 0.0, 1.0))


@dataclass(frozen=True, slots=True)
class ValueVerdict:
    """Whether a value function earned its place, and the weight lambda of the rollouts (1: the value is not used)."""

    earned: bool
    rollout_weight: float
    why: str


def verdict(ranked: Interval, separated: Interval, fitted: float) -> ValueVerdict:
    """Lambda as fitted where sibling ranking and AUC both beat chance by their intervals' lower ends, else 1."""
    for name, interval in (("sibling ranking", ranked), ("AUC", separated)):
        if not interval.low > 0.5:
            return ValueVerdict(False, 1.0, f"{name} {interval} doesn't beat chance (0.5): the value gets no weight")
    if not np.isfinite(fitted):
        return ValueVerdict(False, 1.0, "no state has two outcomes to fit the blend on: the value gets no weight")
    return ValueVerdict(True, fitted, f"sibling ranking {ranked} and AUC {separated} beat chance (0.5)")


def measure(value: np.ndarray, states: States, base: float, least: int = 2, seed: int = 0) -> dict[str, Interval]:
    """Every figure of `value` `[N]` on held-out states, with the baselines that it is to be held against.

    `base` is the training questions' mean outcome; sibling pairs need `least` outcomes on both sides.
    """
    pairs = sibling_pairs(states, least)
    inner = states.where(~states.final)
    return {
        "brier": brier(value, states, seed),
        "brier of the base rate": brier(np.full(value.size, base), states, seed),
        "brier skill": brier_skill(value, states, base, seed),
        "calibration error": calibration_error(value, states, seed),
        "AUC": auc(value, states, seed),
        "AUC before the end": auc(value[~states.final], inner, seed),
        "AUC, deeper is better": auc(states.depth.astype(float), states, seed),
        "AUC, log-probability": auc(states.logprob, states, seed),
        "sibling ranking": ranking(value, pairs, seed),
        "sibling ranking, longer is better": ranking(states.length.astype(float), pairs, seed),
        "sibling ranking, log-probability": ranking(states.logprob, pairs, seed),
        "sibling ranking over log-probability": ranking_gain(value, states.logprob, pairs, seed),
    }
