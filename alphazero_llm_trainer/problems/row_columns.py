"""A row of anybody's data set as a task: its columns, its choices, its answer.

Texts are taken as they are written. An answer with a `####` line is a worked solution whose answer
stands there; choices are written below their question.
"""

from __future__ import annotations

import bz2
import glob
import gzip
import hashlib
import lzma
import math
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import date
from decimal import Decimal
from numbers import Number
from pathlib import Path
from typing import Any, NamedTuple

from ..config.sections import ProblemsConfig
from ..errors import DataError
from ..grading import answers
from ..grading.graders import LETTERS, TRUTH, kind_of, normalize_words
from ..types import Facts, Problem, Task
from .printed import parse_printed
from .shapes import read_shape, usual_columns

ALL_ANSWERS = "is_multiple_answer"  # a row's column that says that all of its answers are asked for
COUNTS = {
    "any": "any counts",
    "all": "all count",
    "said": f"any counts, all where `{ALL_ANSWERS}` is true",
}
NAMED_COLUMNS = 8  # columns in a message
ROW_FILES = (".jsonl", ".ndjson", ".json", ".parquet", ".csv", ".tsv")
SPLIT_NAMES = {
    "train": "train",
    "training": "train",
    "validation": "validation",
    "valid": "validation",
    "val": "validation",
    "dev": "validation",
    "arena": "arena",
    "test": "test",
    "testing": "test",
    "eval": "test",
    "evaluation": "test",
}
# What opens a packed file, by its ending.
PACKED: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
# A choice with its label.
LABELLED = re.compile(r"\(?([A-Za-z]|\d{1,2})\s*[).:]\s*(\S.*)", re.DOTALL)
# A label alone, of options that the question lists (BBH).
LABEL = re.compile(r"[(\[]?([A-Za-z])[)\].:]")
MESSAGES = re.compile(r"\[\s*\{\s*['\"](role|content)['\"]\s*:")
Row = tuple[Mapping[str, Any], str]  # columns, and where they stand, for messages


class RowColumns(NamedTuple):
    """The columns that make a task; a dot leads into a column (`reward_model.ground_truth`).

    `more` is a second part of the question, `context` stands before it. Without an answer column
    the solution states the answer. `choices` is a column, or a pattern of columns.yaml, whose
    columns are `lettered`. What all rows tell: `first`, the number of the first choice where
    answers are numbers of choices; `several`, which of a row's answers count (`COUNTS`), None where
    each has one.
    """

    question: str = "question"
    answer: str | None = "answer"
    solution: str | None = "solution"
    choices: str | None = "choices"
    more: str | None = None
    context: str | None = None
    lettered: tuple[str, ...] = ()
    first: int | None = None
    several: str | None = None

    def __str__(self) -> str:
        more = f" and `{self.more}`" if self.more else ""
        answer = f"`{self.answer}`" if self.answer else f"what `{self.solution}` states"
        context = f" after `{self.context}`" if self.context else ""
        named = "`, `".join(self.lettered) or self.choices
        choices = f", choices are `{named}`" if named else ""
        choices += "" if self.first is None else f", numbered from {self.first}"
        several = f", of several answers {COUNTS[self.several]}" if self.several else ""
        question = f"question is `{self.question}`{more}{context}"
        return f"{question}, answer is {answer}{several}{choices}"


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
    if not named or named in SPLIT_NAMES:
        return SPLIT_NAMES.get(named, "")
    known = ", ".join(dict.fromkeys(SPLIT_NAMES.values()))
    raise DataError(f"{where} has the split {named!r}: use {known}, or leave the column out")


