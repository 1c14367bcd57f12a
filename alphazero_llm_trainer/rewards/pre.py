"""The perplexity reward estimate: how likely the response is under the frozen student, against a baseline response."""

from __future__ import annotations

import math
from collections.abc import Sequence

NEUTRAL = 0.5  # as perplexing as the baseline


def perplexity(logprobs: Sequence[float]) -> float:
    """exp of the mean negative log-probability (nats) of `[T]` tokens; infinite for no tokens or beyond a float."""
    try:
        return math.exp(mean_loss(logprobs))
    except OverflowError:
        return math.inf


def mean_loss(logprobs: Sequence[float]) -> float:
    """Mean negative log-probability in nats; infinite for no tokens."""
    return -math.fsum(logprobs) / len(logprobs) if len(logprobs) else math.inf


def pre(logprobs: Sequence[float], base_logprobs: Sequence[float]) -> float:
    """`(ppl_base - ppl) / ppl_base`, clipped to [-1, 1] and mapped to [0, 1].

    Args:
        logprobs: log-probabilities (nats) of the response's own tokens, given the question: `[T]`.
        base_logprobs: the same for the baseline response: `[B]`.

    A perplexity equal to the baseline's gives 0.5, one towards 1 of a hopeless baseline gives 1, twice the baseline's
    or more gives 0. An empty response gives 0.0; with an empty baseline there is nothing to compare with: 0.5.
    """
    if not len(logprobs):
        return 0.0
    if not len(base_logprobs):
        return NEUTRAL
    loss, base = mean_loss(logprobs), mean_loss(base_logprobs)
    if loss == base:
        return NEUTRAL
    # (base - ppl) / base is 1 - ppl/base; in log space the quotient can't overflow, and it is never below 0.
    ratio = math.exp(min(loss - base, math.log(2.0)))
    return 1.0 - ratio / 2.0
