"""The journal: one finished tree a line, appended and flushed as each ends, readable after any kind of death."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..errors import DataError


class Journal:
    """An append-only JSON Lines file of records with a unique `key`.

    Opening it reads what is there. A last line without its line end was cut by a crash: it is dropped from the file,
    and its tree counts as not searched. A broken line elsewhere is a DataError: the file is not what was written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.records: dict[str, dict[str, Any]] = {}
        self.dropped_bytes = 0
        if path.exists():
            self._recover()
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("ab")

    def _recover(self) -> None:
        raw = self.path.read_bytes()
        whole = raw.rfind(b"\n") + 1
        for number, line in enumerate(raw[:whole].splitlines(), 1):
            record = parse(self.path, number, line)
            self.records[record["key"]] = record
        if whole < len(raw):
            self.dropped_bytes = len(raw) - whole
            with self.path.open("r+b") as file:
                file.truncate(whole)

    def append(self, record: dict[str, Any]) -> None:
        """Write a record with a new `key` and hand it to the operating system, so that a killed process keeps it."""
        key = record["key"]
        if key in self.records:
            raise DataError(f"journal {self.path} has a tree for {key!r} already: each key is searched once")
        line = json.dumps(record, separators=(",", ":"), allow_nan=False).encode() + b"\n"
        self._file.write(line)
        self._file.flush()
        self.records[key] = record

    def close(self) -> None:
        """Write through to the disk and close."""
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()

    def __contains__(self, key: str) -> bool:
        return key in self.records

    def get(self, key: str) -> dict[str, Any] | None:
        return self.records.get(key)


def parse(path: Path, number: int, line: bytes) -> dict[str, Any]:
    """One journal line as a record."""
    try:
        record = json.loads(line)
    except ValueError as error:
        raise DataError(f"journal {path} line {number} is not JSON: restore the file or remove that line") from error
    if not isinstance(record, dict) or not isinstance(record.get("key"), str):
        raise DataError(f"journal {path} line {number} has no key: it is not a tree journal")
    return record


def read(path: Path) -> Iterator[dict[str, Any]]:
    """The records of a journal, without changing it; a half-written last line is left out."""
    try:
        file = path.open("rb")
    except OSError as error:
        raise DataError(f"journal {path} can't be read ({error.strerror}): check the path") from error
    with file:
        for number, line in enumerate(file, 1):
            if line.endswith(b"\n"):
                yield parse(path, number, line)
