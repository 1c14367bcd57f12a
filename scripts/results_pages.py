"""The pages of docs/results, and README's table of results, from the JSON files of the benchmarks.

    uv run python scripts/results_pages.py            # write them
    uv run python scripts/results_pages.py --check    # exit 1 where a page and its JSON differ

A page is one function of `pages/`, with the name of its JSON file. Every figure is read from the JSON or computed from it,
and so is every "better" or "no difference shown" beside one, so that no sentence outlives a new measurement.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from pages import answers, engines, learning, real, robustness, trl
from pages.learning import learning_curves, settings
from pages.page import (
    BEGIN,
    DATA,
    END,
    FROM_RULES_CHART,
    IMPROVEMENT_CHART,
    PAGES,
    README,
    REPOSITORY,
    ROOT,
    STUDENT,
    Page,
    Row,
    gain,
    judged,
    listed,
    load,
    twins,
    verdict,
)

# Stem of the JSON file, which is the function's name -> its page.
LEARNING = {page.__name__: page for page in (*learning.PAGES, *answers.PAGES, *real.PAGES, *trl.PAGES)}
MACHINERY = {page.__name__: page for page in (*engines.PAGES, *robustness.PAGES)}
ON_ANOTHER_PAGE = {
    "shared_base",
    "from_rules_large_rounds",
    "real_ladder_first",
    "step_search_vllm",
    "real_structures",
    "real_judges",
    "search_budgets_embedded",
    "search_budgets_votes",
}  # of memory, from_rules, real_ladder, vllm_cpu, search_budgets


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
            "- The student is tiny and the problems are generated, except where a page names a real language model.",
            f"- {twins()}",
            "- Nothing was measured on a GPU.",
            "",
            "## Learning and answering",
            *rows(LEARNING),
            "## Machinery",
            *rows(MACHINERY),
            "## Not measured yet",
            "",
            "This command exists and has not been run: `benchmarks/gpu.py` (speed and memory on CUDA).",
        ]
    )


def at_most(task: Row, arm: str, factor: int) -> Row:
    """A method's row of `search_budgets` with its largest budget."""
    return next(row for row in task["rows"] if (row["arm"], row["factor"]) == (arm, factor))


def summary() -> str:
    """README's table: five results, each with what it does not show."""
    taught, climbed, fast = load("improvement"), load("ladder"), load("engine")
    arms = {row["arm"]: row for row in taught["summary"]}
    own = arms["search"]
    others = [row for row in taught["summary"] if row is not own]
    over = [f"{row['arm']} {gain(row['primary'])}" for row in others if row["primary"][1] > 0]
    same = [f"over {row['arm']} {judged(row['primary'])}; " for row in others if row["primary"][1] <= 0]
    repeated, held = load("overlap")["rows"][0]["share"][0], load("structures")
    new_kinds = next(row for row in held["summary"] if row["arm"] == "search")["greedy_gain"]
    rungs = {rung["name"]: rung for rung in climbed["rungs"]}
    sft, grpo = rungs["SFT"], rungs["+GRPO (PRM)"]
    main = settings(climbed)[0]
    methods = {row["name"]: row for row in climbed["methods"] if (row["verifier"], row["budget"]) == main}
    mcts, tool = (methods[name] for name in ("mcts", "calculator-tool"))
    game, most = load("search_budgets")["tasks"][0], load("search_budgets")["factors"][-1]
    simple, tree = (at_most(game, arm, most) for arm in ("adaptive-best-of-n", "puct"))
    over_simple = game["minus"]["adaptive-best-of-n"][str(most)]
    [easy] = load("search_budgets_embedded")["tasks"]
    mended = easy["minus"]["adaptive-best-of-n"]
    fast_rows = [row for row in fast["decode"] if row["batch"] == 32 and row["samples_a_prompt"] == 1]
    rows = [
        {
            "what": "[Training from search](docs/results/improvement.md): expert iteration, the default of `train`",
            "result": f"{taught['start']['greedy'][0]:.3f} -> {own['greedy'][0]:.3f}; over {', over '.join(over)}",
            "on": f"{taught['problems']:,} problems, {len(taught['seeds'])} seeds, {own['tokens'] / 1e6:.1f} M tokens, the"
            f" others {min(row['tokens'] for row in others) / 1e6:.1f} M or more",
            "not": f"{''.join(same)}new kinds of stories: {repeated:.0%} of the problems repeat a training problem"
            f" but for names and numbers; on [kinds](docs/results/structures.md) that nobody trained on, another student gained"
            f" {gain(new_kinds)} ({verdict(new_kinds)})",
        },
        {
            "what": "[The ladder](docs/results/ladder.md): SFT, then GRPO with a PRM",
            "result": f"{sft['accuracy'][0]:.3f} -> {grpo['accuracy'][0]:.3f}, over PPO {gain(grpo['gain'])}",
            "on": f"{climbed['problems']:,} harder problems, {len(climbed['seeds'])} seeds,"
            f" {grpo['training_tokens'] / 1e6:.1f} M tokens",
            "not": "that the loss is better than PPO's: recipe stands against recipe",
        },
        {
            "what": "[Search while answering](docs/results/search_budgets.md): a tree (PUCT) over adaptive best-of-n, under the"
            " rules of a game",
            "result": f"{simple['accuracy'][0]:.3f} -> {tree['accuracy'][0]:.3f}, {judged(over_simple)}",
            "on": f"{game['problems']:,} games of four and five numbers, up to {tree['budget']:,} tokens each",
            "not": f"that it helps much where steps are easily mended: on embedded problems {gain(mended['2'])} at"
            f" {2 * easy['tokens']} tokens and {gain(mended['16'])} ({verdict(mended['16'])}) at {16 * easy['tokens']:,}; or"
            f" that it beats a tool: MCTS got {mcts['accuracy'][0]:.3f} where a calculator that writes the results got"
            f" {tool['accuracy'][0]:.3f} ([ladder](docs/results/ladder.md))",
        },
        {
            "what": "[The engine](docs/results/engine.md): tokens/s over HF `generate`",
            "result": listed(f"{row['over_hf_generate']:.1f}x ({row['model']})" for row in fast_rows),
            "on": "one CPU thread, batch 32",
            "not": "anything about a GPU",
        },
    ]
    rules, large = load("from_rules"), load("from_rules_large_rounds")
    found, before = ({row["arm"]: row for row in study["summary"]} for study in (rules, large))
    sampled = before["sampling"]["primary"]
    rows.append(
        {
            "what": "[From the rules alone](docs/results/from_rules.md): training on what passes the rules, no solver",
            "result": f"{rules['start']['greedy'][0]:.3f} -> {found['rule, one chain']['greedy'][0]:.3f} on single chains,"
            f" {found['search']['greedy'][0]:.3f} on trees; in larger rounds {large['start']['greedy'][0]:.3f} ->"
            f" {before['search']['greedy'][0]:.3f} on trees, over sampling {gain(sampled)}, {verdict(sampled)}",
            "on": f"{rules['problems']:,} games of five numbers, {len(rules['seeds'])} seeds,"
            f" {found['search']['tokens'] / 1e6:.1f} and {before['search']['tokens'] / 1e6:.1f} M tokens",
            "not": f"that the tree helps: over single chains {gain(found['rule, one chain']['primary'])}"
            f" ({verdict(found['rule, one chain']['primary'])}), over GRPO {gain(before['grpo, samples']['primary'])}"
            f" ({verdict(before['grpo, samples']['primary'])})",
        }
    )
    rows.append(real.result())
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
