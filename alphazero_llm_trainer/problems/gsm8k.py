"""GSM8K rows as tasks, from a local folder or from the hub.

`train` and `test` are the hub's splits, but the end of the hub's train rows is kept apart (`data_set.split_rows`): the
last tenth (500 rows at most) is `arena`, the tenth before it `validation`, and `train` is what remains (6,473 of 7,473
rows). A row's id, `gsm8k/<hub split>/<row>`, doesn't depend on the split it is read through.
"""

from __future__ import annotations

from .. import answers
from ..errors import DataError
from ..types import Problem, Task
from .data_set import RowSource
from .prompts import SYSTEM_PROMPT
from .rows import Row, text_of, without_annotations


class Gsm8k(RowSource):
    """Grade-school word problems; the answer is a number."""

    name = folder = "gsm8k"
    hub = ("openai/gsm8k", "main")
    columns = ("question", "answer")
    system_prompt = SYSTEM_PROMPT

    def task(self, row: Row, hub_split: str, number: int) -> Task:
        """See `RowSource.task`."""
        question, answer = (text_of(row, name) for name in self.columns)
        try:
            gold = answers.gold(answer)
        except DataError as error:
            raise DataError(f"{row[1]}: {error}") from error
        return Task(Problem(f"gsm8k/{hub_split}/{number}", question, "gsm8k"), gold, without_annotations(answer))
