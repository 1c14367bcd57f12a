"""Kills, power cuts and full disks: nothing that was reported as done is lost, and the same command
goes on.
"""

import contextlib
import errno
import os
import resource
import shutil
import stat
import time
from pathlib import Path

import pytest
import torch
from faults import a_job, counted, forked, keys_of, trees_in, wait_for
from support import grpo_config
from tables import read_jsonl

from alphazero_llm_trainer import files
from alphazero_llm_trainer.cli.base import Parser, run_command
from alphazero_llm_trainer.cli.main import main
from alphazero_llm_trainer.errors import CheckpointError, ConfigError, StorageError
from alphazero_llm_trainer.files import Folder, write_whole
from alphazero_llm_trainer.policy.weights import load_tensors, save_tensors
from alphazero_llm_trainer.runs import sample_folder as folder_module
from alphazero_llm_trainer.runs.folder import (
    MANIFEST,
    RunFolder,
    read_manifest,
    write_manifest,
)
from alphazero_llm_trainer.runs.sample import job_identity, run_sample
from alphazero_llm_trainer.runs.sample_folder import SampleFolder
from alphazero_llm_trainer.tree.journal import JOURNAL, Journal

# -- a run's folder --------------------------------------------------------------------------------


def sealed(run, number):
    folder = run / f"checkpoint-{number}"
    folder.mkdir(parents=True)
    (folder / "weights.bin").write_bytes(bytes([number]) * 1000)
    (folder / "state.json").write_text("{}")
    write_manifest(folder, {"rounds_done": number})
    return folder


def cut(name):
    return lambda folder: os.truncate(folder / name, (folder / name).stat().st_size - 9)


@pytest.mark.parametrize(
    "damage, name",
    [
        (cut("weights.bin"), "weights.bin"),
        (lambda folder: (folder / "weights.bin").write_bytes(b"\1" * 1000), "weights.bin"),
        (lambda folder: (folder / "state.json").unlink(), MANIFEST),
        (cut(MANIFEST), MANIFEST),
        (lambda folder: (folder / MANIFEST).write_text('{"rounds_done": 3}'), MANIFEST),
    ],
)
def test_a_broken_checkpoint_is_passed_over_for_the_one_before_it(damage, name, tmp_path):
    said, run = [], RunFolder(tmp_path)
    assert run.newest_checkpoint(said.append) == (None, {})
    for number in (9, 10, 100):  # by number, not by name
        newest = sealed(tmp_path, number)
    (tmp_path / "checkpoint-200").mkdir()  # never sealed
    assert run.newest_checkpoint(pytest.fail)[0] == newest
    assert read_manifest(newest)["files"]["weights.bin"]["bytes"] == 1000
    damage(newest)
    with pytest.raises(CheckpointError, match=f"changed {name}"):
        read_manifest(newest)
    assert run.newest_checkpoint(said.append)[1]["rounds_done"] == 10 and len(said) == 1


def test_the_newest_checkpoints_stay_and_broken_ones_after_them_go(tmp_path):
    def left(kept, count):
        RunFolder(tmp_path).keep_newest(kept, count)
        return {path.name for path in tmp_path.iterdir()}

    for number in (4, 8, 10, 12, 100):
        newest = sealed(tmp_path, number)
    cut("weights.bin")(newest)  # the run goes on from 12, and writes 14
    (tmp_path / "checkpoint-9").mkdir()  # never sealed
    last = sealed(tmp_path, 14)
    assert left(last, 3) == {f"checkpoint-{n}" for n in (10, 12, 14)}
    assert left(last, 1) == {last.name}


def test_runs_are_numbered_and_found_again(tmp_path):
    def find(path=None):
        return RunFolder.find(tmp_path, path)

    with pytest.raises(CheckpointError, match=r"found no run\.json"):
        find()
    for _ in range(3):
        third = RunFolder.new(tmp_path)
        third.path.mkdir()
    assert third.path.name == "run-003"
    for name in ("run-999", "run-1000", "run-old"):
        (tmp_path / name).mkdir()
    assert RunFolder.new(tmp_path).path.name == "run-1001"
    config = grpo_config(["search.budget_tokens=77", "student=embedded"])
    first, second = (RunFolder(tmp_path / f"run-00{number}") for number in (1, 2))
    for folder in (first, second):
        folder.write_card({"config": config.model_dump(mode="json")})
    # The others never began.
    assert find().path == second.path and second.config().model_dump() == config.model_dump()
    assert find(first.path).path == first.path
    with pytest.raises(CheckpointError):
        find(third.path)
    for text in ("{", "[]", '{"seed": 3}'):
        third.card.write_text(text)
        with pytest.raises(CheckpointError, match=r"run\.json"):
            third.read_card()


