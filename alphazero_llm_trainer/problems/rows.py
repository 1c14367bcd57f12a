"""A row of anybody's data set as a task: its columns, its choices, its answer.

Texts are taken as they are written. An answer with a `####` line is a worked solution whose answer
stands there; choices are written below their question.
"""

from __future__ import annotations

import contextlib
import glob
import hashlib
import math
import re
from collections.abc import Iterable, Mapping
from datetime import date
from decimal import Decimal
from numbers import Number
from pathlib import Path
from typing import Any, NamedTuple

from .. import answers
from ..config.sections import ProblemsConfig
from ..errors import DataError
from ..files import parse_json
from ..types import Problem, Task
from .grading import LETTERS, normalize_words

PAIRS = (("body", "question"), ("instruction", "input"))  # a question in two columns: SVAMP, Alpaca
QUESTIONS = (
    "question.stem", "question", "question_stem", "problem", "prompt", "query", "input",
    "instruction",
)  # fmt: skip
ANSWERS = (
    "answer", "final_answer", "answers", "answerkey", "gold", "ground_truth", "gold_answer",
    "expected_answer", "correct_answer", "correct", "reward_model.ground_truth", "target",
    "output", "label", "result", "cop",
)  # fmt: skip
SOLUTIONS = ("solution", "rationale", "explanation", "reasoning", "steps", "completion")
CHOICES = ("choices", "options", "question.choices")
# A choice in a column of its own.
LETTERED = (
    "{}",
    "option_{}",
    "option {}",
    "option{}",
    "op{}",
    "choice_{}",
    "choice {}",
    "choice{}",
)
ROW_FILES = (".jsonl", ".ndjson", ".json", ".parquet", ".csv", ".tsv")
SPLIT_NAMES = {
    "train": "train", "training": "train", "validation": "validation", "valid": "validation",
    "val": "validation", "dev": "validation", "arena": "arena", "test": "test", "testing": "test",
    "eval": "test", "evaluation": "test",
}  # fmt: skip
PACKED = (".gz", ".bz2", ".xz")
LABELLED = re.compile(
    r"\(?([A-Za-z]|\d{1,2})\s*[).:]\s*(\S.*)", re.DOTALL
)  # a choice with its label
Row = tuple[Mapping[str, Any], str]  # columns, and where they stand, for messages


class Columns(NamedTuple):
    """The columns that make a task; a dot leads into a column (`reward_model.ground_truth`).

    `more` is a second part of the question. Without an answer column the solution states the
    answer. `choices` is a column, or a pattern of `LETTERED`.
    """

    question: str = "question"
    answer: str | None = "answer"
    solution: str | None = "solution"
    choices: str | None = "choices"
    more: str | None = None

    def __str__(self) -> str:
        more = f" and `{self.more}`" if self.more else ""
        answer = f"`{self.answer}`" if self.answer else f"what `{self.solution}` states"
        choices = f", choices are `{self.choices}`" if self.choices else ""
        return f"question is `{self.question}`{more}, answer is {answer}{choices}"


def row_format(name: str) -> str | None:
    """The ending of `ROW_FILES` that a file's name has, whatever its case, packed or not; else
    None.
    """
    ends = [ending for ending in Path(name.lower()).suffixes if ending not in PACKED]
    return ends[-1] if ends and ends[-1] in ROW_FILES else None


def files_at(address: str) -> list[Path]:
    """The files of rows at an address: a file, a folder or a pattern (`data/*.jsonl`)."""
    place = Path(address)
    places: Iterable[Path] = (
        [place] if place.exists() else map(Path, glob.glob(address, recursive=True))
    )
    if place.is_dir():
        places = place.rglob("*")
    return sorted(file for file in places if row_format(file.name) and file.is_file())


def split_at(row: Row) -> str:
    """The split that a row's own column `split` names; "" for none. Raises DataError for another
    word.
    """
    columns, where = row
    named = str(columns.get("split") or "").lower()
    if named and named not in SPLIT_NAMES:
        known = ", ".join(dict.fromkeys(SPLIT_NAMES.values()))
        raise DataError(f"{where} has the split {named!r}: use {known}, or leave the column out")
    return SPLIT_NAMES.get(named, "")


