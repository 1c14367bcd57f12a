"""Sampling without replacement: draws from the policy's distribution without the sequences that
were drawn before.

A sequence that was drawn takes its probability with it: at each token of a new draw, a token weighs
its probability less that of the drawn sequences which go on with it (Shi et al. 2020, "Incremental
sampling without replacement for sequence models", algorithm 1). One draw costs what any other does,
and is never one of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from ..types import Logprobs, TokenIds

# Probability that has to be left: a draw out of less would be one of steps that the policy all but
# excludes.
LEAST_MASS = 1e-3


@dataclass(slots=True)
class Taken:
    """Sequences that were drawn after one prefix and may not be drawn again.

    `share` is their part of the probability there, `after` the same by their next token.
    """

    chance: float = 1.0  # of this prefix's last token after the others, at the draws' temperature
    share: float = 0.0
    after: dict[int, Taken] = field(default_factory=dict)

    @classmethod
    def of(cls, sequences: Iterable[tuple[TokenIds, Logprobs]]) -> Taken | None:
        """The tree of (token ids `[T]`, log-probabilities at the draws' temperature `[T]`); None
        where nothing is taken or left.
        """
        root = cls()
        made = [root]
        for ids, logprobs in sequences:
            at = root
            for token, logprob in zip(ids, logprobs, strict=True):
                if token not in at.after:
                    at.after[token] = cls(math.exp(min(0.0, logprob)))
                    made.append(at.after[token])
                at = at.after[token]
            at.share = 1.0
        # share(s) = sum over drawn next tokens a of p(a | s) share(s a): what of the probability
        # after s is taken.
        for node in reversed(made):  # children before their parents
            if node.share < 1.0:
                node.share = min(
                    1.0, math.fsum(child.chance * child.share for child in node.after.values())
                )
        return root if root.after and 1.0 - root.share >= LEAST_MASS else None

    def draw(self, logprobs: np.ndarray, temperature: float, uniform: float) -> int | None:
        """The token where `uniform` falls in what is left of `logprobs` `[V]` (nats, temperature 1)
        at `temperature`; None of nothing.
        """
        left = logprobs.astype(np.float64)
        for token, child in self.after.items():
            if child.share >= 1.0:
                left[
                    token
                ] = -math.inf  # before the maximum: beside it little of the others would be left
        highest = left.max()
        if highest == -math.inf:
            return None
        # q(a) is proportional to p_T(a) (1 - share(s a)): a token weighs what its drawn
        # continuations leave of it.
        weights = np.exp((left - highest) / temperature)
        for token, child in self.after.items():
            weights[token] *= 1.0 - child.share
        sums = weights.cumsum()
        if sums[-1] <= 0.0:
            return None
        return place_of(uniform, sums)


def place_of(uniform: float, sums: np.ndarray) -> int:
    """Where a uniform number falls in cumulated chances `[V]`, by inverse transform: the first
    place whose sum exceeds it. Rounding may put the last sum at it: the last place is then the one.
    """
    return min(int(sums.searchsorted(uniform * sums[-1], side="right")), len(sums) - 1)


def temper_logprob(logprobs: np.ndarray, temperature: float, token: int) -> float:
    """The log-probability (nats) of `token` under `logprobs` `[V]` (nats, temperature 1) at
    `temperature`.
    """
    scaled = logprobs.astype(np.float64) / temperature
    highest = scaled.max()
    # log p_T(a) = l_a/T - log sum_b exp(l_b/T)
    return float(scaled[token] - highest - np.log(np.exp(scaled - highest).sum()))
