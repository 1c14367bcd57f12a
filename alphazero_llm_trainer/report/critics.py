"""How well a value network or a PRM does: does it beat chance, and a PRM the policy's
log-probability?
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from ..eval.critic_figures import CHANCE
from ..eval.metrics import Interval
from .charts import exact_interval, line_chart, row_chart
from .html import render_template
from .text_table import align_columns

CriticCard = Mapping[str, Any]
PAIRS = "pair accuracy"  # how often the better of two next steps is ranked higher
AUC = "AUC"  # how often a state that ends right is ranked above one that ends wrong
LIKELY, GAIN = f"{PAIRS}, log-probability", f"{PAIRS} over log-probability"


def test_intervals(card: CriticCard) -> dict[str, Interval]:
    """The figures on the test questions."""
    return {name: Interval(*ends) for name, ends in card["test"].items()}


def critic_verdict(card: CriticCard) -> tuple[str, str]:
    """A critic's verdict in a sentence, and its kind: "good", "bad" or ""."""
    if not card["earned"]:
        return f"Not better than chance: don't use it. On validation, {card['why']}", "bad"
    test = test_intervals(card)
    if card["kind"] == "value":
        return f"Better than chance at telling which states end right: AUC {test[AUC]}", "good"
    if LIKELY not in test:  # trees without log-probabilities
        return f"Better than chance at ranking steps: {test[PAIRS]}", "good"
    kind = test[GAIN].kind
    said = {"good": "yes", "bad": "no", "": "not clearly"}[kind]
    against = f"{test[PAIRS]} against {test[LIKELY]}, paired {test[GAIN]:+}"
    return f"Better than log-probability at ranking steps: {said}, {against}", kind


def critic_text(card: CriticCard) -> str:
    """What the terminal shows: the verdict, then the test questions' figures."""
    questions, pairs = (card[name]["test"] for name in ("questions", "pairs"))
    rows = [
        ("figure", "value [95%]"),
        *((name, f"{x}") for name, x in test_intervals(card).items()),
    ]
    lines = [
        critic_verdict(card)[0],
        f"held out: {questions:,} questions, {pairs:,} pairs of steps; chance is {CHANCE}",
        align_columns(rows),
    ]
    if card["kind"] == "value":
        weight = card["rollout_weight"]
        used = f"Q = {1 - weight:.2f}*value + {weight:.2f}*rollout (lambda {weight:.2f})"
        lines.append(f"on validation, {card['why']}: {used}")
    return "\n".join(lines)


def critic_page(card: CriticCard, metrics: Sequence[CriticCard]) -> Markup:
    """A critic's page: verdict, the order of states and of steps, and loss."""
    loss = {
        name: [(line["step"], exact_interval(line[key])) for line in metrics]
        for name, key in (("training", "loss"), ("held out", "held_out_loss"))
    }
    title = f"Test questions; chance is {CHANCE}"
    facts, first = [("kind", card["kind"])], PAIRS
    if card["kind"] == "value":
        facts.append(("weight of rollouts", f"{card['rollout_weight']:.2f}"))
        first = AUC
    charts = [
        row_chart(title, test_intervals(card), "[95%]", CHANCE, LIKELY),
        line_chart("Loss (nats)", loss, "steps"),
    ]
    return render_template(
        "critic.html",
        big=f"{card['test'][first][0]:.3f}",
        verdict=critic_verdict(card),
        facts=facts,
        charts=charts,
    )
