"""What an evaluation tells its user while it runs."""

from __future__ import annotations

import sys
import time
from typing import TextIO

from ..live import Bar

LINE_SECONDS = 5.0  # between two lines where there is no terminal


class Progress:
    """A bar on a terminal, a line every few seconds elsewhere, all on standard error; counts problems over all cells."""

    def __init__(self, out: TextIO | None = None) -> None:
        self.out = out if out is not None else sys.stderr
        self.bar: Bar | None = None
        self.total = self.done = self.first = self.tokens = 0
        self.began = self.said = time.perf_counter()
        self.doing = ""

    def say(self, text: str) -> None:
        if self.bar is not None:
            self.bar.write(text)
        else:
            print(text, file=self.out, flush=True)

    def start(self, total: int, done: int) -> None:
        """`done` of `total` answers are there already."""
        self.total, self.done, self.first = total, done, done
        self.began = self.said = time.perf_counter()
        if self.out.isatty():
            self.bar = Bar(total, done, "problem", self.out)

    def cell(self, name: str) -> None:
        """The cell that is worked on now."""
        self.doing = name
        if self.bar is not None:
            self.bar.describe(name)

    def problem(self, tokens: int) -> None:
        """One more problem was answered with so many sampled tokens."""
        self.done += 1
        self.tokens += tokens
        now = time.perf_counter()
        seconds = max(now - self.began, 1e-9)
        if self.bar is not None:
            self.bar.note("answers", f"{self.tokens:,} sampled tokens, {self.tokens / seconds:,.0f} a second")
            self.bar.advance()
        elif now - self.said >= LINE_SECONDS or self.done == self.total:
            self.said = now
            rate = (self.done - self.first) / seconds
            self.say(
                f"{self.doing}: {self.done:,}/{self.total:,} problems, {rate:.1f}/s, {self.tokens / seconds:,.0f}"
                f" tokens/s, ETA {(self.total - self.done) / rate:.0f} s"
            )

    def stop(self) -> None:
        if self.bar is not None:
            self.bar.close()
            self.bar = None
