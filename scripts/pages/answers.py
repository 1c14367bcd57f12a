"""Pages of how students answer: search and simpler methods at equal tokens."""

from __future__ import annotations

from .page import (
    EMBEDDED,
    REPOSITORY,
    TINY,
    Page,
    Row,
    command,
    gain,
    judged,
    listed,
    load_if_there,
    share,
    table,
    twins,
    verdict,
    version_of,
)

EMBEDDED_BUDGETS = f"{REPOSITORY}/blob/main/benchmarks/results/search_budgets_embedded.json"


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
        [
            TINY,
            twins("default"),
            "One seed. The gains are not corrected for the number of settings.",
            *version_of(data),
        ],
    )


def search_budgets(data: Row) -> Page:
    studies = [one for one in (data, load_if_there("search_budgets_embedded")) if one is not None]
    body, leads = [], []
    for study in studies:
        for task in study["tasks"]:
            body += budget_tables(task, study["factors"])
            most = str(study["factors"][-1])
            simple = ("step-rejection", "adaptive-best-of-n") if "tuned" in task else ("adaptive-best-of-n",)
            over = (f"{gain(task['minus'][arm][most])} over {arm.replace('-', ' ')}" for arm in simple)
            leads.append(f"{task['name']}, {study['factors'][-1] * task['tokens']:,} tokens: {listed(over)}")
    body += [] if len(studies) == 1 else ["", f"[The JSON]({EMBEDDED_BUDGETS}) of the last task."]
    made = {name: one for study in studies for name, one in study["made"].items()}
    untuned = not all("tuned" in task for study in studies for task in study["tasks"])
    return Page(
        "Search with a growing budget",
        f"PUCT: {'; '.join(leads)}",
        "Selection rules of tree search and simpler methods get the same budgets, verifier and seeds. A budget is sampled and"
        " scored tokens a problem. PUCT, UCB1 and Gumbel are the method `mcts` of `eval` with `search.select`; a method that"
        " finds an accepted response early spends less. All draw without replacement; `steps repeat` is PUCT with"
        " `search.verify.repeat=true`.",
        {
            "Problems": listed(
                f"{task['name']} ({task['problems']:,})" for study in studies for task in study["tasks"]
            ),
            "Seeds": str(data["seed"]),
            "Tokens": "the budgets of the tables; what the largest one took is beside it",
            "Students": listed(
                f"`{one['command']}` (greedy {one['test_greedy']['value']:.3f})" for one in made.values()
            ),
            "Command": listed(map(command, studies)),
        },
        body,
        [
            TINY,
            "One seed of the student and of the draws. The intervals are not corrected for the number of comparisons.",
            "A difference whose interval holds 0 is not shown to be none: so few problems tell large differences alone.",
            *(
                ["`step-rejection` here backs up once and no more, and the simpler methods were not tuned."]
                if untuned
                else []
            ),
            *version_of(data),
        ],
    )


def budget_tables(task: Row, factors: list[int]) -> list[str]:
    """A task's accuracies by budget, and PUCT less each other method."""
    budgets = {f"x{factor}": f"{{x{factor}}}" for factor in factors}
    cells = {(row["arm"], row["factor"]): row for row in task["rows"]}
    rows = []
    for step in task["steps"]:
        fell = [f"x{factor}" for factor, found in step["gains"].items() if found[2] < 0]
        found = {f"x{factor}": share(cells[step["arm"], factor]["accuracy"]) for factor in factors}
        rows.append({"arm": step["arm"], **found, "fell": f"yes, to {listed(fell)}" if fell else "no"})
    last = {row["arm"]: row for row in task["rows"] if row["factor"] == factors[-1]}
    against = [
        {"arm": arm, "tokens": last[arm]["tokens"]} | {f"x{factor}": judged(gains[str(factor)]) for factor in factors}
        for arm, gains in task["minus"].items()
    ]
    settings = f", `{'`, `'.join(task['settings'])}`" if task["settings"] else ""
    return [
        *("", f"## {task['name']}", ""),
        f"{task['problems']:,} test problems of levels {listed(task['levels'])}, {task['distinct']:,} of them distinct;"
        f" verifier `{task['verifier']}`{settings}; x1 is {task['tokens']} tokens.",
        *table(rows, {"method": "{arm}", **budgets, "more tokens ever hurt": "{fell}"}),
        f"PUCT, the default, less another method, which spent so many tokens of x{factors[-1]} (PUCT:"
        f" {last['puct']['tokens']:.0f}):",
        *table(against, {"against": "{arm}", "tokens": "{tokens:.0f}", **budgets}),
        *beside(task, factors),
    ]


