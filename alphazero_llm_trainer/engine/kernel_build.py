"""The C kernels as a loaded library: compiled once by the user's own compiler and kept in a private cache folder.

A library is kept under a name that says what it was built from (`_build_key`) and what it is (a digest of its bytes), so
that a truncated file is never loaded: that would be a bus error, not an exception.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import logging
import os
import platform
import re
import shlex
import shutil
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from ..config.cache import cache_folder

SOURCES = Path(__file__).parent / "kernels"
COMPILE_SECONDS = 300  # 2 on a quiet machine; a busy one, and sanitizers, may take a hundred times that
KEPT = 8  # libraries in the cache folder, the last used ones: each source, compiler, processor and set of flags has one
PART, ABANDONED_SECONDS = "part-", 3600  # half-written libraries in the cache folder; older ones' writers were killed

log = logging.getLogger(__name__)


class _KernelError(Exception):
    """There is no compiler, or it fails."""


@dataclass(frozen=True, slots=True)
class Kernels:
    """The loaded `library`, or None where torch computes instead; `status` says in one line which, and why."""

    library: ctypes.CDLL | None
    status: str


@functools.cache
def kernels() -> Kernels:
    """The kernels of this process, loaded once: from the cache folder, else compiled (about 2 s of a core)."""
    return load_kernels()


def kernel_status() -> str:
    """One line for `info`: who compiled the kernels and where they are kept, or what failed and what computes instead."""
    return kernels().status


def load_kernels() -> Kernels:
    """Find the kernels in the cache folder, or compile them and keep them there.

    Environment: CC names the compiler (default: cc), ALPHAZERO_KERNEL_FLAGS adds flags, ALPHAZERO_CACHE_DIR is the folder
    that the cache folder lies in. A folder that can't be written, and one that isn't the user's alone, are not used: then
    every process compiles for itself, in a temporary folder.
    """
    try:
        command = _compile_command()
        key, compiler = _build_key(command)
        folder, reason = _usable_folder(key)
        library = None if folder is None else _load_kept(folder, key)
        if library is None:
            with tempfile.TemporaryDirectory(prefix="alphazero-kernels-") as scratch:
                built = Path(scratch) / "kernels.so"
                _run_compiler([*command, *_sources(".c"), "-o", str(built), "-lm"])
                if folder is not None:
                    reason = _keep(built, folder, key)
                    library = _load_kept(folder, key)
                if library is None:
                    library = ctypes.CDLL(str(built))  # what is loaded stays when its file goes
    except (_KernelError, OSError) as error:
        return Kernels(None, f"torch instead of C: {error}")
    kept = f"for this process alone: {reason}" if reason else f"kept in {folder}"
    return Kernels(library, f"C, compiled by {compiler}, {kept}")


# -- compiling ---------------------------------------------------------------------------------------------------------


def _compile_command() -> list[str]:
    """The compiler and its flags, without files."""
    named = os.environ.get("CC") or "cc"
    try:
        program, *options = shlex.split(named)
        extra = shlex.split(os.environ.get("ALPHAZERO_KERNEL_FLAGS", ""))
    except ValueError as error:
        raise _KernelError(f"CC or ALPHAZERO_KERNEL_FLAGS has no closing quotation mark ({error})") from error
    path = shutil.which(program)
    if path is None:
        raise _KernelError(f"there is no C compiler {named!r}: install one (gcc or clang), or name it in CC")
    tuned = "-mcpu=native" if platform.machine() in ("arm64", "aarch64") else "-march=native"
    flags = ["-O2", "-ftree-vectorize", tuned, "-ffp-contract=fast", "-fno-math-errno", "-DNDEBUG"]
    return [path, *options, *flags, "-shared", "-fPIC", "-pthread", *extra]


def _build_key(command: list[str]) -> tuple[str, str]:
    """A key of all that the library depends on, and the compiler as people know it (its path and version).

    The macros that the compiler defines for the sources say its version, the processor's features that `native` stands
    for, and the C library's version.
    """
    macros = _run_compiler([*command, "-dM", "-E", *_sources(".c")])
    content = hashlib.sha256()
    for part in (os.path.realpath(command[0]), *command[1:], macros):
        content.update(part.encode() + b"\0")
    for source in _sources(".c", ".h"):
        content.update(Path(source).read_bytes() + b"\0")
    version = re.search(r'#define __VERSION__ "(.*)"', macros)
    return content.hexdigest()[:32], f"{command[0]} {version[1]}" if version else command[0]


def _sources(*suffixes: str) -> list[str]:
    return sorted(str(path) for path in SOURCES.iterdir() if path.suffix in suffixes)


def _run_compiler(command: list[str]) -> str:
    """What it prints. Raises _KernelError with its first complaint."""
    try:
        return subprocess.run(
            command, check=True, capture_output=True, text=True, errors="replace", timeout=COMPILE_SECONDS
        ).stdout
    except subprocess.CalledProcessError as error:
        lines = [line.strip() for line in error.stderr.splitlines() if line.strip()]
        complaint = next(
            (line for line in lines if "error:" in line), lines[0] if lines else f"exit {error.returncode}"
        )
        raise _KernelError(f"{command[0]} failed: {complaint[:200]}") from error
    except subprocess.TimeoutExpired as error:
        raise _KernelError(f"{command[0]} took more than {COMPILE_SECONDS} s") from error


# -- the cache folder --------------------------------------------------------------------------------------------------


def _usable_folder(key: str) -> tuple[Path | None, str]:
    """The cache folder, made where it is missing; or None and why it can't be used."""
    try:
        folder = cache_folder() / "kernels"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        trusted = _is_ours(folder, 0o077) and all(_is_ours(path, 0o022) for path in folder.glob(f"{key}-*.so"))
    except (OSError, RuntimeError) as error:
        return None, f"there is no cache folder ({error})"
    if trusted:
        return folder, ""
    reason = f"{folder} and what it holds are not this user's alone: remove it, or set ALPHAZERO_CACHE_DIR"
    log.warning("the C kernels are compiled for this process alone: %s", reason)
    return None, reason


