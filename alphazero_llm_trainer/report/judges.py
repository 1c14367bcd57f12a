"""What a value and a process reward model are worth: do they beat chance, and the policy's log-probability?"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from ..eval.metrics import Interval
from .charts import ChartRow, line_chart, row_chart
from .page import figures, hero, paragraph
from .tables import columns

Card = Mapping[str, Any]
CHANCE, UNKNOWN = 0.5, Interval(math.nan, math.nan, math.nan)  # before version 0.5 nothing was paired
RANKING, PAIRS = "sibling ranking", "pair accuracy"  # how often the better of two next steps is ranked higher
POLICY, COMBINED = "policy log-probability", "kept + policy log-probability"  # scorers in prm.json


def against(own: Interval, policy: Interval, gain: Interval) -> tuple[str, str]:
    """Whether a judge ranks steps better than the policy's log-probability does, in words; and if so "good"."""
    said = {"good": "yes", "bad": "no", "": "not clearly"}[gain.kind]
    return f"Better than log-probability at ranking steps: {said}, {own} against {policy}, paired {gain:+}", gain.kind


def value_verdict(card: Card) -> tuple[str, str]:
    """A value's verdict in a sentence, and its kind."""
    if not card["earned"]:
        return f"Not better than chance: don't use it. On validation, {card['why']}", "bad"
    test = {name: Interval(*found) for name, found in card["test"].items()}
    policy = test[f"{RANKING}, log-probability"]
    return against(test[RANKING], policy, test.get(f"{RANKING} over log-probability", UNKNOWN))


def value_text(card: Card) -> str:
    """What the terminal shows of a value: the verdict, then the test questions' figures."""
    weight, tested = card["rollout_weight"], f"held out: {card['questions']['test']:,} questions"
    rows = [["figure", "value [95%]"], *([name, str(Interval(*found))] for name, found in card["test"].items())]
    used = f"Q = {1 - weight:.2f}*value + {weight:.2f}*rollout (lambda {weight:.2f})"
    note = f"{tested}; chance is 0.5 in AUC and ranking"
    return "\n".join([value_verdict(card)[0], note, columns(rows), f"on validation, {card['why']}: {used}"])


def value_parts(card: Card, metrics: Sequence[Card]) -> list[str]:
    """A value's page: verdict, its figures against chance, calibration and loss."""
    test = {name: Interval(*found) for name, found in card["test"].items()}
    rows = [
        ChartRow(name, found, "plain" if "," in name or "base rate" in name else "c0") for name, found in test.items()
    ]
    outcomes = [(value, Interval(share, share, share)) for value, share, _ in card.get("reliability", ())]
    ideal = [(x, Interval(x, x, x)) for x in (0.0, 1.0)] if outcomes else []
    loss = {
        name: [(line["step"], Interval(line[key], line[key], line[key])) for line in metrics]
        for name, key in (("training", "train_loss"), ("held out", "held_out_loss"))
    }
    drawn = [
        row_chart("Test questions; chance is 0.5 in AUC and ranking", rows, "[95%]", CHANCE),
        line_chart("Calibration: share of right outcomes", {"outcomes": outcomes, "ideal": ideal}, "V", (0.0, 1.0)),
        line_chart("Loss (nats)", loss, "steps"),
    ]
    facts = [("kind", card["kind"]), ("weight of rollouts", f"{card['rollout_weight']:.2f}")]
    return [
        hero(f"{test[RANKING].value:.3f}", *value_verdict(card), facts),
        paragraph(f"{RANKING}: how often the better of two next steps has the higher value", "soft"),
        figures(drawn, "Grey: what needs no training."),
    ]


def prm_verdict(card: Card) -> str:
    """A PRM's verdict in a sentence. It scores as it was saved: with the policy's log-probability where that has weight."""
    found = {figure: {name: Interval(*v) for name, v in of.items()} for figure, of in card["test"].items()}
    both = card["calibration"]["policy"] > 0 and COMBINED in found[PAIRS]
    name = COMBINED if both else card["kind"]
    own = found[PAIRS][name]
    if not own.low > CHANCE:
        return f"Not better than chance: don't use it. It ranks {own} of step pairs rightly, chance is 0.5"
    return against(own, found[PAIRS][POLICY], found.get(f"{PAIRS} over {POLICY}", {}).get(name, UNKNOWN))[0]


def prm_text(card: Card) -> str:
    """What the terminal shows of a PRM: the verdict, then each scorer's figures on the test questions."""
    counts = f"held out: {card['questions']['test']:,} questions, {card['pairs']['test']:,} pairs"
    lines = [prm_verdict(card), f"{counts}; 95% intervals over questions; step labels from {card['labels']}"]
    rows = [["figure", "scorer", "value [95%]"]]
    for figure, of in card["test"].items():
        rows += [[figure, name, str(Interval(*found))] for name, found in of.items()]
    lines.append(columns(rows, left=2))
    for kind, seconds in card["seconds_by_kind"].items():
        lines.append(f"{kind}: {seconds:.0f} s of training, validation pairs {card['validation_pairs'][kind]:.4f}")
    rules = ", ".join(f"{rule} {auc:.3f}" for rule, auc in card["totals_auc"].items())
    return "\n".join(
        [*lines, f"kept: {card['kind']}; a response's total: {card['total']} (AUC on validation: {rules})"]
    )
