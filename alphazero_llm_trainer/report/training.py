"""A training run: its result in words, the terminal's table, and the page with curves, trees, costs
and configuration.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from itertools import accumulate
from typing import Any

import yaml

from ..eval.metrics import Interval, wilson
from ..mcts.extract import shortfall
from .charts import exact, line_chart, number
from .page import figures, folded, heading, hero, paragraph, table
from .tables import columns, table_of

X = "sampled tokens"
WHEN = ("before", "after")

RunCard = Mapping[str, Any]
Line = Mapping[str, Any]
Points = list[tuple[float, Interval]]


# -- in words --------------------------------------------------------------------------------------


def nothing_learnt(card: RunCard, metrics: Iterable[Line]) -> str | None:
    """What to change where no response was one that the method learns from (a right one, or one
    that is better or worse than another); None where any was.
    """
    rounds = rounds_of(metrics)
    groups = sum(line["questions"] - line.get("failed", 0) for line in rounds)
    if not groups or any(line["rows"] for line in rounds):
        return None
    wrong, right = (sum(line[key] for line in rounds) for key in ("all_wrong", "all_right"))
    fix = "try harder problems" if right > wrong else "try easier problems, or `sft` first"
    outcomes = f" ({wrong:,} questions all wrong, {right:,} all right)"
    if owned(card):  # equal rewards may be good ones
        fix, outcomes = "try other problems", ""
    return (
        f"Nothing was learnt from search: no response to {groups:,} questions was one to learn "
        f"from{outcomes}; {fix}, or a higher search.temperature"
    )


def verdict(card: RunCard, metrics: Iterable[Line]) -> tuple[str, str]:
    """What training did in a sentence, and whether that is "good", "bad" or neither ("")."""
    if not card.get("seconds"):
        return "This run is not finished: it has no test result", ""
    nothing = nothing_learnt(card, metrics)
    if nothing is not None:
        return nothing, "bad"
    gains = [
        (what, Interval(**card[key])) for key, what in judged_by(card) if card.get(key) is not None
    ]
    if not gains:
        return "This run was started without held-out problems: it has no test result", ""
    if card.get("kept_round") == 0:
        return (
            "No checkpoint did better on validation: the student that training began with is kept",
            "",
        )
    (what, gain), *beside = gains
    said = {"good": "helped", "bad": "hurt", "": "made no clear difference"}[gain.kind]
    problems = f"on the same {card['after']['problems']:,} held-out problems"
    text = f"Training {said}: {gain:+}{what} {problems}"
    # Without a reward of the user's own its correctness says it all.
    text += "".join(f", {other:+}{name}" for name, other in beside if what)
    return text, gain.kind


def judged_by(card: RunCard) -> list[tuple[str, str]]:
    """The keys of a run's gains and what each is in, what the run was for first: the user's own
    reward where there is one.
    """
    accuracy, reward = ("gain", ""), ("reward_gain", " in reward")
    return [reward, ("gain", " in accuracy")] if owned(card) else [accuracy, reward]


def owned(card: RunCard) -> bool:
    """Whether the run has a reward of the user's own."""
    return card["config"].get("rewards", {}).get("custom") is not None


def facts(card: RunCard) -> list[tuple[str, str]]:
    """Before, after and the gain, what it took and what was kept; of a run that isn't finished what
    there is.
    """
    lines = []
    for key, kind, name in (("gain", "accuracy", ""), ("reward_gain", "reward", "reward ")):
        # Where every grade was all or nothing, the mean grade is the accuracy.
        if card.get(key) is None or (name and not any(rewarded(card[when]) for when in WHEN)):
            continue
        for when in WHEN:
            part = card[when]
            failed = (
                f" ({part['failed_rewards']:,} failed)" if name and part["failed_rewards"] else ""
            )
            tokens = "" if name else f" at {part['tokens'] / part['problems']:.1f} tokens"
            lines.append((f"{name}{when} [95%]", f"{Interval(**part[kind])}{tokens}{failed}"))
        lines.append((f"{name}gain, paired", f"{Interval(**card[key]):+}"))
    asked = "questions" if card.get("seconds") else "questions planned"
    lines.append((asked, f"{card['questions']:,}"))
    if card.get("failed_rewards"):
        lines.append(("left out, since a reward failed", f"{card['failed_rewards']:,}"))
    if card.get("seconds"):
        minutes, sampled = card["seconds"]["training"] / 60, card["search_cost"]["sampled_tokens"]
        lines += [
            ("tokens sampled", f"{sampled:,}"),
            ("training", f"{minutes:.1f} min"),
            ("kept", card["kept"]),
        ]
        if card["after"]["too_long"]:
            lines.append(
                ("too long for the context, counted as wrong", f"{card['after']['too_long']:,}")
            )
    return lines


def result_text(card: RunCard, metrics: Sequence[Line]) -> str:
    """What the terminal shows at a run's end."""
    short = shortfall(card.get("ends", {}))
    end = "" if short is None else f"\n{short}"
    return f"{verdict(card, metrics)[0]}\n{columns(facts(card), left=2)}{end}"


def rewarded(part: RunCard) -> bool:
    """Whether a measurement's mean reward says something that its accuracy doesn't."""
    return part["accuracy"] is None or part["reward"]["value"] != part["accuracy"]["value"]


# -- the page --------------------------------------------------------------------------------------


