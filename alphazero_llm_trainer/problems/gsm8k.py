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
from .data_set import DataSet, RowSource
from .prompts import SYSTEM_PROMPT

GSM8K = DataSet("GSM8K", "gsm8k", ("openai/gsm8k", "main"), ("question", "answer"))


class Gsm8k(RowSource):
    """Grade-school word problems; the answer is a number.

    `path` is a folder with `train.jsonl` and `test.jsonl`, or one with a `gsm8k` folder that has them.
    """

    name = "gsm8k"
    data = GSM8K
    system_prompt = SYSTEM_PROMPT

    def task(self, columns: Mapping[str, Any], where: str, hub_split: str, number: int) -> Task:
        """See `RowSource.task`."""
        return _task(columns, where, f"gsm8k/{hub_split}/{number}")


def _task(columns: Mapping[str, Any], where: str, task_id: str) -> Task:
    question, answer = (GSM8K.text(columns, where, name) for name in GSM8K.columns)
    try:
        gold = answers.gold(answer)
    except DataError as error:
        raise DataError(f"{where}: {error}") from error
    # The calculator's annotations (<<48/2=24>>) repeat what the text says.
    solution = re.sub(r"<<[^<>]*>>", "", answer).strip()
    return Task(Problem(task_id, question, "gsm8k"), gold, solution)
