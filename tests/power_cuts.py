"""A disk that forgets: what a power cut leaves of a folder, at every write, rename and sync of a run.

The harshest disk keeps nothing but what was synced: a file's bytes as they were at its last `fsync`, under the names that its
folder had at that folder's last `fsync`. Real ones keep more of either, so that a cut leaves one of eight states: names as
synced or as they were, and of what was not synced nothing, all, a part, or zeros in its place.
"""

from __future__ import annotations

import builtins
import io
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from random import Random
from typing import Any

import pytest

UNSYNCED = ("lost", "kept", "torn", "zeros")  # what becomes of bytes that were written and not synced
NAMES = ("synced", "kept")
REMOVALS = ("unlink", "remove", "rmdir")
CALLS = ("replace", "rename", "link", "mkdir", *REMOVALS)  # of `os`: they change names
LARGE = 1 << 16  # bytes of a file that is linked where nothing changes it, not written again

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
            patch.setattr(os, name, self.watched(getattr(os, name), removes=name in REMOVALS))
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

    def before(self) -> None:
        """Something is about to be written or named."""

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

    def watched(self, plain: Callable[..., Any], removes: bool) -> Callable[..., Any]:
        """A function of `os` whose first or second argument is a path."""

        def call(*given: Any, **named: Any) -> Any:
            ours = any(map(self.below, given[:2]))
            if ours and not removes:
                self.before()
            result = plain(*given, **named)
            if ours:
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
        self.before()
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


class RefusingDisk(ForgetfulDisk):
    """A disk that takes no write, new name or sync below `root` any more from operation `first` on, counted from 0.

    With `error` None nothing is refused: somebody removes the whole folder then.
    """

    def __init__(self, root: Path, patch: pytest.MonkeyPatch, first: int, error: int | None) -> None:
        self.done, self.first, self.error = 0, first, error
        super().__init__(root, patch, lambda disk: None)

    def before(self) -> None:
        if self.inside:
            return
        self.done += 1
        if self.error is not None and self.done > self.first:
            raise OSError(self.error, os.strerror(self.error), str(self.root))
        if self.error is None and self.done == self.first + 1:
            self.inside = True
            shutil.rmtree(self.root)
            self.inside = False

    def happened(self) -> None:
        pass

    def fsync(self, number: int) -> None:
        if Path(os.readlink(f"/proc/self/fd/{number}")).is_relative_to(self.root):
            self.before()


class _Watched(io.FileIO):
    disk: ForgetfulDisk

    def write(self, data: Any, /) -> int:
        self.disk.before()
        count = super().write(data)
        self.disk.happened()
        return count

    def truncate(self, size: int | None = None, /) -> int:
        self.disk.before()
        count = super().truncate(size)
        self.disk.happened()
        return count


def restored(state: State, target: Path, pool: Path | None = None) -> Path:
    """Write a state to `target`. With `pool` its large files are links: they must not be changed."""
    target.mkdir(parents=True, exist_ok=True)
    for name, content in state.items():
        place = target / name
        if content is None:
            place.mkdir(exist_ok=True)
        elif pool is None or len(content) < LARGE:
            place.write_bytes(content)
        else:
            kept = pool / f"{hash(content)}-{len(content)}"
            if not kept.exists():
                kept.write_bytes(content)
            os.link(kept, place)
    return target


class Cuts:
    """Every state that a power cut may leave of a run in `root`: each is checked once, some are kept to be gone on from.

    Args:
        scratch: where states are written, and removed again.
        check: raises where something that was reported as done is not in the folder it is given, or can't be gone on from.
        reported: all that was reported so far; a state that was checked is checked again once that has changed.
        keep: how many states are kept, spread over the run at random.
        most: how many of the eight states of a moment are tried, drawn at random; the harshest is one of them.
    """

    def __init__(
        self, scratch: Path, check: Callable[[Path], None], reported: Callable[[], object], keep: int, rng: Random,
        most: int = len(UNSYNCED) * len(NAMES),
    ) -> None:  # fmt: skip
        self.scratch, self.check, self.reported, self.keep, self.rng, self.most = (
            scratch,
            check,
            reported,
            keep,
            rng,
            most,
        )
        self.tried = 0  # moments and kinds of loss
        self.wrong: list[str] = []
        self.kept: list[State] = []
        self.seen: set[int] = set()
        (scratch / "pool").mkdir()

    @property
    def states(self) -> int:
        """How many different states were checked."""
        return len(self.seen)

    @contextmanager
    def watching(self, root: Path) -> Iterator[pytest.MonkeyPatch]:
        """`root` is a forgetful disk meanwhile."""
        root.mkdir()
        with pytest.MonkeyPatch.context() as patch:
            disk = ForgetfulDisk(root, patch, self.look)
            try:
                yield patch
                disk.happened()  # what is there once the run has returned
            finally:
                disk.close()

    def look(self, disk: ForgetfulDisk) -> None:
        kinds = list(product(UNSYNCED, NAMES))
        for unsynced, names in [kinds[0], *self.rng.sample(kinds[1:], self.most - 1)]:
            state = disk.left(unsynced, names, self.rng)
            self.tried += 1
            known = hash((frozenset(state.items()), self.reported()))
            if known in self.seen:
                continue
            self.seen.add(known)
            place = restored(state, self.scratch / "cut", self.scratch / "pool")
            try:
                self.check(place)
            except Exception as error:  # noqa: BLE001 - whatever a resume would end with is the finding
                self.wrong.append(f"cut {disk.cuts}, {unsynced}, names {names}: {type(error).__name__}: {error}"[:400])
            shutil.rmtree(place)
            # Each state seen so far has the same chance to be among the kept ones.
            at = len(self.kept) if len(self.kept) < self.keep else self.rng.randrange(len(self.seen))
            if at < self.keep:
                self.kept[at : at + 1] = [state]
