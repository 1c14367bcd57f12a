"""Files that outlive a crash: written whole and synced, read with care; and the folders that
commands write, one process at a time.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from .errors import CheckpointError, ConfigError, DataError, suggest_nearest
from .types import Facts, JsonObject

LOCK = ".lock"


# -- writing ---------------------------------------------------------------------------------------


def write_json(path: Path, value: Any) -> None:
    """Write JSON as `write_whole` does."""
    write_whole(path, json.dumps(value, indent=2) + "\n")


def append_line(path: Path, row: Facts) -> None:
    """Add a row to a file of JSON lines."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")


def write_whole(path: Path, text: str) -> None:
    """Write a file so that a reader sees the old one or the new one, never half of it, after a
    power cut too.
    """
    temporary = path.with_name(path.name + ".part")
    temporary.write_text(text, encoding="utf-8")
    put_in_place(temporary, path)


def put_in_place(temporary: Path, path: Path) -> None:
    """Move a finished file to its name: its bytes are on the disk before, its name after."""
    sync_path(temporary)
    os.replace(temporary, path)
    sync_path(path.parent)


def make_folder(folder: Path) -> list[Path]:
    """`mkdir` with parents, whose names are on the disk then. Returns what was missing, the deepest
    first.
    """
    missing = [place for place in (folder, *folder.parents) if not place.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for place in missing:
        sync_path(place.parent)
    return missing


def sync_path(path: Path) -> None:
    """Wait until a file's bytes, or a folder's names, are on the disk."""
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    except OSError as error:
        # Some file systems (FUSE, SMB) can't sync a folder: then there is nothing to wait for.
        if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP, errno.ENOTSUP) or not path.is_dir():
            raise
    finally:
        os.close(number)


def sync_all(folder: Path) -> None:
    """`sync_path` of every file directly in `folder`, of `folder` and of its own name."""
    for path in sorted(folder.iterdir()):
        if path.is_file():
            sync_path(path)
    sync_path(folder)
    sync_path(folder.parent)


# -- reading ---------------------------------------------------------------------------------------


def parse_json(text: str | bytes) -> Any:
    """JSON of somebody else's. Raises ValueError, also where it is nested too deep or no UTF-8."""
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deep") from error


def read_object(path: Path) -> JsonObject:
    """A JSON object. Raises OSError, or ValueError where the file holds anything else."""
    value = parse_json(path.read_bytes())
    if not isinstance(value, dict):
        raise ValueError(f"it holds a {type(value).__name__}, no object")
    return value


def read_lines(path: Path) -> list[JsonObject]:
    """The whole JSON lines of a file that a process may be writing; none where there is no file."""
    content = path.read_bytes() if path.is_file() else b""
    try:
        lines = [parse_json(line) for line in content[: content.rfind(b"\n") + 1].splitlines()]
        if all(isinstance(line, dict) for line in lines):
            return lines
        raise ValueError("it is no object")
    except ValueError as error:
        raise DataError(f"{path} has a line that is no JSON object: remove that line") from error


# -- folders ---------------------------------------------------------------------------------------


CARDS = ("run.json", "results.json", "critic.json", "manifest.json")  # of commands' folders


