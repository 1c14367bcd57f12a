"""What a run tells its user: progress while it goes, a table and a picture at the end."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

from ..collect import GradedTree
from ..eval.metrics import Interval
from ..live import Bar, last_tree
from ..search.extract import trajectories
from ..search.tree import ROOT


class Progress:
    """A live bar on a terminal, plain lines elsewhere; silent when `quiet`. Everything goes to `out` (standard error).

    `dollars` tells what teachers have charged so far.
    """

    def __init__(self, quiet: bool = False, out: TextIO | None = None) -> None:
        self.out = out if out is not None else sys.stderr
        self.quiet = quiet
        self.bar: Bar | None = None
        self.began = time.perf_counter()
        self.total = self.done = self.first = self.sampled = 0
        self.dollars: Callable[[], float] = float  # nothing

    def say(self, text: str) -> None:
        if not self.quiet:
            self.bar.write(text) if self.bar is not None else print(text, file=self.out, flush=True)

    def start(self, total: int, done: int) -> None:
        self.total, self.done, self.first, self.sampled = total, done, done, 0
        self.began = time.perf_counter()
        if not self.quiet and self.out.isatty():
            self.bar = Bar(total, done, "question", self.out)

    def tree(self, tree: GradedTree) -> None:
        self.done += 1
        self.sampled += tree.cost.sampled_tokens
        if self.bar is None:
            return
        self.bar.advance()
        found = trajectories(tree.tree)
        right = sum(one.samples for one in found if one.hre == 1.0)
        grown, count = tree.tree, sum(one.samples for one in found)
        rate = self.sampled / max(time.perf_counter() - self.began, 1e-9)
        self.bar.note("last tree", last_tree(tree.key, len(grown.N), grown.N[ROOT], right, count, tree.ended_by))
        self.bar.note("tokens", f"{self.sampled:,} sampled, {rate:,.0f} a second{self.spent()}")

    def spent(self) -> str:
        """What teachers charged, where they charge."""
        dollars = self.dollars()
        return f", ${dollars:.4f}" if dollars else ""

    def round(self, line: dict[str, Any], rounds: int) -> None:
        """One round's figures, with rate and time left."""
        self.done = max(self.done, (line["round"] + 1) * line["questions"])
        rate = (self.done - self.first) / max(time.perf_counter() - self.began, 1e-9)
        left = (self.total - self.done) / rate if rate > 0 else 0.0
        loss = f", loss {line['loss']:.4f}" if "loss" in line else ""
        figures = (
            f"reward {line['mean_reward']:.3f}, flat {line['flat']}/{line['questions']}, solved {line['solved']},"
            f" rows {line['rows']}{loss}"
        )
        if self.bar is not None:
            self.bar.at(min(self.done, self.total))
            self.bar.note("round", f"{line['round'] + 1}/{rounds}: {figures}")
            return
        self.say(
            f"round {line['round'] + 1}/{rounds}: {figures}, {rate:.1f} questions/s{self.spent()}, ETA {left:.0f} s"
        )

    def validated(self, rounds_done: int, accuracy: float) -> None:
        self.say(f"checkpoint after round {rounds_done}: validation accuracy {accuracy:.3f}")

    def stop(self) -> None:
        if self.bar is not None:
            self.bar.close()
            self.bar = None


