"""Two training runs beside each other: what differs in their configuration, cost and results, paired by problem."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..config.load import flat
from ..errors import DataError
from ..eval.metrics import Interval, paired_bootstrap
from ..training.checkpoint import read_lines
from .folder import ANSWERS, RUN, load
from .tables import columns
from .training import accuracy, flips

Card = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Finished:
    """A finished training run: its folder's name, run.json, and the lines of test.jsonl."""

    name: str
    card: Card
    answers: Sequence[Card]

    @property
    def dollars(self) -> float:
        """What the search and the teachers charged."""
        teachers = (self.card.get("teachers") or {}).values()
        spent = sum(teacher.get("cost", {}).get("dollars", 0.0) for teacher in teachers)
        return self.card["search_cost"]["dollars"] + spent


def load_runs(folders: Sequence[Path]) -> list[Finished]:
    """The runs of folders.

    Raises:
        DataError: a folder is not a training run's, or the run isn't finished.
    """
    found = []
    for folder in folders:
        card = load(folder / RUN)
        if card is None or "method" not in card:
            raise DataError(f"{folder} has no run.json of a training run: name a folder such as checkpoints/run-001")
        after = card.get("after")
        if not isinstance(after, dict) or after.get("accuracy") is None:
            raise DataError(f"{folder} has no test result: resume it to its end, or train with --eval-size above 0")
        name = folder.name if len({each.name for each in folders}) > 1 else str(folder)
        found.append(Finished(name, card, read_lines(folder / ANSWERS)))
    return found


def difference(one: Card, other: Card) -> tuple[Interval, bool]:
    """Accuracy of `other` minus that of `one` after training, and whether it is paired by problem.

    Runs are paired where both were evaluated on the same problems: the same source, levels, split and number.
    """
    left, right = one["after"]["correct"], other["after"]["correct"]
    if tested(one) == tested(other):
        return paired_bootstrap(right, left), True
    value = sum(right) / len(right) - sum(left) / len(left)
    spreads = [accuracy(card["after"]) for card in (one, other)]
    half = sum(((spread.high - spread.low) / 2) ** 2 for spread in spreads) ** 0.5
    return Interval(value, max(-1.0, value - half), min(1.0, value + half)), False


def tested(card: Card) -> tuple[Any, ...]:
    """What decides which test problems a run was evaluated on."""
    config = card["config"]
    problems = config["problems"]
    split = problems["source"], problems["levels"], problems.get("hold_out", "questions")
    return *split, config["dataset"], card["after"]["problems"]


def rows_of(runs: Sequence[Finished]) -> list[tuple[str, ...]]:
    """The table's rows: what both runs are, reached and took."""
    cards = [run.card for run in runs]
    return [
        ("student, method, seed", *(f"{card['student']}, {card['method']}, {card['seed']}" for card in cards)),
        ("questions", *(f"{card['questions']:,}" for card in cards)),
        ("before [95%]", *(str(accuracy(card["before"])) for card in cards)),
        ("after [95%]", *(str(accuracy(card["after"])) for card in cards)),
        ("gain, paired", *(f"{Interval(**card['gain']):+}" for card in cards)),
        ("tokens an answer", *(f"{card['after']['tokens'] / card['after']['problems']:.1f}" for card in cards)),
        ("sampled in training", *(f"{card['search_cost']['sampled_tokens']:,}" for card in cards)),
        ("dollars", *(f"{run.dollars:.4f}" for run in runs)),
        ("seconds of training", *(f"{card['seconds']['training']:,.0f}" for card in cards)),
        ("kept", *(card["kept"] for card in cards)),
    ]


def differing(one: Card, other: Card) -> list[tuple[str, str, str]]:
    """The configuration keys that differ, with both values. Keys that only one run's version knew are left out."""
    left, right = dict(flat(one["config"])), dict(flat(other["config"]))
    keys = [key for key in left if key in right and left[key] != right[key]]
    return [(key, str(left[key]), str(right[key])) for key in keys]


def sentence(runs: Sequence[Finished]) -> tuple[str, str]:
    """Which run is ahead, in words, and whether that is "good" or "bad" for the second."""
    one, other = runs
    found, paired = difference(one.card, other.card)
    how = "paired over the same problems" if paired else "the test problems differ, so this is not paired"
    said = {"good": "is above", "bad": "is below", "": "is not clearly different from"}[found.kind]
    return f"{other.name} {said} {one.name}: {found:+}, {how}", found.kind


def comparison_text(runs: Sequence[Finished]) -> str:
    """What the terminal shows: the verdict, the table, what differs and how many problems flipped."""
    names, differences = [run.name for run in runs], differing(runs[0].card, runs[1].card)
    blocks = [f"{sentence(runs)[0]}\n{columns([('', *names), *rows_of(runs)], left=3)}"]
    blocks += [columns([("differs", *names), *differences], left=3)] if differences else []
    blocks += [flips(found, *names)[0]] if (found := answered(runs)) else []
    return "\n\n".join(blocks)


def comparison_facts(runs: Sequence[Finished]) -> dict[str, Any]:
    """What `comparison_text` says, for programs: the difference after training, and the table by run."""
    found, paired = difference(runs[0].card, runs[1].card)
    table = rows_of(runs)
    return {
        "difference": {"value": found.value, "low": found.low, "high": found.high, "paired": paired},
        "verdict": sentence(runs)[0],
        "runs": {run.name: {row[0]: row[1 + at] for row in table} for at, run in enumerate(runs)},
        "differing": [{"key": key, "values": values} for key, *values in differing(runs[0].card, runs[1].card)],
    }


def answered(runs: Sequence[Finished]) -> list[tuple[Card, Card, Card]]:
    """(problem, the first run's answer, the second's) of the test problems that both kept answers to."""
    left, right = ({line["id"]: line for line in run.answers if "after" in line} for run in runs)
    return [(line, line["after"], right[name]["after"]) for name, line in left.items() if name in right]
