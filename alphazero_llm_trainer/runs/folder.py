"""A run's folder: what is in it, and its checkpoints."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterable
from functools import reduce
from operator import getitem
from pathlib import Path

from ..config.load import Config, validate_config
from ..config.sections import MOST_COUNT
from ..errors import CheckpointError
from ..files import (
    Folder,
    append_line,
    flatten_keys,
    numbered_folders,
    read_lines,
    read_object,
    sync_all,
    write_json,
    write_whole,
)
from ..types import JsonObject

# Keys of before, and the only value with which a run goes on.
GONE_KEYS = {
    ("train", "critic_rounds"): 2,
    ("train", "critic", "least_outcomes"): 3,
    ("search", "verify", "revisit"): False,
}
MANIFEST = "alphazero.json"  # a checkpoint's last file: a folder without it was never finished


class RunFolder(Folder):
    """Paths inside one run's folder; nothing is written elsewhere."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.journal = path / "journal.jsonl"
        self.metrics = path / "metrics.jsonl"
        self.student = path / "student"  # the final student, as a plain Hugging Face folder
        self.adapter = path / "adapter"  # its LoRA adapter, where one was trained
        self.best = path / "best.safetensors"

    def config(self) -> Config:
        """The configuration that the run was started with, without what has no key any more and
        changed nothing in it.
        """
        config = self.read_card()["config"]
        try:
            config["train"]["critic"].pop("head", None)  # of another command
            # Of a run that had no such bound.
            config["train"].setdefault("buffer_passes", MOST_COUNT)
            for entry in config["models"].values():
                if entry.get("use_liger_kernel") is False:
                    del entry["use_liger_kernel"]
                for name in ("vocabulary", "tied", "plain", "download_gb"):  # of a forecast
                    (entry.get("shape") or {}).pop(name, None)
            for (*sections, name), usual in GONE_KEYS.items():
                section = reduce(getitem, sections, config)
                if section.get(name) == usual:
                    del section[name]
        except (AttributeError, KeyError, TypeError):
            pass  # what is wrong with it is said below
        return validate_config(config)

    def check_named(self, asked: Config, named: Iterable[str]) -> None:
        """Raise ConfigError where `asked` has another value than the run for one of the keys that
        are `named`, or below one.
        """
        had, wanted = (config.model_dump(mode="json") for config in (self.config(), asked))
        sections = tuple(f"{key}." for key in named)
        self.check_same(
            had, {k: v for k, v in flatten_keys(wanted) if f"{k}.".startswith(sections)}
        )

    # -- figures -----------------------------------------------------------------------------------

    def append_metrics(self, line: JsonObject) -> None:
        append_line(self.metrics, line)

    def read_metrics(self) -> list[JsonObject]:
        """All whole lines; one that a crash cut is left out."""
        return read_lines(self.metrics)

    def forget_metrics_from(self, number: int) -> None:
        """Drop the lines of rounds that will be trained again."""
        kept = (line for line in self.read_metrics() if line.get("round", -1) < number)
        write_whole(self.metrics, "".join(json.dumps(line) + "\n" for line in kept))

    # -- checkpoints -------------------------------------------------------------------------------

    def checkpoint(self, done: int) -> Path:
        """The folder of the checkpoint after so many questions; of `sft`, updates."""
        return self.path / f"checkpoint-{done}"

    def newest_checkpoint(self, say: Callable[[str], None]) -> tuple[Path | None, JsonObject]:
        """The newest checkpoint whose files are what its manifest says, and its facts; (None, {})
        where there is none.

        Newer ones that are broken (a disk's or a power cut's doing) are passed over, which `say`
        gets a line about.
        """
        for folder in numbered_folders(self.path, "checkpoint"):
            if not (folder / MANIFEST).exists():
                continue
            try:
                return folder, read_manifest(folder)
            except CheckpointError as error:
                say(f"{error}: going on from the one before it")
        return None, {}

    def keep_newest(self, newest: Path, count: int) -> None:
        """Remove all checkpoints but `newest` and the `count` - 1 before it. Those after it are
        broken: a run went on from one before them.
        """
        folders = numbered_folders(self.path, "checkpoint")
        at = folders.index(newest)
        for folder in [*folders[:at], *folders[at + count :]]:
            shutil.rmtree(folder)


def write_manifest(folder: Path, facts: JsonObject) -> None:
    """Seal a checkpoint folder: `facts` and the size and hash of each file. Written in one move, as
    the last file, once all others are on the disk.
    """
    sync_all(folder)
    files = {
        path.name: file_fingerprint(path) for path in sorted(folder.iterdir()) if path.is_file()
    }
    files.pop(MANIFEST, None)
    write_json(folder / MANIFEST, {**facts, "files": files})


def read_manifest(folder: Path) -> JsonObject:
    """The facts of a sealed checkpoint. Raises CheckpointError where a file is missing, cut or
    changed.
    """
    try:
        facts = read_object(folder / MANIFEST)
        changed = [
            name
            for name, expected in facts["files"].items()
            if file_fingerprint(folder / name) != expected
        ]
    except (OSError, ValueError, KeyError):
        changed = [MANIFEST]
    if changed:
        raise CheckpointError(f"checkpoint {folder} has a missing, cut or changed {changed[0]}")
    return facts


def file_fingerprint(path: Path) -> JsonObject:
    """Size in bytes and SHA-256 of a file."""
    with path.open("rb") as file:
        return {
            "bytes": path.stat().st_size,
            "sha256": hashlib.file_digest(file, "sha256").hexdigest(),
        }
