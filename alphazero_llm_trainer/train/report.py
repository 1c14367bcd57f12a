"""What a run tells its user while it goes."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any, TextIO

from ..collect import GradedTree
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