def columns_of(row: Row, problems: ProblemsConfig) -> RowColumns:
    """The columns that the configuration names, else the first of the usual names that is there.

    Raises DataError, naming those that are there, where question or answer is missing.
    """
    columns, where = row
    known = {name.lower(): name for name in reversed(list(columns))}

    def pick(what: str, *without: str | None, needed: bool = False) -> str | None:
        named = getattr(problems, f"{what}_column", None)
        empty = list[str]()
        for name in usual_columns(what) if named is None else (named,):
            outer, dot, inner = name.partition(".")
            column = name if name in columns else known.get(outer.lower(), outer) + dot + inner
            if named is None and column in without:
                continue
            if value_at(columns, column) not in (None, ""):
                return column
            empty += [column] if column in columns else []
        if empty and (named is not None or what in ("question", "answer")):
            return empty[0]
        if needed or named is not None:
            raise DataError(
                f"{where} has no column {named or what!r}, it has {', '.join(columns)}: name the"
                f" right one with problems.{what}_column (--{what}-column)"
            )
        return None

    more = None
    pair = next(
        (pair for pair in usual_columns("pairs") if all(name in known for name in pair)), None
    )
    if problems.question_column is None and pair is not None:
        question, more = (known[name] for name in pair)
    else:
        question = pick("question", needed=True) or ""
    solution = pick("solution", problems.answer_column)
    answer = pick("answer", question, more, needed=solution is None)
    choices, lettered, told = pick("choices"), tuple[str, ...](), known.get(usual_columns("told"))
    if choices is None and told is not None and isinstance(columns.get(answer or ""), list):
        choices, answer = answer, told
    patterns = usual_columns("lettered") + (usual_columns("labelled") if told is not None else [])
    for pattern in patterns if choices is None else ():
        by_label = columns_by_label(columns, pattern)
        if len(by_label) > 1:
            choices, lettered = pattern, tuple(by_label.values())
            if answer in lettered or pattern in usual_columns("labelled"):
                answer = told or answer
            break
    context = pick("context", question, more, answer, solution)
    return RowColumns(question, answer, solution, choices, more, context, lettered)


def questions_in(row: Row, names: RowColumns) -> list[Row]:
    """The row, or a row for each question where it has a list of them, with as many answers.

    Raises DataError where there are not as many.
    """
    columns, where = row
    questions = value_at(columns, names.question)
    if not isinstance(questions, list) or not all(isinstance(text, str) for text in questions):
        return [row]
    lists = {names.question: questions}
    for name in (names.answer, names.choices, names.solution):
        value = None if name is None or name in names.lettered else value_at(columns, name)
        if isinstance(value, list) and (name != names.choices or [*map(type, value)][:1] == [list]):
            lists[name or ""] = value
    if len({len(parts) for parts in lists.values()}) > 1 or (
        names.answer is not None and names.answer not in lists
    ):
        raise DataError(
            f"{where} has {len(questions)} questions as `{names.question}` and no list of as many"
            f" answers as `{names.answer}`: write one question a row"
        )
    rows = list[Row]()
    for number, parts in enumerate(zip(*lists.values(), strict=True), 1):
        own = dict(columns) | dict(zip(lists, parts, strict=True))
        if "id" in own:
            own["id"] = f"{own['id']}/{number}"
        rows.append((own, where))
    return rows


def settle_columns(names: RowColumns, rows: Sequence[Row], grade: str | None) -> RowColumns:
    """`names` with what only all rows tell (see `RowColumns`). A list of numbers or formulas is one
    answer, all of it, unless `grade` compares single answers."""
    if names.answer is None:
        return names
    answers_of = [golds_of(row, names.answer) for row in rows if has_text(row, names.answer)]
    lists = [answers for answers in answers_of if len(answers) > 1]
    several = "said" if any(row.get(ALL_ANSWERS) is True for row, _ in rows) else "any"
    if grade in (None, "math", "mixed"):
        kinds = {kind_of(gold) for answers in lists for gold in answers}
        several = "all" if kinds and kinds <= {"numbers", "math"} else several
    first = None if names.choices is None else first_number(names, rows)
    return names._replace(first=first, several=several if lists else None)


def first_number(names: RowColumns, rows: Sequence[Row]) -> int | None:
    """The number of the first choice, 0 or 1, where gold answers number choices, and all rows tell
    it; None elsewhere. Raises DataError where several rows don't tell it.
    """
    name = names.answer or ""
    with_choices = (
        row for row in rows if choices_at(row[0], names.choices or "") and has_text(row, name)
    )
    asked = [row for row in with_choices if any(map(str.isdigit, golds_of(row, name)))]
    ways = dict[int, list[list[str]]]()
    for first in (0, 1):
        with suppress(DataError):
            ways[first] = [right_choice(row, names._replace(first=first)) for row in asked]
    if len(ways) == 1 and (names.lettered or len(asked) > 1):
        return min(ways)
    if ways.get(0) == ways.get(1):
        return None
    if name.lower() in usual_columns("indices"):
        return 0
    if names.lettered and names.lettered[0][-1].isdigit():
        return None  # the number in a column's name
    if len(asked) > 1:
        raise DataError(
            f"{asked[-1][1]} and those before it number their choices as `{names.answer}`, and none"
            " says whether from 0 or from 1: write letters there"
        )
    return 0


