"""SVAMP, ASDiv and MAWPS: small sets of arithmetic word problems, from the hub or a folder with their rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .. import answers
from ..errors import DataError
from ..types import Problem, Task
from .data_set import DataSet, RowSource
from .prompts import SYSTEM_PROMPT


class WordProblems(RowSource):
    """One data set: `question` says how a row's text is put together; the last column is the number."""

    system_prompt = SYSTEM_PROMPT
    prompt_tokens = 256

    def question(self, columns: Mapping[str, Any], where: str) -> str:
        """The text of a row."""
        raise NotImplementedError

    def task(self, columns: Mapping[str, Any], where: str, hub_split: str, number: int) -> Task:
        """See `RowSource.task`."""
        written = str(columns.get(self.data.columns[-1], ""))
        if answers.number(written) is None:
            raise DataError(f"{where} has {written!r} as `{self.data.columns[-1]}`: write a number or remove the row")
        problem = Problem(f"{self.name}/{hub_split}/{number}", self.question(columns, where), self.name)
        return Task(problem, answers.normalize(written))


class Svamp(WordProblems):
    """SVAMP (Patel et al. 2021): 700 train and 300 test problems."""

    name = "svamp"
    data = DataSet("SVAMP", "svamp", ("ChilleD/SVAMP",), ("Body", "Question", "Answer"))

    def question(self, columns: Mapping[str, Any], where: str) -> str:
        """The story, then the question."""
        body = self.data.text(columns, where, "Body")
        return f"{body if body.endswith(('.', '?', '!', ',')) else body + '.'} {self.data.text(columns, where, 'Question')}"


class Asdiv(WordProblems):
    """ASDiv (Miao et al. 2020): 2,305 problems in one split; the answer's unit is in brackets."""

    name = "asdiv"
    only = "validation"
    data = DataSet("ASDiv", "asdiv", ("EleutherAI/asdiv", "asdiv"), ("body", "question", "answer"))

    def question(self, columns: Mapping[str, Any], where: str) -> str:
        """The story, then the question."""
        return f"{self.data.text(columns, where, 'body')} {self.data.text(columns, where, 'question')}"


class Mawps(WordProblems):
    """MAWPS (Koncel-Kedziorski et al. 2016), as single questions with numbers in their text."""

    name = "mawps"
    data = DataSet("MAWPS", "mawps", ("mwpt5/MAWPS",), ("Question", "Numbers", "Answer"))

    def question(self, columns: Mapping[str, Any], where: str) -> str:
        """The question with its numbers put in: the hub's rows have N_00, N_01, ... in their place."""
        text = self.data.text(columns, where, "Question")
        for at, number in enumerate(str(columns.get("Numbers", "")).split()):
            text = text.replace(f"N_{at:02}", number.removesuffix(".0"))
        return text