def table(card: dict[str, Any]) -> str:
    """The before/after table of a run card."""
    rows = [("", "accuracy", "95% interval", "problems", "tokens", "seconds")]
    for name in ("before", "after"):
        figures = card[name]
        accuracy = figures["accuracy"]
        if accuracy is None:
            continue
        rows.append(
            (
                name,
                f"{accuracy['value']:.3f}",
                f"[{accuracy['low']:.3f}, {accuracy['high']:.3f}]",
                str(figures["problems"]),
                f"{figures['tokens']:,}",
                f"{figures['seconds']:.1f}",
            )
        )
    gain = card["gain"]
    if gain is not None:
        rows.append(
            ("gain (paired)", f"{gain['value']:+.3f}", f"[{gain['low']:+.3f}, {gain['high']:+.3f}]", "", "", "")
        )
    cost = card["search_cost"]
    sampled = f"{cost['sampled_tokens']:,}"
    rows.append(("training", "", "", f"{card['questions']:,}", sampled, f"{card['seconds']['training']:.1f}"))
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = [
        "  ".join(
            cell.ljust(w) if i == 0 else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]
    too_long = card["after"]["too_long"]
    if too_long:
        lines.append(f"{too_long} problems don't fit into the context and count as wrong")
    return "\n".join(line.rstrip() for line in lines)


def draw_report(path: Path, card: dict[str, Any], metrics: list[dict[str, Any]]) -> None:
    """`report.png`: reward and validation over questions, zero-variance share, update statistics, before and after."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    rounds = [line for line in metrics if "mean_reward" in line]
    seen = [sum(r["questions"] for r in rounds[: i + 1]) for i in range(len(rounds))]
    by_round = {line["round"]: x for line, x in zip(rounds, seen, strict=True)}
    figure, axes = plt.subplots(2, 2, figsize=(11, 7.5), constrained_layout=True)
    learning, flat, updates, result = axes.flat
    learning.plot(seen, [r["mean_reward"] for r in rounds], color="tab:blue", label="mean reward of sampled responses")
    checked = [
        (by_round[m["round"]], m["validation_accuracy"])
        for m in metrics
        if "validation_accuracy" in m and m["round"] in by_round
    ]
    if card.get("validation_before") is not None:
        checked.insert(0, (0, card["validation_before"]))
    learning.plot(
        *zip(*checked, strict=True), "o-", color="tab:orange", label="greedy accuracy, validation"
    ) if checked else None
    learning.set(xlabel="training questions", ylim=(0, 1), title="Learning")
    learning.legend(loc="lower right", fontsize=8)
    flat.plot(seen, [r["flat_at_first"] / r["questions"] for r in rounds], color="tab:gray", label="at first")
    flat.plot(seen, [r["flat"] / r["questions"] for r in rounds], color="tab:red", label="after more search")
    flat.set(xlabel="training questions", ylim=(0, 1), title="Share of zero-variance groups")
    flat.legend(fontsize=8)
    for name, colour in (("entropy", "tab:green"), ("kl", "tab:purple"), ("grad_norm", "tab:brown")):
        points = [(x, r[name]) for x, r in zip(seen, rounds, strict=True) if name in r]
        if points:
            updates.plot(*zip(*points, strict=True), color=colour, label=name)
    updates.set(xlabel="training questions", title="Updates")
    if updates.lines:
        updates.legend(fontsize=8)
    names = ["before", "after"] if card["before"]["accuracy"] is not None else []
    values = [Interval(**card[n]["accuracy"]) for n in names]
    errors = [[v.value - v.low for v in values], [v.high - v.value for v in values]]
    result.bar(names, [v.value for v in values], yerr=errors, capsize=6, color=["tab:gray", "tab:blue"])
    for i, value in enumerate(values):
        result.text(i, value.high + 0.02, f"{value.value:.3f}", ha="center")
    problems = card["before"]["problems"]
    result.set(ylim=(0, 1), title=f"Greedy accuracy, {problems:,} held-out problems, 95% intervals")
    figure.suptitle(f"{card['method']} on {card['student']}, seed {card['seed']}")
    figure.savefig(path, dpi=110)
    plt.close(figure)


def draw_value_report(
    path: Path,
    curve: list[dict[str, float]],
    figures: dict[str, Interval],
    reliability: list[tuple[float, float, float]],
) -> None:
    """A value's `report.png`: train and held-out loss, held-out figures against chance, and the reliability diagram."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, (loss, ranks, trust) = plt.subplots(1, 3, figsize=(15, 4.6), constrained_layout=True)
    steps = [line["step"] for line in curve]
    loss.plot(steps, [line["train_loss"] for line in curve], color="tab:blue", label="training questions")
    loss.plot(steps, [line["held_out_loss"] for line in curve], color="tab:orange", label="held-out questions")
    best = min(curve, key=lambda line: line["held_out_loss"])
    loss.plot(best["step"], best["held_out_loss"], "o", color="tab:orange", label="kept")
    loss.set(xlabel="step", title="Cross-entropy (nats), soft targets")
    loss.legend(fontsize=8)
    shown = {name: i for name, i in figures.items() if name.startswith(("AUC", "sibling"))}
    for y, (name, interval) in enumerate(reversed(shown.items())):
        colour = "tab:gray" if "," in name else "tab:blue"
        ranks.plot([interval.low, interval.high], [y, y], color=colour, linewidth=3)
        ranks.plot(interval.value, y, "o", color=colour)
    ranks.axvline(0.5, color="black", linewidth=0.8, linestyle="--")
    ranks.set_yticks(range(len(shown)), list(reversed(shown)), fontsize=8)
    ranks.set(title="Test questions, 95% intervals; chance is 0.5")
    trust.plot([0, 1], [0, 1], color="black", linewidth=0.8, linestyle="--")
    trust.scatter(
        [v for v, _, _ in reliability], [o for _, o, _ in reliability], [20 + 400 * n for _, _, n in reliability]
    )
    trust.set(xlabel="V", ylabel="share of correct responses", xlim=(0, 1), ylim=(0, 1), title="Reliability, test")
    figure.savefig(path, dpi=110)
    plt.close(figure)
