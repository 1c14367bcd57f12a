"""Pages of what students learn, and how search and methods answer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from alphazero_llm_trainer.eval.metrics import wilson
from alphazero_llm_trainer.report.charts import line_chart, standalone

from .page import (
    EMBEDDED,
    FROM_RULES_CHART,
    HARDER,
    IMPROVEMENT_CHART,
    REPEATED,
    REPOSITORY,
    TINY,
    Page,
    Row,
    command,
    dots,
    gain,
    judged,
    listed,
    load,
    mean,
    note_of,
    share,
    table,
    twins,
    verdict,
    version_of,
)


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
            twins("student"),
            "It knows about 170 words. On real GSM8K it is close to zero: `uv run vf-eval alphazero-llm-trainer"
            " --env.taskset.source gsm8k` prints the figure.",
        ],
    )


def improvement(data: Row) -> Page:
    kinds = {"greedy": "greedy", "pass_at_8": "one of 8 samples"}
    body, leads = compared_arms(data, kinds, IMPROVEMENT_CHART)
    body += without_twins(data)
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
            twins("improvement"),
            UNCONTROLLED,
            "Intervals are over problems and over the seeds of training; three seeds are few. The arms ask different numbers of"
            " questions, as their commands in the JSON say: a tree that ends at the first right response needs fewer tokens.",
            "Tokens and updates of a round were settled with seed 7 and `search` on validation problems (many small rounds did"
            " better than few large ones) and are the same for all arms but GRPO's, which has the package's defaults. PPO and"
            " legacy training were not run.",
            "`search` was measured on these problems a second time, after searches had stopped to draw steps twice (settled on"
            " the game of numbers, nothing of it here); before, no difference to `rule, one chain` was shown.",
            *version_of(data),
        ],
    )


UNCONTROLLED = (
    "Three things were not controlled: restart chains under the rule until the first right one (the control for the tree),"
    " replay of the demonstrations alone, and equal numbers of updates."
)


def without_twins(data: Row) -> list[str]:
    """The arms on the problems that have no twin among the training problems of `search`."""
    found = load("overlap")["improvement_without_twins"]
    shown = (
        {"arm": row["arm"], "greedy": share(row["greedy"]), "gain": judged(row["greedy_gain"])}
        | {"over": judged(row.get("search_minus_greedy"))}
        for row in found["summary"]
    )
    columns = {"arm": "{arm}", "greedy": "{greedy}", "over the start": "{gain}", "`search` less it": "{over}"}
    return [
        *("", "## On problems without a twin", ""),
        f"{found['problems']:,} of the {data['problems']:,} test problems differ in more than names, things and numbers from"
        f" every training problem of `search` (from those of the other arms more or fewer do: [overlap](overlap.md)).",
        *("", *table(shown, columns)),
    ]


def compared_arms(data: Row, kinds: dict[str, str], chart: Path | None = None) -> tuple[list[str], list[str]]:
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
        *(() if chart is None else (f"![learning curves]({chart.name})",)),
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


AFTER_PPO = "+GRPO (PRM)"  # the rung above PPO's


def ladder(data: Row) -> Page:
    rungs = {rung["name"]: rung for rung in data["rungs"]}
    rows = [
        rung
        | {
            "share": share(rung["accuracy"]),
            "seeds": ", ".join(f"{one:.3f}" for one in rung["by_seed"]),
            "over": "" if rung["name"] == AFTER_PPO else judged(rung.get("gain")),
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
        "Every seed trains its own students, by the recipe of `config/ladder.yaml`. The rung called GRPO learns from the right"
        " responses of one generation of trees, weighted by process credit, without an importance ratio and without wrong"
        " responses: supervised fine-tuning with weights, and not GRPO's loss. It is not compared with PPO, which was not"
        " tuned.",
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
    ]
    return Page(
        "The ladder: Base, SFT, PPO, GRPO, GRPO with MCTS",
        f"SFT {rungs['SFT']['accuracy'][0]:.3f}, weighted SFT on trees {rungs[AFTER_PPO]['accuracy'][0]:.3f}, with MCTS"
        f" {share(rungs['+GRPO (PRM) +MCTS']['accuracy'])}",
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
            twins("ladder"),
            "Recipes were chosen on one earlier student (validation and some of the test problems). PPO trained on a part of"
            " its samples, at a rate that nobody tuned.",
            "`calculator-tool` writes results into the response itself. Its token count is of the model's own tokens alone;"
            " the results that were inserted are left out.",
            "The PRM's tokens count as scored, its prompt included.",
            REPEATED,
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
        [TINY, twins("loop"), "One seed.", REPEATED],
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
            "Two students and generated problems. Training with PRE and without it: see [a real model](real_ladder.md).",
            "A student's likely response is one like its greedy answer: PRE asks for agreement with it, not for truth.",
        ],
    )


PRE_MODELS = {"sft": "SmolLM2-135M after SFT", "embedded": "embedded, 0.66 M"}


def from_rules(data: Row) -> Page:
    kinds = {"greedy": "greedy", "pass_at_8": "one of 8 samples", "search": f"search, {data['budget']} tokens"}
    body, leads = compared_arms(data, kinds, FROM_RULES_CHART)
    end, large = data["first"] + data["problems"], load("from_rules_large_rounds")
    body += [
        *("", "## In fewer, larger rounds", ""),
        f"Measured before, with {large['summary'][0]['tokens'] / 1e6:.1f} M tokens an arm and {rounds_of(large, 'search')} for"
        f" `search` (above: {rounds_of(data, 'search')}), on test problems {large['first']:,} to"
        f" {large['first'] + large['problems'] - 1:,} and from a start of its own. {REPEATED} Each run's command is in"
        f" [its JSON]({REPOSITORY}/blob/main/benchmarks/results/from_rules_large_rounds.json).",
        *compared_arms(large, kinds)[0],
    ]
    best = max(row["search"][0] for row in data["summary"])
    fell = (
        [
            f"With search the start ({data['start']['search'][0]:.3f}) is above the mean of every arm in small rounds"
            f" ({best:.3f} at most). Why was not looked into."
        ]
        if best < data["start"]["search"][0]
        else []
    )
    kept = Counter(run["arm"] for run in data["runs"] if run["kept"].startswith("the student as it was"))
    kept_start = [
        f"Of {len(data['seeds'])} runs of `{arm}` {count} kept the start, because no checkpoint beat it on validation problems:"
        " the arm's figures have the start in them."
        for arm, count in kept.items()
    ]
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
            "Small rounds were taken from what training from the shipped student showed, and not tuned on this game. PPO was"
            " not run.",
            *fell,
            *kept_start,
            *version_of(data),
        ],
    )


def rounds_of(data: Row, arm: str) -> str:
    """The rounds of an arm's runs, as their command says."""
    words = next(run["command"] for run in data["runs"] if run["arm"] == arm).split()
    of_round = next(word for word in words if word.startswith("train.questions_per_round=")).partition("=")[2]
    questions, each = int(words[words.index("-n") + 1]), int(of_round)
    return f"{-(-questions // each):,} rounds of {each:,} questions"


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


