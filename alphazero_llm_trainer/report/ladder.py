"""A ladder: what was reached in a sentence, Markdown tables for terminal and file, charts and page."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain, pairwise
from typing import Any

from ..eval.metrics import Interval
from .charts import Chart, ChartRow, row_chart, standalone
from .evaluation import method_chart, over_tokens
from .page import figures, heading, hero, paragraph, table
from .tables import markdown

Card = Mapping[str, Any]
BELOW = ("greedy", "majority", "best-of-n", "adaptive-best-of-n", "early-abort")  # what MCTS has to beat


def headline(ladder: Card) -> tuple[str, str]:
    """How many rungs are clearly above the one below, in words; and if all of them are "good"."""
    rungs = ladder["rungs"][1:]
    missed = [rung["name"] for rung in rungs if rung["gain"][1] <= 0]
    said = f"{len(rungs) - len(missed)} of {len(rungs)} rungs are clearly above the one below"
    return said + (f"; NOT {', '.join(missed)}" if missed else ""), "" if missed else "good"


def intro(ladder: Card) -> str:
    seeds, minutes = ", ".join(map(str, ladder["seeds"])), f"{ladder['seconds'] / 60:.0f} min"
    return f"{ladder['command']}: seeds {seeds}, {ladder['problems']:,} held-out problems, {minutes}."


def missed(ladder: Card) -> str:
    """What MCTS was to beat and does not clearly beat."""
    rows = [row for row in ladder["methods"] if row["name"] in BELOW and row["mcts_gain"][1] <= 0]
    found = [
        f"{row['name']} with {row['verifier']} at {row['budget']} tokens: {Interval(*row['mcts_gain']):+}"
        for row in rows
    ]
    return f"NOT reached, mcts above: {'; '.join(found)}." if found else "mcts is above all that it was to beat."


def rung_rows(ladder: Card) -> list[list[str]]:
    """The rungs; the head first."""
    rows = [["rung", "accuracy [95%]", "by seed", "over the rung below", "tokens a problem", "training tokens"]]
    for rung in ladder["rungs"]:
        gain = f"{Interval(*rung['gain']):+}" if "gain" in rung else ""
        trained = "" if rung.get("training_tokens") is None else f"{rung['training_tokens']:,}"
        by_seed = ", ".join(f"{share:.3f}" for share in rung["by_seed"])
        rows.append([rung["name"], str(Interval(*rung["accuracy"])), by_seed, gain, f"{rung['tokens']:.0f}", trained])
    return rows


def by_verifier(ladder: Card) -> dict[str, list[Card]]:
    """The methods' rows: by budget, the most accurate first."""
    found: dict[str, list[Card]] = {}
    for row in sorted(ladder["methods"], key=lambda row: (row["budget"], -row["accuracy"][0])):
        found.setdefault(row["verifier"], []).append(row)
    return found


def method_rows(ladder: Card) -> list[list[str]]:
    """The methods at equal tokens; the head first."""
    rows = [["verifier", "budget", "method", "accuracy [95%]", "sampled", "scored", "mcts over it"]]
    for row in chain(*by_verifier(ladder).values()):
        sampled = row.get("sampled_tokens", row["tokens"])
        found = [row["verifier"], str(row["budget"]), row["name"], str(Interval(*row["accuracy"]))]
        over = f"{Interval(*row['mcts_gain']):+}" if "mcts_gain" in row else ""
        rows.append([*found, f"{sampled:.0f}", f"{row['tokens'] - sampled:.0f}", over])
    return rows


def result_markdown(ladder: Card) -> str:
    """The ladder, the methods at equal tokens and what was not reached, as Markdown."""
    note = f"{intro(ladder)} Intervals are 95%, over problems (each with its mean over the seeds)."
    tables = [markdown(rung_rows(ladder)), markdown(method_rows(ladder))]
    return "\n\n".join([f"{headline(ladder)[0]}.", note, *tables, missed(ladder)]) + "\n"


def picture(ladder: Card) -> str:
    """ladder.svg: the rungs, and the methods with the first verifier."""
    return standalone(charts(ladder)[:2])


def charts(ladder: Card) -> list[Chart]:
    """The rungs, then for each verifier the methods at the largest budget."""
    rungs = [
        ChartRow(rung["name"], Interval(*rung["accuracy"]), f"c{at}", dots=rung["by_seed"])
        for at, rung in enumerate(ladder["rungs"])
    ]
    found = [row_chart(f"{ladder['problems']:,} held-out problems; small dots are seeds", rungs, "accuracy [95%]")]
    for verifier, rows in by_verifier(ladder).items():
        most = [row for row in rows if row["budget"] == rows[-1]["budget"]]
        gains = {row["name"]: {"mcts over it": Interval(*row["mcts_gain"])} for row in most if "mcts_gain" in row}
        found.append(method_chart(f"{verifier}: at most {most[0]['budget']} tokens", most, gains))
    return found


def ladder_parts(ladder: Card) -> list[str]:
    """The ladder's page."""
    rungs, (first, *methods) = ladder["rungs"], charts(ladder)
    ends = [(rung["name"], Interval(*rung["accuracy"])) for rung in (rungs[0], rungs[-1])]
    gains = [
        ChartRow(
            f"{rung['name']} over {below['name']}", Interval(*rung["gain"]), Interval(*rung["gain"]).kind or "plain"
        )
        for below, rung in pairwise(rungs)
    ]
    lines = (over_tokens(f"{name}: accuracy over tokens", rows) for name, rows in by_verifier(ladder).items())
    facts = [(f"{name} [95%]", str(found)) for name, found in ends]
    return [
        paragraph(intro(ladder), "soft"),
        hero(" → ".join(f"{found.value:.3f}" for _, found in ends), *headline(ladder), facts),
        heading("Rungs"),
        figures([first, row_chart("Each rung over the one below", gains, "paired gain [95%]", 0.0, "+")]),
        table(rung_rows(ladder)),
        heading("Methods at equal tokens"),
        figures(methods),
        figures(lines),
        paragraph(missed(ladder)),
        table(method_rows(ladder)),
    ]