def name_unread(columns: Iterable[str], names: RowColumns) -> str:
    """The columns that make no part of a task, in words; "" where there are none."""
    used = {"id", "unique_id", "split", ALL_ANSWERS, *names.lettered}
    parts = (names.question, names.more, names.context, names.answer, names.solution, names.choices)
    used |= {name for name in parts if name is not None}
    used |= {name.partition(".")[0] for name in used}
    left = [name for name in columns if name not in used and name.lower() not in used]
    if not left:
        return ""
    more = f" and {len(left) - NAMED_COLUMNS} more" if len(left) > NAMED_COLUMNS else ""
    return f"; not read: `{'`, `'.join(left[:NAMED_COLUMNS])}`{more}"


def ids_in_several_places(rows: Iterable[Row]) -> set[Any]:
    """The ids that rows of several files, or of several splits of a data set, have: they number the
    rows of one."""
    places = defaultdict[Any, set[str]](set)
    for columns, where in rows:
        own = own_id(columns)
        if own is not None:
            places[own].add(where.rsplit(" ", 2)[0])
    return {own for own, files in places.items() if len(files) > 1}


def own_id(columns: Facts) -> str | int | None:
    """A row's own id, or None; that of a question's template with the number of its `instance`
    (GSM-Symbolic)."""
    own, instance = read_shape("id", columns), columns.get("instance")
    if isinstance(own, str | int) and isinstance(instance, str | int):
        return f"{own}/{instance}"
    return own if isinstance(own, str | int) else None


def as_task(row: Row, names: RowColumns, source: str, repeated: Collection[Any] = ()) -> Task:
    """A row as a task, or DataError for a broken one.

    Its id is the row's own, else made of the question's hash; both where the id is one of
    `repeated`. An answer may be empty: whoever needs it says so.
    """
    columns, where = row
    question = question_of(row, names)
    golds, solution = stated_golds(row, names)
    choices = None if names.choices is None else choices_at(columns, names.choices)
    if choices:
        _, texts = split_choices(choices, where)
        for letter, text in zip(LETTERS, texts, strict=False):
            question += f"\n{letter}. {text}"
        golds = right_choice(row, names, golds)
    else:
        golds = [listed_label(gold, question) or gold for gold in golds]
    gold = golds[0] if golds else ""
    if solution is not None and "####" not in solution:
        solution += f"\n#### {gold}"
    row_id, digest = own_id(columns), hashlib.sha256(question.encode()).hexdigest()[:12]
    if row_id is None:
        row_id = digest
    elif row_id in repeated:
        row_id = f"{row_id}-{digest}"
    # Seeds are made of ids: a file draws the same samples wherever it lies.
    prefix = source if source.startswith("hub:") else source.rstrip("/").rpartition("/")[2]
    problem = Problem(f"{prefix}/{row_id}", question, source)
    return Task(problem, gold, solution, others=tuple(golds[1:]), row=columns)


def stated_golds(row: Row, names: RowColumns) -> tuple[list[str], str | None]:
    """A row's gold answers as its columns or its worked solution state them, and the solution."""
    columns, where = row
    golds, solution = list[str](), None
    if names.answer is not None and has_text(row, names.answer):
        golds = golds_of(row, names.answer)
    if names.solution is not None and value_at(columns, names.solution):
        solution = column_text(row, names.solution)
    if names.answer is None or (golds and "####" in golds[0]):
        solution = without_annotations(golds[0] if golds else solution or "")
        stated = stated_by(solution, where)
        if stated is None:
            raise DataError(
                f"{where} states no answer in `{names.answer or names.solution}`: end it with a"
                " line `#### ANSWER`, put it into \\boxed{}, or add a column `answer`"
            )
        return [stated], solution
    if names.choices is None and (names.several == "all" or columns.get(ALL_ANSWERS) is True):
        different = {answers.normalize(text): text for text in golds}
        golds = [", ".join(different.values())] if golds else []
    return golds, solution


