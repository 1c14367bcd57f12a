"""What a session's trees add up to: counts, cost, how often they were right."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..live import Progress, duration, last_tree
from ..mcts.extract import endings, trajectories
from ..mcts.tree import Tree
from ..rollouts import FAILED, FAILED_REWARD
from ..types import Cost


@dataclass(slots=True)
class Totals:
    """Sums over journal records.

    trees: records with a search; skipped: questions that don't fit the engine or whose reward failed (an empty tree is
    recorded);
    simulations: of all trees; saved: simulations that adaptive budgets and solved questions
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

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> Totals:
        """One journal record's."""
        cost = Cost(**record["cost"])
        if record["ended_by"].startswith((FAILED, FAILED_REWARD)):
            return cls(skipped=1, cost=cost)
        tree = Tree.from_dict(record["tree"])
        found = trajectories(tree)
        right, saved = sum(one.samples for one in found if one.right), record.get("saved", 0)
        responses, ends = sum(one.samples for one in found), dict(endings(tree))
        return cls(1, 0, len(tree.simulations), saved, responses, right, int(right > 0), ends, cost)

    def add(self, other: Totals) -> None:
        """Add another sum to this one."""
        for name in ("trees", "skipped", "simulations", "saved", "responses", "right", "solved"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.ends = dict(Counter(self.ends) + Counter(other.ends))
        self.cost.add(other.cost)


def tell_tree(progress: Progress, session: Totals, dollars: float, record: Mapping[str, Any], one: Totals) -> None:
    """One more question has its tree, `record`, which adds up to `one`; `session` is the sum of this session's."""
    last = record["key"], len(record["tree"]["N"]), one.simulations, one.right, one.responses, record["ended_by"]
    progress.note("solved", f"{session.solved:,} of {session.trees:,} questions")
    progress.note("last tree", last_tree(*last))
    progress.dollars = lambda: dollars
    progress.advance(tokens=one.cost.sampled_tokens)


@dataclass(slots=True)
class Summary:
    """A sample run's end: what its folder has, and this session's sums.

    status: "complete" or "stopped"; trees, set_aside: of all sessions; teachers: cost by teacher, one a process;
    restarts: workers that were started again; seconds: wall-clock from the first question to the last.
    """

    status: str
    questions: int
    trees: int
    set_aside: list[dict[str, Any]]
    session: Totals
    teachers: list[dict[str, Cost]]
    restarts: int
    seconds: float
    start_seconds: float

    @property
    def dollars(self) -> float:
        """What providers charged in this session."""
        return self.session.cost.dollars + sum(cost.dollars for part in self.teachers for cost in part.values())

    def text(self, folder: Path) -> str:
        """What the terminal shows of the run in `folder`."""
        session, tokens = self.session, self.session.cost.sampled_tokens
        lines = [f"{self.trees:,} of {self.questions:,} questions have a tree in {folder}"]
        if session.trees:
            right = f"{session.right:,} of {session.responses:,} responses are right"
            lines.append(
                f"searched now: {session.trees:,} in {duration(self.seconds)}; {right}, and {session.solved:,} trees have a"
                f" right one; {tokens:,} sampled tokens, {tokens / max(self.seconds, 1e-9):,.0f} a second"
            )
        if session.skipped:
            lines.append(f"{session.skipped:,} trees are empty: the question doesn't fit, or its reward failed")
        if self.set_aside:
            lines.append(f"{len(self.set_aside):,} questions failed three times and are in set_aside.jsonl")
        if self.dollars:
            lines.append(f"the teachers charged ${self.dollars:.4f}")
        return "\n".join(lines)

    def as_dict(self) -> dict[str, Any]:
        """Plain figures: all but `trees` and `set_aside` are this session's."""
        seconds, session = max(self.seconds, 1e-9), self.session
        teachers: dict[str, Cost] = {}
        for part in self.teachers:
            for name, cost in part.items():
                teachers.setdefault(name, Cost()).add(cost)
        return {
            "status": self.status,
            "questions": self.questions,
            "trees": self.trees,
            "set_aside": len(self.set_aside),
            "session_trees": session.trees,
            "skipped": session.skipped,
            "simulations": session.simulations,
            "simulations_saved": session.saved,
            "sampled_tokens": session.cost.sampled_tokens,
            "trees_per_second": round(session.trees / seconds, 3),
            "sampled_tokens_per_second": round(session.cost.sampled_tokens / seconds, 1),
            "responses_right": round(session.right / session.responses, 4) if session.responses else None,
            "solved": round(session.solved / session.trees, 4) if session.trees else None,
            "dollars": round(self.dollars, 6),
            "seconds": round(self.seconds, 1),
            "start_seconds": round(self.start_seconds, 1),
            "restarts": self.restarts,
            "teachers": {name: cost.as_dict() for name, cost in teachers.items()},
        }
