"""What a column of anybody's row holds, as text: an answer, a passage, a message.

Texts are taken as they are written.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from datetime import date
from decimal import Decimal
from numbers import Number
from typing import Any

from ..errors import DataError
from ..grading import answers
from ..types import Facts
from .printed import parse_printed
from .shapes import read_shape, usual_columns

Row = tuple[Facts, str]  # columns, and where they stand, for messages


def value_at(columns: Facts, name: str) -> Any:
    """A column's value, or what lies at a dotted name in one; None where there is none."""
    if name in columns:
        return columns[name]
    outer, _, inner = name.partition(".")
    value = parse_printed(columns.get(outer))
    return value_at(value, inner) if inner and isinstance(value, Mapping) else None


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


def text_of_parts(content: Any) -> Any:
    """A message's content: its text, where it is a list of parts that are texts."""
    if isinstance(content, list) and content:
        texts = [read_shape("part", part) for part in content]
        if all(isinstance(text, str) for text in texts):
            return "\n".join(map(str, texts))
    return content


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
