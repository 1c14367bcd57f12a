"""The pages of docs/results, and README's table of results, from the JSON files of the benchmarks.

    uv run python scripts/results_pages.py            # write them
    uv run python scripts/results_pages.py --check    # exit 1 where a page and its JSON differ

A page is one function here, registered under the stem of its JSON file. Every figure is read from the JSON or computed
from it, and so is every "better" or "no difference shown" beside one, so that no sentence outlives a new measurement.
"""

from __future__ import annotations

import argparse
import html
import json
import sys
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from alphazero_llm_trainer.eval.metrics import wilson
from alphazero_llm_trainer.report.charts import line_chart, standalone

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT / "benchmarks" / "results"
PAGES = ROOT / "docs" / "results"
FROM_RULES_CHART = PAGES / "from_rules.svg"
IMPROVEMENT_CHART = PAGES / "improvement.svg"
README = ROOT / "README.md"
STUDENT = ROOT / "alphazero_llm_trainer" / "assets" / "student" / "manifest.json"
BEGIN, END = "<!-- results: begin (scripts/results_pages.py) -->", "<!-- results: end -->"
REPOSITORY = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["urls"]["Repository"]

EMBEDDED = "embedded test problems, levels 1 and 2 (2 and 3 steps)"
HARDER = "embedded test problems, levels 3 and 4 (4 to 6 steps)"
FIXED = "fixed in the benchmark"
TINY = "The student has 0.66 million parameters and the problems come from a generator. It says nothing about larger models."
RATIOS = "Ratios carry over to another machine, absolute times do not."

Triple = Sequence[float]  # a value with its 95% interval: value, low, high
Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Page:
    """A page: `headline` is its line in the index, `facts` say how it was measured, `limits` what it doesn't show."""

    title: str
    headline: str
    intro: str
    facts: Mapping[str, str]
    body: Sequence[str]
    limits: Sequence[str]


# -- Markdown and figures ----------------------------------------------------------------------------------------------


def table(rows: Iterable[Row], columns: Mapping[str, str]) -> list[str]:
    """A Markdown table. `columns` has a head and a `str.format` template a column; all but the first are right-aligned."""
    rule = "|".join(["---", *["---:"] * (len(columns) - 1)])
    body = (" | ".join(template.format_map(row) for template in columns.values()) for row in rows)
    return ["", f"| {' | '.join(columns)} |", f"|{rule}|", *(f"| {line} |" for line in body), ""]


def share(found: Triple) -> str:
    return f"{found[0]:.3f} [{found[1]:.3f}, {found[2]:.3f}]"


def gain(found: Triple) -> str:
    return f"{found[0]:+.3f} [{found[1]:+.3f}, {found[2]:+.3f}]"


def verdict(found: Triple) -> str:
    """What a paired difference says: its interval lies above zero, below it, or holds it."""
    return "better" if found[1] > 0 else "worse" if found[2] < 0 else "no difference shown"


def judged(found: Triple | None) -> str:
    """A paired difference with its verdict, for a cell; nothing for None."""
    return f"{gain(found)}<br>{verdict(found)}" if found else ""


def listed(names: Iterable[Any]) -> str:
    *first, last = [str(name) for name in names] or ["none"]
    return f"{', '.join(first)} and {last}" if first else last


def mean(values: Iterable[float]) -> float:
    found = list(values)
    return sum(found) / len(found)


def proportion(successes: int, trials: int) -> Triple:
    found = wilson(successes, trials)
    return found.value, found.low, found.high


def dots(rows: Sequence[tuple[str, Triple]], what: str) -> list[str]:
    """A dot plot with intervals as inline SVG: a row has its label, its figure, and a line below them."""
    low, high = min(found[1] for _, found in rows), max(found[2] for _, found in rows)
    width, height, edge = 420, 38, 8

    def x(value: float) -> str:
        return f"{2 * edge + (width - 4 * edge) * (value - low) / (high - low):.1f}"

    parts = [
        f'<svg class="dots" viewBox="0 0 {width} {height * len(rows) + 22}" role="img" aria-label="{html.escape(what)}">'
    ]
    for i, (label, found) in enumerate(rows):
        parts.append(
            f'<g transform="translate(0 {height * i})"><text x="{edge}" y="14">{html.escape(label)}</text>'
            f'<text class="figure" x="{width - edge}" y="14">{share(found)}</text>'
            f'<line class="axis" x1="{edge}" x2="{width - edge}" y1="26" y2="26"/>'
            f'<line class="interval" x1="{x(found[1])}" x2="{x(found[2])}" y1="26" y2="26"/>'
            f'<circle cx="{x(found[0])}" cy="26" r="4.5"/></g>'
        )
    parts.append(
        f'<text class="note" x="{edge}" y="{height * len(rows) + 16}">{html.escape(what)}, 95% intervals</text></svg>'
    )
    return ["", "".join(parts), ""]


def command(data: Row, otherwise: str = "") -> str:
    """The command that wrote a JSON file, as a person types it; `otherwise` where the file doesn't say."""
    words = " ".join(str(data.get("command") or otherwise).split())
    return f"`{words}`" if words.startswith("uv run ") else f"`uv run {words}`"


def seeds_of(data: Row) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {seed}" for name, seed in data["seeds"].items())


def note_of(data: Row) -> list[str]:
    return [f"Note of the run: {data['note']}."] if data.get("note") else []


def version_of(data: Row) -> list[str]:
    """Which version wrote a file; the files that don't say so are of the first one."""
    return [f"Measured with version {data.get('version', '0.1.0')}."]


def load(stem: str) -> dict[str, Any]:
    path = STUDENT if stem == "student" else DATA / f"{stem}.json"
    return json.loads(path.read_text(encoding="utf-8"))


def twins() -> str:
    """What every accuracy on levels 1 and 2 has to be read with."""
    row = load("overlap")["rows"][0]
    return (
        f"{row['share'][0]:.0%} of the test problems of levels 1 and 2 have a training problem that differs in names, things"
        f" and numbers only ([overlap](overlap.md)). {row['test_problems']:,} of them have {row['distinct_solutions']:,}"
        " distinct worked solutions, so intervals over problems are a little too narrow."
    )


# -- learning and answering --------------------------------------------------------------------------------------------


def student(data: Row) -> Page:
    greedy, eight = (
        [data[key][part] for part in ("value", "low", "high")] for key in ("test_greedy", "test_pass_at_8")
    )
    rows = [
        {"figure": "greedy accuracy", "value": share(greedy)},
        {"figure": "pass@8", "value": share(eight)},
        {"figure": "validation accuracy of the kept weights", "value": f"{data['validation_accuracy']:.3f}"},
    ]
    return Page(
        "The student that ships with the package",
        f"greedy {share(greedy)}, pass@8 {eight[0]:.3f}",
        "A Llama with 3 layers and a vocabulary of words and digits, trained from scratch on worked solutions.",
        {
            "Problems": f"{data['test_greedy']['problems']:,} {EMBEDDED}",
            "Seeds": str(data["seed"]),
            "Size": f"{data['parameters']:,} parameters",
            "Training": f"{data['rows']:,} demonstrations, {data['steps']:,} updates, {data['seconds']:,.0f} seconds",
            "Command": command(data),
        },
        table(rows, {"figure": "{figure}", "value": "{value}"}),
        [
            TINY,
            twins(),
            "It knows about 170 words. On real GSM8K it is close to zero: `uv run vf-eval alphazero-llm-trainer"
            " --env.taskset.source gsm8k` prints the figure.",
        ],
    )


def improvement(data: Row) -> Page:
    kinds = {"greedy": "greedy", "pass_at_8": "one of 8 samples"}
    body, leads = compared_arms(data, kinds, IMPROVEMENT_CHART)
    first, end = data["summary"][0], data["first"] + data["problems"]
    return Page(
        "Does training from search teach?",
        f"{data['start']['greedy'][0]:.3f} -> {first['greedy'][0]:.3f}; training on what search finds, {'; '.join(leads)}",
        "What is the best use of sampled tokens in training? Every arm starts from the student that ships with the package and"
        " sees new questions with their final answers only. `search` and `rft, 8 samples` are rejection-sampling fine-tuning:"
        " on the first right response of a tree whose steps the source's rule judges, or on right ones among plain samples."
        " `rule, one chain` has the rule and no tree: it asks more questions, each once. No teacher takes part.",
        {
            "Problems": f"{EMBEDDED}: numbers {data['first']:,} to {end - 1:,}",
            "Seeds": listed(data["seeds"]) + " of training",
            "Tokens": token_ratios(data),
            "Command": command(data),
        },
        body,
        [
            TINY,
            twins(),
            "Intervals are over problems and over the seeds of training; three seeds are few. The arms ask different numbers of"
            " questions, as their commands in the JSON say: a tree that ends at the first right response needs fewer tokens.",
            "Tokens and updates of a round were settled with seed 7 and `search` on validation problems (many small rounds did"
            " better than few large ones) and are the same for all arms but GRPO's, which has the package's defaults. PPO and"
            " legacy training were not run.",
            *version_of(data),
        ],
    )


def compared_arms(data: Row, kinds: dict[str, str], chart: Path) -> tuple[list[str], list[str]]:
    """The learning curves and tables of `from_rules.compared`, and a line on `search` against each other arm."""
    rows = [{"arm": "start", "tokens": "", **{kind: share(data["start"][kind]) for kind in kinds}}]
    for row in data["summary"]:
        seeds = {kind: ", ".join(f"{value:.3f}" for value in row[f"{kind}_by_seed"]) for kind in kinds}
        found = {kind: f"{share(row[kind])}<br>{seeds[kind]}" for kind in kinds}
        rows.append({"arm": row["arm"], "tokens": f"{row['tokens']:,}", **found})
    others = [row for row in data["summary"] if row["arm"] != "search"]
    against = [
        {"arm": row["arm"], "primary": judged(row["primary"])}
        | {kind: judged(row[f"search_minus_{kind}"]) for kind in kinds}
        for row in others
    ]
    shown = {"against": "{arm}", "greedy, all of them together": "{primary}"}
    body = [
        "",
        f"![learning curves]({chart.name})",
        *table(rows, {"arm": "{arm}", "sampled": "{tokens}", **{what: f"{{{kind}}}" for kind, what in kinds.items()}}),
        "Below each mean are the seeds. `search` less another arm, at the end:",
        *table(against, {**shown, **{what: f"{{{kind}}}" for kind, what in kinds.items()}}),
        f"The first column was the comparison to be made, written down before these problems were read: {len(others)}"
        " comparisons that hold at 95% together (Bonferroni). The others are single ones.",
    ]
    return body, [f"{gain(row['primary'])} over {row['arm']} ({verdict(row['primary'])})" for row in others]


def token_ratios(data: Row) -> str:
    first, *others = data["summary"]
    ratios = (f"{first['tokens'] / row['tokens']:.2f} times those of `{row['arm']}`" for row in others)
    return f"{first['tokens']:,} sampled by `search`: {listed(ratios)}"


