"""Rows of your own as a source: files (a folder or a pattern of them, too), or a data set of the
hub, read by Hugging Face `datasets`.

A column `split`, the names of a folder's files, or the hub's own splits decide what is train and
test; what a data set doesn't have is cut off its train rows by a hash of the questions
(`source.split_of`).
"""

from __future__ import annotations

import glob
import logging
import lzma
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx

from ..config.hub import ask_hub_or_cache, offline_because
from ..config.objects import at_home
from ..config.sections import ProblemsConfig
from ..errors import ConfigError, DataError, first_line, reason_of
from ..files import parse_json
from .rows import SPLIT_NAMES, Row, files_at, row_format, split_at
from .source import Source, TaskList, from_rows


class FileRows(TaskList):
    """The rows of a file, a folder or a pattern."""

    opens = True

    @classmethod
    def open(cls, rest: str, problems: ProblemsConfig) -> Source:
        """See `Source.open`: `rest` is the file."""
        return from_rows(rows_at(str(at_home(rest, "problems.source"))), problems)


class HubRows(TaskList):
    """The rows of `hub:OWNER/NAME` or `hub:OWNER/NAME/CONFIGURATION`; nothing of the repository is
    executed."""

    opens = True

    @classmethod
    def open(cls, rest: str, problems: ProblemsConfig) -> Source:
        """See `Source.open`: `rest` names the data set."""
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


def split_in(name: str) -> str:
    """The split that a name says (`train`, `test-00000-of-00001`, `dev_v2`); "" where it says
    none.
    """
    parts = re.split(r"[^a-z]+", name.lower())
    return next((SPLIT_NAMES[part] for part in parts if part in SPLIT_NAMES), "")


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
    """The rows of a file, every text as it is written.

    JSON is read as text: the builder for JSON makes dates of texts and floats of large numbers, and
    adds quotes in columns of several types. Tables have texts alone for the same reason.
    """
    kind = row_format(file.name)
    if kind == ".parquet":
        rows = read("parquet", file)
    elif kind in (".csv", ".tsv"):
        rows = read_table(file, "\t" if kind == ".tsv" else ",")
    else:
        [document] = read("text", file, sample_by="document")
        yield from json_rows(document["text"].removeprefix("\ufeff"), file)
        return
    for number, row in enumerate(rows, 1):
        yield row, f"{file} row {number}"


def json_rows(text: str, file: Path) -> Iterator[Row]:
    """The rows of JSON text: one object a line, or one list of them."""
    whole = text.lstrip().startswith("[")
    texts = [text] if whole else text.split("\n")
    for line, part in enumerate(texts, 1):
        if not part.strip():
            continue
        try:
            value = parse_json(part)
        except ValueError as error:
            where = "" if whole else f" line {line}"
            raise DataError(
                f"{file}{where} is not valid JSON ({error}): write an object a line, or one list"
            ) from error
        for number, row in enumerate(value if whole else [value], 1):
            where = f"{file} row {number}" if whole else f"{file} line {line}"
            if not isinstance(row, dict):
                raise DataError(
                    f"{where} is not a JSON object: write one with a question and an answer"
                )
            yield row, where


def read_table(file: Path, separator: str) -> list[dict[str, Any]]:
    """The rows of a table, all as text: `NA`, `True` and `007` stay what they are."""
    from datasets import Features, Value

    options = {"sep": separator, "keep_default_na": False}
    first = read("csv", file, nrows=1, **options)[0]
    if "__index_level_0__" in first:  # what pandas makes of a first row with more fields
        raise DataError(
            f"{file} row 1 has more fields than the head has columns: "
            "put texts with commas in quotes"
        )
    return read("csv", file, features=Features(dict.fromkeys(first, Value("string"))), **options)


def read(kind: str, file: Path, **options: Any) -> list[dict[str, Any]]:
    """The rows of a file by one of the builders of `datasets`, which unpacks it too. Its cache is
    temporary: nothing is left behind."""
    import datasets

    datasets.disable_progress_bars()
    datasets.logging.set_verbosity(logging.CRITICAL)
    with tempfile.TemporaryDirectory() as cache:
        try:
            rows = datasets.load_dataset(
                kind,
                data_files=glob.escape(str(file)),
                split="train",
                cache_dir=cache,
                keep_in_memory=True,
                **options,
            )
        except (
            OSError,
            ValueError,
            EOFError,
            lzma.LZMAError,
            datasets.exceptions.DatasetsError,
        ) as error:
            why = first_line(error.__cause__ or error)
            raise DataError(f"{file} can't be read ({why}): check the file") from error
        return rows.to_list()


def load_hub(name: str, configuration: str | None, split: str | None, fix: str) -> Any:
    """A data set of the hub, or one split of it; nothing of the repository is executed.

    Raises DataError, ending in `fix`.
    """
    import datasets

    ask_hub_or_cache()
    try:
        return datasets.load_dataset(name, configuration, split=split)
    except (OSError, ValueError, httpx.HTTPError) as error:
        because = offline_because() or reason_of(error)
        raise DataError(
            f"{name} can't be loaded from the hub ({because}): "
            f"check the name and the network, or {fix}"
        ) from error
