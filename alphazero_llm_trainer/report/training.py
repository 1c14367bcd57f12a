"""A training run: its result in words, the terminal's table, and the page with curves, trees, costs
and configuration.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any

import yaml
from markupsafe import Markup

from ..eval.metrics import Interval, wilson
from ..tree.extract import shortfall
from .charts import Chart, exact_interval, line_chart, show_number
from .html import render_template
from .text_table import align_columns, table_of

X = "sampled tokens"
WHEN = ("before", "after")
GAINS = {"accuracy": "gain", "reward": "reward_gain"}  # the keys of a measure's gain

RunCard = Mapping[str, Any]
MetricsLine = Mapping[str, Any]
RunPoints = list[tuple[float, Interval]]

# -- in words --------------------------------------------------------------------------------------


def nothing_learnt(card: RunCard, metrics: Iterable[MetricsLine]) -> str | None:
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
    if has_own_reward(card):  # equal rewards may be good ones
        fix, outcomes = "try other problems", ""
    return (
        f"Nothing was learnt from search: no response to {groups:,} questions was one to learn "
        f"from{outcomes}; {fix}, or a higher search.temperature"
    )


def run_verdict(card: RunCard, metrics: Iterable[MetricsLine]) -> tuple[str, str]:
    """What training did in a sentence, and whether that is "good", "bad" or neither ("")."""
    if not card.get("seconds"):
        return "This run is not finished: it has no test result", ""
    nothing = nothing_learnt(card, metrics)
    if nothing is not None:
        return nothing, "bad"
    gains = [
        (name, Interval(**card[GAINS[name]]))
        for name in run_measures(card)
        if card.get(GAINS[name]) is not None
    ]
    if not gains:
        return "This run was started without held-out problems: it has no test result", ""
    if card.get("kept_round") == 0:
        kept = "the student that training began with is kept"
        return f"No checkpoint did better on validation: {kept}", ""
    (name, gain), *beside = gains
    what = f" in {name}" if has_own_reward(card) or name == "reward" else ""
    said = {"good": "helped", "bad": "hurt", "": "made no clear difference"}[gain.kind]
    problems = f"on the same {card['after']['problems']:,} held-out problems"
    text = f"Training {said}: {gain:+}{what} {problems}"
    if has_own_reward(card):  # without a reward of the user's own its correctness says it all
        text += "".join(f", {other:+} in {name}" for name, other in beside)
    return text, gain.kind


def run_measures(card: RunCard) -> list[str]:
    """The keys of a run's two measures, the one that it was trained for first."""
    return ["reward", "accuracy"] if has_own_reward(card) else ["accuracy", "reward"]


def has_own_reward(card: RunCard) -> bool:
    """Whether the run has a reward of the user's own."""
    return card["config"].get("rewards", {}).get("custom") is not None


def run_facts(card: RunCard) -> list[tuple[str, str]]:
    """Before, after and the gain, what it took and what was kept; of a run that isn't finished what
    there is.
    """
    lines = []
    for kind, key in GAINS.items():
        name = "" if kind == "accuracy" else f"{kind} "
        # Where every grade was all or nothing, the mean grade is the accuracy.
        if card.get(key) is None or (name and not any(shows_reward(card[when]) for when in WHEN)):
            continue
        for when in WHEN:
            part = card[when]
            more = (
                f" ({part['failed_rewards']:,} failed)" if name and part["failed_rewards"] else ""
            )
            if not name:
                more = f" at {part['tokens'] / part['problems']:.1f} tokens"
            lines.append((f"{name}{when} [95%]", f"{Interval(**part[kind])}{more}"))
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
        too_long = card["after"]["too_long"]
        if too_long:
            lines.append(("too long for the context, counted as wrong", f"{too_long:,}"))
    return lines


def training_text(card: RunCard, metrics: Sequence[MetricsLine]) -> str:
    """What the terminal shows at a run's end."""
    short = shortfall(card.get("ends", {}), card["config"]["search"])
    end = "" if short is None else f"\n{short}"
    return f"{run_verdict(card, metrics)[0]}\n{align_columns(run_facts(card), left=2)}{end}"


def shows_reward(part: RunCard) -> bool:
    """Whether a measurement's mean reward says something that its accuracy doesn't."""
    return part["accuracy"] is None or part["reward"]["value"] != part["accuracy"]["value"]


# -- the page --------------------------------------------------------------------------------------

