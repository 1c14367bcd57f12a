"""Rows of your own as a source: a JSONL, Parquet or CSV file, or a data set of the hub.

Which columns hold question, answer and worked solution is said by `problems.question_column`, `answer_column` and
`solution_column`; without them the usual names are looked for. A `split` column (or the hub's own splits) decides what is
train and test; what a data set doesn't have is cut off its train rows by `source.by_hash`. `problems.grade` names the rule
of `grading.GRADERS`; without it the gold answers decide: numbers, one letter, LaTeX, or words.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ..config.objects import at_home
from ..config.sections import ProblemsConfig
from ..errors import ConfigError, DataError
from ..types import Task
from .rows import Columns, Row, as_task, each, load_hub, read_file
from .source import READ, SPLITS, Source, TaskList, by_hash, once

QUESTIONS = ("question", "problem", "prompt", "query", "input", "instruction")
ANSWERS = ("answer", "final_answer", "answerKey", "gold", "target", "output", "label", "result")
SOLUTIONS = ("solution", "rationale", "explanation", "reasoning", "steps", "completion")
CHOICES = ("choices", "options")
SPLIT_NAMES = {
    "train": "train", "training": "train", "validation": "validation", "valid": "validation", "val": "validation",
    "dev": "validation", "arena": "arena", "test": "test", "testing": "test", "eval": "test",
}  # fmt: skip


class FileRows(TaskList):
    """The rows of one file."""

    opens = True

    @classmethod
    def open(cls, rest: str, problems: ProblemsConfig, path: str | None) -> Source:
        """See `Source.open`: `rest` is the file."""
        by_split: dict[str, list[Row]] = {}
        for columns, where in read_file(at_home(rest, "problems.source")):
            named = columns.get("split")
            split = "" if named is None else SPLIT_NAMES.get(str(named).lower())
            if split is None:
                raise DataError(f"{where} has the split {named!r}: use {', '.join(SPLITS)}, or leave the column out")
            by_split.setdefault(split, []).append((columns, where))
        return from_rows(by_split, problems)


class HubRows(TaskList):
    """The rows of `hub:OWNER/NAME` or `hub:OWNER/NAME/CONFIGURATION`; nothing of the repository is executed."""

    opens = True

    @classmethod
    def open(cls, rest: str, problems: ProblemsConfig, path: str | None) -> Source:
        """See `Source.open`: `rest` names the data set."""
        parts = rest.split("/")
        if len(parts) not in (2, 3) or not all(parts) or any(part.startswith(".") for part in parts):
            raise ConfigError(
                f"problems.source is {problems.source!r}: write hub:OWNER/NAME or hub:OWNER/NAME/CONFIGURATION"
            )
        name, configuration = "/".join(parts[:2]), parts[2] if len(parts) == 3 else None
        by_split: dict[str, list[Row]] = {}
        for split, rows in load_hub(name, configuration, None, "name a local file").items():
            placed = [(row, f"{name} {split} row {number}") for number, row in enumerate(rows)]
            by_split.setdefault(SPLIT_NAMES.get(split.lower(), "train"), []).extend(placed)
        return from_rows(by_split, problems)


def from_rows(by_split: Mapping[str, Sequence[Row]], problems: ProblemsConfig) -> TaskList:
    """A source of rows by split; rows of the split "" are divided by hash, as are splits that are missing."""
    name, everything = problems.source, [row for rows in by_split.values() for row in rows]
    if not everything:
        raise DataError(f"{name} has no rows: write one problem a row, with a question and an answer")
    columns = columns_of(everything[0], problems)
    placed = [(split, row) for split, rows in by_split.items() for row in rows]
    made = each(placed, lambda one: (one[0], as_task(one[1], columns, name)))
    tasks = {wanted: [task for split, task in made if split == wanted] for wanted in by_split}
    source = TaskList(divided(once(tasks, name)), name, problems.grade, problems.system_prompt)
    source.reads = READ
    return source


def divided(tasks: Mapping[str, list[Task]]) -> dict[str, Sequence[Task]]:
    """Tasks by split, where those that are missing are cut off the rows that may be trained on."""
    given = {split: list(found) for split, found in tasks.items() if split}
    pool = [*tasks.get("", ()), *given.pop("train", ())]
    cut = by_hash(pool)
    for split in ("validation", "arena", "test"):
        if split in given:
            cut["train"] += cut[split]
            cut[split] = given[split]
    order = {id(task): at for at, task in enumerate(pool)}
    cut["train"].sort(key=lambda task: order[id(task)])
    return dict(cut)


def columns_of(row: Row, problems: ProblemsConfig) -> Columns:
    """The columns of question, answer, worked solution and choices. Raises DataError naming those that are there."""
    columns, where = row

    def pick(given: str | None, usual: Iterable[str], what: str) -> str | None:
        found = given if given is not None else next((name for name in usual if name in columns), None)
        if (found is None and what in ("question", "answer")) or (found is not None and found not in columns):
            raise DataError(
                f"{where} has no column {given or what!r}, it has {', '.join(map(str, columns))}: name the right one with"
                f" problems.{what}_column (--{what}-column)"
            )
        return found

    question = pick(problems.question_column, QUESTIONS, "question")
    answer = pick(problems.answer_column, ANSWERS, "answer")
    solution = pick(problems.solution_column, (name for name in SOLUTIONS if name != answer), "solution")
    assert question is not None and answer is not None
    return Columns(question, answer, solution, pick(None, CHOICES, "choices"))
