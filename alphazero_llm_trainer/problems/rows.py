"""Rows as they lie in a file (JSONL, JSON, Parquet, CSV) or on the hub, each with where it stands, for messages."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx

from ..errors import DataError
from ..files import parse_json

Row = tuple[Mapping[str, Any], str]  # columns, and where they stand


def read_file(file: Path) -> list[Row]:
    """The rows of a file. Raises DataError with one sentence naming file, line and fix."""
    if not file.is_file():
        raise DataError(f"problems.source is {str(file)!r} and there is no such file: name one that is there")
    try:
        if file.suffix == ".parquet":
            import pyarrow.parquet

            rows = pyarrow.parquet.read_table(file).to_pylist()
            return [(row, f"{file} row {number}") for number, row in enumerate(rows)]
        if file.suffix == ".csv":
            with file.open(encoding="utf-8-sig", newline="") as opened:
                return [csv_row(row, f"{file} row {number}") for number, row in enumerate(csv.DictReader(opened), 1)]
        if file.suffix != ".json":
            return [json_row(line, f"{file} line {number}") for number, line in lines_of(file)]
        found = parsed(file.read_text(encoding="utf-8-sig"), str(file))
    except (OSError, ValueError) as error:  # pyarrow's errors are ValueErrors and OSErrors
        raise unreadable(file, error) from error
    if not isinstance(found, list):
        raise DataError(f"{file} holds no list: write a list of objects, or one object a line in a .jsonl file")
    return [row_of(row, f"{file} row {number}") for number, row in enumerate(found)]


def lines_of(file: Path) -> list[tuple[int, str]]:
    """The lines of a file that aren't blank, each with its number.

    `str.splitlines` would also break at the U+2028 that JSON allows inside a string.
    """
    try:
        lines = file.read_text(encoding="utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise unreadable(file, error) from error
    return [(number, line) for number, line in enumerate(lines, 1) if line.strip()]


def unreadable(file: Path, error: Exception) -> DataError:
    """The error of a file that can't be read."""
    said = "it is not UTF-8 text" if isinstance(error, UnicodeDecodeError) else str(error).splitlines()[0][:150]
    return DataError(f"{file} can't be read ({said}): check the file")


def json_row(line: str, where: str) -> Row:
    """A line of JSON as a row, or DataError."""
    return row_of(parsed(line, where), where)


def csv_row(row: dict[Any, Any], where: str) -> Row:
    """A CSV row, or DataError where it has more fields than the head: a comma of a text was taken for a separator."""
    if None in row:
        raise DataError(f"{where} has more fields than the head has columns: put texts with commas in double quotes")
    return row, where


def parsed(text: str, where: str) -> Any:
    """JSON, or DataError."""
    try:
        return parse_json(text)
    except ValueError as error:
        raise DataError(f"{where} is not valid JSON: mend or remove it") from error


def row_of(row: Any, where: str) -> Row:
    """A row's columns, or DataError."""
    if not isinstance(row, dict):
        raise DataError(f"{where} is not a JSON object: write one with a question and an answer")
    return row, where


def load_hub(name: str, configuration: str | None, split: str | None, fix: str) -> Any:
    """A data set of the hub, or one split of it; nothing of the repository is executed. Raises DataError, ending in `fix`."""
    import datasets

    try:
        return datasets.load_dataset(name, configuration, split=split)
    except (OSError, ValueError, httpx.HTTPError) as error:
        said = f"{type(error).__name__}: {str(error).splitlines()[0][:150]}" if str(error) else type(error).__name__
        raise DataError(
            f"{name} can't be loaded from the hub ({said}): check the name and the network, or {fix}"
        ) from error
