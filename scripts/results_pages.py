"""The pages of docs/results, and README's table of results, from the JSON files of the benchmarks.

    uv run python scripts/results_pages.py            # write them
    uv run python scripts/results_pages.py --check    # exit 1 where a page and its JSON differ

A page is one function here, registered under the stem of its JSON file. Every figure is read from the JSON or computed
from it. Sentences with a direction ("better", "no difference shown") are computed from the intervals as well, so that
they can't outlive a new measurement.
"""

from __future__ import annotations

import argparse
import html
import json
import sys
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from alphazero_llm_trainer.eval.metrics import paired_bootstrap, wilson

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT / "benchmarks" / "results"
PAGES = ROOT / "docs" / "results"
README = ROOT / "README.md"
STUDENT = ROOT / "alphazero_llm_trainer" / "assets" / "student" / "manifest.json"
BEGIN, END = "<!-- results: begin (scripts/results_pages.py) -->", "<!-- results: end -->"
HIDE = ["---", "hide: [toc]", "---", ""]  # front matter: the tables get that column's room
URLS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["urls"]

Triple = Sequence[float]  # a value with its 95% interval: value, low, high


@dataclass(slots=True)
class Page:
    """One page: `facts` are its measurement in a table, `headline` its line in the index, `body` Markdown lines."""

    title: str
    headline: str
    intro: str
    facts: dict[str, str]
    body: list[str]
    limits: list[str] = field(default_factory=list)


# -- Markdown ----------------------------------------------------------------------------------------------------------


def table(head: str, rows: Sequence[Sequence[str]]) -> list[str]:
    """A Markdown table with blank lines around it; `head` is its first line. Columns after the first are right-aligned."""
    rule = "|".join(["---", *["---:"] * head.count("|")])
    return ["", f"| {head} |", f"|{rule}|", *(f"| {' | '.join(row)} |" for row in rows), ""]


def share(found: Triple) -> str:
    return f"{found[0]:.3f} [{found[1]:.3f}, {found[2]:.3f}]"


def gain(found: Triple) -> str:
    return f"{found[0]:+.3f} [{found[1]:+.3f}, {found[2]:+.3f}]"


def verdict(found: Triple) -> str:
    """What a paired difference says: its interval lies above zero, below it, or holds it."""
    return "better" if found[1] > 0 else "worse" if found[2] < 0 else "no difference shown"


def listed(names: Sequence[str]) -> str:
    return "none" if not names else " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def bits(text: str) -> list[float]:
    """Outcomes that are stored as a character a problem."""
    return [float(one) for one in text]


def over_seeds(outcomes: Sequence[str]) -> list[float]:
    """Each problem's mean outcome over the seeds."""
    return [sum(one) / len(one) for one in zip(*map(bits, outcomes), strict=True)]


def difference(after: Sequence[float], before: Sequence[float]) -> Triple:
    found = paired_bootstrap(after, before)
    return found.value, found.low, found.high


def mean(values: Sequence[float]) -> Triple:
    return difference(values, [0.0] * len(values))


def dots(rows: Sequence[tuple[str, Triple]], what: str, show: Callable[[Triple], str] = share) -> list[str]:
    """A dot plot with intervals as inline SVG: a row has its label, its figure, and a line below them."""
    low, high = min(one[1] for _, one in rows), max(one[2] for _, one in rows)
    low, high = low - 0.05 * (high - low), high + 0.05 * (high - low)
    width, row_height = 420, 38

    def x(value: float) -> str:
        return f"{8 + (width - 16) * (value - low) / (high - low):.1f}"

    height = row_height * len(rows) + 22
    parts = [
        f'<svg class="dots" viewBox="0 0 {width} {height}" role="img" aria-label="{html.escape(what)}">',
        *(
            f'<g transform="translate(0 {row_height * i})"><text x="8" y="14">{html.escape(label)}</text>'
            f'<text class="figure" x="{width - 8}" y="14">{show(found)}</text>'
            f'<line class="axis" x1="8" x2="{width - 8}" y1="26" y2="26"/>'
            f'<line class="interval" x1="{x(found[1])}" x2="{x(found[2])}" y1="26" y2="26"/>'
            f'<circle cx="{x(found[0])}" cy="26" r="4.5"/></g>'
            for i, (label, found) in enumerate(rows)
        ),
        f'<text class="note" x="8" y="{height - 6}">{html.escape(what)}, 95% intervals</text>',
        "</svg>",
    ]
    return ["", "".join(parts), ""]


def command_of(data: dict[str, Any], otherwise: str = "") -> str:
    """The command that wrote a JSON file, as a person types it; `otherwise` where the file doesn't say."""
    command = " ".join(str(data.get("command") or otherwise).split())
    return command if command.startswith("uv run ") else f"uv run {command}"


def load(stem: str) -> dict[str, Any]:
    return json.loads((DATA / f"{stem}.json").read_text(encoding="utf-8"))


# -- learning ----------------------------------------------------------------------------------------------------------

EMBEDDED = "embedded test problems, levels 1 and 2 (2 and 3 steps)"
HARDER = "embedded test problems, levels 3 and 4 (4 to 6 steps)"
TINY = "The student has 0.66 million parameters and the problems come from a generator. It says nothing about larger models."


def twins() -> str:
    """What every accuracy on levels 1 and 2 has to be read with."""
    row = load("overlap")["rows"][0]
    return (
        f"{row['share'][0]:.0%} of the test problems of levels 1 and 2 have a training problem that differs in names, things"
        f" and numbers only ([overlap](overlap.md)). {row['test_problems']:,} of them have {row['distinct_solutions']:,}"
        " distinct worked solutions, so intervals over problems are a little too narrow."
    )


