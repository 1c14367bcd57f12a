"""A loop: its result in a sentence, the terminal's table of generations, and the page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..eval.metrics import Interval
from .charts import ChartRow, row_chart
from .page import figures, heading, hero, table
from .tables import columns

Card = Mapping[str, Any]
HEAD = "generation, questions, seen before, champion, candidate, greedy gain, search gain, tokens, seconds, decision"


def headline(card: Card) -> tuple[str, str]:
    """What the loop gave in a sentence, and whether that is "good", "bad" or neither ("")."""
    promoted = sum(one["decision"] == "promoted" for one in card["generations"])
    who = f"generation {card['champion']}" if card["champion"] else "the first student"
    said = f"{promoted} of {len(card['generations'])} generations promoted; the champion is {who}"
    if not card["champion"] or not card.get("test"):
        return said, ""
    gain, problems = Interval(*card["test"]["gain greedy"]), card["test"]["champion greedy"]["problems"]
    return f"{said}; {gain:+} over the first student on {problems:,} test problems", gain.kind


def generation_rows(card: Card) -> list[list[str]]:
    """Generations with their arena figures and decisions; the head first."""
    rows = [HEAD.split(", ")]
    for one in card["generations"]:
        arena, questions, costs = one.get("arena"), one["questions"], one["costs"].values()
        figures = ["", "", "", ""]
        if arena is not None:
            figures = [f"{arena[f'{who} greedy']['accuracy'][0]:.3f}" for who in ("champion", "candidate")]
            figures += [f"{Interval(*arena[f'gain {kind}']):+}" for kind in ("greedy", "search")]
        spent = sum(part.get("sampled_tokens", 0) + part.get("scored_tokens", 0) for part in costs)
        counts = [f"{questions['fresh'] + questions['revisited']:,}", f"{questions['revisited']:,}"]
        seconds = f"{sum(part['seconds'] for part in costs):.0f}"
        rows.append([f"{one['generation']}", *counts, *figures, f"{spent:,}", seconds, one["decision"]])
    return rows


def reasons(card: Card) -> list[tuple[str, str]]:
    """Each generation's decision with its reason; then the test split: the first student against the last champion."""
    rows = [(f"generation {one['generation']} {one['decision']}", one["why"]) for one in card["generations"]]
    test = card.get("test") or {}
    for kind in ("greedy", "search") if test else ():
        sides = [test[f"{who} {kind}"] for who in ("first student", "champion")]
        found = " -> ".join(f"{Interval(*side['accuracy'])} at {side['tokens']:.0f} tokens" for side in sides)
        rows.append((f"test, {sides[1]['method']}", f"{found}; paired gain {Interval(*test[f'gain {kind}']):+}"))
    return rows


def result_text(card: Card) -> str:
    """What the terminal shows at a loop's end."""
    return "\n".join([headline(card)[0], columns(generation_rows(card)), *map(": ".join, reasons(card))])


def loop_parts(card: Card) -> list[str]:
    """The page: the test result, each generation's gains and accuracies in its arena, and the reasons."""
    big, facts = f"generation {card['champion']}", [("student", card["student"]), ("seed", f"{card['seed']}")]
    if card.get("test"):
        first, last = (Interval(*card["test"][f"{who} greedy"]["accuracy"]) for who in ("first student", "champion"))
        big = f"{first.value:.3f} → {last.value:.3f}"
        facts = [("first student [95%]", str(first)), ("champion [95%]", str(last)), *facts]
    gains, sides = [], []
    met = [one for one in card["generations"] if "arena" in one]
    for task in ("greedy", "search") if met else ():
        found, cells = [], []
        for one in met:
            name, arena = f"generation {one['generation']}", one["arena"]
            colour = "good" if one["decision"] == "promoted" else "bad"
            found.append(ChartRow(f"{name} {one['decision']}", Interval(*arena[f"gain {task}"]), colour, [one["why"]]))
            for who, shade in (("champion", "plain"), ("candidate", "c0")):
                cell = arena[f"{who} {task}"]
                note = f"{cell['tokens']:.0f} tokens a problem"
                cells.append(ChartRow(f"{name}: {who}", Interval(*cell["accuracy"]), shade, [note]))
        gains.append(row_chart(f"Candidate over champion, {task}", found, "paired gain [95%]", 0.0, "+"))
        sides.append(row_chart(f"Arena accuracy, {task}", cells, "accuracy [95%]"))
    return [
        hero(big, *headline(card), facts),
        heading("Generations"),
        figures(gains),
        figures(sides, "Each arena has fresh problems of its own: compare within a generation."),
        table(generation_rows(card)),
        table([("", "why"), *reasons(card)]),
    ]
