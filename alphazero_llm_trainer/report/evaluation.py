"""An evaluation: the best method in a sentence, sorted tables for terminal and Markdown, and the page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

from ..eval.cells import TOO_LONG
from ..eval.metrics import Interval
from ..eval.results import BASELINES, CONTROLS, KS, UNGRADED
from ..mcts.extract import MUCH
from .charts import Chart, ChartRow, row_chart
from .page import figures, heading, hero, paragraph, table
from .tables import columns, dot_plot, markdown

Results = Mapping[str, Any]
Block = tuple[str, list[list[str]]]  # a sentence, and a table with its head first
COLOURS = {"greedy": "plain", "mcts": "c1"}  # of methods; c0 of the others
NOTE = "A budget is sampled plus scored tokens a problem. The best one's interval doesn't allow for its being picked."


def measure(row: Results) -> str:
    """What a row is judged by: accuracy, or the user's own reward where no problem has a gold answer."""
    return "reward" if row.get("no_gold") and "reward" in row else "accuracy"


def accuracy_of(row: Results) -> str:
    """A row's accuracy with its interval, where there is one."""
    return "no gold answers" if row.get("no_gold") else str(Interval(*row["accuracy"]))


def sorted_rows(results: Results, benchmark: str) -> dict[int, list[Results]]:
    """A benchmark's rows by budget, the best first; the cheaper one where two are level."""
    found: dict[int, list[Results]] = {}
    rows = [row for row in results["rows"] if row["benchmark"] == benchmark]
    for row in sorted(rows, key=lambda row: (row["budget"], -row[measure(row)][0], tokens(row))):
        found.setdefault(row["budget"], []).append(row)
    return found


def tokens(row: Results) -> float:
    """Sampled and scored tokens a problem."""
    return row["sampled_tokens"] + row["scored_tokens"]


def gains(results: Results, row: Results) -> dict[str, Interval]:
    """The paired gains of a row at its budget, such as "over greedy"."""
    if row.get("no_gold"):
        return {}
    key = ("benchmark", "budget", "method")
    pairs = [pair for pair in results["pairs"] if all(pair[name] == row[name] for name in key)]
    return {f"over {pair['over']}": Interval(*pair["gain"]) for pair in pairs}


def headline(results: Results, rows: Sequence[Results]) -> tuple[str, str]:
    """The best method of a budget, or those that are level, and whether it is clearly above greedy, in words; and if so
    "good"."""
    best = rows[0]
    level = [
        row["method"] for row in rows if measure(row) == measure(best) and row[measure(row)] == best[measure(best)]
    ]
    over = gains(results, best).get("over greedy")
    sure = "" if over is None else f", {over:+} over greedy" + ("" if over.low > 0 else ": no clear gain")
    split = "" if results.get("split", "test") == "test" else f", {results['split']} problems,"
    where, value = f"{best['benchmark']}{split} at {best['budget']:,} tokens", Interval(*best[measure(best)])
    what = "reward " if measure(best) == "reward" else ""
    if not value.value:
        return f"{where}: {'every reward is 0' if what else 'no method has a right answer'}", ""
    if len(level) > 1:
        names = f"{', '.join(level[:-1])} and {level[-1]}"
        cheapest = f"{best['method']} with the fewest tokens, {tokens(best):.0f} a problem"
        return f"{where}: {names} are level, {what}{value}; {cheapest}{sure}", "" if over is None else over.kind
    said = f"{where}: {best['method']} is best, {what}{value} with {tokens(best):.0f} tokens a problem{sure}"
    return said, "" if over is None else over.kind


def blocks(results: Results, benchmark: str, plot: bool = False) -> list[Block]:
    """A headline and a short sorted table for each budget, with its dot plot or without, then pass@k and maj@k."""
    found: list[Block] = []
    for rows in sorted_rows(results, benchmark).values():
        rewarded = any("reward" in row for row in rows)
        lines = [["method", "accuracy [95%]", *["reward [95%]"] * rewarded, "over greedy", "tokens", "calls"]]
        alike = len({measure(row) for row in rows}) == 1 and not any(
            measure(row) == "accuracy" and row.get("no_gold") for row in rows
        )
        drawn = dot_plot([Interval(*row[measure(row)]) for row in rows]) if plot and alike and len(rows) > 1 else []
        lines[0] += [measure(rows[0])] if drawn else []
        for at, row in enumerate(rows):
            over = gains(results, row).get("over greedy")
            figures = ["" if over is None else f"{over:+}", f"{tokens(row):.1f}", f"{row['calls']:.1f}"]
            lines.append([row["method"], accuracy_of(row), *[reward_of(row)] * rewarded, *figures, *drawn[at : at + 1]])
        found.append((headline(results, rows)[0], lines))
    return found + at_k(results, benchmark)


