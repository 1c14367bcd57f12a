"""A loop's and a value's part of a report: generations with their decisions, and how far values can be trusted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .figures import Point, draw, reliability, with_intervals
from .page import figure, heading, interval, paragraph, table

Card = Mapping[str, Any]


def loop_parts(card: Card) -> list[str]:
    """Generations in the arena, each with its decision and the reason, and the test split at the end."""
    rows, series = [], {"champion, greedy": [], "candidate, greedy": [], "candidate, search": []}  # type: ignore[var-annotated]
    for one in card["generations"]:
        arena, asked = one.get("arena"), one["questions"]
        row = [str(one["generation"]), f"{asked['fresh'] + asked['revisited']:,}"]
        if arena is None:
            row += ["", "", "", ""]
        else:
            row += [interval(arena[f"{side} greedy"]["accuracy"]) for side in ("champion", "candidate")]
            row += [interval(arena[f"gain {kind}"], "+") for kind in ("greedy", "search")]
            for name, points in series.items():
                points.append((one["generation"], *arena[name.replace(",", "")]["accuracy"]))
        rows.append((*row, one["decision"]))
    head = ("generation", "questions", "champion", "candidate", "greedy gain", "search gain", "")
    parts = [heading("Generations"), table(head, rows)]
    parts += [paragraph(f"Generation {one['generation']}: {one['why']}.") for one in card["generations"]]
    shown: dict[str, list[Point]] = {name: points for name, points in series.items() if points}
    if shown:

        def paint(axis: Any) -> None:
            with_intervals(axis, shown)
            axis.set(
                xlabel="generation", ylabel="arena accuracy", xticks=[one["generation"] for one in card["generations"]]
            )
            axis.legend(fontsize=8.5)

        parts.append(
            figure(draw(paint, width=7.0), "Each arena has fresh problems of its own: compare within a generation")
        )
    if card.get("test"):
        parts += [heading("Test problems"), *map(paragraph, test_sentences(card["test"]))]
    return parts


def test_sentences(test: Card) -> list[str]:
    """The first student against the last champion, greedy and with search."""
    said = []
    for kind in ("greedy", "search"):
        first, last, gain = test[f"first student {kind}"], test[f"champion {kind}"], test[f"gain {kind}"]
        said.append(
            f"{kind}: {interval(first['accuracy'])} at {first['tokens']:.0f} tokens -> {interval(last['accuracy'])} at"
            f" {last['tokens']:.0f} tokens; paired {interval(gain, '+')} over {last['problems']:,} problems."
        )
    return said


def value_parts(card: Card) -> list[str]:
    """A value's figures on its test questions, and its calibration where the card has it."""
    weight = card["rollout_weight"]
    rows = [(name, interval(found)) for name, found in card["test"].items()]
    parts = [
        heading(f"Value ({card['kind']})"),
        paragraph(f"{card['why']}. Weight of the rollouts in search: {weight:.2f}."),
        table(("test questions", "value [95%]"), rows),
    ]
    points = card.get("reliability")
    if points:
        caption = "Outcomes of the test states whose value is V; the area is their share"
        parts.append(figure(draw(lambda axis: reliability(axis, points), width=4.6, height=4.2), caption))
    return parts
