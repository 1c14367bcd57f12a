"""HotpotQA rows (distractor setting) as tasks: ten paragraphs, two of which hold the answer, then
the question.

`test` is the hub's validation split, whose answers are public. A problem's id is
`hotpotqa/<hub split>/<the row's id>`. The worked solution is the supporting facts, a line each, and
the answer.
"""

from __future__ import annotations

from pydantic import BaseModel

from ..errors import DataError
from ..types import Problem, Task
from .data_set import RowSource
from .prompts import HOTPOTQA_PROMPT
from .row_texts import Row, column_text, passage_of


class Context(BaseModel):
    """A row's paragraphs: their titles, and the sentences of each."""

    title: list[str]
    sentences: list[list[str]]


class SupportingFacts(BaseModel):
    """The sentences that hold the answer: the title of the paragraph, and their number in it."""

    title: list[str] = []
    sent_id: list[int] = []


class HotpotQa(RowSource):
    """Questions over ten paragraphs; answers are compared as words, by exact match and F1."""

    name = folder = "hotpotqa"
    hub = ("hotpotqa/hotpot_qa", "distractor")
    grader = "words"
    test_split = "validation"
    system_prompt = HOTPOTQA_PROMPT
    prompt_tokens = 3400

    def task(self, row: Row, hub_split: str, number: int) -> Task:
        """Row `number` of a hub's split as a task."""
        columns, where = row
        row_id, question, gold = (column_text(row, name) for name in ("id", "question", "answer"))
        try:
            context = Context.model_validate(columns.get("context"))
            facts = SupportingFacts.model_validate(columns.get("supporting_facts") or {})
            by_title = dict(zip(context.title, context.sentences, strict=True))
        except ValueError as error:  # pydantic's errors are ValueErrors
            raise DataError(
                f"{where} has no `context` with a list of texts as `title` and as many lists of "
                "texts as `sentences`, or other `supporting_facts` than `title` and `sent_id`: "
                "write these or remove the row"
            ) from error
        prompt = f"{passage_of(context.model_dump())}\nQuestion: {question}"
        # Some rows point beyond a paragraph's end; those facts are left out.
        solution = [
            f"{title}: {' '.join(by_title[title][at].split())}"
            for title, at in zip(facts.title, facts.sent_id, strict=False)
            if at < len(by_title.get(title, ()))
        ]
        solution.append(f"#### {gold}")
        return Task(
            Problem(f"hotpotqa/{hub_split}/{row_id}", prompt, "hotpotqa"),
            gold,
            "\n".join(solution),
        )
