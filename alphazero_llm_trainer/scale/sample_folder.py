"""A sample run's folder: manifest, shards, attempts and what was set aside. One process writes it at a time."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from ..config.load import flat
from ..errors import ConfigError, DataError
from ..files import FolderLock, check_space, parse_json, read_sealed, write_sealed
from ..mcts.journal import Journal, Shards, drop_half_line, shard_paths
from ..mcts.tree import COLUMNS
from .questions import Queue
from .totals import Totals

FORMAT = 1
log = logging.getLogger(__name__)
MANIFEST, SET_ASIDE, ATTEMPTS = "manifest.json", "set_aside.jsonl", "attempts.jsonl"
# A machine that dies says nothing about the questions in flight. Twice is a reason to run them alone.
SHARED_DEATHS = 2


class SampleFolder:
    """The output of `sample`; `open` it, `begin` once the policy is known, `write` each record, `end`.

    Args:
        path: the folder, made where it is missing.
        identity: what decides the trees (configuration, source, split, seed, mode); a resumed run's must be the same.
        questions: how many questions the run has; a resumed run may have more.
        shard_trees: records a shard.
        resume: go on with what is there; an empty folder is a new run.

    Raises:
        ConfigError: another run is there, another process writes there, or the identity differs.
        DataError: the manifest or a shard is broken.
    """

    def __init__(self, path: Path, identity: Mapping[str, Any], questions: int, shard_trees: int, resume: bool) -> None:
        self.path, self.shard_trees = path, shard_trees
        self.facts: dict[str, Any] = {**identity, "questions": questions}
        self._lock = FolderLock(path)
        try:
            self._go_on(resume)
        except (ConfigError, DataError):
            self.release()
            raise

    def _go_on(self, resume: bool) -> None:
        """Look at what is there. Raises as the class says."""
        path = self.path
        self.stored = self._read_manifest()
        # A session that ended before its first manifest has left files with nothing in them.
        written = [file for file in (*shard_paths(path), path / SET_ASIDE) if file.exists() and file.stat().st_size]
        taken = self.stored is not None or written
        if taken and not resume:
            raise ConfigError(
                f"--out {path} holds a run already: add --resume to go on with it, or name another folder"
            )
        if taken and self.stored is None:
            raise DataError(f"{path} has shards but no {MANIFEST}: restore it, or name another folder")
        if self.stored is not None:
            same(self.stored, self.facts, path)

    def _read_manifest(self) -> dict[str, Any] | None:
        file = self.path / MANIFEST
        if not file.exists():
            return None
        try:
            stored = read_sealed(file, log.warning)
        except (OSError, ValueError) as error:
            raise DataError(f"{file} is not readable JSON: restore it, or name another folder") from error
        if stored.get("format") != FORMAT:
            raise DataError(f"{file} is not a sample run's manifest of format {FORMAT}: name another folder")
        return stored

    def begin(self, policy: Mapping[str, Any]) -> None:
        """Open everything for writing with `policy` (name, fingerprint and version of the weights).

        Raises ConfigError when the folder's trees come from other weights.
        """
        stored = self.stored or {}
        if stored:
            same({"policy": stored["policy"]}, {"policy": dict(policy)}, self.path)
        self.facts["policy"] = dict(policy)
        self.by_shard = {entry["name"]: Totals.from_dict(entry["totals"]) for entry in stored.get("shards", ())}
        self.shards = Shards(self.path, self.shard_trees, stored.get("shards", ()), self._count)
        left = self.facts["questions"] - len(self.shards.keys)
        check_space(self.path, bytes_of(left, self.path, len(self.shards.keys)), f"a folder of {left:,} more trees")
        self.put_aside = Journal(self.path / SET_ASIDE)
        self.attempts = Attempts(self.path / ATTEMPTS)
        self.write_manifest("running")

    def _count(self, name: str, record: Mapping[str, Any]) -> None:
        self.by_shard.setdefault(name, Totals()).add(record)

    @property
    def totals(self) -> Totals:
        """Sums over all records of the folder."""
        total = Totals()
        for part in self.by_shard.values():
            total.merge(part)
        return total

    def schedule(self, keys: Sequence[str], attempts: int) -> Queue:
        """What is left of `keys`, with what earlier sessions know about them."""
        done = self.shards.keys | self.put_aside.keys()
        failures, suspects = self.attempts.history(self.shards.keys)
        left = [key for key in keys if key not in done]
        return Queue(left, attempts, failures, suspects, self.attempts.failed)

    def write(self, record: dict[str, Any]) -> None:
        """Append a record; a full shard is closed, and the manifest says so."""
        closed = self.shards.append(record)
        self._count(self.shards.name, record)
        if closed:
            check_space(self.path, 0, "the next shard")
            self.write_manifest("running")

    def set_aside(self, key: str, reason: str, attempts: int) -> None:
        """Record that a question gets no tree."""
        if key not in self.put_aside:
            self.put_aside.append({"key": key, "reason": reason, "attempts": attempts})

    def end(self, status: str) -> None:
        """Close all files with `status` "complete" or "stopped". A process that dies leaves "running"."""
        with ExitStack() as closing:  # a full disk fails one of them, and the others are closed all the same
            for last in (self.release, self.attempts.close, self.put_aside.close):
                closing.callback(last)
            self.shards.close(finished=status == "complete")
            self.write_manifest(status)

    def release(self) -> None:
        """Let another process write here."""
        self._lock.release()

    def write_manifest(self, status: str) -> None:
        """Readers see the manifest of before or this one, never half of it."""
        value = {
            "format": FORMAT,
            "status": status,
            **self.facts,
            "columns": list(COLUMNS),
            "shards": [{**entry, "totals": self.by_shard[entry["name"]].as_dict()} for entry in self.shards.closed],
            "totals": self.totals.as_dict(),
            "set_aside": len(self.put_aside),
        }
        write_sealed(self.path / MANIFEST, value)


def bytes_of(trees: int, folder: Path, there: int) -> int:
    """What so many trees take on disk, at the mean size of the `there` ones in a folder's shards; 0 where there are none."""
    return trees * sum(path.stat().st_size for path in shard_paths(folder)) // max(there, 1)


