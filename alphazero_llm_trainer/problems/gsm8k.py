"""GSM8K rows as tasks, from a local folder or from the hub.

A row's id is `gsm8k/<hub split>/<row>`, whatever split it is read through.
"""

from __future__ import annotations

from ..errors import DataError
from ..grading import answers
from ..types import Problem, Task
from .data_set import RowSource
from .prompts import SYSTEM_PROMPT
from .row_texts import Row, column_text, without_annotations


class Gsm8k(RowSource):
    """Grade-school word problems; the answer is a number."""

    name = folder = "gsm8k"
    hub = ("openai/gsm8k", "main")
    system_prompt = SYSTEM_PROMPT

    def task(self, row: Row, hub_split: str, number: int) -> Task:
        """Row `number` of a hub's split as a task."""
        question, answer = column_text(row, "question"), column_text(row, "answer")
        try:
            gold = answers.gold(answer)
        except DataError as error:
            raise DataError(f"{row[1]}: {error}") from error
        return Task(
            Problem(f"gsm8k/{hub_split}/{number}", question, "gsm8k"),
            gold,
            without_annotations(answer),
        )