@pytest.fixture
def disk(tmp_path, monkeypatch):
    """Makes a forgetful disk of a folder."""
    (tmp_path / "disk").mkdir()
    made = []

    def make(at_cut):
        def look(disk):
            at_cut(disk.left(tmp_path / "cut"))

        made.append(ForgetfulDisk(tmp_path / "disk", monkeypatch, look))
        return made[0]

    yield make
    monkeypatch.undo()
    made[0].close()


def test_metrics_survive_a_cut_and_a_step_back(tmp_path):
    folder = RunFolder(tmp_path)
    lines = [{"event": "start"}, *({"round": i, "reward": i / 4} for i in range(4))]
    for line in lines:
        folder.append_metrics(line)
    with folder.metrics.open("a") as file:
        file.write('{"round": 4, "rew')
    assert folder.read_metrics() == lines
    folder.forget_metrics_from(2)
    folder.append_metrics({"round": 2})
    assert folder.read_metrics() == [*lines[:3], {"round": 2}]


# -- power cuts ------------------------------------------------------------------------------------


class ForgetfulDisk:
    """The harshest disk: it keeps a file's bytes as they were at its last `fsync`, under the names
    that its folder had at that folder's last `fsync`.

    `at_cut` is called before each sync and after whatever changes names below `root`; `left` says
    what a cut now would leave (None stands for a folder). Nothing is really synced.
    """

    def __init__(self, root, patch, at_cut):
        self.root, self.at_cut = root.resolve(), at_cut
        self.held = {}  # descriptors by inode: while they are open no other file gets the number
        self.names = {}
        self.look()
        self.synced_names = dict(self.names)
        self.synced = {inode: self.bytes_of(inode) for inode in self.held}
        self.cuts, self.inside = 0, False
        patch.setattr(os, "fsync", self.fsync)
        for name in ("replace", "rename", "link", "mkdir", "unlink", "remove", "rmdir"):
            patch.setattr(os, name, self.watched(getattr(os, name)))

    def close(self):
        while self.held:
            os.close(self.held.popitem()[1])

    def look(self):
        """Take in all names."""
        self.names = {}
        for folder, folders, names in os.walk(self.root):
            self.names[self.hold(folder)] = {
                name: self.hold(os.path.join(folder, name)) for name in (*folders, *names)
            }

    def hold(self, path):
        inode = os.stat(path).st_ino
        if inode not in self.held:
            self.held[inode] = os.open(path, os.O_RDONLY)
        return inode

    def bytes_of(self, inode):
        facts = os.fstat(self.held[inode])
        return None if stat.S_ISDIR(facts.st_mode) else os.pread(self.held[inode], facts.st_size, 0)

    def happened(self):
        """This is a moment to cut."""
        if not self.inside:  # not what a check itself does
            self.inside = True
            self.look()
            self.cuts += 1
            self.at_cut(self)
            self.inside = False

    def watched(self, plain):
        def call(*paths, **named):
            result = plain(*paths, **named)
            if any(
                Path(os.path.abspath(path)).is_relative_to(self.root)
                for path in paths
                if not isinstance(path, int)
            ):
                self.happened()
            return result

        return call

    def fsync(self, number):
        inode = os.fstat(number).st_ino
        if self.inside or not Path(os.readlink(f"/proc/self/fd/{number}")).is_relative_to(
            self.root
        ):
            return
        self.happened()
        if inode in self.names:
            self.synced_names[inode] = self.names[inode]
        elif inode in self.held:  # not one that was removed before it was seen
            self.synced[inode] = self.bytes_of(inode)
        self.happened()

    def left(self, target):
        """Write what a cut now would leave to `target`."""

        def fill(folder, place):
            place.mkdir(parents=True)
            for name, inode in self.synced_names.get(folder, {}).items():
                if self.bytes_of(inode) is None:
                    fill(inode, place / name)
                else:
                    (place / name).write_bytes(self.synced.get(inode) or b"")

        shutil.rmtree(target, ignore_errors=True)
        fill(self.root.stat().st_ino, target)
        return target