def beside(task: Row, factors: list[int]) -> list[str]:
    """What a task has beside its tables: p-values, settings, a solver's line and what the tree knew; of older JSON nothing."""
    lines = []
    if "p" in task:
        rows = [
            {"arm": arm} | {f"x{factor}": f"{task['p'][str(factor)][arm]:.2g}" for factor in factors}
            for arm in task["minus"]
        ]
        lines += [
            "p-values of these differences (exact sign test, Holm over the methods of a budget):",
            *table(rows, {"against": "{arm}"} | {f"x{factor}": f"{{x{factor}}}" for factor in factors}),
        ]
    if "tuned" in task:
        told = (f"{arm}: `{' '.join(one['settings'])}`" for arm, one in task["tuned"].items())
        lines += [f"Tuned on {task['validation']} validation problems at x{task['tuned_at']}: {'; '.join(told)}.", ""]
    if "solver" in task:
        right, took = task["solver"]["right"], task["solver"]["milliseconds"]
        lines += [f"An exhaustive solver solves {right:,} of the {task['problems']:,} games in {took:.1f} ms each.", ""]
    if "inner_nodes" in task:
        known = task["inner_nodes"]
        lines += [
            f"Of the {known['live']:,} visited nodes of {known['games']} trees that steps can still be drawn from,"
            f" {known['sure']:,} have a mean reward of 1: where that is all of them no value guides the search, and what a tree"
            " gains is backtracking and drawing without replacement.",
            "",
        ]
    return lines


def prompts(data: Row) -> Page:
    rows = [
        row | {"name": name, "share": share(row["accuracy"]), "text": row["system_prompt"].replace("|", "\\|")}
        for name, row in data["prompts"].items()
    ]
    best = max(rows, key=lambda row: row["accuracy"][0])
    columns = {
        "prompt": "{name}",
        "right": "{share}",
        "worked solutions before": "{shots}",
        "tokens an answer": "{tokens:.0f}",
        "cut": "{cut:.0%}",
        "no answer stated": "{no_answer:.0%}",
    }
    return Page(
        "What a chat model is told",
        f"{data['model']}: {best['accuracy'][0]:.3f} with the prompt `{best['name']}`,"
        f" {min(row['accuracy'][0] for row in rows):.3f} with the worst one",
        "Greedy answers of a chat model to training rows, with each of several prompts.",
        {
            "Problems": f"{rows[0]['rows']} rows of {data['source']} from row {data['first_row']:,}",
            "Seeds": "none: answers are greedy",
            "Tokens": f"at most {data['max_tokens']} an answer, in the table",
            "Command": command(data),
        },
        [
            *table(rows, columns),
            "The prompts:",
            "",
            *(f"- `{row['name']}`: {' '.join(row['text'].split())}" for row in rows),
        ],
        [
            "One model and few rows: the intervals are wide and overlap, but for the example and placeholder. The rows are"
            " training rows, so that test rows stay unread.",
            "`tutor` is what the package tells chat models about numbers: its last line is the one that search, training and"
            " grading read, and no answer was cut.",
        ],
    )


# In the order of the index.
PAGES = (search_vs_greedy, search_budgets, prompts)
