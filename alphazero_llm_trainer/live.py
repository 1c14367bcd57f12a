"""The live view of long work on a terminal: a bar with rate and time left, and below it what happened last."""

from __future__ import annotations

from typing import TextIO

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text


class _Rate(ProgressColumn):
    """Things a second since the start, not a moving average: what the time left is reckoned with."""

    def __init__(self, unit: str, first: int) -> None:
        super().__init__()
        self.unit, self.first = unit, first

    def render(self, task: Task) -> Text:
        rate = (task.completed - self.first) / max(task.elapsed or 0.0, 1e-9)
        return Text(f"{rate:,.1f} {self.unit}/s")


class Bar:
    """`total` things of which `done` are there already; everything is drawn on the terminal `out`.

    Without a terminal nobody makes one: callers print plain lines then.
    """

    def __init__(self, total: int, done: int, unit: str, out: TextIO) -> None:
        self.console = Console(file=out, highlight=False, markup=False, soft_wrap=True)
        self.progress = Progress(
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

    def advance(self, count: int = 1) -> None:
        self.progress.advance(self.task, count)

    def at(self, done: int) -> None:
        self.progress.update(self.task, completed=done)

    def note(self, name: str, text: str) -> None:
        """A line below the bar; a later one of the same name takes its place."""
        self.notes[name] = text
        lines = [Text(f"{key}: {value}", no_wrap=True, overflow="ellipsis") for key, value in self.notes.items()]
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
