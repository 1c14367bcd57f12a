"""What a value network or a PRM is worth: does it beat chance, and the policy's log-probability?"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from ..eval.critic_figures import CHANCE
from ..eval.metrics import Interval
from .charts import ChartRow, line_chart, row_chart
from .page import figures, hero, paragraph
from .tables import columns

Card = Mapping[str, Any]
PAIRS = "pair accuracy"  # how often the better of two next steps is ranked higher
UNKNOWN = Interval(math.nan, math.nan, math.nan)
CHART = f"Test questions; chance is {CHANCE} in pair accuracy and AUC"


def intervals(card: Card) -> dict[str, Interval]:
    """The figures on the test questions."""
    return {name: Interval(*found) for name, found in card["test"].items()}


def critic_verdict(card: Card) -> tuple[str, str]:
    """A critic's verdict in a sentence, and its kind: "good", "bad" or ""."""
    if not card["earned"]:
        return f"Not better than chance: don't use it. On validation, {card['why']}", "bad"
    test = intervals(card)
    if f"{PAIRS}, log-probability" not in test:  # pairs from a file: nobody sampled them
        return f"Better than chance at ranking steps: {test[PAIRS]}", "good"
    gain = test.get(f"{PAIRS} over log-probability", UNKNOWN)
    said = {"good": "yes", "bad": "no", "": "not clearly"}[gain.kind]
    policy = test[f"{PAIRS}, log-probability"]
    return (
        f"Better than log-probability at ranking steps: {said}, {test[PAIRS]} against {policy}, paired {gain:+}",
        gain.kind,
    )


def critic_text(card: Card) -> str:
    """What the terminal shows: the verdict, then the test questions' figures."""
    counts = f"held out: {card['questions']['test']:,} questions, {card['pairs']['test']:,} pairs of steps"
    rows = [["figure", "value [95%]"], *([name, str(found)] for name, found in intervals(card).items())]
    lines = [critic_verdict(card)[0], f"{counts}; chance is {CHANCE} in pair accuracy and AUC", columns(rows)]
    if card["kind"] == "value":
        weight = card["rollout_weight"]
        used = f"Q = {1 - weight:.2f}*value + {weight:.2f}*rollout (lambda {weight:.2f})"
        lines.append(f"on validation, {card['why']}: {used}")
    return "\n".join(lines)


def critic_parts(card: Card, metrics: Sequence[Card]) -> list[str]:
    """A critic's page: verdict, its figures against chance, calibration and loss."""
    test = intervals(card)
    rows = [
        ChartRow(name, found, "plain" if "," in name or "base rate" in name else "c0") for name, found in test.items()
    ]
    outcomes = [(value, Interval(share, share, share)) for value, share, _ in card["reliability"]]
    ideal = [(x, Interval(x, x, x)) for x in (0.0, 1.0)]
    loss = {
        name: [(line["step"], Interval(line[key], line[key], line[key])) for line in metrics]
        for name, key in (("training", "loss"), ("held out", "held_out_loss"))
    }
    drawn = [
        row_chart(CHART, rows, "[95%]", CHANCE),
        line_chart("Calibration: share of right outcomes", {"outcomes": outcomes, "ideal": ideal}, "p", (0.0, 1.0)),
        line_chart("Loss (nats)", loss, "steps"),
    ]
    facts = [("kind", card["kind"])]
    if card["kind"] == "value":
        facts.append(("weight of rollouts", f"{card['rollout_weight']:.2f}"))
    return [
        hero(f"{test[PAIRS].value:.3f}", *critic_verdict(card), facts),
        paragraph(f"{PAIRS}: how often the better of two next steps gets the higher number", "soft"),
        figures(drawn, "Grey: what needs no training."),
    ]
