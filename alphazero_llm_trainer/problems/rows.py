"""Rows as they lie in files (JSON, Parquet, CSV; packed or not), on the hub or in a list, and how a
row becomes a task.

Texts are read as they are written: no number, date or `NA` is guessed in a JSON or CSV text. An
answer with a `####` line is a worked solution whose answer stands there; choices are written below
their question.
"""

from __future__ import annotations

import bz2
import contextlib
import csv
import datetime
import glob
import gzip
import hashlib
import io
import lzma
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import httpx

from .. import answers
from ..config.hub import ask_hub_or_cache, offline_because
from ..errors import DataError
from ..files import parse_json
from ..types import Problem, Task
from .grading import LARGEST_SINGLE, LETTERS, is_no_answer, normalize_words, single

One = TypeVar("One")
Made = TypeVar("Made")
FAULTS = 5  # of a file's broken rows that are told at once
ROW_FILES = (".jsonl", ".ndjson", ".json", ".parquet", ".csv", ".tsv")
PACKED: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
SPLIT_NAMES = {
    "train": "train", "training": "train", "validation": "validation", "valid": "validation", "val": "validation",
    "dev": "validation", "arena": "arena", "test": "test", "testing": "test", "eval": "test", "evaluation": "test",
}  # fmt: skip
Row = tuple[Mapping[str, Any], str]  # columns, and where they stand, for messages


class Columns(NamedTuple):
    """The columns of a row that make a task; a dot leads into a column
    (`reward_model.ground_truth`).

    `more` is a second part of the question. Without an answer column the solution's box, or its
    `####` line, is the answer.
    """

    question: str = "question"
    answer: str | None = "answer"
    solution: str | None = "solution"
    choices: str | None = "choices"
    more: str | None = None


# -- reading -----------------------------------------------------------------------------------------------------------


def row_format(name: str) -> str | None:
    """The ending of `ROW_FILES` that a file's name has, whatever its case and with or without one
    of `PACKED`; else None."""
    name = name.lower()
    name = next((name.removesuffix(end) for end in PACKED if name.endswith(end)), name)
    return next((end for end in ROW_FILES if name.endswith(end)), None)


def files_at(address: str) -> list[Path]:
    """The files of rows at an address: a file, a folder or a pattern (`data/*.jsonl`); none where
    it is none of these."""
    place = Path(address)
    if place.is_dir():
        return sorted(file for file in place.rglob("*") if row_format(file.name) and file.is_file())
    if not place.exists() and glob.has_magic(address):
        return [Path(found) for found in sorted(glob.glob(address, recursive=True)) if row_format(found)]
    return [place] if row_format(address) else []


def split_in(name: str) -> str | None:
    """The split that a name says (`train`, `test-00000-of-00001`, `dev_v2`), or None."""
    known = (SPLIT_NAMES.get(part) for part in re.split(r"[^a-z]+", name.lower()))
    return next((split for split in known if split), None)


def read_files(address: str) -> dict[str, list[Row]]:
    """The rows at an address by split: as each row's column `split` says, else as the name of a
    folder's file, or of the folder that it lies in, does. The split "" has those of which nothing
    says it.

    Raises DataError with one sentence naming file, line and fix.
    """
    files, base = files_at(address), Path(address)
    if not files:
        missing = "has no files of rows in it" if base.is_dir() else "and there is no such file"
        raise DataError(f"problems.source is {address!r} {missing}: name {', '.join(ROW_FILES)}, packed or not")
    by_split: dict[str, list[Row]] = {}
    for file in files:
        names = (
            []
            if file == base
            else [file.name, *(part.name for part in file.parents if part not in (base, *base.parents))]
        )
        of_file = next((split for split in map(split_in, names) if split), "")
        for columns, where in read_file(file):
            named = columns.get("split")
            split = of_file if named in (None, "") else SPLIT_NAMES.get(str(named).lower())
            if split is None:
                known = ", ".join(dict.fromkeys(SPLIT_NAMES.values()))
                raise DataError(f"{where} has the split {named!r}: use {known}, or leave the column out")
            by_split.setdefault(split, []).append((columns, where))
    return by_split


