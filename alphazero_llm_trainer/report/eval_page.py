"""An evaluation: the best method in a sentence, sorted tables for the terminal, and the page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain, groupby
from typing import Any

from markupsafe import Markup

from ..eval.cells import NO_ANSWER
from ..eval.methods import TOO_LONG
from ..eval.metrics import Interval
from ..eval.results import KS, UNGRADED
from ..tree.extract import BUDGET, SILENT, THOUGHT_SPENT, shortfall
from .charts import Chart, row_chart
from .html import render_template
from .tabled import Tabled
from .text_table import align_columns, table_of

Results = Mapping[str, Any]
Block = tuple[str, list[list[str]]]  # a sentence, and a table with its head first
REFUSALS_SHOWN = 3  # that are named
# For a terminal.
SHORT_TABLE = ("method", "accuracy [95%]", "reward [95%]", "over greedy", "tokens", "calls")


def row_measure(row: Results) -> str:
    """What a row is judged by: accuracy, or the user's own reward where no problem has a gold
    answer.
    """
    return "reward" if row.get("no_gold") and "reward" in row else "accuracy"


def by_budget(results: Results, benchmark: str) -> dict[int, list[Results]]:
    """A benchmark's rows by budget, each budget's best first; the cheaper one where two are level.
    Those whose answers were cut come last.
    """

    def place(row: Results) -> tuple[Any, ...]:
        return row["budget"], row.get("cut", False), -row[row_measure(row)][0], row_tokens(row)

    rows = sorted((row for row in results["rows"] if row["benchmark"] == benchmark), key=place)
    return {budget: list(group) for budget, group in groupby(rows, lambda row: row["budget"])}


# Columns of answers in worlds, and what they show of a row.
WORLD_HEADINGS = {
    "given": "given_tokens",
    "turns": "turns",
    "calls of tools": "tool_calls",
    "errors": "tool_errors",
}


def row_tokens(row: Results) -> float:
    """Sampled, scored and given tokens a problem."""
    return row["sampled_tokens"] + row["scored_tokens"] + row.get("given_tokens", 0.0)


def row_gains(results: Results, row: Results) -> dict[str, Interval]:
    """The paired gains of a row at its budget, such as "over greedy"."""
    key = ("benchmark", "budget", "method")
    pairs = [] if row.get("no_gold") else results["pairs"]
    return {
        f"over {pair['over']}": Interval(*pair["gain"])
        for pair in pairs
        if all(pair[name] == row[name] for name in key)
    }


def leading_methods(results: Results, row: Results) -> list[str]:
    """The methods that lead at a row's budget: one alone where it is shown to be the best."""
    for found in results["leaders"]:
        if (found["benchmark"], found["budget"]) == (row["benchmark"], row["budget"]):
            return list(found["methods"])
    return []


def write_headline(results: Results, rows: list[Results]) -> tuple[str, str]:
    """The best method of a budget, or those between which no difference is shown, and whether it is
    clearly above greedy, in words; and if so "good".
    """
    best, what = rows[0], row_measure(rows[0])
    split = results.get("split", "test")
    where = best["benchmark"] if split == "test" else f"{best['benchmark']}, {split} problems,"
    where += f" at {best['budget']:,} tokens"
    if best.get("cut"):  # and so are the others
        return f"{where}: every method's answers were cut or silent", ""
    value = Interval(*best[what])
    if not value.value:
        none = "every reward is 0" if what == "reward" else "no method has a right answer"
        return f"{where}: {none}", ""
    *others, last = leading_methods(results, best)
    first = best["method"]
    if others:
        first = f"no difference shown between {', '.join(others)} and {last}; {first} has"
    else:
        first += " is best," if len(rows) > 1 else " has"
    said = f"{where}: {first} {what} {value} at {row_tokens(best):.0f} tokens a problem"
    over = row_gains(results, best).get("over greedy")
    if over is None:
        return said, ""
    return f"{said}, {over:+} over greedy{'' if over.low > 0 else ': no clear gain'}", over.kind


def row_cells(results: Results, row: Results) -> dict[str, str]:
    """A row's figures by column, as texts; what it doesn't have is left out."""
    accuracy = "no gold answers" if row.get("no_gold") else f"{Interval(*row['accuracy'])}"
    if row.get("cut"):
        accuracy = f"{row[NO_ANSWER]:,} of {row['problems']:,} have no answer"
    shown = {"budget": f"{row['budget']:,}", "method": row["method"], "accuracy [95%]": accuracy}
    if "reward" in row:
        failed = f" ({row['failed_rewards']:,} failed)" if row["failed_rewards"] else ""
        shown["reward [95%]"] = f"{Interval(*row['reward'])}{failed}"
    if row["f1"] is not None:
        shown["F1"] = f"{row['f1']:.3f}"
    shown["tokens"] = f"{row_tokens(row):.1f}"
    for name in ("sampled_tokens", "scored_tokens", "cached_tokens", "calls"):
        shown[name.removesuffix("_tokens")] = f"{row[name]:.1f}"
    shown |= {title: f"{row[name]:.1f}" for title, name in WORLD_HEADINGS.items() if name in row}
    shown["ms"] = f"{1000 * row['seconds']:.1f}"
    shown |= {name: f"{row[name]}" for name in UNGRADED if row.get(name)}
    return shown | {name: f"{gain:+}" for name, gain in row_gains(results, row).items()}


