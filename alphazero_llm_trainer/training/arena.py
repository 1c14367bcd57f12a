"""Champion against candidate on held-out problems at equal tokens, and the gate that promotes or rolls back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..config.load import Config
from ..engine.protocol import Verifier
from ..errors import CheckpointError
from ..eval.attempt import MethodContext
from ..eval.cells import Benchmark, run_cell
from ..eval.metrics import Interval, paired_bootstrap, wilson
from ..eval.results import triple
from ..eval.verifiers import Product, load_verifier
from ..policy.student import Student, load_student
from ..policy.value_function import policy_fingerprint
from ..problems.load import opening
from ..types import Task


@dataclass(frozen=True, slots=True)
class Side:
    """A policy and what was trained on its trees: `generation` 0 is the student that the loop started from.

    student: its folder; None takes the configured student's own weights. prm, value: folders, or None.
    weights: the fingerprint of the policy's parameters. own: which of "prm" and "value" it searches under, if any.
    """

    generation: int
    student: Path | None
    prm: Path | None
    value: Path | None
    weights: str
    own: str | None = None

    def load(self, config: Config) -> Student:
        """The policy. Raises CheckpointError when its weights are not the ones that were fingerprinted."""
        student = load_student(config, path=self.student, opening=opening(config))
        if policy_fingerprint(student.model) != self.weights:
            raise CheckpointError(
                f"student {self.student or student.name} has other weights than when the loop used it: restore it or"
                " start another loop"
            )
        return student

    def verifier(self, config: Config, student: Student) -> Verifier:
        """`loop.verifier`, and beside it the side's own PRM or value, where it searches under one."""
        names = [name for name in (config.loop.verifier, self.own) if name not in ("none", None)] or ["none"]
        return load_verifier("+".join(names), student, config, self.prm, self.value)


def meet(
    side: Side,
    config: Config,
    tasks: Sequence[Task],
    method: str,
    stop: Callable[[], bool],
) -> dict[str, Any]:
    """One side's answers to `tasks` by one method within `loop.budget_tokens` each. Raises StoppedError."""
    student = side.load(config)
    verifier = Product(()) if method == "greedy" else side.verifier(config, student)
    benchmark = Benchmark(config.problems.source, tasks)
    budget = config.loop.budget_tokens
    context = MethodContext(student, verifier, config)
    with closing(student.engine):
        cell = asyncio.run(run_cell(context, benchmark, method, budget, stop, lambda tokens: None))
    return {
        "generation": side.generation,
        "method": method,
        "verifier": "none" if method == "greedy" else verifier.name,
        "budget_tokens": budget,
        "problems": len(tasks),
        "data_sha256": benchmark.data_hash,
        "outcomes": cell.outcomes,
        "groups": cell.groups,
        "sampled_tokens": cell.sampled_tokens,
        "scored_tokens": cell.scored_tokens,
        "calls": cell.calls,
        "seconds": round(cell.seconds, 2),
    }


def contest(cells: dict[str, dict[str, Any]], before: str, after: str, seed: int) -> dict[str, Interval]:
    """The paired gain of side `after` over side `before` on the same problems, "greedy" and in "search"."""
    found = {}
    for kind in ("greedy", "search"):
        one, other = cells[f"{after} {kind}"], cells[f"{before} {kind}"]
        found[kind] = paired_bootstrap(right(one), right(other), seed, groups=one.get("groups"))
    return found


def right(cell: dict[str, Any]) -> list[float]:
    """1.0 or 0.0 a problem."""
    return [float(outcome) for outcome in cell["outcomes"]]


def shown(cells: dict[str, dict[str, Any]], gains: dict[str, Interval]) -> dict[str, Any]:
    """Cells with accuracies and the paired gains, intervals as [value, low, high]."""
    result: dict[str, Any] = {}
    for name, cell in cells.items():
        distinct = len(set(cell.get("groups", ()))) or None  # loops of version 0.4 have no groups
        found = wilson(cell["outcomes"].count("1"), cell["problems"], distinct)
        tokens = (cell["sampled_tokens"] + cell["scored_tokens"]) / cell["problems"]
        result[name] = {"accuracy": triple(found), "tokens": round(tokens, 1), **cell}
    return result | {f"gain {kind}": triple(found) for kind, found in gains.items()}


def costs(cells: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """What each cell cost."""
    names = ("sampled_tokens", "scored_tokens", "calls", "seconds")
    return {cell: {name: found[name] for name in names} for cell, found in cells.items()}


@dataclass(frozen=True, slots=True)
class Decision:
    """Whether the candidate becomes the champion, and why."""

    promoted: bool
    why: str


def gate(greedy: Interval, search: Interval, margin: float) -> Decision:
    """Promote a candidate that is better, and not worse by the paired test.

    Args:
        greedy: the candidate's paired gain over the champion, answering greedily, with its 95% interval.
        search: the same, both searching within the same tokens.
        margin: the loss that the greedy interval must exclude (a non-inferiority test at 2.5%).

    All three must hold: the greedy gain is above 0; its interval lies above `-margin`; the search's interval doesn't lie
    below 0. A gain that isn't a number promotes nothing.
    """
    if not greedy.value > 0:
        return Decision(False, f"its greedy answers are not better than the champion's: {greedy:+}")
    if not greedy.low > -margin:
        return Decision(False, f"its greedy answers may be worse by more than {margin:g} (loop.margin): {greedy:+}")
    if not search.high >= 0:
        return Decision(False, f"its search is significantly worse: {search:+}")
    return Decision(True, f"greedy {greedy:+}, search {search:+} over the champion")