def structures(data: Row) -> Page:
    kinds = {"greedy": "held-out structures", "held_in": "held-in structures, held-out numbers"}
    rows = [{"arm": "start", "tokens": "", **{kind: share(data["start"][kind]) for kind in kinds}}]
    for row in data["summary"]:
        both = {kind: f"{share(row[kind])}<br>{judged(row[f'{kind}_gain'])}" for kind in kinds}
        rows.append({"arm": row["arm"], "tokens": f"{row['tokens']:,}", **both})
    against = [
        {"arm": row["arm"], **{kind: judged(row[f"search_minus_{kind}"]) for kind in kinds}}
        for row in data["summary"]
        if row["arm"] != "search"
    ]
    columns = {what: f"{{{kind}}}" for kind, what in kinds.items()}
    search = next(row for row in data["summary"] if row["arm"] == "search")
    last = data["first"] + data["problems"] - 1
    counted = ", ".join(
        f"{data['structures'][kind]} {what} ({data['distinct_by_kind'][kind]} distinct solutions)"
        for kind, what in kinds.items()
    )
    return Page(
        "Stories of a kind that nobody trained on",
        f"expert iteration on held-out structures: {data['start']['greedy'][0]:.3f} -> {search['greedy'][0]:.3f},"
        f" {gain(search['greedy_gain'])} ({verdict(search['greedy_gain'])})",
        "A structure is an opening, its events in order and a closing. `problems.hold_out: structures` keeps whole structures"
        " for the test. A student is trained from scratch on worked solutions of the others alone; then each arm teaches it"
        " on questions of the others, final answers only, and it answers test problems of both kinds greedily.",
        {
            "Problems": f"{EMBEDDED} of each kind: numbers {data['first']:,} to {last:,}; {counted}",
            "Seeds": listed(data["seeds"]) + " of training, one student to start from",
            "Tokens": "sampled in training, in the table",
            "The start": f"`alphazero-llm-trainer {data['start_command']}`",
            "Command": command(data),
        },
        [
            "",
            *table(rows, {"arm": "{arm}", "sampled": "{tokens}", **columns}),
            "Below each accuracy is the gain over the start. The gain of `search` (expert iteration, `train` as it comes) on"
            " held-out structures was the comparison to be made, written down before these problems were read.",
            "",
            "`search` less another arm:",
            *table(against, {"against": "{arm}", **columns}),
        ],
        [
            TINY,
            "Intervals are over distinct worked solutions and over the seeds of training; few seeds are few. The structures"
            " are the generator's own, so a new one is new only within it.",
            *version_of(data),
        ],
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
            twins("value"),
            f"{len(data['rows'])} methods were measured and the intervals are not corrected for so many looks. All of them,"
            " those with the head included, are in the JSON file.",
            "The search arms were measured on these problems a second time, after a review made them keep to their budget.",
            REPEATED,
        ],
    )


