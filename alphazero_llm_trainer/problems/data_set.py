"""Rows of a data set by number, from a local folder or from the hub, and how a hub's train rows are split."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..config.objects import at_home
from ..config.sections import ProblemsConfig
from ..errors import DataError
from ..types import Task
from .rows import Row, json_row, lines_of, load_hub
from .source import Source, check_alone, check_text

DATA_VARIABLE = "ALPHAZERO_DATA_DIR"
HELD_OUT_ROWS = 500

Rows = Callable[[int], Row]  # by number


@dataclass(frozen=True, slots=True)
class DataSet:
    """Where the rows of one data set are.

    title: its name in messages; folder: its folder below ALPHAZERO_DATA_DIR; hub: name and, where there is one,
    configuration on the hub; columns: the columns that every row needs, for messages.
    """

    title: str
    folder: str
    hub: tuple[str, ...]
    columns: tuple[str, ...]

    @property
    def needed(self) -> str:
        """The columns as a phrase."""
        *first, last = (f"`{name}`" for name in self.columns)
        return f"{', '.join(first)} and {last}"

    def rows(self, hub_split: str, path: str | None = None) -> tuple[int, Rows]:
        """How many rows a hub's split has, and the rows by number.

        Args:
            hub_split: the split's name on the hub, and its file's without `.jsonl`.
            path: a folder with the files, or one with a folder of this data set's name that has them. None takes the
                environment variable ALPHAZERO_DATA_DIR, and without that the hub.

        Raises:
            DataError: one sentence naming file, line and fix.
        """
        folder = local_folder(path)
        return self._hub_rows(hub_split) if folder is None else self._local_rows(folder, hub_split)

    def text(self, columns: Mapping[str, Any], where: str, name: str) -> str:
        """The text of a column, stripped, or DataError."""
        value = columns.get(name)
        if value is None:
            raise DataError(f"{where} has no `{name}`: give every row {self.needed}")
        if not isinstance(value, str) or not value.strip():
            raise DataError(f"{where} has {value!r} as `{name}`: write the text there or remove the row")
        return check_text(value.strip(), f"{where}, `{name}`")

    def file(self, folder: Path, hub_split: str) -> Path | None:
        """The local file of a split, or None where the folder has none."""
        name = f"{hub_split}.jsonl"
        return next((file for file in (folder / name, folder / self.folder / name) if file.is_file()), None)

    def _local_rows(self, folder: Path, hub_split: str) -> tuple[int, Rows]:
        file = self.file(folder, hub_split)
        if file is None:
            raise DataError(
                f"{folder} has neither {hub_split}.jsonl nor {self.folder}/{hub_split}.jsonl: point dataset.path or"
                f" {DATA_VARIABLE} at the folder with the {self.title} rows, or unset both to use the hub"
            )
        lines = lines_of(file)
        if not lines:
            raise DataError(f"{file} has no rows: put {self.title} rows with {self.needed} into it")
        return len(lines), lambda index: json_row(lines[index][1], f"{file} line {lines[index][0]}")

    def _hub_rows(self, hub_split: str) -> tuple[int, Rows]:
        name, configuration = (*self.hub, None)[:2]
        fix = f"set {DATA_VARIABLE} (or dataset.path) to a folder with {self.folder}/{hub_split}.jsonl"
        assert name is not None
        rows = load_hub(name, configuration, hub_split, fix)
        return len(rows), lambda index: (rows[index], f"{name} {hub_split} row {index}")


def local_folder(path: str | None) -> Path | None:
    """The folder that holds the rows, or None for the hub."""
    folder = path if path is not None else os.environ.get(DATA_VARIABLE) or None
    return None if folder is None else at_home(folder, f"dataset.path (or {DATA_VARIABLE})")


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


class RowSource(Source):
    """A data set's rows as a source; a subclass says how a row becomes a task.

    `test_split` is the hub's split that test problems are read from; the others come from the hub's train rows
    (`split_rows`). Where the hub has one split alone, `only`, a tenth at its beginning is test.
    """

    data: DataSet
    test_split = "test"
    only: str | None = None

    def __init__(self, path: str | None = None) -> None:
        self.path = path

    @classmethod
    def open(cls, rest: str, problems: ProblemsConfig, path: str | None) -> Source:
        """See `Source.open`."""
        check_alone(cls.name, rest, problems)
        return cls(path)

    def load(self, split: str, count: int, start: int = 0) -> list[Task]:
        """See `Source.load`."""
        hub_split = self.only or (self.test_split if split == "test" else "train")
        total, row = self.data.rows(hub_split, self.path)
        numbers = split_rows(split, total)
        if self.only is not None:
            test = total // 10
            inside = split_rows("train" if split == "test" else split, total)
            numbers = range(test) if split == "test" else range(max(inside.start, test), inside.stop)
        return [self.task(*row(number), hub_split, number) for number in numbers[start : start + count]]

    def task(self, columns: Mapping[str, Any], where: str, hub_split: str, number: int) -> Task:
        """Row `number` of a hub's split as a task; `where` it stands is for messages. Raises DataError for a broken row."""
        raise NotImplementedError
