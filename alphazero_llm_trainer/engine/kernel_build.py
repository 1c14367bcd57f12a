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
COMPILE_SECONDS = (
    300  # 2 on a quiet machine; a busy one, and sanitizers, may take a hundred times that
)


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
def kernels() -> Kernels:
    """The kernels of this process, loaded once: from the cache folder, else compiled (about 2 s of
    a core).
    """
    return load_kernels()


def kernel_status() -> str:
    """One line for `info`: who compiled the kernels and where they are kept, or what failed and
    what computes instead.
    """
    return kernels().status


def load_kernels() -> Kernels:
    """Find the kernels in the cache folder, or compile them and keep them there.

    Environment: CC names the compiler (default: cc), ALPHAZERO_KERNEL_FLAGS adds flags,
    ALPHAZERO_CACHE_DIR is the folder that the cache folder lies in. Where that can't be written, or
    isn't the user's alone, a process compiles for itself.
    """
    try:
        command = _compile_command()
        key, compiler = _build_key(command)
        folder, reason = _usable_folder()
        kept = None if folder is None else folder / f"{key}.so"
        if kept is not None and kept.is_file():
            with suppress(OSError):  # a power cut may have left a part of it
                return Kernels(
                    ctypes.CDLL(str(kept)), f"C, compiled by {compiler}, kept in {folder}"
                )
        with tempfile.TemporaryDirectory(prefix="alphazero-kernels-", dir=folder) as scratch:
            built = Path(scratch) / "kernels.so"
            _run_compiler([*command, *_sources(".c"), "-o", str(built), "-lm"])
            library = ctypes.CDLL(str(built))  # what is loaded stays when its file goes
            if kept is not None:
                built.chmod(0o600)
                os.replace(built, kept)  # whole or not at all
    except (_KernelError, OSError) as error:
        return Kernels(None, f"transformers instead of C: {error}")
    return Kernels(library, f"C, compiled by {compiler}, {reason or f'kept in {folder}'}")


# -- compiling
# --------------------------------------------------------------------------------------------------


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
            command,
            check=True,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=COMPILE_SECONDS,
        ).stdout
    except subprocess.CalledProcessError as error:
        lines = [line.strip() for line in error.stderr.splitlines() if line.strip()]
        complaint = next(
            (line for line in lines if "error:" in line),
            lines[0] if lines else f"exit {error.returncode}",
        )
        raise _KernelError(f"{command[0]} failed: {complaint[:200]}") from error
    except subprocess.TimeoutExpired as error:
        raise _KernelError(f"{command[0]} took more than {COMPILE_SECONDS} s") from error


def _usable_folder() -> tuple[Path | None, str]:
    """The cache folder, made where it is missing; or None and why it can't be used."""
    try:
        folder = cache_folder() / "kernels"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        facts = folder.lstat()
    except (OSError, RuntimeError) as error:
        return None, f"for this process alone: there is no cache folder ({error})"
    if facts.st_uid == os.geteuid() and not facts.st_mode & 0o077 and os.access(folder, os.W_OK):
        return folder, ""
    reason = f"{folder} is not this user's alone, or can't be written: remove it, or set ALPHAZERO_CACHE_DIR"
    return None, f"for this process alone: {reason}"
