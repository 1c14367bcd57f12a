"""Rows of your own as a source: files (a folder or a pattern of them, too), or a data set of the
hub, which Hugging Face `datasets` loads.

A column `split`, the names of a folder's files, or the hub's own splits decide what is train and
test; what a data set doesn't have is cut off its train rows by a hash of the questions
(`source.split_of`).
"""

from __future__ import annotations

import bz2
import csv
import glob
import gzip
import io
import lzma
import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from ..config.hub import ask_hub_or_cache, offline_because
from ..config.objects import at_home
from ..config.sections import ProblemsConfig
from ..errors import ConfigError, DataError, first_line, reason_of
from ..files import parse_json
from ..types import JsonObject
from .row_texts import Row
from .shapes import usual_columns
from .source import SPLITS, Source
from .task_list import TaskList, from_rows

HUB = "install alphazero-llm-trainer[hub]"
ROW_FILES = (".jsonl", ".ndjson", ".json", ".parquet", ".csv", ".tsv")
# What opens a packed file, by its ending.
PACKED: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}


class FileRows(TaskList):
    """The rows of a file, a folder or a pattern."""

    opens = True

    @classmethod
    def open(cls, rest: str, problems: ProblemsConfig) -> Source:
        """The source of an address. `rest` is the file."""
        return from_rows(rows_at(str(at_home(rest, "problems.source"))), problems)


class HubRows(TaskList):
    """The rows of `hub:OWNER/NAME` or `hub:OWNER/NAME/CONFIGURATION`; nothing of the repository is
    executed."""

    opens = True

    @classmethod
    def open(cls, rest: str, problems: ProblemsConfig) -> Source:
        """The source of an address. `rest` names the data set."""
        parts = rest.split("/")
        if len(parts) not in (2, 3) or not all(parts):
            raise ConfigError(
                f"problems.source is {problems.source!r}: write hub:OWNER/NAME or "
                "hub:OWNER/NAME/CONFIGURATION"
            )
        name = "/".join(parts[:2])
        rows = [
            (split_in(split), (row, f"{name} {split} row {number}"))
            for split, of_split in load_hub(
                name, "".join(parts[2:]) or None, None, "name a local file"
            ).items()
            for number, row in enumerate(of_split)
        ]
        return from_rows(rows, problems)


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


def split_in(name: str) -> str:
    """The split that a file's or folder's name stands for, such as `train`,
    `test-00000-of-00001` or `dev_v2`; "" for any other name.
    """
    known = usual_columns("splits")
    return next((known[part] for part in re.split(r"[^a-z]+", name.lower()) if part in known), "")


def split_at(row: Row) -> str:
    """The split that a row's own column `split` names; "" for none. Raises DataError for another
    word.
    """
    columns, where = row
    named, known = str(columns.get("split") or "").lower(), usual_columns("splits")
    if named and named not in known:
        fix = f"use {', '.join(SPLITS)}, or leave the column out"
        raise DataError(f"{where} has the split {named!r}: {fix}")
    return known.get(named, "")


def rows_at(address: str) -> Iterator[tuple[str, Row]]:
    """The rows at an address, each with its split: what its column `split` says, else the name of a
    folder's file, or of the folder that it lies in; "" where nothing says it.

    Raises DataError with one sentence naming file, place and fix.
    """
    files, base = files_at(address), Path(address)
    if not files:
        raise DataError(
            f"problems.source is {address!r} and no file of rows is there: name another"
        )
    for file in files:
        inner = [
            place.name for place in (file, *file.parents) if place not in (base, *base.parents)
        ]
        of_file = next(filter(None, map(split_in, inner)), "")
        for columns, where in rows_in(file):
            yield split_at((columns, where)) or of_file, (columns, where)


def rows_in(file: Path) -> Iterator[Row]:
    """The rows of a file, packed or not. Every text is as it is written: no date, number or missing
    value is guessed.
    """
    kind = row_format(file.name)
    content = unpack_file(file)
    if kind == ".parquet":
        rows: Iterable[JsonObject] = parquet_rows(content, file)
    else:
        try:
            text = content.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise DataError(f"{file} is not utf-8 ({error.reason}): write it in utf-8") from error
        if kind not in (".csv", ".tsv"):
            yield from json_rows(text, file)
            return
        rows = table_rows(text, "\t" if kind == ".tsv" else ",", file)
    for number, row in enumerate(rows, 1):
        yield row, f"{file} row {number}"


def unpack_file(file: Path) -> bytes:
    """What a file holds. Raises DataError where it can't be read or unpacked."""
    try:
        with PACKED.get(file.suffix.lower(), open)(file, "rb") as opened:
            return bytes(opened.read())
    except (OSError, EOFError, lzma.LZMAError, zlib.error) as error:
        raise DataError(f"{file} can't be read ({first_line(error)}): check the file") from error


