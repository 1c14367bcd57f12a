"""The kernels are compiled once and kept where nobody else can write, and whatever goes wrong there
costs a compilation.
"""

import os
import shutil
import stat

import pytest

from alphazero_llm_trainer.config.cache import cache_folder
from alphazero_llm_trainer.engine import kernel_build
from alphazero_llm_trainer.engine.kernel_build import load_kernels

pytestmark = pytest.mark.skipif(
    shutil.which(os.environ.get("CC", "cc")) is None, reason="no C compiler here"
)
PLUS_ONE = '#include "plus.h"\nint f(int x) { return x + one(); }\n'


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """A cache folder of its own, and sources that compile at once. The folder is made at first
    use.
    """
    sources = tmp_path / "sources"
    sources.mkdir()
    (sources / "plus.c").write_text(PLUS_ONE)
    (sources / "plus.h").write_text("static int one(void) { return 1; }\n")
    monkeypatch.setattr(kernel_build, "SOURCES", sources)
    monkeypatch.setenv("ALPHAZERO_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("ALPHAZERO_KERNEL_FLAGS", raising=False)
    return tmp_path / "cache" / "kernels"


@pytest.fixture
def compilations(monkeypatch):
    """The compiler's calls that made a library."""
    calls = []
    run_compiler = kernel_build._run_compiler

    def counted(command):
        if "-o" in command:
            calls.append(command)
        return run_compiler(command)

    monkeypatch.setattr(kernel_build, "_run_compiler", counted)
    return calls


def result():
    """What the loaded library's f(1) is."""
    library = load_kernels().library
    return library.f(1)


def test_it_is_compiled_once_and_kept_for_its_user_alone(cache, compilations):
    assert [result(), result()] == [2, 2]
    assert len(compilations) == 1
    [kept] = cache.iterdir()
    assert [stat.S_IMODE(path.stat().st_mode) for path in (cache, kept)] == [0o700, 0o600]
    assert load_kernels().status.startswith("C, compiled by ") and load_kernels().status.endswith(
        f"kept in {cache}"
    )


def test_other_sources_headers_flags_and_compilers_have_libraries_of_their_own(
    cache, tmp_path, monkeypatch
):
    assert result() == 2
    (tmp_path / "sources" / "plus.h").write_text("static int one(void) { return 2; }\n")
    assert result() == 3
    (tmp_path / "sources" / "plus.c").write_text(PLUS_ONE.replace("x +", "10 * x +"))
    assert result() == 12
    for name, value in (("ALPHAZERO_KERNEL_FLAGS", "'-funroll-loops'"), ("CC", "cc -DOPTION")):
        with monkeypatch.context() as patch:
            patch.setenv(name, value)
            assert result() == 12
    assert len(list(cache.iterdir())) == 5


def test_a_file_cut_short_is_built_again(cache, compilations):
    result()
    [kept] = cache.iterdir()
    kept.unlink()  # it is mapped into this process
    kept.write_bytes(b"")
    assert (
        [result(), result()] == [2, 2]
        and len(compilations) == 2
        and list(cache.iterdir()) == [kept]
    )


@pytest.mark.parametrize("harm", ["others may write", "a link", "no folder"])
def test_where_others_could_write_nothing_is_kept_or_loaded(cache, harm, tmp_path, compilations):
    cache.parent.mkdir()
    if harm == "others may write":
        cache.mkdir()
        cache.chmod(0o777)
    elif harm == "a link":
        (tmp_path / "elsewhere").mkdir(mode=0o700)
        cache.symlink_to(tmp_path / "elsewhere")
    else:
        cache.write_text("a file where the folder would be")
    assert [result(), result()] == [2, 2] and len(compilations) == 2
    assert "for this process alone" in load_kernels().status
    assert harm == "no folder" or list(cache.iterdir()) == []


def test_the_folder_is_where_the_environment_says(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_folder() == tmp_path / "cache"
    monkeypatch.delenv("ALPHAZERO_CACHE_DIR")
    assert cache_folder() == tmp_path / "xdg" / "alphazero-llm-trainer"
    for no_folder in ("", "relative"):
        monkeypatch.setenv("XDG_CACHE_HOME", no_folder)
        assert cache_folder() == tmp_path / "home" / ".cache" / "alphazero-llm-trainer"


@pytest.mark.parametrize(
    "compiler, words",
    [
        ("no-such-compiler", "there is no C compiler 'no-such-compiler': install one"),
        ("false", "/false failed: exit 1"),
        ("cc --no-such-option", "no-such-option"),
    ],
)
def test_a_compiler_that_is_missing_or_fails_is_one_line(compiler, words, monkeypatch):
    monkeypatch.setenv("CC", compiler)
    found = load_kernels()
    assert found.library is None
    assert (
        found.status.startswith("transformers instead of C: ")
        and words in found.status
        and "\n" not in found.status
    )
