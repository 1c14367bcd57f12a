"""The journal: one finished tree a line, appended and flushed as each ends, readable after any kind
of death.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..errors import DataError
from ..files import near_folder, parse_json, sync_path
from ..types import JsonObject

JOURNAL = "journal.jsonl"


class Journal(Mapping[str, dict[str, Any]]):
    """An append-only JSON Lines file of records with a unique `key`: a mapping of them, and in
    memory keys and places alone.

    Each record is read from the file when it is asked for. Opening it reads what is there, a line
    at a time, and notes where each record is; where a key is there twice, the last one counts. A
    last line without its line end was cut by a crash: it is dropped from the file, and its tree
    counts as not searched. Any other broken line is a DataError: the file is not what was written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        if path.exists():
            with path.open("r+b") as file:
                file.truncate(sum(len(line) for line in file if line.endswith(b"\n")))
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("ab")
        # key -> where its line begins, in bytes
        self._places = {record["key"]: place for place, record in placed(path)}

    def append(self, record: JsonObject) -> None:
        """Write a record with a new `key` and hand it to the operating system, so that a killed
        process keeps it.
        """
        key = record["key"]
        if key in self._places:
            raise DataError(
                f"journal {self.path} has a tree for {key!r} already: each key is searched once"
            )
        place = self._file.tell()
        self._file.write(
            json.dumps(record, separators=(",", ":"), allow_nan=False).encode() + b"\n"
        )
        self._file.flush()
        self._places[key] = place

    def forget(self) -> None:
        """Forget which records are there: for who writes keys that never come twice, and reads
        none.
        """
        self._places.clear()

    def sync(self) -> None:
        """Wait until everything appended is on the disk: no power cut takes it back."""
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file once its bytes and its name are on the disk. What can't be written closes
        it all the same.
        """
        if self._file.closed:
            return
        try:
            self.sync()
            sync_path(self.path.parent)
        finally:
            # After a failed flush `close` would try once more, and raise a second time.
            with suppress(OSError):
                self._file.close()

    def __getitem__(self, key: str) -> JsonObject:
        return record_at(self.path, self._places[key])

    def __contains__(self, key: object) -> bool:
        return key in self._places

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


def record_at(path: Path, place: int) -> JsonObject:
    """The record whose line begins at byte `place` of a journal."""
    with path.open("rb") as file:
        file.seek(place)
        return parse(path, f"at byte {place:,}", file.readline())


def parse(path: Path, where: str, line: bytes) -> JsonObject:
    """One journal line as a record; `where` it is in the file is for messages."""
    try:
        record = parse_json(line)
    except ValueError as error:
        fix = (
            "name a tree journal, or restore this one"
            if where == "line 1"
            else "restore the file or remove that line"
        )
        raise DataError(f"journal {path} {where} is not JSON: {fix}") from error
    if not isinstance(record, dict) or not isinstance(record.get("key"), str):
        raise DataError(f"journal {path} {where} has no key: it is not a tree journal")
    return record


def placed(path: Path) -> Iterator[tuple[int, JsonObject]]:
    """`read`, each record with the byte at which its line begins: `record_at` reads it again."""
    place = 0
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if line.endswith(b"\n"):
                yield place, parse(path, f"line {number}", line)
            place += len(line)


def read(path: Path) -> Iterator[JsonObject]:
    """The records of a journal, without changing it; a half-written last line is left out.

    Raises DataError for a line that is no record.
    """
    return (record for _, record in placed(path))


def journal_of(path: Path) -> Path:
    """A path's journal: the file itself, or the folder's. Raises DataError where there is none."""
    file = path / JOURNAL if path.is_dir() else path
    if not file.is_file():
        fix = near_folder(path, "name a journal or a run's folder")
        raise DataError(f"{path} has no {JOURNAL}: {fix}")
    return file
