"""A row of anybody's data set as a task: its columns, its question, its answer.

An answer with a `####` line is a worked solution whose answer stands there; choices are written
below their question.
"""

from __future__ import annotations

import hashlib
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from ..config.sections import ProblemsConfig
from ..errors import DataError
from ..grading import answers
from ..grading.graders import LETTERS, TRUTH, kind_of, normalize_words
from ..types import Facts, Problem, Task
from .printed import parse_printed
from .row_choices import (
    choices_at,
    columns_by_label,
    letter_of,
    listed_label,
    split_choices,
)
from .row_texts import (
    Row,
    check_text,
    column_text,
    golds_of,
    has_text,
    passage_of,
    stated_by,
    text_of_parts,
    value_at,
    without_annotations,
)
from .shapes import read_shape, usual_columns

ALL_ANSWERS = "is_multiple_answer"  # a row's column that says that all of its answers are asked for
COUNTS = {
    "any": "any counts",
    "all": "all count",
    "said": f"any counts, all where `{ALL_ANSWERS}` is true",
}
NAMED_COLUMNS = 8  # columns in a message
MESSAGES = re.compile(r"\[\s*\{\s*['\"](role|content)['\"]\s*:")


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
    pairs = [pair for pair in usual_columns("pairs") if known.keys() >= {*pair}]
    if pairs and problems.question_column is None:
        question, more = (known[name] for name in pairs[0])
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
    if not isinstance(own, str | int):
        return None
    return f"{own}/{instance}" if isinstance(instance, str | int) else own


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
    index = all(
        isinstance(one, int | float) and not isinstance(one, bool)
        for one in (value if isinstance(value, list) else [value])
    )
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