UNIT, FROM_0 = (0.0, 1.0), (0.0,)
SOLVED = "Solved trees"
# A chart's title, numbers that its y axis takes in, and its lines by name: keys of metrics.jsonl.
CURVES: tuple[tuple[str, Sequence[float], dict[str, str]], ...] = (
    ("Mean reward of sampled responses", UNIT, {"reward": "mean_reward"}),
    # A policy gradient learns from mixed questions alone, expert iteration from all but the wrong.
    (
        "Outcomes of the questions",
        UNIT,
        {"right": "all_right", "mixed": "mixed", "wrong": "all_wrong"},
    ),
    # AlphaZero's: a tree is solved where it has a right response. The value is judged on trees
    # before it learns from them; its error is how far its mean is above their outcomes'.
    (SOLVED, UNIT, {"solved": "solved"}),
    (
        "Value on new trees",
        UNIT,
        {"AUC": "value_auc", "pair accuracy": "value_pair_accuracy", "error": "value_error"},
    ),
    ("KL to the teacher (nats a token)", FROM_0, {"KL": "teacher_kl"}),
    ("Entropy (nats)", FROM_0, {"entropy": "entropy"}),
    ("KL to the reference (nats)", FROM_0, {"KL": "kl"}),
    (
        "Loss",
        (),
        {"loss": "loss", "policy": "policy_loss", "value": "value_loss", "critic": "critic_loss"},
    ),
)
QUESTION_SHARES = ("all_right", "mixed", "all_wrong", "solved")  # counts of a round's questions


def training_page(card: RunCard, metrics: Sequence[MetricsLine]) -> Markup:
    """A run's page; one that isn't finished has the parts that there is material for."""
    rounds = rounds_of(metrics)
    big = "finished" if card.get("seconds") else "training"
    for name in reversed(run_measures(card)):
        if card.get(GAINS[name]) is not None:
            big = " → ".join(f"{card[when][name]['value']:.3f}" for when in WHEN)
    left_out = ("models", "teacher_tiers")
    shown = {key: value for key, value in card["config"].items() if key not in left_out}
    return render_template(
        "training.html",
        card=card,
        rounds=len(rounds),
        big=big,
        verdict=run_verdict(card, metrics),
        facts=run_facts(card),
        curves=draw_curves(card, metrics),
        costs=table_of(cost_rows(card, rounds)),
        configuration=yaml.safe_dump(shown, sort_keys=False),
    )


def rounds_of(metrics: Iterable[MetricsLine]) -> list[MetricsLine]:
    return [line for line in metrics if "mean_reward" in line]


def over_tokens(metrics: Sequence[MetricsLine], name: str) -> RunPoints:
    """A figure over the tokens that training had sampled at the end of its round: what runs are
    compared at. Counts of questions are shares of the round's.
    """
    rounds, points = rounds_of(metrics), RunPoints()
    tokens = accumulate(line["cost"]["sampled_tokens"] for line in rounds)
    after = dict(zip((line["round"] for line in rounds), tokens, strict=True))
    for line in metrics:
        if line.get(name) is not None and line.get("round") in after:
            whole = line["questions"] if name in QUESTION_SHARES else 1
            points.append((after[line["round"]], exact_interval(line[name] / whole)))
    return points


def validation_points(card: RunCard, metrics: Sequence[MetricsLine]) -> RunPoints:
    """Greedy accuracy on the validation problems over sampled tokens; the mean outcome with a
    reward of the user's own.
    """
    problems, before = card["validation_problems"], card.get("validation_before")
    points: RunPoints = [] if before is None else [(0, exact_interval(before))]
    points += over_tokens(metrics, "validation_accuracy")
    if not problems:
        return []
    if has_own_reward(card):
        return points
    return [(x, wilson(round(share.value * problems), problems)) for x, share in points]


def draw_curves(card: RunCard, metrics: Sequence[MetricsLine]) -> list[Chart]:
    """What was learnt, and what the updates and the searches did, over sampled tokens."""
    scale = "answers' mean outcome" if has_own_reward(card) else "accuracy"
    points = validation_points(card, metrics)
    drawn = [line_chart(f"Greedy {scale}, validation", {scale: points}, X, UNIT)]
    for title, include, names in CURVES:
        lines = {name: over_tokens(metrics, key) for name, key in names.items()}
        if title != SOLVED or over_tokens(metrics, "value_auc"):
            drawn.append(line_chart(title, lines, X, include))
    return drawn


def cost_rows(card: RunCard, rounds: Sequence[MetricsLine]) -> list[dict[str, str]]:
    """Tokens and dollars of the search, and of each teacher with its calls and failures."""
    spent = Counter[str]()
    for line in rounds:
        spent.update(line["cost"])
    failed = sum(line.get("failed", 0) for line in rounds)
    rows = []
    if rounds:
        failures = f"{failed:,} questions" if failed else "none"
        rows.append({"": "search", "failures": failures, **cost_texts(spent)})
    for name, teacher in (card.get("teachers") or {}).items():
        failures = ", ".join(f"{n} {kind}" for kind, n in teacher.get("failures", {}).items())
        figures = {**teacher.get("cost", {}), "calls": teacher.get("calls", 0)}
        rows.append({"": name, "failures": failures or "none", **cost_texts(figures)})
    return rows


def cost_texts(cost: Mapping[str, float]) -> dict[str, str]:
    return {key.replace("_", " "): show_number(value) for key, value in cost.items()}
