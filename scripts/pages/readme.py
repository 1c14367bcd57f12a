"""README's results: what was found and what was not in one sentence, and a table of differences."""

from __future__ import annotations

from typing import Any

from alphazero_llm_trainer.config.load import load_config

from . import age, real
from .page import (
    Row,
    Triple,
    gain,
    listed,
    load,
    load_if_there,
    splits,
    triple,
    verdict,
)
from .records import accuracy, search_less

STEMS = ("improvement", "structures", "real_ladder", "real_structures", "engine")  # that the table is made of
OLDER = "Older than the code it speaks of:"  # how the line on ages begins
COLUMNS = ("what", "without", "with", "difference (95%)", "problems, seeds, tokens", "what it doesn't show")
CHAIN = "rule, one chain"
BELOW = "Intervals of expert iteration less another way of training hold at 95% for all of its ways together."


def difference(found: Triple) -> str:
    """A gain with its interval; its verdict only where the interval doesn't say "better"."""
    return gain(found) if found[1] > 0 else f"{gain(found)}, {verdict(found)}"


def simple_repair() -> tuple[str, Triple]:
    """PUCT less a simple method that repairs, on embedded problems with the largest budget: the method's name, the gain."""
    data = load_if_there("search_budgets_embedded") or load("search_budgets")
    task = next(one for one in data["tasks"] if one["name"].startswith("embedded"))
    method = "step-rejection" if "tuned" in task else "adaptive-best-of-n"
    return method.replace("-", " "), task["minus"][method][str(data["factors"][-1])]


def found() -> str:
    """What was found, in one sentence."""
    chain, (method, repair) = search_less(CHAIN), simple_repair()
    stages = load("real_ladder")["stages"]
    own, solutions = (triple(stages[name]["gain"]) for name in (real.BEST, "more-sft"))
    words = {"better": "is above", "worse": "is below", "no difference shown": "ties"}
    more = "more" if solutions[0] > own[0] else "less"
    learns = "learns" if own[1] > 0 else "was not shown to learn"
    return (
        f"Expert iteration under a step rule teaches the embedded student {accuracy('improvement', 'start'):.2f} ->"
        f" {accuracy('improvement', 'search'):.2f}, of which tree and retry are {chain[0]:+.2f} over single chains; a real"
        f" model of 135 M parameters {learns} from its own samples ({own[0]:+.2f}), and {more} from solutions"
        f" ({solutions[0]:+.2f}); where a calculator judges the steps, a tree {words[verdict(repair)]} simple repair by"
        f" {method} ({repair[0]:+.3f} at the largest budget); nothing was found yet on real rows."
        " [What did not help](docs/results/what_did_not_help.md) has a page."
    )


def trained() -> list[Row]:
    """Training from search: against the start, one chain, and samples."""
    data, held = load("improvement"), load("structures")
    rows = {row["arm"]: row for row in data["summary"]}
    asked = next(run["questions"] for run in data["runs"] if run["arm"] == "search")
    default, twin = load_config().train.num_examples, splits("improvement")["search"]
    new = load("overlap")["improvement_without_twins"]
    on_new = next(row for row in new["summary"] if row["arm"] == CHAIN)["search_minus_greedy"]
    million = {arm: f"{row['tokens'] / 1e6:.1f} M" for arm, row in rows.items()}
    where = f"{data['problems']:,}, {len(data['seeds'])},"
    new_kinds = next(row for row in held["summary"] if row["arm"] == "search")

    def row(arm: str, name: str, tokens: str, limit: str) -> Row:
        return {
            "what": "[expert iteration](docs/results/improvement.md) on trees under a step rule",
            "without": f"{name}: {accuracy('improvement', arm):.3f}",
            "with": f"{accuracy('improvement', 'search'):.3f}",
            "difference": difference(search_less(arm, 1 if arm == "start" else len(rows) - 1)),
            "on": f"{where} {tokens}",
            "not": limit,
        }

    return [
        row(
            "start",
            "the shipped student",
            million["search"],
            f"what the default command reaches: it asks {default:,} questions, this {asked / default:.2f} times as many;"
            f" {twin['share'][0]:.0%} of the problems differ from a training problem in names, things and numbers only",
        ),
        row(
            CHAIN,
            "single chains under the same rule",
            f"{million['search']} and {million[CHAIN]}",
            "what the tree does alone: chains that restart until the first right one, replay alone and equal numbers of updates"
            f" were no controls; on the {new['problems']} problems that repeat none of training {gain(on_new)}",
        ),
        row(
            "rft, 8 samples",
            "fine-tuning on right ones of 8 samples",
            f"{million['search']} and {million['rft, 8 samples']}",
            "what the rule does and what the tree does: single chains under it are the row above",
        ),
        {
            "what": "the same on [kinds of stories](docs/results/structures.md) that nobody trained on",
            "without": f"its start: {held['start']['greedy'][0]:.3f}",
            "with": f"{accuracy('structures', 'search'):.3f}",
            "difference": difference(new_kinds["greedy_gain"]),
            "on": f"{held['problems']:,}, {len(held['seeds'])}, {new_kinds['tokens'] / 1e6:.1f} M",
            "not": "kinds that another generator would make",
        },
    ]