def right_choice(row: Row, names: RowColumns, golds: Sequence[str] | None = None) -> list[str]:
    """The letter of the choice that a row's gold answers (None: of its column) mean, alone in a
    list; an empty list without any. Raises DataError where they mean none of the choices, or
    several."""
    columns, where = row
    labels, texts = split_choices(choices_at(columns, names.choices or ""), where)
    value = value_at(columns, names.answer or "")
    index = all(map(is_number, value if isinstance(value, list) else [value]))
    if names.lettered and names.first is not None:
        labels.clear()  # of the columns' own names
        index = True
    letters = []
    for gold in golds_of(row, names.answer or "") if golds is None else golds:
        what = f"{where} has {gold!r} as `{names.answer}`"
        means = gold
        if gold.lower() in TRUTH and normalize_words(gold) not in map(normalize_words, texts):
            means = TRUTH[gold.lower()]  # yes is what true means
        letters.append(letter_of(means, labels, texts, index, names.first or 0, what))
    letters = list(dict.fromkeys(letters))
    if len(letters) > 1:
        raise DataError(
            f"{where} has the right choices {' and '.join(letters)}: "
            "one answer is graded, so ask for one"
        )
    return letters


def is_number(value: Any) -> bool:
    """Whether a value is a number, and no text."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def listed_label(gold: str, question: str) -> str | None:
    """The letter of a gold answer that is the label of an option, as the question lists them; None
    for another."""
    match = LABEL.fullmatch(gold)
    if match is None:
        return None
    first = "AB" if match[1].isupper() else "ab"
    listed = all(gold.replace(match[1], letter) in question for letter in first)
    return match[1].upper() if listed else None


def has_text(row: Row, name: str) -> bool:
    """Whether a row's column has more than an empty text."""
    return value_at(row[0], name) != ""


def golds_of(row: Row, name: str) -> list[str]:
    """A row's gold answers: one, or those of a list or of an object of a known shape, each once;
    true and false in words."""
    columns, where = row
    value = value_at(columns, name)
    printed = parse_printed(value)
    golds = read_shape("gold", printed, printed)
    if golds is not printed or name.lower() in usual_columns("lists"):
        value = golds
    texts = []
    for one in value if isinstance(value, list | tuple) and value else [value]:
        if isinstance(one, bool):
            texts.append(str(one).lower())
        elif one != "":
            texts.append(column_text(({name: one}, where), name))
    return list(dict.fromkeys(texts))


def passage_of(value: Any) -> str:
    """The text of a question's context: a text, paragraphs, or those of a known shape with their
    titles."""
    if isinstance(value, str):
        return value.strip()
    read = read_shape("passage", value, value)
    if read is not value:
        return passage_of(read)
    if isinstance(value, Mapping):
        title = value.get("title")
        texts = [passage_of(text) for name, text in value.items() if name != "title"]
        said = "\n".join(filter(None, texts))
        return f"{title}: {said}" if title else said
    if not isinstance(value, list | tuple):
        return ""
    paragraph: str | None = read_shape("paragraph", value)
    return paragraph or "\n".join(filter(None, map(passage_of, value)))


def value_at(columns: Facts, name: str) -> Any:
    """A column's value, or what lies at a dotted name in one; None where there is none."""
    if name in columns:
        return columns[name]
    outer, _, inner = name.partition(".")
    value = parse_printed(columns.get(outer))
    return value_at(value, inner) if inner and isinstance(value, Mapping) else None


def question_of(row: Row, names: RowColumns) -> str:
    """The question: a text, or the user's one turn behind a system message, where there is one."""
    columns, where = row
    turns = parse_printed(value_at(columns, names.question))
    if isinstance(turns, list) and turns and all(isinstance(turn, Mapping) for turn in turns):
        roles = [turn.get("role") for turn in turns]
        texts = [text_of_parts(turn.get("content")) for turn in turns]
        if roles not in (["user"], ["system", "user"]) or not all(
            isinstance(text, str) for text in texts
        ):
            raise DataError(
                f"{where} has messages of {', '.join(map(str, roles))} as `{names.question}`: write"
                " one text of the user there, with a system message or without"
            )
        question = check_text("\n\n".join(texts), f"{where}, `{names.question}`")
    elif isinstance(turns, str) and MESSAGES.match(turns):
        raise DataError(
            f"{where} has messages as `{names.question}` that can't be read: write them as JSON, or"
            " name a column with the question alone by problems.question_column (--question-column)"
        )
    else:
        question = column_text(row, names.question)
    if names.more is not None and value_at(columns, names.more):
        question += (" " if names.more.lower() == "question" else "\n") + column_text(
            row, names.more
        )
    context = "" if names.context is None else passage_of(value_at(columns, names.context))
    if context and context not in question:
        question = f"{check_text(context, f'{where}, `{names.context}`')}\n{question}"
    return question


