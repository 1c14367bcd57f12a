"""The journal: one finished tree a line, appended and flushed as each ends, readable after any kind of death."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..errors import DataError
from ..files import parse_json, sync
from .record import Record, check


class Journal(Mapping[str, dict[str, Any]]):
    """An append-only JSON Lines file of records with a unique `key`: a mapping of them, and in memory keys and places alone.

    Each record is read from the file when it is asked for. Opening it reads what is there, a line at a time, and notes where
    each record is; where a key is there twice, the last one counts. A last line without its line end was cut by a crash: it
    is dropped from the file, and its tree counts as not searched. Any other broken line is a DataError: the file is not what
    was written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.dropped_bytes = drop_half_line(path) if path.exists() else 0
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("ab")
        # key -> where its line begins, in bytes
        self._places = {record["key"]: place for place, record in placed(path)}

    def append(self, record: dict[str, Any]) -> None:
        """Write a record with a new `key` and hand it to the operating system, so that a killed process keeps it."""
        key = record["key"]
        if key in self._places:
            raise DataError(f"journal {self.path} has a tree for {key!r} already: each key is searched once")
        place = self._file.tell()
        self._file.write(json.dumps(record, separators=(",", ":"), allow_nan=False).encode() + b"\n")
        self._file.flush()
        self._places[key] = place

    def forget(self) -> None:
        """Forget which records are there: for who writes keys that never come twice, and reads none."""
        self._places.clear()

    def sync(self) -> None:
        """Wait until everything appended is on the disk: no power cut takes it back."""
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file once its bytes and its name are on the disk. What can't be written closes it all the same."""
        if self._file.closed:
            return
        try:
            self.sync()
            sync(self.path.parent)
        finally:
            # After a failed flush `close` would try once more, and raise a second time.
            with suppress(OSError):
                self._file.close()

    def __getitem__(self, key: str) -> dict[str, Any]:
        return record_at(self.path, self._places[key])

    def __contains__(self, key: object) -> bool:
        return key in self._places

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


def record_at(path: Path, place: int) -> dict[str, Any]:
    """The record whose line begins at byte `place` of a journal."""
    try:
        with path.open("rb") as file:
            file.seek(place)
            return parse(path, f"at byte {place:,}", file.readline())
    except OSError as error:
        raise DataError(f"journal {path} can't be read ({error.strerror}): restore it") from error


def parse(path: Path, where: str, line: bytes) -> dict[str, Any]:
    """One journal line as a record; `where` it is in the file is for messages."""
    try:
        record = parse_json(line)
    except ValueError as error:
        raise DataError(f"journal {path} {where} is not JSON: restore the file or remove that line") from error
    if not isinstance(record, dict) or not isinstance(record.get("key"), str):
        raise DataError(f"journal {path} {where} has no key: it is not a tree journal")
    record.pop("sha256", None)  # of a line that 0.5 wrote
    return record


