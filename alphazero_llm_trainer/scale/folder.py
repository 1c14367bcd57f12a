"""A sample run's folder: manifest, journal and what was set aside. One process writes it at a time."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from ..config.load import flat
from ..errors import ConfigError, DataError
from ..files import FolderLock, check_space, read_object, write_json
from ..mcts.journal import JOURNAL, Journal
from ..problems.load import rows_hash
from ..types import Task

FORMAT = 2
MANIFEST, SET_ASIDE = "manifest.json", "set_aside.jsonl"
OWN = (JOURNAL, SET_ASIDE, MANIFEST)  # and what they are called while they are written
SYNC_TREES = 100  # so many trees a power cut may take; they are searched again


class SampleFolder:
    """The output of `sample`; `begin` once the policy is known, `write` each record, `end`.

    Args:
        path: the folder, made where it is missing.
        identity: what decides the trees (configuration, split, seed); a resumed run's must be the same.
        tasks: the run's questions; a resumed run may have more, but must begin with the same.
        resume: go on with what is there; an empty folder is a new run.

    Raises:
        ConfigError: another run is there, another process writes there, or identity or rows differ.
        DataError: the manifest is broken.
    """

    def __init__(self, path: Path, identity: Mapping[str, Any], tasks: Sequence[Task], resume: bool) -> None:
        self.path, self.tasks = path, tasks
        self.facts: dict[str, Any] = {**identity, "questions": len(tasks), "rows": rows_hash(tasks)}
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
        taken = self.stored or any(bytes_of(path / name) for name in (JOURNAL, SET_ASIDE))
        if taken and not resume:
            raise ConfigError(
                f"--out {path} holds a run already: add --resume to go on with it, or name another folder"
            )
        strange = [one.name for one in path.iterdir() if not one.name.startswith((".", *OWN))]
        if not taken and strange:
            raise ConfigError(
                f"--out {path} holds {min(strange)}, which `sample` didn't write: name another folder, or remove it"
            )
        if taken and not self.stored:
            raise DataError(f"{path} has a {JOURNAL} but no {MANIFEST}: restore it, or name another folder")
        if self.stored:
            had = self.stored["questions"]
            same(self.stored, {key: value for key, value in self.facts.items() if key != "rows"}, path)
            # An older version's folder doesn't say which rows it has.
            if self.stored.get("rows") not in (None, rows_hash(self.tasks[:had])):
                raise ConfigError(
                    f"the first {had:,} rows have other questions or answers than the run in {path} was sampled from:"
                    " restore them, or name another --out"
                )

    def _read_manifest(self) -> dict[str, Any]:
        file = self.path / MANIFEST
        if not file.exists():
            return {}
        try:
            stored = read_object(file)
        except (OSError, ValueError) as error:
            raise DataError(f"{file} is not readable JSON: restore it, or name another folder") from error
        if stored.get("format") != FORMAT:
            raise DataError(f"{file} is not a sample run's manifest of format {FORMAT}: name another folder")
        return stored

    def begin(self, policy: Mapping[str, Any]) -> None:
        """Open everything for writing with `policy` (name, fingerprint and version of the weights).

        Raises ConfigError when the folder's trees come from other weights, and DataError for a broken journal.
        """
        if self.stored:
            same({"policy": self.stored["policy"]}, {"policy": dict(policy)}, self.path)
        self.facts["policy"] = dict(policy)
        self.journal, self.aside = Journal(self.path / JOURNAL), Journal(self.path / SET_ASIDE)
        there = len(self.journal)
        left = self.facts["questions"] - there
        needed = left * bytes_of(self.path / JOURNAL) // max(there, 1)
        check_space(self.path, needed, f"a folder of {left:,} more trees")
        self.write_manifest("running")

    def left(self, keys: Iterable[str]) -> list[str]:
        """Those of `keys` that have no tree and were not set aside."""
        return [key for key in keys if key not in self.journal and key not in self.aside]

    def write(self, record: dict[str, Any]) -> None:
        """Append a record."""
        self.journal.append(record)
        if len(self.journal) % SYNC_TREES == 0:
            self.journal.sync()
            check_space(self.path, 0, f"the next {SYNC_TREES} trees")

    def set_aside(self, key: str, reason: str, attempts: int) -> None:
        """Record that a question gets no tree."""
        self.aside.append({"key": key, "reason": reason, "attempts": attempts})

    def end(self, status: str) -> None:
        """Close all files with `status` "complete" or "stopped". A process that dies leaves "running"."""
        with ExitStack() as closing:  # a full disk fails one of them, and the others are closed all the same
            closing.callback(self.release)
            closing.callback(self.aside.close)
            self.journal.close()
            self.write_manifest(status)

    def release(self) -> None:
        """Let another process write here."""
        self._lock.release()

    def write_manifest(self, status: str) -> None:
        """Readers see the manifest of before or this one, never half of it."""
        counts = {"trees": len(self.journal), "set_aside": len(self.aside)}
        write_json(self.path / MANIFEST, {"format": FORMAT, "status": status, **self.facts, **counts})


def bytes_of(file: Path) -> int:
    """A file's size; 0 where it is missing."""
    return file.stat().st_size if file.exists() else 0


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
