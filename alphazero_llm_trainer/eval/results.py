"""The folder that keeps finished cells, and the figures that are read off them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from ..config.load import flat
from ..errors import ConfigError, DataError
from ..files import read_object, write_json
from ..problems.grading import Verdict
from .cells import NO_ANSWER, TOO_LONG, Cell
from .metrics import Interval, majority_at_k, mean_interval, paired_bootstrap, pass_at_k, wilson

UNGRADED = (str(Verdict.UNPARSED), str(Verdict.TIMED_OUT), str(Verdict.FAILED), NO_ANSWER, TOO_LONG)
BASELINES = ("greedy", "majority", "best-of-n")
CONTROL = "adaptive-best-of-n"  # what methods that repair steps are held against, too
REPAIRS = ("step-rejection", "beam", "mcts")
KS = (1, 2, 4, 8)
CARD, RESULTS, TABLES = "run.json", "results.json", "results.md"


class EvalFolder:
    """The output of `eval`: run.json (what was asked), cells/*.json (finished work), results.*
    (read off the cells).

    Args:
        path: the folder, made where it is missing.
        identity: what decides a cell's figures; a resumed run's must be the same.
        benchmarks: facts of each benchmark, its rows' hash among them; a resumed run may have
            others beside those that are there, which must be the same.
        resume: go on with what is there.

    Raises:
        ConfigError: another run is there, or its settings differ.
        DataError: what is there can't be read.
    """

    def __init__(
        self, path: Path, identity: Mapping[str, Any], benchmarks: Mapping[str, Any], resume: bool
    ) -> None:
        self.path, self.cells, card = path, path / "cells", path / CARD
        asked = json.loads(json.dumps({"identity": identity, "benchmarks": benchmarks}))
        if card.exists():
            if not resume:
                raise ConfigError(
                    f"--out {path} holds an evaluation already: add --resume to go on with it, or "
                    "name another folder"
                )
            try:
                stored = read_object(card)
                known = stored["benchmarks"]
            except (OSError, ValueError, KeyError) as error:
                raise DataError(
                    f"{card} is not what this version's `eval` wrote: name another folder"
                ) from error
            had, wanted = dict(flat(stored["identity"])), dict(flat(asked["identity"]))
            for name in known.keys() & asked["benchmarks"].keys():
                had |= flat(known[name], f"{name}: ")
                wanted |= flat(asked["benchmarks"][name], f"{name}: ")
            for key in had | wanted:
                if had.get(key) != wanted.get(key):
                    raise ConfigError(
                        f"{key} is {wanted.get(key)!r}, the evaluation in {path} has "
                        f"{had.get(key)!r}: use that"
                        " value, or name another --out"
                    )
            asked["benchmarks"] = known | asked["benchmarks"]
        elif resume:
            raise ConfigError(
                f"--resume found no {CARD} in {path}: name it with --out, or leave --resume out"
            )
        self.cells.mkdir(parents=True, exist_ok=True)
        write_json(card, asked)

    def file(self, benchmark: str, method: str, budget: int) -> Path:
        name = re.sub(r"[^\w.-]+", "_", benchmark)  # a source may be an address
        return self.cells / f"{name}.{method}.{budget}.json"

    def read(self, benchmark: str, method: str, budget: int) -> Cell | None:
        """The finished cell, or None."""
        file = self.file(benchmark, method, budget)
        if not file.exists():
            return None
        try:
            return TypeAdapter(Cell).validate_json(file.read_bytes())
        except (OSError, ValueError) as error:
            fix = "remove it, and --resume measures it again"
            raise DataError(f"{file} is not what this version's `eval` wrote: {fix}") from error

    def write(self, cell: Cell) -> None:
        """Keep a finished cell: whole, or not at all."""
        write_json(self.file(cell.benchmark, cell.method, cell.budget), asdict(cell))


def folder_in(directory: Path, resume: bool) -> Path:
    """The next of `eval-001`, `eval-002`, ... in `directory`; to resume the last one."""
    numbers = [int(path.name[5:]) for path in directory.glob("eval-*") if path.name[5:].isdigit()]
    return directory / f"eval-{max(numbers, default=0) + (not resume):03d}"


# -- figures
# --------------------------------------------------------------------------------------------------


def summary(cell: Cell) -> dict[str, Any]:
    """A cell's row: accuracy with Wilson's interval, means a problem, counts of what was not graded
    as an answer; the mean of the user's own reward where it didn't fail, and how often it did.
    """
    n = len(cell.outcomes)
    counts = {name: cell.verdicts.get(name, 0) for name in UNGRADED}
    names = ("sampled_tokens", "scored_tokens", "cached_tokens", "calls", "seconds")
    row = {
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
        "no_gold": not cell.gold,
        "ended_by": cell.ended_by,
        "outcomes": cell.outcomes,
    }
    known = [reward for reward in cell.rewards if reward is not None]
    if known:
        row |= {
            "reward": triple(mean_interval(known)),
            "failed_rewards": len(cell.rewards) - len(known),
        }
    return row


def triple(interval: Interval) -> list[float]:
    return [interval.value, interval.low, interval.high]


def paired(cells: Sequence[Cell]) -> list[dict[str, Any]]:
    """Mean differences with 95% paired bootstrap intervals at the same budget: every method over
    each baseline, those that repair steps over the control too.
    """
    by_key = {(cell.benchmark, cell.budget, cell.method): cell for cell in cells}
    rows = []
    for cell in cells:
        key = {"benchmark": cell.benchmark, "budget": cell.budget, "method": cell.method}
        for base in (*BASELINES, *([CONTROL] if cell.method in REPAIRS else ())):
            other = by_key.get((cell.benchmark, cell.budget, base))
            if other is not None and base != cell.method:
                gain = paired_bootstrap(cell.right, other.right, groups=cell.groups or None)
                reading = {"good": "gain", "bad": "loss", "": "no gain"}[gain.kind]
                rows.append({**key, "over": base, "gain": triple(gain), "reading": reading})
    return rows


def at_k(cell: Cell) -> dict[str, Any]:
    """pass@k and maj@k for the k that there are samples for, with intervals over problems."""
    row: dict[str, Any] = {"benchmark": cell.benchmark, "samples": cell.budget}
    row["sampled_tokens"] = cell.sampled_tokens / len(cell.correct)
    for k in (k for k in KS if k <= cell.budget):
        row[f"pass@{k}"] = triple(
            mean_interval([pass_at_k(cell.budget, sum(right), k) for right in cell.correct])
        )
        majorities = [
            majority_at_k(answers, right, k, seed)
            for seed, (answers, right) in enumerate(zip(cell.answers, cell.correct, strict=True))
        ]
        row[f"maj@{k}"] = triple(mean_interval(majorities))
    return row