def ladder(data: Row) -> Page:
    rungs = {rung["name"]: rung for rung in data["rungs"]}
    rows = [
        rung
        | {
            "share": share(rung["accuracy"]),
            "seeds": ", ".join(f"{one:.3f}" for one in rung["by_seed"]),
            "over": judged(rung.get("gain")),
            "training": "" if rung["training_tokens"] is None else f"{rung['training_tokens']:,}",
        }
        for rung in data["rungs"]
    ]
    body = [
        *dots([(rung["name"], rung["accuracy"]) for rung in data["rungs"]], "accuracy on the test problems"),
        *table(
            rows,
            {
                "rung": "{name}",
                "accuracy": "{share}",
                "by seed": "{seeds}",
                "over the rung below": "{over}",
                "tokens a problem": "{tokens:.0f}",
                "training tokens": "{training}",
            },
        ),
        "Every seed trains its own students from 2,000 demonstrations. PPO samples as many tokens as GRPO and its PRM"
        " together; both replay the same demonstrations and the student's own right responses. GRPO is one generation:"
        " trees of the SFT student, a PRM on 1,000 other questions that starts from the next seed's SFT student, then"
        " four passes over the right responses of 4,800 questions with process credit and a ratio of 1"
        " (`train.grpo.importance: false`). PPO is on-policy in rounds of 96 questions.",
        "",
        "Why one generation and a ratio of 1: a student that has memorised few demonstrations first loses and then regains"
        " accuracy under any useful learning rate. On-policy rounds sample from that dip; one generation's trees do not."
        " An importance ratio also silences just those right responses that the dip forgot.",
        "",
        "## Methods at equal tokens",
        "",
        "All on the GRPO student. A budget is a cap on sampled and scored tokens a problem; adaptive methods spend less."
        " The last column is MCTS against that method, paired by problem.",
        *(line for setting in settings(data) for line in compared(data, *setting)),
        "## The process reward model",
        "",
        "Measured on held-out questions that no training saw, beside the policy's own step log-probability. The labels of"
        " the step AUC are exact. Intervals are over questions.",
        *prm_table(data["prm"]),
        "Most of a PRM's gain is independence: it starts from another seed's student, which errs elsewhere. One that starts"
        " from the policy itself only ties with the log-probability at small learning rates.",
    ]
    return Page(
        "The ladder: Base, SFT, PPO, GRPO, GRPO with MCTS",
        f"SFT {rungs['SFT']['accuracy'][0]:.3f}, PPO {rungs['+PPO']['accuracy'][0]:.3f},"
        f" GRPO {rungs['+GRPO (PRM)']['accuracy'][0]:.3f}, with MCTS {share(rungs['+GRPO (PRM) +MCTS']['accuracy'])}",
        "Five students, each built on the one before it, and nine methods of answering on the best of them.",
        {
            "Problems": f"{data['problems']:,} {HARDER}",
            "Seeds": listed(data["seeds"]),
            "Tokens": "sampled and scored a problem, and sampled in training, in the tables",
            "Time": f"{data['seconds'] / 60:.0f} minutes on 2 cores",
            "Command": f"{command(data)} (recipe: `config/ladder.yaml`)",
        },
        body,
        [
            TINY,
            "Recipes were chosen on one earlier student (validation and some of the test problems). Read GRPO over PPO as"
            " recipe against recipe, not as loss against loss.",
            "`calculator-tool` writes results into the response itself. Its token count is of the model's own tokens alone;"
            " the results that were inserted are left out.",
            "The PRM's tokens count as scored, its prompt included.",
            *note_of(data),
        ],
    )


def settings(data: Row) -> list[tuple[str, int]]:
    """The verifiers and budgets of a ladder's comparison, in its order."""
    return list(dict.fromkeys((row["verifier"], row["budget"]) for row in data["methods"]))


def compared(data: Row, verifier: str, budget: int) -> list[str]:
    """The methods of a ladder under one verifier and budget."""
    rows = [row for row in data["methods"] if (row["verifier"], row["budget"]) == (verifier, budget)]
    words = {"better": "is above", "no difference shown": "is level with", "worse": "is below"}
    told = [
        f"MCTS {text}: {listed(row['name'] for row in rows if 'mcts_gain' in row and verdict(row['mcts_gain']) == word)}"
        for word, text in words.items()
    ]
    shown = (
        row
        | {
            "share": share(row["accuracy"]),
            "scored": row["tokens"] - row["sampled_tokens"],
            "over": judged(row.get("mcts_gain")),
        }
        for row in rows
    )
    columns = {
        "method": "{name}",
        "accuracy": "{share}",
        "sampled": "{sampled_tokens:.0f}",
        "scored": "{scored:.0f}",
        "MCTS over it": "{over}",
    }
    return ["", f"### Verifier {verifier}, {budget} tokens", *table(shown, columns), f"{'; '.join(told)}.", ""]


def prm_table(by_seed: Mapping[str, Row]) -> list[str]:
    kinds = {"pairs": "pair accuracy", "step AUC": "step AUC"}
    models = {"log-probability": "policy log-probability", "PRM": "implicit", "both": "kept + policy log-probability"}
    columns = {f"{kind}: {name}": (key, model) for kind, key in kinds.items() for name, model in models.items()}
    rows = [
        {"seed": seed, "cells": [share(test[key][model]) for key, model in columns.values()]}
        for seed, test in by_seed.items()
    ]
    return table(rows, {"seed": "{seed}"} | {name: f"{{cells[{i}]}}" for i, name in enumerate(columns)})


def loop(data: Row) -> Page:
    rows = []
    for one in data["generations"]:
        arena, kinds = one["arena"], ("greedy", "search")
        told = {
            kind: f"{arena[f'champion {kind}']['accuracy'][0]:.3f} -> {arena[f'candidate {kind}']['accuracy'][0]:.3f}"
            f"<br>{gain(arena[f'gain {kind}'])}"
            for kind in kinds
        }
        tokens = sum(part.get("sampled_tokens", 0) + part.get("scored_tokens", 0) for part in one["costs"].values())
        rows.append(one | told | {"tokens": tokens})
    test, first = data["test"], data["generations"][0]["arena"]["champion search"]
    tested = [
        {
            "method": test[f"champion {kind}"]["method"],
            "first": share(test[f"first student {kind}"]["accuracy"]),
            "last": share(test[f"champion {kind}"]["accuracy"]),
            "gain": judged(test[f"gain {kind}"]),
            "tokens": f"{test[f'first student {kind}']['tokens']:.0f} -> {test[f'champion {kind}']['tokens']:.0f}",
        }
        for kind in ("greedy", "search")
    ]
    helped = [one["generation"] for one in data["generations"] if one["value"]["earned"] or one["verifier"]["chosen"]]
    return Page(
        "Generations with a gate",
        f"greedy {test['first student greedy']['accuracy'][0]:.3f} -> {test['champion greedy']['accuracy'][0]:.3f},"
        f" {gain(test['gain greedy'])}",
        "Each generation searches with the champion, trains a candidate on those trees, and lets both meet on fresh problems"
        " at equal tokens. Only a better candidate is promoted.",
        {
            "Problems": f"{first['problems']:,} fresh arena problems a generation;"
            f" {test['champion greedy']['problems']:,} {EMBEDDED}, read once at the end",
            "Seeds": str(data["seed"]),
            "Tokens": "sampled and scored, in the tables",
            "Command": command(data),
        },
        [
            *table(
                rows,
                {
                    "generation": "{generation}",
                    "greedy": "{greedy}",
                    f"{first['method']}, {first['verifier']}": "{search}",
                    "training and arena tokens": "{tokens:,}",
                    "decision": "{decision}",
                },
            ),
            "The columns in the middle read champion -> candidate, then the paired gain.",
            "",
            "## Test problems",
            *table(
                tested,
                {
                    "method": "{method}",
                    "first student": "{first}",
                    "last champion": "{last}",
                    "gain": "{gain}",
                    "tokens a problem": "{tokens}",
                },
            ),
            f"Generations in which the trained value or PRM was chosen beside the calculator: {listed(helped)}.",
        ],
        [TINY, twins(), "One seed."],
    )


def search_vs_greedy(data: Row) -> Page:
    rows = data["rows"]
    best = max((row for row in rows if row["method"].startswith("mcts")), key=lambda row: row["accuracy"][0])
    shown = (row | {"share": share(row["accuracy"]), "over": judged(row["gain"])} for row in rows)
    columns = {
        "method": "{method}",
        "accuracy": "{share}",
        "tokens a problem": "{tokens:.0f}",
        "over greedy": "{over}",
    }
    return Page(
        "Search at answering time, judged by perplexity alone",
        f"greedy {rows[0]['accuracy'][0]:.3f}; best MCTS setting {best['accuracy'][0]:.3f}, {gain(best['gain'])}"
        f" ({verdict(best['gain'])})",
        "Step-level MCTS values responses by PRE, their perplexity under the student. No method sees the gold answer and"
        " none uses a teacher. The student is the one that `uv run vf-eval alphazero-llm-trainer -s -- --use-grpo` trains.",
        {
            "Problems": f"{data['num']:,} {EMBEDDED}, {data['distinct_solutions']:,} distinct solutions, over which the"
            " intervals are",
            "Seeds": str(data["seed"]),
            "Tokens": "all that the model computes for an answer. The greedy response that PRE measures against is among them;"
            " a sample's own log-probabilities are its perplexity, so no token is scored a second time",
            "Command": command(data),
        },
        [
            *table(shown, columns),
            f"Above greedy by its interval: {listed(row['method'] for row in rows if row['gain'] and row['gain'][1] > 0)}."
            " The student is sure of its mistakes, and perplexity cannot tell them apart. See what a"
            " [value network](value.md) and an exact check of each step ([ladder](ladder.md)) can do.",
        ],
        [TINY, twins(), "One seed. The gains are not corrected for the number of settings.", *version_of(data)],
    )


def perplexity_reward(data: Row) -> Page:
    rows = [
        {
            "model": PRE_MODELS.get(row["model"], row["model"]),
            "questions": f"{row['mixed']} of {row['problems']}",
            "auc": share(row["auc"]),
            "within": share(row["auc_within"]),
            "picked": f"{row['best_by_pre']:.3f}",
            "mean": f"{row['mean']:.3f}<br>{judged(row['best_by_pre_minus']['mean of samples'])}",
            "majority": f"{row['majority']:.3f}<br>{judged(row['best_by_pre_minus']['majority'])}",
            "greedy": f"{row['greedy'][0]:.3f}",
        }
        for row in data["rows"]
    ]
    columns = {
        "student": "{model}", "mixed questions": "{questions}", "AUC": "{auc}", "AUC within a question": "{within}",
        "largest PRE": "{picked}", "mean sample": "{mean}",
        "majority": "{majority}", "greedy": "{greedy}",
    }  # fmt: skip
    hre, weight = data["rows"][0]["weights"]
    return Page(
        "Does the perplexity reward know right from wrong?",
        "within a question PRE ranks right above wrong with "
        + listed(
            f"{row['auc_within'][0]:.2f} ({found['model']})" for row, found in zip(data["rows"], rows, strict=True)
        ),
        f"PRE of {data['samples']} samples a problem under the student that drew them, against its greedy answer. AUC is the"
        " probability that a right response has the larger PRE; chance is 0.5. A mixed question has right and wrong samples.",
        {
            "Problems": f"{data['rows'][0]['problems']} embedded test problems of levels {listed(data['rows'][0]['levels'])}",
            "Seeds": str(data["seed"]),
            "Tokens": "not limited; all methods read the same samples",
            "Command": command(data),
        },
        [
            *table(rows, columns),
            "Under the mean and the majority: accuracy of the largest PRE less theirs, paired. The combined reward, of"
            f" {hre} correctness and {weight} PRE, ranked a wrong response of a question above a right one in at most"
            f" {max(row['wrong_above_right'][0] for row in data['rows']):.1%} of the pairs: PRE orders responses that are"
            " equally right.",
        ],
        [
            "Two students and generated problems. Training by PRE and without it was not compared here.",
            "A student's likely response is one like its greedy answer: PRE asks for agreement with it, not for truth.",
        ],
    )


