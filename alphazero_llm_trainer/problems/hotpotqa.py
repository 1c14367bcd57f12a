"""HotpotQA rows (distractor setting) as tasks: ten paragraphs, two of which hold the answer, then the question.

`test` is the hub's validation split, whose answers are public. `train`, `validation` and `arena` come from the hub's
train split as GSM8K's do (`rows.split_rows`). A problem's id is `hotpotqa/<hub split>/<the row's id>`.
The worked solution is the supporting facts, a line each, and the answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

from ..errors import DataError
from ..types import Problem, Task
from .data_set import DataSet, RowSource
from .prompts import HOTPOTQA_PROMPT

HOTPOTQA = DataSet(
    "HotpotQA", "hotpotqa", ("hotpotqa/hotpot_qa", "distractor"), ("id", "question", "answer", "context")
)


class HotpotQa(RowSource):
    """Questions over ten paragraphs; answers are compared as words, by exact match and F1.

    `path` is a folder with `validation.jsonl` (for test) and `train.jsonl`, or one with a `hotpotqa` folder that has them.
    """

    name = "hotpotqa"
    rule = "words"
    data = HOTPOTQA
    test_split = "validation"
    system_prompt = HOTPOTQA_PROMPT
    prompt_tokens = 2600

    def task(self, columns: Mapping[str, Any], where: str, hub_split: str, number: int) -> Task:
        """See `RowSource.task`."""
        return _task(columns, where, hub_split)


def prompt(titles: Sequence[str], paragraphs: Sequence[Sequence[str]], question: str) -> str:
    """The paragraphs in order, each a line that begins with its title, and the question on the last line."""
    lines = [f"{title}: {''.join(one).strip()}" for title, one in zip(titles, paragraphs, strict=True)]
    return "\n".join([*lines, f"Question: {question}"])


def _task(columns: Mapping[str, Any], where: str, hub_split: str) -> Task:
    row_id, question, gold = (HOTPOTQA.text(columns, where, name) for name in HOTPOTQA.columns[:3])
    titles, paragraphs = _context(columns.get("context"), where)
    problem = Problem(f"hotpotqa/{hub_split}/{row_id}", prompt(titles, paragraphs, question), "hotpotqa")
    facts = _facts(columns.get("supporting_facts"), dict(zip(titles, paragraphs, strict=True)))
    return Task(problem, gold, "\n".join([*facts, f"#### {gold}"]))


def _facts(supporting: Any, paragraphs: Mapping[str, Sequence[str]]) -> list[str]:
    """The supporting sentences with their titles. Some rows point beyond a paragraph's end; those facts are left out."""
    columns = supporting if isinstance(supporting, Mapping) else {}
    named = zip(columns.get("title") or (), columns.get("sent_id") or (), strict=False)
    return [
        f"{title}: {' '.join(paragraphs[title][number].split())}"
        for title, number in named
        if title in paragraphs and number < len(paragraphs[title])
    ]


def _context(context: Any, where: str) -> tuple[list[str], list[list[str]]]:
    """The titles and the paragraphs' sentences, or DataError."""
    columns = context if isinstance(context, Mapping) else {}
    titles, paragraphs = columns.get("title"), columns.get("sentences")
    if not (_texts(titles) and isinstance(paragraphs, list) and all(map(_texts, paragraphs))):
        raise DataError(
            f"{where} has no `context` with a list of texts as `title` and a list of such lists as `sentences`: write"
            " both or remove the row"
        )
    if len(titles) != len(paragraphs):
        raise DataError(
            f"{where} has a `context` of {len(titles)} titles and {len(paragraphs)} paragraphs: give each its title"
        )
    return titles, paragraphs


def _texts(value: Any) -> TypeGuard[list[str]]:
    return isinstance(value, list) and all(isinstance(one, str) for one in value)
