"""What a disk refuses is one sentence and exit code 1, nothing finished is lost, and the same command goes on."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from cut_runs import SMALL, TREES, command, product, train_on, trees_of
from faults import a_job, forked, trees_in, wait_for, what_counts

from alphazero_llm_trainer import files
from alphazero_llm_trainer.cli.base import Parser, run_command
from alphazero_llm_trainer.cli.main import main
from alphazero_llm_trainer.errors import CheckpointError, ConfigError, StorageError
from alphazero_llm_trainer.files import FolderLock, check_space, storage_failure
from alphazero_llm_trainer.policy.weights import load_sealed, save_sealed
from alphazero_llm_trainer.scale.sample import run_sample
from alphazero_llm_trainer.training.checkpoint import sealed
from alphazero_llm_trainer.training.run import find_run
from alphazero_llm_trainer.training.start import space

TRAIN = ("-q", "train", "--use-grpo", *SMALL, "--checkpoint-dir")
ENVIRONMENT = {**os.environ, "PYTHONPATH": f"{Path(__file__).parent}:{Path(__file__).parents[1]}"}


def ended(work: Callable[[Any], int]) -> int:
    parser = Parser(prog="x")
    parser.set_defaults(run=work)
    return run_command(parser, [])


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (OSError(errno.ENOSPC, "No space left on device", "/d/journal.jsonl"), 1, "free some space"),
        (OSError(errno.EDQUOT, "Disk quota exceeded", "/d/x"), 1, "quota"),
        (OSError(errno.EROFS, "Read-only file system", "/d/x"), 1, "writable"),
        (OSError(errno.EFBIG, "File too large"), 1, "ulimit -f"),
        (FileNotFoundError(errno.ENOENT, "No such file or directory", "/d/x"), 1, "removed"),
        (OSError(errno.ENAMETOOLONG, "File name too long", "c" * 9000), 2, "shorter"),
        (StorageError("/d has 3 MB free and the next checkpoint needs 70 MB: free some space"), 1, "3 MB free"),
    ],
)
def test_what_a_disk_refuses_is_one_sentence(
    error: Exception, code: int, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def work(args: Any) -> int:
        raise error

    assert ended(work) == code
    said = capsys.readouterr().err
    assert said.startswith("error: ") and words in said and said.count("\n") == 1 and len(said) < 500


def test_another_failure_of_the_system_is_a_bug(capsys: pytest.CaptureFixture[str]) -> None:
    def work(args: Any) -> int:
        raise ConnectionResetError(errno.ECONNRESET, "Connection reset by peer")

    with pytest.raises(ConnectionResetError):
        ended(work)
    assert storage_failure(OSError("no number")) is None


def test_free_space_is_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(tmp_path)
    check_space(tmp_path / "not" / "there" / "yet", 0, "nothing")
    with pytest.raises(StorageError, match="the next checkpoint needs"):
        check_space(tmp_path, usage.free + 1, "the next checkpoint")
    monkeypatch.setattr(files, "SPARE_BYTES", usage.total)
    with pytest.raises(StorageError):
        run_sample(a_job(2), tmp_path / "out")


def the_sentence(said: str) -> str:
    """The one sentence that a process ends with; a library may have said something of its own while it was loaded."""
    found = [line for line in said.splitlines() if "kernels" not in line]
    assert len(found) == 1 and found[0].startswith("error: "), said
    return found[0]


@contextlib.contextmanager
def small_files(most: int) -> Iterator[None]:
    """No file of this process may grow beyond `most` bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("most", [1_500, 6_000])