def parquet_rows(content: bytes, file: Path) -> list[JsonObject]:
    """The rows of a Parquet file. Raises DataError where it is none, ConfigError without
    pyarrow.
    """
    try:
        from pyarrow import ArrowException, BufferReader
        from pyarrow.parquet import read_table
    except ModuleNotFoundError as error:
        raise ConfigError(f"{file} needs {error.name}, which isn't installed: {HUB}") from error
    try:
        rows: list[JsonObject] = read_table(BufferReader(content)).to_pylist()
    except ArrowException as error:
        raise DataError(f"{file} can't be read ({first_line(error)}): check the file") from error
    return rows


def table_rows(text: str, separator: str, file: Path) -> Iterator[dict[str, str]]:
    """The rows of a table, all as text. Raises DataError for a row that its head doesn't fit."""
    csv.field_size_limit(max(len(text) + 1, csv.field_size_limit()))  # of the whole process
    table = csv.DictReader(io.StringIO(text, newline=""), delimiter=separator, strict=True)
    try:
        for number, row in enumerate(table, 1):
            if None in row:
                raise DataError(
                    f"{file} row {number} has more fields than the head has columns: "
                    "put texts with commas in quotes"
                )
            yield row
    except csv.Error as error:
        raise DataError(
            f"{file} line {table.reader.line_num} is no row of a table ({error}): check its quotes"
        ) from error


def json_rows(text: str, file: Path) -> Iterator[Row]:
    """The rows of JSON text: one object a line, or one value that holds them (`rows_held`)."""
    parts = [(f"{file} line {line}", part) for line, part in enumerate(text.split("\n"), 1)]
    try:
        value = parse_json(text)
    except ValueError:
        if text.lstrip().startswith("["):
            parts = [(str(file), text)]
    else:
        rows = rows_held(value, str(file)) if isinstance(value, list | dict) else [value]
        for number, row in enumerate(rows, 1):
            kind = "line" if row is value else "row"
            yield check_row(row, f"{file} {kind} {number}")
        return
    for where, part in parts:
        if part.strip():
            try:
                yield check_row(parse_json(part), where)
            except ValueError as error:
                raise DataError(
                    f"{where} is not valid JSON ({error}): write an object a line, or one list"
                ) from error


def check_row(row: Any, where: str) -> Row:
    """Pair a JSON object with `where` it stands. Raises DataError for anything else."""
    if not isinstance(row, dict):
        raise DataError(f"{where} is not a JSON object: write one with a question and an answer")
    return row, where


def rows_held(value: Any, where: str) -> list[Any]:
    """The rows that one JSON value holds: a list, a table as pandas writes it (each `orient`), an
    object with one list of objects (BBH's `examples`), or one row. Raises DataError for several
    lists.
    """
    if isinstance(value, list):
        return value
    if value.keys() >= {"columns", "data"}:
        return [dict(zip(value["columns"], row, strict=False)) for row in value["data"]]
    parts, question = list(value.values()), usual_columns("question")
    lists = [name for name, part in value.items() if holds_rows(part)]
    asking = [value[name] for name in value if name.lower() in question and name not in lists]
    if parts and all(isinstance(part, dict) and part.keys() == parts[0].keys() for part in parts):
        by_name = asking or (has_numbers(parts[0]) and not has_numbers(value))
        return transpose_columns(value, [part.values() for part in parts]) if by_name else parts
    if asking:
        table = all(isinstance(part, list) and len(part) == len(parts[0]) for part in parts)
        texts = table and all(isinstance(text, str) for part in asking for text in part)
        return transpose_columns(value, parts) if texts else [value]
    if len(lists) > 1:
        raise DataError(
            f"{where} has lists of rows as {' and '.join(lists)}: write each into a file of its own"
        )
    return value[lists[0]] if lists else [value]


def holds_rows(part: Any) -> bool:
    """Whether a value is a list of objects, which aren't the messages of a prompt."""
    objects = isinstance(part, list) and all(isinstance(row, dict) for row in part)
    return objects and bool(part) and "role" not in part[0]


def has_numbers(table: JsonObject) -> bool:
    """Whether an object's names are numbers."""
    return all(map(str.isdigit, table))


def transpose_columns(names: Iterable[str], columns: list[Iterable[Any]]) -> list[JsonObject]:
    """The rows of a table's columns."""
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


def load_hub(name: str, configuration: str | None, split: str | None, fix: str) -> Any:
    """A data set of the hub, or one split of it; nothing of the repository is executed.

    Raises DataError, or ConfigError without `datasets`; both end in `fix`.
    """
    try:
        import datasets
        import httpx
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"{name} is on the hub, and {error.name} isn't installed: {HUB}, or {fix}"
        ) from error
    ask_hub_or_cache()
    try:
        return datasets.load_dataset(name, configuration, split=split)
    except (OSError, ValueError, httpx.HTTPError) as error:
        because = offline_because() or reason_of(error)
        raise DataError(
            f"{name} can't be loaded from the hub ({because}): "
            f"check the name and the network, or {fix}"
        ) from error