class Attempts:
    """What was tried: an append-only log that tells a resumed run which questions stood near a crash.

    Lines are `{"event": "open"}`, `{"event": "start", "key", "alone"}` (local mode, before a question runs),
    `{"event": "failed", "key", "reason", "alone", "failures"}` and `{"event": "closed"}`.
    """

    def __init__(self, path: Path) -> None:
        self._past: list[dict[str, Any]] = []
        if path.exists():
            drop_half_line(path)
            for number, line in enumerate(path.read_bytes().splitlines(), 1):
                self._past.append(_event(path, number, line))
        self._file = path.open("ab")
        self._write({"event": "open"})

    def _write(self, event: dict[str, Any]) -> None:
        self._file.write(json.dumps(event).encode() + b"\n")
        self._file.flush()

    def start(self, key: str, alone: bool) -> None:
        """This question runs now in this process; written before it does."""
        self._write({"event": "start", "key": key, "alone": alone})

    def failed(self, key: str, reason: str, alone: bool, failures: int) -> None:
        """This question failed; `failures` counts those while it ran alone."""
        self._write({"event": "failed", "key": key, "reason": reason, "alone": alone, "failures": failures})

    def close(self) -> None:
        """The session ends in order: nothing is in flight."""
        try:
            self._write({"event": "closed"})
        finally:
            with suppress(OSError):  # it would write what it could not
                self._file.close()

    def history(self, done: Collection[str]) -> tuple[Counter[str], list[str]]:
        """(failures while alone, suspects) of earlier sessions, questions in `done` left out."""
        failures: Counter[str] = Counter()
        deaths: Counter[str] = Counter()
        suspects: dict[str, None] = {}
        running: dict[str, bool] = {}
        for event in [*self._past, {"event": "open"}]:
            kind, key = event["event"], event.get("key", "")
            if kind == "start":
                running[key] = event["alone"]
            elif kind == "failed":
                running.pop(key, None)
                failures[key] += event["alone"]
                suspects[key] = None
            elif kind == "closed":
                running.clear()
            elif kind == "open":
                # What a session that was not closed had in flight when its process died.
                for one, alone in running.items():
                    if one in done:
                        continue
                    failures[one] += alone
                    deaths[one] += 1
                    if alone or deaths[one] >= SHARED_DEATHS:
                        suspects[one] = None
                running.clear()
        return failures, [key for key in suspects if key not in done]


def _event(path: Path, number: int, line: bytes) -> dict[str, Any]:
    try:
        event = parse_json(line)
        if event["event"] in ("start", "failed"):
            event = {**event, "key": event["key"], "alone": event["alone"]}
        return event
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path} line {number} is not an attempt: remove that line") from error


def same(stored: Mapping[str, Any], asked: Mapping[str, Any], path: Path) -> None:
    """Raise ConfigError for the first key of `asked` that `stored` has otherwise; the number of questions may grow."""
    had, wanted = dict(flat(stored)), dict(flat(json.loads(json.dumps(asked))))
    for key, value in wanted.items():
        if key == "questions":
            if value < had.get(key, 0):
                raise ConfigError(f"--num is {value}, the run in {path} has {had[key]}: ask for as many or more")
        elif had.get(key) != value:
            name = key.removeprefix("config.")
            raise ConfigError(
                f"{name} is {value!r}, the run in {path} has {had.get(key)!r}: use that value, or name another --out"
            )