def test_files_that_may_not_grow(most: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The first session ends in one sentence at whatever write it is; the second has every tree once."""
    run_sample(a_job(10), tmp_path / "whole")
    capsys.readouterr()
    with small_files(most):
        assert ended(lambda args: run_sample(a_job(10), tmp_path / "out", resume=True) and 0) == 1
    assert "ulimit -f" in the_sentence(capsys.readouterr().err)
    run_sample(a_job(10), tmp_path / "out", resume=True)
    found, whole = trees_in(tmp_path / "out"), trees_in(tmp_path / "whole")
    assert {k: what_counts(v) for k, v in found.items()} == {k: what_counts(v) for k, v in whole.items()}


@pytest.mark.parametrize(
    "words", [["view", "RUN"], ["export", "--kind", "sft", "--data", "RUN"]], ids=["view", "export"]
)
def test_a_file_that_the_disk_refuses_is_no_mistake_of_the_user(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_sample(a_job(2), tmp_path / "run")
    capsys.readouterr()
    given = [word.replace("RUN", str(tmp_path / "run")) for word in words]
    with small_files(200):
        assert main([*given, "--out", str(tmp_path / "out.parquet")]) == 1
    assert "ulimit -f" in the_sentence(capsys.readouterr().err)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An undisturbed run."""
    place = tmp_path_factory.mktemp("trained")
    assert command((*TRAIN, str(place)))[0] == 0
    return place


def test_the_plan_says_what_a_run_writes(trained: Path) -> None:
    run = find_run(trained, None)
    plan, place = space(run.config(), None) or pytest.fail("the shipped student has a shape")
    written = [sum(file.stat().st_size for file in folder.iterdir()) for folder in sealed(run.path)]
    assert plan.checkpoints == len(written) == 4 and place == trained
    assert all(
        0.95 * size < plan.checkpoint < size for size in written
    )  # beside weights and moments: a tokenizer, figures
    assert plan.best == pytest.approx(run.best.stat().st_size, rel=0.01)
    assert plan.student == pytest.approx((run.student / "model.safetensors").stat().st_size, rel=0.01)
    assert plan.total == pytest.approx(4 * plan.checkpoint + plan.best + plan.student, abs=1)
    rest = space(run.config(), run.path)
    assert rest is not None and rest[0].checkpoints == 0 and rest[1] == run.path


SMALL_FILES = """
import resource, sys
import cut_runs
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]), int(sys.argv[1])))
code, said = cut_runs.command(sys.argv[2:])
sys.stderr.write(said)
sys.exit(code)
"""


@pytest.mark.slow
@pytest.mark.parametrize("most", [20_000, 1_000_000, 4_000_000], ids=["run.json", "best weights", "checkpoint"])
def test_a_training_run_whose_files_may_not_grow(most: int, trained: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SMALL_FILES, str(most), *TRAIN, str(tmp_path)],
        capture_output=True, text=True, check=False, env=ENVIRONMENT,
    )  # fmt: skip
    assert done.returncode == 1 and "--resume" in the_sentence(done.stderr)
    assert train_on(TRAIN, tmp_path, product(trained)) is None


