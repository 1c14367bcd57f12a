"""Rows as they lie in a file (JSONL, JSON, Parquet, CSV), on the hub or in a list, and how a row becomes a task.

An answer with a `####` line is a worked solution whose answer stands there; choices are written below their question.
"""

from __future__ import annotations

import csv
import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import httpx

from .. import answers
from ..errors import DataError
from ..files import parse_json
from ..types import Problem, Task
from .grading import LETTERS

One = TypeVar("One")
Made = TypeVar("Made")
FAULTS = 5  # of a file's broken rows that are told at once
Row = tuple[Mapping[str, Any], str]  # columns, and where they stand, for messages


class Columns(NamedTuple):
    """The columns of a row that make a task."""

    question: str = "question"
    answer: str = "answer"
    solution: str | None = "solution"
    choices: str | None = "choices"


# -- reading -----------------------------------------------------------------------------------------------------------


def read_file(file: Path) -> list[Row]:
    """The rows of a file. Raises DataError with one sentence naming file, line and fix."""
    if not file.is_file():
        raise DataError(f"problems.source is {str(file)!r} and there is no such file: name one that is there")
    try:
        if file.suffix == ".parquet":
            import pyarrow.parquet

            found: Any = pyarrow.parquet.read_table(file).to_pylist()
        elif file.suffix == ".csv":
            with file.open(encoding="utf-8-sig", newline="") as opened:
                found = list(csv.DictReader(opened))
        elif file.suffix == ".json":
            found = parse_json(file.read_text(encoding="utf-8-sig"))
        else:
            return each(lines_of(file), lambda found: json_row(found[1], f"{file} line {found[0]}"))
    except (OSError, ValueError, csv.Error) as error:  # pyarrow's errors are ValueErrors and OSErrors
        raise unreadable(file, error) from error
    if not isinstance(found, list):
        raise DataError(f"{file} holds no list: write a list of objects, or one object a line in a .jsonl file")
    numbered = enumerate(found, int(file.suffix == ".csv"))
    return each(numbered, lambda one: row_of(one[1], f"{file} row {one[0]}"))


def each(found: Iterable[One], make: Callable[[One], Made]) -> list[Made]:
    """`make` of each one. Raises one DataError of all that it raises, of which `FAULTS` are told."""
    made: list[Made] = []
    faults: list[DataError] = []
    count = 0
    for one in found:
        try:
            made.append(make(one))
        except DataError as error:
            count += 1
            if count <= FAULTS:
                faults.append(error)
    if count > 1:
        first = ", the first of them" if count > FAULTS else ""
        told = "".join(f"\n  {fault}" for fault in faults)
        raise DataError(f"{count:,} rows are broken{first}:{told}") from faults[0]
    if faults:
        raise faults[0]
    return made


def lines_of(file: Path) -> Iterator[tuple[int, str]]:
    """The lines of a file that aren't blank, each with its number.

    `str.splitlines` would also break at the U+2028 that JSON allows inside a string.
    """
    try:
        lines = file.read_text(encoding="utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise unreadable(file, error) from error
    return ((number, line) for number, line in enumerate(lines, 1) if line.strip())


def unreadable(file: Path, error: Exception) -> DataError:
    """The error of a file that can't be read."""
    return DataError(f"{file} can't be read ({str(error).splitlines()[0][:150]}): check the file")


def json_row(line: str, where: str) -> Row:
    """A line of JSON as a row, or DataError."""
    try:
        return row_of(parse_json(line), where)
    except ValueError as error:
        raise DataError(f"{where} is not valid JSON: mend or remove it") from error


def row_of(row: Any, where: str) -> Row:
    """A row's columns, or DataError."""
    if not isinstance(row, dict):
        raise DataError(f"{where} is not a JSON object: write one with a question and an answer")
    if None in row:  # a CSV row: a comma of a text was taken for a separator
        raise DataError(f"{where} has more fields than the head has columns: put texts with commas in double quotes")
    return row, where


def load_hub(name: str, configuration: str | None, split: str | None, fix: str) -> Any:
    """A data set of the hub, or one split of it; nothing of the repository is executed. Raises DataError, ending in `fix`."""
    import datasets

    try:
        return datasets.load_dataset(name, configuration, split=split)
    except (OSError, ValueError, httpx.HTTPError) as error:
        said = f"{type(error).__name__}: {str(error).partition(chr(10))[0][:150]}"
        raise DataError(
            f"{name} can't be loaded from the hub ({said}): check the name and the network, or {fix}"
        ) from error


# -- as tasks ----------------------------------------------------------------------------------------------------------


def as_task(row: Row, names: Columns, source: str) -> Task:
    """A row as a task. Its id is the row's own, else made of the question's hash. An answer may be empty: whoever needs it
    says so. Raises DataError for a broken row."""
    columns = row[0]
    question = text_of(row, names.question)
    gold = "" if columns.get(names.answer) == "" else text_of(row, names.answer)
    solution = None
    if "####" in gold:
        solution, gold = without_annotations(gold), answers.gold(gold)
    elif names.solution is not None and columns.get(names.solution):
        written = text_of(row, names.solution)
        solution = written if "####" in written else f"{written}\n#### {gold}"
    if names.choices is not None and columns.get(names.choices):
        written_out, labels, choices = choices_of(columns[names.choices])
        question += written_out
        if gold in labels:
            gold = LETTERS[labels.index(gold)]
        elif isinstance(columns[names.answer], str) and gold in choices:
            gold = LETTERS[choices.index(gold)]
        elif gold.isdecimal() and int(gold) < len(choices):
            gold = LETTERS[int(gold)]
    row_id = columns.get("id", columns.get("unique_id"))
    if not isinstance(row_id, str | int):
        row_id = hashlib.sha256(question.encode()).hexdigest()[:12]
    # Seeds are made of ids: a file draws the same samples wherever it lies.
    prefix = source if source.startswith("hub:") else source.rpartition("/")[2]
    return Task(Problem(f"{prefix}/{row_id}", question, source), gold, solution)


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


def without_annotations(solution: str) -> str:
    """GSM8K's solution without the calculator's annotations (<<48/2=24>>), which repeat what the text says."""
    return re.sub(r"<<[^<>]*>>", "", solution).strip()


def text_of(row: Row, name: str) -> str:
    """A column's text, stripped; numbers are written out. Raises DataError where there is none."""
    columns, where = row
    value = columns.get(name)
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise DataError(f"{where} has {value!r} as `{name}`: write a text or a number there, or remove the row")
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return check_text(str(value).strip(), f"{where}, `{name}`")


def check_text(text: str, where: str) -> str:
    """The text. Raises DataError where it is empty, or has half of a character (a lone surrogate): no tokenizer reads that."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise DataError(
            f"{where} has a text that is no valid Unicode at letter {error.start}: mend it or remove it"
        ) from error
    if not text.strip():
        raise DataError(f"{where} is empty: write its text or remove it")
    return text
