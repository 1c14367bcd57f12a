"""A training run's part of a report: result, learning curves, search, costs, example trees, configuration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from ..eval.metrics import wilson
from ..search.extract import trajectories
from ..search.journal import read
from ..search.tree import Tree
from ..viewer.text import draw_tree
from .figures import bars, draw, lines, with_intervals
from .page import figure, folded, heading, interval, link, number, paragraph, preformatted, table

KINDS = ("mixed", "solved", "hopeless")  # of example trees
TREES = "trees.html"

Card = Mapping[str, Any]
Line = Mapping[str, Any]
Panel = tuple[
    str, Mapping[str, Sequence[tuple[float, float]]], dict[str, Any]
]  # title, named lines, the axis' settings


def training_parts(card: Card, metrics: Sequence[Line], journal: Path | None) -> list[str]:
    """The sections of a run's page; a run that isn't finished has those that there is material for."""
    rounds = [line for line in metrics if "mean_reward" in line]
    parts = result(card)
    if rounds:
        parts += curves(card, rounds, metrics)
        parts += searching(rounds)
    parts += costs(card, rounds)
    if journal is not None and journal.is_file():
        parts += examples(journal)
    text = yaml.safe_dump(
        {key: value for key, value in card["config"].items() if key not in ("models", "teacher_tiers")}, sort_keys=False
    )
    return [*parts, heading("Configuration"), folded("every key", preformatted(text))]


def result(card: Card) -> list[str]:
    """Before and after on the held-out problems, and what was kept."""
    if card.get("after", {}).get("accuracy") is None:
        return [
            paragraph(
                "This run has no test result: it is not finished, or was started without held-out problems.", "soft"
            )
        ]
    named = {name: card[name] for name in ("before", "after")}
    rows = [
        (name, interval(spread(one)), f"{one['problems']:,}", f"{one['tokens']:,}", number(one["seconds"], 1))
        for name, one in named.items()
    ]
    gain = card["gain"]
    verdict = (
        "helped" if gain["low"] > 0 else "hurt" if gain["high"] < 0 else "made no difference that the interval shows"
    )
    rows.append(("gain, paired", interval([gain["value"], gain["low"], gain["high"]], "+"), "", "", ""))
    drawn = draw(lambda axis: bars(axis, [(name, *spread(one)) for name, one in named.items()]), width=4.2, height=3.0)
    return [
        heading("Held-out problems, greedy"),
        table(("", "accuracy [95%]", "problems", "tokens", "seconds"), rows),
        paragraph(f"Training {verdict}. Kept: {card['kept']}."),
        figure(drawn, "Greedy accuracy on held-out problems before and after, 95% intervals"),
    ]


def spread(figures: Mapping[str, Any]) -> tuple[float, float, float]:
    found = figures["accuracy"]
    return found["value"], found["low"], found["high"]


def curves(card: Card, rounds: Sequence[Line], metrics: Sequence[Line]) -> list[str]:
    """Reward and validation accuracy, zero-variance groups, and the optimiser's figures, over training questions."""
    seen = questions_seen(rounds)
    problems = card["config"]["train"]["validation_size"]
    checked = []
    if card.get("validation_before") is not None and problems:
        checked.append(measured(0, card["validation_before"], problems))
    for line in metrics:
        if "validation_accuracy" in line and line["round"] in seen:
            checked.append(measured(seen[line["round"]], line["validation_accuracy"], problems))

    def paint(axes: list[Any]) -> None:
        learning, flat = axes
        lines(learning, {"mean reward of sampled responses": over(rounds, seen, "mean_reward")})
        if checked:
            with_intervals(learning, {"greedy accuracy, validation": checked}, first=1)
        learning.legend(fontsize=8.5)
        learning.set(xlabel="training questions", ylim=(0, 1), title="Learning")
        shares = {"at first": "flat_at_first", "after more search": "flat"}
        lines(flat, {k: [(seen[r["round"]], r[v] / r["questions"]) for r in rounds] for k, v in shares.items()})
        flat.set(xlabel="training questions", ylim=(0, 1), title="Share of zero-variance groups")

    panels: list[Panel] = [
        (title, {name: over(rounds, seen, name) for name in names}, {})
        for title, names in (
            ("Entropy and KL (nats)", ("entropy", "kl")),
            ("Gradient norm", ("grad_norm",)),
            ("Loss", ("loss", "critic_loss")),
        )
    ]
    return [
        heading("Learning"),
        figure(draw(paint, columns=2), "Reward and validation accuracy (95% intervals), and groups without a signal"),
        *row_of(panels, "What the updates did"),
    ]