PAGE_NAMES = {"default": "what `vf-eval -s` trains"}


def overlap(data: Row) -> Page:
    rows = [
        row
        | {"level": listed(row["levels"]), "part": share(row["share"])}
        | {"of": PAGE_NAMES.get(row["figure"], f"[{row['figure']}]({row['figure']}.md)")}
        for row in data["rows"]
    ]
    columns = {
        "figure": "{of}",
        "student": "{student}",
        "levels": "{level}",
        "training problems": "{training_problems:,}",
        "test problems with a twin": "{twins:,} of {test_problems:,}",
        "share": "{part}",
        "distinct solutions": "{distinct_solutions:,}",
    }
    return Page(
        "How much the test problems repeat the training problems",
        f"from {min(row['share'][0] for row in rows):.0%} to {max(row['share'][0] for row in rows):.0%} of a figure's test"
        " problems have a twin in its training",
        "The splits of the embedded problems share no worked solution. Their sentences come from few patterns, though. A"
        " test problem has a twin when a training problem reads the same once people, pronouns, things, containers and"
        " numbers are masked. Each row is of one figure's own split.",
        {
            "Problems": "the test problems of each figure",
            "Seeds": "none: the problems are numbered",
            "Tokens": "none: no model is asked",
            "Command": command(data),
        },
        table(rows, columns),
        [
            "Accuracy on levels 1 and 2 is to a large part accuracy on known story patterns with new names and numbers. On"
            " levels 3 and 4 it is mostly accuracy on new ones.",
            "The training problems are the demonstrations and the training questions of the student; of `ladder` without the"
            " PRM's, of `value` without the network's.",
        ],
    )


# In the order of the index.
PAGES = (
    student,
    improvement,
    ladder,
    from_rules,
    perplexity_reward,
    value,
    loop,
    overlap,
    structures,
)
