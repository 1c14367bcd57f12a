"""An evaluation's folder and what is read off its cells: intervals, paired differences, tables, plain sentences."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..config.load import flat
from ..errors import ConfigError, DataError
from ..problems.grading import Verdict
from ..train.checkpoint import write_whole
from .compare import NO_ANSWER, TOO_LONG, Cell, Samples
from .metrics import Interval, majority_at_k, paired_bootstrap, pass_at_k, wilson

FORMAT = 1
UNGRADED = (str(Verdict.UNPARSED), str(Verdict.TIMED_OUT), NO_ANSWER, TOO_LONG)
BASELINES = ("greedy", "majority", "best-of-n")
CONTROLS = ("adaptive-best-of-n", "early-abort")  # what methods that repair steps are held against, too
REPAIRS = ("step-rejection", "beam", "mcts")
KS = (1, 2, 4, 8)
CARD, RESULTS, TABLES, FIGURE = "run.json", "results.json", "results.md", "accuracy_over_tokens.png"


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
            raise ConfigError(f"--out {path} can't be written ({error.strerror}): name a writable folder") from error

    def _same(self, stored: Mapping[str, Any], identity: Mapping[str, Any], data: Mapping[str, str]) -> None:
        if stored.get("format") != FORMAT:
            raise DataError(f"{self.path / CARD} is not an evaluation of format {FORMAT}: name another folder")
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
        return self.cells / f"{benchmark}.{method}.{budget}.json"

    def read(self, benchmark: str, method: str, budget: int) -> Cell | None:
        """The finished cell, or None."""
        file = self.file(benchmark, method, budget)
        return Cell(**read_json(file)) if file.exists() else None

    def read_samples(self, benchmark: str, samples: int) -> Samples | None:
        file = self.file(benchmark, "samples", samples)
        return Samples(**read_json(file)) if file.exists() else None

    def write(self, cell: Cell | Samples) -> None:
        """Keep a finished cell: whole, or not at all."""
        key = ("samples", cell.samples) if isinstance(cell, Samples) else (cell.method, cell.budget)
        write_json(self.file(cell.benchmark, *key), cell.as_dict())


def read_json(file: Path) -> dict[str, Any]:
    """A JSON object, or DataError naming the file."""
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"{file} is not readable JSON: remove it, or name another folder") from error
    if not isinstance(found, dict):
        raise DataError(f"{file} holds no JSON object: remove it, or name another folder")
    return found


def write_json(file: Path, value: Mapping[str, Any]) -> None:
    write_whole(file, json.dumps(value, indent=1, allow_nan=False) + "\n")


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
        "accuracy": triple(wilson(cell.outcomes.count("1"), n)),
        **{name: getattr(cell, name) / n for name in names},
        "most_tokens": max(cell.tokens),
        **counts,
        "f1": None if cell.f1 is None else cell.f1 / n,
        "ended_by": cell.ended_by,
        "outcomes": cell.outcomes,
    }


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
                gain = paired_bootstrap(cell.right, other.right)
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
    """pass@k and maj@k for the k that there are samples for; Wilson's intervals where every problem has 0 or 1, else
    bootstrap intervals over problems."""
    rows: dict[str, Any] = {"benchmark": found.benchmark, "samples": found.samples}
    rows["sampled_tokens"] = found.sampled_tokens / len(found.correct)
    for k in (k for k in KS if k <= found.samples):
        passes = [pass_at_k(found.samples, sum(row), k) for row in found.correct]
        majorities = [
            majority_at_k(answers, row, k, seed)
            for seed, (answers, row) in enumerate(zip(found.answers, found.correct, strict=True))
        ]
        for name, values in (("pass", passes), ("maj", majorities)):
            certain = set(values) <= {0.0, 1.0}
            of_all = wilson(round(sum(values)), len(values)) if certain else mean_interval(values)
            rows[f"{name}@{k}"] = triple(of_all)
    return rows


def mean_interval(values: Sequence[float]) -> Interval:
    """The mean of one number a problem with its 95% bootstrap interval."""
    return paired_bootstrap(values, [0.0] * len(values))


def sentences(pairs: Sequence[Mapping[str, Any]], verifier: str) -> list[str]:
    """What the comparison says of the methods that judge before they are done, and of their controls, in words."""
    return [
        f"{row['reading']}: {row['method']} ({verifier}) over {row['over']} on {row['benchmark']} at {row['budget']}"
        f" tokens: {signed(row['gain'])}"
        for row in pairs
        if row["method"] in (*CONTROLS, *REPAIRS)
    ]


def signed(gain: Sequence[float]) -> str:
    """`+0.003 [-0.010, +0.020]`."""
    if any(math.isnan(number) for number in gain):
        return "unknown"
    return f"{gain[0]:+.3f} [{gain[1]:+.3f}, {gain[2]:+.3f}]"


def interval(found: Sequence[float]) -> str:
    return f"{found[0]:.3f} [{found[1]:.3f}, {found[2]:.3f}]"


# -- tables ------------------------------------------------------------------------------------------------------------


def markdown(results: Mapping[str, Any]) -> str:
    """results.md: a table a benchmark, pass@k and maj@k, the fitted combination, and the sentences."""
    lines = [
        f"# Evaluation at equal tokens: {results['student']}, verifier {results['verifier']}",
        "",
        f"`{results['command']}`",
        "",
        "A budget is sampled plus scored tokens a problem, and no method spent more. Accuracies have Wilson 95% intervals,",
        "differences 95% paired bootstrap intervals over the same problems. Figures are means a problem.",
    ]
    for name, facts in results["benchmarks"].items():
        lines += ["", f"## {name}: {facts['problems']:,} problems", ""]
        lines += _accuracy_table(results, name)
        combination = facts.get("combination")
        if combination is not None:
            lines += ["", *_combination(combination)]
        for row in results["at_k"]:
            if row["benchmark"] == name:
                lines += ["", *_at_k_table(row)]
    lines += ["", "## What it says", "", *(f"- {text}" for text in results["sentences"])]
    return "\n".join(lines) + "\n"


def _accuracy_table(results: Mapping[str, Any], benchmark: str) -> list[str]:
    pairs = {
        (row["budget"], row["method"], row["over"]): row["gain"]
        for row in results["pairs"]
        if row["benchmark"] == benchmark
    }
    rows = [row for row in results["rows"] if row["benchmark"] == benchmark]
    bases = [base for base in (*BASELINES, *CONTROLS) if any(over == base for _, _, over in pairs)]
    head = ["budget", "method", "accuracy [95%]", "sampled", "scored", "cached", "calls", "ms"]
    head += [*UNGRADED, *(f"over {base}" for base in bases)]
    with_f1 = any(row["f1"] is not None for row in rows)
    table = [[*head, *(["F1"] * with_f1)]]
    for row in rows:
        line = [f"{row['budget']:,}", row["method"], interval(row["accuracy"])]
        line += [f"{row[name]:.1f}" for name in ("sampled_tokens", "scored_tokens", "cached_tokens", "calls")]
        line += [f"{1000 * row['seconds']:.1f}", *(f"{row[k]}" for k in UNGRADED)]
        gains = [pairs.get((row["budget"], row["method"], base)) for base in bases]
        line += ["" if gain is None else signed(gain) for gain in gains]
        table.append([*line, *([f"{row['f1'] or 0.0:.3f}"] * with_f1)])
    return grid(table)


def _at_k_table(row: Mapping[str, Any]) -> list[str]:
    ks = [k for k in KS if k <= row["samples"]]
    table = [["", *(f"k = {k}" for k in ks)]]
    table += [[f"{name}@k", *(interval(row[f"{name}@{k}"]) for k in ks)] for name in ("pass", "maj")]
    return [f"{row['samples']} samples at T = 1, {row['sampled_tokens']:.1f} tokens a problem:", "", *grid(table)]


def _combination(facts: Mapping[str, Any]) -> list[str]:
    aucs = ", ".join(f"{name} {value:.3f}" for name, value in facts["held_out_auc"].items())
    lines = [
        f"The combination was fitted on {facts['responses']:,} responses to {facts['problems']:,} validation problems"
        f" ({facts['right']:.0%} right). AUC on a held-out fifth of them: {aucs}."
    ]
    for part in ("response", "step"):
        weights = ", ".join(f"{name} {value:+.2f}" for name, value in facts[part].items())
        lines.append(f"Weights of a {part} (standardised): {weights}.")
    return lines


def grid(table: Sequence[Sequence[str]]) -> list[str]:
    """A Markdown table with aligned columns; the first row is its head."""
    widths = [max(len(row[i]) for row in table) for i in range(len(table[0]))]
    lines = ["| " + " | ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)) + " |" for row in table]
    lines.insert(1, "|" + "|".join("-" * (w + 2) for w in widths) + "|")
    return lines
