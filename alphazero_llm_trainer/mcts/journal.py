"""The journal: one finished tree a line, appended and flushed as each ends, readable after any kind of death."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from ..errors import DataError
from ..files import parse_json, sync
from .columns import IDS, NUMBERS, TEXTS, check_columns


class Records(Mapping[str, dict[str, Any]]):
    """A journal's records by key, each read from the file and checked when it is asked for: in memory are keys and places.

    Where a key is there twice, the last one counts.
    """

    def __init__(self, path: Path, places: Mapping[str, int]) -> None:
        self._path, self._places = path, places

    def __getitem__(self, key: str) -> dict[str, Any]:
        return record_at(self._path, self._places[key])

    def __contains__(self, key: object) -> bool:
        return key in self._places

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


class Journal:
    """An append-only JSON Lines file of records with a unique `key`.

    Opening it reads what is there, a line at a time, and notes where each record is. A last line without its line end was cut
    by a crash: it is dropped from the file, and its tree counts as not searched. Any other broken line is a DataError: the
    file is not what was written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._places: dict[str, int] = {}  # key -> where its line begins, in bytes
        self.records = Records(path, self._places)
        self.dropped_bytes = 0
        if path.exists():
            self.dropped_bytes = drop_half_line(path)
            self._find()
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("ab")

    def _find(self) -> None:
        """Note where each record is."""
        place = 0
        with self.path.open("rb") as file:
            for number, line in enumerate(file, 1):
                self._places[key_of(self.path, f"line {number}", line)] = place
                place += len(line)

    def append(self, record: dict[str, Any]) -> None:
        """Write a record with a new `key` and hand it to the operating system, so that a killed process keeps it."""
        key = record["key"]
        if key in self._places:
            raise DataError(f"journal {self.path} has a tree for {key!r} already: each key is searched once")
        line, place = line_of(record), self._file.tell()
        self._file.write(line)
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
        """Write through to the disk and close."""
        close(self._file, self.path)

    def __contains__(self, key: str) -> bool:
        return key in self._places

    def get(self, key: str) -> dict[str, Any] | None:
        return self.records.get(key)


def line_of(record: Mapping[str, Any]) -> bytes:
    """A record as a line of a journal."""
    return json.dumps(record, separators=(",", ":"), allow_nan=False).encode() + b"\n"


def close(file: IO[bytes], path: Path) -> None:
    """Close a journal's file once its bytes and its name are on the disk. What can't be written closes it all the same.

    A file that is closed stays as it is: its failure was told when it was closed.
    """
    if file.closed:
        return
    try:
        file.flush()
        os.fsync(file.fileno())
        sync(path.parent)
    finally:
        # After a failed flush `close` would try once more, and raise a second time.
        with suppress(OSError):
            file.close()


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


def read(path: Path) -> Iterator[dict[str, Any]]:
    """The records of a journal of trees, without changing it; a half-written last line is left out.

    Raises DataError for a record that is not what a search wrote, naming its line.
    """
    return (record for _, record in placed(path))


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
                    check_record(record)
                except DataError as error:
                    raise DataError(f"journal {path} line {number}: {error}") from error
                yield place, record
            place += len(line)


def check_record(record: Mapping[str, Any]) -> None:
    """Raise DataError for a record whose parts are of another type than a search's. What is missing of an old one may be."""
    problem = record.get("problem", {})
    named = isinstance(problem, dict) and all(isinstance(value, str | int) for value in problem.values())
    if not named or not all(isinstance(problem.get(name, ""), str) for name in ("id", "question", "source")):
        raise DataError("its problem is none: search it again")
    texts = (record.get("ended_by", ""), record.get("split", ""), record.get("question", ""))
    if not all(isinstance(text, str) for text in texts):
        raise DataError("its ended_by, split or question is no text: search it again")
    prompt = record.get("prompt_ids") or []
    if not isinstance(prompt, list) or not IDS.fit(prompt):
        raise DataError("its prompt_ids are no token ids: search it again")
    if not all(isinstance(record.get(name, {}) or {}, dict) for name in ("cost", "served", "search", "pieces")):
        raise DataError("its cost is no mapping: search it again")
    counts, said = (record.get("cost") or {}).values(), [record.get(name) or {} for name in ("search", "pieces")]
    if not NUMBERS.fit(list(counts)):
        raise DataError("its cost holds something else than numbers: search it again")
    if not all(TEXTS.fit((value,)) or NUMBERS.fit((value,)) for one in said for value in one.values()):
        raise DataError("its search or pieces hold something else than texts and numbers: search it again")
    version = record.get("policy_version")
    if isinstance(version, bool) or not isinstance(version or 0, str | int):
        raise DataError("its policy_version is no number: search it again")
    if "tree" in record:
        check_columns(record["tree"])


