"""The kernels are compiled once and kept where nobody else can write, and whatever goes wrong there costs a compilation."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from alphazero_llm_trainer.config.cache import cache_folder
from alphazero_llm_trainer.engine import kernel_build
from alphazero_llm_trainer.engine.kernel_build import KEPT, kernel_status, load_kernels

pytestmark = pytest.mark.skipif(shutil.which(os.environ.get("CC", "cc")) is None, reason="no C compiler here")
PLUS_ONE = '#include "plus.h"\nint f(int x) { return x + one(); }\n'


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder of its own, and sources that compile at once. The folder is made at first use."""
    sources = tmp_path / "sources"
    sources.mkdir()
    (sources / "plus.c").write_text(PLUS_ONE)
    (sources / "plus.h").write_text("static int one(void) { return 1; }\n")
    monkeypatch.setattr(kernel_build, "SOURCES", sources)
    monkeypatch.setenv("ALPHAZERO_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("ALPHAZERO_KERNEL_FLAGS", raising=False)
    return tmp_path / "cache" / "kernels"


@pytest.fixture
def compilations(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The compiler's calls that made a library."""
    calls: list[list[str]] = []
    run_compiler = kernel_build._run_compiler

    def counted(command: list[str]) -> str:
        if "-o" in command:
            calls.append(command)
        return run_compiler(command)

    monkeypatch.setattr(kernel_build, "_run_compiler", counted)
    return calls


def result() -> int:
    """What the loaded library's f(1) is."""
    library = load_kernels().library
    assert library is not None
    return library.f(1)


def test_it_is_compiled_once_and_kept_for_its_user_alone(cache: Path, compilations: list[list[str]]) -> None:
    assert [result(), result()] == [2, 2]
    assert len(compilations) == 1
    [kept] = cache.iterdir()
    assert [stat.S_IMODE(path.stat().st_mode) for path in (cache, kept)] == [0o700, 0o600]
    assert load_kernels().status.startswith("C, compiled by ") and load_kernels().status.endswith(f"kept in {cache}")


def test_other_sources_headers_flags_and_compilers_have_libraries_of_their_own(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert result() == 2
    (tmp_path / "sources" / "plus.h").write_text("static int one(void) { return 2; }\n")
    assert result() == 3
    (tmp_path / "sources" / "plus.c").write_text(PLUS_ONE.replace("x +", "10 * x +"))
    assert result() == 12
    monkeypatch.setenv("ALPHAZERO_KERNEL_FLAGS", "'-funroll-loops'")
    assert result() == 12
    monkeypatch.delenv("ALPHAZERO_KERNEL_FLAGS")
    wrapper = tmp_path / "wrapper"
    wrapper.write_text(f'#!/bin/sh\nexec {shutil.which("cc")} "$@"\n')
    wrapper.chmod(0o700)
    monkeypatch.setenv("CC", str(wrapper))
    assert result() == 12
    monkeypatch.setenv("CC", f"{wrapper} -DOPTION")  # CC may have options of its own
    assert result() == 12
    assert len(list(cache.iterdir())) == 6


@pytest.mark.parametrize("harm", ["truncated", "empty", "flipped", "noise"])
def test_a_broken_file_is_built_again(cache: Path, harm: str, compilations: list[list[str]]) -> None:
    result()
    [kept] = cache.iterdir()
    content = bytearray(kept.read_bytes())
    content[len(content) // 2] ^= 1
    broken = {"truncated": bytes(content[:3000]), "empty": b"", "flipped": bytes(content), "noise": b"no library"}
    # A new file: the old one is mapped into this process.
    kept.unlink()
    kept.write_bytes(broken[harm])
    kept.chmod(0o600)
    assert result() == 2 and len(compilations) == 2
    assert result() == 2 and len(compilations) == 2
    assert len(list(cache.iterdir())) == 1


def test_what_others_could_have_written_is_not_loaded(
    cache: Path, tmp_path: Path, compilations: list[list[str]], caplog: pytest.LogCaptureFixture
) -> None:
    result()
    [kept] = cache.iterdir()
    elsewhere = tmp_path / "elsewhere"

    def refused(count: int) -> None:
        caplog.clear()
        assert result() == 2 and len(compilations) == count
        [record] = caplog.records
        assert "are not this user's alone: remove it, or set ALPHAZERO_CACHE_DIR" in record.message

    cache.chmod(0o755)
    refused(2)
    cache.chmod(0o700)
    kept.chmod(0o620)
    refused(3)
    kept.rename(elsewhere)
    kept.symlink_to(elsewhere)
    refused(4)
    kept.unlink()
    cache.rename(elsewhere.with_name("folder"))
    cache.symlink_to(elsewhere.with_name("folder"))
    refused(5)


def test_what_belongs_to_another_user_is_not_loaded(
    compilations: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    result()
    me = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: me + 1)
    assert result() == 2 and len(compilations) == 2


def test_many_processes_at_once(cache: Path, tmp_path: Path) -> None:
    code = (
        "import sys, pathlib\n"
        "from alphazero_llm_trainer.engine import kernel_build\n"
        "kernel_build.SOURCES = pathlib.Path(sys.argv[1])\n"
        "assert kernel_build.load_kernels().library.f(1) == 2\n"
        "assert not {'torch', 'transformers', 'numpy'} & set(sys.modules)\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "sources")]
    processes = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(8)]
    assert [process.communicate(timeout=120)[1] for process in processes] == [""] * 8
    assert len(list(cache.iterdir())) == 1


def test_old_libraries_and_abandoned_parts_go(
    cache: Path, tmp_path: Path, compilations: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    for i in range(KEPT + 3):
        monkeypatch.setenv("ALPHAZERO_KERNEL_FLAGS", f"-DN={i}")
        result()
        for path in cache.iterdir():  # all that are there get older; the first one is used again and again
            os.utime(path, (path.stat().st_mtime - 100,) * 2)
        if i == 3:
            for name, age in (("part-dead", 7200), ("part-alive", 0)):
                (cache / name).mkdir()
                (cache / name / "kernels.so").write_bytes(b"half")
                os.utime(cache / name, (os.stat(cache).st_mtime - age,) * 2)
        monkeypatch.setenv("ALPHAZERO_KERNEL_FLAGS", "-DN=0")
        result()
    assert len(list(cache.glob("*.so"))) == KEPT
    assert [path.name for path in cache.glob("part-*")] == ["part-alive"]
    assert len(compilations) == KEPT + 3  # -DN=0 was kept all the time


def test_where_nothing_can_be_kept_each_process_compiles_in_a_temporary_folder(
    cache: Path, tmp_path: Path, compilations: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    scratch = tmp_path / "tmp"
    scratch.mkdir()
    monkeypatch.setattr(kernel_build.tempfile, "tempdir", str(scratch))
    cache.parent.write_text("a file where the folder would be")
    assert result() == 2
    assert "for this process alone: there is no cache folder" in load_kernels().status
    cache.parent.unlink()

    def full(source: Path, target: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    assert result() == 2
    assert load_kernels().status.endswith(f"for this process alone: {cache} can't be written (No space left on device)")
    assert len(compilations) == 4
    assert list(scratch.iterdir()) == list(cache.iterdir()) == []


def test_the_folder_is_where_the_environment_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_folder() == tmp_path / "cache"
    monkeypatch.delenv("ALPHAZERO_CACHE_DIR")
    assert cache_folder() == tmp_path / "xdg" / "alphazero-llm-trainer"
    for no_folder in ("", "relative"):
        monkeypatch.setenv("XDG_CACHE_HOME", no_folder)
        assert cache_folder() == tmp_path / "home" / ".cache" / "alphazero-llm-trainer"


@pytest.mark.parametrize(
    ("compiler", "words"),
    [
        ("no-such-compiler", "there is no C compiler 'no-such-compiler': install one"),
        ("false", "/false failed: exit 1"),
        ("cc --no-such-option", "no-such-option"),
        ("cc 'x", "no closing quotation mark"),
    ],
)
def test_a_compiler_that_is_missing_or_fails_is_one_line(
    compiler: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CC", compiler)
    found = load_kernels()
    assert found.library is None
    assert found.status.startswith("torch instead of C: ") and words in found.status and "\n" not in found.status


def test_an_error_in_the_sources_is_named(tmp_path: Path) -> None:
    (tmp_path / "sources" / "plus.c").write_text("int f(int x) { return y; }\n")
    found = load_kernels()
    assert found.library is None
    assert "plus.c:1:" in found.status and "error:" in found.status and "undeclared" in found.status


def test_the_status_is_that_of_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel_build.kernels.cache_clear()
    try:
        assert kernel_status().startswith("C, compiled by ")
        monkeypatch.setenv("CC", "no-such-compiler")
        assert kernel_status().startswith("C, compiled by ")
    finally:
        kernel_build.kernels.cache_clear()
