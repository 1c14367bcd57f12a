"""What training tells its user while it goes: trees, rounds and optimiser steps."""

from __future__ import annotations

from typing import Any

from ..live import Progress, last_tree
from ..tree.graded import GradedTree


def show_tree(progress: Progress, tree: GradedTree, counted: int) -> None:
    """Advance the bar by `counted` and show this tree's result."""
    right = sum(response.samples for response in tree.responses if response.right)
    count = sum(response.samples for response in tree.responses)
    sizes = len(tree.tree), len(tree.tree.simulations)
    progress.note("last tree", last_tree(tree.key, *sizes, right, count, tree.ended_by))
    progress.advance(counted, tree.cost.sampled_tokens)
    if tree.failed_reward is not None:
        progress.trouble(f"{tree.key} is left out: {tree.failed_reward}")


def show_round(progress: Progress, line: dict[str, Any], name: str, compares: bool) -> None:
    """One round's figures: below the bar, or as a line with the pace. `compares`: the method learns
    from how the responses to a question differ.
    """
    loss = f", loss {line['loss']:.4f}" if "loss" in line else ""
    alike = f", {line['flat']} without a difference to learn from" if compares else ""
    auc, order = line.get("value_auc"), line.get("value_pair_accuracy")
    value = "" if auc is None else f"; AUC of the value {auc:.2f}"
    value += "" if order is None else f", pair accuracy {order:.2f}"
    left = line["updates_left_out"]
    fewer = f", {left} fewer than wanted (train.buffer_passes)" if left else ""
    if line["rows_filled"]:
        fewer = f" of {line['rows'] + line['rows_filled']} wanted"
    kl = line.get("teacher_kl")
    value += "" if kl is None else f"; KL to the teacher {kl:.3f} nats a token"
    gap = line.get("engine_logprob_gap")
    value += "" if gap is None else f"; engine and learner differ by {gap:.2g} nats at most"
    figures = (
        f"{name}: {line['solved']} of {line['questions']} questions have a right response{alike}; "
        f"mean reward {line['mean_reward']:.3f}{value}; {line['updates']} updates on "
        f"{line['rows']} responses{fewer}{loss}"
    )
    if progress.bar is None:
        progress.say(f"round {figures}, {progress.pace}")
    progress.note("round", figures)