def improvement(data: dict[str, Any]) -> Page:
    runs: dict[str, list[dict[str, Any]]] = {}
    for run in data["runs"]:
        runs.setdefault(run["arm"], []).append(run)
    before = bits(data["runs"][0]["before"])
    control = over_seeds([run["correct"] for run in runs["control: more SFT"]])
    rows, plotted = [], [("before training", mean(before))]
    for arm, found in runs.items():
        after = over_seeds([run["correct"] for run in found])
        over_control = difference(after, control)
        plotted.append((arm, mean(after)))
        rows.append(
            [
                arm,
                share(mean(after)),
                ", ".join(f"{sum(bits(run['correct'])) / len(before):.3f}" for run in found),
                gain(difference(after, before)),
                "" if after == control else f"{gain(over_control)}<br>{verdict(over_control)}",
                f"{sum(run['sampled_tokens'] for run in found) / len(found):,.0f}",
                f"{sum(run['training_seconds'] for run in found) / len(found):,.0f}",
            ]
        )
    tree, chain = (over_seeds([run["correct"] for run in runs[f"grpo, {kind} groups"]]) for kind in ("tree", "chain"))
    chains = difference(chain, tree)
    seeds = [str(run["seed"]) for run in runs["control: more SFT"]]
    headline = difference(tree, before)
    return Page(
        "Does training from search teach?",
        f"GRPO on trees: {sum(before) / len(before):.3f} -> {sum(tree) / len(tree):.3f}, {gain(headline)}",
        "Each arm starts from the student that ships with the package and sees 5,760 new questions with their final answers"
        " only. The control spends the same seconds on more supervised training over the same demonstrations. No teacher"
        " takes part.",
        {
            "Problems": f"{len(before):,} {EMBEDDED}",
            "Seeds": listed(seeds),
            "Tokens": "sampled in training, mean over the seeds, in the table",
            "Command": f"`{command_of(data)}`",
        },
        [
            *dots(plotted, "accuracy on the test problems"),
            *table("arm | after | by seed | over before | over the control | sampled tokens | training seconds", rows),
            "Intervals are over problems, each with its mean over the seeds; seconds are of one core.",
            "",
            f"Chain groups (plain samples from the root) against tree groups, both under GRPO: {gain(chains)},"
            f" {verdict(chains)}. Rows below their group's average count with weight 0.3.",
        ],
        [
            TINY,
            twins(),
            "Two choices were made with test figures in view: the number of demonstrations (for a student between 0.50 and"
            " 0.65) and the weight 0.3 of below-average rows.",
            "Measured with version 0.1.0. It has not been measured again since.",
        ],
    )


def ladder(data: dict[str, Any]) -> Page:
    rungs = [
        [
            rung["name"],
            share(rung["accuracy"]),
            ", ".join(f"{one:.3f}" for one in rung["by_seed"]),
            f"{gain(rung['gain'])}<br>{verdict(rung['gain'])}" if "gain" in rung else "",
            f"{rung['tokens']:.0f}",
            "" if rung["training_tokens"] is None else f"{rung['training_tokens']:,}",
        ]
        for rung in data["rungs"]
    ]
    body = [
        *dots([(rung["name"], rung["accuracy"]) for rung in data["rungs"]], "accuracy on the test problems"),
        *table("rung | accuracy | by seed | over the rung below | tokens a problem | training tokens", rungs),
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
    ]
    for setting in dict.fromkeys((row["verifier"], row["budget"]) for row in data["methods"]):
        rows = [row for row in data["methods"] if (row["verifier"], row["budget"]) == setting]
        against = {row["name"]: verdict(row["mcts_gain"]) for row in rows if "mcts_gain" in row}
        body += [
            "",
            f"### Verifier {setting[0]}, {setting[1]} tokens",
            *table(
                "method | accuracy | sampled | scored | MCTS over it",
                [
                    [
                        row["name"],
                        share(row["accuracy"]),
                        f"{row['sampled_tokens']:.0f}",
                        f"{row['tokens'] - row['sampled_tokens']:.0f}",
                        f"{gain(row['mcts_gain'])}<br>{verdict(row['mcts_gain'])}" if "mcts_gain" in row else "",
                    ]
                    for row in rows
                ],
            ),
            "; ".join(
                f"MCTS {words}: {listed([name for name, one in against.items() if one == word])}"
                for word, words in (
                    ("better", "is above"),
                    ("no difference shown", "is level with"),
                    ("worse", "is below"),
                )
            )
            + ".",
        ]
    body += [
        "",
        "## The process reward model",
        "",
        "Measured on held-out questions that no training saw, beside the policy's own step log-probability. The labels of"
        " the step AUC are exact. Intervals are over questions.",
        *table(
            "seed | pairs: log-probability | PRM | both | step AUC: log-probability | PRM | both",
            [
                [
                    seed,
                    *(
                        share(test[kind][name])
                        for kind in ("pair accuracy", "step AUC")
                        for name in ("policy log-probability", "implicit", "kept + policy log-probability")
                    ),
                ]
                for seed, test in data["prm"].items()
            ],
        ),
        "Most of a PRM's gain is independence: it starts from another seed's student, which errs elsewhere. One that starts"
        " from the policy itself only ties with the log-probability at small learning rates.",
    ]
    limits = [
        TINY,
        "Recipes were chosen on one earlier student (validation and some of the test problems). Read GRPO over PPO as recipe"
        " against recipe, not as loss against loss.",
        "`calculator-tool` writes results into the response itself. Its token count is of the model's own tokens alone; the"
        " results that were inserted are left out.",
        "The PRM's tokens count as scored, its prompt included.",
    ]
    if data.get("note"):
        limits.append(f"Note of the run: {data['note']}.")
    seeds = listed([str(seed) for seed in data["seeds"]])
    by_name = {rung["name"]: rung for rung in data["rungs"]}
    top = by_name["+GRPO (PRM) +MCTS"]
    return Page(
        "The ladder: Base, SFT, PPO, GRPO, GRPO with MCTS",
        f"SFT {by_name['SFT']['accuracy'][0]:.3f}, PPO {by_name['+PPO']['accuracy'][0]:.3f},"
        f" GRPO {by_name['+GRPO (PRM)']['accuracy'][0]:.3f}, with MCTS {share(top['accuracy'])}",
        "Five students, each built on the one before it, and nine methods of answering on the best of them.",
        {
            "Problems": f"{data['problems']:,} {HARDER}",
            "Seeds": seeds,
            "Tokens": "sampled and scored a problem, and sampled in training, in the tables",
            "Time": f"{data['seconds'] / 60:.0f} minutes on 2 cores",
            "Command": f"`{command_of(data)}` (recipe: `config/ladder.yaml`)",
        },
        body,
        limits,
    )