def columns_of(row: Row, problems: ProblemsConfig) -> Columns:
    """The columns that the configuration names, else the first of the usual names that is there.

    Raises DataError, naming those that are there, where question or answer is missing.
    """
    columns, where = row
    known = {name.lower(): name for name in reversed(list(columns))}

    def pick(what: str, usual: Iterable[str], needed: bool = False) -> str | None:
        named = getattr(problems, f"{what}_column", None)
        for name in usual if named is None else (named,):
            outer, dot, inner = name.partition(".")
            column = name if name in columns else known.get(outer.lower(), outer) + dot + inner
            if column in columns or value_at(columns, column) is not None:
                return column
        if needed or named is not None:
            raise DataError(
                f"{where} has no column {named or what!r}, it has {', '.join(columns)}: name the"
                f" right one with problems.{what}_column (--{what}-column)"
            )
        return None

    more = None
    pair = next((pair for pair in PAIRS if all(name in known for name in pair)), None)
    if problems.question_column is None and pair is not None:
        question, more = (known[name] for name in pair)
    else:
        question = pick("question", QUESTIONS, needed=True) or ""
    solution = pick("solution", (n for n in SOLUTIONS if n != problems.answer_column))
    usual = (name for name in ANSWERS if name not in (question, more))
    answer = pick("answer", usual, needed=solution is None)
    choices = pick("choices", CHOICES) or next(
        (name for name in LETTERED if len(choices_at(columns, name)) > 1), None
    )
    return Columns(question, answer, solution, choices, more)


def as_task(row: Row, names: Columns, source: str) -> Task:
    """A row as a task, or DataError for a broken one.

    Its id is the row's own, else made of the question's hash. An answer may be empty: whoever needs
    it says so.
    """
    columns, where = row
    question = question_of(row, names)
    gold, solution = "", None
    if names.answer is not None and value_at(columns, names.answer) != "":
        gold = text_of(row, names.answer)
    if names.solution is not None and value_at(columns, names.solution):
        solution = text_of(row, names.solution)
    if names.answer is None or "####" in gold:
        solution = without_annotations(gold or solution or "")
        stated = stated_by(solution, where)
        if stated is None:
            raise DataError(
                f"{where} states no answer in `{names.answer or names.solution}`: end it with a"
                " line `#### ANSWER`, put it into \\boxed{}, or add a column `answer`"
            )
        gold = stated
    if solution is not None and "####" not in solution:
        solution += f"\n#### {gold}"
    choices = None if names.choices is None else choices_at(columns, names.choices)
    if choices:
        labels, texts = choices_of(choices, where)
        question += "".join(
            f"\n{letter}. {text}" for letter, text in zip(LETTERS, texts, strict=False)
        )
        if gold:
            index = isinstance(value_at(columns, names.answer or ""), int)
            gold = letter_of(
                gold, labels, texts, index, f"{where} has {gold!r} as `{names.answer}`"
            )
    row_id = columns.get("id", columns.get("unique_id"))
    if not isinstance(row_id, str | int):
        row_id = hashlib.sha256(question.encode()).hexdigest()[:12]
    # Seeds are made of ids: a file draws the same samples wherever it lies.
    prefix = source if source.startswith("hub:") else source.rstrip("/").rpartition("/")[2]
    return Task(Problem(f"{prefix}/{row_id}", question, source), gold, solution)


def value_at(columns: Mapping[str, Any], name: str) -> Any:
    """A column's value, or what lies at a dotted name in one; None where there is none."""
    if name in columns:
        return columns[name]
    outer, _, inner = name.partition(".")
    value = from_json(columns.get(outer))
    return value_at(value, inner) if inner and isinstance(value, Mapping) else None


def from_json(value: Any) -> Any:
    """What a text that is a JSON list or object holds; any other value itself."""
    with contextlib.suppress(ValueError):
        if isinstance(value, str) and value.strip()[:1] in ("[", "{"):
            return parse_json(value)
    return value


def question_of(row: Row, names: Columns) -> str:
    """The question: a text, or the user's one turn behind a system message, where there is one."""
    columns, where = row
    turns = from_json(value_at(columns, names.question))
    if isinstance(turns, list) and turns and all(isinstance(turn, Mapping) for turn in turns):
        roles = [turn.get("role") for turn in turns]
        texts = [turn.get("content") for turn in turns]
        if roles not in (["user"], ["system", "user"]) or not all(
            isinstance(text, str) for text in texts
        ):
            raise DataError(
                f"{where} has messages of {', '.join(map(str, roles))} as `{names.question}`: write"
                " one text of the user there, with a system message or without"
            )
        return check_text("\n\n".join(texts), f"{where}, `{names.question}`")
    question = text_of(row, names.question)
    if names.more is not None and value_at(columns, names.more):
        question += (" " if names.more.lower() == "question" else "\n") + text_of(row, names.more)
    return question


def choices_at(columns: Mapping[str, Any], name: str) -> Any:
    """A row's choices: a column's value, or the columns of a pattern of `LETTERED` by letter."""
    if "{}" not in name:
        return from_json(value_at(columns, name))
    known = {column.lower(): text for column, text in columns.items()}
    by_letter = {letter: known.get(name.format(letter.lower())) for letter in LETTERS}
    return {letter: text for letter, text in by_letter.items() if text not in (None, "")}