def may_mount() -> bool:
    """Whether this user has mounts of its own."""
    words = ["unshare", "--mount", "sh", "-c", "mount -t tmpfs none /mnt"]
    try:
        return subprocess.run(words, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sample", "train"])
def test_a_disk_that_is_too_small_then_full_then_read_only(name: str, trained: Path, tmp_path: Path) -> None:
    """A real one. Each time one sentence, and with more room the run goes on to what an undisturbed one comes to."""
    if not may_mount():
        pytest.skip("this user may not mount: a small disk is tried by root, or in a user namespace")
    place, kept = tmp_path / "disk", tmp_path / "kept"
    place.mkdir()
    lines, sizes = {
        "sample": ((TREES, (*TREES[:-1], "--resume", "--out"), TREES), ("40k", "100m")),
        "train": (
            (TRAIN, ("train", "--resume", "--checkpoint-dir"), (*TRAIN[:-1], "--dry-run", TRAIN[-1])),
            ("8m", "200m"),
        ),
    }[name]
    script = Path(__file__).with_name("small_disk.py")
    done = subprocess.run(
        ["unshare", "--mount", sys.executable, str(script), json.dumps(lines), str(place), str(kept), *sizes],
        capture_output=True, text=True, check=False, env=ENVIRONMENT,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    ends = json.loads(done.stdout.splitlines()[-1])
    assert [code for code, _ in ends] == [1, 1, 1, 0, 2], ends
    for number, words in enumerate(("MB free and", "MB free and", "free some space", None, "can't be written")):
        said = ends[number][1]
        assert words is None or (said.startswith("error: ") and said.count("\n") == 1 and words in said), said
    assert ends[0] == ends[1]  # the plan, and the run
    if name == "train":
        assert product(kept) == product(trained)
    else:
        code, said = command((*TREES, str(tmp_path / "whole")))
        assert code == 0 and trees_of(kept) == trees_of(tmp_path / "whole"), said


def test_weights_that_cannot_be_written(tmp_path: Path) -> None:
    """The library has an error of its own for it."""
    with small_files(1000), pytest.raises(StorageError, match=r"best\.safetensors can't be written"):
        save_sealed({"a": torch.zeros(100_000)}, tmp_path / "best.safetensors")
    assert not list(tmp_path.iterdir())


def test_best_weights_whose_folder_is_gone_are_no_wrong_input(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    save_sealed({"a": torch.zeros(3)}, tmp_path / "run" / "best.safetensors")
    (tmp_path / "run" / "best.safetensors").unlink()
    with pytest.raises(CheckpointError, match="restore it or train again"):
        load_sealed(tmp_path / "run" / "best.safetensors")
    shutil.rmtree(tmp_path / "run")
    with pytest.raises(StorageError, match="run was removed meanwhile"):
        load_sealed(tmp_path / "run" / "best.safetensors")


# -- locks -------------------------------------------------------------------------------------------------------------


def test_one_process_writes_a_folder_until_it_dies(tmp_path: Path) -> None:
    holder = forked(lambda: (FolderLock(tmp_path / "run"), time.sleep(60)))
    try:
        wait_for(lambda: (tmp_path / "run" / files.LOCK).exists() and (tmp_path / "run" / files.LOCK).read_text())
        with pytest.raises(ConfigError, match=f"written by process {holder.pid}: wait for it"):
            FolderLock(tmp_path / "run", "--resume")
    finally:
        holder.kill()
        holder.join()
    with FolderLock(tmp_path / "run"), pytest.raises(ConfigError, match=f"process {os.getpid()}"):
        FolderLock(tmp_path / "run")
    FolderLock(tmp_path / "run").release()


def test_a_disk_without_locks_refuses_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*given: Any) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(files.fcntl, "flock", refuse)
    with FolderLock(tmp_path), FolderLock(tmp_path):
        pass


@pytest.mark.parametrize(
    "words",
    [
        ["sft"], ["value", "-n", "10"], ["prm", "-n", "10"], ["sample", "-n", "1"], ["eval", "-n", "1"],
    ],
    ids=lambda words: words[0],
)  # fmt: skip
def test_every_command_that_writes_a_folder_asks_for_it(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And is refused before anything is loaded."""
    with FolderLock(tmp_path):
        assert main(["-q", *words, "--out", str(tmp_path)]) == 2
    assert f"written by process {os.getpid()}" in capsys.readouterr().err


def test_a_run_s_folder_is_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from alphazero_llm_trainer.config.load import load_config
    from alphazero_llm_trainer.training.run import RunFolder

    RunFolder(tmp_path).write_card({"config": load_config().model_dump(mode="json"), "method": "grpo"})
    with FolderLock(tmp_path):
        assert main(["-q", "train", "--resume", str(tmp_path)]) == 2
    assert f"written by process {os.getpid()}" in capsys.readouterr().err


def test_sample_writes_its_folder_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home, temporary, here, out = places = [tmp_path / name for name in ("home", "tmp", "here", "out")]
    for place in places[:-1]:
        place.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    monkeypatch.chdir(here)
    code, said = command((*TREES, str(out)))
    assert code == 0, said
    assert trees_of(out)
    assert [path for place in (home, temporary, here) for path in place.rglob("*")] == []


@pytest.mark.slow
@pytest.mark.parametrize("what", ["train", "sample"])
def test_nothing_is_written_outside_of_the_run_s_folder_and_the_cache(what: str, tmp_path: Path) -> None:
    """Home, working folder and temporary folder are empty afterwards; the cache holds the kernels and nothing else."""
    home, cache, temporary, here, out = places = [tmp_path / name for name in ("home", "cache", "tmp", "here", "out")]
    for place in places[:-1]:
        place.mkdir()
    moved = {"HOME": home, "XDG_CACHE_HOME": cache, "TMPDIR": temporary}
    given = [*(TRAIN if what == "train" else TREES), str(out)]
    subprocess.run(
        [sys.executable, "-m", "alphazero_llm_trainer", *given],
        cwd=here,
        env={**ENVIRONMENT, **{name: str(place) for name, place in moved.items()}},
        check=True,
        timeout=300,
    )
    assert [*out.rglob("journal*"), *out.rglob("shard-*")], "the run wrote its trees"
    assert [path for place in (home, temporary, here) for path in place.rglob("*")] == []
    assert {path.relative_to(cache).parts[:2] for path in cache.rglob("*") if path.is_file()} <= {
        ("alphazero-llm-trainer", "kernels")
    }
