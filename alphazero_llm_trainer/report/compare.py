"""Two training runs beside each other: what differs in their configuration, cost and results, paired by problem."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..config.load import flat
from ..errors import DataError
from ..eval.metrics import Interval, paired_bootstrap
from .figures import Point, draw, lines, with_intervals
from .folder import METRICS, RUN, lines_of, load
from .page import figure, heading, interval, page, paragraph, table
from .training import measured, over, questions_seen, spread

Card = Mapping[str, Any]


def load_runs(folders: Sequence[Path]) -> list[tuple[str, Card, list[dict[str, Any]]]]:
    """Name, card and metrics of finished training runs.

    Raises:
        DataError: a folder is not a training run's, or the run isn't finished.
    """
    found: list[tuple[str, Card, list[dict[str, Any]]]] = []
    for folder in folders:
        card = load(folder / RUN)
        if card is None or "method" not in card:
            raise DataError(f"{folder} has no run.json of a training run: name a folder such as checkpoints/run-001")
        if card.get("after", {}).get("accuracy") is None:
            raise DataError(f"{folder} has no test result: resume it to its end, or train with --eval-size above 0")
        found.append(
            (folder.name if len({f.name for f in folders}) > 1 else str(folder), card, lines_of(folder / METRICS))
        )
    return found


def difference(one: Card, other: Card) -> tuple[Interval, bool]:
    """Accuracy of `other` minus that of `one` after training, and whether it is paired by problem.

    Runs are paired where both were evaluated on the same problems: the same source, levels, split and number.
    """
    left, right = one["after"]["correct"], other["after"]["correct"]
    if tested(one) == tested(other):
        return paired_bootstrap(right, left), True
    value = sum(right) / len(right) - sum(left) / len(left)
    half = sum(((f["high"] - f["low"]) / 2) ** 2 for f in (one["after"]["accuracy"], other["after"]["accuracy"])) ** 0.5
    return Interval(value, value - half, value + half), False


def tested(card: Card) -> tuple[Any, ...]:
    """What decides which test problems a run was evaluated on."""
    config = card["config"]
    return config["problems"]["source"], config["problems"]["levels"], config["dataset"], card["after"]["problems"]


def rows_of(runs: Sequence[tuple[str, Card, Any]]) -> list[tuple[str, ...]]:
    """The table's rows: what both runs are, reached and took."""
    cards = [card for _, card, _ in runs]
    return [
        ("student", *(card["student"] for card in cards)),
        ("method", *(card["method"] for card in cards)),
        ("seed", *(str(card["seed"]) for card in cards)),
        ("questions", *(f"{card['questions']:,}" for card in cards)),
        ("before [95%]", *(interval(spread(card["before"])) for card in cards)),
        ("after [95%]", *(interval(spread(card["after"])) for card in cards)),
        ("gain, paired", *(interval([card["gain"][key] for key in ("value", "low", "high")], "+") for card in cards)),
        ("tokens an answer", *(f"{card['after']['tokens'] / card['after']['problems']:.1f}" for card in cards)),
        ("sampled in training", *(f"{card['search_cost']['sampled_tokens']:,}" for card in cards)),
        ("dollars", *(f"{dollars(card):.4f}" for card in cards)),
        ("seconds of training", *(f"{card['seconds']['training']:,.0f}" for card in cards)),
        ("kept", *(card["kept"] for card in cards)),
    ]


def dollars(card: Card) -> float:
    """What the search and the teachers charged."""
    teachers = (card.get("teachers") or {}).values()
    return card["search_cost"]["dollars"] + sum(one.get("cost", {}).get("dollars", 0.0) for one in teachers)


def differing(one: Card, other: Card) -> list[tuple[str, str, str]]:
    """The configuration keys that differ, with both values. Keys that only one run's version knew are left out."""
    left, right = dict(flat(one["config"])), dict(flat(other["config"]))
    keys = [key for key in left if key in right and left[key] != right[key]]
    return [(key, str(left[key]), str(right[key])) for key in keys]


def sentence(runs: Sequence[tuple[str, Card, Any]]) -> str:
    """Which run is ahead, in words."""
    (left, one, _), (right, other, _) = runs
    found, paired = difference(one, other)
    how = "paired over the same problems" if paired else "the test problems differ, so this is not paired"
    verdict = (
        f"{right} is above {left}"
        if found.low > 0
        else f"{right} is below {left}"
        if found.high < 0
        else "no difference"
    )
    return f"{verdict}: {interval([found.value, found.low, found.high], '+')}, {how}"


def compare_page(runs: Sequence[tuple[str, Card, list[dict[str, Any]]]]) -> str:
    """The page of two runs."""

    def paint(axes: list[Any]) -> None:
        validation: dict[str, list[Point]] = {}
        rewards = {}
        for name, card, metrics in runs:
            rounds = [line for line in metrics if "mean_reward" in line]
            seen, problems = questions_seen(rounds), card["config"]["train"]["validation_size"]
            rewards[name] = over(rounds, seen, "mean_reward")
            checked = [line for line in metrics if "validation_accuracy" in line and line["round"] in seen]
            if checked:
                validation[name] = [
                    measured(seen[one["round"]], one["validation_accuracy"], problems) for one in checked
                ]
        lines(axes[0], rewards)
        axes[0].set(xlabel="training questions", ylim=(0, 1), title="Mean reward of sampled responses")
        with_intervals(axes[1], validation)
        axes[1].set(xlabel="training questions", ylim=(0, 1), title="Greedy accuracy, validation")
        if validation:
            axes[1].legend(fontsize=8.5)

    names = [name for name, _, _ in runs]
    head = ("", *names)
    differences = differing(runs[0][1], runs[1][1])
    return page(
        " and ".join(names),
        "two training runs",
        [
            paragraph(sentence(runs)),
            table(head, rows_of(runs)),
            heading("Learning"),
            figure(draw(paint, columns=2), "Both runs over their training questions, 95% intervals on validation"),
            heading("What differs in the configuration"),
            table(("key", *names), differences) if differences else paragraph("Nothing."),
        ],
    )