def training_parts(card: RunCard, metrics: Sequence[Line]) -> list[str]:
    """The sections of a run's page; a run that isn't finished has those that there is material
    for.
    """
    done = len(rounds_of(metrics))
    rounds = f"{done:,} round" + "s" * (done != 1)
    under = f"{card['method']} on {card['student']}, seed {card['seed']}, {rounds}"
    big = "finished" if card.get("seconds") else "training"
    for key, _ in judged_by(card):
        if card.get(key) is not None:
            part = "accuracy" if key == "gain" else "reward"
            big = " → ".join(f"{card[when][part]['value']:.3f}" for when in WHEN)
            break
    parts = [
        paragraph(under, "soft"),
        hero(big, *verdict(card, metrics), facts(card)),
        *curves(card, metrics),
    ]
    parts += costs(card, rounds_of(metrics))
    shown = {
        key: value
        for key, value in card["config"].items()
        if key not in ("models", "teacher_tiers")
    }
    text = escape(yaml.safe_dump(shown, sort_keys=False))
    return [*parts, heading("Configuration"), folded("every key", f"<pre>{text}</pre>")]


def rounds_of(metrics: Iterable[Line]) -> list[Line]:
    return [line for line in metrics if "mean_reward" in line]


def seen(metrics: Iterable[Line]) -> dict[int, int]:
    """Tokens that training had sampled at the end of each round: what runs are compared at."""
    rounds = rounds_of(metrics)
    tokens = accumulate(line["cost"]["sampled_tokens"] for line in rounds)
    return dict(zip((line["round"] for line in rounds), tokens, strict=True))


def over(metrics: Sequence[Line], name: str, share: bool = False) -> Points:
    """A figure of the rounds over sampled tokens, as a share of each round's questions where it
    counts them.
    """
    after = seen(metrics)
    return [
        (after[line["round"]], exact(line[name] / (line["questions"] if share else 1)))
        for line in metrics
        if line.get(name) is not None and line.get("round") in after
    ]


def validation(card: RunCard, metrics: Sequence[Line]) -> Points:
    """Greedy accuracy on the validation problems over sampled tokens; the mean outcome with a
    reward of the user's own.
    """
    wanted, before = card["config"]["train"]["validation_size"], card.get("validation_before")
    problems = card.get("validation_problems", wanted)  # a source may have fewer
    points: Points = [] if before is None else [(0, exact(before))]
    points += over(metrics, "validation_accuracy")
    if not problems:
        return []
    if owned(card):
        return points
    return [(x, wilson(round(share.value * problems), problems)) for x, share in points]


def curves(card: RunCard, metrics: Sequence[Line]) -> list[str]:
    """What was learnt, and what the updates and the searches did, over sampled tokens."""
    if not rounds_of(metrics):
        return []

    def chart(
        title: str, include: Sequence[float] = (0.0,), share: bool = False, **names: str
    ) -> str:
        return line_chart(
            title, {name: over(metrics, key, share) for name, key in names.items()}, X, include
        )

    scale = "answers' mean outcome" if owned(card) else "accuracy"
    valued = bool(over(metrics, "value_auc"))
    drawn = [
        line_chart(
            f"Greedy {scale}, validation", {scale: validation(card, metrics)}, X, (0.0, 1.0)
        ),
        chart("Mean reward of sampled responses", (0.0, 1.0), reward="mean_reward"),
        # A policy gradient learns from mixed questions alone, expert iteration from all but the
        # wrong ones.
        chart(
            "Outcomes of the questions",
            (0.0, 1.0),
            True,
            right="all_right",
            mixed="mixed",
            wrong="all_wrong",
        ),
        # AlphaZero's: a tree is solved where it has a right response. The value is judged on trees
        # before it learns from them; its error is how far its mean is above their outcomes'.
        chart("Solved trees", (0.0, 1.0), True, solved="solved") if valued else "",
        chart("Value on new trees", (0.0, 1.0), AUC="value_auc", error="value_error"),
        chart("KL to the teacher (nats a token)", KL="teacher_kl"),
        chart(
            "Entropy and KL (nats)" if over(metrics, "kl") else "Entropy (nats)",
            entropy="entropy",
            KL="kl",
        ),
        chart(
            "Loss",
            (),
            loss="loss",
            policy="policy_loss",
            value="value_loss",
            critic="critic_loss",
        ),
    ]
    # Trees end early, and chains are drawn again, by what they find.
    below = (
        "A hard question has more responses than an easy one, "
        "so that their mean reward may lie below the accuracy."
    )
    return [heading("Learning"), figures(drawn, f"Bars are 95% intervals. {below}")]


def costs(card: RunCard, rounds: Sequence[Line]) -> list[str]:
    """Tokens and dollars of the search, and of each teacher with its calls and failures."""
    spent = Counter[str]()
    for line in rounds:
        spent.update(line["cost"])
    failed = sum(line.get("failed", 0) for line in rounds)
    failures = f"{failed:,} questions" if failed else "none"
    rows = [{"": "search", "failures": failures, **texts(spent)}] if rounds else []
    for name, teacher in (card.get("teachers") or {}).items():
        failures = (
            ", ".join(f"{count} {kind}" for kind, count in teacher.get("failures", {}).items())
            or "none"
        )
        figures = {**teacher.get("cost", {}), "calls": teacher.get("calls", 0)}
        rows.append({"": name, "failures": failures, **texts(figures)})
    return [heading("Cost"), table(table_of(rows))] if rows else []


def texts(cost: Mapping[str, float]) -> dict[str, str]:
    return {key.replace("_", " "): number(value) for key, value in cost.items()}
