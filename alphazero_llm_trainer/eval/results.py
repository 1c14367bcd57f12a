"""The folder that keeps finished cells, and the figures that are read off them."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import fmean

from ..errors import DataError
from ..files import Folder, read_object, write_json, write_whole
from ..grading.graders import Verdict
from ..types import OF_WORLDS, Facts, JsonObject
from .cells import COSTS, NO_ANSWER, Cell
from .methods import REFUSED, TOO_LONG
from .metrics import Interval, mean_interval, paired_bootstrap, pass_at_k, wilson

UNGRADED = (
    *map(str, (Verdict.UNPARSED, Verdict.TIMED_OUT, Verdict.FAILED)),
    *(NO_ANSWER, TOO_LONG, REFUSED),
)
BASELINES = ("greedy", "majority", "best-of-n")
CONTROL = "adaptive-best-of-n"  # what methods that repair steps are held against, too
REPAIRS = ("step-rejection", "beam", "mcts")
KS = (1, 2, 4, 8)
ANSWERS = "answers.jsonl"
FAILURES = 10  # that the page shows


class EvalFolder(Folder):
    """The output of `eval`: cells/*.json (finished work and what decided it), results.* and
    answers.jsonl (read off the cells). One that isn't finished goes on without --resume, too.
    """

    kind, files = "eval", ("cells", "results.json")

    def begin(self, identity: Facts, benchmarks: Facts) -> None:
        """Remember what finished cells must agree with to be used again: `identity` for all of
        them, and for those of a benchmark its entry in `benchmarks` (the hash of its rows).
        """
        self.cells, self.identity, self.benchmarks = self.path / "cells", identity, benchmarks
        self.cells.mkdir(parents=True, exist_ok=True)

    def cell_identity(self, benchmark: str) -> JsonObject:
        """What a finished cell of a benchmark must agree with to be used again."""
        return {**self.identity, **self.benchmarks[benchmark]}

    def file(self, benchmark: str, method: str, budget: int) -> Path:
        name = re.sub(r"[^\w.-]+", "_", benchmark)  # a source may be an address
        return self.cells / f"{name}.{method}.{budget}.json"

    def read(self, benchmark: str, method: str, budget: int) -> Cell | None:
        """The finished cell, or None. Raises ConfigError where something else decided it."""
        file = self.file(benchmark, method, budget)
        if not file.exists():
            return None
        try:
            stored = read_object(file)
            had = dict(stored.pop("asked"))
            cell = Cell(**stored)
        except (OSError, ValueError, KeyError, TypeError) as error:
            fix = "remove it, and --resume measures it again"
            raise DataError(f"{file} is not what this version's `eval` wrote: {fix}") from error
        self.check_same(had, self.cell_identity(benchmark))
        return cell

    def write(self, cell: Cell) -> None:
        """Keep a finished cell: whole, or not at all."""
        file = self.file(cell.benchmark, cell.method, cell.budget)
        write_json(file, {**asdict(cell), "asked": self.cell_identity(cell.benchmark)})

    def write_answers(self, cells: Sequence[Cell]) -> None:
        """Every answer of every cell, one a line."""
        lines = [
            json.dumps(
                {"source": cell.benchmark, "method": cell.method, "budget": cell.budget, **row}
            )
            for cell in cells
            for row in cell.answers
        ]
        write_whole(self.path / ANSWERS, "".join(f"{line}\n" for line in lines))


# -- figures ---------------------------------------------------------------------------------------


def summarise_cell(cell: Cell) -> JsonObject:
    """A cell's row: accuracy with Wilson's interval, means a problem, counts of what was not graded
    as an answer; the mean of the user's own reward where it didn't fail, and how often it did.
    """
    n = len(cell.outcomes)
    counts = {name: cell.verdicts.get(name, 0) for name in UNGRADED}
    row = {
        **cell.key,
        "problems": n,
        "accuracy": interval_triple(wilson(cell.outcomes.count("1"), n, cell.distinct)),
        **{name: getattr(cell, name) / n for name in (*COSTS, "seconds")},
        "most_tokens": max(cell.tokens),
        **counts,
        "unjudged": cell.unjudged,
        "f1": None if cell.f1 is None else cell.f1 / n,
        "no_gold": not cell.gold,
        "cut": cell.cut,
        "ended_by": cell.ended_by,
        "outcomes": cell.outcomes,
        "unanswered": cell.unanswered,
        "silent": cell.silent,
        "refusals": cell.refused,
    }
    if cell.turns or cell.given_tokens:
        row |= {name: getattr(cell, name) / n for name in OF_WORLDS}
    known = [reward for reward in cell.rewards if reward is not None]
    if known:
        row |= {
            "reward": interval_triple(mean_interval(known)),
            "failed_rewards": len(cell.rewards) - len(known),
        }
    return row


def interval_triple(interval: Interval) -> list[float]:
    return [interval.value, interval.low, interval.high]


def pair_methods(cells: Sequence[Cell]) -> list[JsonObject]:
    """Mean differences with 95% paired bootstrap intervals at the same budget: every method over
    each baseline, those that repair steps over the control too. Without gold there are none, and
    none of a cell whose answers were cut.
    """
    compared = [cell for cell in cells if cell.gold and not cell.cut]
    by_key = {(*cell.key.values(),): cell for cell in compared}
    rows = []
    for cell in by_key.values():
        for base in (*BASELINES, *([CONTROL] if cell.method in REPAIRS else ())):
            other = by_key.get((cell.benchmark, cell.budget, base))
            if other is not None and base != cell.method:
                gain = paired_bootstrap(cell.right, other.right, groups=cell.groups or None)
                reading = {"good": "gain", "bad": "loss", "": "no gain"}[gain.kind]
                rows.append(
                    {**cell.key, "over": base, "gain": interval_triple(gain), "reading": reading}
                )
    return rows


def find_leaders(cells: Sequence[Cell]) -> list[JsonObject]:
    """By benchmark and budget the method with the highest mean, the cheaper one of equals, and
    after it those that it isn't shown to be better than: the paired interval of the difference
    holds 0. Rewards are compared where there is no gold. None of a cell whose answers were cut.
    """
    by_budget = defaultdict[tuple[str, int], list[Cell]](list)
    for cell in cells:
        if not cell.cut:
            by_budget[cell.benchmark, cell.budget].append(cell)
    rows = []
    for (benchmark, budget), group in by_budget.items():
        group.sort(key=lambda cell: (-fmean(cell.values), sum(cell.tokens)))
        best = group[0]
        names = [
            cell.method
            for cell in group
            if cell is best
            or not paired_bootstrap(best.values, cell.values, groups=cell.groups or None).low > 0
        ]
        rows.append({"benchmark": benchmark, "budget": budget, "methods": names})
    return rows


def list_failures(cells: Sequence[Cell]) -> dict[str, JsonObject]:
    """By benchmark the first `FAILURES` problems that were not answered right, by the leader at the
    largest budget; nothing where no problem has a gold answer.
    """
    by_key = {(*cell.key.values(),): cell for cell in cells if cell.gold}
    found = {}
    for row in sorted(find_leaders(cells), key=lambda row: row["budget"]):
        cell = by_key.get((row["benchmark"], row["budget"], row["methods"][0]))
        if cell is not None:
            wrong = [
                row for row, one in zip(cell.answers, cell.outcomes, strict=True) if one != "1"
            ]
            facts = {"method": cell.method, "budget": cell.budget, "count": len(wrong)}
            found[cell.benchmark] = {**facts, "answers": wrong[:FAILURES]}
    return found


def pass_rows(cell: Cell) -> JsonObject:
    """pass@k for the k that there are samples for, with intervals over problems."""
    row: JsonObject = {"benchmark": cell.benchmark, "samples": cell.budget}
    row["no_gold"] = not cell.gold
    row["sampled_tokens"] = cell.sampled_tokens / len(cell.correct)
    row["refusals"] = cell.refused
    for k in (k for k in KS if k <= cell.budget):
        chances = [pass_at_k(cell.budget, sum(right), k) for right in cell.correct]
        row[f"pass@{k}"] = interval_triple(mean_interval(chances))
    return row