PRE_MODELS = {"sft": "SmolLM2-135M after SFT", "embedded": "embedded, 0.66 M"}


def from_rules(data: Row) -> Page:
    kinds = {"greedy": "greedy", "pass_at_8": "one of 8 samples", "search": f"search, {data['budget']} tokens"}
    body, leads = compared_arms(data, kinds, FROM_RULES_CHART)
    end = data["first"] + data["problems"]
    return Page(
        "From the rules alone",
        f"numbers, five of them: training on what search finds, {'; '.join(leads)}",
        "AlphaZero's claim in small: a student that has seen random legal play of the game of numbers, and no solution of a"
        " solver, is taught on what a tree under the rules finds, on single chains under them, or on its samples. Every arm"
        " samples about the same number of tokens, and makes as many updates where it is supervised.",
        {
            "Problems": f"test problems {data['first']:,} to {end - 1:,} with five numbers, {data['distinct']:,} of them"
            " distinct, read by nothing before",
            "Seeds": listed(data["seeds"]) + " of training; one start",
            "Tokens": token_ratios(data),
            "Start": f"`{data['start_command']}`",
            "Command": command(data),
        },
        body,
        [
            TINY,
            "Intervals are over problems and over the seeds of training; three seeds are few.",
            "Search and the rule on one chain have a judge of every step and end at the first right response, so that their"
            " tokens reach more questions; the samples are judged at their end.",
            "Rounds and updates were settled with seed 7, on other problems. PPO was not run.",
            *version_of(data),
        ],
    )


def learning_curves(data: Row) -> str:
    """The learning curves: greedy accuracy on validation problems over sampled tokens, means over the seeds."""
    problems, series = data["validation_problems"], {}
    for arm in (row["arm"] for row in data["summary"]):
        curves = [run["curve"] for run in data["runs"] if run["arm"] == arm]
        series[arm] = [
            (
                mean(tokens for tokens, _ in at) / 1e6,
                wilson(round(sum(right for _, right in at) * problems), problems * len(at), distinct=problems),
            )
            for at in zip(*curves, strict=True)
        ]
    title = f"greedy accuracy on {problems} validation problems"
    chart = line_chart(title, series, "million tokens sampled in training")
    assert chart is not None
    return standalone([chart])


def search_budgets(data: Row) -> Page:
    factors, largest = data["factors"], str(data["factors"][-1])
    columns = {
        "method": "{arm}",
        **{f"x{factor}": f"{{x{factor}}}" for factor in factors},
        "more tokens ever hurt": "{fell}",
    }
    body, leads = [], []
    for task in data["tasks"]:
        cells = {(row["arm"], row["factor"]): row for row in task["rows"]}
        rows = []
        for step in task["steps"]:
            fell = [f"x{factor}" for factor, found in step["gains"].items() if found[2] < 0]
            found = {f"x{factor}": share(cells[step["arm"], factor]["accuracy"]) for factor in factors}
            rows.append({"arm": step["arm"], **found, "fell": f"yes, to {listed(fell)}" if fell else "no"})
        last = {row["arm"]: row for row in task["rows"] if row["factor"] == factors[-1]}
        against = [
            {"arm": arm, "tokens": last[arm]["tokens"]}
            | {f"x{factor}": judged(gains[str(factor)]) for factor in factors}
            for arm, gains in task["gumbel_minus"].items()
        ]
        settings = f", `{'`, `'.join(task['settings'])}`" if task["settings"] else ""
        body += [
            *("", f"## {task['name']}", ""),
            f"{task['problems']:,} test problems of levels {listed(task['levels'])}, {task['distinct']:,} of them distinct;"
            f" verifier `{task['verifier']}`{settings}; x1 is {task['tokens']} tokens.",
            *table(rows, columns),
            f"Gumbel search less another method, which spent so many tokens of x{largest} (Gumbel:"
            f" {last['gumbel']['tokens']:.0f}):",
            *table(
                against, {"against": "{arm}", "tokens": "{tokens:.0f}", **{f"x{one}": f"{{x{one}}}" for one in factors}}
            ),
        ]
        over = {
            arm: listed(f"x{factor} {gain(gains[str(factor)])}" for factor in factors if gains[str(factor)][1] > 0)
            for arm, gains in task["gumbel_minus"].items()
        }
        leads.append(f"{task['name']}: {over['puct']} over PUCT, {over['adaptive-best-of-n']} over adaptive best-of-n")
    return Page(
        "Search with a growing budget",
        f"Gumbel search above at {'; '.join(leads)}",
        "Selection rules of tree search and simpler methods get the same budgets, verifier and seeds. A budget is sampled and"
        " scored tokens a problem. PUCT, UCB1 and Gumbel are the method `mcts` of `eval` with `search.select`; a method that"
        " finds an accepted response early spends less.",
        {
            "Problems": listed(f"{task['name']} ({task['problems']:,})" for task in data["tasks"]),
            "Seeds": str(data["seed"]),
            "Tokens": "the budgets of the tables; what the largest one took is beside it",
            "Students": listed(
                f"`{one['command']}` (greedy {one['test_greedy']['value']:.3f})" for one in data["made"].values()
            ),
            "Command": command(data),
        },
        body,
        [
            TINY,
            "One seed of the student and of the draws. The intervals are not corrected for the number of comparisons.",
            "A difference whose interval holds 0 is not shown to be none: so few problems tell large differences alone.",
            *version_of(data),
        ],
    )


def structures(data: Row) -> Page:
    rows = [
        row | {"first": share(row["after SFT"]), "last": share(row["after GRPO"]), "over": judged(row["gain"])}
        for row in data["rows"]
    ]
    columns = {
        "test problems": "{problems}",
        "structures": "{structures}",
        "distinct solutions": "{distinct_solutions}",
        "after SFT": "{first}",
        "after GRPO": "{last}",
        "gain": "{over}",
    }
    new = rows[0]
    return Page(
        "Stories of a kind that nobody trained on",
        f"GRPO on {new['problems']}: {new['first']} -> {new['last']}, {gain(new['gain'])} ({verdict(new['gain'])})",
        "A structure is an opening, its events in order and a closing. `problems.hold_out: structures` keeps whole structures"
        " for the test. A student is trained from scratch on the others alone, with SFT and then with GRPO on search trees, and"
        " answers test problems of both kinds greedily.",
        {
            "Problems": f"{rows[0]['num']:,} {EMBEDDED} of each kind; intervals are over distinct worked solutions",
            "Seeds": str(data["seed"]),
            "Tokens": f"{data['sampled_tokens']:,} sampled in training on {data['num_examples']:,} questions,"
            f" {data['training_seconds']:,.0f} seconds",
            "Command": command(data),
        },
        table(rows, columns),
        [TINY, "One seed. The structures are the generator's own, so a new one is new only within it."],
    )


VALUE_FIGURES = {
    "brier": "Brier score (lower is better)",
    "brier of the base rate": "Brier score of the base rate",
    "calibration error": "calibration error",
    "AUC": "AUC",
    "AUC, deeper is better": "AUC of depth",
    "AUC, log-probability": "AUC of the log-probability",
    "sibling ranking": "siblings ranked rightly",
    "sibling ranking, longer is better": "siblings ranked by length",
    "sibling ranking, log-probability": "siblings ranked by log-probability",
}


def value(data: Row) -> Page:
    kinds = data["kinds"]
    figures = [
        {"figure": text} | {name: share(kind["test"][key]) for name, kind in kinds.items()}
        for key, text in VALUE_FIGURES.items()
    ]
    figures.append(
        {"figure": "weight of rollouts, fitted"}
        | {name: f"{kind['rollout_weight']:.2f}" for name, kind in kinds.items()}
    )
    figures.append({"figure": "training seconds"} | {name: f"{kind['seconds']:,.0f}" for name, kind in kinds.items()})
    rows, winners = [], []
    for row in data["rows"]:
        if ", head" in row["method"]:
            continue
        equal = row.get("at_all_tokens")
        over = (
            f"{gain(equal['gain'])} ({equal['method'].removeprefix('majority of ')})<br>{verdict(equal['gain'])}"
            if equal
            else "none measured"
        )
        greedy = gain(row["gain"]["greedy"]) if "greedy" in row["gain"] else ""
        rows.append(row | {"share": share(row["accuracy"]), "greedy": greedy, "over": over})
        plain = row["method"] == "greedy" or (
            row["method"].startswith("majority of") and "weighted" not in row["method"]
        )
        if equal and equal["gain"][1] > 0 and not plain:
            winners.append(row["method"])
    network = kinds["network"]
    questions = network["questions"]
    return Page(
        "Value functions, and search with them",
        f"AUC {share(network['test']['AUC'])}; {len(winners)} of {len(rows)} methods beat a majority that spends as much",
        "A value function predicts whether a partial response will end right. `head` is a linear probe of the policy's own"
        " hidden states, `network` a model of its own. Then the methods that can use one, against sampling.",
        {
            "Problems": f"{questions['test']:,} {EMBEDDED}, numbers 1,000 and up, which nothing was tuned on",
            "Seeds": str(network["seed"]),
            "Tokens": "sampled by the student and scored by a network of its own, a problem, in the table",
            "Training": f"trees of {questions['training']:,} questions; {questions['validation']:,} validation questions for"
            " stopping, calibration and the weights",
            "Command": command(data),
        },
        [
            "",
            "## On held-out questions",
            *table(figures, {"figure": "{figure}"} | {name: f"{{{name}}}" for name in kinds}),
            *(
                f"- `{name}` {'gets weight' if kind['earned'] else 'gets no weight'}: {kind['why']}."
                for name, kind in kinds.items()
            ),
            "",
            "## Search with the network",
            "",
            "A budget of n samples is the tokens of n whole responses. The last column compares with the smallest majority that"
            " spends at least as many tokens, scored ones included.",
            *table(
                rows,
                {
                    "method": "{method}",
                    "accuracy": "{share}",
                    "sampled": "{tokens:.0f}",
                    "scored": "{scored_tokens:.0f}",
                    "over greedy": "{greedy}",
                    "over a majority (of n)": "{over}",
                },
            ),
            f"Better than such a majority: {listed(winners)}.",
            "",
            "Where the network alone judges finished responses, more candidates are more of its mistakes to pick from.",
        ],
        [
            TINY,
            twins(),
            f"{len(data['rows'])} methods were measured and the intervals are not corrected for so many looks. All of them,"
            " those with the head included, are in the JSON file.",
            "The search arms were measured on these problems a second time, after a review made them keep to their budget.",
        ],
    )


