"""Rows of your own as a source: a JSONL, Parquet or CSV file, or a data set of the hub.

Which columns hold question, answer and worked solution is said by `problems.question_column`, `answer_column` and
`solution_column`; without them the usual names are looked for. A `split` column (or the hub's own splits) decides what is
train and test; what a data set doesn't have is cut off its train rows by `source.by_hash`. A question that stands there
twice is taken once (`source.once`). An answer with a `####` line is a worked solution whose answer stands there.
`problems.grade` names the rule of `grading.RULES`; without it the gold answers decide: numbers, one letter, LaTeX, or words.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from .. import answers
from ..config.objects import at_home
from ..config.sections import ProblemsConfig
from ..errors import ConfigError, DataError
from ..types import Problem, Task
from .grading import LETTERS, guess_rule
from .prompts import SYSTEM_PROMPTS
from .rows import Row, load_hub, read_file
from .source import SPLITS, Source, TaskList, by_hash, check_text, once, without_folders

QUESTIONS = ("question", "problem", "prompt", "query", "input", "instruction")
ANSWERS = ("answer", "final_answer", "answerKey", "gold", "target", "output", "label", "result")
SOLUTIONS = ("solution", "rationale", "explanation", "reasoning", "steps")
CHOICES = ("choices", "options")
SPLIT_NAMES = {
    "train": "train", "training": "train", "validation": "validation", "valid": "validation", "val": "validation",
    "dev": "validation", "arena": "arena", "test": "test", "testing": "test", "eval": "test",
}  # fmt: skip

Rows = list[Row]


class FileRows(TaskList):
    """The rows of one file."""

    @classmethod
    def open(cls, rest: str, problems: ProblemsConfig, path: str | None) -> Source:
        """See `Source.open`: `rest` is the file."""
        file = at_home(rest, "problems.source")
        rows = read_file(file)
        by_split: dict[str, Rows] = {}
        for columns, where in rows:
            named = columns.get("split")
            split = "" if named is None else SPLIT_NAMES.get(str(named).lower())
            if split is None:
                raise DataError(f"{where} has the split {named!r}: use {', '.join(SPLITS)}, or leave the column out")
            by_split.setdefault(split, []).append((columns, where))
        return from_rows(by_split, problems, problems.source)


class HubRows(TaskList):
    """The rows of `hub:OWNER/NAME` or `hub:OWNER/NAME/CONFIGURATION`; nothing of the repository is executed."""

    @classmethod
    def open(cls, rest: str, problems: ProblemsConfig, path: str | None) -> Source:
        """See `Source.open`: `rest` names the data set."""
        parts = rest.split("/")
        if len(parts) not in (2, 3) or not all(parts) or any(part.startswith(".") for part in parts):
            raise ConfigError(
                f"problems.source is {problems.source!r}: write hub:OWNER/NAME or hub:OWNER/NAME/CONFIGURATION"
            )
        name, configuration = "/".join(parts[:2]), parts[2] if len(parts) == 3 else None
        by_split: dict[str, Rows] = {}
        for split, rows in load_hub(name, configuration, None, "name a local file").items():
            placed = [(row, f"{name} {split} row {number}") for number, row in enumerate(rows)]
            by_split.setdefault(SPLIT_NAMES.get(split.lower(), "train"), []).extend(placed)
        return from_rows(by_split, problems, problems.source)


def from_rows(by_split: Mapping[str, Rows], problems: ProblemsConfig, name: str) -> TaskList:
    """A source of rows by split; rows of the split "" are divided by hash, as are splits that are missing."""
    everything = [row for rows in by_split.values() for row in rows]
    if not everything:
        raise DataError(f"{name} has no rows: write one problem a row, with a question and an answer")
    columns = column_names(everything[0], problems)
    placed = {
        split: [(as_task(row, where, columns, name), where) for row, where in rows] for split, rows in by_split.items()
    }
    tasks = once(placed, name, lambda task: task.problem.question)
    rule = problems.grade or guess_rule([task.gold for of_split in tasks.values() for task in of_split])
    prompt = SYSTEM_PROMPTS[rule] if problems.system_prompt is None else problems.system_prompt
    return TaskList(divided(tasks), name, rule, prompt)


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


def column_names(
    row: tuple[Mapping[str, Any], str], problems: ProblemsConfig
) -> tuple[str, str, str | None, str | None]:
    """The columns of question, answer, worked solution and choices. Raises DataError naming those that are there."""
    columns, where = row

    def pick(given: str | None, usual: Iterable[str], what: str, needed: bool) -> str | None:
        found = given if given is not None else next((name for name in usual if name in columns), None)
        if (found is None and needed) or (found is not None and found not in columns):
            raise DataError(
                f"{where} has no column {given or what!r}, it has {', '.join(map(str, columns))}: name the right one with"
                f" problems.{what}_column (--{what}-column)"
            )
        return found

    question = pick(problems.question_column, QUESTIONS, "question", True)
    answer = pick(problems.answer_column, ANSWERS, "answer", True)
    solution = pick(problems.solution_column, (name for name in SOLUTIONS if name != answer), "solution", False)
    assert question is not None and answer is not None
    return question, answer, solution, pick(None, CHOICES, "choices", False)


def as_task(
    columns: Mapping[str, Any], where: str, names: tuple[str, str, str | None, str | None], source: str
) -> Task:
    """A row as a task."""
    question_name, answer_name, solution_name, choices_name = names
    question, gold = text_of(columns, where, question_name), text_of(columns, where, answer_name)
    solution = None
    if "####" in gold:
        solution, gold = re.sub(r"<<[^<>]*>>", "", gold), answers.gold(gold)
    elif solution_name is not None and columns.get(solution_name):
        written = text_of(columns, where, solution_name)
        solution = written if "####" in written else f"{written}\n#### {gold}"
    if choices_name is not None and columns.get(choices_name):
        written_out, labels, choices = choices_of(columns[choices_name])
        question += written_out
        if gold in labels:
            gold = LETTERS[labels.index(gold)]
        elif isinstance(columns[answer_name], str) and gold in choices:
            gold = LETTERS[choices.index(gold)]
        elif gold.isdigit() and int(gold) < len(choices):
            gold = LETTERS[int(gold)]
    row_id = columns.get("id", columns.get("unique_id"))
    if not isinstance(row_id, str | int):
        row_id = hashlib.sha256(question.encode()).hexdigest()[:12]
    return Task(Problem(f"{without_folders(source)}/{row_id}", question, source), gold, solution)


def choices_of(given: Any) -> tuple[str, list[str], list[str]]:
    """What a row's choices add to its question, their own labels and their texts: a list, a mapping with `text` and `label`
    (as ARC has it), or a text that stays as it is."""
    labels: list[str] = []
    if isinstance(given, Mapping) and "text" in given:
        labels, given = [str(label) for label in given.get("label", ())], given["text"]
    if not isinstance(given, list | tuple):
        return f"\n{given}", [], []
    choices = [str(choice) for choice in given][: len(LETTERS)]
    lines = (f"\n{letter}. {choice}" for letter, choice in zip(LETTERS, choices, strict=False))
    return "".join(lines), labels[: len(LETTERS)], choices


def text_of(columns: Mapping[str, Any], where: str, name: str) -> str:
    """A column's text; numbers are written out. Raises DataError where there is none."""
    value = columns.get(name)
    if isinstance(value, bool) or not isinstance(value, str | int | float) or not str(value).strip():
        raise DataError(f"{where} has {value!r} as `{name}`: write a text or a number there, or remove the row")
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return check_text(str(value).strip(), f"{where}, `{name}`")
