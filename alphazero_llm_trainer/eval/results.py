"""An evaluation's folder and what is read off its cells: intervals and paired differences."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter

from ..config.load import flat
from ..errors import ConfigError, DataError
from ..files import read_object, refused, write_json
from ..problems.grading import Verdict
from .cells import NO_ANSWER, TOO_LONG, Cell, Samples
from .metrics import Interval, majority_at_k, mean_interval, paired_bootstrap, pass_at_k, wilson

FORMAT = 1
UNGRADED = (str(Verdict.UNPARSED), str(Verdict.TIMED_OUT), str(Verdict.FAILED), NO_ANSWER, TOO_LONG)
BASELINES = ("greedy", "majority", "best-of-n")
CONTROLS = ("adaptive-best-of-n", "early-abort")  # what methods that repair steps are held against, too
REPAIRS = ("step-rejection", "beam", "mcts")
KS = (1, 2, 4, 8)
C = TypeVar("C", Cell, Samples)
CELL, SAMPLES = TypeAdapter(Cell), TypeAdapter(Samples)
CARD, RESULTS, TABLES = "run.json", "results.json", "results.md"


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
        self.path = path
        self.cells = path / "cells"
        identity, card = json.loads(json.dumps(identity)), path / CARD
        stored: dict[str, Any] = {"data": {}}
        if card.exists():
            if not resume:
                raise ConfigError(
                    f"--out {path} holds an evaluation already: add --resume to go on with it, or name another folder"
                )
            stored = read_json(card)
            self._same(stored, identity, data)
        elif resume:
            raise ConfigError(f"--resume found no {CARD} in {path}: leave --resume out to start there")
        self.facts = {"format": FORMAT, "identity": identity, "data": {**stored["data"], **data}}
        try:
            self.cells.mkdir(parents=True, exist_ok=True)
            write_json(card, self.facts)
        except OSError as error:
            raise refused("--out", path, error, "name a writable folder") from error

    def _same(self, stored: Mapping[str, Any], identity: Mapping[str, Any], data: Mapping[str, str]) -> None:
        if stored.get("format") != FORMAT:
            raise DataError(f"{self.path / CARD} is not an evaluation of format {FORMAT}: name another folder")
        if not isinstance(stored.get("identity"), dict) or not isinstance(stored.get("data"), dict):
            raise DataError(f"{self.path / CARD} has no identity or data: name another folder")
        had, asked = dict(flat(stored["identity"])), dict(flat(identity))
        for key in had | asked:
            if had.get(key) != asked.get(key):
                raise ConfigError(
                    f"{key} is {asked.get(key)!r}, the evaluation in {self.path} has {had.get(key)!r}: use that value, or"
                    " name another --out"
                )
        for name, digest in data.items():
            if stored["data"].get(name, digest) != digest:
                raise ConfigError(
                    f"benchmark {name} has other problems than the evaluation in {self.path}: name another --out"
                )

    def file(self, benchmark: str, method: str, budget: int) -> Path:
        name = re.sub(r"[^\w.-]+", "_", benchmark)  # a source may be an address
        return self.cells / f"{name}.{method}.{budget}.json"

    def read(self, benchmark: str, method: str, budget: int) -> Cell | None:
        """The finished cell, or None."""
        file = self.file(benchmark, method, budget)
        return read_cell(file, CELL) if file.exists() else None

    def read_samples(self, benchmark: str, samples: int) -> Samples | None:
        file = self.file(benchmark, "samples", samples)
        return read_cell(file, SAMPLES) if file.exists() else None

    def write(self, cell: Cell | Samples) -> None:
        """Keep a finished cell: whole, or not at all."""
        key = ("samples", cell.samples) if isinstance(cell, Samples) else (cell.method, cell.budget)
        write_json(self.file(cell.benchmark, *key), cell.as_dict())


def read_json(file: Path) -> dict[str, Any]:
    """A JSON object, or DataError naming the file."""
    try:
        return read_object(file)
    except (OSError, ValueError) as error:
        raise DataError(f"{file} is not a readable JSON object: remove it, or name another folder") from error


def read_cell(file: Path, kind: TypeAdapter[C]) -> C:
    """A cell. Raises DataError where the file holds none."""
    try:
        # As JSON: read strictly, a mapping in Python is no dataclass.
        found: C = kind.validate_json(json.dumps(read_object(file)), strict=True)
    except (OSError, ValueError) as error:
        raise DataError(
            f"{file} is not a cell as it was measured: remove it, and --resume measures it again"
        ) from error
    return found


def next_folder(directory: Path) -> Path:
    """The next of `eval-001`, `eval-002`, ... in `directory`."""
    return directory / f"eval-{max(_numbers(directory), default=0) + 1:03d}"


def newest_folder(directory: Path) -> Path:
    """The last of them. Raises ConfigError where there is none."""
    numbers = [number for number in _numbers(directory) if (directory / f"eval-{number:03d}" / CARD).exists()]
    if not numbers:
        raise ConfigError(f"--resume found no evaluation in {directory}: name it with --out, or leave --resume out")
    return directory / f"eval-{max(numbers):03d}"


def _numbers(directory: Path) -> list[int]:
    return [int(path.name[5:]) for path in directory.glob("eval-*") if path.name[5:].isdigit()]


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


def at_k(found: Samples) -> dict[str, Any]:
    """pass@k and maj@k for the k that there are samples for, with intervals over problems."""
    rows: dict[str, Any] = {"benchmark": found.benchmark, "samples": found.samples}
    rows["sampled_tokens"] = found.sampled_tokens / len(found.correct)
    for k in (k for k in KS if k <= found.samples):
        passes = [pass_at_k(found.samples, sum(row), k) for row in found.correct]
        majorities = [
            majority_at_k(answers, row, k, seed)
            for seed, (answers, row) in enumerate(zip(found.answers, found.correct, strict=True))
        ]
        for name, values in (("pass", passes), ("maj", majorities)):
            rows[f"{name}@{k}"] = triple(mean_interval(values))
    return rows