def average_blocks(results: Results) -> list[Block]:
    """Of several benchmarks a table for each budget: the methods' accuracies on each, and their average, the best first."""
    averages = results.get("averages", [])  # 0.6 wrote none
    every = [name for name in results["benchmarks"] if any(name in row["benchmarks"] for row in averages)]
    tables: dict[int, list[list[str]]] = {}
    accuracy = {(row["benchmark"], row["budget"], row["method"]): row["accuracy"][0] for row in results["rows"]}
    for row in sorted(averages, key=lambda row: (row["budget"], -row["accuracy"][0])):
        budget, method = row["budget"], row["method"]
        lines = tables.setdefault(budget, [["method", *every, "average [95%]"]])
        values = [f"{accuracy[name, budget, method]:.3f}" if name in row["benchmarks"] else "" for name in every]
        lines.append([method, *values, str(Interval(*row["accuracy"]))])
    return [
        (f"Accuracy by benchmark at {budget:,} tokens, and its average over {len(every)}", lines)
        for budget, lines in tables.items()
    ]


WHOLE = {"majority": 3, "weighted-majority": 3, "best-of-n": 2}  # least samples of which one can be chosen


def remarks(results: Results, benchmark: str) -> list[str]:
    """A line on questions that don't fit, and one on methods whose budget pays for too few samples to choose among."""
    rows = [row for of_budget in sorted_rows(results, benchmark).values() for row in of_budget]
    problems, too_long = rows[0]["problems"], max(row.get(TOO_LONG, 0) for row in rows)
    lines, few = [], []
    if too_long:
        lines.append(
            f"{benchmark}: {too_long:,} of {problems:,} questions don't fit the context, and count as not right"
        )
    for row in rows:
        least = WHOLE.get(row["method"], 0)
        # A network's calls are counted too, and a question that doesn't fit takes none.
        samples = row["calls"] * problems / max(problems - too_long, 1)
        if not row["scored_tokens"] and 0 < samples < least:
            few.append(f"{row['method']} had {samples:.1f} samples a problem at {row['budget']:,} tokens")
    if few:
        lines.append(f"{benchmark}: {', '.join(few)}, too few to choose among: raise --budget-tokens")
    return lines


def reward_of(row: Results) -> str:
    """The mean of the user's own reward with its interval, and how often it failed."""
    if "reward" not in row:
        return ""
    return f"{Interval(*row['reward'])}" + (f" ({row['failed_rewards']:,} failed)" if row["failed_rewards"] else "")


def at_k(results: Results, benchmark: str) -> list[Block]:
    """pass@k and maj@k."""
    found = []
    for row in (row for row in results["at_k"] if row["benchmark"] == benchmark):
        ks = [k for k in KS if k <= row["samples"]]
        lines = [["", *(f"k = {k}" for k in ks)]]
        lines += [[f"{name}@k", *(str(Interval(*row[f"{name}@{k}"])) for k in ks)] for name in ("pass", "maj")]
        found.append((f"{row['samples']} samples at T = 1, {row['sampled_tokens']:.1f} tokens a problem", lines))
    return found


def unjudged(results: Results, benchmark: str) -> list[str]:
    """One line that says how many answers the verifier could not judge; nothing where there are none."""
    rows = [row for of_budget in sorted_rows(results, benchmark).values() for row in of_budget if row.get("unjudged")]
    if not rows:
        return []
    counts = ", ".join(f"{row['unjudged']:,} of {row['method']} with {row['budget']:,} tokens" for row in rows)
    return [
        f"{benchmark}, {rows[0]['problems']:,} problems: the verifier {results['verifier']} found nothing to check in some"
        f" answers, which are unjudged, neither accepted nor rejected: {counts}"
    ]


def result_text(results: Results) -> str:
    """What the terminal shows."""
    found = []
    for name in results["benchmarks"]:
        found += [f"{said}\n{columns(rows)}" for said, rows in blocks(results, name, plot=True)]
        found += unjudged(results, name) + remarks(results, name)
    found += [f"{said}\n{columns(rows)}" for said, rows in average_blocks(results)]
    return "\n\n".join(found)


def silent(results: Results) -> str | None:
    """A line for the user where more than a fifth of all answers is missing; else None."""
    rows = results["rows"]
    total, missing = (sum(row.get(name, 0) for row in rows) for name in ("problems", "no answer"))
    missing += sum(row.get("unparsed", 0) for row in rows)
    if missing <= MUCH * total:
        return None
    ended = sum(row["ended_by"].get("tokens", 0) for row in rows)
    key = "--budget-tokens" if ended >= missing / 2 else "search.max_tokens"
    return f"of {total:,} answers {missing:,} were cut or stated no answer: raise {key}"


