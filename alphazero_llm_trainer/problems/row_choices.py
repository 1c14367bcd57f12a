"""The choices of a row: their labels and texts, and which one its answer means."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from numbers import Number
from typing import Any

from ..errors import DataError
from ..grading.graders import LETTERS, normalize_words
from ..types import Facts
from .printed import parse_printed
from .row_texts import value_at
from .shapes import read_shape

# A choice with its label.
LABELLED = re.compile(r"\(?([A-Za-z]|\d{1,2})\s*[).:]\s*(\S.*)", re.DOTALL)
# A label alone, of options that the question lists (BBH).
LABEL = re.compile(r"[(\[]?([A-Za-z])[)\].:]")


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


def choices_at(columns: Facts, name: str) -> Any:
    """A row's choices: a column's value, or the columns of a pattern of columns.yaml by letter."""
    if "{}" not in name:
        return parse_printed(value_at(columns, name))
    return {label: columns[column] for label, column in columns_by_label(columns, name).items()}


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


def listed_label(gold: str, question: str) -> str | None:
    """The letter of a gold answer that is the label of an option, as the question lists them; None
    for another."""
    match = LABEL.fullmatch(gold)
    if match is None:
        return None
    first = "AB" if match[1].isupper() else "ab"
    listed = all(gold.replace(match[1], letter) in question for letter in first)
    return match[1].upper() if listed else None
