"""A training run: its result in words, the terminal's table, and the page with curves, trees, costs and configuration."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from itertools import accumulate
from pathlib import Path
from typing import Any

import yaml

from ..eval.metrics import Interval, wilson
from ..search.extract import trajectories
from ..search.journal import read
from ..search.tree import Tree
from .charts import Chart, line_chart
from .page import figures, folded, heading, hero, link, paragraph, table
from .tables import columns
from .tree import outline

KINDS = ("mixed", "solved", "hopeless")  # of example trees
TREES = "trees.html"
FLIPS = 100  # problems in a table
X = "training questions"

Card = Mapping[str, Any]
Line = Mapping[str, Any]
Answers = Mapping[str, Any]  # a line of test.jsonl: id, question, and what was answered "before" and "after"
Points = list[tuple[float, Interval]]


# -- in words ----------------------------------------------------------------------------------------------------------


def nothing_learnt(card: Card, metrics: Iterable[Line]) -> str | None:
    """What to change where no group of responses had a better and a worse one; None where any had. PPO needs none."""
    rounds = rounds_of(metrics)
    groups = sum(line["questions"] for line in rounds)
    if card["method"] == "ppo" or not groups or sum(line["flat"] for line in rounds) < groups:
        return None
    wrong, right = (sum(line[key] for line in rounds) for key in ("all_wrong", "all_right"))
    fix = "try harder problems" if right > wrong else "try easier problems, or `sft` first"
    counts = f"{wrong:,} questions all wrong, {right:,} all right"
    return (
        f"Nothing was learnt from search: all {groups:,} groups were flat ({counts}), so no response was better than"
        f" another; {fix}, or a higher search.temperature"
    )


def verdict(card: Card, metrics: Iterable[Line]) -> tuple[str, str]:
    """What training did in a sentence, and whether that is "good", "bad" or neither ("")."""
    if not card.get("seconds"):
        return "This run is not finished: it has no test result", ""
    flat = nothing_learnt(card, metrics)
    if flat is not None:
        return flat, "bad"
    if card.get("gain") is None:
        return "This run was started without held-out problems: it has no test result", ""
    gain = Interval(**card["gain"])
    said = {"good": "helped", "bad": "hurt", "": "made no clear difference"}[gain.kind]
    return f"Training {said}: {gain:+} on the same {card['after']['problems']:,} held-out problems", gain.kind


def result_text(card: Card, metrics: Iterable[Line]) -> str:
    """What the terminal shows at a run's end: the verdict, then the table."""
    rows = [("", "accuracy [95%]", "problems", "tokens", "seconds")]
    for name in ("before", "after"):
        part = card[name]
        if part["accuracy"] is not None:
            seconds = f"{part['seconds']:.1f}"
            rows.append((name, str(accuracy(part)), f"{part['problems']:,}", f"{part['tokens']:,}", seconds))
    if card["gain"] is not None:
        rows.append(("gain, paired", f"{Interval(**card['gain']):+}", "", "", ""))
    sampled, seconds = card["search_cost"]["sampled_tokens"], card["seconds"]["training"]
    rows.append(("training", "", f"{card['questions']:,}", f"{sampled:,}", f"{seconds:.1f}"))
    too_long = card["after"]["too_long"]
    note = [f"{too_long} problems don't fit into the context and count as wrong"] * bool(too_long)
    return "\n".join([verdict(card, metrics)[0], columns(rows), *note])


def accuracy(part: Card) -> Interval:
    return Interval(**part["accuracy"])


# -- the page ----------------------------------------------------------------------------------------------------------


