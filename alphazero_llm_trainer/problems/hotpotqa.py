"""HotpotQA rows (distractor setting) as tasks: ten paragraphs, two of which hold the answer, then the question.

`test` is the hub's validation split, whose answers are public. `train`, `validation` and `arena` come from the hub's
train split as GSM8K's do (`data_set.split_rows`). A problem's id is `hotpotqa/<hub split>/<the row's id>`.
The worked solution is the supporting facts, a line each, and the answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel

from ..errors import DataError
from ..types import Problem, Task
from .data_set import RowSource
from .prompts import HOTPOTQA_PROMPT
from .rows import Row, text_of


class Context(BaseModel):
    """A row's paragraphs: their titles, and the sentences of each."""

    title: list[str]
    sentences: list[list[str]]


class HotpotQa(RowSource):
    """Questions over ten paragraphs; answers are compared as words, by exact match and F1."""

    name = folder = "hotpotqa"
    hub = ("hotpotqa/hotpot_qa", "distractor")
    columns = ("id", "question", "answer", "context")
    grader = "words"
    test_split = "validation"
    system_prompt = HOTPOTQA_PROMPT
    prompt_tokens = 2600

    def task(self, row: Row, hub_split: str, number: int) -> Task:
        """See `RowSource.task`."""
        columns, where = row
        row_id, question, gold = (text_of(row, name) for name in self.columns[:3])
        try:
            context = Context.model_validate(columns.get("context"))
            paragraphs = list(zip(context.title, context.sentences, strict=True))
        except ValueError as error:  # pydantic's errors are ValueErrors
            raise DataError(
                f"{where} has no `context` with a list of texts as `title` and as many lists of texts as `sentences`: write"
                " both or remove the row"
            ) from error
        lines = [f"{title}: {''.join(sentences).strip()}" for title, sentences in paragraphs]
        prompt = "\n".join([*lines, f"Question: {question}"])
        facts = supporting_facts(columns.get("supporting_facts"), dict(paragraphs))
        return Task(
            Problem(f"hotpotqa/{hub_split}/{row_id}", prompt, "hotpotqa"), gold, "\n".join([*facts, f"#### {gold}"])
        )


def supporting_facts(supporting: Any, paragraphs: Mapping[str, Sequence[str]]) -> list[str]:
    """The supporting sentences with their titles. Some rows point beyond a paragraph's end; those facts are left out."""
    columns = supporting if isinstance(supporting, Mapping) else {}
    named = zip(columns.get("title") or (), columns.get("sent_id") or (), strict=False)
    return [
        f"{title}: {' '.join(paragraphs[title][number].split())}"
        for title, number in named
        if title in paragraphs and number < len(paragraphs[title])
    ]
