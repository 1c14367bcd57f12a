"""A disk that forgets: what a power cut leaves of a folder, at every rename and sync of a run.

The harshest disk keeps nothing but what was synced: a file's bytes as they were at its last `fsync`, under the names that its
folder had at that folder's last `fsync`. Real ones keep more of either, so that a cut leaves one of four states: names as
synced or as they were, and of what was not synced nothing, or a part.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

UNSYNCED = ("lost", "torn")  # what becomes of bytes that were written and not synced
NAMES = ("synced", "kept")
CALLS = ("replace", "rename", "link", "mkdir", "unlink", "remove", "rmdir")  # of `os`: they change names

# What is below a folder: the bytes of its files, and None for its folders.
State = dict[str, bytes | None]


class ForgetfulDisk:
    """Watches what changes names below `root` and what is synced there, and calls `at_cut` before each sync and after all of
    it. `left` says what a cut now would leave. Nothing is really synced.
    """

    def __init__(self, root: Path, patch: pytest.MonkeyPatch, at_cut: Callable[[ForgetfulDisk], None]) -> None:
        self.root, self.at_cut = root.resolve(), at_cut
        self.held: dict[int, int] = {}  # descriptors by inode: while they are open no other file gets the number
        self.names: dict[int, dict[str, int]] = {}
        self.look()
        self.synced_names, self.synced = dict(self.names), {one: self.bytes_of(one) for one in self.held}
        self.cuts, self.inside = 0, False
        patch.setattr(os, "fsync", self.fsync)
        for name in CALLS:
            patch.setattr(os, name, self.watched(getattr(os, name)))

    def close(self) -> None:
        """Let the files go."""
        while self.held:
            os.close(self.held.popitem()[1])

    def look(self) -> None:
        """Take in all names."""
        self.names = {}
        for folder, folders, files in os.walk(self.root):
            here = {name: self.hold(os.path.join(folder, name)) for name in (*folders, *files)}
            self.names[self.hold(folder)] = here

    def hold(self, path: str) -> int:
        inode = os.stat(path).st_ino
        if inode not in self.held:
            self.held[inode] = os.open(path, os.O_RDONLY)
        return inode

    def bytes_of(self, inode: int) -> bytes | None:
        """What is in a file now; None for a folder."""
        facts = os.fstat(self.held[inode])
        return None if stat.S_ISDIR(facts.st_mode) else os.pread(self.held[inode], facts.st_size, 0)

    def happened(self) -> None:
        """Something did: this is a moment to cut."""
        if self.inside:  # what a check itself does
            return
        self.inside = True
        try:
            self.look()
            self.cuts += 1
            self.at_cut(self)
        finally:
            self.inside = False

    def watched(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        """A function of `os` whose first or second argument is a path."""

        def call(*given: Any, **named: Any) -> Any:
            result = plain(*given, **named)
            paths = [one for one in given[:2] if isinstance(one, str | os.PathLike)]
            if any(Path(os.path.abspath(path)).is_relative_to(self.root) for path in paths):
                self.happened()
            return result

        return call

    def fsync(self, number: int) -> None:
        """In place of `os.fsync`."""
        inode = os.fstat(number).st_ino
        if self.inside or not Path(os.readlink(f"/proc/self/fd/{number}")).is_relative_to(self.root):
            return
        self.happened()
        if inode in self.names:
            self.synced_names[inode] = self.names[inode]
        elif inode in self.held:  # not one that was removed before it was seen
            self.synced[inode] = self.bytes_of(inode)
        self.happened()

    def left(self, unsynced: str = "lost", names: str = "synced", rng: Random | None = None) -> State:
        """What a cut now would leave of `root`."""
        state: State = {}
        listed = self.synced_names if names == "synced" else self.names

        def fill(folder: int, place: str) -> None:
            for name, inode in listed.get(folder, {}).items():
                state[place + name] = written = self.bytes_of(inode)
                if written is None:
                    fill(inode, f"{place}{name}/")
                    continue
                kept = self.synced.get(inode) or b""
                if unsynced == "torn" and kept != written:
                    kept = written[
                        : (rng or Random(0)).randint(len(kept) if written.startswith(kept) else 0, len(written))
                    ]
                state[place + name] = kept

        fill(self.root.stat().st_ino, "")
        return state


def restored(state: State, target: Path) -> Path:
    """Write a state to `target`."""
    target.mkdir(parents=True, exist_ok=True)
    for name, content in state.items():
        if content is None:
            (target / name).mkdir(exist_ok=True)
        else:
            (target / name).write_bytes(content)
    return target
