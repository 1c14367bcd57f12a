"""What a disk refuses is one sentence and exit code 1, nothing finished is lost, and the same command goes on."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from faults import a_job, forked, trees_in, wait_for, what_counts
from support import grpo_config

from alphazero_llm_trainer import files
from alphazero_llm_trainer.cli.base import Parser, run_command
from alphazero_llm_trainer.cli.main import main
from alphazero_llm_trainer.errors import CheckpointError, ConfigError, StorageError
from alphazero_llm_trainer.files import FolderLock, check_space
from alphazero_llm_trainer.policy.weights import load_tensors, save_tensors
from alphazero_llm_trainer.scale.sample import run_sample
from alphazero_llm_trainer.training.run import RunFolder, find_run

TRAIN = (
    "-q", "train", "--use-grpo", "--num-examples", "8", "--save-every", "4", "--eval-size", "4", "--model", "embedded",
    "--set", "train.questions_per_round=4", "--set", "train.validation_size=4", "--set", "train.rows_per_round=4",
    "--set", "train.demonstrations=8", "--set", "search.simulations=1", "--set", "train.requeue_limit=0",
    "--set", "train.optimizer.batch_size=4", "--set", "train.optimizer.epochs=1", "--out",
)  # fmt: skip


def ended(work: Callable[[Any], int]) -> int:
    parser = Parser(prog="x")
    parser.set_defaults(run=work)
    return run_command(parser, [])


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (OSError(errno.ENOSPC, "No space left on device", "/d/journal.jsonl"), 1, "free some space"),
        (OSError(errno.EFBIG, "File too large"), 1, "ulimit -f"),
        (FileNotFoundError(errno.ENOENT, "No such file or directory", "/d/x"), 1, "removed"),
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


def test_free_space_is_looked_at(tmp_path: Path) -> None:
    usage = shutil.disk_usage(tmp_path)
    check_space(tmp_path / "not" / "there" / "yet", 0, "nothing")
    with pytest.raises(StorageError, match="the next checkpoint needs"):
        check_space(tmp_path, usage.free + 1, "the next checkpoint")


# -- a disk that is full -----------------------------------------------------------------------------------------------


@contextlib.contextmanager
def small_files(most: int) -> Iterator[None]:
    """No file of this process may grow beyond `most` bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_sample_on_a_full_disk_goes_on_with_every_tree_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_sample(a_job(8), tmp_path / "whole")
    for most in (1_500, 6_000):
        capsys.readouterr()
        with small_files(most):
            assert ended(lambda args: run_sample(a_job(8), tmp_path / "out", resume=True) and 0) == 1
        said = capsys.readouterr().err
        assert said.startswith("error: ") and "ulimit -f" in said and said.count("\n") == 1
    run_sample(a_job(8), tmp_path / "out", resume=True)
    found, whole = trees_in(tmp_path / "out"), trees_in(tmp_path / "whole")
    assert {k: what_counts(v) for k, v in found.items()} == {k: what_counts(v) for k, v in whole.items()}


@pytest.mark.slow
def test_train_on_a_full_disk_goes_on_to_the_same_weights(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole, out = tmp_path / "whole", tmp_path / "out"
    assert main([*TRAIN, str(whole)]) == 0
    with small_files(300_000):  # a checkpoint is larger
        assert main([*TRAIN, str(out)]) == 1
    assert "--resume" in capsys.readouterr().err
    assert main(["-q", "train", "--resume", "--out", str(out)]) == 0
    one, other = (find_run(folder, None).student / "model.safetensors" for folder in (whole, out))
    assert one.read_bytes() == other.read_bytes()


def test_weights_that_cannot_be_written_or_are_gone(tmp_path: Path) -> None:
    path = tmp_path / "run" / "best.safetensors"
    path.parent.mkdir()
    with small_files(1000), pytest.raises(StorageError, match=r"best\.safetensors can't be written"):
        save_tensors({"a": torch.zeros(100_000)}, path)
    assert not list(path.parent.iterdir())
    with pytest.raises(CheckpointError, match="restore it or train again"):
        load_tensors(path)
    shutil.rmtree(path.parent)
    with pytest.raises(StorageError, match="run was removed meanwhile"):
        load_tensors(path)


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


@pytest.mark.parametrize("command", ["sft", "value", "prm", "sample", "eval", "train"])
def test_every_command_that_writes_a_folder_asks_for_it(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And is refused before anything is loaded."""
    words = ["-n", "10", "--out", str(tmp_path)]
    if command == "train":
        RunFolder(tmp_path).write_card({"config": grpo_config().model_dump(mode="json"), "method": "grpo"})
        words = ["--resume", str(tmp_path)]
    with FolderLock(tmp_path):
        assert main(["-q", command, *words]) == 2
    assert f"written by process {os.getpid()}" in capsys.readouterr().err