def overlap(data: Row) -> Page:
    rows = [row | {"level": listed(row["levels"]), "part": share(row["share"])} for row in data["rows"]]
    columns = {
        "levels": "{level}",
        "training problems": "{training_problems:,}",
        "test problems with a twin": "{twins:,} of {test_problems:,}",
        "share": "{part}",
        "distinct solutions": "{distinct_solutions:,}",
    }
    return Page(
        "How much the test problems repeat the training problems",
        f"{rows[0]['part']} of the default test problems have a twin in training",
        "The splits of the embedded problems share no worked solution. Their sentences come from few patterns, though. A"
        " test problem has a twin when a training problem reads the same once people, pronouns, things, containers and"
        " numbers are masked.",
        {
            "Problems": f"{rows[0]['test_problems']:,} test problems a row",
            "Seeds": "none: the problems are numbered",
            "Tokens": "none: no model is asked",
            "Command": command(data),
        },
        table(rows, columns),
        [
            "Accuracy on levels 1 and 2 is to a large part accuracy on known story patterns with new names and numbers. On"
            " levels 3 and 4 it is mostly accuracy on new ones.",
            "The training problems are those of a default run, demonstrations included. Longer runs see more.",
        ],
    )


# -- machinery ---------------------------------------------------------------------------------------------------------


def engine(data: Row) -> Page:
    found = data["search"]
    best = next(row for row in data["decode"] if row["batch"] == 32)
    rows = (
        row | {"name": row["model"] + (f", {row['samples_a_prompt']} a prompt" if row["samples_a_prompt"] > 1 else "")}
        for row in data["decode"]
    )
    columns = {
        "model": "{name}",
        "batch": "{batch}",
        "engine": "{ours_tokens_per_second:,.0f}",
        "`generate`": "{hf_generate_tokens_per_second:,.0f}",
        "ratio": "{over_hf_generate:.1f}x",
        "decoding only: ratio": "{decode_over_hf_generate:.1f}x",
        "of the floor": "{share_of_floor:.0%}",
        "over re-prefill": "{over_reprefill:.0f}x",
    }
    return Page(
        "The in-process engine against `generate`",
        f"{best['over_hf_generate']:.1f} times Hugging Face `generate` at batch 32, on one CPU thread",
        "Tokens a second of CPU time for 48 new tokens a row, prompts included. The floor is the time of the linear layers'"
        " matrix products alone, as PyTorch computes them at that batch; a share above 100% means that the engine's own"
        " kernels are faster than those.",
        {
            "Problems": "embedded prompts, or random tokens for the random Llama",
            "Seeds": FIXED,
            "Tokens": "48 new tokens a row",
            "Threads": "1",
            "Command": command(data),
        },
        [
            *table(rows, columns),
            f"A step-level search of {found['trees']} trees runs {found['simulations_per_second']:,.0f} simulations a second,"
            f" samples {found['sampled_tokens_per_second']:,.0f} tokens a second and computes"
            f" {found['computed_per_unique_token']:.2f} tokens a distinct tree token"
            f" ({found['without_reuse_per_unique_token']:.1f} without reuse).",
        ],
        ["Measured on a CPU. On CUDA the engine runs PyTorch's forward; nothing was measured there.", RATIOS],
    )


def real_engine(data: Row) -> Page:
    rows, gaps = data["rows"], data["numerics"]
    one = {row["way"]: row for row in rows if row["threads"] == 1}
    ratio = one["kernels, bfloat16"]["tokens_per_cpu_second"] / one["kernels, fp32"]["tokens_per_cpu_second"]
    columns = {
        "forward": "{way}",
        "threads": "{threads}",
        "tokens a CPU second": "{tokens_per_cpu_second:,.0f}",
        "tokens a second": "{tokens_per_second:,.0f}",
        "floor: products alone, tokens a CPU second": "{floor_tokens_per_cpu_second:,.0f}",
        "floor, GFLOP/s a CPU second": "{floor_gflops:,.0f}",
    }
    return Page(
        "The engine on a real model",
        f"{data['parameters'] / 1e6:.0f} M parameters: bfloat16 is {ratio:.1f} times as fast as fp32 on one CPU thread",
        f"{data['questions']} GSM8K questions ({data['prompt_tokens']:,} prompt tokens) at once, {data['new_tokens']} new"
        " tokens each, with log-probabilities. The floor is the time of the linear layers' products alone, as PyTorch"
        " computes them in that precision at a decode step's rows.",
        {
            "Problems": "GSM8K test questions",
            "Seeds": FIXED,
            "Tokens": f"{data['new_tokens']} new tokens a question",
            "Model": data["model"],
            "Command": command(data),
        },
        [
            *table(rows, columns),
            f"Log-probabilities in bfloat16 differ from the model's own forward in fp32 by {gaps['sampled_mean']:.3f} nats in"
            f" the mean and {gaps['sampled_max']:.3f} at most ({gaps['tokens']} sampled tokens). A training run measures its"
            " own and keeps it in `run.json` (`engine.numerics`).",
        ],
        ["One model on one machine, which others used at the same time.", RATIOS],
    )


ARMS_OF_REAL = {
    "rft": "its own right samples (`rft`)",
    "grpo": "GRPO, chains",
    "grpo-trees": "GRPO, trees",
    "more-sft": "more SFT, as many updates",
}


def real_ladder(data: Row) -> Page:
    stages = data["stages"]
    sft, arms = stages["sft"], {name: stages[name] for name in ARMS_OF_REAL if name in stages}
    rows = [
        {"name": "as it is published", "accuracy": share(triple(sft["test_before"])), "gain": "", "tokens": ""},
        {
            "name": f"SFT on {sft['rows']} worked solutions",
            "accuracy": share(triple(sft["test_greedy"])),
            "gain": gain(triple(sft["gain"])),
            "tokens": "",
        },
    ]
    for name, arm in arms.items():
        after = arm["test_greedy"] if name == "more-sft" else arm["after"]["accuracy"]
        sampled = f"{arm['search_cost']['sampled_tokens']:,}" if "search_cost" in arm else ""
        found = {"name": f"then {ARMS_OF_REAL[name]}", "accuracy": share(triple(after)), "tokens": sampled}
        rows.append(found | {"gain": judged(triple(arm["gain"]))})
    columns = {"student": "{name}", "greedy accuracy": "{accuracy}", "paired gain": "{gain}", "sampled": "{tokens}"}
    trained = {"sft": sft["seconds"]} | {n: arm["seconds"]["training"] for n, arm in arms.items() if n != "more-sft"}
    times = listed(f"{value / 60:.0f} minutes ({name})" for name, value in trained.items())
    sampling = arms["rft"]
    body = [
        *table(rows, columns),
        f"The gain of a `then` line is over the SFT student on the same problems. After SFT pass@8 is"
        f" {share(triple(sft['test_pass_at_8']))} and the mean at temperature 1 {sft['test_mean_at_temperature_1']:.3f}."
        f" Every arm asks the same {sampling['questions']} new questions in {sampling['rounds']} rounds and keeps its best"
        f" checkpoint on 100 validation problems. Training, its searches with it, took {times} on {data['cores']} cores that"
        " others used at the same time. Kept in the end: "
        + "; ".join(f"{ARMS_OF_REAL[name]}: {arm['kept']}" for name, arm in arms.items() if "kept" in arm)
        + ".",
    ]
    for name in (found for found in stages if found.startswith("eval-")):
        body += searched_table(name.removeprefix("eval-"), stages[name])
    numerics = sampling["engine"].get("numerics", {})
    if numerics:
        gap = f"{numerics['sampled_mean']:.3f} nats in the mean"
        body += ["", f"The engine's bfloat16 log-probabilities differed from the trainer's by {gap}."]
    best = best_arm(stages)
    return Page(
        "A real model, taught on two cores",
        f"SmolLM2-135M: {sft['test_before']['value']:.3f} -> {sft['test_greedy']['value']:.3f} by SFT,"
        f" {gain(triple(arms[best]['gain']))} more by {ARMS_OF_REAL[best]}",
        "SmolLM2-135M-Instruct (a copy quantised to 4 bits, dequantised) on embedded problems of levels 1 to 3: supervised on"
        " worked solutions, then taught from its own samples of new questions.",
        {
            "Problems": f"{sampling['after']['problems']} embedded test problems, levels 1 to 3",
            "Seeds": str(data["seed"]),
            "Tokens": f"{sampling['search_cost']['sampled_tokens']:,} sampled by `rft`",
            "Model": data["model"],
            "Command": command(data),
        },
        body,
        [
            f"One seed and one learning rate an arm. The first two lines are of {sft['test_greedy']['problems']} problems.",
            "Embedded problems of known structures: no real rows, no held-out structures.",
        ],
    )


def best_arm(stages: Row) -> str:
    """The arm that taught most from the student's own samples."""
    return max(
        (name for name in ("rft", "grpo", "grpo-trees") if name in stages), key=lambda n: stages[n]["gain"]["value"]
    )


def searched_table(student: str, found: Row) -> list[str]:
    """Methods at equal tokens, asked of a stage's student, with what the repairing ones gain over adaptive best-of-n."""
    over = {
        (row["method"], row["budget"]): judged(row["gain"])
        for row in found["pairs"]
        if row["over"] == "adaptive-best-of-n"
    }
    shown = (
        row | {"share": share(row["accuracy"]), "over": over.get((row["method"], row["budget"]), "")}
        for row in found["rows"]
    )
    columns = {
        "method": "{method}",
        "budget": "{budget}",
        "accuracy": "{share}",
        "sampled": "{sampled_tokens:.0f}",
        "over adaptive best-of-n": "{over}",
    }
    problems = found["rows"][0]["problems"]
    title = f"### Asked in several ways: the {student} student, {problems} problems, steps checked by a calculator"
    return ["", title, "", *table(shown, columns)]


def triple(found: Row) -> Triple:
    return found["value"], found["low"], found["high"]


def real_training(data: Row) -> Page:
    arms = data["arms"]
    ratio = arms["ours, bfloat16"]["tokens_a_cpu_second"] / arms["ours, fp32"]["tokens_a_cpu_second"]
    rows = (
        {"name": name, "memory": f"{arm['peak_gib']:.1f} GiB" if "peak_gib" in arm else ""} | arm
        for name, arm in arms.items()
    )
    columns = {
        "trainer": "{name}",
        "tokens a CPU second": "{tokens_a_cpu_second:,.0f}",
        "tokens a second": "{tokens_a_second:,.0f}",
        "peak memory": "{memory}",
    }
    return Page(
        "Supervised updates of a real model",
        f"bfloat16 products make training {ratio:.1f} times as fast as fp32, on {data['threads']} CPU thread",
        "Updates of 16 GSM8K rows in forwards of 4, all tokens in the loss. `products` are the model's matrix products alone,"
        " forward and twice backward, in bfloat16: what nothing can be faster than.",
        {
            "Problems": f"{data['rows']} rows of GSM8K's training split",
            "Seeds": str(data["seed"]),
            "Model": data["model"],
            "Threads": str(data["threads"]),
            "Command": command(data),
        },
        list(table(rows, columns)),
        [
            "A few updates of one model on one machine, which others used at the same time; the arms ran one after the other.",
            "The gap to the products is attention, elementwise work and the 49,152-wide loss.",
            RATIOS,
        ],
    )


