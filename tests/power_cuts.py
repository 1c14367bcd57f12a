"""A disk that forgets: what a power cut leaves of a folder, at every write, rename and sync of a run.

The harshest disk keeps nothing but what was synced: a file's bytes as they were at its last `fsync`, under the names that its
folder had at that folder's last `fsync`. Real ones keep more of either, so that a cut leaves one of eight states: names as
synced or as they were, and of what was not synced nothing, all, a part, or zeros in its place.
"""

from __future__ import annotations

import builtins
import io
import os
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

UNSYNCED = ("lost", "kept", "torn", "zeros")  # what becomes of bytes that were written and not synced
NAMES = ("synced", "kept")
CALLS = ("replace", "rename", "link", "mkdir", "unlink", "remove", "rmdir")  # of `os`: they change names

# What is below a folder: the bytes of its files, and None for its folders.
State = dict[str, bytes | None]


class ForgetfulDisk:
    """Watches all that happens below `root`, and calls `at_cut` after each write, rename, removal and sync there.

    What a library writes by itself is seen at the next of those. `left` says what a cut now would leave, `restore` writes it.
    """

    def __init__(self, root: Path, patch: pytest.MonkeyPatch, at_cut: Callable[[ForgetfulDisk], None]) -> None:
        self.root, self.at_cut = root.resolve(), at_cut
        self.synced: dict[int, bytes] = {}
        self.written: dict[int, bytes] = {}
        self.stamps: dict[int, tuple[int, int]] = {}  # size and time of `written`
        self.synced_names: dict[int, dict[str, tuple[int, bool]]] = {}
        self.names: dict[int, dict[str, tuple[int, bool]]] = {}
        self.held: dict[int, int] = {}  # open, so that no number is given to another file
        self.cuts, self.inside = 0, False
        self.look()
        self.synced_names = dict(self.names)
        self.synced = dict(self.written)
        self.plain_sync, self.plain_open = os.fsync, io.open
        patch.setattr(os, "fsync", self.fsync)
        for name in CALLS:
            patch.setattr(os, name, self.watched(getattr(os, name)))
        patch.setattr(io, "open", self.open)
        patch.setattr(builtins, "open", self.open)

    def close(self) -> None:
        """Let the files go."""
        for number in self.held.values():
            os.close(number)
        self.held.clear()

    # -- what happens ----------------------------------------------------------------------------------------------------

    def below(self, path: Any) -> bool:
        return isinstance(path, str | os.PathLike) and Path(os.path.abspath(path)).is_relative_to(self.root)

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
            if any(map(self.below, given[:2])):
                self.happened()
            return result

        return call

    def fsync(self, number: int) -> None:
        """In place of `os.fsync`. Nothing is synced: what this disk keeps is in memory."""
        path = Path(os.readlink(f"/proc/self/fd/{number}"))
        if self.inside or not path.is_relative_to(self.root):
            return
        self.look()
        inode = os.fstat(number).st_ino
        if path.is_dir():
            self.synced_names[inode] = self.names[inode]
        elif inode in self.held:  # not one that was removed before it was seen
            self.read(inode)
            self.synced[inode] = self.written[inode]
        self.happened()

    def open(
        self, file: Any, mode: str = "r", buffering: int = -1, encoding: Any = None, errors: Any = None,
        newline: Any = None, closefd: bool = True, opener: Any = None,
    ) -> Any:  # fmt: skip
        """In place of `open`: a file of `root` that is written tells of each write."""
        if self.inside or not set(mode) & set("wax+") or not self.below(file):
            return self.plain_open(file, mode, buffering, encoding, errors, newline, closefd, opener)
        raw = _Watched(file, mode.replace("b", "").replace("t", ""), closefd, opener)
        raw.disk = self
        self.happened()
        if buffering == 0:
            return raw
        buffered = io.BufferedRandom(raw) if "+" in mode else io.BufferedWriter(raw)
        return buffered if "b" in mode else io.TextIOWrapper(buffered, encoding, errors, newline)

    # -- what is there ---------------------------------------------------------------------------------------------------

    def look(self) -> None:
        """Take in all names, and the bytes of files that have changed."""
        self.names, folders = {}, [str(self.root)]
        while folders:
            folder = folders.pop()
            here: dict[str, tuple[int, bool]] = {}
            for entry in os.scandir(folder):
                is_folder = entry.is_dir(follow_symlinks=False)
                inode = self.hold(entry.path)
                here[entry.name] = (inode, is_folder)
                if is_folder:
                    folders.append(entry.path)
                    continue
                facts = entry.stat()
                if self.stamps.get(inode) != (facts.st_size, facts.st_mtime_ns):
                    self.read(inode)
            self.names[self.hold(folder)] = here

    def hold(self, path: str) -> int:
        number = os.stat(path).st_ino
        if number not in self.held:
            self.held[number] = os.open(path, os.O_RDONLY)
        return number

    def read(self, inode: int) -> None:
        number = self.held[inode]
        facts = os.fstat(number)
        self.written[inode] = os.pread(number, facts.st_size, 0)
        self.stamps[inode] = (facts.st_size, facts.st_mtime_ns)

    # -- what is left ----------------------------------------------------------------------------------------------------

    def left(self, unsynced: str = "lost", names: str = "synced", rng: Random | None = None) -> State:
        """What a cut now would leave of `root`."""
        state: State = {}
        listed = self.synced_names if names == "synced" else self.names

        def fill(folder: int, place: str) -> None:
            for name, (inode, is_folder) in listed.get(folder, {}).items():
                state[place + name] = None if is_folder else self.bytes_left(inode, unsynced, rng)
                if is_folder:
                    fill(inode, f"{place}{name}/")

        fill(self.root.stat().st_ino, "")
        return state

    def bytes_left(self, inode: int, unsynced: str, rng: Random | None) -> bytes:
        synced, written = self.synced.get(inode, b""), self.written[inode]
        if unsynced == "lost" or synced == written:
            return synced
        if unsynced == "kept":
            return written
        start = len(synced) if written.startswith(synced) else 0
        if unsynced == "zeros":
            return written[:start] + bytes(len(written) - start)
        return written[: (rng or Random(0)).randint(start, len(written))]

    def restore(self, target: Path) -> Path:
        """The folder after a cut now, on the harshest disk."""
        return restored(self.left(), target)


class _Watched(io.FileIO):
    disk: ForgetfulDisk

    def write(self, data: Any, /) -> int:
        count = super().write(data)
        self.disk.happened()
        return count

    def truncate(self, size: int | None = None, /) -> int:
        count = super().truncate(size)
        self.disk.happened()
        return count


def restored(state: State, target: Path) -> Path:
    """Write a state to `target`."""
    target.mkdir(parents=True, exist_ok=True)
    for name, content in state.items():
        if content is None:
            (target / name).mkdir(exist_ok=True)
        else:
            (target / name).write_bytes(content)
    return target