def training_parts(card: Card, metrics: Sequence[Line], answers: Sequence[Answers], journal: Path) -> list[str]:
    """The sections of a run's page; a run that isn't finished has those that there is material for."""
    under = f"{card['method']} on {card['student']}, seed {card['seed']}, {card['rounds']:,} rounds"
    parts = [paragraph(under, "soft"), headline(card, metrics), *curves(card, metrics)]
    if journal.is_file():
        parts += examples(journal)
    found = [(line, line["before"], line["after"]) for line in answers if "before" in line and "after" in line]
    parts += flips_part(*flips(found, "before", "after"))
    parts += costs(card, rounds_of(metrics))
    shown = {key: value for key, value in card["config"].items() if key not in ("models", "teacher_tiers")}
    text = escape(yaml.safe_dump(shown, sort_keys=False))
    return [*parts, heading("Configuration"), folded("every key", f"<pre>{text}</pre>")]


def headline(card: Card, metrics: Sequence[Line]) -> str:
    """Before and after on the held-out problems, the gain, and what it took."""
    big, facts = "training", [("questions", f"{card['questions']:,}")]
    if card.get("seconds"):
        big, minutes = "finished", card["seconds"]["training"] / 60
        facts += [("tokens sampled", f"{card['search_cost']['sampled_tokens']:,}"), ("training", f"{minutes:.1f} min")]
        facts += [("kept", card["kept"])]
    if card.get("gain") is not None:
        before, after = accuracy(card["before"]), accuracy(card["after"])
        big = f"{before.value:.3f} → {after.value:.3f}"
        gain = f"{Interval(**card['gain']):+}"
        facts = [("before [95%]", str(before)), ("after [95%]", str(after)), ("gain, paired", gain), *facts]
    return hero(big, *verdict(card, metrics), facts)


def rounds_of(metrics: Iterable[Line]) -> list[Line]:
    return [line for line in metrics if "mean_reward" in line]


def seen(metrics: Iterable[Line]) -> dict[int, int]:
    """Training questions done at the end of each round."""
    rounds = rounds_of(metrics)
    return dict(zip((line["round"] for line in rounds), accumulate(line["questions"] for line in rounds), strict=True))


def validation(card: Card, metrics: Sequence[Line]) -> Points:
    """Greedy accuracy on the validation problems over training questions."""
    problems, after = card["config"]["train"]["validation_size"], seen(metrics)
    found = [(0, card.get("validation_before"))]
    found += [(after.get(line["round"], 0), line.get("validation_accuracy")) for line in metrics]
    known = [(x, share) for x, share in found if share is not None] if problems else []
    return [(x, wilson(round(share * problems), problems)) for x, share in known]


def over(metrics: Sequence[Line], name: str, share: bool = False) -> Points:
    """A figure of the rounds over training questions, as a share of each round's questions where it counts them."""
    after, rounds = seen(metrics), [line for line in rounds_of(metrics) if line.get(name) is not None]
    found = [(after[line["round"]], line[name] / (line["questions"] if share else 1)) for line in rounds]
    return [(x, Interval(y, y, y)) for x, y in found]


def curves(card: Card, metrics: Sequence[Line]) -> list[str]:
    """What was learnt, what the updates did and what the searches gave, over training questions."""
    if not rounds_of(metrics):
        return []

    def chart(title: str, include: Sequence[float] = (0.0,), share: bool = False, **names: str) -> Chart | None:
        return line_chart(
            title, {n.replace("_", " "): over(metrics, key, share) for n, key in names.items()}, X, include
        )

    learning = [
        line_chart("Greedy accuracy, validation", {"accuracy": validation(card, metrics)}, X, (0.0, 1.0)),
        chart("Mean reward of sampled responses", (0.0, 1.0), reward="mean_reward"),
        chart(
            "Flat groups: nothing to learn from", (0.0, 1.0), True, at_first="flat_at_first", after_more_search="flat"
        ),
        chart("Entropy and KL (nats)", entropy="entropy", KL="kl"),
        chart("Loss", (), loss="loss", critic="critic_loss"),
        chart("Gradient norm", norm="grad_norm"),
    ]
    searching = [
        chart(
            "Outcomes of the questions", (0.0, 1.0), True, all_right="all_right", mixed="mixed", all_wrong="all_wrong"
        ),
        chart("Nodes and tokens a tree", nodes="nodes_per_tree", tokens="tokens_per_tree"),
        chart("Depth of a tree", depth="depth"),
        chart("Simulations a second", simulations="simulations_per_second"),
    ]
    return [heading("Learning"), figures(learning, "Bars are 95% intervals."), heading("Search"), figures(searching)]