def search(data: Row) -> Page:
    columns = {
        "search": "{label}",
        "trees": "{trees}",
        "at once": "{together}",
        "simulations/s": "{simulations_per_second:,.1f}",
        "CPU ms a simulation": "{cpu_ms_per_simulation:.2f}",
        "over (a)": "{cpu_gain:.0f}x",
        "tokens a simulation": "{tokens_per_simulation:.1f}",
        "tokens a unique token": "{tokens_per_unique_token:.2f}",
        "in the forward": "{forward_share:.0%}",
        "identical trees": "{same}",
    }
    body = []
    for part, title in (("feasibility", "A random Llama of 3 M parameters"), ("student", "The embedded student")):
        rows = (
            row
            | {
                "together": row["at_once"] or row["trees"],
                "same": f"{row['identical_trees']} of {row['compared_trees']}" if "compared_trees" in row else "",
            }
            for row in data[part]["rows"]
        )
        body += ["", f"## {title}", *table(rows, columns)]
    work = {
        "work": "{label}",
        "CPU ms a simulation": "{cpu_ms_per_simulation:.2f}",
        "CPU time": "{cpu_growth:.1f}x",
        "computed tokens": "{token_growth:.1f}x",
    }
    base = {"cpu_growth": 1.0, "token_growth": 1.0}
    body += [
        "## Cost against work",
        *table((base | row for row in data["work"]), work),
        "Time grows with trees and simulations as the work does, and with length faster than tokens: attention.",
    ]
    best = max(
        (row for row in data["feasibility"]["rows"] if row["label"].startswith("(c)")), key=lambda row: row["cpu_gain"]
    )
    return Page(
        "Token-level search against the plain way",
        f"{best['cpu_gain']:.0f} times less CPU time a simulation than the plain way with {best['at_once']} trees at once",
        f"24 simulations a tree, {data['top_k']} children a node, c = {data['exploration']:.0f}. (a) and (b) are the plain way"
        " (`benchmarks/plain_search.py`): the prefix is computed again for every call, one tree at a time. The feasibility"
        " setting has prompts of 160 tokens, a horizon of 96 and a reward that is a hash of the response.",
        {
            "Problems": "trees as the table says",
            "Seeds": seeds_of(data),
            "Tokens": "computed a simulation, in the table",
            "Device": data["device"],
            "Command": command(data),
        },
        body,
        [
            "The aim was 100 times less CPU time at 64 trees. It depends on what else the machine does: repeated runs of this"
            " command came out on both sides of it.",
            "How often trees branch decides a lot: see the rows with other rewards. Beam rollouts gain far less.",
            RATIOS,
        ],
    )


def vllm_cpu(data: Row) -> Page:
    ratios = [row["ratio_tokens_per_second"] for row in data["rows"]]
    columns = {
        "model": "{model}",
        "requests": "{batch}",
        "engine, tokens/s": "{ours_tokens_per_second:,.0f}",
        "vLLM": "{vllm_tokens_per_second:,.0f}",
        "vLLM with log-probabilities": "{vllm_logprobs_tokens_per_second:,.0f}",
        "ratio": "{ratio_tokens_per_second:.1f}x",
        "ratio by CPU time": "{ratio_tokens_per_cpu_second:.1f}x",
    }
    return Page(
        "The engine against vLLM's CPU build",
        f"{min(ratios):.1f} to {max(ratios):.1f} times vLLM {data['theirs']['vllm']} on one thread",
        "Same prompts, one thread, fp32, temperature 1, best of several repeats. The engine always returns log-probabilities;"
        " vLLM was timed without and with them.",
        {
            "Problems": "random or embedded prompts, as many as the requests",
            "Seeds": seeds_of(data),
            "Tokens": f"{data['rows'][0]['new_tokens']} new tokens a request",
            "Device": data["device"],
            "Command": command(data),
        },
        table(data["rows"], columns),
        ["Tiny models on a CPU, which is not what vLLM is made for. Nothing was measured on a GPU.", RATIOS],
    )


def vllm_contract(data: Row) -> Page:
    def cell(found: Any) -> str:
        if isinstance(found, list):
            return ", ".join(map(str, found))
        return "" if found is None else f"{found:.1e}" if 0 < abs(found) < 0.01 else f"{found:,}"

    rows = (row | {key: cell(row[key]) for key in ("inprocess", "vllm", "difference")} for row in data["rows"])
    columns = {
        "check": "{what}",
        "backend": "{backend}",
        "in-process engine": "{inprocess}",
        "vLLM": "{vllm}",
        "difference": "{difference}",
    }
    return Page(
        "vLLM gives what the in-process engine gives",
        f"log-probabilities within {max(row['difference'] for row in data['rows'] if 'nats' in row['what']):.0e} nats on every"
        " check",
        "The same requests go to the in-process engine and to vLLM's CPU build, in process and as a server on loopback.",
        {
            "Problems": "prompts and trees as the rows say, embedded student",
            "Seeds": "fixed in the script",
            "Tokens": "as the rows say",
            "Device": data["device"],
            "Versions": ", ".join(f"{name} {version}" for name, version in data["versions"].items()),
            "Command": "`VLLM_CPU_ENV=ENV scripts/vllm_cpu.sh`",
        },
        table(rows, columns),
        ["Sleep and wake, 4-bit loading in vLLM and CUDA graphs need a GPU and were not run."],
    )


def tree_training(data: Row) -> Page:
    most = max(row["ratio"] for row in data["rows"])
    rows = [row for row in data["rows"] if "all trees" in row["batch"] or "together" in row["batch"]]
    rows += [row | {"batch": "the largest tree"} for row in data["rows"] if row["ratio"] == most]
    usual = next(row for row in rows if row["batch"].startswith("default mix, all trees"))
    columns = {
        "model": "{model}",
        "batch": "{batch}",
        "rows": "{rows}",
        "flat / unique tokens": "{ratio:.2f}",
        "flat tokens": "{flat_tokens:,}",
        "unique tokens": "{unique_tokens:,}",
        "speed-up": "{speedup:.2f}x",
    }
    return Page(
        "Shared prefixes trained once",
        f"{usual['speedup']:.1f} times less CPU time a step on the default problems, same gradient",
        "CPU seconds of forward and backward: one row a response (flat) against all responses of a question in one sequence"
        " (packed), on real trees of 60 simulations.",
        {
            "Problems": "trees of embedded training problems",
            "Seeds": FIXED,
            "Tokens": "flat and unique tokens of a batch, in the table",
            "Threads": "1",
            "Command": command(data),
        },
        [
            *table(rows, columns),
            f"Gradients of the two ways differ by at most {max(row['gradient_difference'] for row in data['rows']):.0e}"
            " (relative). Masked attention is about a third of the packed time, so the gain is smaller than the ratio of"
            " tokens.",
        ],
        [RATIOS],
    )


def memory(data: Row) -> Page:
    over = max(abs(one - 1) for row in data["rows"] for one in row["ratio_over_load"].values())
    shared = load("shared_base")
    rows = (
        {
            "model": row["size"],
            "arm": row["arm"].replace("again", "activations computed again"),
            "phase": phase,
            "forecast": row["forecast"][phase] / 2**20,
            "peak": row["allocated"][phase] / 2**20,
            "ratio": row["ratio"][phase],
        }
        for row in data["rows"]
        for phase in ("load", "search", "train")
    )
    columns = {
        "model": "{model}",
        "arm": "{arm}",
        "phase": "{phase}",
        "forecast, MiB": "{forecast:,.0f}",
        "peak, MiB": "{peak:,.0f}",
        "forecast / peak": "{ratio:.3f}",
    }
    return Page(
        "The memory plan against real peaks",
        f"within {data['worst']:.0%} of the peak of every phase",
        "`info --plan` and `train --dry-run` forecast memory before anything is loaded. Here it stands beside the most that"
        " PyTorch's allocator had handed out at once.",
        {
            "Problems": "random Llamas of 20 and 60 million parameters, whole and as NF4 with LoRA",
            "Seeds": FIXED,
            "Tokens": f"prompts of {data['rows'][0]['prompt']}, rows of {data['rows'][0]['length']}",
            "Command": command(data),
        },
        [
            *table(rows, columns),
            f"Of what a phase adds to the loaded weights the forecast is off by at most {over:.0%}.",
            "",
            "## One base, many adapters",
            "",
            f"A random Llama of {shared['parameters'] / 1e6:.0f} million parameters in 4 bits takes {shared['base_mb']:.0f} MB."
            f" With {shared['adapters']} adapters over it (policy, value, PRM, critic) and a reference that is the base itself"
            f" it takes {shared['shared_mb']:.0f} MB; copies would take {shared['copies_mb']:.0f} MB"
            " (`uv run python benchmarks/shared_base.py`).",
        ],
        ["Random weights on a CPU. The plan for CUDA uses the same sums and was not checked on a GPU.", *note_of(data)],
    )


def plan_rates(data: Row) -> Page:
    rows = (
        {"model": row["size"] + (" (fitted)" if row["fitted"] else ""), "phase": phase}
        | {name: row[name][phase] for name in ("forecast", "real", "ratio")}
        for row in data["rows"]
        for phase in row["ratio"]
    )
    columns = {
        "model": "{model}",
        "phase": "{phase}",
        "forecast, tokens a CPU second": "{forecast:,.0f}",
        "real": "{real:,.0f}",
        "forecast / real": "{ratio:.2f}",
    }
    shares = ", ".join(f"{name} {value:.2f}" for name, value in data["shares"].items())
    return Page(
        "The plan's rates against real ones",
        f"fitted on one size, the others' tokens a second are forecast within {data['worst']:.0%}, on a CPU",
        "`info --plan --machine` reckons tokens a second from a device's peak, its memory's bandwidth and the share of them"
        " that a phase reaches. Here the shares are fitted on one model and the same formulas forecast larger ones.",
        {
            "Problems": "random Llamas in fp32; 64 new tokens after prompts of 48, rows of 96 tokens",
            "Seeds": FIXED,
            "Tokens": "those of the table, the best of three repeats",
            "Command": command(data),
        },
        [
            *table(rows, columns),
            f"One thread: {data['gflops']:.0f} GFLOP/s in a matrix product, {data['gb_s']:.1f} GB/s read. Shares reached:"
            f" {shares}.",
        ],
        [
            "It holds the formulas over sizes of model on one CPU thread, beside other work. The shares of a GPU in"
            " `config/machines.yaml` are assumptions that nobody measured here.",
            "Phases that wait for each other's stragglers, loading, and pushing weights take time that no forecast has.",
        ],
    )


