"""A data set's rows as tasks, from a local folder or from the hub."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from ..config.objects import at_home
from ..config.sections import ProblemsConfig
from ..errors import DataError
from ..types import Task
from .row_files import load_hub, row_format, rows_at
from .row_texts import Row
from .source import Source, split_of

DATA_VARIABLE = "ALPHAZERO_DATA_DIR"


class RowSource(Source):
    """A data set's rows as a source; a subclass says how a row becomes a task.

    `test` is one of the hub's splits; `train`, `validation` and `arena` are its train rows, by a
    hash of the question. A row's id doesn't depend on the split that it is read through.

    Attributes:
        folder: its folder below `problems.path` or ALPHAZERO_DATA_DIR, with a file `SPLIT.jsonl`
            (or in another format of `row_files.ROW_FILES`) for each of the hub's splits.
        hub: its name on the hub and its configuration there, None where it has one alone.
        test_split: the hub's split that test problems are read from.
    """

    reads = ("path",)
    folder: str
    hub: tuple[str, str | None]
    test_split = "test"

    def __init__(self, path: str | None = None) -> None:
        self.path = path
        self._tasks: dict[str, list[Task]] = {}

    @classmethod
    def open(cls, rest: str, problems: ProblemsConfig) -> Source:
        """The source of an address."""
        return cls(problems.path)

    def load(self, split: str, count: int, start: int = 0) -> list[Task]:
        """At most `count` tasks of a split from its number `start` on; fewer, or none, where the
        split ends before that.
        """
        hub_split = self.test_split if split == "test" else "train"
        if hub_split not in self._tasks:
            rows = enumerate(self.rows(hub_split))
            self._tasks[hub_split] = [
                replace(self.task(row, hub_split, number), row=row[0]) for number, row in rows
            ]
        tasks = self._tasks[hub_split]
        if split != "test":
            tasks = [task for task in tasks if split_of(task.problem.question, ("test",)) == split]
        return tasks[start : start + count]

    def task(self, row: Row, hub_split: str, number: int) -> Task:
        """Row `number` of a hub's split as a task. Raises DataError for a broken row."""
        raise NotImplementedError

    def rows(self, hub_split: str) -> Iterator[Row]:
        """The rows of a hub's split, from the local folder where one is named, else from the
        hub.
        """
        place, (name, configuration) = self.place, self.hub
        if place is None:
            file = f"{self.folder}/{hub_split}.jsonl"
            fix = f"set {DATA_VARIABLE} (or problems.path) to a folder with {file}"
            rows = load_hub(name, configuration, hub_split, fix)
            return ((row, f"{name} {hub_split} row {number}") for number, row in enumerate(rows))
        files = [
            file
            for folder in (place, place / self.folder)
            for file in sorted(folder.glob(f"{hub_split}.*"))
            if row_format(file.name)
        ]
        if not files:
            raise DataError(
                f"{place} has neither {hub_split}.jsonl nor {self.folder}/{hub_split}.jsonl: point "
                f"problems.path or {DATA_VARIABLE} at the folder with the {self.name} rows, or "
                "unset both to use the hub"
            )
        return (row for _, row in rows_at(str(files[0])))  # of `gzip -k` and the like, one

    @property
    def place(self) -> Path | None:
        """The folder that holds the rows, or None for the hub."""
        folder = self.path if self.path is not None else os.environ.get(DATA_VARIABLE) or None
        return None if folder is None else at_home(folder, f"problems.path (or {DATA_VARIABLE})")