def test_checkpoints_at_every_cut(tmp_path, disk):
    """A checkpoint that was reported is there whole, with all trees that it counts, whatever its
    trainer synced; a small file is the old one or the new one.
    """
    root, reported, seen = tmp_path / "disk", 0, set()

    def look(left):
        folder, facts = RunFolder(left).newest_checkpoint(pytest.fail)
        assert facts.get("rounds_done", 0) >= reported
        if folder is not None:
            assert (folder / "weights.bin").read_bytes() == bytes([facts["rounds_done"]]) * 1000
            trees = Journal(left / "journal.jsonl")
            assert len(trees) >= 3 * facts["rounds_done"]
            trees.close()
        if reported:
            seen.add(int((left / "plain").read_text()))
            assert max(seen) >= int((left / "plain").read_text()) >= reported

    made = disk(look)
    journal = Journal(root / "journal.jsonl")
    for number in range(1, 6):
        for tree in range(3):
            journal.append({"key": f"{number}/{tree}"})
        journal.sync()
        write_whole(root / "plain", str(number))
        sealed(root, number)
        reported = number
    journal.close()
    assert made.cuts >= 50 and seen == set(range(1, 6))
    (root / "bare").write_text("not synced")  # the disk does forget
    os.rename(root / "bare", root / "other")
    assert not [*made.left(tmp_path / "cut").glob("[bo]*")]


@pytest.mark.slow
def test_sample_cut_at_every_moment_loses_no_tree_and_goes_on(tmp_path, monkeypatch, disk):
    """A tree is kept once the journal was synced. What is left in the middle is gone on from."""
    job, root, cuts = a_job(5), tmp_path / "disk", 0
    kept = frozenset()
    sync_journal = Journal.sync

    def sync_and_note(journal):
        nonlocal kept
        sync_journal(journal)
        if journal.path == root / JOURNAL:
            kept = frozenset(record["key"] for record in read_jsonl(journal.path))

    def look(left):
        nonlocal cuts
        if 0 < len(kept) < 5:
            shutil.copytree(left, tmp_path / "on", dirs_exist_ok=True)
        folder = SampleFolder(left, job_identity(job), job.tasks, resume=True)
        folder.begin(folder.stored.get("policy", {"name": "embedded"}))
        assert kept <= set(folder.journal) <= set(keys_of(job))
        folder.end("stopped")
        cuts += 1

    monkeypatch.setattr(folder_module, "SYNC_TREES", 2)
    monkeypatch.setattr(Journal, "sync", sync_and_note)
    disk(look)
    run_sample(job, root)
    monkeypatch.undo()
    assert set(trees_in(root)) == set(keys_of(job)) == kept and cuts >= 20
    run_sample(job, tmp_path / "on", resume=True)
    assert counted(tmp_path / "on") == counted(root)


# -- a disk that is full ---------------------------------------------------------------------------


def ended(work):
    parser = Parser(prog="x")
    parser.set_defaults(run=work)
    return run_command(parser, [])


@pytest.mark.parametrize(
    "error, words",
    [
        (OSError(errno.ENOSPC, "No space", "/d/journal.jsonl"), "/d/journal.jsonl: No space"),
        (OSError(errno.EFBIG, "File too large"), "a file: File too large"),
        (StorageError("/d has 3 MB free: free some space"), "3 MB free"),
    ],
)
def test_what_a_disk_refuses_is_one_sentence(error, words, capsys):
    def work(args):
        raise error

    assert ended(work) == 1
    said = capsys.readouterr().err
    assert said.startswith("error: ") and words in said and said.count("\n") == 1