def loop(data: dict[str, Any]) -> Page:
    rows = []
    for one in data["generations"]:
        arena = one["arena"]
        cells = [
            f"{arena[f'champion {kind}']['accuracy'][0]:.3f} -> {arena[f'candidate {kind}']['accuracy'][0]:.3f}"
            f"<br>{gain(arena[f'gain {kind}'])}"
            for kind in ("greedy", "search")
        ]
        cost = sum(part.get("sampled_tokens", 0) + part.get("scored_tokens", 0) for part in one["costs"].values())
        rows.append([str(one["generation"]), *cells, f"{cost:,}", one["decision"]])
    test = data["test"]
    first = data["generations"][0]["arena"]["champion search"]
    earned = [one["generation"] for one in data["generations"] if one["value"]["earned"] or one["verifier"]["chosen"]]
    helped = (
        "In no generation did the value or the PRM help: the calculator alone was as good on validation problems, and cheaper."
        if not earned
        else f"The value or the PRM helped in generation {listed([str(one) for one in earned])}."
    )
    return Page(
        "Generations with a gate",
        f"greedy {test['first student greedy']['accuracy'][0]:.3f} -> {test['champion greedy']['accuracy'][0]:.3f},"
        f" {gain(test['gain greedy'])}",
        "Each generation searches with the champion, trains a candidate on those trees, and lets both meet on fresh problems"
        " at equal tokens. Only a better candidate is promoted.",
        {
            "Problems": f"{first['problems']:,} fresh arena problems a generation; {test['champion greedy']['problems']:,}"
            f" {EMBEDDED}, read once at the end",
            "Seeds": str(data["seed"]),
            "Tokens": "sampled and scored, in the tables",
            "Command": f"`{command_of(data)}`",
        },
        [
            *table(
                f"generation | greedy | {first['method']}, {first['verifier']} | training and arena tokens | decision",
                rows,
            ),
            "The columns in the middle read champion -> candidate, then the paired gain.",
            "",
            "## Test problems",
            *table(
                "method | first student | last champion | gain | tokens a problem",
                [
                    [
                        test[f"champion {kind}"]["method"],
                        share(test[f"first student {kind}"]["accuracy"]),
                        share(test[f"champion {kind}"]["accuracy"]),
                        f"{gain(test[f'gain {kind}'])}<br>{verdict(test[f'gain {kind}'])}",
                        f"{test[f'first student {kind}']['tokens']:.0f} -> {test[f'champion {kind}']['tokens']:.0f}",
                    ]
                    for kind in ("greedy", "search")
                ],
            ),
            helped,
        ],
        [TINY, twins(), "One seed."],
    )


def search_vs_greedy(data: dict[str, Any]) -> Page:
    rows = data["rows"]
    better = [row["method"] for row in rows if row["gain"] and row["gain"][1] > 0]
    mcts = [row for row in rows if row["method"].startswith("mcts")]
    best = max(mcts, key=lambda row: row["accuracy"][0])
    return Page(
        "Search at answering time, judged by perplexity alone",
        f"greedy {rows[0]['accuracy'][0]:.3f}; best MCTS setting {best['accuracy'][0]:.3f}, {gain(best['gain'])}"
        f" ({verdict(best['gain'])})",
        "Step-level MCTS values responses by PRE, their perplexity under the student. No method sees the gold answer and"
        " none uses a teacher. The student is the one that `uv run vf-eval alphazero-llm-trainer -s -- --use-grpo` trains.",
        {
            "Problems": f"{data['num']:,} {EMBEDDED}",
            "Seeds": "7, the command's default",
            "Tokens": "sampled a problem, in the table; tokens that the perplexity computes are not in it",
            "Command": f"`{command_of(data)}`",
        },
        [
            *table(
                "method | accuracy | sampled tokens a problem | over greedy",
                [
                    [
                        row["method"],
                        share(row["accuracy"]),
                        f"{row['tokens']:.0f}",
                        f"{gain(row['gain'])}<br>{verdict(row['gain'])}" if row["gain"] else "",
                    ]
                    for row in rows
                ],
            ),
            f"Above greedy by its interval: {listed(better)}. The student is too sure of its mistakes, and perplexity cannot"
            " tell them apart. See what a [value network](value.md) and an exact check of each step"
            " ([ladder](ladder.md)) can do.",
        ],
        [TINY, twins(), "One seed. The gains are not corrected for the number of settings."],
    )


