r"""MATH rows as tasks: the 500 test problems of MATH-500, and train rows where a folder has them.

The hub has a test split alone. A folder's `train.jsonl` in the same columns gives `train`, `validation` and `arena` as
GSM8K's does (`data_set.split_rows`). A problem's id is `math/` and the row's `unique_id`, such as
`math/test/algebra/2036.json`; its gold answer is the LaTeX of the `answer` column.
"""

from __future__ import annotations

import re

from ..errors import DataError
from ..types import Problem, Task
from .data_set import DATA_VARIABLE, RowSource
from .grading import LONGEST_ANSWER
from .prompts import MATH_PROMPT
from .rows import Row, text_of


class Math(RowSource):
    """Competition problems with LaTeX answers, compared by math-verify."""

    name = grader = "math"
    folder = "math500"
    hub = ("HuggingFaceH4/MATH-500", None)
    columns = ("problem", "solution", "answer", "unique_id")
    system_prompt = MATH_PROMPT
    prompt_tokens = 640

    def load(self, split: str, count: int, start: int = 0) -> list[Task]:
        """See `Source.load`. The hub has a test split alone."""
        if split != "test" and self.place is None:
            raise DataError(
                f"MATH-500 has no {split} split: ask for test, or point dataset.path or {DATA_VARIABLE} at a folder"
                f" with train.jsonl or math500/train.jsonl in the columns {', '.join(self.columns)}"
            )
        return super().load(split, count, start)

    def task(self, row: Row, hub_split: str, number: int) -> Task:
        """See `RowSource.task`."""
        question, solution, gold, unique_id = (text_of(row, name) for name in self.columns)
        if len(gold) > LONGEST_ANSWER:
            raise DataError(
                f"{row[1]} has an `answer` of {len(gold)} characters: write the final answer alone, {LONGEST_ANSWER} at most"
            )
        # 3 on the hub, "Level 3" in the files it was made from.
        digits = re.search(r"\d+", str(row[0].get("level", "")))
        level = 0 if digits is None else int(digits[0])
        return Task(Problem(f"math/{unique_id}", question, "math", level), gold, f"{solution}\n#### {gold}")