class Folder:
    """A command's output folder. `lock` keeps other processes out until `release`, or until this
    one dies.

    Of its `files` the first is there from the beginning on, and all are where it holds a run (an
    evaluation, a critic) that isn't to be begun again; the last one is its card. New ones are
    numbered after their `kind`.
    """

    kind = "run"
    files: tuple[str, ...] = ("run.json",)

    def __init__(self, path: Path, *files: str) -> None:
        self.path, self.files = path, files or self.files
        self.card = path / self.files[-1]

    @classmethod
    def new(cls, directory: Path) -> Self:
        """The next one of `directory`, `run-001` and so on; `lock` makes it."""
        taken = numbered_folders(directory, cls.kind)
        number = int(taken[0].name[len(cls.kind) + 1 :]) + 1 if taken else 1
        return cls(directory / f"{cls.kind}-{number:03d}")

    @classmethod
    def find(cls, directory: Path, named: Path | None) -> Self:
        """The one to go on with: the named one, or the newest of `directory`. Raises
        CheckpointError where there is none.
        """
        for path in numbered_folders(directory, cls.kind) if named is None else [named]:
            if (path / cls.files[0]).exists():
                return cls(path)
        fix = "name its folder to go on with, or leave --resume out"
        if named is not None:
            fix = near_folder(named, fix)
        raise CheckpointError(f"--resume found no {cls.files[0]} in {named or directory}: {fix}")

    def check_free(self, flag: str = "--out", fix: str = "add --resume to go on with it") -> None:
        """Raise ConfigError where it isn't to be begun again."""
        if all((self.path / name).exists() for name in self.files):
            raise ConfigError(
                f"{flag} {self.path} holds {self.card.name} already: {fix}, or name another folder"
            )

    def read_card(self) -> JsonObject:
        """What its card says. Raises CheckpointError where that is none of this kind."""
        try:
            card = read_object(self.card)
        except (OSError, ValueError):
            card = {}
        if "config" not in card:
            raise CheckpointError(
                f"{self.card} can't be read as the card of a {self.kind}: restore it, or name "
                "another folder"
            )
        return card

    def write_card(self, card: Facts) -> None:
        write_json(self.card, card)

    def check_same(self, had: Facts, asked: Facts) -> None:
        """Raise ConfigError for the first key of `asked`, nested or dotted, that was begun
        otherwise: what it `had`.
        """
        stored = dict(flatten_keys(had))
        for key, value in flatten_keys(json.loads(json.dumps(asked))):
            if stored.get(key) != value:
                raise ConfigError(
                    f"{key.removeprefix('config.')} is {value!r}, the {self.kind} in {self.path} "
                    f"has {stored.get(key)!r}: use that value, or name another folder"
                )

    def lock(self, flag: str = "--out") -> Self:
        """Make it where it is missing, and be the one process that writes it.

        Raises:
            ConfigError: another process does, which is named, or it can't be written; `flag` says
                what named it.
        """
        try:
            self.made = make_folder(self.path)
            self._file = (self.path / LOCK).open("a+", encoding="utf-8", errors="replace")
        except (OSError, ValueError) as error:  # a NUL in the name is a ValueError
            why = getattr(error, "strerror", None) or error
            raise ConfigError(
                f"{flag} {self.path} can't be written ({why}): name a writable folder"
            ) from error
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                # a network file system without locks: nothing can be known, so nothing is refused
                return self
            holder = self._holder()
            self._file.close()
            raise ConfigError(
                f"{flag} {self.path} is being written by {holder}: "
                "wait for it, end it, or name another folder"
            ) from error
        # Its holder let go between the two calls, and removed it.
        if os.fstat(self._file.fileno()).st_nlink == 0:
            self._file.close()
            raise ConfigError(
                f"{flag} {self.path} was being written by another process just now: try again"
            )
        self._file.truncate(0)
        self._file.write(f"{os.getpid()} {socket.gethostname()}\n")
        self._file.flush()
        return self

    def _holder(self) -> str:
        """The process that has the lock, as far as it has said so."""
        self._file.seek(0)
        number, _, host = self._file.read().strip().partition(" ")
        elsewhere = "" if host == socket.gethostname() else f" on {host}"
        return f"process {number}{elsewhere}" if number else "another process"

    def release(self) -> None:
        """Let another process write here. Folders that were made for this lock and have nothing
        else in them go.
        """
        with suppress(OSError):  # somebody may have removed the whole folder
            (self.path / LOCK).unlink()
            for place in self.made:
                place.rmdir()
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.release()


def numbered_folders(parent: Path, kind: str) -> list[Path]:
    """The folders `KIND-<number>` of `parent`, the highest number first."""
    folders = [path for path in parent.glob(f"{kind}-*") if path.name[len(kind) + 1 :].isdigit()]
    return sorted(folders, key=lambda path: -int(path.name[len(kind) + 1 :]))


def near_folder(path: Path, otherwise: str) -> str:
    """`did you mean DIR?` for the newest run in the folder `path`, or for one beside it of nearly
    its name; else `otherwise`.
    """
    if runs := numbered_folders(path, "run"):
        return f"did you mean {runs[0]}?"
    beside = [str(one) for one in path.parent.glob("*") if one.is_dir() and one != path]
    return suggest_nearest(str(path), beside, otherwise, lambda name: Path(name).name)


def flatten_keys(values: Facts, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted key, plain value) of nested mappings."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from flatten_keys(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def command_line() -> str:
    """What the user typed, for cards."""
    return " ".join([Path(sys.argv[0]).name, *sys.argv[1:]])


def storage_failure(error: OSError) -> str | None:
    """One sentence for what the operating system refused to read or write; None for another kind of
    failure.
    """
    if error.errno is None or isinstance(error, ConnectionError | TimeoutError):
        return None
    name = "a file" if error.filename is None else str(error.filename)
    return (
        f"{name[:200]}: {error.strerror}: free space or name another place; what is finished is "
        "kept, and commands with --resume go on"
    )