def scaling(data: Row) -> Page:
    rows = [
        row
        | {"waiting": row["parts"]["waiting for the last trees"] / row["parts"]["search"]}
        | {name: row["parts"][name] for name in ("search", "training", "journal")}
        for row in data["rounds"]
    ]
    columns = {
        "cards": "{cards}",
        "questions a round": "{questions:,}",
        "way": "{way}",
        "search, s": "{search:,.1f}",
        "of it waiting": "{waiting:.0%}",
        "journal, s": "{journal:,.2f}",
        "training, s": "{training:,.1f}",
        "a round, s": "{seconds:,.1f}",
        "questions an hour": "{questions_an_hour:,.0f}",
        "efficiency": "{efficiency:.2f}",
    }
    best = max(data["rounds"], key=lambda row: row["questions_an_hour"])
    usual = next(row for row in data["rounds"] if row["cards"] == 8 and row["way"] == "together")
    facts, decoded = data["measured"], data["decode_tokens_a_second"]
    slow = [row for row in data["rounds"] if row["parts"]["journal"] > row["parts"]["search"]]
    bound = listed(dict.fromkeys(f"at {row['cards']} cards and {row['questions']:,} questions" for row in slow))
    bound = bound if slow else "nowhere here"
    return Page(
        "Scaling, on paper",
        f"a simulation: {usual['questions']} questions a round use {usual['efficiency']:.0%} of 8 cards;"
        f" {best['cards']} cards at {best['questions']:,} a round {best['efficiency']:.0%}",
        "Where search and training stop scaling, by a simulation of rounds. Together: all cards search, then train. Apart: an"
        " eighth of the cards trains the round before while the others search, with a lag of one round, which is not built.",
        {
            "Problems": f"{data['model']} on {data['card']}; trees of {data['iterations']} expansions of {data['samples']}"
            f" samples, {data['tokens']} tokens each in the mean (assumed)",
            "Seeds": str(data["seed"]),
            "Tokens": f"spread of samples' lengths as measured on {facts['trees']} trees of the embedded student",
            "Command": command(data),
        },
        [
            *table(rows, columns),
            f"Reckoned: {decoded[str(data['rows'])]:,.0f} tokens a second a card with {data['rows']} rows,"
            f" {decoded['1']:,.0f} with one; {data['trained_tokens_a_second']:,.0f} trained. Measured: the journal's"
            f" writer takes {facts['bytes_a_second'] / 1e6:.0f} MB a CPU second, a tree here is"
            f" {data['record_bytes'] / 1e3:.0f} kB. Assumed: {data['adapter_seconds']:g} s for a version's adapter, on all"
            " engines at once.",
            "",
            "With few questions a round a card has few rows to decode, and a step of few rows takes about as long as one of"
            " many: more cards want more questions a round. The one journal writer takes longer than the search"
            f" {bound}. No more than {data['batch_size']} cards can train, a row of a minibatch each. Waiting is what the mean"
            " card does after its last tree.",
        ],
        [
            "Nothing of this was run on a GPU or on two machines. Rates are those of `config/machines.yaml`.",
            "No network, no failures, no loading, no evaluation; prompts are free, and every engine reads the same queue.",
            *version_of(data),
        ],
    )


def serve(data: Row) -> Page:
    rows = []
    for key, row in data["http"].items():
        method, _, clients = key.rpartition("/")
        rows.append(row | {"method": method, "clients": clients, "bare": data["bare"][key]["requests_per_second"]})
    columns = {
        "method": "{method}",
        "clients": "{clients}",
        "p50, ms": "{p50_ms:.1f}",
        "p95, ms": "{p95_ms:.1f}",
        "p99, ms": "{p99_ms:.1f}",
        "requests/s": "{requests_per_second:.0f}",
        "sampled tokens/s": "{sampled_tokens_per_second:,.0f}",
        "bare: requests/s": "{bare:.0f}",
    }
    one, sixteen = (data["http"][f"sample/{clients}"]["requests_per_second"] for clients in (1, 16))
    return Page(
        "Serving",
        f"{one:.0f} plain answers a second to one client, {sixteen:.0f} to sixteen",
        "The embedded student behind the OpenAI-compatible server on loopback, clients on the same cores. `bare` is the same"
        " work without HTTP.",
        {
            "Problems": "embedded questions",
            "Seeds": FIXED,
            "Tokens": "sampled a second, in the table",
            "Cores": str(data["cores"]),
            "Command": command(data, "python benchmarks/serve.py"),
        },
        table(rows, columns),
        ["A tiny model on a CPU: this measures the server, not a useful model.", RATIOS],
    )


def serve_against(data: Row) -> Page:
    def paired(row: Row) -> Row:
        this, old = (sorted(row["requests_per_second"][name]) for name in ("this", "old"))
        middle = len(this) // 2
        ratios = [new / before for new, before in zip(*row["requests_per_second"].values(), strict=True)]
        return row | {"this": this[middle], "old": old[middle], "ratio": this[middle] / old[middle]} | {
            "least": min(ratios), "most": max(ratios)
        }  # fmt: skip

    rows = [paired(row) for row in data["rows"]]
    below = sum(row["ratio"] < 1 for row in rows)
    columns = {
        "method": "{method}",
        "clients": "{clients}",
        f"requests/s, {data['old']}": "{old:.0f}",
        f"requests/s, {data['version']}": "{this:.0f}",
        "ratio": "{ratio:.2f}",
        "of single turns": "{least:.2f} to {most:.2f}",
    }
    return Page(
        "The server beside an older one",
        f"throughput {min(row['ratio'] for row in rows):.2f} to {max(row['ratio'] for row in rows):.2f} times that of"
        f" version {data['old']}, below it in {below} of {len(rows)} rows",
        "The server of this version and that of an older one, asked in turns by the same clients in one run. Medians over the"
        " turns.",
        {
            "Problems": "embedded questions",
            "Seeds": FIXED,
            "Tokens": "not counted",
            "Cores": str(data["cores"]),
            "Turns": f"{data['turns']} of each server and row, {data['seconds']:g} s each",
            "Command": command(data, "python benchmarks/serve.py --against FOLDER"),
        },
        table(rows, columns),
        ["A tiny model on a CPU, clients on the same cores: this measures the servers, not a model.", RATIOS],
    )


def crowd_row(clients: str, row: Row) -> Row:
    refused = row["errors"].get("503", 0)
    return row | {"clients": clients, "refused": refused, "others": sum(row["errors"].values()) - refused}


def crowds(data: Row) -> Page:
    columns = {
        "clients": "{clients}",
        "requests": "{requests:,}",
        "a second": "{requests_per_second:.0f}",
        "no turn before the deadline (503)": "{refused}",
        "other errors": "{others}",
        "ended by the deadline": "{deadlines_hit:,}",
        "over 100 ms late": "{over_100_ms_late:,}",
        "by the client's clock": "{over_100_ms_late_at_the_client:,}",
        "worst, ms": "{late_max_ms:.0f}",
        "cores that other processes took": "{cores_of_others:.1f}",
        "memory, MiB": "{before[rss_mib]:,.0f} to {after[rss_mib]:,.0f}",
        "searches alive afterwards": "{after[live_searches]:.0f}",
    }
    rows = [crowd_row(clients, row) for clients, row in data["crowds"].items()]
    worst = max(row["over_100_ms_late"] / row["deadlines_hit"] for row in rows)
    return Page(
        "Deadlines of a crowded server",
        f"{1 - worst:.1%} of the answers that a deadline ended came within 100 ms of it, at {rows[-1]['clients']} clients",
        "All methods mixed, each request with a deadline of 2 s or 500 ms, each client with a connection of its own, clients"
        " and server on the same cores. `serve.concurrent` is 64: of 200 clients most wait for a turn, and some for nothing.",
        {
            "Problems": "embedded questions",
            "Seeds": FIXED,
            "Tokens": "see requests",
            "Cores": str(data["cores"]),
            "Command": command(data, f"python benchmarks/serve.py --crowds {round(rows[0]['seconds'])}"),
        },
        table(rows, columns),
        [
            "Late is by the server's clock, from reading the request's headers to the answer; the client's clock counts the way"
            " and the client's own waits too, and all clients are one Python process.",
            "Where other processes take the cores, both clocks are theirs as well.",
        ],
    )


def soak(data: Row) -> Page:
    errors, after = sum(data["errors"].values()), data["after"]
    figures = {
        "requests": f"{data['requests']:,} ({data['requests_per_second']:.0f} a second)",
        "errors": f"{errors}",
        "clients that broke their connection in the middle": f"{data['clients_gone']:,}",
        "wrong requests, by answer": ", ".join(f"{code}: {count:,}" for code, count in data["wrong_requests"].items()),
        "memory, MiB": f"{data['before']['rss_mib']:,.1f} to {after['rss_mib']:,.1f}",
        "memory's slope after the first third": f"{data['rss_mib_an_hour']:+.1f} MiB an hour",
        "alive afterwards": f"{after['live_requests']:.0f} requests, {after['live_searches']:.0f} searches,"
        f" {after['engine_live_rows'] + after['engine_waiting_rows']:.0f} rows of the engine",
        "ended by the deadline": f"{data['deadlines_hit']:,}",
        "of them over 100 ms late": f"{data['over_100_ms_late']:,}, the worst {data['late_max_ms']:.0f} ms",
        "cores that other processes took": f"{data['cores_of_others']:.1f} of {data['cores']}",
        "the machine's own longest stall": f"{data['machine_stall_max_ms']:.0f} ms",
        "exit code after SIGTERM": f"{data['exit_code']}",
    }
    rows = ({"figure": name, "value": found} for name, found in figures.items())
    return Page(
        "A soak of the server",
        f"{errors} errors in {data['requests']:,} requests over {data['minutes']:g} minutes",
        "64 clients with all methods, while every second a client breaks its connection in the middle of a search and another"
        " sends a request that is wrong.",
        {
            "Problems": "embedded questions",
            "Seeds": FIXED,
            "Tokens": f"{data['sampled_tokens_per_second']:,.0f} sampled a second",
            "Cores": str(data["cores"]),
            "Command": command(data, f"python benchmarks/serve.py --soak {data['minutes']:g}"),
        },
        table(rows, {"figure": "{figure}", "value": "{value}"}),
        ["A tiny model on a CPU, clients on the same cores.", RATIOS],
    )


def large_journal(data: Row) -> Page:
    first, last = data["sizes"][0], data["sizes"][-1]

    def cells(found: Row) -> Row:
        ways = {}
        for way, alone in data["libraries"].items():
            one = found["ways"].get(way)
            more = None if one is None else max(one["peak_mib"] - alone["peak_mib"], 0)
            ways[way] = "" if one is None else f"{one['peak_mib']:,.0f} ({more:,.0f}), {one['cpu_seconds']:,.1f} s"
        return {**found, **ways, "page": f"{found['page_mb']:.1f}" if "page_mb" in found else ""}

    none = {"megabytes": "one record", "records": 1, "ways": data["libraries"]}
    columns = {
        "MB": "{megabytes}",
        "records": "{records:,}",
        **{way: f"{{{way}}}" for way in data["ways"]},
        "page, MB": "{page}",
    }
    grown = last["ways"]["open"]["peak_mib"] - first["ways"]["open"]["peak_mib"]
    return Page(
        "Large journals",
        f"{last['megabytes']:,} MB are opened in {last['ways']['open']['peak_mib']:,.0f} MiB, libraries included",
        "Peak resident memory in MiB (in brackets: more than with one record) and CPU seconds of a process that uses a journal."
        f" From {first['megabytes']} to {last['megabytes']:,} MB opening takes {grown:,.0f} MiB more: keys and places.",
        {
            "Problems": f"{data['questions']} embedded training questions, repeated under fresh ids",
            "Seeds": str(data["seed"]),
            "Tokens": "not counted",
            "Command": command(data),
        },
        [
            *table(map(cells, (none, *data["sizes"])), columns),
            *(f"- {way}: {what}." for way, what in data["ways"].items()),
            "",
        ],
        [
            "Empty cells were not tried. `keep` is what `train --resume` did before.",
            "Records of small trees, 2 kB each: of larger ones there are fewer a megabyte, and fewer keys and places.",
            "CPU seconds are of one machine, which may have been busy: compare them with each other.",
        ],
    )