def placed(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """`read`, each record with the byte at which its line begins: `record_at` reads it again."""
    try:
        file = path.open("rb")
    except OSError as error:
        raise DataError(f"journal {path} can't be read ({error.strerror}): check the path") from error
    place = 0
    with file:
        for number, line in enumerate(file, 1):
            if line.endswith(b"\n"):
                record = parse(path, f"line {number}", line)
                try:
                    check(Record, record)
                except DataError as error:
                    raise DataError(f"journal {path} line {number}: {error}") from error
                yield place, record
            place += len(line)


def read(path: Path) -> Iterator[dict[str, Any]]:
    """The records of a journal, without changing it; a half-written last line is left out.

    Raises DataError for a record that is not what a search wrote, naming its line.
    """
    return (record for _, record in placed(path))


# -- shards ------------------------------------------------------------------------------------------------------------

JOURNAL, PATTERN = "journal.jsonl", "shard-*.jsonl"


class Shards:
    """A journal in numbered files `shard-00000.jsonl`, ... of `size` records each. Keys are unique over all of them.

    A full file is closed for good: `closed` then holds its `{"name", "records", "bytes", "sha256"}`, which a manifest stores
    and hands in again to go on.

    Args:
        folder: where the files are.
        size: records a file, at least 1.
        closed: what the manifest says about finished files; each is checked against its hash.
        known: told (file name, record) of everything found in files that the manifest does not call finished.

    Raises:
        DataError: a finished file is missing or changed, a line is broken, or a key is there twice.
    """

    def __init__(
        self,
        folder: Path,
        size: int,
        closed: Sequence[Mapping[str, Any]] = (),
        known: Callable[[str, dict[str, Any]], None] = lambda name, record: None,
    ) -> None:
        self.folder, self.size = folder, size
        self.closed: list[dict[str, Any]] = [dict(entry) for entry in closed]
        self.keys: set[str] = set()
        self.dropped_bytes = 0
        for entry in self.closed:
            path = folder / entry["name"]
            self._take(path, [record["key"] for record in read(path)])
            if entry["sha256"] != digest(path):
                raise DataError(f"journal {path} is not what its manifest says (sha256 differs): restore it")
        # No manifest calls these finished: the one that was being written, or one just filled before it.
        names = {entry["name"] for entry in self.closed}
        unfinished = [path for path in shard_paths(folder) if path.name not in names]
        for path in unfinished:
            if path != unfinished[0]:
                self.close(finished=True)
            self._file = Journal(path)
            self.dropped_bytes += self._file.dropped_bytes
            self._take(path, list(self._file))
            for record in self._file.values():
                known(path.name, record)
        if not unfinished:
            self._file = self._next()

    def _next(self) -> Journal:
        return Journal(self.folder / f"shard-{len(self.closed):05d}.jsonl")

    def _take(self, path: Path, keys: Sequence[str]) -> None:
        for key in keys:
            if key in self.keys:
                raise DataError(f"journal {path} has a second tree for {key!r}: remove one of its two lines")
            self.keys.add(key)

    @property
    def name(self) -> str:
        """The file that the last record went to."""
        return self._file.path.name

    def append(self, record: dict[str, Any]) -> bool:
        """Write a record with a new `key`, as `Journal.append` does. True when a full file was closed before it.

        Raises DataError for a key that is there already.
        """
        if record["key"] in self.keys:
            raise DataError(f"journal {self.folder} has a tree for {record['key']!r} already: each is searched once")
        full = len(self._file) >= self.size
        if full:
            self.close(finished=True)
            self._file = self._next()
        self._file.append(record)
        self.keys.add(record["key"])
        return full

    def close(self, finished: bool = False) -> None:
        """Write through to the disk and close; `finished` counts the last file as closed for good."""
        self._file.close()
        path, records = self._file.path, len(self._file)
        if not records:
            path.unlink()
        elif finished:
            entry = {"name": path.name, "records": records, "bytes": path.stat().st_size, "sha256": digest(path)}
            self.closed.append(entry)


def digest(path: Path) -> str:
    """SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def journals(path: Path) -> list[Path]:
    """The journal files of a path: the file itself, or a folder's journal, else its shards.

    Raises DataError where there is none.
    """
    if path.is_file():
        return [path]
    found = [path / JOURNAL] if (path / JOURNAL).is_file() else shard_paths(path)
    if not found:
        raise DataError(f"--data {path} has no {JOURNAL} and no {PATTERN}: name a journal or a run's folder")
    return found


def shard_paths(folder: Path) -> list[Path]:
    """The folder's shards in the order they were written."""
    return sorted(folder.glob(PATTERN))


def read_shards(folder: Path) -> Iterator[dict[str, Any]]:
    """The records of all shards of a folder, one in memory at a time; a half-written last line is left out.

    Raises DataError when there is no shard.
    """
    paths = shard_paths(folder)
    if not paths:
        raise DataError(f"{folder} holds no {PATTERN}: name a folder that `sample` wrote")
    for path in paths:
        yield from read(path)


def drop_half_line(path: Path) -> int:
    """Cut off a last line without its line end, which a crash left; returns how many bytes that were."""
    size = path.stat().st_size
    with path.open("r+b") as file:
        whole = sum(len(line) for line in file if line.endswith(b"\n"))
        file.truncate(whole)
    return size - whole
