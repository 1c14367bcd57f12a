"""An evaluation's and a ladder's part of a report: accuracy over the tokens that were really spent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .figures import Point, bars, draw, with_intervals
from .page import figure, folded, heading, interval, paragraph, table

Results = Mapping[str, Any]


def evaluation_parts(results: Results) -> list[str]:
    """An `eval` folder's results: a figure and a table a benchmark, and what the pairs say."""
    parts = []
    for name, facts in results["benchmarks"].items():
        rows = [row for row in results["rows"] if row["benchmark"] == name]
        drawn = tokens_figure(by_method(rows, "method"))
        head = ("method", "budget", "accuracy [95%]", "sampled", "scored", "calls", "seconds")
        body = [
            (row["method"], f"{row['budget']:,}", interval(row["accuracy"]), f"{row['sampled_tokens']:.1f}",
             f"{row['scored_tokens']:.1f}", f"{row['calls']:.1f}", f"{row['seconds']:.4f}")
            for row in rows
        ]  # fmt: skip
        parts += [
            heading(f"{name}: {facts['problems']:,} problems at equal tokens"),
            figure(drawn, f"Accuracy over sampled and scored tokens a problem, verifier {results['verifier']}"),
            table(head, body),
        ]
    said = "".join(paragraph(sentence) for sentence in results["sentences"])
    return [*parts, folded("every pair in words", said)] if said else parts


def ladder_parts(ladder: Results) -> list[str]:
    """A ladder's rungs and its methods at equal tokens."""
    rungs = ladder["rungs"]
    seeds = ", ".join(map(str, ladder["seeds"]))
    drawn = draw(lambda axis: bars(axis, [(one["name"], *one["accuracy"]) for one in rungs]), width=8.4, height=3.6)
    body = [
        (one["name"], interval(one["accuracy"]), ", ".join(f"{seed:.3f}" for seed in one["by_seed"]),
         interval(one["gain"], "+") if "gain" in one else "", reached(one), f"{one['tokens']:.0f}")
        for one in rungs
    ]  # fmt: skip
    parts = [
        heading("Ladder"),
        paragraph(f"{ladder['command']}: seeds {seeds}, {ladder['problems']:,} held-out problems."),
        figure(drawn, "Accuracy of the rungs, 95% intervals over problems"),
        table(("rung", "accuracy [95%]", "by seed", "over the rung below", "", "tokens a problem"), body),
    ]
    for verifier in dict.fromkeys(row["verifier"] for row in ladder["methods"]):
        rows = [
            row | {"sampled_tokens": row["tokens"], "scored_tokens": 0}
            for row in ladder["methods"]
            if row["verifier"] == verifier
        ]
        drawn = tokens_figure(by_method(rows, "name"))
        lines = [
            (row["name"], f"{row['budget']:,}", interval(row["accuracy"]), f"{row['tokens']:.0f}",
             interval(row["mcts_gain"], "+") if "mcts_gain" in row else "")
            for row in rows
        ]  # fmt: skip
        parts += [
            heading(f"Methods at equal tokens, verifier {verifier}"),
            figure(drawn, f"Accuracy over sampled and scored tokens a problem, verifier {verifier}"),
            table(("method", "budget", "accuracy [95%]", "tokens", "MCTS over it"), lines),
        ]
    return parts


def reached(rung: Mapping[str, Any]) -> str:
    """Whether a rung is above the one below it."""
    return "" if "gain" not in rung else "above" if rung["gain"][1] > 0 else "not above"


def by_method(rows: Sequence[Mapping[str, Any]], name: str) -> dict[str, list[Point]]:
    """Each method's points (tokens, accuracy, low, high), cheapest first."""
    found: dict[str, list[Point]] = {}
    for row in rows:
        value, low, high = row["accuracy"]
        found.setdefault(row[name], []).append((row["sampled_tokens"] + row["scored_tokens"], value, low, high))
    return {method: sorted(points) for method, points in found.items()}


def tokens_figure(series: Mapping[str, Sequence[Point]]) -> str:
    """Accuracy over tokens, one line a method."""

    def paint(axis: Any) -> None:
        with_intervals(axis, series)
        axis.set(xlabel="sampled and scored tokens a problem", ylabel="accuracy")
        axis.legend(fontsize=8.5, loc="center left", bbox_to_anchor=(1.0, 0.5))

    return draw(paint, width=8.4, height=4.2)
