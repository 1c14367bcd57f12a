"""A row that losses read: one response, token ids and numbers only."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import compress
from typing import TypeVar

from ..types import STUDENT, Logprobs, TokenIds

T = TypeVar("T")
PerToken = tuple[float, ...]  # of a response's tokens `[T]`


@dataclass(frozen=True, slots=True)
class TrainRow:
    """A prompt `[P]` and its response, with numbers of the response's tokens, each `[T]`, or empty
    where the method has no use for them.

    Args:
        old_logprobs: nats, the policy's that sampled the response.
        advantages: of the policy gradient.
        kind: "policy", "demonstration" or "padding" (which no loss sees: `ranks.shard_rows`).
        reward: the outcome that PPO's critic is trained on.
        source: who wrote the response: "student", or the teachers that wrote one of its steps.
        targets: AlphaZero's z of the states before the tokens.
        value_weights: how much those states count.
        index: the row's number in its round, where repeats of a row share one.
        weights: of the likelihood.
        pi: what the search chose, as AlphaZero's likelihood has it.
        draws: how often a distillation's student drew each token.
        mask: which tokens are the policy's own draws; empty where all are. What a tool gave is in
            no stream of a loss, and in no mean.
    """

    prompt_ids: TokenIds
    completion_ids: TokenIds
    old_logprobs: Logprobs = ()
    advantages: PerToken = ()
    kind: str = "policy"
    reward: float = 0.0
    source: str = STUDENT
    targets: PerToken = ()
    value_weights: PerToken = ()
    index: int = field(default=0, compare=False)
    weights: PerToken = ()
    pi: PerToken = ()
    draws: PerToken = ()
    mask: tuple[bool, ...] = ()

    def own(self, numbers: Sequence[T]) -> list[T]:
        """Those of a row's numbers `[T]` that are of the policy's own tokens."""
        return list(compress(numbers, self.mask) if self.mask else numbers)

    def spread(self, numbers: Sequence[float]) -> list[float]:
        """Numbers of the policy's own tokens at their places among all `[T]`, 0 at the others."""
        rest = iter(numbers)
        return [next(rest) if own else 0.0 for own in self.mask] if self.mask else list(numbers)

    @property
    def own_tokens(self) -> int:
        """How many of the response's tokens are the policy's own."""
        return sum(self.mask) if self.mask else len(self.completion_ids)


TrainRows = Sequence[TrainRow]
Minibatches = list[list[TrainRow]]


def sum_own(rows: TrainRows, field: str) -> float:
    """The sum of a field's numbers over the policy's own tokens of all rows."""
    return math.fsum(number for row in rows for number in row.own(getattr(row, field)))