@contextlib.contextmanager
def small_files(most):
    """No file of this process may grow beyond `most` bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_sample_on_a_full_disk_goes_on_with_every_tree_once(tmp_path, capsys):
    run_sample(a_job(8), tmp_path / "whole")
    with small_files(6_000):
        assert ended(lambda args: run_sample(a_job(8), tmp_path / "out", resume=True) and 0) == 1
    said = capsys.readouterr().err
    assert said.startswith("error: ") and "File too large" in said and said.count("\n") == 1
    run_sample(a_job(8), tmp_path / "out", resume=True)
    assert counted(tmp_path / "out") == counted(tmp_path / "whole")


TRAIN = """
    -q train --use-grpo --num-examples 8 --save-every 4 --eval-size 4 --model embedded
    --set train.questions_per_round=4 --set train.validation_size=4 --set train.rows_per_round=4
    --set train.demonstrations=8 --set search.simulations=1 --set train.requeue_limit=0
    --set train.optimizer.batch_size=4 --set train.optimizer.epochs=1 --out
""".split()


@pytest.mark.slow
def test_train_on_a_full_disk_goes_on_to_the_same_weights(tmp_path, capsys):
    whole, out = tmp_path / "whole", tmp_path / "out"
    assert main([*TRAIN, str(whole)]) == 0
    with small_files(300_000):  # a checkpoint is larger
        assert main([*TRAIN, str(out)]) == 1
    assert "--resume" in capsys.readouterr().err
    assert main(f"-q train --resume --out {out}".split()) == 0
    one, other = (
        RunFolder.find(folder, None).student / "model.safetensors" for folder in (whole, out)
    )
    assert one.read_bytes() == other.read_bytes()


def test_weights_that_cannot_be_written_or_are_gone(tmp_path):
    path = tmp_path / "run" / "best.safetensors"
    path.parent.mkdir()
    said = r"best\.safetensors can't be written"
    with small_files(1000), pytest.raises(StorageError, match=said):
        save_tensors({"a": torch.zeros(100_000)}, path)
    assert not [*path.parent.iterdir()]
    with pytest.raises(CheckpointError, match="restore it or train again"):
        load_tensors(path)
    path.parent.rmdir()
    with pytest.raises(StorageError, match="run was removed meanwhile"):
        load_tensors(path)


# -- locks -----------------------------------------------------------------------------------------


def test_one_process_writes_a_folder_until_it_dies(tmp_path):
    path = tmp_path / "run"
    holder = forked(lambda: (Folder(path).lock(), time.sleep(60)))
    try:
        wait_for(lambda: (path / files.LOCK).exists() and (path / files.LOCK).read_text())
        with pytest.raises(ConfigError, match=f"written by process {holder.pid}: wait for it"):
            Folder(path).lock("--resume")
    finally:
        holder.kill()
        holder.join()
    with Folder(path).lock(), pytest.raises(ConfigError, match=f"process {os.getpid()}"):
        Folder(path).lock()


def test_a_run_of_before_goes_on_without_keys_that_are_gone(tmp_path: Path) -> None:
    folder, config = RunFolder(tmp_path), grpo_config()
    card = {"config": config.model_dump(mode="json")}
    card["config"]["train"]["critic"] |= {"head": False, "least_outcomes": 3}
    card["config"]["train"]["critic_rounds"] = 2
    card["config"]["search"]["verify"]["revisit"] = False
    for entry in card["config"]["models"].values():
        entry["use_liger_kernel"] = False
    card["config"]["models"]["small"]["shape"] |= {"vocabulary": 169, "tied": True}
    folder.write_card(card)
    assert folder.config().model_dump() == config.model_dump()
    card["config"]["models"]["small"]["use_liger_kernel"] = True  # it was trained with them
    folder.write_card(card)
    with pytest.raises(ConfigError, match=r"small\.use_liger_kernel"):
        folder.config()


@pytest.mark.parametrize("command", ["sft", "value", "prm", "sample", "eval", "train"])
def test_every_command_that_writes_a_folder_asks_for_it(command, tmp_path, capsys):
    """And is refused before anything is loaded."""
    words = f"-n 10 --out {tmp_path}".split()
    if command == "train":
        RunFolder(tmp_path).write_card(
            {"config": grpo_config().model_dump(mode="json"), "method": "grpo"}
        )
        words = ["--resume", str(tmp_path)]
    with Folder(tmp_path).lock():
        assert main(["-q", command, *words]) == 2
    assert f"written by process {os.getpid()}" in capsys.readouterr().err
