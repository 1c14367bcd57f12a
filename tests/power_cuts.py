"""A disk that forgets: what a power cut leaves of a folder, at every moment of a run.

Nothing is on this disk but what was synced: a file's bytes as they were at its last `fsync`, under the names that its folder
had at that folder's last `fsync`. A name without synced bytes is an empty file, as file systems leave it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest


class ForgetfulDisk:
    """Watches all syncs below `root` and calls `at_cut` after each one, when a cut would leave something new.

    `restore` writes what is left of `root` to another place.
    """

    def __init__(self, root: Path, patch: pytest.MonkeyPatch, at_cut: Callable[[ForgetfulDisk], None]) -> None:
        self.root, self.at_cut = root.resolve(), at_cut
        self.bytes: dict[int, bytes] = {}
        self.names: dict[int, dict[str, tuple[int, bool]]] = {}
        self.held: dict[int, int] = {}  # open, so that no number is given to another file
        self.cuts, self.inside = 0, False
        self.remember_names(self.root)
        patch.setattr(os, "fsync", self.fsync)

    def hold(self, path: Path) -> int:
        number = path.stat().st_ino
        if number not in self.held:
            self.held[number] = os.open(path, os.O_RDONLY)
        return number

    def remember_names(self, folder: Path) -> None:
        entries = [Path(entry) for entry in os.scandir(folder)]
        self.names[self.hold(folder)] = {path.name: (self.hold(path), path.is_dir()) for path in entries}

    def fsync(self, number: int) -> None:
        """In place of `os.fsync`."""
        if self.inside:  # what a check itself writes
            return
        path = Path(os.readlink(f"/proc/self/fd/{number}"))
        if not path.is_relative_to(self.root):
            return
        if path.is_dir():
            self.remember_names(path)
        else:
            self.bytes[self.hold(path)] = path.read_bytes()
        self.cuts += 1
        self.inside = True
        self.at_cut(self)
        self.inside = False

    def restore(self, target: Path) -> Path:
        """The folder as it is after a cut now."""

        def fill(number: int, place: Path) -> None:
            place.mkdir(parents=True, exist_ok=True)
            for name, (inner, is_folder) in self.names.get(number, {}).items():
                if is_folder:
                    fill(inner, place / name)
                else:
                    (place / name).write_bytes(self.bytes.get(inner, b""))

        fill(self.root.stat().st_ino, target)
        return target
