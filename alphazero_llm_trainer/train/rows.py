"""What every trainer eats: one response a row, token ids only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TrainRow:
    """A prompt `[P]` and its response: `completion_ids`, `old_logprobs` (nats, the student's own at ingest) and
    `advantages` are `[T]`. `weight` is the row's weight in the legacy loss. `kind` is "policy" or "demonstration".
    """

    prompt_ids: tuple[int, ...]
    completion_ids: tuple[int, ...]
    old_logprobs: tuple[float, ...]
    advantages: tuple[float, ...]
    weight: float = 1.0
    kind: str = "policy"


# The rows of round k, asked for with the weights of the moment.
RowsOfRound = Callable[[int], Sequence[TrainRow]]
