"""GSM8K rows as tasks, from a local folder or from the hub.

`train` and `test` are the hub's splits, but the end of the hub's train rows is kept apart (`rows.split_rows`): the last
tenth (500 rows at most) is `arena`, the tenth before it `validation`, and `train` is what remains (6,473 of 7,473
rows). A row's id, `gsm8k/<hub split>/<row>`, doesn't depend on the split it is read through.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from .. import answers
from ..errors import DataError
from ..types import Problem, Task
from .data_set import DataSet, split_rows

GSM8K = DataSet("GSM8K", "gsm8k", ("openai/gsm8k", "main"), ("question", "answer"))


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
    total, row = GSM8K.rows(hub_split, path)
    numbers = split_rows(split, total)[start : start + count]
    return [_task(*row(number), f"gsm8k/{hub_split}/{number}") for number in numbers]


def _task(columns: Mapping[str, Any], where: str, task_id: str) -> Task:
    question, answer = (GSM8K.text(columns, where, name) for name in GSM8K.columns)
    try:
        gold = answers.gold(answer)
    except DataError as error:
        raise DataError(f"{where}: {error}") from error
    # The calculator's annotations (<<48/2=24>>) repeat what the text says.
    solution = re.sub(r"<<[^<>]*>>", "", answer).strip()
    return Task(Problem(task_id, question, "gsm8k"), gold, solution)
