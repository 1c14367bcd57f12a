"""The C kernels as a loaded library: compiled once by the user's own compiler and kept in a private
cache folder.

A library is kept under a name that says what it was built from (`_build_key`).
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import platform
import re
import shlex
import shutil
import subprocess
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ..config.cache import cache_folder

SOURCES = Path(__file__).parent / "kernels"


class _KernelError(Exception):
    """There is no compiler, or it fails."""


@dataclass(frozen=True, slots=True)
class Kernels:
    """The loaded `library`, or None where torch computes instead; `status` says in one line which,
    and why.
    """

    library: ctypes.CDLL | None
    status: str


@functools.cache
def open_kernels() -> Kernels:
    """The kernels of this process, loaded once: from the cache folder, else compiled (about 2 s of
    a core).
    """
    return load_kernels()


def kernel_status() -> str:
    """One line for `info`: who compiled the kernels and where they are kept, or what failed and
    what computes instead.
    """
    return open_kernels().status


def load_kernels() -> Kernels:
    """Find the kernels in the cache folder, or compile them and keep them there.

    Environment: CC names the compiler (default: cc), ALPHAZERO_KERNEL_FLAGS adds flags,
    ALPHAZERO_CACHE_DIR is the folder that the cache folder lies in. Where that can't be written, or
    isn't the user's alone, a process compiles for itself.
    """
    try:
        command = _compile_command()
        key, compiler = _build_key(command)
        folder = _private_folder()
        kept = None if folder is None else folder / f"{key}.so"
        if kept is not None and kept.is_file():
            with suppress(OSError):  # a power cut may have left a part of it
                return Kernels(
                    ctypes.CDLL(str(kept)), f"C, compiled by {compiler}, kept in {folder}"
                )
        with tempfile.TemporaryDirectory(prefix="alphazero-kernels-", dir=folder) as scratch:
            built = Path(scratch) / "kernels.so"
            _run_compiler([*command, *_list_sources(".c"), "-o", str(built), "-lm"])
            library = ctypes.CDLL(str(built))  # what is loaded stays when its file goes
            if kept is not None:
                built.chmod(0o600)
                os.replace(built, kept)  # whole or not at all
    except (_KernelError, OSError) as error:
        return Kernels(None, f"transformers instead of C: {error}")
    place = (
        "for this process alone: set ALPHAZERO_CACHE_DIR" if folder is None else f"kept in {folder}"
    )
    return Kernels(library, f"C, compiled by {compiler}, {place}")


# -- compiling -------------------------------------------------------------------------------------


def _compile_command() -> list[str]:
    """The compiler and its flags, without files."""
    named = os.environ.get("CC") or "cc"
    program, *options = shlex.split(named)
    extra = shlex.split(os.environ.get("ALPHAZERO_KERNEL_FLAGS", ""))
    path = shutil.which(program)
    if path is None:
        raise _KernelError(
            f"there is no C compiler {named!r}: install one (gcc or clang), or name it in CC"
        )
    tuned = "-mcpu=native" if platform.machine() in ("arm64", "aarch64") else "-march=native"
    flags = ["-O2", "-ftree-vectorize", tuned, "-ffp-contract=fast", "-fno-math-errno", "-DNDEBUG"]
    return [path, *options, *flags, "-shared", "-fPIC", "-pthread", *extra]


def _build_key(command: list[str]) -> tuple[str, str]:
    """A key of all that the library depends on, and the compiler as people know it (its path and
    version).

    The macros that the compiler defines for the sources say its version, the processor's features
    that `native` stands for, and the C library's version.
    """
    macros = _run_compiler([*command, "-dM", "-E", *_list_sources(".c")])
    content = hashlib.sha256()
    for part in (os.path.realpath(command[0]), *command[1:], macros):
        content.update(part.encode() + b"\0")
    for source in _list_sources(".c", ".h"):
        content.update(Path(source).read_bytes() + b"\0")
    version = re.search(r'#define __VERSION__ "(.*)"', macros)
    return content.hexdigest()[:32], f"{command[0]} {version[1]}" if version else command[0]


def _list_sources(*suffixes: str) -> list[str]:
    return sorted(str(path) for path in SOURCES.iterdir() if path.suffix in suffixes)


def _run_compiler(command: list[str]) -> str:
    """What it prints. Raises _KernelError with its first complaint."""
    try:
        return subprocess.run(
            command, check=True, capture_output=True, text=True, errors="replace"
        ).stdout
    except subprocess.CalledProcessError as error:
        lines = [line.strip() for line in error.stderr.splitlines() if "error:" in line]
        complaint = lines[0][:200] if lines else f"exit {error.returncode}"
        raise _KernelError(f"{command[0]} failed: {complaint}") from error


def _private_folder() -> Path | None:
    """The cache folder, made where it is missing; None where it can't be written, or others could
    put a library there.
    """
    try:
        folder = cache_folder() / "kernels"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        facts = folder.lstat()
    except (OSError, RuntimeError):
        return None
    mine = facts.st_uid == os.geteuid() and not facts.st_mode & 0o077
    return folder if mine and os.access(folder, os.W_OK) else None