def row_of(panels: Sequence[Panel], caption: str) -> list[str]:
    """One figure of the panels that have any data, over training questions."""
    shown = [panel for panel in panels if any(panel[1].values())]

    def paint(axes: Any) -> None:
        for axis, (title, series, options) in zip(axes if len(shown) > 1 else [axes], shown, strict=True):
            lines(axis, series)
            axis.set(**{"xlabel": "training questions", "title": title} | options)

    return [figure(draw(paint, columns=len(shown), width=4.0, height=3.1), caption)] if shown else []


def measured(x: float, accuracy: float, problems: int) -> tuple[float, float, float, float]:
    found = wilson(round(accuracy * problems), problems)
    return x, found.value, found.low, found.high


def questions_seen(rounds: Sequence[Line]) -> dict[int, int]:
    """Training questions done at the end of each round."""
    seen, total = {}, 0
    for line in rounds:
        total += line["questions"]
        seen[line["round"]] = total
    return seen


def over(rounds: Sequence[Line], seen: Mapping[int, int], name: str) -> list[tuple[float, float]]:
    return [(seen[line["round"]], line[name]) for line in rounds if line.get(name) is not None]


def searching(rounds: Sequence[Line]) -> list[str]:
    """Outcomes of the trees, their size and the search's speed."""
    seen = questions_seen(rounds)

    kinds = {"all right": "all_right", "mixed": "mixed", "all wrong": "all_wrong"}
    shares = {name: [(seen[r["round"]], r[key] / r["questions"]) for r in rounds] for name, key in kinds.items()}
    per_tree = {"nodes": "nodes_per_tree", "tokens": "tokens_per_tree", "depth": "depth"}
    panels: list[Panel] = [
        ("Outcomes of the questions", shares, {"ylim": (0, 1)}),
        ("A tree", {name: over(rounds, seen, key) for name, key in per_tree.items()}, {"yscale": "log"}),
        ("Search speed", {"simulations a second": over(rounds, seen, "simulations_per_second")}, {"ylim": (0, None)}),
    ]
    return [heading("Search"), *row_of(panels, "The trees of each round")]


def costs(card: Card, rounds: Sequence[Line]) -> list[str]:
    """Tokens and dollars of the search, and of each teacher."""
    total = card.get("search_cost")
    if total is None:
        total = {key: sum(line["cost"][key] for line in rounds) for key in (rounds[0]["cost"] if rounds else {})}
    parts = [heading("Cost")]
    if total:
        parts.append(
            table(("search", *(key.replace("_", " ") for key in total)), [("all rounds", *map(amount, total.values()))])
        )
    rows = []
    for name, one in (card.get("teachers") or {}).items():
        spent = one.get("cost", {})
        failures = ", ".join(f"{count} {kind}" for kind, count in one.get("failures", {}).items()) or "none"
        rows.append(
            (
                name, f"{one.get('calls', 0):,}", f"{one.get('cached', 0):,}", failures,
                f"{spent.get('prompt_tokens', 0) + spent.get('cached_tokens', 0):,}", f"{spent.get('sampled_tokens', 0):,}",
                f"${spent.get('dollars', 0.0):.4f}", number(spent.get("seconds", 0.0), 1),
            )
        )  # fmt: skip
    if rows:
        head = ("teacher", "calls", "from the cache", "failures", "prompt tokens", "tokens", "dollars", "seconds")
        parts.append(table(head, rows))
    return parts


def amount(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:,.2f}"


def examples(journal: Path) -> list[str]:
    """The last tree of each outcome, as text."""
    found: dict[str, tuple[str, str]] = {}
    for record in read(journal):
        tree = Tree.from_dict(record["tree"])
        right = {one.hre == 1.0 for one in trajectories(tree)}
        if right:
            kind = "mixed" if len(right) == 2 else "solved" if right == {True} else "hopeless"
            found[kind] = (record["problem"]["question"], draw_tree(tree))
    parts = [heading("Example trees"), f"<p>{link(TREES, 'All questions and trees')}</p>"]
    for kind in KINDS:
        if kind in found:
            question, text = found[kind]
            parts.append(folded(f"{kind}: {question}", preformatted(text)))
    return parts
