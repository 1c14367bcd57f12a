"""What the engine's queue is made of (calls, their samples, rows of the prefix tree) and what
computes it.
"""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch

from ..types import JsonObject, LikelyTokens, TokenPairs
from .protocol import Generated, GenerateRequest
from .without import Taken


@dataclass(slots=True, eq=False)
class Call:
    """A request under way and the future its caller waits on. Tokens of `ends` may end a sample."""

    request: GenerateRequest
    future: asyncio.Future[list[Generated]]
    ends: frozenset[int]
    done: list[Generated | None]
    missing: int
    cached: int = 0


@dataclass(slots=True, eq=False)
class Rider:
    """One of a request's samples; `draws` are its uniform numbers, one for each token that it may
    take.

    `taken` are the request's `without` that go on from its tokens, None where there are none.
    """

    call: Call
    index: int
    draws: array[float]
    taken: Taken | None = None
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    # log-probabilities at the request's `tempered`
    tempered: list[float] = field(default_factory=list)
    top: list[TokenPairs] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class DecodingRow:
    """Nodes to compute after `start` tokens already known, and who waits for the last of them. Rows
    before it have the first `shared` nodes too.

    Riders wait for its next-token distribution, `peeks` for its k likeliest tokens, `values` for
    the value head's output. A scoring row's future takes the log-probabilities of the nodes
    `scored`.
    """

    nodes: list[int]
    start: int
    riders: list[Rider] = field(default_factory=list)
    peeks: list[tuple[asyncio.Future[LikelyTokens], int]] = field(default_factory=list)
    values: list[asyncio.Future[float]] = field(default_factory=list)
    scoring: asyncio.Future[list[float]] | None = None
    scored: list[int] = field(default_factory=list)
    shared: int = 0

    def read(self) -> bool:
        """True when someone reads the next-token distribution of its last node."""
        return bool(self.riders or self.peeks)

    def futures(self) -> list[asyncio.Future]:
        """Whatever waits for this row."""
        waits: list[asyncio.Future] = [rider.call.future for rider in self.riders]
        waits += [future for future, _ in self.peeks]
        waits += self.values
        return waits if self.scoring is None else [*waits, self.scoring]


@dataclass(slots=True)
class Computed:
    """What a forward did: nodes computed, seconds inside the model, and next-token
    log-probabilities.

    `table` `[n, vocabulary]` (nats, on the tree's device) has one row for each row that someone
    reads, in order; None where the tree keeps all.
    """

    tokens: int
    seconds: float
    table: torch.Tensor | None


class RowForward(Protocol):
    """Computes rows of a prefix tree.

    After `compute`, the rows' nodes are ready; the last node of each row that is read
    (`DecodingRow.read`) is memoised, or its distribution is in the table; the nodes of a scoring
    row, the first left out, have their log-probability; the last nodes have their value where there
    is a value head. Rows have ancestors before descendants.
    """

    name: str

    def compute(self, rows: Sequence[DecodingRow]) -> Computed:
        """Compute rows, ancestors before descendants; the class says what is ready then."""
        ...

    def facts(self) -> JsonObject:
        """What run.json says about it: its name, what it multiplies in, its threads."""
        ...

    def set_value(self, weight: torch.Tensor | None, bias: float) -> None:
        """Have sigmoid(weight . h + bias) computed of every node's final hidden state h; None ends
        that.
        """
        ...

    def release(self) -> None:
        """Give memory back that it needs while it computes."""
        ...
