"""An evaluation's folder and what is read off its cells: intervals and paired differences."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import TypeAdapter

from ..config.load import flat
from ..errors import ConfigError, DataError
from ..files import write_json
from ..problems.grading import Verdict
from .cells import NO_ANSWER, TOO_LONG, Cell
from .metrics import Interval, majority_at_k, mean_interval, paired_bootstrap, pass_at_k, wilson

UNGRADED = (str(Verdict.UNPARSED), str(Verdict.TIMED_OUT), str(Verdict.FAILED), NO_ANSWER, TOO_LONG)
BASELINES = ("greedy", "majority", "best-of-n")
CONTROLS = ("adaptive-best-of-n",)  # what methods that repair steps are held against, too
REPAIRS = ("step-rejection", "beam", "mcts")
KS = (1, 2, 4, 8)
CARD, RESULTS, TABLES = "run.json", "results.json", "results.md"

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class EvalCard:
    """run.json: what decides a cell's figures, and the hash of each benchmark's rows."""

    identity: dict[str, Any]
    data: dict[str, str]
    format: Literal[1]


class EvalFolder:
    """The output of `eval`: run.json (what was asked), cells/*.json (finished work), results.* (read off the cells).

    Args:
        path: the folder, made where it is missing.
        identity: what decides a cell's figures; a resumed run's must be the same.
        data: benchmark -> hash of its rows; a resumed run may have other benchmarks, not other rows.
        resume: go on with what is there.

    Raises:
        ConfigError: another run is there, or its settings differ.
        DataError: what is there can't be read.
    """

    def __init__(self, path: Path, identity: Mapping[str, Any], data: Mapping[str, str], resume: bool) -> None:
        self.path, self.cells, card = path, path / "cells", path / CARD
        asked = EvalCard(json.loads(json.dumps(identity)), dict(data), 1)
        if card.exists():
            if not resume:
                raise ConfigError(
                    f"--out {path} holds an evaluation already: add --resume to go on with it, or name another folder"
                )
            stored = read_as(EvalCard, card, "name another folder")
            self._same(stored, asked)
            asked = EvalCard(asked.identity, stored.data | asked.data, 1)
        elif resume:
            raise ConfigError(f"--resume found no {CARD} in {path}: leave --resume out to start there")
        self.cells.mkdir(parents=True, exist_ok=True)
        write_json(card, asdict(asked))

    def _same(self, stored: EvalCard, asked: EvalCard) -> None:
        """Raise ConfigError where what was measured is something else than what is asked for."""
        had, wanted = dict(flat(stored.identity)), dict(flat(asked.identity))
        for key in had | wanted:
            if had.get(key) != wanted.get(key):
                raise ConfigError(
                    f"{key} is {wanted.get(key)!r}, the evaluation in {self.path} has {had.get(key)!r}: use that value, or"
                    " name another --out"
                )
        for name, digest in asked.data.items():
            if stored.data.get(name, digest) != digest:
                raise ConfigError(
                    f"benchmark {name} has other problems than the evaluation in {self.path}: name another --out"
                )

    def file(self, benchmark: str, method: str, budget: int) -> Path:
        name = re.sub(r"[^\w.-]+", "_", benchmark)  # a source may be an address
        return self.cells / f"{name}.{method}.{budget}.json"

    def read(self, benchmark: str, method: str, budget: int) -> Cell | None:
        """The finished cell, or None."""
        file = self.file(benchmark, method, budget)
        return read_as(Cell, file, "remove it, and --resume measures it again") if file.exists() else None

    def write(self, cell: Cell) -> None:
        """Keep a finished cell: whole, or not at all."""
        write_json(self.file(cell.benchmark, cell.method, cell.budget), asdict(cell))


def read_as(kind: type[T], file: Path, fix: str) -> T:
    """What `eval` wrote, or DataError naming the file."""
    try:
        return TypeAdapter(kind).validate_json(file.read_bytes())
    except (OSError, ValueError) as error:
        raise DataError(f"{file} is not what this version's `eval` wrote: {fix}") from error


def folder_in(directory: Path, resume: bool) -> Path:
    """The next of `eval-001`, `eval-002`, ... in `directory`; to resume the last one, or ConfigError where none is."""
    numbers = {int(path.name[5:]): path for path in directory.glob("eval-*") if path.name[5:].isdigit()}
    if not resume:
        return directory / f"eval-{max(numbers, default=0) + 1:03d}"
    made = [number for number, path in numbers.items() if (path / CARD).exists()]
    if not made:
        raise ConfigError(f"--resume found no evaluation in {directory}: name it with --out, or leave --resume out")
    return numbers[max(made)]


# -- figures -----------------------------------------------------------------------------------------------------------


def summary(cell: Cell) -> dict[str, Any]:
    """A cell's row: accuracy with Wilson's interval, means a problem, counts of what was not graded as an answer."""
    n = len(cell.outcomes)
    counts = {name: cell.verdicts.get(name, 0) for name in UNGRADED}
    names = ("sampled_tokens", "scored_tokens", "cached_tokens", "calls", "seconds")
    return {
        "benchmark": cell.benchmark,
        "budget": cell.budget,
        "method": cell.method,
        "problems": n,
        "accuracy": triple(wilson(cell.outcomes.count("1"), n, cell.distinct)),
        **{name: getattr(cell, name) / n for name in names},
        "most_tokens": max(cell.tokens),
        **counts,
        "unjudged": cell.unjudged,
        "f1": None if cell.f1 is None else cell.f1 / n,
        **mean_reward(cell.rewards),
        **({} if cell.gold else {"no_gold": True}),
        "ended_by": cell.ended_by,
        "outcomes": cell.outcomes,
    }


def averages(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The mean accuracy of each method and budget over several benchmarks that have gold answers, each of equal weight;
    nothing of one. The benchmarks' intervals are of separate problems: half of the mean's is the root of the sum of their
    halves' squares over their number."""
    by_method: dict[tuple[int, str], list[Mapping[str, Any]]] = {}
    for row in rows:
        if not row.get("no_gold"):
            by_method.setdefault((row["budget"], row["method"]), []).append(row)
    several = []
    for (budget, method), of_method in by_method.items():
        count = len(of_method)
        if count < 2:
            continue
        mean = sum(row["accuracy"][0] for row in of_method) / count
        below, above = (
            math.sqrt(sum((row["accuracy"][0] - row["accuracy"][side]) ** 2 for row in of_method)) / count
            for side in (1, 2)
        )
        names = [row["benchmark"] for row in of_method]
        accuracy = [mean, max(mean - below, 0.0), min(mean + above, 1.0)]
        several.append({"budget": budget, "method": method, "benchmarks": names, "accuracy": accuracy})
    return several


def mean_reward(rewards: Sequence[float | None]) -> dict[str, Any]:
    """The user's own reward over the problems where it didn't fail, with its interval, and how many those are not; nothing
    without one."""
    known = [reward for reward in rewards if reward is not None]
    if not known:
        return {}
    return {"reward": triple(mean_interval(known)), "failed_rewards": len(rewards) - len(known)}


def triple(interval: Interval) -> list[float]:
    return [interval.value, interval.low, interval.high]


def paired(cells: Sequence[Cell]) -> list[dict[str, Any]]:
    """Mean differences with 95% paired bootstrap intervals at the same budget: every method over each baseline, those that
    repair steps over the controls too."""
    by_key = {(cell.benchmark, cell.budget, cell.method): cell for cell in cells}
    rows = []
    for cell in cells:
        for base in (*BASELINES, *(CONTROLS if cell.method in REPAIRS else ())):
            other = by_key.get((cell.benchmark, cell.budget, base))
            if other is not None and base != cell.method:
                gain = paired_bootstrap(cell.right, other.right, groups=cell.groups or None)
                rows.append(
                    {
                        "benchmark": cell.benchmark,
                        "budget": cell.budget,
                        "method": cell.method,
                        "over": base,
                        "gain": triple(gain),
                        "reading": "gain" if gain.low > 0 else "loss" if gain.high < 0 else "no gain",
                    }
                )
    return rows


def at_k(cell: Cell) -> dict[str, Any]:
    """pass@k and maj@k for the k that there are samples for, with intervals over problems."""
    rows: dict[str, Any] = {"benchmark": cell.benchmark, "samples": cell.budget}
    rows["sampled_tokens"] = cell.sampled_tokens / len(cell.correct)
    for k in (k for k in KS if k <= cell.budget):
        passes = [pass_at_k(cell.budget, sum(row), k) for row in cell.correct]
        majorities = [
            majority_at_k(answers, row, k, seed)
            for seed, (answers, row) in enumerate(zip(cell.answers, cell.correct, strict=True))
        ]
        for name, values in (("pass", passes), ("maj", majorities)):
            rows[f"{name}@{k}"] = triple(mean_interval(values))
    return rows