def pass_blocks(results: Results, benchmark: str) -> list[Block]:
    """pass@k."""
    temperature = results["config"]["search"]["temperature"]
    tables = []
    for row in results["at_k"]:
        if row["benchmark"] != benchmark:
            continue
        shown = {"": "pass@k"}
        for k in KS:
            if k <= row["samples"]:
                chance = Interval(*row[f"pass@{k}"])
                shown[f"k = {k}"] = "no gold answers" if row.get("no_gold") else f"{chance}"
        said = (
            f"{row['samples']} samples at T = {temperature:g}, "
            f"{row['sampled_tokens']:.1f} tokens a problem"
        )
        tables.append((said, table_of([shown])))
    return tables


def list_remarks(results: Results, benchmark: str) -> list[str]:
    """Lines on answers that could not be judged, and on questions that don't fit or are refused."""
    rows = list(chain(*by_budget(results, benchmark).values()))
    problems, too_long = rows[0]["problems"], max(row.get(TOO_LONG, 0) for row in rows)
    counts = [
        f"{row['unjudged']:,} of {row['method']} with {row['budget']:,} tokens"
        for row in rows
        if row.get("unjudged")
    ]
    lines = []
    if counts:
        lines.append(
            f"{benchmark}, {problems:,} problems: the verifier {results['verifier']} could not "
            "check a step, or found none to check, in some answers, which are unjudged, "
            f"neither accepted nor rejected: {', '.join(counts)}"
        )
    judge = results.get("judge", {}).get(benchmark)
    if judge is not None:
        lines.append(
            f"{benchmark}: judge and gold agree on {Interval(*judge['agreement'])} of "
            f"{judge['judged']:,} greedy answers, of which {judge['right']:,} are right and the "
            f"judge calls {judge['called_right']:,} right"
        )
    sampled = [row for row in results["at_k"] if row["benchmark"] == benchmark]
    refused = dict(chain(*(row.get("refusals", {}).items() for row in rows + sampled)))
    if refused:
        shown = "; ".join(f"{key} ({why})" for key, why in [*refused.items()][:REFUSALS_SHOWN])
        lines.append(
            f"{benchmark}: {len(refused):,} of {problems:,} questions are refused, and count as "
            f"not right: {shown}"
        )
    if too_long:
        lines.append(
            f"{benchmark}: {too_long:,} of {problems:,} questions don't fit the context, "
            "and count as not right"
        )
    return lines


def evaluation_text(results: Results) -> str:
    """What the terminal shows: a headline and a short sorted table for each budget, then pass@k."""
    parts = []
    for name in results["benchmarks"]:
        shown = [
            (
                write_headline(results, rows)[0],
                table_of([row_cells(results, row) for row in rows], SHORT_TABLE),
            )
            for rows in by_budget(results, name).values()
        ]
        parts += [
            f"{said}\n{align_columns(rows)}" for said, rows in shown + pass_blocks(results, name)
        ]
        parts += list_remarks(results, name)
    return "\n\n".join(parts)


def warn_missing(results: Results) -> str | None:
    """A line for the user where more than a fifth of all answers is missing; else None."""
    rows, ends = results["rows"], Counter[str]()
    for row in rows:
        ends += row.get("silent", {})
        ends[SILENT] += row.get("unparsed", 0)
    ends["answer"] = sum(row["problems"] for row in rows) - ends.total()
    cut = [row["budget"] for row in rows if {BUDGET, THOUGHT_SPENT} & {*row.get("silent", ())}]
    budget = min(cut, default=None)
    return shortfall(ends, results["config"]["search"], budget, "answers")


def budget_chart(budget: int, rows: list[Results]) -> Chart:
    """The methods of a budget in order."""
    kept = [row for row in rows if not row.get("cut")]
    values = {row["method"]: Interval(*row[row_measure(row)]) for row in kept or rows}
    title = f"At most {budget:,} tokens a problem"
    return row_chart(title, values, f"{row_measure(rows[0])} [95%]", grey="greedy")


@dataclass(frozen=True, slots=True)
class EvaluationTable(Tabled):
    """An evaluation's rows with numbers as numbers, and all of them in one chart."""

    facts: Results

    @property
    def records(self) -> list[dict[str, Any]]:
        """One a source, budget and method; an interval's ends are columns of their own."""
        records = []
        for row in self.facts["rows"]:
            record = {name: value for name, value in row.items() if not isinstance(value, dict)}
            for name in ("accuracy", "reward"):
                if name in record:
                    ends = zip(("", "_low", "_high"), record.pop(name), strict=True)
                    record |= {f"{name}{end}": value for end, value in ends}
            records.append(record)
        return records

    @property
    def chart(self) -> Chart:
        """Every row's accuracy, or the mean of the user's own reward."""
        values = {
            f"{row['method']}, {row['benchmark']} at {row['budget']:,}": Interval(
                *row[row_measure(row)]
            )
            for row in self.facts["rows"]
        }
        return row_chart("Methods at equal tokens", values, "[95%]")


def evaluation_page(results: Results) -> Markup:
    """For each benchmark the methods in order at each budget, then every figure."""
    benchmarks = []
    for name, facts in results["benchmarks"].items():
        budgets = by_budget(results, name)
        top = budgets[max(budgets)]
        big = f"{top[0]['method']} {top[0][row_measure(top[0])][0]:.3f}"
        if len(leading_methods(results, top[0])) > 1:
            big = "no difference shown"
        every = table_of([row_cells(results, row) for row in chain(*budgets.values())])
        benchmarks.append(
            {
                **facts,
                "name": name,
                "big": big,
                "verdict": write_headline(results, top),
                "charts": [budget_chart(budget, rows) for budget, rows in budgets.items()],
                "remarks": list_remarks(results, name),
                "at_k": pass_blocks(results, name),
                "failures": results["failures"].get(name),
                "every": every,
            }
        )
    return render_template("evaluation.html", results=results, benchmarks=benchmarks)
