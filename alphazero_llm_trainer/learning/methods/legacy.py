"""`legacy`: likelihood of each question's best response, weighted by its reward (reward-weighted
regression, Peters & Schaal 2007).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ...tree.graded import GradedTree
from ..credit import zero_variance
from ..rows import GoodRows
from ..train_row import TrainRow
from .expert_iteration import EXPERT_ITERATION


class BestRows(GoodRows):
    """Rows of the best responses."""

    def good(self, trees: Sequence[GradedTree]) -> list[TrainRow]:
        """The best response of each question that has both better and worse ones, weighted by its
        reward.
        """
        rows = []
        for tree in trees:
            rewards = [self.collector.reward(response) for response in tree.responses]
            if not zero_variance(rewards):
                ranked = zip(rewards, tree.responses, strict=True)
                # The first of equals.
                reward, best = max(ranked, key=lambda pair: (pair[0], pair[1].samples))
                rows.append(self.row(tree, best, reward))
        return rows


LEGACY = replace(
    EXPERT_ITERATION,
    name="legacy",
    rows=BestRows,
    reads=EXPERT_ITERATION.reads | {"reward"},
    flagged=True,
    compares=True,
    ruled=False,
    worlds=False,
)