# -- shards ------------------------------------------------------------------------------------------------------------

JOURNAL, PATTERN = "journal.jsonl", "shard-*.jsonl"


class Shards:
    """A journal in numbered files `shard-00000.jsonl`, ... of `size` records each. Keys are unique over all of them.

    It keeps keys in memory, not records. A full file is closed for good: `closed` then holds its
    `{"name", "records", "bytes", "sha256"}`, which a manifest stores and hands in again to go on.

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
        self.closed: list[dict[str, Any]] = []
        self.keys: set[str] = set()
        self.dropped_bytes = 0
        for entry in closed:
            self._check(dict(entry))
        self._records, self._digest = 0, hashlib.sha256()
        open_files = [path for path in shard_paths(folder) if path.name not in {e["name"] for e in self.closed}]
        for path in open_files:
            self._recover(path, known, last=path == open_files[-1])
        self._path = open_files[-1] if open_files else self._next()
        self._file = self._path.open("ab")

    def _next(self) -> Path:
        return self.folder / f"shard-{len(self.closed):05d}.jsonl"

    def _take(self, path: Path, key: str) -> None:
        if key in self.keys:
            raise DataError(f"journal {path} has a second tree for {key!r}: remove one of its two lines")
        self.keys.add(key)

    def _check(self, entry: dict[str, Any]) -> None:
        """Read a finished file's keys and compare the file with what the manifest says about it."""
        path, digest = self.folder / entry["name"], hashlib.sha256()
        try:
            with path.open("rb") as file:
                for number, line in enumerate(file, 1):
                    digest.update(line)
                    self._take(path, key_of(path, f"line {number}", line))
        except OSError as error:
            raise DataError(f"journal {path} can't be read ({error.strerror}): restore it") from error
        if digest.hexdigest() != entry["sha256"]:
            raise DataError(f"journal {path} is not what its manifest says (sha256 differs): restore it")
        self.closed.append(entry)

    def _recover(self, path: Path, known: Callable[[str, dict[str, Any]], None], last: bool) -> None:
        """Take in a file that no manifest calls finished: the one that was being written, or one just filled."""
        self.dropped_bytes += drop_half_line(path)
        self._records, self._digest = 0, hashlib.sha256()
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                record = parse(path, f"line {number}", line)
                self._take(path, record["key"])
                self._digest.update(line)
                self._records += 1
                known(path.name, record)
        if not last:
            self.closed.append(_entry(path, self._records, self._digest.hexdigest()))

    @property
    def name(self) -> str:
        """The file that the last record went to."""
        return self._path.name

    def append(self, record: dict[str, Any]) -> bool:
        """Write a record with a new `key`, as `Journal.append` does. True when a full file was closed before it.

        Raises DataError for a key that is there already.
        """
        if record["key"] in self.keys:
            raise DataError(f"journal {self.folder} has a tree for {record['key']!r} already: each is searched once")
        full = self._records >= self.size
        if full:
            self._finish()
        line = line_of(record)
        self._file.write(line)
        self._file.flush()
        self._digest.update(line)
        self.keys.add(record["key"])
        self._records += 1
        return full

    def _finish(self) -> None:
        self._close_file()
        self.closed.append(_entry(self._path, self._records, self._digest.hexdigest()))
        self._path, self._records, self._digest = self._next(), 0, hashlib.sha256()
        self._file = self._path.open("ab")

    def _close_file(self) -> None:
        close(self._file, self._path)

    def close(self, finished: bool = False) -> None:
        """Write through to the disk and close; `finished` counts the last file as closed for good."""
        self._close_file()
        if not self._records:
            self._path.unlink()
        elif finished:
            self.closed.append(_entry(self._path, self._records, self._digest.hexdigest()))


def _entry(path: Path, records: int, sha256: str) -> dict[str, Any]:
    return {"name": path.name, "records": records, "bytes": path.stat().st_size, "sha256": sha256}


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


def key_of(path: Path, where: str, line: bytes) -> str:
    """The key of a whole journal line, read off its beginning where it stands there: a tree's line is long."""
    if line.startswith(b'{"key":"') and line.endswith(b"}\n"):
        try:
            return json.JSONDecoder().raw_decode(line[:4096].decode(errors="ignore"), len('{"key":'))[0]
        except ValueError:
            pass
    return parse(path, where, line)["key"]


def drop_half_line(path: Path) -> int:
    """Cut off a last line without its line end, which a crash left; returns how many bytes that were."""
    with path.open("r+b") as file:
        size = end = file.seek(0, os.SEEK_END)
        while end > 0:
            start = max(end - 65536, 0)
            file.seek(start)
            found = file.read(end - start).rfind(b"\n")
            if found >= 0:
                end = start + found + 1
                break
            end = start
        file.truncate(end)
    return size - end
