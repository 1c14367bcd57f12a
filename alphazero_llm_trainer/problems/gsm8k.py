"""GSM8K rows as tasks, from a local folder or from the hub.

`train` and `test` are the hub's splits, but the end of the hub's train rows is kept apart: the last tenth (500 rows at
most) is `arena`, the tenth before it `validation`, and `train` is what remains (6,473 of 7,473 rows). So the four
splits are disjoint, and a row's id, `gsm8k/<hub split>/<row>`, doesn't depend on the split it is read through.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import httpx

from .. import answers
from ..errors import DataError
from ..types import Problem, Task

HUB_NAME, HUB_CONFIG = "openai/gsm8k", "main"
DATA_VARIABLE = "ALPHAZERO_DATA_DIR"
HELD_OUT_ROWS = 500

Row = Callable[[int], tuple[Mapping[str, Any], str]]  # row number -> its columns and where it stands, for messages


def load(split: str, count: int, path: str | None = None, start: int = 0) -> list[Task]:
    """At most `count` tasks of a split from its number `start` on; an empty list where the split ends before that.

    Args:
        split: "train", "validation", "arena" or "test".
        count: how many tasks.
        path: a folder with `train.jsonl` and `test.jsonl`, or one with a `gsm8k` folder that has them. None takes
            the environment variable ALPHAZERO_DATA_DIR, and without that the hub.
        start: index of the first task within the split.

    Raises:
        DataError: one sentence naming file, line and fix.
    """
    hub_split = "test" if split == "test" else "train"
    folder = path if path is not None else os.environ.get(DATA_VARIABLE) or None
    total, row = _hub_rows(hub_split) if folder is None else _local_rows(Path(folder).expanduser(), hub_split)
    rows = split_rows(split, total)[start : start + count]
    return [_task(*row(number), f"gsm8k/{hub_split}/{number}") for number in rows]


def split_rows(split: str, total: int) -> range:
    """The row numbers of a split among the `total` rows of the hub's split it comes from."""
    if split == "test":
        return range(total)
    held = min(HELD_OUT_ROWS, total // 10)
    bounds = {
        "train": (0, total - 2 * held),
        "validation": (total - 2 * held, total - held),
        "arena": (total - held, total),
    }
    return range(*bounds[split])


def _local_rows(folder: Path, hub_split: str) -> tuple[int, Row]:
    file = next(
        (f for f in (folder / f"{hub_split}.jsonl", folder / "gsm8k" / f"{hub_split}.jsonl") if f.is_file()), None
    )
    if file is None:
        raise DataError(
            f"{folder} has neither {hub_split}.jsonl nor gsm8k/{hub_split}.jsonl: point dataset.path or {DATA_VARIABLE}"
            " at the folder with the GSM8K rows, or unset both to use the hub"
        )
    try:
        # A file's own iteration: str.splitlines would also break at the U+2028 that JSON allows inside a string.
        with file.open(encoding="utf-8-sig") as opened:
            lines = [(number, line) for number, line in enumerate(opened, 1) if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{file} can't be read as UTF-8 text ({error}): check the file") from error
    if not lines:
        raise DataError(f"{file} has no rows: put GSM8K rows with `question` and `answer` into it")

    def row(index: int) -> tuple[Mapping[str, Any], str]:
        number, line = lines[index]
        where = f"{file} line {number}"
        try:
            columns = json.loads(line)
        except ValueError as error:
            raise DataError(f"{where} is not valid JSON: mend or remove that line") from error
        if not isinstance(columns, dict):
            raise DataError(f"{where} is not a JSON object: write one with `question` and `answer`")
        return columns, where

    return len(lines), row


def _hub_rows(hub_split: str) -> tuple[int, Row]:
    import datasets

    try:
        rows = datasets.load_dataset(HUB_NAME, HUB_CONFIG, split=hub_split)
    except (OSError, ValueError, httpx.HTTPError) as error:
        raise DataError(
            f"{HUB_NAME} can't be loaded from the hub ({type(error).__name__}): check the network, or set"
            f" {DATA_VARIABLE} (or dataset.path) to a folder with train.jsonl and test.jsonl"
        ) from error
    return len(rows), lambda index: (rows[index], f"{HUB_NAME} {hub_split} row {index}")


def _task(columns: Mapping[str, Any], where: str, task_id: str) -> Task:
    for name in ("question", "answer"):
        value = columns.get(name)
        if value is None:
            raise DataError(f"{where} has no `{name}`: give every row a `question` and an `answer`")
        if not isinstance(value, str) or not value.strip():
            raise DataError(f"{where} has {value!r} as `{name}`: write the text there or remove the row")
    try:
        gold = answers.gold(columns["answer"])
    except DataError as error:
        raise DataError(f"{where}: {error}") from error
    # The calculator's annotations (<<48/2=24>>) repeat what the text says.
    solution = re.sub(r"<<[^<>]*>>", "", columns["answer"]).strip()
    return Task(Problem(task_id, columns["question"].strip(), "gsm8k"), gold, solution)