def kill_test(data: Row) -> Page:
    figures = {
        "processes killed": ", ".join(f"{kind} {count}" for kind, count in data["kills"].items()),
        "trees at the end": f"{data['trees']} of {data['questions']}",
        "lost, twice, half written": f"{data['lost']}, {data['duplicate']}, {data['half_written']}",
        "equal to an undisturbed run's": f"{data['same_as_undisturbed']} of {data['questions']}",
        "sessions": data["sessions"],
        "seconds": f"{data['seconds']:.0f}",
    }
    rows = ({"figure": name, "value": found} for name, found in figures.items())
    return Page(
        "Nothing is lost when processes die",
        f"{data['kills_in_all']} kills, {data['lost']} trees lost, {data['duplicate']} twice",
        "A sampling run under Ray whose processes are killed with SIGKILL at random moments. After each death of the driver it"
        " is started again with `--resume`.",
        {
            "Problems": f"{data['questions']} embedded training questions",
            "Seeds": str(data["seed"]),
            "Tokens": "not counted",
            "Command": command(data),
        },
        table(rows, {"figure": "{figure}", "value": "{value}"}),
        [
            "Equal means the same tree, costs aside and log-probabilities to three digits.",
            "One machine with two cores.",
        ],
    )


def kill_commands(data: Row) -> Page:
    rows = [{"name": name, "differing": len(row["differ"]), **row} for name, row in data["commands"].items()]
    columns = {
        "command": "`{name}`",
        "kills": "{kills}",
        "starts that failed": "{failures}",
        "files": "{files}",
        "that differ from the undisturbed run's": "{differing}",
        "seconds, undisturbed": "{undisturbed_seconds:.0f}",
        "with all kills": "{seconds:.0f}",
    }
    kills, differ = (sum(row[name] for row in rows) for name in ("kills", "differing"))
    return Page(
        "Every command, killed",
        f"{kills} kills, {differ} files that differ from an undisturbed run's",
        "Each command that keeps a run is killed with SIGKILL at random moments, loading included, and started again as its"
        " user would, until it is through.",
        {
            "Problems": "embedded questions, a few dozen a command",
            "Seeds": str(data["seed"]),
            "Tokens": "not counted",
            "Command": command(data),
        },
        table(rows, columns),
        [
            "Compared are weights, by the byte, and tables of results, but for seconds and for what was cached.",
            "Tiny sizes on one machine with two cores. `sft` starts anew, and `ladder` is made of these commands.",
        ],
    )


def reliability(data: Row) -> Page:
    rows = ({"name": name, **found} for name, found in data["parts"].items())
    columns = {
        "part": "{name}",
        "what is tried": "{what}",
        "tries": "{tries:,}",
        "failures": "{failures}",
        "seconds": "{seconds:.0f}",
    }
    failures = [f"- {name}: {one}" for name, found in data["parts"].items() for one in found["examples"]]
    return Page(
        "Attacks on all of it",
        f"{data['tries']:,} tries, {data['failures']} failures",
        "Bad input, flipped bits, power cuts, kills, limits of the disk, hostile clients and teachers, by one command. A try"
        " fails where something ends in a traceback, hangs, is lost, is there twice, or differs from an undisturbed run.",
        {
            "Problems": "embedded training questions, where something is searched",
            "Seeds": str(data["seed"]),
            "Tokens": "not counted",
            "Command": command(data),
        },
        [*table(rows, columns), *(["", "## Failures", "", *failures] if failures else [])],
        [
            "A power cut leaves names as they were last synced or as they were, and of bytes that were not synced nothing, all,"
            " a part, or zeros. What the libraries write by themselves is seen at the next write, rename or sync of ours.",
            "One machine with two cores; the student is small, so that trees take milliseconds.",
            "Kills of commands and under Ray, faulty teachers, fuzzed answers, deadlines and the soak have pages of their own,"
            " with more tries.",
        ],
    )


def teacher_faults(data: Row) -> Page:
    rows = []
    for name, found in data["scenarios"].items():
        if "trees" not in found:
            continue
        limits = (f"{limit:,} {key}" for key, limit in found["budget"]["limits"].items() if limit is not None)
        rows.append(
            found
            | {
                "name": name,
                "ended": f"{sum(found['trees']['ended'].values())} of {found['trees']['asked']}",
                "limit": ", ".join(limits) or "none",
                "held": "all" if all(found["verdicts"].values()) else "NOT all",
            }
        )
    columns = {
        "scenario": "{name}",
        "requests": "{requests:,}",
        "trees ended": "{ended}",
        "most attempts": "{most_attempts_of_a_request}",
        "charged": "${charged_by_server[dollars]:.3f}, {charged_by_server[tokens]:,} tokens",
        "limit": "{limit}",
        "checks held": "{held}",
    }
    good, poor = (rows[0]["ledgers"][f"bench/{name}"] for name in ("good", "poor"))
    return Page(
        "Teachers that misbehave",
        f"{data['requests']:,} requests to a faulty server, {'every' if data['held'] else 'NOT every'} check held",
        "Real searches ask four remote teachers on a loopback server that injects more than 20 kinds of faults and keeps its"
        " own books. Checks: no tree is lost, attempts are bounded, the ledgers equal the server's books where answers arrived,"
        " budgets hold, no connection or task is left, the key is on no disk.",
        {
            "Problems": "embedded training questions, as many as the trees",
            "Seeds": FIXED,
            "Tokens": "charged by the server, in the table",
            "Command": command(data),
        },
        [
            *table(rows, columns),
            "Reservations are careful: an answer that never arrived is booked at the most it could have cost.",
            "",
            f"In the first scenario the good teacher's steps were worth {good['mean_value']:.3f} to the student and the poor"
            f" one's {poor['mean_value']:.3f}; they were asked {good['calls']} and {poor['calls']} times.",
        ],
        ["No real provider was called: the model ids of `config/teacher_models.yaml` are untested."],
    )


def grade_agreement(data: Row) -> Page:
    names = {"ours": "this package", "math-verify": "math-verify", "string": "string match"}
    rows = []
    for source in ("gsm8k", "math", "hotpotqa"):
        found = data[source]
        marks = [(mark, count) for marks in found["patterns"].values() for mark, count in marks.items()]
        pairs = sum(count for _, count in marks)
        right = {
            name: share(proportion(sum(count for mark, count in marks if mark[i] == "+"), pairs))
            for i, name in enumerate(found["graders"])
        }
        rows.append(
            {
                "source": source,
                "good": found["rows"] - len(found["self_failures"]),
                "all": found["rows"],
                "pairs": pairs,
            }
            | right
        )
    columns = {"rows": "{source}", "gold equals itself": "{good:,} of {all:,}", "pairs": "{pairs:,}"}
    return Page(
        "The graders on real rows",
        f"{sum(row['good'] for row in rows):,} of {sum(row['all'] for row in rows):,} gold answers equal themselves",
        "Every gold answer is graded against itself. Then pairs are made from the rows (other spellings of the gold answer, and"
        " wrong answers) and three graders say correct or wrong: this package's, math-verify alone, and plain string match.",
        {
            "Problems": "GSM8K train and test, MATH-500, part of HotpotQA's validation split",
            "Seeds": "fixed in the command",
            "Tokens": "none: no model is asked",
            "Command": command(data),
        },
        table(rows, columns | {text: f"{{{name}}}" for name, text in names.items()}),
        [
            "Most pairs are easy, pairs of one row are not independent, and one guard was added after seeing them.",
            "A verdict of this table is about spellings. It does not show that every wrong answer is found.",
        ],
    )


def answers_fuzz(data: Row) -> Page:
    rows = [{"kind": name, **tally} for name, tally in data["kinds"].items()]
    all_but, limits = data["totals"]["all but limits"], data["totals"]["limits"]
    slowest = data["slowest"]
    wrong = all_but["false_positives"] + all_but["false_negatives"]
    columns = {
        "kind": "{kind}",
        "pairs": "{pairs:,}",
        "false positives": "{false_positives:,}",
        "false negatives": "{false_negatives:,}",
    }
    return Page(
        "Answers, on generated pairs whose truth is known",
        f"{wrong:,} of {all_but['pairs']:,} verdicts wrong outside the known limits",
        "Pairs of an answer and a gold answer are generated so that the right verdict is known: the same number in two"
        ' writings, another number, and what only contains the number. A row named "limit:" is known to fail and shows by how'
        " much. The rest of the cases is random text on which nothing may crash.",
        {
            "Problems": f"{data['num']:,} generated cases",
            "Seeds": str(data["seed"]),
            "Tokens": "none: no model is asked",
            "Command": command(data),
        },
        [
            *table(rows, columns),
            f"Together with the limits: {limits['false_positives']:,} false positives and {limits['false_negatives']:,} false"
            f" negatives of {limits['pairs']:,} pairs that are hard on purpose. Random texts: {data['random_texts']:,}; laws"
            f" broken: {listed(data['broken_laws'])}. The slowest call took {slowest['milliseconds']} ms for"
            f" {slowest['characters']:,} characters.",
        ],
        ["Which kinds there are was chosen by hand, so a new kind of answer can still be read wrongly."],
    )


def reasoning_gym(data: Row) -> Page:
    rows = data["rows"]
    short = [row for row in rows if row["why"]]
    fine, loaded = len(rows) - len(short), sum(row["loads"] for row in rows)
    return Page(
        "reasoning-gym's tasks as sources",
        f"{fine} of {len(rows)} tasks of reasoning-gym load and grade all their own gold answers as 1",
        f"Every task of reasoning-gym {data['version']} is opened as `reasoning-gym:TASK`. Its first"
        f" {data['problems_a_split']} problems of {' and '.join(data['splits'])} are loaded, and their gold answers are graded"
        " as a response's last line `#### ANSWER` is.",
        {
            "Problems": f"{data['problems_a_split']} a split and task",
            "Seeds": "fixed in the source",
            "Tokens": "none: no model is asked",
            "Command": command(data),
        },
        [
            "",
            f"{loaded} of {len(rows)} tasks load and print a prompt. Those that fall short:",
            "",
            *table(
                [{"task": f"`{row['task']}`", "why": row["why"].replace("|", "\\|")} for row in short],
                {"task": "{task}", "why": "{why}"},
            ),
        ],
        [
            "A gold answer that scores 1 does not show that every right answer does, or that wrong ones score less.",
            "Tasks are taken with reasoning-gym's own settings of difficulty.",
        ],
    )


