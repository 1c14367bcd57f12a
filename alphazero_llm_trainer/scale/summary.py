"""What a sample run tells its user: each tree while it goes, a table at the end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..live import Progress, last_tree
from ..mcts.extract import shortfall
from ..types import Cost
from .pool import PoolStats
from .totals import Totals


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

    status: "complete", "stopped" or "dry run"; set_aside: (question id, reason, attempts) of all sessions;
    seconds: this session's wall-clock from the first question to the last, start-up left out.
    """

    status: str
    questions: int
    folder: Totals
    session: Totals
    stats: PoolStats
    seconds: float
    start_seconds: float
    set_aside: list[tuple[str, str, int]] = field(default_factory=list)

    @property
    def dollars(self) -> float:
        """What providers charged in this session."""
        return self.session.cost.dollars + sum(cost.dollars for cost in self.stats.teachers.values())

    def as_dict(self) -> dict[str, Any]:
        """Plain figures for `--json`."""
        seconds, session = max(self.seconds, 1e-9), self.session
        return {
            "status": self.status,
            "questions": self.questions,
            "trees": self.folder.trees,
            "skipped": self.folder.skipped,
            "set_aside": len(self.set_aside),
            "session_trees": session.trees,
            "trees_per_second": session.trees / seconds,
            "simulations_per_second": session.simulations / seconds,
            "sampled_tokens_per_second": session.cost.sampled_tokens / seconds,
            "simulations": self.folder.simulations,
            "simulations_saved": self.folder.saved,
            "sampled_tokens": self.folder.cost.sampled_tokens,
            "computed_tokens": self.stats.computed_tokens,
            "responses_right": share(self.folder.right, self.folder.responses),
            "solved": share(self.folder.solved, self.folder.trees),
            "dollars": self.dollars,
            "seconds": self.seconds,
            "start_seconds": self.start_seconds,
            "peak_bytes": self.stats.peak_bytes,
            "restarts": self.stats.restarts,
            "teachers": {name: cost.as_dict() for name, cost in self.stats.teachers.items()},
        }


def share(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def percent(value: float | None) -> str:
    return "none finished" if value is None else f"{value:.1%}"


def table(summary: Summary) -> str:
    """The final figures, one a line. Rates and memory are this session's, the rest is the folder's."""
    facts = summary.as_dict()
    rows = [
        ("trees", f"{facts['trees']:,} of {facts['questions']:,} questions"),
        ("trees/s", f"{facts['trees_per_second']:.2f}"),
        ("simulations/s", f"{facts['simulations_per_second']:,.0f}"),
        ("simulations", f"{facts['simulations']:,}, {facts['simulations_saved']:,} saved"),
        ("sampled tokens/s", f"{facts['sampled_tokens_per_second']:,.0f}"),
        ("sampled tokens", f"{facts['sampled_tokens']:,}"),
        ("computed tokens", f"{facts['computed_tokens']:,} in this session"),
        ("responses right", percent(facts["responses_right"])),
        ("questions solved", percent(facts["solved"])),
        (
            "skipped",
            f"{facts['skipped']:,} (they don't fit the engine, or their reward failed)" if facts["skipped"] else "0",
        ),
        ("set aside", f"{facts['set_aside']:,}"),
        ("cost", f"${facts['dollars']:.4f}"),
        ("seconds", f"{facts['seconds']:.1f} and {facts['start_seconds']:.1f} to start"),
        ("peak memory", f"{facts['peak_bytes'] / 2**20:,.0f} MiB, all processes"),
    ]
    if facts["restarts"]:
        rows.append(("actors restarted", f"{facts['restarts']:,}"))
    width = max(len(name) for name, _ in rows)
    lines = [f"{name.ljust(width)}  {value}" for name, value in rows]
    short = shortfall(summary.folder.ends)
    lines += [] if short is None else [short]
    lines += [f"set aside: {key} after {attempts} attempts: {reason}" for key, reason, attempts in summary.set_aside]
    return "\n".join(lines)


def estimate(summary: Summary, questions: int, disk_bytes: int) -> str:
    """What `questions` would take at the rate of a dry run's trees, and `disk_bytes` of disk."""
    trees = summary.session.trees + summary.session.skipped
    scale = questions / max(trees, 1)
    cost: Cost = summary.session.cost
    seconds = summary.seconds * scale + summary.start_seconds
    dollars = f", ${summary.dollars * scale:.2f}" if summary.dollars else ""
    return (
        f"{trees} trees took {summary.seconds:.1f} s ({trees / max(summary.seconds, 1e-9):.2f} trees/s) and"
        f" {cost.sampled_tokens:,} sampled tokens; {questions:,} questions would take about {seconds / 60:.1f} minutes"
        f" and {cost.sampled_tokens * scale:,.0f} sampled tokens{dollars}, or less time where more trees share a batch;"
        f" their trees {disk_bytes / 1e6:,.1f} MB of disk"
    )
