"""Checkpoints that prove themselves: a manifest of every file, written last, checked before anything is loaded."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..errors import CheckpointError
from ..files import read_object, sync_all, write_json

MANIFEST = "alphazero.json"


def write_manifest(folder: Path, facts: dict[str, Any]) -> None:
    """Seal a checkpoint folder: `facts` and the size and hash of each file. Written in one move, as the last file, once all
    others are on the disk."""
    sync_all(folder)
    files = {path.name: fingerprint(path) for path in sorted(folder.iterdir()) if path.is_file()}
    files.pop(MANIFEST, None)
    write_json(folder / MANIFEST, {**facts, "files": files})


def read_manifest(folder: Path) -> dict[str, Any]:
    """The facts of a sealed checkpoint.

    Raises:
        CheckpointError: no manifest (the process died while saving), or a file that is missing, cut or changed.
    """
    try:
        facts = read_object(folder / MANIFEST)
        files = facts["files"].items()
    except OSError as error:
        raise CheckpointError(
            f"checkpoint {folder} has no {MANIFEST}: it was never finished, use an earlier one"
        ) from error
    except (ValueError, KeyError) as error:
        raise CheckpointError(f"checkpoint {folder} has a broken {MANIFEST}: use an earlier one") from error
    for name, expected in files:
        if not (folder / name).is_file():
            raise CheckpointError(f"checkpoint {folder} lacks {name}: use an earlier one or train again")
        if fingerprint(folder / name) != expected:
            raise CheckpointError(f"checkpoint {folder} has a truncated or changed {name}: use an earlier one")
    return facts


def newest_whole(run: Path, say: Callable[[str], None]) -> tuple[Path | None, dict[str, Any]]:
    """The newest checkpoint whose files are what its manifest says, and its facts; (None, {}) where there is none.

    Newer ones that are broken (a disk's or a power cut's doing) are passed over, and `say` is told.
    """
    for folder in sealed(run):
        try:
            return folder, read_manifest(folder)
        except CheckpointError as error:
            say(f"{error.args[0].partition(': ')[0]}: going on from the one before it")
    return None, {}


def sealed(run: Path) -> list[Path]:
    """The sealed checkpoints of a run folder, the newest first."""
    found = [path.parent for path in run.glob(f"checkpoint-*/{MANIFEST}") if path.parent.name[11:].isdigit()]
    return sorted(found, key=lambda folder: -int(folder.name[11:]))


def fingerprint(path: Path) -> dict[str, Any]:
    """Size in bytes and SHA-256 of a file."""
    with path.open("rb") as file:
        return {"bytes": path.stat().st_size, "sha256": hashlib.file_digest(file, "sha256").hexdigest()}