def _is_ours(path: Path, forbidden: int) -> bool:
    """True for a file or folder of this user's with none of the `forbidden` mode bits; a link has them all."""
    facts = path.lstat()
    return facts.st_uid == os.geteuid() and not facts.st_mode & forbidden


def _load_kept(folder: Path, key: str) -> ctypes.CDLL | None:
    """The library of this key, or None where it must be built: that takes a broken file's place."""
    for path in folder.glob(f"{key}-*.so"):
        with contextlib.suppress(OSError):  # another process removed it; or it lies where nothing may be executed
            if path.name == f"{key}-{_digest(path)}.so":
                os.utime(path)  # the last used ones stay
                return ctypes.CDLL(str(path))
    return None


def _keep(built: Path, folder: Path, key: str) -> str:
    """Put a copy of a library into the cache folder, whole or not at all. Says why where it can't."""
    try:
        with tempfile.TemporaryDirectory(prefix=PART, dir=folder) as scratch:
            copy = Path(scratch) / built.name
            copy.touch(mode=0o600)  # whatever the umask: a library that others may write isn't trusted
            copy.write_bytes(built.read_bytes())
            os.replace(copy, folder / f"{key}-{_digest(copy)}.so")
    except OSError as error:
        return f"{folder} can't be written ({error.strerror})"
    with contextlib.suppress(OSError):  # another process may tidy up too
        for path in sorted(folder.glob("*.so"), key=lambda path: path.stat().st_mtime)[:-KEPT]:
            path.unlink()
        for path in folder.glob(f"{PART}*"):
            if time.time() - path.stat().st_mtime > ABANDONED_SECONDS:
                shutil.rmtree(path)
    return ""


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:32]
