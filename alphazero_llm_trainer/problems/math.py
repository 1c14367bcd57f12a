r"""MATH rows as tasks: the 500 test problems of MATH-500, and train rows where a folder has them.

The hub has a test split alone. A folder's `train.jsonl` is in the columns of MATH-500 or in those
of the rows it was made from, which have `problem` and `solution`: their gold answer is the
solution's last box. A problem's id is `math/` and the row's `unique_id`, such as
`math/test/algebra/2036.json`, else its split and number; its gold answer is LaTeX.
"""

from __future__ import annotations

import re

from ..errors import DataError
from ..grading.graders import LONGEST_ANSWER
from ..types import Problem, Task
from .data_set import RowSource
from .prompts import MATH_PROMPT
from .row_texts import Row, column_text, stated_by


class Math(RowSource):
    """Competition problems with LaTeX answers, compared by math-verify."""

    name = grader = "math"
    folder = "math500"
    hub = ("HuggingFaceH4/MATH-500", None)
    system_prompt = MATH_PROMPT
    prompt_tokens = 640

    def task(self, row: Row, hub_split: str, number: int) -> Task:
        """Row `number` of a hub's split as a task."""
        columns, where = row
        question, solution = column_text(row, "problem"), column_text(row, "solution")
        boxed = None if columns.get("answer") is not None else stated_by(solution, where)
        gold = column_text(row, "answer") if boxed is None else boxed
        if len(gold) > LONGEST_ANSWER:
            raise DataError(
                f"{where} has an `answer` of {len(gold)} characters: "
                f"write the final answer alone, {LONGEST_ANSWER} at most"
            )
        unique_id = columns.get("unique_id") or f"{hub_split}/{number}"
        # 3 on the hub, "Level 3" in the files it was made from.
        digits = re.search(r"\d+", str(columns.get("level", "")))
        level = 0 if digits is None else int(digits[0])
        return Task(
            Problem(f"math/{unique_id}", question, "math", level),
            gold,
            f"{solution}\n#### {gold}",
        )