def read_file(file: Path) -> list[Row]:
    """The rows of a file. Raises DataError with one sentence naming file, line and fix."""
    if not file.is_file():
        raise DataError(f"problems.source is {str(file)!r} and there is no such file: name one that is there")
    kind = row_format(file.name)
    if kind == ".parquet":
        import pyarrow.parquet

        try:
            found = pyarrow.parquet.read_table(file).to_pylist()
        except (OSError, ValueError) as error:  # pyarrow's errors are these
            raise unreadable(file, error) from error
        return each(enumerate(found), lambda one: row_of(one[1], f"{file} row {one[0]}"))
    text = text_in(file)
    if kind in (".csv", ".tsv"):
        head = text.partition("\n")[0]
        separator = "\t" if kind == ".tsv" else max(",;\t", key=head.count)
        try:
            found = list(csv.DictReader(io.StringIO(text, newline=""), delimiter=separator))
        except csv.Error as error:
            raise unreadable(file, error) from error
        return each(enumerate(found, 1), lambda one: row_of(one[1], f"{file} row {one[0]}"))
    if kind == ".json" or text.lstrip().startswith("["):
        whole = json_list(text, file)
        if whole is not None:
            return each(enumerate(whole), lambda one: row_of(one[1], f"{file} row {one[0]}"))
    numbered = ((number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip())
    return each(numbered, lambda found: json_row(found[1], f"{file} line {found[0]}"))


def text_in(file: Path) -> str:
    """The text of a file, packed or not."""
    opener = PACKED.get(file.suffix.lower(), open)
    try:
        with opener(file, "rt", encoding="utf-8-sig", newline="") as opened:
            return str(opened.read())
    except UnicodeDecodeError as error:
        raise DataError(f"{file} is not UTF-8 at byte {error.start}: save it as UTF-8") from error
    except (OSError, ValueError, EOFError, lzma.LZMAError) as error:
        raise unreadable(file, error) from error


def json_list(text: str, file: Path) -> list[Any] | None:
    """The rows of a text that is one piece of JSON: a list, or an object that holds one; None for
    rows a line each."""
    try:
        found = parse_json(text)
    except ValueError as error:
        if row_format(file.name) != ".json" or (text.lstrip()[0:1] == "{" and "\n{" in text.strip()):
            return None
        raise unreadable(file, error) from error
    if isinstance(found, dict):
        lists = [value for value in found.values() if isinstance(value, list)]
        found = lists[0] if len(found) == 1 and lists else found
    if isinstance(found, list) and (row_format(file.name) == ".json" or not found or isinstance(found[0], dict)):
        return found
    if row_format(file.name) == ".json":
        raise DataError(f"{file} holds no list: write a list of objects, or one object a line in a .jsonl file")
    return None


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
    return ((number, line) for number, line in enumerate(text_in(file).split("\n"), 1) if line.strip())


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
    """A data set of the hub, or one split of it; nothing of the repository is executed. Raises
    DataError, ending in `fix`."""
    import datasets

    ask_hub_or_cache()
    try:
        return datasets.load_dataset(name, configuration, split=split)
    except (OSError, ValueError, httpx.HTTPError) as error:
        said = offline_because() or f"{type(error).__name__}: {str(error).partition(chr(10))[0][:150]}"
        raise DataError(
            f"{name} can't be loaded from the hub ({said}): check the name and the network, or {fix}"
        ) from error


# -- as tasks ----------------------------------------------------------------------------------------------------------


def as_task(row: Row, names: Columns, source: str) -> Task:
    """A row as a task. Its id is the row's own, else made of the question's hash. An answer may be
    empty: whoever needs it says so. Raises DataError for a broken row."""
    columns, where = row
    question = question_of(row, names)
    solution, gold = None, ""
    if names.answer is None:
        assert names.solution is not None
        solution = text_of(row, names.solution)
        stated = answers.extract(solution, strict=True, words=True)
        if stated is None:
            raise DataError(f"{where} has no answer column, and no \\boxed{{}} in `{names.solution}`: add an `answer`")
        gold = stated
    elif value_at(columns, names.answer) != "":
        gold = text_of(row, names.answer)
    if solution is not None or "####" in gold:
        written = gold if solution is None else solution
        stated = answers.extract(written, strict=True, words=True)
        if stated is None:
            raise DataError(f"{where} has nothing behind the '####' of `{names.answer}`: write the answer there")
        number = answers.gold_number(stated)
        gold = stated if number is None else str(number)
        marked = written if "####" in written else f"{written}\n#### {gold}"
        solution = without_annotations(marked)
    elif names.solution is not None and value_at(columns, names.solution):
        written = text_of(row, names.solution)
        solution = written if "####" in written else f"{written}\n#### {gold}"
    if is_no_answer(gold):
        raise DataError(f"{where} has {gold!r} as `{names.answer}`, which is no answer: write it, or remove the row")
    choices = None if names.choices is None else choices_at(columns, names.choices)
    if choices:
        labels, texts = choices_of(choices, where)
        question += "".join(f"\n{letter}. {text}" for letter, text in zip(LETTERS, texts, strict=False))
        if texts and gold:
            index = isinstance(value_at(columns, names.answer or ""), int)
            gold = letter_of(gold, labels, texts, index, f"{where} has {gold!r} as `{names.answer}`")
        elif not texts:
            question += f"\n{choices}"
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
    """The question: a text, or the one turn of the user in a list of messages, behind a system
    message where there is one."""
    columns, where = row
    messages = from_json(value_at(columns, names.question))
    if isinstance(messages, list | tuple) and messages and all(isinstance(one, Mapping) for one in messages):
        texts = [said_in(message.get("content")) for message in messages]
        roles = [str(message.get("role", message.get("from"))) for message in messages]
        if [role for role in roles if role not in ("system", "developer")] not in (["user"], ["human"]) or not all(
            texts
        ):
            raise DataError(
                f"{where} has {len(messages)} messages as `{names.question}`, of {', '.join(roles)}: write one text of the"
                " user there, with a system message or without"
            )
        return check_text("\n\n".join(map(str, texts)), f"{where}, `{names.question}`")
    question = text_of(row, names.question)
    if names.more is not None and value_at(columns, names.more):
        question += (" " if names.more.lower() == "question" else "\n") + text_of(row, names.more)
    return question


def said_in(content: Any) -> str | None:
    """The text of a message's content: a text, or parts that are all texts; else None."""
    if isinstance(content, list) and all(isinstance(part, Mapping) for part in content):
        parts = [part.get("text") for part in content]
        content = None if None in parts else "".join(map(str, parts))
    return content.strip() or None if isinstance(content, str) else None


def choices_at(columns: Mapping[str, Any], name: str) -> Any:
    """A row's choices: a column's value, read where it is JSON, or the columns of a pattern such as
    `option_{}` by letter."""
    if "{}" in name:
        texts = {
            letter: columns.get(name.format(letter), columns.get(name.format(letter.lower()))) for letter in LETTERS
        }
        return {letter: text for letter, text in texts.items() if text not in (None, "")}
    return from_json(value_at(columns, name))


def choices_of(given: Any, where: str) -> tuple[list[str], list[str]]:
    """A row's choices, their own labels (or none) and their texts: a list of texts, of objects or
    with letters of their own (`A)21`), a mapping with `text` and `label` as ARC has it, or with a
    text for each label. Both are empty for a text."""
    labels: list[str] = []
    if isinstance(given, Mapping) and "text" in given:
        labels, given = [str(label) for label in given.get("label") or ()], given["text"]
    elif isinstance(given, Mapping):
        given = {str(label): text for label, text in given.items() if text is not None}
        labels, given = list(given), list(given.values())
    if not isinstance(given, list | tuple):
        return [], []
    if given and all(isinstance(one, Mapping) for one in given):
        labels = [str(one.get("label", one.get("key"))) for one in given]
        given = [one.get("text", one.get("value", one.get("content"))) for one in given]
    texts = [str(choice).strip() for choice in given]
    own = [re.fullmatch(r"\(?([A-Za-z]|\d{1,2})\s*[).:]\s*(\S.*)", text, re.DOTALL) for text in texts]
    marks = [mark[1].upper() for mark in own if mark is not None]
    if len(texts) > 1 and marks in (list(LETTERS[: len(texts)]), [str(i + 1) for i in range(len(texts))]):
        labels, texts = labels or marks, [mark[2] for mark in own if mark is not None]
    if len(texts) > len(LETTERS):
        raise DataError(f"{where} has {len(texts)} choices: {len(LETTERS)} at most have a letter")
    return labels, texts


def letter_of(gold: str, labels: list[str], texts: list[str], index: bool, what: str) -> str:
    """The letter of the choice that a gold answer means: by its label, its text, its letter or its
    number from 0 on (`index`: the answer is a number, so no text). Raises DataError, beginning with
    `what`, where it is none of the choices."""
    letters = LETTERS[: len(texts)]
    named = re.fullmatch(r"\(?([A-Za-z0-9]+)\s*(?:[).:]\s*(.*))?", gold, re.DOTALL)
    label, rest = ("", "") if named is None else (named[1], (named[2] or "").strip())
    folded = [normalize_words(text) for text in texts]
    upper = [one.upper() for one in labels]
    if gold.upper() in upper:
        at = upper.index(gold.upper())
    elif not index and texts.count(gold) == 1:
        at = texts.index(gold)
    elif not index and folded.count(normalize_words(gold)) == 1:
        at = folded.index(normalize_words(gold))
    elif label.upper() in upper:
        at = upper.index(label.upper())
    elif len(label) == 1 and label.upper() in letters:
        at = letters.index(label.upper())
    elif gold.isdecimal() and int(gold) < len(texts):
        at = int(gold)
    else:
        at = -1
    if at < 0 or (rest and normalize_words(rest) != folded[at]):
        raise DataError(
            f"{what}, which is none of its {len(texts)} choices: write a letter from A to {letters[-1]}, a choice's text, or"
            " its number from 0 on"
        )
    return letters[at]


def without_annotations(solution: str) -> str:
    """GSM8K's solution without the calculator's annotations (<<48/2=24>>), which repeat what the
    text says."""
    return re.sub(r"<<[^<>]*>>", "", solution).strip()


def text_of(row: Row, name: str) -> str:
    """A column's text, stripped; numbers and dates are written out, and of a list the first text is
    taken.

    Raises DataError where there is none.
    """
    columns, where = row
    value = first_of(value_at(columns, name))
    if isinstance(value, datetime.datetime | datetime.date):
        value = str(value).removesuffix(" 00:00:00")
    if hasattr(value, "item") and not isinstance(value, str):
        value = value.item()  # NumPy's
    if isinstance(value, float):
        value = number_text(value)
    if isinstance(value, bool) or not isinstance(value, str | int | Decimal):
        raise DataError(f"{where} has {value!r} as `{name}`: write a text or a number there, or remove the row")
    return check_text(str(value).strip(), f"{where}, `{name}`")


def first_of(value: Any) -> Any:
    """The first of several answers (a list, or what SQuAD and TriviaQA write), a message's text;
    else the value itself."""
    if isinstance(value, Mapping):
        value = value.get("text", value.get("value"))
    if not isinstance(value, list | tuple) or not value:
        return value
    if all(isinstance(one, Mapping) and "content" in one for one in value):
        return said_in(value[-1]["content"])
    return value[0]


def number_text(value: float) -> str | float:
    """A float as the shortest decimal that has its precision: a single's 0.1 is 0.1, and so is 0.1
    + 0.2 no longer than 0.3. NaN and infinities are given back."""
    if not math.isfinite(value):
        return value
    text = repr(value)
    if len(text.strip("-0.").replace(".", "")) > 15:
        text = f"{value:.15g}"
        if abs(value) < LARGEST_SINGLE and single(value) == value:
            text = next(short for digits in range(1, 10) if single(float(short := f"{value:.{digits}g}")) == value)
    written = format(Decimal(text), "f")
    return written.rstrip("0").rstrip(".") if "." in written else written


def check_text(text: str, where: str) -> str:
    """The text. Raises DataError where it is empty, or has half of a character (a lone surrogate):
    no tokenizer reads that."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise DataError(
            f"{where} has a text that is no valid Unicode at letter {error.start}: mend it or remove it"
        ) from error
    if not text.strip():
        raise DataError(f"{where} is empty: write its text or remove it")
    return text