def told(facts: Results) -> list[str]:
    """The system prompt of a benchmark, and the worked solutions before its questions; nothing where there were none."""
    prompt, shots = facts.get("system_prompt"), facts.get("shots")
    said = [] if prompt is None else [f"System prompt: {prompt}"]
    return [*said, f"Worked solutions before each question: {shots}."] if shots else said


def results_markdown(results: Results) -> str:
    """results.md: the same, then every figure."""
    parts = [f"# Evaluation at equal tokens: {results['student']}, verifier {results['verifier']}"]
    parts += [
        f"`{results['command']}`",
        f"{NOTE} Accuracies have Wilson 95% intervals, differences paired bootstrap ones.",
    ]
    parts += [part for said, rows in average_blocks(results) for part in (f"{said}:", markdown(rows))]
    for name, facts in results["benchmarks"].items():
        parts.append(f"## {name}: {facts['problems']:,} problems")
        parts += [part for said, rows in blocks(results, name) for part in (f"{said}.", markdown(rows))]
        parts += unjudged(results, name) + remarks(results, name)
        parts += [
            *told(facts),
            "Every figure, as means a problem:",
            markdown(full_table(results, name)),
        ]
    return "\n\n".join(parts) + "\n"


def full_table(results: Results, benchmark: str) -> list[list[str]]:
    """Every figure of a benchmark's rows, with the gains over the baselines and controls; the head first."""
    rows = list(chain(*sorted_rows(results, benchmark).values()))
    compared = {base for row in rows for base in gains(results, row)}
    bases = [base for base in (f"over {name}" for name in (*BASELINES, *CONTROLS)) if base in compared]
    ungraded = [name for name in UNGRADED if any(row.get(name) for row in rows)]  # 0.4 has fewer
    f1 = ["F1"] * any(row["f1"] is not None for row in rows)
    rewarded = ["reward [95%]"] * any("reward" in row for row in rows)
    head = ["budget", "method", "accuracy [95%]", "sampled", "scored", "cached", "calls", "ms", *ungraded]
    found = [[*head, *bases, *f1, *rewarded]]
    for row in rows:
        over = gains(results, row)
        line = [f"{row['budget']:,}", row["method"], accuracy_of(row)]
        line += [f"{row[name]:.1f}" for name in ("sampled_tokens", "scored_tokens", "cached_tokens", "calls")]
        line += [f"{1000 * row['seconds']:.1f}", *(f"{row.get(name, 0)}" for name in ungraded)]
        line += [f"{over[base]:+}" if base in over else "" for base in bases]
        found.append([*line, *(f"{row['f1'] or 0:.3f}" for _ in f1), *(reward_of(row) for _ in rewarded)])
    return found


# -- the page ----------------------------------------------------------------------------------------------------------


def evaluation_parts(results: Results) -> list[str]:
    """An `eval` folder's results: for each benchmark the methods in order at each budget, then every figure."""
    parts = [part for said, rows in average_blocks(results) for part in (heading(said), table(rows))]
    for name, facts in results["benchmarks"].items():
        by_budget = sorted_rows(results, name)
        drawn = [method_chart(results, budget, rows) for budget, rows in by_budget.items()]
        top = by_budget[max(by_budget)]
        best = top[0][measure(top[0])][0]
        big = f"{top[0]['method']} {best:.3f}" if best else "0"
        known = [("student", results["student"]), ("verifier", results["verifier"]), ("seed", f"{results['seed']}")]
        parts += [heading(f"{name}: {facts['problems']:,} problems"), hero(big, *headline(results, top), known)]
        parts += [
            figures(drawn, NOTE),
            *map(paragraph, [*unjudged(results, name), *remarks(results, name), *told(facts)]),
        ]
        parts += [part for said, rows in at_k(results, name) for part in (paragraph(said), table(rows))]
        parts += [heading(f"{name}: every figure"), table(full_table(results, name))]
    return parts


def method_chart(results: Results, budget: int, rows: Sequence[Results]) -> Chart:
    """The methods of a budget in order; each says its gains where it is pointed at."""
    shown = []
    for row in rows:
        notes = [f"{tokens(row):.1f} tokens a problem", *(f"{k}: {gain:+}" for k, gain in gains(results, row).items())]
        shown.append(ChartRow(row["method"], Interval(*row[measure(row)]), COLOURS.get(row["method"], "c0"), notes))
    return row_chart(f"At most {budget:,} tokens a problem", shown, f"{measure(rows[0])} [95%]")
