"""Files that outlive a crash: written whole and synced, read with care, and one process writes a
folder at a time.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from .errors import ConfigError, DataError

LOCK = ".lock"


# -- writing ---------------------------------------------------------------------------------------


def write_json(path: Path, value: Any) -> None:
    """Write JSON as `write_whole` does."""
    write_whole(path, json.dumps(value, indent=2) + "\n")


def write_whole(path: Path, text: str) -> None:
    """Write a file so that a reader sees the old one or the new one, never half of it, after a
    power cut too.
    """
    temporary = path.with_name(path.name + ".part")
    temporary.write_text(text, encoding="utf-8")
    put_in_place(temporary, path)


def put_in_place(temporary: Path, path: Path) -> None:
    """Move a finished file to its name: its bytes are on the disk before, its name after."""
    sync(temporary)
    os.replace(temporary, path)
    sync(path.parent)


def make_folder(folder: Path, exist_ok: bool = True) -> list[Path]:
    """`mkdir` with parents, whose names are on the disk then. Returns what was missing, the deepest
    first.
    """
    missing = [place for place in (folder, *folder.parents) if not place.exists()]
    folder.mkdir(parents=True, exist_ok=exist_ok)
    for place in missing:
        sync(place.parent)
    return missing


def sync(path: Path) -> None:
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
    """`sync` of every file directly in `folder`, of `folder` and of its own name."""
    for path in sorted(folder.iterdir()):
        if path.is_file():
            sync(path)
    sync(folder)
    sync(folder.parent)


# -- reading ---------------------------------------------------------------------------------------


def parse_json(text: str | bytes) -> Any:
    """JSON of somebody else's. Raises ValueError, also where it is nested too deep or no UTF-8."""
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deep") from error


def read_object(path: Path) -> dict[str, Any]:
    """A JSON object. Raises OSError, or ValueError where the file holds anything else."""
    value = parse_json(path.read_bytes())
    if not isinstance(value, dict):
        raise ValueError(f"it holds a {type(value).__name__}, no object")
    return value


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The whole JSON lines of a file that a process may be writing; none where there is no file."""
    content = path.read_bytes() if path.is_file() else b""
    try:
        lines = [parse_json(line) for line in content[: content.rfind(b"\n") + 1].splitlines()]
        if all(isinstance(line, dict) for line in lines):
            return lines
        raise ValueError("it is no object")
    except ValueError as error:
        raise DataError(f"{path} has a line that is no JSON object: remove that line") from error


# -- one writer ------------------------------------------------------------------------------------


class FolderLock:
    """One process writes `folder` (made where it is missing) from now until `release`, or until it
    dies.

    Raises:
        ConfigError: another process holds it, which is named, or the folder can't be written;
            `flag` says what named it.
    """

    def __init__(self, folder: Path, flag: str = "--out") -> None:
        self.folder = folder
        try:
            self.made = make_folder(folder)
            self._file = (folder / LOCK).open("a+", encoding="utf-8", errors="replace")
        except (OSError, ValueError) as error:  # a NUL in the name is a ValueError
            why = getattr(error, "strerror", None) or error
            raise ConfigError(
                f"{flag} {folder} can't be written ({why}): name a writable folder"
            ) from error
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                # a network file system without locks: nothing can be known, so nothing is refused
                return
            holder = self._holder()
            self._file.close()
            raise ConfigError(
                f"{flag} {folder} is being written by {holder}: "
                "wait for it, end it, or name another folder"
            ) from error
        # Its holder let go between the two calls, and removed it.
        if os.fstat(self._file.fileno()).st_nlink == 0:
            self._file.close()
            raise ConfigError(
                f"{flag} {folder} was being written by another process just now: try again"
            )
        self._file.truncate(0)
        self._file.write(f"{os.getpid()} {socket.gethostname()}\n")
        self._file.flush()

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
        if self._file.closed:
            return
        with suppress(OSError):  # somebody may have removed the whole folder
            (self.folder / LOCK).unlink()
            for place in self.made:
                place.rmdir()
        self._file.close()

    def __enter__(self) -> FolderLock:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()


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
