"""A sample run's folder: manifest, journal and what was set aside."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import closing
from pathlib import Path

from ..errors import ConfigError, DataError
from ..files import Folder
from ..problems.load import rows_hash
from ..tree.journal import JOURNAL, Journal
from ..types import Facts, JsonObject, Task

FOLDER_FORMAT = 3
MANIFEST, SET_ASIDE = "manifest.json", "set_aside.jsonl"
SYNC_TREES = 100  # so many trees a power cut may take; they are searched again


class SampleFolder(Folder):
    """The output of `sample`.

    `begin` once the policy is known, `write` each record, `end`.

    Args:
        path: the folder.
        identity: what decides the trees (configuration, split, seed); a resumed run's is the same.
        tasks: the run's questions; a resumed run may have more, but must begin with the same.
        resume: go on with what is there; an empty folder is a new run.

    Raises:
        ConfigError: another run is there, or identity or rows differ.
        CheckpointError, DataError: the manifest is broken, or another version's.
    """

    files = (MANIFEST,)

    def __init__(self, path: Path, identity: Facts, tasks: Sequence[Task], resume: bool) -> None:
        super().__init__(path)
        self.facts = {**identity, "questions": len(tasks), "rows": rows_hash(tasks)}
        self.stored = self.read_card() if self.card.exists() else {}
        if not self.stored:
            # A session that ended before its first manifest has left files with nothing in them.
            written = [f for f in path.glob("[!.]*") if f.is_dir() or f.stat().st_size]
            strange = [f.name for f in written if not f.name.startswith(MANIFEST)]
            if strange:
                raise ConfigError(
                    f"--out {path} holds {min(strange)}, and no {MANIFEST} of a sample run: name"
                    " another folder, or remove it"
                )
            return
        if self.stored.get("format") != FOLDER_FORMAT:
            raise DataError(
                f"{self.card} is not of format {FOLDER_FORMAT}: restore it, or name another"
            )
        if not resume:
            self.check_free()
        had = self.stored["questions"]
        if had > len(tasks):
            raise ConfigError(
                f"--num is {len(tasks)}, the run in {path} has {had}: ask for as many or more"
            )
        self.check_same(self.stored, identity)
        if self.stored["rows"] != rows_hash(tasks[:had]):
            raise ConfigError(
                f"the first {had:,} rows have other questions or answers than the run in {path} was"
                " sampled from: restore them, or name another --out"
            )

    def begin(self, policy: Facts) -> None:
        """Open everything for writing with `policy` (name, fingerprint and version of the weights).

        Raises ConfigError when the folder's trees come from other weights, and DataError for a
        broken journal.
        """
        if self.stored:
            self.check_same(self.stored, {"policy": policy})
        self.facts["policy"] = policy
        self.journal, self.aside = Journal(self.path / JOURNAL), Journal(self.path / SET_ASIDE)
        self.write_manifest("running")

    def missing_keys(self, keys: Iterable[str]) -> list[str]:
        """Those of `keys` that have no tree and were not set aside."""
        return [key for key in keys if key not in self.journal and key not in self.aside]

    def write(self, record: JsonObject) -> None:
        """Append a record."""
        self.journal.append(record)
        if len(self.journal) % SYNC_TREES == 0:
            self.journal.sync()

    def end(self, status: str) -> None:
        """Close all files with `status` "complete" or "stopped".

        A process that dies leaves "running".
        """
        with closing(self.aside):  # where a full disk fails the journal too
            self.journal.close()
            self.write_manifest(status)

    def write_manifest(self, status: str) -> None:
        """Readers see the manifest of before or this one, never half of it."""
        counts = {"trees": len(self.journal), "set_aside": len(self.aside)}
        self.write_card({"format": FOLDER_FORMAT, "status": status, **self.facts, **counts})
