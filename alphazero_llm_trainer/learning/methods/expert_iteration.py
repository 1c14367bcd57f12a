"""Expert iteration (Anthony et al. 2017): likelihood of right responses, the trees' own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..rows import GoodRows, TrainRow
from .base import Method, Objective

if TYPE_CHECKING:
    import torch

    from ..losses import Figures


class Likelihood(Objective):
    """The weighted likelihood of responses."""

    def totals(self, rows: Sequence[TrainRow]) -> tuple[float, ...]:
        """The sum of the weights."""
        return (sum(sum(row.advantages) for row in rows),)

    def loss(
        self, rows: Sequence[TrainRow], scores: Any, totals: torch.Tensor
    ) -> tuple[torch.Tensor, Figures]:
        """See `weighted_likelihood`."""
        from ..learner import padded
        from ..losses import weighted_likelihood

        weights = padded([row.advantages for row in rows], scores.logprobs)
        return weighted_likelihood(scores.logprobs, weights, totals[0]), {}


EXPERT_ITERATION = Method(
    name="expert_iteration",
    rows=GoodRows,
    objective=lambda train, model, lora: Likelihood(),
    reads=frozenset({"buffer_passes", "updates_per_round"}),
    supervised=True,
    ruled=True,
)
