"""What a session's trees add up to: counts, cost, how often they were right."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path

from ..errors import RequestError
from ..live import last_tree, show_duration
from ..tree.arena import Tree
from ..tree.extract import endings, trajectories
from ..tree.graded import FAILED, FAILED_REWARD
from ..types import Cost, Facts, JsonObject

SUMMARY_LINES = (
    32  # questions: a server that refuses them before any answer refuses all; refusals are quick
)


@dataclass(slots=True)
class Summary:
    """What a sample run's folder has, and the sums of this session's journal records.

    status: "complete" or "stopped"; trees, set_aside: of all sessions; session_trees: records with
    a search; skipped: questions that don't fit the engine or whose reward failed (an empty tree is
    recorded); responses: finished ones, repeats counted; right: those with full marks (the gold
    answer, where no reward of the user's own takes part); solved_trees: with a right response;
    ends: how responses ended (`extract.endings`); cost: of the trees; teachers: costs by name;
    seconds: of searching.
    """

    questions: int = 0
    status: str = "stopped"
    trees: int = 0
    set_aside: list[JsonObject] = field(default_factory=list)
    session_trees: int = 0
    skipped: int = 0
    responses: int = 0
    right: int = 0
    solved_trees: int = 0
    ends: Counter[str] = field(default_factory=Counter)
    cost: Cost = field(default_factory=Cost)
    teachers: dict[str, Cost] = field(default_factory=dict)
    seconds: float = 0.0

    def add(self, record: Facts) -> str:
        """Add a journal record. Returns a line on it. Raises RequestError where a server has
        refused the first questions.
        """
        self.cost.add(Cost(**record["cost"]))
        if record["ended_by"].startswith((FAILED, FAILED_REWARD)):
            self.skipped += 1
            first = self.skipped == min(SUMMARY_LINES, self.questions) and not self.session_trees
            if first and record.get("tokens") == "server":
                raise RequestError(record["ended_by"].removeprefix(FAILED))
            return f"{record['key']}: {record['ended_by']}"
        tree = Tree.from_dict(record["tree"])
        ended = trajectories(tree)
        responses = sum(path.samples for path in ended)
        right = sum(path.samples for path in ended if path.right)
        self.session_trees += 1
        self.responses += responses
        self.right += right
        self.solved_trees += right > 0
        self.ends += endings(tree)
        counts = len(tree), len(tree.simulations), right, responses
        return last_tree(record["key"], *counts, record["ended_by"])

    def text(self, folder: Path) -> str:
        """What the terminal shows of the run in `folder`."""
        tokens = self.cost.sampled_tokens
        lines = [f"{self.trees:,} of {self.questions:,} questions have a tree in {folder}"]
        if self.session_trees:
            lines.append(
                f"searched now: {self.session_trees:,} in {show_duration(self.seconds)}; "
                f"{self.right:,} of {self.responses:,} responses are right, and "
                f"trees with a right one: {self.solved_trees:,}; {tokens:,} sampled tokens, "
                f"{tokens / self.seconds:,.0f} a second"
            )
        if self.skipped:
            lines.append(
                f"{self.skipped:,} trees are empty: the question doesn't fit or is refused, or its "
                "reward failed"
            )
        if self.set_aside:
            lines.append(
                f"{len(self.set_aside):,} questions failed three times and are in set_aside.jsonl"
            )
        if dollars := sum(cost.dollars for cost in self.teachers.values()):
            lines.append(f"the teachers charged ${dollars:.4f}")
        return "\n".join(lines)

    def as_dict(self) -> JsonObject:
        """Plain figures: all but `trees` and `set_aside` are this session's."""
        return {**asdict(self), "ends": dict(self.ends), "set_aside": len(self.set_aside)}
