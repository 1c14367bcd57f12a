"""What a run's trees add up to: counts, cost and how often they were right."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from ..mcts.extract import endings
from ..mcts.tree import OUTCOME, Rollout, Tree
from ..types import Cost

FAILED = "failed"  # how `ended_by` of a question without a tree begins
COUNT = Rollout.__slots__.index("count")  # a saved rollout is a list in this order


@dataclass(slots=True)
class Totals:
    """Sums over journal records.

    trees: records with a search; skipped: questions that don't fit the engine or whose reward failed (an empty tree is
    recorded);
    simulations: backed-up evaluations (visits of the roots); saved: simulations that adaptive budgets and solved questions
    left out; responses: finished responses, repeats counted;
    right: those with full marks (the gold answer, where no reward of the user's own takes part); solved: trees with a
    right response; ends: how responses ended (`extract.endings`); cost: of the trees.
    """

    trees: int = 0
    skipped: int = 0
    simulations: int = 0
    saved: int = 0
    responses: int = 0
    right: int = 0
    solved: int = 0
    ends: dict[str, int] = field(default_factory=dict)
    cost: Cost = field(default_factory=Cost)

    def add(self, record: Mapping[str, Any]) -> None:
        """Count one journal record."""
        self.cost.add(Cost(**record["cost"]))
        if record["ended_by"].startswith(FAILED):
            self.skipped += 1
            return
        tree = record["tree"]
        self.trees += 1
        self.simulations += tree["N"][0]
        self.saved += record.get("saved", 0)
        right = 0
        known = tree.get(OUTCOME, tree["hre"])
        ends = [(n, g) for v, n, g in zip(tree["verdict"], tree["samples"], known, strict=True) if v is not None]
        ends += [(rollout[COUNT], Rollout(*rollout).grade) for rollout in tree["rollouts"]]
        for count, grade in ends:
            self.responses += max(count, 1)
            right += max(count, 1) if grade == 1.0 else 0
        self.ends = dict(Counter(self.ends) + endings(Tree.from_dict(tree)))
        self.right += right
        self.solved += right > 0

    def merge(self, other: Totals) -> None:
        """Add another sum to this one."""
        for name in ("trees", "skipped", "simulations", "saved", "responses", "right", "solved"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.ends = dict(Counter(self.ends) + Counter(other.ends))
        self.cost.add(other.cost)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> Totals:
        return cls(**{**raw, "cost": Cost(**raw["cost"])})