def text_of_parts(content: Any) -> Any:
    """A message's content: its text, where it is a list of parts that are texts."""
    if isinstance(content, list) and content:
        texts = [read_shape("part", part) for part in content]
        if all(isinstance(text, str) for text in texts):
            return "\n".join(map(str, texts))
    return content


def choices_at(columns: Facts, name: str) -> Any:
    """A row's choices: a column's value, or the columns of a pattern of columns.yaml by letter."""
    if "{}" not in name:
        return parse_printed(value_at(columns, name))
    return {label: columns[column] for label, column in columns_by_label(columns, name).items()}


def columns_by_label(columns: Facts, pattern: str) -> dict[str, str]:
    """The columns of a pattern of columns.yaml that hold something: by letter, else by number."""
    known = {column.lower(): column for column in columns}
    there = dict[str, str]()
    for labels in (LETTERS, () if pattern == "{}" else map(str, range(len(LETTERS)))):
        for label in labels if not there else ():
            name = known.get(pattern.format(label.lower()))
            if name is not None and columns[name] not in (None, ""):
                there[label] = name
    return there


def split_choices(choices: Any, where: str) -> tuple[list[str], list[str]]:
    """Labels (or none) and texts of choices: a list of texts, with labels of their own (`1) cat`)
    or without, or of objects; an object of a known shape, or with a text for each label."""
    labels: Iterable[Any] = ()
    if isinstance(choices, Mapping):
        by_label = {label: text for label, text in choices.items() if text is not None}
        choices, labels = read_shape("choices", choices, (by_label.values(), by_label))
    elif isinstance(choices, list) and all(isinstance(choice, Mapping) for choice in choices):
        labels = [read_shape("label", choice) for choice in choices]
        choices = [read_shape("text", choice) for choice in choices]
    texts = list(choices) if isinstance(choices, Iterable) and not isinstance(choices, str) else []
    if not 0 < len(texts) <= len(LETTERS) or not all(
        isinstance(text, str | Number) for text in texts
    ):
        raise DataError(
            f"{where} has no list of 1 to {len(LETTERS)} texts as its choices: write one"
        )
    texts, labels = [str(text).strip() for text in texts], [str(label).upper() for label in labels]
    marked = [match for match in map(LABELLED.fullmatch, texts) if match is not None]
    marks, numbers = [match[1].upper() for match in marked], [*map(str, range(1, len(texts) + 1))]
    if len(texts) > 1 and marks in ([*LETTERS[: len(texts)]], numbers):
        labels, texts = labels or marks, [match[2] for match in marked]
    return labels, texts


def letter_of(
    gold: str, labels: list[str], texts: list[str], index: bool, first: int, what: str
) -> str:
    """The letter of the choice that a gold answer means: its label, its text, its letter or its
    number from `first` on. `index`: the answer is a number, so no text.

    Raises DataError, beginning with `what`, where it is none of the choices.
    """
    letters, key = LETTERS[: len(texts)], normalize_words(gold)
    lettered = [f"{letter} {text}" for letter, text in zip(letters, texts, strict=True)]
    ways: list[tuple[Iterable[str], str]] = [(labels, gold.upper())]
    if not index:
        ways += [(texts, gold), (map(normalize_words, texts), key)]
        ways.append((map(normalize_words, lettered), key))
    ways += [(letters.lower(), key), (map(str, range(first, first + len(texts))), gold)]
    for way, text in ways:
        places = [letter for letter, own in zip(letters, way, strict=False) if own == text]
        if len(places) == 1:
            return places[0]
    raise DataError(
        f"{what}, which is none of its {len(texts)} choices: write a letter from A to"
        f" {letters[-1]}, a choice's text, or its number from {first} on"
    )


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


def column_text(row: Row, name: str) -> str:
    """A column's text, stripped; numbers and dates are written out.

    The first of several answers counts (a list, or what SQuAD and TriviaQA write). Raises DataError
    where there is none.
    """
    columns, where = row
    value = value_at(columns, name)
    if isinstance(value, Mapping):
        value = read_shape("text", value)
    if isinstance(value, list | tuple) and value:
        value = value[0]
    if isinstance(value, Mapping):
        value = read_shape("message", value)
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
            f"{where} has a text that is no valid Unicode at letter {error.start}: "
            "mend it or remove it"
        ) from error
    if not text.strip():
        raise DataError(f"{where} is empty: write its text or remove it")
    return text
