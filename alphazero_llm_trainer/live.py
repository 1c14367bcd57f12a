"""What long work tells its user, and how it is told to end: a live bar on a terminal, lines elsewhere; Ctrl-C."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Self, TextIO

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.progress import Progress as RichProgress
from rich.text import Text

LINE_SECONDS, LONGEST_SECONDS = 5.0, 60.0  # between two lines where there is no terminal: more of them at the start


class Stop:
    """Ctrl-C once asks the work to end at the next safe place; twice ends it at once.

    As a context manager it puts the handler of before back. In a thread of its own it leaves Ctrl-C to the main one.
    """

    def __init__(self) -> None:
        self.asked = False
        self.main = threading.current_thread() is threading.main_thread()
        self.previous = signal.signal(signal.SIGINT, self.handle) if self.main else None

    def handle(self, number: int, frame: object) -> None:
        self.asked = True
        signal.signal(signal.SIGINT, self.previous)
        sys.stderr.write("\nending at the next safe place; Ctrl-C again ends at once\n")

    def __call__(self) -> bool:
        return self.asked

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self.main:
            signal.signal(signal.SIGINT, self.previous)


class Progress:
    """Tells on `out` (standard error) how far a command is; says nothing where `quiet`.

    `start` begins a stretch of work that is counted, `stop` ends it; what is said stays above the bar. `dollars` tells
    what has been charged so far. On a terminal notes stand below the bar; elsewhere they are left out, and the newest
    figures (`now`) end each line. With `tell` that function gets each line, and nothing is written.
    """

    def __init__(
        self, quiet: bool = False, out: TextIO | None = None, tell: Callable[[str], None] | None = None
    ) -> None:
        self.out, self.tell = out if out is not None else sys.stderr, tell
        self.quiet = quiet
        self.bar: Bar | None = None
        self.total = self.done = self.first = self.tokens = 0
        self.unit, self.doing, self.figures = "", "", ""
        self.began = self.said = time.perf_counter()
        self.dollars: Callable[[], float] = float  # nothing

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def say(self, text: str) -> None:
        """Lines that stay."""
        if self.quiet:
            return
        if self.tell is not None:
            self.tell(text)
        elif self.bar is not None:
            self.bar.write(text)
        else:
            print(text, file=self.out, flush=True)

    def start(self, total: int, done: int = 0, unit: str = "question", doing: str = "") -> None:
        """`total` things (`unit` is one's name) are to be done, of which `done` are done already."""
        self.stop()
        self.total, self.done, self.first, self.tokens = total, done, done, 0
        self.unit, self.doing, self.figures = unit, doing, ""
        self.began = self.said = time.perf_counter()
        if not self.quiet and self.tell is None and self.out.isatty():
            self.bar = Bar(total, done, unit, self.out)
            self.bar.describe(doing)
        elif doing:
            self.say(f"{doing}: {total - done:,} {unit}s")

    def describe(self, text: str) -> None:
        """What is worked on now."""
        self.doing = text
        if self.bar is not None:
            self.bar.describe(text)

    def advance(self, count: int = 1, tokens: int = 0) -> None:
        """`count` more things are done, for which so many tokens were sampled."""
        self.tokens += tokens
        self.at(self.done + count)

    def at(self, done: int) -> None:
        """So many things are done."""
        self.done = min(done, self.total)
        if self.bar is not None:
            self.bar.at(self.done)
            if self.tokens:
                self.bar.note("sampled", self.sampled)
            return
        now = time.perf_counter()
        pause = min(max(LINE_SECONDS, (now - self.began) / 20), LONGEST_SECONDS)
        if now - self.said >= pause or (self.done == self.total > self.first):
            self.said = now
            self.say(self.line())

    def now(self, text: str) -> None:
        """The newest figures."""
        self.figures = text
        self.note("now", text)

    def note(self, name: str, text: str) -> None:
        """A line below the bar; a later one of the same name takes its place."""
        if self.bar is not None:
            self.bar.note(name, text)

    def line(self) -> str:
        """How far the work is, as one line."""
        doing = f"{self.doing}: " if self.doing else ""
        sampled = f", {self.sampled}" if self.tokens else ""
        figures = f", {self.figures}" if self.figures else ""
        return f"{doing}{self.done:,}/{self.total:,} {self.unit}s{figures}, {self.pace}{sampled}"

    @property
    def seconds(self) -> float:
        """Since the start of what is counted."""
        return max(time.perf_counter() - self.began, 1e-9)

    @property
    def pace(self) -> str:
        """Things a second since the start, and the time left at that rate."""
        rate = (self.done - self.first) / self.seconds
        left = (self.total - self.done) / rate if rate else 0.0
        return f"{rate:,.1f} {self.unit}s/s{self.spent}, ETA {left:.0f} s"

    @property
    def sampled(self) -> str:
        """Tokens sampled since the start."""
        return f"{self.tokens:,} tokens, {self.tokens / self.seconds:,.0f} a second"

    @property
    def spent(self) -> str:
        """What was charged, where anything was."""
        dollars = self.dollars()
        return f", ${dollars:.4f}" if dollars else ""

    def stop(self) -> None:
        """The stretch of work is over, or given up."""
        if self.bar is not None:
            self.bar.close()
            self.bar = None


class _Rate(ProgressColumn):
    """Things a second since the start, not a moving average: what the time left is reckoned with."""

    def __init__(self, unit: str, first: int) -> None:
        super().__init__()
        self.unit, self.first = unit, first

    def render(self, task: Task) -> Text:
        rate = (task.completed - self.first) / max(task.elapsed or 0.0, 1e-9)
        return Text(f"{rate:,.1f} {self.unit}s/s")


class Bar:
    """`total` things of which `done` are there already, drawn on the terminal `out`."""

    def __init__(self, total: int, done: int, unit: str, out: TextIO) -> None:
        self.console = Console(file=out, highlight=False, markup=False, soft_wrap=True)
        self.progress = RichProgress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            _Rate(unit, done),
            TimeRemainingColumn(),
            console=self.console,
        )
        self.task = self.progress.add_task("", total=total, completed=done)
        self.notes: dict[str, str] = {}
        self.live = Live(self.progress, console=self.console, refresh_per_second=4, redirect_stdout=False)
        self.live.start()

    def describe(self, text: str) -> None:
        """What is worked on now, left of the bar."""
        self.progress.update(self.task, description=text)

    def at(self, done: int) -> None:
        self.progress.update(self.task, completed=done)

    def note(self, name: str, text: str) -> None:
        """A line below the bar; a later one of the same name takes its place."""
        self.notes[name] = text
        notes = [*self.notes.items()]  # a copy: searches ahead of their round note from a thread of their own
        lines = [Text(f"{key}: {value}", no_wrap=True, overflow="ellipsis") for key, value in notes]
        self.live.update(Group(self.progress, *lines))

    def write(self, text: str) -> None:
        """Lines that stay, above the bar."""
        self.console.print(text)

    def close(self) -> None:
        self.live.stop()


def last_tree(name: str, nodes: int, simulations: int, right: int, responses: int, ended_by: str) -> str:
    """One line on the tree that ended last."""
    return (
        f"{name}: {nodes:,} nodes, {simulations:,} simulations, {right:,} of {responses:,} responses right, {ended_by}"
    )
