"""Checkpoints that prove themselves: a manifest of every file, written last, checked before anything is loaded."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from ..errors import CheckpointError

MANIFEST = "alphazero.json"


def write_manifest(folder: Path, facts: dict[str, Any]) -> None:
    """Seal a checkpoint folder: `facts` and the size and hash of each file. Written in one move, as the last file."""
    files = {path.name: fingerprint(path) for path in sorted(folder.iterdir()) if path.is_file()}
    files.pop(MANIFEST, None)
    write_json(folder / MANIFEST, {**facts, "files": files})


def read_manifest(folder: Path) -> dict[str, Any]:
    """The facts of a sealed checkpoint.

    Raises:
        CheckpointError: no manifest (the process died while saving), or a file that is missing, cut or changed.
    """
    path = folder / MANIFEST
    try:
        facts = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CheckpointError(
            f"checkpoint {folder} has no {MANIFEST}: it was never finished, use an earlier one"
        ) from error
    except ValueError as error:
        raise CheckpointError(f"checkpoint {folder} has a broken {MANIFEST}: use an earlier one") from error
    if not isinstance(facts, dict) or not isinstance(facts.get("files"), dict):
        raise CheckpointError(f"checkpoint {folder} has a broken {MANIFEST}: use an earlier one")
    for name, expected in facts["files"].items():
        file = folder / name
        if not file.is_file():
            raise CheckpointError(f"checkpoint {folder} lacks {name}: use an earlier one or train again")
        if fingerprint(file) != expected:
            raise CheckpointError(f"checkpoint {folder} has a truncated or changed {name}: use an earlier one")
    return facts


def newest(run: Path) -> Path | None:
    """The newest sealed checkpoint of a run folder; unsealed ones were cut off by a crash and don't count."""
    sealed = [path.parent for path in run.glob(f"checkpoint-*/{MANIFEST}") if path.parent.name[11:].isdigit()]
    return max(sealed, key=lambda folder: int(folder.name[11:]), default=None)


def fingerprint(path: Path) -> dict[str, Any]:
    """Size in bytes and SHA-256 of a file."""
    with path.open("rb") as file:
        return {"bytes": path.stat().st_size, "sha256": hashlib.file_digest(file, "sha256").hexdigest()}


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The whole JSON lines of a file that a process may be writing; none where there is no file."""
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    try:
        return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]
    except ValueError as error:
        raise CheckpointError(f"{path} has a line that is not JSON: remove that line") from error


def write_json(path: Path, value: Any) -> None:
    """Write JSON as `write_whole` does."""
    write_whole(path, json.dumps(value, indent=2) + "\n")


def write_whole(path: Path, text: str) -> None:
    """Write a file so that a reader sees the old one or the new one, never half of it."""
    temporary = path.with_name(path.name + ".part")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)