def examples(journal: Path) -> list[str]:
    """A tree of each outcome: of the mixed ones the most evenly mixed, of the others the last."""
    found: dict[str, tuple[float, Tree, str, str]] = {}
    for record in read(journal):
        tree = Tree.from_dict(record["tree"])
        ended = trajectories(tree)
        samples, right = sum(one.samples for one in ended), sum(one.samples for one in ended if one.hre == 1.0)
        if samples:
            kind = "hopeless" if not right else "solved" if right == samples else "mixed"
            even = -abs(right / samples - 0.5)
            if kind not in found or even >= found[kind][0]:
                title = f"{kind.capitalize()}: {right:,} of {samples:,} responses right"
                found[kind] = (even, tree, title, record["problem"]["question"])
    drawn = [outline(*found[kind][1:]) for kind in KINDS if kind in found]
    caption = "The steps that were visited most, with their mean reward and visits; ✓ and ✗ end a response."
    return [heading("Search trees"), figures(drawn, caption), link(TREES, "All questions and trees")]


def flips(found: Iterable[tuple[Answers, Card, Card]], left: str, right: str) -> tuple[str, list[tuple[str, ...]]]:
    """How many problems only one side answered rightly, in words, and those problems with both answers, a head first.

    `found` has (problem, the left side's answer, the right side's).
    """
    flipped = [each for each in found if each[1]["correct"] != each[2]["correct"]]
    won = sum(other["correct"] for _, _, other in flipped)
    rows: list[tuple[str, ...]] = [("problem", left, right, "question")]
    for line, *sides in sorted(flipped, key=lambda each: each[1]["correct"])[:FLIPS]:
        answers = (f"{'✓' if side['correct'] else '✗'} {side['answer'] or 'none'}" for side in sides)
        rows.append((line["id"], *answers, line["question"]))
    return f"{len(flipped):,} problems flipped: {won:,} right only {right}, {len(flipped) - won:,} only {left}", rows


def flips_part(summary: str, rows: list[tuple[str, ...]]) -> list[str]:
    if len(rows) == 1:
        return []
    return [heading("Problems that flipped"), folded(summary, table(rows), opened=len(rows) <= 12)]


def costs(card: Card, rounds: Sequence[Line]) -> list[str]:
    """Tokens and dollars of the search, and of each teacher."""
    total = card.get("search_cost")
    if total is None:
        total = {key: sum(line["cost"][key] for line in rounds) for key in (rounds[0]["cost"] if rounds else {})}
    parts = [heading("Cost")]
    if total:
        head = ["search", *(key.replace("_", " ") for key in total)]
        parts.append(table([head, ["all rounds", *map(amount, total.values())]]))
    head = ["teacher", "calls", "from the cache", "failures", "prompt tokens", "tokens", "dollars", "seconds"]
    rows = [head]
    for name, teacher in (card.get("teachers") or {}).items():
        spent = teacher.get("cost", {})
        failures = ", ".join(f"{count} {kind}" for kind, count in teacher.get("failures", {}).items()) or "none"
        rows.append(
            [
                name, f"{teacher.get('calls', 0):,}", f"{teacher.get('cached', 0):,}", failures,
                f"{spent.get('prompt_tokens', 0) + spent.get('cached_tokens', 0):,}", f"{spent.get('sampled_tokens', 0):,}",
                f"${spent.get('dollars', 0.0):.4f}", f"{spent.get('seconds', 0.0):,.1f}",
            ]
        )  # fmt: skip
    return [*parts, table(rows)] if len(rows) > 1 else parts


def amount(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:,.2f}"