def engine() -> list[Row]:
    data = load("engine")
    rows = [row for row in data["decode"] if row["batch"] == 32 and row["samples_a_prompt"] == 1]
    theirs = listed(f"{row['hf_generate_tokens_per_second']:,.0f}" for row in rows)
    return [
        {
            "what": "[the engine](docs/results/engine.md), tokens/s",
            "without": f"Hugging Face `generate`: {theirs}",
            "with": listed(f"{row['ours_tokens_per_second']:,.0f}" for row in rows),
            "difference": listed(f"{row['over_hf_generate']:.1f}x" for row in rows),
            "on": f"{listed(row['model'] for row in rows)}; batch 32, one CPU thread",
            "not": "anything about a GPU; seconds are one machine's",
        }
    ]


def ages() -> str:
    """The rows whose code has changed since; nothing where none has."""
    pages = {"real_structures": "real_ladder"}
    old = [stem for stem in STEMS if age.stale(load(stem))]
    links = dict.fromkeys(
        f"[{(page := pages.get(stem, stem)).replace('_', ' ')}](docs/results/{page}.md)" for stem in old
    )
    return f"{OLDER} {listed(links)}; the pages name the commit and what changed." if links else ""


def section(kept: str) -> str:
    """What was found, and the table; `kept` is what stood there, whose ages stay where there is no history."""
    try:
        old = ages()
    except age.NoHistoryError:
        old = next((line for line in kept.splitlines() if line.startswith(OLDER)), "")
    head = [f"| {' | '.join(COLUMNS)} |", "|---|---|---|---|---|---|"]
    keys = ("what", "without", "with", "difference", "on", "not")
    rows: list[dict[str, Any]] = [dict(row) for row in (*trained(), *real.results(), *engine())]
    body = [f"| {' | '.join(row[key] for key in keys)} |" for row in rows]
    return "\n".join([found(), "", *head, *body, "", BELOW, *([old] if old else [])])


def search(kept: str) -> str:
    """A search and what it printed."""
    data = load("demo")
    try:
        since = "; its code has changed since" if age.changed(data) else ""
        how = "with uncommitted changes to" if data["clean"] is False else "at"
        told = f"Printed {how} `{data['commit'][: age.SHORT]}`{since}."
    except age.NoHistoryError:
        told = kept.rstrip().splitlines()[-1] if kept.strip() else ""
    return "\n".join(["```sh", data["shown"], "```", "", "```text", *data["lines"], "```", "", told])


def filled(text: str) -> str:
    """README with its parts that are made of JSON; each stands between two comments with its name."""
    for name, make in {"results": section, "search": search}.items():
        begin, end = f"<!-- {name}: begin (scripts/results_pages.py) -->\n", f"\n<!-- {name}: end -->"
        head, found_begin, rest = text.partition(begin)
        kept, found_end, tail = rest.partition(end)
        if not found_begin or not found_end:
            raise SystemExit(
                f"README.md has no place for {name}: write {begin.strip()} and {end.strip()} where it goes"
            )
        text = head + begin + make(kept) + end + tail
    return text
