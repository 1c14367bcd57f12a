"""What a finished evaluation says: the printed lines and the exit code, read from the traces that
verifiers wrote.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

from ..files import read_lines

CONFIG, TRACES = "configs/resolved/eval.json", "traces.jsonl"  # of a run, in its folder


@dataclass(slots=True)
class RolloutSummary:
    """Rollouts of one run; `skipped` ones had a prompt beyond the context and score 0. `taught` are
    the steps of their trees that teachers wrote.

    `means`: "reward" for the weighted total, and the names of rewards and metrics, over rollouts
    that ended.
    """

    total: int = 0
    failed: int = 0
    skipped: int = 0
    taught: int = 0
    first_error: str = ""
    means: dict[str, float] = field(default_factory=dict)


def summarise_rollouts(folder: Path) -> RolloutSummary:
    """Read a run's `traces.jsonl` (one episode a line)."""
    summary, sums = RolloutSummary(), defaultdict[str, list[float]](list)
    for episode in read_lines(folder / TRACES):
        summary.total += 1
        traces = episode.get("traces", [])
        if not episode.get("ok"):
            summary.failed += 1
            errors = [error for part in (episode, *traces) for error in part.get("errors", [])]
            said = errors[0].get("message", "") if errors else "no error was recorded"
            summary.first_error = summary.first_error or " ".join(said.split())
            continue
        for trace in traces:
            info = trace.get("info", {})
            summary.skipped += "skipped" in info
            sources = info.get("mcts", {}).get("tree", {}).get("source", [])
            summary.taught += sum(source.startswith("teacher:") for source in sources)
            total, parts = 0.0, dict(trace.get("metrics", {}))
            rewards = [item for item in trace.get("rewards", {}).items() if item[1] is not None]
            for name, part in rewards:
                total += part["score"] * part["weight"]
                if len(rewards) > 1:  # one alone is the total
                    parts[name] = part["score"]
            for name, value in {**parts, "reward": total}.items():
                if value is not None:
                    sums[name].append(value)
    summary.means = {name: sum(values) / len(values) for name, values in sums.items()}
    return summary


def summary_text(summary: RolloutSummary, folder: Path) -> str:
    """The closing lines: rewards, failures, where the traces are."""
    means = sorted(summary.means.items(), key=lambda item: (item[0] != "reward", item))
    rewards = "   ".join(f"{name} {value:.3f}" for name, value in means)
    count = f"{summary.total} rollout{'' if summary.total == 1 else 's'}, {summary.failed} failed"
    if summary.skipped:
        count += f", {summary.skipped} too long for the context (scored 0)"
    return "\n".join(line for line in (rewards, f"{count}; traces: {folder / TRACES}") if line)