def value(data: dict[str, Any]) -> Page:
    kinds = data["kinds"]
    names = {
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
    figures = [[name, *(share(kind["test"][key]) for kind in kinds.values())] for key, name in names.items()]
    figures.append(["weight of rollouts, fitted", *(f"{kind['rollout_weight']:.2f}" for kind in kinds.values())])
    figures.append(["training seconds", *(f"{kind['seconds']:,.0f}" for kind in kinds.values())])
    shown = [row for row in data["rows"] if ", head" not in row["method"]]
    majorities = {"majority of 4", "majority of 8", "majority of 16", "greedy"}
    rows = []
    for row in shown:
        equal = row.get("at_all_tokens")
        over = equal["gain"] if equal else None
        rows.append(
            [
                row["method"],
                share(row["accuracy"]),
                f"{row['tokens']:.0f}",
                f"{row['scored_tokens']:.0f}",
                gain(row["gain"]["greedy"]) if "greedy" in row["gain"] else "",
                f"{gain(over)} ({equal['method'].removeprefix('majority of ')})<br>{verdict(over)}"
                if over
                else "none measured",
            ]
        )
    winners = [
        row["method"]
        for row in shown
        if row["method"] not in majorities and row.get("at_all_tokens") and row["at_all_tokens"]["gain"][1] > 0
    ]
    network = next(iter(kinds.values())) if "network" not in kinds else kinds["network"]
    questions = network["questions"]
    return Page(
        "Value functions, and search with them",
        f"AUC {share(network['test']['AUC'])}; {len(winners)} of {len(shown)} methods beat a majority that spends as much",
        "A value function predicts whether a partial response will end right. `head` is a linear probe of the policy's own"
        " hidden states, `network` a model of its own. Then the methods that can use one, against sampling.",
        {
            "Problems": f"{questions['test']:,} {EMBEDDED}, numbers 1,000 and up, which nothing was tuned on",
            "Seeds": str(network["seed"]),
            "Tokens": "sampled by the student and scored by a network of its own, a problem, in the table",
            "Training": f"trees of {questions['training']:,} questions; {questions['validation']:,} validation questions for"
            " stopping, calibration and the weights",
            "Command": f"`{command_of(data)}`",
        },
        [
            "",
            "## On held-out questions",
            *table(" | ".join(["figure", *kinds]), figures),
            *(
                line
                for name, kind in kinds.items()
                for line in (f"- `{name}` {'gets weight' if kind['earned'] else 'gets no weight'}: {kind['why']}.",)
            ),
            "",
            "## Search with the network",
            "",
            "A budget of n samples is the tokens of n whole responses. The last column compares with the smallest majority that"
            " spends at least as many tokens, scored ones included.",
            *table("method | accuracy | sampled | scored | over greedy | over a majority of equal tokens", rows),
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


def overlap(data: dict[str, Any]) -> Page:
    first = data["rows"][0]
    return Page(
        "How much the test problems repeat the training problems",
        f"{share(first['share'])} of the default test problems have a twin in training",
        "The splits of the embedded problems share no worked solution. Their sentences come from few patterns, though. A"
        " test problem has a twin when a training problem reads the same once people, pronouns, things, containers and"
        " numbers are masked.",
        {
            "Problems": f"{first['test_problems']:,} test problems a row",
            "Seeds": "none: the problems are numbered",
            "Tokens": "none: no model is asked",
            "Command": f"`{command_of(data)}`",
        },
        table(
            "levels | training problems | test problems with a twin | share | distinct solutions",
            [
                [
                    listed([str(level) for level in row["levels"]]),
                    f"{row['training_problems']:,}",
                    f"{row['twins']:,} of {row['test_problems']:,}",
                    share(row["share"]),
                    f"{row['distinct_solutions']:,}",
                ]
                for row in data["rows"]
            ],
        ),
        [
            "Accuracy on levels 1 and 2 is therefore accuracy on known story patterns with new names and numbers. On levels 3"
            " and 4 it is mostly accuracy on new ones.",
            "The training problems are those of a default run, demonstrations included. Longer runs see more.",
        ],
    )


def student(data: dict[str, Any]) -> Page:
    test, eight = data["test_greedy"], data["test_pass_at_8"]
    greedy = (test["value"], test["low"], test["high"])
    return Page(
        "The student that ships with the package",
        f"greedy {share(greedy)}, pass@8 {eight['value']:.3f}",
        "A Llama with 3 layers and a vocabulary of words and digits, trained from scratch on worked solutions.",
        {
            "Problems": f"{test['problems']:,} {EMBEDDED}",
            "Seeds": str(data["seed"]),
            "Size": f"{data['parameters']:,} parameters",
            "Training": f"{data['rows']:,} demonstrations, {data['steps']:,} updates, {data['seconds']:,.0f} seconds",
            "Command": f"`{command_of(data)}`",
        },
        table(
            "figure | value",
            [
                ["greedy accuracy", share(greedy)],
                ["pass@8", share((eight["value"], eight["low"], eight["high"]))],
                ["validation accuracy at the kept update", f"{data['validation_accuracy']:.3f}"],
            ],
        ),
        [
            TINY,
            twins(),
            "It knows about 170 words. On real GSM8K it is close to zero; `uv run vf-eval alphazero-llm-trainer"
            " --env.taskset.source gsm8k` prints the figure.",
        ],
    )


# -- speed, memory, robustness -----------------------------------------------------------------------------------------

RATIOS = "Ratios carry over to another machine, absolute times do not."


def engine(data: dict[str, Any]) -> Page:
    found = data["search"]
    best = next(row for row in data["decode"] if row["batch"] == 32)
    return Page(
        "The in-process engine against `generate`",
        f"{best['over_hf_generate']:.1f} times Hugging Face `generate` at batch 32, on one CPU thread",
        "Tokens a second of CPU time for 48 new tokens a row, prompts included. The floor is the time of the linear layers'"
        " matrix products alone, as PyTorch computes them at that batch; a share above 100% means that the engine's own"
        " kernels are faster than those.",
        {
            "Problems": "embedded prompts, or random tokens for the random Llama",
            "Seeds": "fixed in the benchmark",
            "Tokens": "48 new tokens a row",
            "Threads": "1",
            "Command": f"`{command_of(data)}`",
        },
        [
            *table(
                "model | batch | engine | `generate` | ratio | decoding only: ratio | of the floor | over re-prefill",
                [
                    [
                        row["model"] + (f", {row['samples_a_prompt']} a prompt" if row["samples_a_prompt"] > 1 else ""),
                        str(row["batch"]),
                        f"{row['ours_tokens_per_second']:,.0f}",
                        f"{row['hf_generate_tokens_per_second']:,.0f}",
                        f"{row['over_hf_generate']:.1f}x",
                        f"{row['decode_over_hf_generate']:.1f}x",
                        f"{row['share_of_floor']:.0%}",
                        f"{row['over_reprefill']:.0f}x",
                    ]
                    for row in data["decode"]
                ],
            ),
            f"A step-level search of {found['trees']} trees runs {found['simulations_per_second']:,.0f} simulations a second,"
            f" samples {found['sampled_tokens_per_second']:,.0f} tokens a second and computes"
            f" {found['computed_per_unique_token']:.2f} tokens a distinct tree token"
            f" ({found['without_reuse_per_unique_token']:.1f} without reuse).",
        ],
        ["Measured on a CPU. On CUDA the engine runs PyTorch's forward; nothing was measured there.", RATIOS],
    )


def search(data: dict[str, Any]) -> Page:
    body = []
    for part in ("feasibility", "student"):
        body += [
            "",
            f"## {'A random Llama of 3 M parameters' if part == 'feasibility' else 'The embedded student'}",
            *table(
                "search | trees | at once | simulations/s | CPU ms a simulation | over (a) | tokens a simulation"
                " | tokens a unique token | in the forward | identical trees",
                [
                    [
                        row["label"],
                        str(row["trees"]),
                        str(row["at_once"] or row["trees"]),
                        f"{row['simulations_per_second']:,.1f}",
                        f"{row['cpu_ms_per_simulation']:.2f}",
                        f"{row['cpu_gain']:.0f}x",
                        f"{row['tokens_per_simulation']:.1f}",
                        f"{row['tokens_per_unique_token']:.2f}",
                        f"{row['forward_share']:.0%}",
                        f"{row['identical_trees']} of {row['compared_trees']}" if "compared_trees" in row else "",
                    ]
                    for row in data[part]["rows"]
                ],
            ),
        ]
    ours = max(
        (row for row in data["feasibility"]["rows"] if row["label"].startswith("(c)")), key=lambda row: row["cpu_gain"]
    )
    body += [
        "",
        "## Cost against work",
        *table(
            "work | CPU ms a simulation | CPU time | computed tokens",
            [
                [
                    row["label"],
                    f"{row['cpu_ms_per_simulation']:.2f}",
                    f"{row.get('cpu_growth', 1.0):.1f}x",
                    f"{row.get('token_growth', 1.0):.1f}x",
                ]
                for row in data["work"]
            ],
        ),
        "Time grows with trees and simulations as the work does, and with length faster than tokens: attention.",
    ]
    seeds = ", ".join(f"{name.replace('_', ' ')} {seed}" for name, seed in data["seeds"].items())
    return Page(
        "Token-level search against the plain way",
        f"{ours['cpu_gain']:.0f} times less CPU time a simulation than the plain way with {ours['at_once']} trees at once",
        f"24 simulations a tree, {data['top_k']} children a node, c = {data['exploration']:.0f}. (a) and (b) are the plain way"
        " (`benchmarks/plain_search.py`): the prefix is computed again for every call, one tree at a time. The feasibility"
        " setting has prompts of 160 tokens, a horizon of 96 and a reward that is a hash of the response.",
        {
            "Problems": "trees as the table says",
            "Seeds": seeds,
            "Tokens": "computed a simulation, in the table",
            "Device": data["device"],
            "Command": f"`{command_of(data)}`",
        },
        body,
        [
            "The aim was 100 times less CPU time at 64 trees. It depends on what else the machine does: repeated runs of this"
            " command came out on both sides of it.",
            "How often trees branch decides a lot: see the rows with other rewards. Beam rollouts gain far less.",
            RATIOS,
        ],
    )


def vllm_cpu(data: dict[str, Any]) -> Page:
    best, worst = (f(row["ratio_tokens_per_second"] for row in data["rows"]) for f in (max, min))
    return Page(
        "The engine against vLLM's CPU build",
        f"{worst:.1f} to {best:.1f} times vLLM {data['theirs']['vllm']} on one thread",
        "Same prompts, one thread, fp32, temperature 1, best of several repeats. The engine always returns log-probabilities;"
        " vLLM was timed without and with them.",
        {
            "Problems": "random or embedded prompts, as many as the requests",
            "Seeds": ", ".join(f"{name.replace('_', ' ')} {seed}" for name, seed in data["seeds"].items()),
            "Tokens": "48 new tokens a request",
            "Device": data["device"],
            "Command": f"`{command_of(data)}`",
        },
        table(
            "model | requests | engine, tokens/s | vLLM | vLLM with log-probabilities | ratio | ratio by CPU time",
            [
                [
                    row["model"],
                    str(row["batch"]),
                    f"{row['ours_tokens_per_second']:,.0f}",
                    f"{row['vllm_tokens_per_second']:,.0f}",
                    f"{row['vllm_logprobs_tokens_per_second']:,.0f}",
                    f"{row['ratio_tokens_per_second']:.1f}x",
                    f"{row['ratio_tokens_per_cpu_second']:.1f}x",
                ]
                for row in data["rows"]
            ],
        ),
        ["Tiny models on a CPU, which is not what vLLM is made for. Nothing was measured on a GPU.", RATIOS],
    )


def vllm_contract(data: dict[str, Any]) -> Page:
    def cell(found: Any) -> str:
        if found is None:
            return ""
        if isinstance(found, list):
            return ", ".join(map(str, found))
        return f"{found:.1e}" if isinstance(found, float) and 0 < abs(found) < 0.01 else f"{found:,}"

    worst = max(row["difference"] for row in data["rows"] if "nats" in row["what"])
    return Page(
        "vLLM gives what the in-process engine gives",
        f"log-probabilities within {worst:.0e} nats on every check",
        "The same requests go to the in-process engine and to vLLM's CPU build, in process and as a server on loopback.",
        {
            "Problems": "prompts and trees as the rows say, embedded student",
            "Seeds": "fixed in the script",
            "Tokens": "as the rows say",
            "Device": data["device"],
            "Versions": ", ".join(f"{name} {version}" for name, version in data["versions"].items()),
            "Command": "`VLLM_CPU_ENV=ENV scripts/vllm_cpu.sh`",
        },
        table(
            "check | backend | in-process engine | vLLM | difference",
            [
                [row["what"], row["backend"], cell(row["inprocess"]), cell(row["vllm"]), cell(row["difference"])]
                for row in data["rows"]
            ],
        ),
        ["Sleep and wake, 4-bit loading in vLLM and CUDA graphs need a GPU and were not run."],
    )


def tree_training(data: dict[str, Any]) -> Page:
    rows = [row for row in data["rows"] if "all trees" in row["batch"] or "together" in row["batch"]]
    largest = max(data["rows"], key=lambda row: row["ratio"])
    rows += [row for row in data["rows"] if row["ratio"] == largest["ratio"]]
    worst = max(row["gradient_difference"] for row in data["rows"])
    usual = next(row for row in rows if row["batch"].startswith("default mix, all trees"))
    return Page(
        "Shared prefixes trained once",
        f"{usual['speedup']:.1f} times less CPU time a step on the default problems, same gradient",
        "CPU seconds of forward and backward: one row a response (flat) against all responses of a question in one sequence"
        " (packed), on real trees of 60 simulations.",
        {
            "Problems": "trees of embedded training problems",
            "Seeds": "fixed in the benchmark",
            "Tokens": "flat and unique tokens of a batch, in the table",
            "Threads": "1",
            "Command": f"`{command_of(data)}`",
        },
        [
            *table(
                "model | batch | rows | flat / unique tokens | flat tokens | unique tokens | speed-up",
                [
                    [
                        row["model"],
                        row["batch"] if row["ratio"] != largest["ratio"] else "the largest tree",
                        str(row["rows"]),
                        f"{row['ratio']:.2f}",
                        f"{row['flat_tokens']:,}",
                        f"{row['unique_tokens']:,}",
                        f"{row['speedup']:.2f}x",
                    ]
                    for row in rows
                ],
            ),
            f"Gradients of the two ways differ by at most {worst:.0e} (relative). Masked attention is about a third of the"
            " packed time, so the gain is smaller than the ratio of tokens.",
        ],
        [RATIOS],
    )


def memory(data: dict[str, Any]) -> Page:
    over = max(abs(one - 1) for row in data["rows"] for one in row["ratio_over_load"].values())
    shared = load("shared_base")
    limits = ["Random weights on a CPU. The plan for CUDA uses the same sums and was not checked on a GPU."]
    if data.get("note"):
        limits.append(f"Note of the run: {data['note']}.")
    return Page(
        "The memory plan against real peaks",
        f"within {data['worst']:.0%} of the peak of every phase",
        "`info --plan` and `train --dry-run` forecast memory before anything is loaded. Here it stands beside the most that"
        " PyTorch's allocator had handed out at once.",
        {
            "Problems": "random Llamas of 20 and 60 million parameters, whole and as NF4 with LoRA",
            "Seeds": "fixed in the benchmark",
            "Tokens": f"prompts of {data['rows'][0]['prompt']}, rows of {data['rows'][0]['length']}",
            "Command": f"`{command_of(data)}`",
        },
        [
            *table(
                "model | arm | phase | forecast, MiB | peak, MiB | forecast / peak",
                [
                    [
                        row["size"],
                        row["arm"].replace("again", "activations computed again"),
                        phase,
                        f"{row['forecast'][phase] / 2**20:,.0f}",
                        f"{row['allocated'][phase] / 2**20:,.0f}",
                        f"{row['ratio'][phase]:.3f}",
                    ]
                    for row in data["rows"]
                    for phase in ("load", "search", "train")
                ],
            ),
            f"Of what a phase adds to the loaded weights the forecast is off by at most {over:.0%}.",
            "",
            "## One base, many adapters",
            "",
            f"A random Llama of {shared['parameters'] / 1e6:.0f} million parameters in 4 bits takes {shared['base_mb']:.0f} MB."
            f" With {shared['adapters']} adapters over it (policy, value, PRM, critic) and a reference that is the base itself"
            f" it takes {shared['shared_mb']:.0f} MB; copies would take {shared['copies_mb']:.0f} MB"
            " (`uv run python benchmarks/shared_base.py`).",
        ],
        limits,
    )


def serve(data: dict[str, Any]) -> Page:
    names = dict.fromkeys(name.rpartition("/")[0] for name in data["http"])
    soak = data["soak"]
    one, sixteen = (data["http"][f"sample/{n}"]["requests_per_second"] for n in (1, 16))
    return Page(
        "Serving",
        f"{one:.0f} plain answers a second to one client, {sixteen:.0f} to sixteen",
        "The embedded student behind the OpenAI-compatible server on loopback, clients on the same cores. `bare` is the same"
        " work without HTTP.",
        {
            "Problems": "embedded questions, each asked once",
            "Seeds": "fixed in the benchmark",
            "Tokens": "sampled a second, in the table",
            "Cores": str(data["cores"]),
            "Command": "`uv run python benchmarks/serve.py`",
        },
        [
            *table(
                "method | clients | p50, ms | p95, ms | p99, ms | requests/s | sampled tokens/s | bare: requests/s",
                [
                    [
                        name,
                        str(clients),
                        f"{row['p50_ms']:.1f}",
                        f"{row['p95_ms']:.1f}",
                        f"{row['p99_ms']:.1f}",
                        f"{row['requests_per_second']:.0f}",
                        f"{row['sampled_tokens_per_second']:,.0f}",
                        f"{data['bare'][f'{name}/{clients}']['requests_per_second']:.0f}",
                    ]
                    for name in names
                    for clients in (1, 4, 16, 64)
                    for row in [data["http"][f"{name}/{clients}"]]
                ],
            ),
            "## A minute of 64 clients",
            "",
            f"All methods mixed, each request with a deadline of 2 s or 500 ms, {soak['seconds']:.0f} seconds:"
            f" {soak['requests']:,} requests ({soak['requests_per_second']:.0f} a second),"
            f" {sum(soak['errors'].values())} errors, memory {soak['before']['rss_mib']:,.1f} to"
            f" {soak['after']['rss_mib']:,.1f} MiB, and {soak['after']['live_searches']:.0f} searches alive afterwards. The"
            f" deadline ended {soak['deadlines_hit']:,} answers. {soak['over_100_ms_late']} of them came more than 100 ms"
            f" late, the worst {soak['late_max_ms']:.0f} ms: one event loop computes and answers.",
        ],
        ["A tiny model on a CPU: this measures the server, not a useful model.", RATIOS],
    )


def kill_test(data: dict[str, Any]) -> Page:
    kinds = ", ".join(f"{kind} {count}" for kind, count in data["kills"].items())
    return Page(
        "Nothing is lost when processes die",
        f"{data['kills_in_all']} kills, {data['lost']} trees lost, {data['duplicate']} twice",
        "A sampling run under Ray whose processes are killed with SIGKILL at random moments. After each death of the driver it"
        " is started again with `--resume`.",
        {
            "Problems": f"{data['questions']} embedded training questions",
            "Seeds": str(data["seed"]),
            "Tokens": "not counted",
            "Command": f"`{command_of(data)}`",
        },
        table(
            "figure | value",
            [
                ["processes killed", kinds],
                ["trees at the end", f"{data['trees']} of {data['questions']}"],
                ["lost, twice, half written", f"{data['lost']}, {data['duplicate']}, {data['half_written']}"],
                ["equal to an undisturbed run's", f"{data['same_as_undisturbed']} of {data['questions']}"],
                ["sessions", str(data["sessions"])],
                ["seconds", f"{data['seconds']:.0f}"],
            ],
        ),
        [
            "Equal means the same tree, costs aside and log-probabilities to three digits.",
            "One machine with two cores.",
        ],
    )


def teacher_faults(data: dict[str, Any]) -> Page:
    rows = []
    for name, found in data["scenarios"].items():
        if "trees" not in found:
            continue
        spent, ended = found["charged_by_server"], sum(found["trees"]["ended"].values())
        limits = {key: limit for key, limit in found["budget"]["limits"].items() if limit is not None}
        rows.append(
            [
                name,
                f"{found['requests']:,}",
                f"{ended} of {found['trees']['asked']}",
                str(found["most_attempts_of_a_request"]),
                f"${spent['dollars']:.3f}, {spent['tokens']:,} tokens",
                ", ".join(f"{limit:,} {key}" for key, limit in limits.items()) or "none",
                "all" if all(found["verdicts"].values()) else "NOT all",
            ]
        )
    faults = data["scenarios"]["faults"]["ledgers"]
    good, poor = faults["bench/good"], faults["bench/poor"]
    return Page(
        "Teachers that misbehave",
        f"{data['requests']:,} requests to a faulty server, {'every' if data['held'] else 'NOT every'} check held",
        "Real searches ask four remote teachers on a loopback server that injects more than 20 kinds of faults and keeps its"
        " own books. Checks: no tree is lost, attempts are bounded, the ledgers equal the server's books where answers arrived,"
        " budgets hold, no connection or task is left, the key is on no disk.",
        {
            "Problems": "embedded training questions, as many as the trees",
            "Seeds": "fixed in the benchmark",
            "Tokens": "charged by the server, in the table",
            "Command": f"`{command_of(data)}`",
        },
        [
            *table("scenario | requests | trees ended | most attempts | charged | limit | checks held", rows),
            "Reservations are careful: an answer that never arrived is booked at the most it could have cost.",
            "",
            f"In the first scenario the good teacher's steps were worth {good['mean_value']:.3f} to the student and the poor"
            f" one's {poor['mean_value']:.3f}; the bandit asked them {good['calls']} and {poor['calls']} times. The value of a"
            " step to the student is all that the bandit sees.",
        ],
        ["No real provider was called: the model ids of `config/teacher_models.yaml` are untested."],
    )


def grade_agreement(data: dict[str, Any]) -> Page:
    rows, perfect, everything = [], 0, 0
    for source in ("gsm8k", "math", "hotpotqa"):
        found = data[source]
        counts = {name: 0 for name in found["graders"]}
        pairs = 0
        for patterns in found["patterns"].values():
            for pattern, number in patterns.items():
                pairs += number
                for name, mark in zip(found["graders"], pattern, strict=True):
                    counts[name] += number * (mark == "+")
        selves = found["rows"] - len(found["self_failures"])
        perfect, everything = perfect + selves, everything + found["rows"]
        rows.append(
            [
                source,
                f"{selves:,} of {found['rows']:,}",
                f"{pairs:,}",
                *(share(_wilson(counts[name], pairs)) for name in found["graders"]),
            ]
        )
    return Page(
        "The graders on real rows",
        f"{perfect:,} of {everything:,} gold answers are correct against themselves",
        "Every gold answer is graded against itself. Then pairs are made from the rows (other spellings of the gold answer, and"
        " wrong answers) and three graders say correct or wrong: this package's, math-verify alone, and plain string match.",
        {
            "Problems": "GSM8K train and test, MATH-500, part of HotpotQA's validation split",
            "Seeds": "fixed in the command",
            "Tokens": "none: no model is asked",
            "Command": f"`{command_of(data)}`",
        },
        table("rows | gold equals itself | pairs | this package | math-verify | string match", rows),
        [
            "Most pairs are easy, pairs of one row are not independent, and one guard was added after seeing them.",
            "A verdict of this table is about spellings. It does not show that every wrong answer is found.",
        ],
    )


def _wilson(successes: int, trials: int) -> Triple:
    found = wilson(successes, trials)
    return found.value, found.low, found.high


# -- the whole ---------------------------------------------------------------------------------------------------------

# Stem of the JSON file -> its page, in the order of the index.
LEARNING: dict[str, Callable[[dict[str, Any]], Page]] = {
    "improvement": improvement,
    "ladder": ladder,
    "search_vs_greedy": search_vs_greedy,
    "value": value,
    "loop": loop,
    "overlap": overlap,
}
MACHINERY: dict[str, Callable[[dict[str, Any]], Page]] = {
    "engine": engine,
    "search": search,
    "vllm_cpu": vllm_cpu,
    "vllm_contract": vllm_contract,
    "tree_training": tree_training,
    "memory": memory,
    "serve": serve,
    "kill_test": kill_test,
    "teacher_faults": teacher_faults,
    "grade_agreement": grade_agreement,
}
ON_ANOTHER_PAGE = {"shared_base"}  # memory's


def source_of(stem: str) -> Path:
    return STUDENT if stem == "student" else DATA / f"{stem}.json"


def text_of(stem: str, page: Page) -> str:
    """A page as Markdown."""
    source = source_of(stem).relative_to(ROOT).as_posix()
    facts = page.facts | {"Data": f"[`{source}`]({URLS['Repository']}/blob/main/{source})"}
    lines = [
        *HIDE,
        f"# {page.title}",
        "",
        f"<!-- Written by scripts/results_pages.py from {source}: change those. -->",
        "",
        page.intro,
        "",
        *(f"- **{name}**: {text}" for name, text in facts.items()),
        *page.body,
    ]
    if page.limits:
        lines += ["", "## What this does not show", "", *(f"- {limit}" for limit in page.limits)]
    return squeezed(lines)


def squeezed(lines: Sequence[str]) -> str:
    """Lines as a file's text, without two blank ones in a row."""
    kept = [line for i, line in enumerate(lines) if line or (i and lines[i - 1])]
    return "\n".join(kept).rstrip() + "\n"


def index(pages: dict[str, Page]) -> str:
    def rows(stems: Sequence[str]) -> list[str]:
        return [
            "",
            "| Result | In one line |",
            "|---|---|",
            *(f"| [{pages[stem].title}]({stem}.md) | {pages[stem].headline} |" for stem in stems),
            "",
        ]

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
            *rows(["student", *LEARNING]),
            "## Machinery",
            *rows(list(MACHINERY)),
            "## Not measured yet",
            "",
            "These commands exist and have not been run in full: `benchmarks/tree_grpo.py` (tree GRPO against plain TRL GRPO at"
            " equal tokens), `benchmarks/token_loss.py` (a loss over some tokens under LoRA) and `benchmarks/gpu.py` (speed and"
            " memory on CUDA).",
        ]
    )


def summary() -> str:
    """README's table: four results, each with what it does not show."""
    taught, climbed, fast = load("improvement"), load("ladder"), load("engine")
    runs = [run for run in taught["runs"] if run["arm"] == "grpo, tree groups"]
    before, after = bits(runs[0]["before"]), over_seeds([run["correct"] for run in runs])
    chains = over_seeds([run["correct"] for run in taught["runs"] if run["arm"] == "grpo, chain groups"])
    rungs = {rung["name"]: rung for rung in climbed["rungs"]}
    main = climbed["methods"][0]
    methods = {
        row["name"]: row
        for row in climbed["methods"]
        if (row["verifier"], row["budget"]) == (main["verifier"], main["budget"])
    }
    mcts, greedy, rejection, tool = (methods[name] for name in ("mcts", "greedy", "step-rejection", "calculator-tool"))
    grpo = rungs["+GRPO (PRM)"]
    speed = {row["model"]: row["over_hf_generate"] for row in fast["decode"] if row["batch"] == 32}
    tokens = sum(run["sampled_tokens"] for run in runs) / len(runs)
    repeated = load("overlap")["rows"][0]["share"][0]
    seeds, problems = len(climbed["seeds"]), climbed["problems"]
    rows = [
        [
            "[Training from search](docs/results/improvement.md): GRPO on trees",
            f"{sum(before) / len(before):.3f} -> {sum(after) / len(after):.3f}, {gain(difference(after, before))}",
            f"{len(before):,} problems, {len(runs)} seeds, {tokens / 1e6:.1f} M tokens",
            f"that trees beat plain samples (those got {sum(chains) / len(chains):.3f}), or new kinds of stories:"
            f" {repeated:.0%} of the problems repeat a training problem but for names and numbers",
        ],
        [
            "[The ladder](docs/results/ladder.md): SFT, then GRPO with a PRM",
            f"{rungs['SFT']['accuracy'][0]:.3f} -> {grpo['accuracy'][0]:.3f}, over PPO {gain(grpo['gain'])}",
            f"{problems:,} harder problems, {seeds} seeds, {grpo['training_tokens'] / 1e6:.1f} M tokens",
            "that the loss is better than PPO's: recipe stands against recipe",
        ],
        [
            "[Search while answering](docs/results/ladder.md#methods-at-equal-tokens): MCTS over greedy",
            f"{greedy['accuracy'][0]:.3f} -> {mcts['accuracy'][0]:.3f}, {gain(greedy['mcts_gain'])}",
            f"same problems, {greedy['tokens']:.0f} -> {mcts['tokens']:.0f} tokens a problem",
            f"that choosing in a tree is what helps: step rejection gets {rejection['accuracy'][0]:.3f}, a calculator that"
            f" writes the results {tool['accuracy'][0]:.3f}",
        ],
        [
            "[The engine](docs/results/engine.md): tokens/s over HF `generate`",
            " and ".join(f"{ratio:.1f}x ({model})" for model, ratio in speed.items() if "a prompt" not in model),
            "one CPU thread, batch 32",
            "anything about a GPU",
        ],
    ]
    head = "| What | Result, 95% interval | Measured on | What it does not show |\n|---|---|---|---|"
    return "\n".join([BEGIN, head, *(f"| {' | '.join(row)} |" for row in rows), END])


def files() -> dict[Path, str]:
    """Every file that this script owns, with the text that it should have."""
    makers = {"student": student, **LEARNING, **MACHINERY}
    pages = {stem: make(json.loads(source_of(stem).read_text(encoding="utf-8"))) for stem, make in makers.items()}
    found = {PAGES / f"{stem}.md": text_of(stem, page) for stem, page in pages.items()}
    found[PAGES / "index.md"] = index(pages)
    readme = README.read_text(encoding="utf-8")
    head, begin, rest = readme.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"README.md has no place for the table: write {BEGIN} and {END} where it goes")
    found[README] = head + summary() + tail
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 where a file differs")
    check = parser.parse_args().check
    stems = {path.stem for path in DATA.glob("*.json")}
    wrong = [
        f"{DATA.name}/{stem}.json has no page" for stem in sorted(stems - {*LEARNING, *MACHINERY, *ON_ANOTHER_PAGE})
    ]
    wanted = files()
    wrong += [f"{path.relative_to(ROOT)} has no JSON file" for path in sorted(set(PAGES.glob("*.md")) - set(wanted))]
    for path, text in wanted.items():
        if path.exists() and path.read_text(encoding="utf-8") == text:
            continue
        if check:
            wrong.append(f"{path.relative_to(ROOT)} differs from its JSON file")
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            print(f"wrote {path.relative_to(ROOT)}")
    if wrong:
        sys.exit("\n".join([*wrong, "run `uv run python scripts/results_pages.py` and commit what it writes"]))


if __name__ == "__main__":
    main()
