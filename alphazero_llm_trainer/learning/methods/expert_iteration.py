"""Expert iteration (Anthony et al. 2017): likelihood of right responses, the trees' own."""

from __future__ import annotations

from typing import ClassVar

from ..rows import GoodRows
from ..train_row import TrainRows
from .base import Method, Objective, Totals


class Likelihood(Objective):
    """The weighted likelihood of responses."""

    columns: ClassVar = {"likelihood": "weights"}

    def totals(self, rows: TrainRows) -> Totals:
        """The sum of the weights."""
        return (sum(sum(row.own(row.weights)) for row in rows),)


EXPERT_ITERATION = Method(
    name="expert_iteration",
    rows=GoodRows,
    objective=lambda train, model, lora: Likelihood(),
    reads=frozenset({"buffer_passes", "updates_per_round"}),
    supervised=True,
    ruled=True,
)
