r"""MATH rows as tasks: the 500 test problems of MATH-500, and train rows where a folder has them.

The hub has a test split alone. A folder's `train.jsonl` gives `train`, `validation` and `arena` as
GSM8K's does (`data_set.split_rows`), in the columns of MATH-500 or in those of the rows it was made
from, which have `problem` and `solution`: their gold answer is the solution's last box. A problem's
id is `math/` and the row's `unique_id`, such as `math/test/algebra/2036.json`, else its split and
number; its gold answer is LaTeX.
"""

from __future__ import annotations

import re

from .. import answers
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
                f"MATH-500 has no {split} split: ask for test, or point problems.path or {DATA_VARIABLE} at a folder"
                f" with train.jsonl or math500/train.jsonl in the columns {', '.join(self.columns)}"
            )
        return super().load(split, count, start)

    def task(self, row: Row, hub_split: str, number: int) -> Task:
        """See `RowSource.task`."""
        question, solution = text_of(row, "problem"), text_of(row, "solution")
        stated = answers.extract(solution, strict=True, words=True)
        gold = text_of(row, "answer") if stated is None or row[0].get("answer") is not None else stated
        unique_id = row[0].get("unique_id") or f"{hub_split}/{number}"
        if len(gold) > LONGEST_ANSWER:
            raise DataError(
                f"{row[1]} has an `answer` of {len(gold)} characters: write the final answer alone, {LONGEST_ANSWER} at most"
            )
        # 3 on the hub, "Level 3" in the files it was made from.
        digits = re.search(r"\d+", str(row[0].get("level", "")))
        level = 0 if digits is None else int(digits[0])
        return Task(Problem(f"math/{unique_id}", question, "math", level), gold, f"{solution}\n#### {gold}")
