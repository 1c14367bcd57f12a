"""How well values order states: the area under the curve of right against wrong ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class States:
    """States of held-out questions, one entry each `[N]`.

    `target` in [0, 1] is what the critic should say, `weight` how many outcomes it is the mean of,
    `square` the mean of the single outcomes' squares (the target itself where each is 0 or 1);
    `logprob` (nats) is the policy's of the step that led there, NaN where it is unknown; `final`
    tells that the response ends there; `question` is its question's number.
    """

    target: np.ndarray
    weight: np.ndarray
    square: np.ndarray
    logprob: np.ndarray
    final: np.ndarray
    question: np.ndarray


def ranking_of(value: np.ndarray, states: States) -> Callable[[np.ndarray], float]:
    """The chance that a state which ends right has a higher value `[N]` than one that ends wrong;
    ties count half.

    Each question counts the same, as many times `[Q]` as the result is asked with; it is NaN where
    all end alike.
    """
    _, rank = np.unique(value, return_inverse=True)
    totals = np.bincount(states.question, states.weight)  # [Q]
    share = states.weight / np.where(totals > 0, totals, 1.0)[states.question]

    def area(times: np.ndarray) -> float:
        weight = share * times[states.question]
        # The weight of right and of wrong states at each value.
        right, wrong = (np.bincount(rank, weight * x) for x in (states.target, 1 - states.target))
        pairs = right.sum() * wrong.sum()
        return float(right @ (wrong.cumsum() - wrong / 2) / pairs) if pairs > 0 else float("nan")

    return area
