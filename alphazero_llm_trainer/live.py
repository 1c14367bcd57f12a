"""What long work tells its user, and how it is told to end: a live bar on a terminal, lines
elsewhere; Ctrl-C.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Self, TextIO, TypeVar, cast

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

TICK = 1.0  # seconds between two looks at the clock
BAR_WIDTH = 20
TROUBLES = 3  # lines about what is left out
LONG = 8  # times as many tokens computed as sampled, where prompts are told of
BEAT = (
    10.0  # seconds of silence, where there is no bar, after which a line says how far the work is
)
POLL = 0.25  # seconds between two looks at `stop`

T = TypeVar("T")
StopAsked = Callable[[], bool]


# What a function may raise and no future can carry: its caller would wait for ever, or end.
UNCARRIED = (StopIteration, GeneratorExit, asyncio.CancelledError)


_aside: ContextVar[bool] = ContextVar("aside", default=False)


class Output:
    """Standard output, but for what is printed within `printing_aside`, which standard error
    gets."""

    def __init__(self, out: TextIO) -> None:
        self.out = out

    def __getattr__(self, name: str) -> Any:
        return getattr(sys.stderr if _aside.get() else self.out, name)


@contextmanager
def printing_aside() -> Iterator[None]:
    """What code of the user's own prints meanwhile, in its threads too, goes to standard error;
    what others print does not.
    """
    if not isinstance(sys.stdout, Output):
        sys.stdout = cast(TextIO, Output(sys.stdout))
    token = _aside.set(True)
    try:
        yield
    finally:
        _aside.reset(token)


class StoppedError(Exception):
    """The user asked to stop."""


async def in_thread(function: Callable[..., T], *given: Any) -> T:
    """The result of `function(*given)`, which runs in a thread. What it raises is raised here, one
    of `UNCARRIED` as the cause of a RuntimeError.
    """

    def call() -> T:
        try:
            return function(*given)
        except UNCARRIED as error:
            raise RuntimeError(f"a thread raised {type(error).__name__}") from error

    return await asyncio.to_thread(call)


def run_until(stop: StopAsked, work: Coroutine[Any, Any, T]) -> T:
    """What `asyncio.run(work)` gives; `work` is cancelled soon after `stop` is true. Raises
    StoppedError then.
    """

    async def watch_stop() -> T:
        task = asyncio.ensure_future(work)
        try:
            while not task.done():
                if stop():
                    raise StoppedError
                await asyncio.wait((task,), timeout=POLL)
            return task.result()
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    return asyncio.run(watch_stop())


class Stop:
    """Whether the user asked to stop: Ctrl-C once asks the work to end at the next safe place;
    twice ends it at once.

    What is said then names what `progress` knows to be in hand. As a context manager it puts the
    handler of before back. In a thread of its own it leaves Ctrl-C to the main thread.
    """

    def __init__(self, progress: Progress | None = None) -> None:
        self.asked, self.progress = False, progress
        self.main = threading.current_thread() is threading.main_thread()
        self.previous = signal.signal(signal.SIGINT, self.handle) if self.main else None

    def handle(self, number: int, frame: object) -> None:
        self.asked = True
        signal.signal(signal.SIGINT, self.previous)
        held = "" if self.progress is None else self.progress.work.held
        sys.stderr.write(
            f"\nending {held or 'at the next safe place'}; Ctrl-C again ends at once\n"
        )

    def __call__(self) -> bool:
        return self.asked

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self.main:
            signal.signal(signal.SIGINT, self.previous)


@dataclass(slots=True)
class Stretch:
    """A stretch of work since the second `began`: `total` things of the name `unit`, of which
    `first` were done before; `tokens` were sampled for what is done.

    `figures` are the newest ones. `held` says what a stop waits for. `had` of the tokens are those
    of what was done before, `metered` and `reckoned` are what the meter and `computed` said at the
    beginning, and `rest` are the tokens that the stretches after this one are expected to take.
    """

    began: float
    total: int = 0
    first: int = 0
    unit: str = ""
    doing: str = ""
    held: str = ""
    done: int = 0
    tokens: int = 0
    figures: str = ""
    had: int = 0
    metered: int = 0
    reckoned: int = 0
    rest: int = 0


class Progress:
    """Shows how far long work is: a live bar on a terminal, lines elsewhere, nothing where `quiet`.

    `meter` counts the tokens that are sampled, those of unfinished things too, and `computed` all
    that went through a model, prompts' too. `start` begins a
    stretch of work that is counted, `wait` one that can't be; `stop` ends either,
    and what is said stays above the bar. A stretch may have others within it (`within`). Where
    there is no bar, a line says how far the work is after every `BEAT` seconds of silence, whether
    anything was finished or not. With `tell` that function gets each line, and from the thread that
    works alone.
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
        self.meter: Callable[[], int] = lambda: 0
        self.computed: Callable[[], int] = lambda: 0
        self.bar: Live | None = None
        self.notes: dict[str, str] = {}
        self.troubles = 0
        self.work, self.said = Stretch(clock()), clock()
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
                print(text, file=self.out, flush=True)

    def start(
        self,
        total: int,
        done: int = 0,
        unit: str = "question",
        doing: str = "",
        held: str = "",
        tokens: int = 0,
        rest: int = 0,
    ) -> None:
        """`total` things are to be done, of which `done` are done already, with so many tokens; see
        `Stretch`.
        """
        work = Stretch(self.clock(), total, done, unit, doing, held, done, tokens, "", tokens)
        work.metered, work.reckoned, work.rest = self.meter(), self.computed(), rest
        self._begin(work)

    def follow(self, engine: Any) -> None:
        """Count what this engine (`engine.protocol.Engine`) samples and computes."""
        self.meter = lambda: engine.cost.sampled_tokens
        self.computed = lambda: engine.stats.computed_tokens

    def wait(self, doing: str) -> None:
        """Work that can't be counted begins: `doing` is its name."""
        self._begin(Stretch(self.clock(), doing=doing))

    @contextmanager
    def within(self, total: int, unit: str, doing: str, held: str = "") -> Iterator[None]:
        """Other things are counted for a while, as by `start`; the stretch under way goes on after
        them.
        """
        outer = self.work
        if not outer.unit:
            self.start(total, 0, unit, doing, held)
            try:
                yield
            finally:
                self.stop()
            return
        inner = self.work = Stretch(self.clock(), total, 0, unit, doing, held)
        inner.metered = self.meter()
        try:
            yield
        finally:
            outer.metered += self.meter() - inner.metered
            self.work = outer

    def load(self, what: str, module: str) -> None:
        """Say that `what` is loaded, unless its `module` is there already; then `wait` for that,
        and what comes after.
        """
        if module not in sys.modules:
            self.say(f"loading {what}")
        self.wait(f"loading {what}")

    def _begin(self, work: Stretch) -> None:
        """Show a bar for work that is counted, on a terminal; elsewhere call `beat` from a thread,
        because the one that works may be in one long call.
        """
        self.stop()
        self.work, self.said, self.notes = work, work.began, {}
        if self.quiet or self.tell is not None:
            return
        if work.unit and self.out.isatty():
            console = Console(file=self.out, highlight=False, markup=False, soft_wrap=True)
            self.bar = Live(
                console=console,
                get_renderable=self.draw_lines,
                refresh_per_second=4,
                redirect_stdout=False,
            )
            self.bar.start()
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

    def advance(self, count: int = 1, tokens: int = 0) -> None:
        """`count` more things are done, for which so many tokens were sampled."""
        self.work.tokens += tokens
        self.at(self.work.done + count)

    def at(self, done: int) -> None:
        """So many things are done."""
        self.work.done = min(done, self.work.total)
        self.beat()

    def now(self, text: str) -> None:
        """The newest figures."""
        self.work.figures = text

    def trouble(self, text: str) -> None:
        """A line that stays on what is left out: the first `TROUBLES` of a command, then that more
        are counted.
        """
        self.troubles += 1
        if self.troubles <= TROUBLES:
            self.say(text)
        elif self.troubles == TROUBLES + 1:
            self.say("more are left out like these: they are counted and not told")

    def note(self, name: str, text: str) -> None:
        """A line below the bar; a later one of the same name takes its place."""
        self.notes[name] = text

    def draw_lines(self) -> Group:
        """A bar, how far the work is, and the notes: what a terminal shows."""
        first = Table.grid(padding=(0, 1))
        first.add_row(
            ProgressBar(self.work.total, self.work.done, width=BAR_WIDTH), fold_text(self.line())
        )
        # A copy: searches ahead of their round note from a thread of their own.
        notes = [*self.notes.items()]
        return Group(first, *(fold_text(f"{name}: {text}") for name, text in notes))

    def line(self) -> str:
        """How far the work is, as one line."""
        work = self.work
        counted = f"{work.done:,}/{work.total:,} {work.unit}s" if work.unit else ""
        tokens, read, sampled = self.sampled_tokens, self.computed() - work.reckoned, ""
        if (tokens or read) and work.unit != "token":
            sampled = f"{work.had + tokens:,} tokens"
            if read > LONG * tokens:  # prompts take the time
                sampled, tokens = f"{sampled}, {read:,} with prompts", read
            sampled += f", {tokens / max(self.clock() - work.began, 1e-9):,.0f} tokens/s"
        parts = ", ".join(filter(None, (counted, work.figures, self.pace, sampled)))
        return f"{work.doing}: {parts}" if work.doing else parts

    @property
    def sampled_tokens(self) -> int:
        """Tokens that were sampled in the stretch under way, for what isn't done, too."""
        work = self.work
        return max(work.tokens - work.had, self.meter() - work.metered)

    @property
    def pace(self) -> str:
        """Things a second since the start and the time left, by the tokens that what is done took;
        the seconds so far where nothing is done.
        """
        work, seconds = self.work, self.clock() - self.work.began
        done, left = work.done - work.first, work.total - work.done
        if not done:
            return f"{show_duration(seconds)} so far"
        share, counted = left / done, work.tokens - work.had
        if counted:  # what is under way has some of its tokens
            share = (counted * share + work.rest) / self.sampled_tokens - (
                1 - counted / self.sampled_tokens
            )
        # Where what is under way has more tokens than expected, nothing is known of the time left.
        eta = f", ETA {show_duration(share * seconds)}" if share > 0 else ""
        return f"{show_rate(done, seconds, work.unit)}{eta}"

    def stop(self) -> None:
        """The stretch of work is over, or given up; where all of it is done and there is no bar, a
        line says so.
        """
        work = self.work
        if self.bar is None and work.doing and work.done == work.total > work.first:
            self.say(self.line())
        if self._over is not None:
            with self._writing:
                self._over.set()
            self._over = None
        if self.bar is not None:
            self.bar.stop()
            self.bar = None
        self.work = Stretch(self.clock())


def fold_text(text: str) -> Text:
    """Text that goes on in the next line of a terminal, whole."""
    return Text(text, no_wrap=False, overflow="fold")


def show_rate(count: int, seconds: float, unit: str) -> str:
    """So many things in so many seconds: a second, or seconds a thing where that is less than
    one.
    """
    a_second = count / max(seconds, 1e-9)
    return f"{a_second:,.1f} {unit}s/s" if a_second >= 1 else f"{1 / a_second:,.1f} s/{unit}"


def show_duration(seconds: float) -> str:
    """A time as people say it: seconds below two minutes, minutes below two hours, hours."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:,.1f} h"


def last_tree(
    name: str, nodes: int, simulations: int, right: int, responses: int, ended_by: str
) -> str:
    """One line on the tree that ended last."""
    counted = f"{nodes:,} nodes, {simulations:,} simulations"
    return f"{name}: {counted}, {right:,} of {responses:,} responses right, {ended_by}"
