r"""MATH rows as tasks: the 500 test problems of MATH-500, and train rows where a folder has them.

The hub has a test split alone. A folder's `train.jsonl` in the same columns gives `train`, `validation` and `arena` as
GSM8K's does (`rows.split_rows`). A problem's id is `math/` and the row's `unique_id`, such as
`math/test/algebra/2036.json`; its gold answer is the LaTeX of the `answer` column.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ..errors import DataError
from ..types import Problem, Task
from .data_set import DATA_VARIABLE, DataSet, local_folder, split_rows
from .grading import LONGEST_ANSWER

MATH = DataSet("MATH-500", "math500", ("HuggingFaceH4/MATH-500",), ("problem", "solution", "answer", "unique_id"))


def load(split: str, count: int, path: str | None = None, start: int = 0) -> list[Task]:
    """At most `count` tasks of a split from its number `start` on; an empty list where the split ends before that.

    Args:
        split: "test"; or "train", "validation" or "arena" where a folder has `train.jsonl`.
        count: how many tasks.
        path: a folder with `test.jsonl`, or one with a `math500` folder that has it. None takes the environment
            variable ALPHAZERO_DATA_DIR, and without that the hub.
        start: index of the first task within the split.

    Raises:
        DataError: one sentence naming file, line and fix.
    """
    hub_split = "test" if split == "test" else "train"
    if hub_split == "train":
        folder = local_folder(path)
        if folder is None or MATH.file(folder, hub_split) is None:
            raise DataError(
                f"MATH-500 has no {split} split: ask for test, or point dataset.path or {DATA_VARIABLE} at a folder"
                f" with train.jsonl or math500/train.jsonl in the columns {MATH.needed}"
            )
    total, row = MATH.rows(hub_split, path)
    return [_task(*row(number)) for number in split_rows(split, total)[start : start + count]]


def _task(columns: Mapping[str, Any], where: str) -> Task:
    question, solution, gold, unique_id = (MATH.text(columns, where, name) for name in MATH.columns)
    if len(gold) > LONGEST_ANSWER:
        raise DataError(
            f"{where} has an `answer` of {len(gold)} characters: write the final answer alone, {LONGEST_ANSWER} at most"
        )
    digits = re.search(r"\d+", str(columns.get("level", "")))  # 3 on the hub, "Level 3" in the files it was made from
    level = 0 if digits is None else int(digits[0])
    return Task(Problem(f"math/{unique_id}", question, "math", level), gold, f"{solution}\n#### {gold}")
