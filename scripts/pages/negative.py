"""The page of what did not help: one row for each negative result, its figure read from the JSON that has it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from . import learning
from .page import (
    ROOT,
    Row,
    Triple,
    gain,
    listed,
    load,
    load_if_there,
    share,
    triple,
    verdict,
)

SELECTIONS = {"gumbel": "Gumbel selection", "ucb1": "UCB1 selection"}
CHANGELOG = ROOT / "CHANGELOG.md"
PARTIAL_LOSS = "GRPO's loss over some tokens is gone"  # how the entry begins, whose JSON is gone with the code


def row(what: str, against: str, found: Triple | str, where: str) -> Row:
    """A line of the table; `found` is a paired difference, or words where there is none."""
    shown = found if isinstance(found, str) else f"{gain(found)}, {verdict(found)}"
    return {"what": what, "against": against, "found": shown, "where": where, "gain": found}


def several(found: Mapping[str, Triple]) -> str:
    """Differences that are no gains, each with its verdict."""
    return "<br>".join(f"{name}: {gain(one)}, {verdict(one)}" for name, one in found.items() if one[1] <= 0)


def page_of(stem: str) -> str:
    return f"[{stem}]({stem}.md)"


def searches() -> Iterator[Row]:
    alone = load("search_vs_greedy")
    best = max((one for one in alone["rows"] if one["method"].startswith("mcts")), key=lambda one: one["accuracy"][0])
    yield row(
        "MCTS that values responses by their perplexity", "a greedy answer", best["gain"], page_of("search_vs_greedy")
    )
    for stem in ("search_budgets", "search_budgets_embedded"):
        data = load_if_there(stem)
        for task in () if data is None else data["tasks"]:
            most = data["factors"][-1]
            for arm, what in SELECTIONS.items():
                if arm in task["minus"]:
                    value, low, high = task["minus"][arm][str(most)]
                    where = page_of("search_budgets")
                    against = f"PUCT, {task['name']}, {most * task['tokens']:,} tokens"
                    yield row(
                        what,
                        against,
                        (-value, -high, -low),
                        where,
                    )
            for arm in ("adaptive-best-of-n", "step-rejection"):
                # Step rejection is a fair control where each method was tuned.
                if arm in task["minus"] and (arm == "adaptive-best-of-n" or "tuned" in task):
                    against = f"{arm.replace('-', ' ')}, {task['name']}, {most * task['tokens']:,} tokens"
                    yield row("PUCT", against, task["minus"][arm][str(most)], page_of("search_budgets"))
    tools = [one for one in load("ladder")["methods"] if one["name"] == "calculator-tool"]
    told = several({f"{one['verifier']}, {one['budget']} tokens": one["mcts_gain"] for one in tools})
    yield row("MCTS", "a calculator that writes the results", told, page_of("ladder"))
    told = several({arm["arm"]: arm["primary"] for arm in load("from_rules")["summary"] if "primary" in arm})
    yield row(
        "training from search, from the rules of a game alone",
        "single chains, samples, GRPO",
        told,
        page_of("from_rules"),
    )


def training() -> Iterator[Row]:
    arms = {one["arm"]: one for one in load("improvement")["summary"]}
    trees, samples = (share(arms[name]["greedy"]) for name in ("grpo, trees", "grpo, samples"))
    yield row("trees as the groups of GRPO", "GRPO on samples", f"{trees} against {samples}", page_of("improvement"))
    trl = {one["arm"]: one for one in load("tree_grpo")["summary"]}
    yield row(
        "trees as the groups of GRPO, without replay",
        "TRL's GRPO",
        triple(trl["tree GRPO, no replay"]["over_plain"]),
        page_of("tree_grpo"),
    )
    names = {
        "grpo-trees-hre": "GRPO on trees without the perplexity reward, a real model",
        "grpo-trees": "GRPO on trees with the perplexity reward, a real model",
    }
    against = {"rft": "its own right samples", "grpo-trees-hre": "the same without that reward"}
    for arm in load("real_ladder")["arms"]:
        if arm["arm"] in names:
            yield row(names[arm["arm"]], against[arm["over"]], triple(arm), page_of("real_ladder"))
    loop, plain = load("loop"), arms["search"]
    tokens = sum(part.get("sampled_tokens", 0) for one in loop["generations"] for part in one["costs"].values())
    reached = loop["test"]["champion greedy"]["accuracy"][0]
    told = (
        f"{reached:.3f} after {tokens / 1e6:.1f} M sampled tokens, {plain['greedy'][0]:.3f} after {plain['tokens'] / 1e6:.1f} M"
        " (other problems, not paired)"
    )
    yield row("generations with a gate", "the plain loop of `train`", told, page_of("loop"))
    for method in load("lag")["methods"]:
        took = {arm["arm"]: f"{arm['training_seconds']:.0f}" for arm in method["arms"]}
        told = f"{took['actors, lag 1']} s with it, {took['actors']} s without, {took['one process']} s in one process"
        yield row(f"searching ahead of training, {method['method']}", "actors and one process", told, page_of("lag"))
    yield row("GRPO's loss over some tokens alone", "all tokens", token_loss(), "changelog; its JSON is gone")
    yield row("credit `tree` and credit `gumbel`", "credit `group`", "in no result: never measured", "")


def judges() -> Iterator[Row]:
    found = load("real_judges")["stages"]
    prm, value = found["prm"]["test"]["step AUC"], found["value"]["test"]
    kind, plain = found["prm"]["kind"], "policy log-probability"
    told = f"AUC of steps {share(prm[kind])} against {share(prm[plain])}"
    yield row(
        f"a PRM of a real model's own trees ({kind})", "its log-probability of a step", told, page_of("real_ladder")
    )
    told = f"AUC {share(value['AUC'])}, siblings ranked rightly {share(value['sibling ranking'])}"
    yield row("a value as a linear probe of a real model's states", "chance, 0.5", told, page_of("real_ladder"))
    rungs = load("ladder")["prm"].values()
    both = [(one["step AUC"]["implicit"], one["step AUC"][plain]) for one in rungs if "implicit" in one["step AUC"]]
    if any(ours[0] <= theirs[0] for ours, theirs in both):
        told = listed(f"{ours[0]:.3f} against {theirs[0]:.3f}" for ours, theirs in both)
        yield row("an implicit PRM, AUC of steps by seed", "the policy's log-probability", told, page_of("ladder"))
    head = load("value")["kinds"]["head"]
    if not head["earned"]:
        told = f"AUC {share(head['test']['AUC'])}, no weight"
        yield row("a value as a linear probe of the student's states", "chance, 0.5", told, page_of("value"))
    yield row(
        "search with a value network",
        "a majority that spends as much",
        learning.value(load("value")).headline,
        page_of("value"),
    )
    for one in load("perplexity_reward")["rows"]:
        what = f"picking the sample with the largest PRE ({learning.PRE_MODELS.get(one['model'], one['model'])})"
        yield row(what, "the majority", one["best_by_pre_minus"]["majority"], page_of("perplexity_reward"))


def token_loss() -> str:
    """What the changelog says of the loss over some tokens."""
    text = " ".join(CHANGELOG.read_text(encoding="utf-8").split())
    entry = text.partition(PARTIAL_LOSS)[2].partition(" - ")[0]
    figures = entry.partition("problems: ")[2].rstrip(".")
    if not figures:
        raise SystemExit(
            f"CHANGELOG.md has no entry {PARTIAL_LOSS!r} with its figures: name in scripts/pages/negative.py what has them"
        )
    return figures


def page() -> list[str]:
    """The page as lines. A row whose difference turns out better than nothing leaves it."""
    found = [one for part in (searches, training, judges) for one in part()]
    rows = [one for one in found if one["found"] and (isinstance(one["gain"], str) or one["gain"][1] <= 0)]
    return [
        *("---", "hide: [toc]", "---", "", "# What did not help", ""),
        "<!-- Written by scripts/results_pages.py: change scripts/pages/negative.py. -->",
        "",
        "Negative results, each with its figure. `no difference shown` is not `no difference`: the interval says what is"
        " excluded. How each was measured, at which commit, and on what, is on its page.",
        "",
        "| tried | against | found (95%) | page |",
        "|---|---|---|---|",
        *(f"| {one['what']} | {one['against']} | {one['found']} | {one['where']} |" for one in rows),
        "",
        "## What this does not show",
        "",
        "- That these ideas help nowhere: the student is tiny and the problems are generated, but where a real model is named.",
        "- Intervals are single ones: so many looks are not corrected for.",
    ]
