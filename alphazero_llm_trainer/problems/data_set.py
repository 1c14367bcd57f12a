"""A data set's rows by number, from a local folder or from the hub, and how a hub's train rows are split."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from ..config.objects import at_home
from ..config.sections import ProblemsConfig
from ..errors import DataError
from ..types import Task
from .rows import PACKED, ROW_FILES, Row, json_row, lines_of, load_hub, read_file
from .source import Source

DATA_VARIABLE = "ALPHAZERO_DATA_DIR"
HELD_OUT_ROWS = 500


class RowSource(Source):
    """A data set's rows as a source; a subclass says how a row becomes a task.

    Attributes:
        folder: its folder below `problems.path` or ALPHAZERO_DATA_DIR, with a file `SPLIT.jsonl` (or in another of
            `rows.ROW_FILES`, packed or not) for each of the hub's splits.
        hub: its name on the hub and its configuration there, None where it has one alone.
        columns: the columns that every row needs.
        test_split: the hub's split that test problems are read from; the others come from its train rows (`split_rows`).
    """

    reads = ("path",)
    folder: str
    hub: tuple[str, str | None]
    columns: tuple[str, ...]
    test_split = "test"

    def __init__(self, path: str | None = None) -> None:
        self.path = path

    @classmethod
    def open(cls, rest: str, problems: ProblemsConfig, path: str | None) -> Source:
        """See `Source.open`."""
        return cls(path)

    def load(self, split: str, count: int, start: int = 0) -> list[Task]:
        """See `Source.load`."""
        hub_split = self.test_split if split == "test" else "train"
        total, row = self.rows(hub_split)
        numbers = split_rows(split, total)[start : start + count]
        return [self.task(row(number), hub_split, number) for number in numbers]

    def task(self, row: Row, hub_split: str, number: int) -> Task:
        """Row `number` of a hub's split as a task. Raises DataError for a broken row."""
        raise NotImplementedError

    def rows(self, hub_split: str) -> tuple[int, Callable[[int], Row]]:
        """How many rows a hub's split has, and the rows by number, from the local folder where one is named, else the hub."""
        name, configuration = self.hub
        if self.place is None:
            fix = f"set {DATA_VARIABLE} (or problems.path) to a folder with {self.folder}/{hub_split}.jsonl"
            rows = load_hub(name, configuration, hub_split, fix)
            return len(rows), lambda index: (rows[index], f"{name} {hub_split} row {index}")
        file = self.file(hub_split)
        if file is None:
            raise DataError(
                f"{self.place} has neither {hub_split}.jsonl nor {self.folder}/{hub_split}.jsonl: point problems.path or"
                f" {DATA_VARIABLE} at the folder with the {self.name} rows, or unset both to use the hub"
            )
        missing = DataError(f"{file} has no rows: put {self.name} rows with {', '.join(self.columns)} into it")
        if not file.name.startswith(f"{hub_split}.jsonl"):
            found = read_file(file)
            if not found:
                raise missing
            return len(found), found.__getitem__
        lines = list(lines_of(file))
        if not lines:
            raise missing
        return len(lines), lambda index: json_row(lines[index][1], f"{file} line {lines[index][0]}")

    @property
    def place(self) -> Path | None:
        """The folder that holds the rows, or None for the hub."""
        folder = self.path if self.path is not None else os.environ.get(DATA_VARIABLE) or None
        return None if folder is None else at_home(folder, f"problems.path (or {DATA_VARIABLE})")

    def file(self, hub_split: str) -> Path | None:
        """The local file of a split, or None where there is none."""
        if self.place is None:
            return None
        folders = (self.place, self.place / self.folder)
        names = [f"{hub_split}{kind}{packed}" for kind in ROW_FILES for packed in ("", *PACKED)]
        files = (folder / name for name in names for folder in folders)
        return next((file for file in files if file.is_file()), None)


def split_rows(split: str, total: int) -> range:
    """The row numbers of a split among the `total` rows of the hub's split it comes from.

    The last tenth (500 rows at most) of the hub's train rows is `arena`, the tenth before it `validation`, and `train`
    is what remains: the splits are disjoint.
    """
    if split == "test":
        return range(total)
    held = min(HELD_OUT_ROWS, total // 10)
    bounds = {
        "train": (0, total - 2 * held),
        "validation": (total - 2 * held, total - held),
        "arena": (total - held, total),
    }
    return range(*bounds[split])
