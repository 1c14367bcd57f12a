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
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from .types import Cost

TICK = 1.0  # seconds between two looks at the clock
BAR_WIDTH = 20
TROUBLES = 3  # lines about what is left out
BEAT = 10.0  # seconds of silence, where there is no bar, after which a line says how far the work is


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

    `start` begins a stretch of work that is counted, `wait` one that can't be; `stop` ends either, and what is said stays
    above the bar. Where there is no bar, a line says how far the work is after every `BEAT` seconds of silence, whether
    anything was finished or not; the newest figures (`now`) end it, and notes are left out. `dollars` tells what has been
    charged so far, `clock` the seconds. With `tell` that function gets each line, nothing is written, and nothing is told
    but from the thread that works.
    """

    def __init__(
        self,
        quiet: bool = False,
        out: TextIO | None = None,
        tell: Callable[[str], None] | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.out, self.tell, self.clock = out if out is not None else sys.stderr, tell, clock
        self.quiet = quiet
        self.bar: Live | None = None
        self.notes: dict[str, str] = {}
        self.total = self.done = self.first = self.finished_tokens = self.troubles = self.before = 0
        self.cost: Cost | None = None
        self.unit, self.doing, self.figures = "", "", ""
        self.began = self.said = clock()
        self.dollars: Callable[[], float] = float  # nothing
        self.looking: Callable[[], str] = str  # figures of the moment, in place of `now`'s
        self._over: threading.Event | None = None  # set at the end of the stretch under way
        self._writing = threading.RLock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def say(self, text: str) -> None:
        """Lines that stay."""
        if self.quiet:
            return
        with self._writing:
            self.said = self.clock()
            if self.tell is not None:
                self.tell(text)
            elif self.bar is not None:
                self.bar.console.print(text)
            else:
                self.out.write(f"{text}\n")
                self.out.flush()

    def start(
        self, total: int, done: int = 0, unit: str = "question", doing: str = "", cost: Cost | None = None
    ) -> None:
        """`total` things (`unit` is one's name) are to be done, of which `done` are done already.

        `cost` is the engine's running total: tokens show before the first thing is finished.
        """
        self.stop()
        self._begin(total, done, unit, doing)
        if cost is not None:
            self.cost, self.before = cost, cost.sampled_tokens
        if not self.quiet and self.tell is None and self.out.isatty():
            console = Console(file=self.out, highlight=False, markup=False, soft_wrap=True)
            self.bar = Live(console=console, get_renderable=self.drawn, refresh_per_second=4, redirect_stdout=False)
            self.bar.start()
            return
        if doing:
            self.say(f"{doing}: {total - done:,} {unit}s")
        self._beat_until_stopped()

    def wait(self, doing: str, looking: Callable[[], str] = str) -> None:
        """Work that can't be counted begins: `doing` is its name, `looking` tells its figures of the moment."""
        self.stop()
        self._begin(0, 0, "", doing)
        self.looking = looking
        self._beat_until_stopped()

    def load(self, what: str, module: str) -> None:
        """Say that `what` is loaded, unless its `module` is there already; then `wait` for that, and for what comes after."""
        if module not in sys.modules:
            self.say(f"loading {what}")
        self.wait("loading")

    def _begin(self, total: int, done: int, unit: str, doing: str) -> None:
        self.total, self.done, self.first, self.finished_tokens, self.cost = total, done, done, 0, None
        self.unit, self.doing, self.figures, self.looking, self.notes = unit, doing, "", str, {}
        self.began = self.said = self.clock()

    def _beat_until_stopped(self) -> None:
        """Call `beat` from a thread, because the one that works may be in one long call."""
        if self.quiet or self.tell is not None:
            return
        over = self._over = threading.Event()

        def beats() -> None:
            while not over.wait(TICK):
                with self._writing:
                    if not over.is_set():
                        self.beat()

        threading.Thread(target=beats, name="heartbeat", daemon=True).start()

    def beat(self) -> None:
        """Say how far the work is where nothing was said for `BEAT` seconds."""
        if self.bar is None and self.clock() - self.said >= BEAT:
            self.say(self.line())

    def leave_out(self, tokens: int) -> None:
        """The engine has sampled so many tokens for something else."""
        self.before += tokens

    def describe(self, text: str) -> None:
        """What is worked on now."""
        self.doing = text

    def advance(self, count: int = 1, tokens: int = 0) -> None:
        """`count` more things are done, for which so many tokens were sampled."""
        self.finished_tokens += tokens
        self.at(self.done + count)

    def at(self, done: int) -> None:
        """So many things are done."""
        self.done = min(done, self.total)
        if self.bar is None and self.done == self.total > self.first:
            self.say(self.line())
        else:
            self.beat()

    def now(self, text: str) -> None:
        """The newest figures."""
        self.figures = text

    def trouble(self, text: str) -> None:
        """A line that stays on something that is left out: the first `TROUBLES` of a command, then that more are counted."""
        self.troubles += 1
        if self.troubles <= TROUBLES:
            self.say(text)
        elif self.troubles == TROUBLES + 1:
            self.say("more are left out like these: they are counted and not told")

    def note(self, name: str, text: str) -> None:
        """A line below the bar; a later one of the same name takes its place."""
        self.notes[name] = text

    def drawn(self) -> Group:
        """A bar, how far the work is, and the notes: what a terminal shows."""
        first = Table.grid(padding=(0, 1))
        first.add_row(ProgressBar(self.total, self.done, width=BAR_WIDTH), told(self.line()))
        notes = [*self.notes.items()]  # a copy: searches ahead of their round note from a thread of their own
        return Group(first, *(told(f"{name}: {text}") for name, text in notes))

    def line(self) -> str:
        """How far the work is, as one line."""
        doing = f"{self.doing}: " if self.doing else ""
        counted = f"{self.done:,}/{self.total:,} {self.unit}s" if self.unit else ""
        sampled = self.sampled if self.tokens and self.unit != "token" else ""
        parts = (counted, self.looking(), self.figures, self.pace, sampled)
        return doing + ", ".join(part for part in parts if part)

    @property
    def seconds(self) -> float:
        """Since the start of the stretch under way."""
        return max(self.clock() - self.began, 1e-9)

    @property
    def pace(self) -> str:
        """Things a second since the start and the time left at that rate; the seconds so far where none is finished."""
        done = self.done - self.first
        if not done:
            return f"{duration(self.seconds)} so far{self.spent}"
        left = self.total - self.done
        eta = f", ETA {duration(left * self.seconds / done)}" if left else ""
        return f"{rate(done, self.seconds, self.unit)}{self.spent}{eta}"

    @property
    def tokens(self) -> int:
        """Tokens sampled since the start."""
        drawn = 0 if self.cost is None else self.cost.sampled_tokens - self.before
        return max(self.finished_tokens, drawn)

    @property
    def sampled(self) -> str:
        """Those tokens, and how many a second."""
        return f"{self.tokens:,} tokens, {self.tokens / self.seconds:,.0f} a second"

    @property
    def spent(self) -> str:
        """What was charged, where anything was."""
        dollars = self.dollars()
        return f", ${dollars:.4f}" if dollars else ""

    def stop(self) -> None:
        """The stretch of work is over, or given up."""
        if self._over is not None:
            with self._writing:
                self._over.set()
            self._over = None
        if self.bar is not None:
            self.bar.stop()
            self.bar = None


def told(text: str) -> Text:
    """One line of a terminal, cut where it is longer."""
    return Text(text, no_wrap=True, overflow="ellipsis")


def rate(count: int, seconds: float, unit: str) -> str:
    """So many things in so many seconds: a second, or seconds a thing where that is less than one."""
    a_second = count / max(seconds, 1e-9)
    return f"{a_second:,.1f} {unit}s/s" if a_second >= 1 else f"{1 / a_second:,.1f} s/{unit}"


def duration(seconds: float) -> str:
    """A time as people say it: seconds below two minutes, minutes below two hours, hours."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:,.1f} h"


def last_tree(name: str, nodes: int, simulations: int, right: int, responses: int, ended_by: str) -> str:
    """One line on the tree that ended last."""
    return (
        f"{name}: {nodes:,} nodes, {simulations:,} simulations, {right:,} of {responses:,} responses right, {ended_by}"
    )