def startup(data: Row) -> Page:
    rows = [{**row, "name": f"`{row['command']}`"} for row in data["rows"]]
    last = rows[-1]
    return Page(
        "Starting a command",
        f"`search` of the embedded student: {last['median']:.1f} CPU seconds, {last['share']:.2f} times the import of torch"
        " and transformers",
        "A command's CPU seconds from start to end, beside those of importing torch and transformers, which training needs.",
        {
            "Problems": "none but one searched question",
            "Seeds": "the configuration's",
            "Tokens": "those of one small search",
            "Command": command(data),
        },
        table(
            rows,
            {"command": "{name}", "CPU seconds, median": "{median:.2f}", "share of the import": "{share:.2f}"},
        ),
        [RATIOS, f"Medians of {data['runs']} runs, with files in the page cache."],
    )


# -- all of them -------------------------------------------------------------------------------------------------------

# Stem of the JSON file -> its page, in the order of the index.
LEARNING: dict[str, Callable[[Row], Page]] = {
    "student": student,
    "improvement": improvement,
    "ladder": ladder,
    "search_vs_greedy": search_vs_greedy,
    "search_budgets": search_budgets,
    "from_rules": from_rules,
    "perplexity_reward": perplexity_reward,
    "value": value,
    "loop": loop,
    "overlap": overlap,
    "structures": structures,
    "real_ladder": real_ladder,
}
MACHINERY: dict[str, Callable[[Row], Page]] = {
    "engine": engine,
    "real_engine": real_engine,
    "real_training": real_training,
    "search": search,
    "vllm_cpu": vllm_cpu,
    "vllm_contract": vllm_contract,
    "tree_training": tree_training,
    "memory": memory,
    "large_journal": large_journal,
    "plan_rates": plan_rates,
    "scaling": scaling,
    "serve": serve,
    "serve_against": serve_against,
    "crowds": crowds,
    "soak": soak,
    "reliability": reliability,
    "kill_test": kill_test,
    "kill_commands": kill_commands,
    "teacher_faults": teacher_faults,
    "grade_agreement": grade_agreement,
    "answers_fuzz": answers_fuzz,
    "reasoning_gym": reasoning_gym,
    "startup": startup,
}
ON_ANOTHER_PAGE = {"shared_base"}  # memory's


def text_of(stem: str, page: Page) -> str:
    """A page as Markdown. Its tables get the room of the table of contents."""
    source = (STUDENT if stem == "student" else DATA / f"{stem}.json").relative_to(ROOT).as_posix()
    facts = {**page.facts, "Data": f"[`{source}`]({REPOSITORY}/blob/main/{source})"}
    return squeezed(
        [
            *("---", "hide: [toc]", "---", "", f"# {page.title}", ""),
            f"<!-- Written by scripts/results_pages.py from {source}: change those. -->",
            *("", page.intro, ""),
            *(f"- **{name}**: {text}" for name, text in facts.items()),
            *page.body,
            *("", "## What this does not show", ""),
            *(f"- {limit}" for limit in page.limits),
        ]
    )


def squeezed(lines: Sequence[str]) -> str:
    """Lines as a file's text, without two blank ones in a row."""
    kept = [line for i, line in enumerate(lines) if line or (i and lines[i - 1])]
    return "\n".join(kept).rstrip() + "\n"


def index(pages: Mapping[str, Page]) -> str:
    def rows(stems: Iterable[str]) -> list[str]:
        listing = (f"| [{pages[stem].title}]({stem}.md) | {pages[stem].headline} |" for stem in stems)
        return ["", "| Result | In one line |", "|---|---|", *listing, ""]

    return squeezed(
        [
            "# Results",
            "",
            "<!-- Written by scripts/results_pages.py: change it there. -->",
            "",
            "Every page here is written by `scripts/results_pages.py` from a JSON file that a benchmark wrote. Each names its"
            " problems, seeds, token cost and command. Intervals are 95%; differences are paired by problem.",
            "",
            "Read three things with all of them.",
            "",
            "- The student is tiny and the problems are generated, so no accuracy is about real language models.",
            f"- {twins()}",
            "- Nothing was measured on a GPU.",
            "",
            "## Learning and answering",
            *rows(LEARNING),
            "## Machinery",
            *rows(MACHINERY),
            "## Not measured yet",
            "",
            "These commands exist and have not been run in full: `benchmarks/tree_grpo.py` (tree GRPO against plain TRL GRPO at"
            " equal tokens), `benchmarks/token_loss.py` (a loss over some tokens under LoRA) and `benchmarks/gpu.py` (speed and"
            " memory on CUDA).",
        ]
    )


def summary() -> str:
    """README's table: five results, each with what it does not show."""
    taught, climbed, fast = load("improvement"), load("ladder"), load("engine")
    arms = {row["arm"]: row for row in taught["summary"]}
    own, rule = arms["search"], arms["rule, one chain"]
    over = [f"{name} {gain(arms[name]['primary'])}" for name in ("rft, 8 samples", "grpo, trees", "grpo, samples")]
    repeated, held = load("overlap")["rows"][0]["share"][0], load("structures")["rows"][0]
    rungs = {rung["name"]: rung for rung in climbed["rungs"]}
    sft, grpo = rungs["SFT"], rungs["+GRPO (PRM)"]
    main = settings(climbed)[0]
    methods = {row["name"]: row for row in climbed["methods"] if (row["verifier"], row["budget"]) == main}
    greedy, mcts, rejection, tool = (methods[name] for name in ("greedy", "mcts", "step-rejection", "calculator-tool"))
    fast_rows = [row for row in fast["decode"] if row["batch"] == 32 and row["samples_a_prompt"] == 1]
    rows = [
        {
            "what": "[Training from search](docs/results/improvement.md): expert iteration, the default of `train`",
            "result": f"{taught['start']['greedy'][0]:.3f} -> {own['greedy'][0]:.3f}; over {', over '.join(over)}",
            "on": f"{taught['problems']:,} problems, {len(taught['seeds'])} seeds, {own['tokens'] / 1e6:.1f} M tokens each",
            "not": f"the tree's part: over the rule on one chain a question {gain(rule['primary'])}"
            f" ({verdict(rule['primary'])}); or new kinds of stories: {repeated:.0%} of the problems repeat a training problem"
            f" but for names and numbers; on [kinds of stories](docs/results/structures.md) that nobody trained on, GRPO"
            f" gained {gain(held['gain'])} ({verdict(held['gain'])})",
        },
        {
            "what": "[The ladder](docs/results/ladder.md): SFT, then GRPO with a PRM",
            "result": f"{sft['accuracy'][0]:.3f} -> {grpo['accuracy'][0]:.3f}, over PPO {gain(grpo['gain'])}",
            "on": f"{climbed['problems']:,} harder problems, {len(climbed['seeds'])} seeds,"
            f" {grpo['training_tokens'] / 1e6:.1f} M tokens",
            "not": "that the loss is better than PPO's: recipe stands against recipe",
        },
        {
            "what": "[Search while answering](docs/results/ladder.md#methods-at-equal-tokens): MCTS over greedy",
            "result": f"{greedy['accuracy'][0]:.3f} -> {mcts['accuracy'][0]:.3f}, {gain(greedy['mcts_gain'])}",
            "on": f"same problems, {greedy['tokens']:.0f} -> {mcts['tokens']:.0f} tokens a problem",
            "not": f"that choosing in a tree is what helps: step rejection gets {rejection['accuracy'][0]:.3f}, a calculator"
            f" that writes the results {tool['accuracy'][0]:.3f}",
        },
        {
            "what": "[The engine](docs/results/engine.md): tokens/s over HF `generate`",
            "result": listed(f"{row['over_hf_generate']:.1f}x ({row['model']})" for row in fast_rows),
            "on": "one CPU thread, batch 32",
            "not": "anything about a GPU",
        },
    ]
    rules = load("from_rules")
    found = {row["arm"]: row for row in rules["summary"]}
    best = {
        kind: max((row for arm, row in found.items() if arm.startswith(kind)), key=lambda row: row["greedy"][0])
        for kind in ("sampling", "grpo")
    }
    over = "; ".join(f"over {row['arm']} {gain(row['primary'])}, {verdict(row['primary'])}" for row in best.values())
    rows.append(
        {
            "what": "[From the rules alone](docs/results/from_rules.md): training on what search finds",
            "result": f"{rules['start']['greedy'][0]:.3f} -> {found['search']['greedy'][0]:.3f}; {over}",
            "on": f"{rules['problems']:,} games of five numbers, {len(rules['seeds'])} seeds,"
            f" {found['search']['tokens'] / 1e6:.1f} M tokens",
            "not": "tasks whose steps no rule can check, nor the tree's part beside the rule's",
        }
    )
    stages = load("real_ladder")["stages"]
    warm, name = stages["sft"], best_arm(stages)
    arm = stages[name]
    rows.append(
        {
            "what": f"[A real model](docs/results/real_ladder.md): SmolLM2-135M, SFT, then {ARMS_OF_REAL[name]}",
            "result": f"{warm['test_before']['value']:.3f} -> {warm['test_greedy']['value']:.3f} by SFT, then"
            f" {judged(triple(arm['gain']))}",
            "on": f"{arm['after']['problems']} problems, one seed, two CPU cores",
            "not": "real rows: the problems are the embedded ones",
        }
    )
    head = "| What | Result, 95% interval | Measured on | What it does not show |\n|---|---|---|---|"
    return "\n".join([BEGIN, head, *("| {what} | {result} | {on} | {not} |".format_map(row) for row in rows), END])


def files() -> dict[Path, str]:
    """Every file that this script owns, with the text that it should have."""
    pages = {stem: make(load(stem)) for stem, make in {**LEARNING, **MACHINERY}.items()}
    found = {PAGES / f"{stem}.md": text_of(stem, page) for stem, page in pages.items()}
    found[PAGES / "index.md"] = index(pages)
    found[FROM_RULES_CHART] = learning_curves(load("from_rules"))
    found[IMPROVEMENT_CHART] = learning_curves(load("improvement"))
    head, begin, rest = README.read_text(encoding="utf-8").partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        sys.exit(f"README.md has no place for the table: write {BEGIN} and {END} where it goes")
    found[README] = head + summary() + tail
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 where a file differs")
    check = parser.parse_args().check
    wanted = files()
    unknown = {path.stem for path in DATA.glob("*.json")} - {*LEARNING, *MACHINERY, *ON_ANOTHER_PAGE}
    wrong = [f"benchmarks/results/{stem}.json has no page" for stem in sorted(unknown)]
    wrong += [f"{path.relative_to(ROOT)} has no JSON file" for path in sorted(set(PAGES.glob("*.md")) - set(wanted))]
    for path, text in wanted.items():
        if path.exists() and path.read_text(encoding="utf-8") == text:
            continue
        if check:
            wrong.append(f"{path.relative_to(ROOT)} differs from its JSON file")
        else:
            path.write_text(text, encoding="utf-8")
            print(f"wrote {path.relative_to(ROOT)}")
    if wrong:
        sys.exit("\n".join([*wrong, "run `uv run python scripts/results_pages.py` and commit what it writes"]))


if __name__ == "__main__":
    main()