def choices_of(choices: Any, where: str) -> tuple[list[str], list[str]]:
    """Labels (or none) and texts of choices: a list of texts, with labels of their own (`1) cat`)
    or without, or of objects with `label` and `text`, an object with lists of both, as ARC has it,
    or one with a text for each label."""
    labels: Iterable[Any] = ()
    if isinstance(choices, Mapping) and "text" in choices:
        labels, choices = choices.get("label") or (), choices["text"]
    elif isinstance(choices, Mapping):
        choices = {label: text for label, text in choices.items() if text is not None}
        labels, choices = choices.keys(), choices.values()
    elif isinstance(choices, list) and all(isinstance(choice, Mapping) for choice in choices):
        labels = [choice.get("label", choice.get("key")) for choice in choices]
        choices = [choice.get("text", choice.get("value")) for choice in choices]
    texts = [] if isinstance(choices, str) else list(choices)
    if not 0 < len(texts) <= len(LETTERS) or not all(
        isinstance(text, str | Number) for text in texts
    ):
        raise DataError(
            f"{where} has no list of 1 to {len(LETTERS)} texts as its choices: write one"
        )
    texts, labels = [str(text).strip() for text in texts], [str(label).upper() for label in labels]
    marked = [match for match in map(LABELLED.fullmatch, texts) if match is not None]
    marks = [match[1].upper() for match in marked]
    if len(texts) > 1 and marks in (
        [*LETTERS[: len(texts)]],
        [str(i + 1) for i in range(len(texts))],
    ):
        labels, texts = labels or marks, [match[2] for match in marked]
    return labels, texts


def letter_of(gold: str, labels: list[str], texts: list[str], index: bool, what: str) -> str:
    """The letter of the choice that a gold answer means: its label, its text, its letter or its
    number from 0 on. `index`: the answer is a number, so no text.

    Raises DataError, beginning with `what`, where it is none of the choices.
    """
    letters = LETTERS[: len(texts)]
    key = normalize_words(gold)
    ways: list[tuple[list[str], str]] = [(labels, gold.upper())]
    if not index:
        ways += [(texts, gold), ([normalize_words(text) for text in texts], key)]
    ways += [
        ([letter.lower() for letter in letters], key),
        (
            [
                normalize_words(f"{letter} {text}")
                for letter, text in zip(letters, texts, strict=True)
            ],
            key,
        ),
        ([str(number) for number in range(len(texts))], gold),
    ]
    place = next((way.index(text) for way, text in ways if way.count(text) == 1), None)
    if place is None:
        raise DataError(
            f"{what}, which is none of its {len(texts)} choices: write a letter from A to"
            f" {letters[-1]}, a choice's text, or its number from 0 on"
        )
    return letters[place]


def stated_by(solution: str, where: str) -> str | None:
    """The answer that a worked solution states, None where it states none. Raises DataError where
    its boxes state several."""
    try:
        return answers.solution_answer(solution)
    except DataError as error:
        raise DataError(f"{where} has a solution with {error}") from None


def without_annotations(solution: str) -> str:
    """GSM8K's solution without the calculator's annotations (<<48/2=24>>), which repeat the
    text.
    """
    return re.sub(r"<<[^<>]*>>", "", solution).strip()


def text_of(row: Row, name: str) -> str:
    """A column's text, stripped; numbers and dates are written out.

    The first of several answers counts (a list, or what SQuAD and TriviaQA write). Raises DataError
    where there is none.
    """
    columns, where = row
    value = value_at(columns, name)
    if isinstance(value, Mapping):
        value = value.get("text", value.get("value"))
    if isinstance(value, list | tuple) and value:
        value = value[0]
    if isinstance(value, Mapping):
        value = value.get("content")  # a message's
    if isinstance(value, date):
        value = str(value).removesuffix(" 00:00:00")
    if isinstance(value, float) and math.isfinite(value):
        value = format(Decimal(repr(value)), "f").removesuffix(".0")
    if isinstance(value, bool | float) or not isinstance(value, str | Number):
        raise DataError(
            f"{where} has {value!r} as `{name}`: write a text or a number there, or remove the row"
        )
    return check_text(str(value).strip(), f"{where}, `{name}`")


def check_text(text: str, where: str) -> str:
    """The text. Raises DataError where it is empty, or has half of a character (a lone surrogate),
    which no tokenizer reads."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise DataError(
            f"{where} has a text that is no valid Unicode at letter {error.start}: mend it or "
            "remove it"
        ) from error
    if not text.strip():
        raise DataError(f"{where} is empty: write its text or remove it")
    return text
