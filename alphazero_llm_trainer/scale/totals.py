"""What a run's trees add up to (counts, cost, how often they were right), and what its user is told of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from ..live import Progress, last_tree
from ..mcts.extract import endings, shortfall
from ..mcts.tree import OUTCOME, Rollout, Tree
from ..types import Cost
from .worker import WorkerStats

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


def tell_tree(progress: Progress, session: Totals, dollars: float, record: Mapping[str, Any]) -> None:
    """One more question has its tree, `record`; `session` is the sum of this session's."""
    alone = Totals()
    alone.add(record)
    last = (record["key"], len(record["tree"]["N"]), alone.simulations, alone.right, alone.responses)
    progress.note("solved", f"{session.solved:,} of {session.trees:,} questions")
    progress.note("last tree", last_tree(*last, record["ended_by"]))
    progress.dollars = lambda: dollars
    progress.advance(tokens=session.cost.sampled_tokens - progress.tokens)


@dataclass(slots=True)
class Summary:
    """A sample run's end: sums over the folder and over this session, and what the session took.

    status: "complete" or "stopped"; set_aside: (question id, reason, attempts) of all sessions; seconds: this session's
    wall-clock from the first question to the last, start-up left out.
    """

    status: str
    questions: int
    folder: Totals
    session: Totals
    stats: WorkerStats
    seconds: float
    start_seconds: float
    set_aside: list[tuple[str, str, int]] = field(default_factory=list)

    @property
    def dollars(self) -> float:
        """What providers charged in this session."""
        return self.session.cost.dollars + sum(cost.dollars for cost in self.stats.teachers.values())

    def as_dict(self) -> dict[str, Any]:
        """Plain figures for `--json`; rates are this session's."""
        seconds, session, folder = max(self.seconds, 1e-9), self.session, self.folder
        return {
            "status": self.status,
            "questions": self.questions,
            "trees": folder.trees,
            "skipped": folder.skipped,
            "set_aside": len(self.set_aside),
            "session_trees": session.trees,
            "trees_per_second": session.trees / seconds,
            "sampled_tokens_per_second": session.cost.sampled_tokens / seconds,
            "simulations": folder.simulations,
            "simulations_saved": folder.saved,
            "sampled_tokens": folder.cost.sampled_tokens,
            "responses_right": folder.right / folder.responses if folder.responses else None,
            "solved": folder.solved / folder.trees if folder.trees else None,
            "dollars": self.dollars,
            "seconds": self.seconds,
            "start_seconds": self.start_seconds,
            **asdict(self.stats),
        }


def table(summary: Summary) -> str:
    """The final figures, one a line. Rates and memory are this session's, the rest is the folder's."""
    facts = summary.as_dict()
    percent = {
        name: "none finished" if facts[name] is None else f"{facts[name]:.1%}" for name in ("responses_right", "solved")
    }
    rows = {
        "trees": f"{facts['trees']:,} of {facts['questions']:,} questions, {facts['trees_per_second']:.2f} a second",
        "simulations": f"{facts['simulations']:,}, {facts['simulations_saved']:,} saved",
        "sampled tokens": f"{facts['sampled_tokens']:,}, {facts['sampled_tokens_per_second']:,.0f} a second",
        "responses right": percent["responses_right"],
        "questions solved": percent["solved"],
        "skipped": f"{facts['skipped']:,}"
        + " (they don't fit the engine, or their reward failed)" * bool(facts["skipped"]),
        "set aside": f"{facts['set_aside']:,}",
        "cost": f"${facts['dollars']:.4f}",
        "seconds": f"{facts['seconds']:.1f} and {facts['start_seconds']:.1f} to start",
        "peak memory": f"{facts['peak_bytes'] / 2**20:,.0f} MiB, all processes",
        "workers restarted": f"{facts['restarts']:,}",
    }
    width = max(map(len, rows))
    lines = [f"{name.ljust(width)}  {value}" for name, value in rows.items()]
    short = shortfall(summary.folder.ends)
    lines += [] if short is None else [short]
    lines += [f"set aside: {key} after {attempts} attempts: {reason}" for key, reason, attempts in summary.set_aside]
    return "\n".join(lines)


def estimate(summary: Summary, questions: int, disk_bytes: int) -> str:
    """What `questions` would take at the rate of a dry run's trees, and `disk_bytes` of disk."""
    trees, sampled = summary.session.trees + summary.session.skipped, summary.session.cost.sampled_tokens
    scale = questions / max(trees, 1)
    seconds = summary.seconds * scale + summary.start_seconds
    dollars = f", ${summary.dollars * scale:.2f}" if summary.dollars else ""
    return (
        f"{trees} trees took {summary.seconds:.1f} s ({trees / max(summary.seconds, 1e-9):.2f} trees/s) and {sampled:,}"
        f" sampled tokens; {questions:,} questions would take about {seconds / 60:.1f} minutes and {sampled * scale:,.0f}"
        f" sampled tokens{dollars}, or less time where more trees share a batch; their trees {disk_bytes / 1e6:,.1f} MB of disk"
    )
