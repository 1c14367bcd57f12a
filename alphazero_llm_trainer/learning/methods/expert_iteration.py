"""Expert iteration (Anthony et al. 2017): likelihood of right responses, the trees' own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..rows import GoodRows
from ..train_row import TrainRows
from .base import Method, Objective

if TYPE_CHECKING:
    from ..losses import Streams


class Likelihood(Objective):
    """The weighted likelihood of responses."""

    def totals(self, rows: TrainRows) -> tuple[float, ...]:
        """The sum of the weights."""
        return (sum(sum(row.own(row.weights)) for row in rows),)

    def streams(self, rows: TrainRows) -> Streams:
        """All is likelihood."""
        from ..losses import Streams

        return Streams(likelihood=[row.weights for row in rows])


EXPERT_ITERATION = Method(
    name="expert_iteration",
    rows=GoodRows,
    objective=lambda train, model, lora: Likelihood(),
    reads=frozenset({"buffer_passes", "updates_per_round"}),
    supervised=True,
    ruled=True,
)
