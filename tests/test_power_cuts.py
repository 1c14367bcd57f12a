"""Power cuts at every write of a small run: nothing is lost that was reported as done, and the run goes on."""

from __future__ import annotations

import itertools
import json
import os
import shutil
from pathlib import Path
from random import Random
from typing import Any

import pytest
from faults import a_job, keys_of, trees_in, what_counts
from power_cuts import NAMES, UNSYNCED, ForgetfulDisk, State, restored

from alphazero_llm_trainer.files import sync, write_whole
from alphazero_llm_trainer.mcts.journal import JOURNAL, Journal
from alphazero_llm_trainer.scale import folder as folder_module
from alphazero_llm_trainer.scale.folder import SampleFolder
from alphazero_llm_trainer.scale.sample import identity, run_sample
from alphazero_llm_trainer.training.checkpoint import newest_whole, write_manifest


def test_a_cut_forgets_what_was_not_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk itself: each kind of loss, by hand."""
    root = tmp_path / "disk"
    root.mkdir()
    disk = ForgetfulDisk(root, monkeypatch, lambda disk: None)
    file = (root / "a").open("wb", buffering=0)
    file.write(b"12")
    os.fsync(file.fileno())
    assert disk.left() == {} and disk.left(names="kept") == {"a": b"12"}
    sync(root)
    file.write(b"345")
    assert disk.left() == {"a": b"12"}
    torn = {disk.left("torn", rng=Random(n))["a"] for n in range(50)}
    assert torn == {b"12", b"123", b"1234", b"12345"}
    os.replace(root / "a", root / "b")
    (root / "c").mkdir()
    assert disk.left() == {"a": b"12"} and disk.left(names="kept") == {"b": b"12", "c": None}
    sync(root)
    assert restored(disk.left(), tmp_path / "left").joinpath("b").read_bytes() == b"12"
    file.close()
    disk.close()


def test_a_file_is_the_old_one_or_the_new_one_at_every_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root, done, seen = tmp_path / "disk", [-1], set()
    root.mkdir()

    def look(disk: ForgetfulDisk) -> None:
        left = restored(disk.left(), tmp_path / f"cut-{disk.cuts}")
        if done[-1] >= 0:
            seen.add(int((left / "plain").read_text()))
            assert int((left / "plain").read_text()) >= done[-1]
        shutil.rmtree(left)

    disk = ForgetfulDisk(root, monkeypatch, look)
    for number in range(50):
        write_whole(root / "plain", str(number))
        done.append(number)
    assert disk.cuts >= 100 and seen == set(range(50))


def test_checkpoints_at_every_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint that was reported is there whole, with all trees that it counts, whatever its trainer synced."""
    root = tmp_path / "run"
    root.mkdir()
    reported = 0

    def look(disk: ForgetfulDisk) -> None:
        left = restored(disk.left(), tmp_path / f"cut-{disk.cuts}")
        folder, facts = newest_whole(left, pytest.fail)
        assert facts.get("rounds_done", 0) >= reported
        if folder is not None:
            assert (folder / "weights.bin").read_bytes() == bytes([facts["rounds_done"]]) * 1000
            trees = Journal(left / "journal.jsonl")
            assert len(trees) >= 3 * facts["rounds_done"]
            trees.close()
        shutil.rmtree(left)

    disk = ForgetfulDisk(root, monkeypatch, look)
    journal = Journal(root / "journal.jsonl")
    for number in range(1, 8):
        for tree in range(3):
            journal.append({"key": f"{number}/{tree}"})
        folder = root / f"checkpoint-{number}"
        folder.mkdir()
        (folder / "weights.bin").write_bytes(bytes([number]) * 1000)
        (folder / "trainer_state.json").write_text("{}")
        journal.sync()
        write_manifest(folder, {"rounds_done": number})
        reported = number
    journal.close()
    assert disk.cuts >= 100


def trees_of(folder: Path) -> dict[str, Any]:
    """What counts of all trees in a folder, by key."""
    return {key: what_counts(record) for key, record in trees_in(folder).items()}


def test_sample_cut_at_every_moment_loses_no_tree_and_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tree is kept once the journal was synced. Two states of the disk are gone on from."""
    job, root, rng = a_job(5), tmp_path / "disk", Random(0)
    kept: frozenset[str] = frozenset()
    states: list[State] = []
    kinds = list(itertools.product(UNSYNCED, NAMES))
    sync_journal = Journal.sync

    def sync_and_note(journal: Journal) -> None:
        nonlocal kept
        sync_journal(journal)
        if journal.path == root / JOURNAL:
            kept = frozenset(json.loads(line)["key"] for line in journal.path.read_bytes().splitlines())

    def look(disk: ForgetfulDisk) -> None:
        for unsynced, names in (kinds[0], rng.choice(kinds[1:])):
            state = disk.left(unsynced, names, rng)
            if state in states:
                continue
            states.append(state)
            left = restored(state, tmp_path / "cut")
            folder = SampleFolder(left, identity(job), job.tasks, resume=True)
            folder.begin(folder.stored.get("policy", {"name": "embedded"}))
            assert kept <= set(folder.journal) <= set(keys_of(job)), f"{unsynced}, names {names}"
            folder.end("stopped")
            shutil.rmtree(left)

    root.mkdir()
    with monkeypatch.context() as patch:
        patch.setattr(folder_module, "SYNC_TREES", 2)
        patch.setattr(Journal, "sync", sync_and_note)
        disk = ForgetfulDisk(root, patch, look)
        run_sample(job, root)
        disk.close()
    whole = trees_of(root)
    assert set(whole) == set(keys_of(job)) == kept and len(states) >= 20
    for number, state in enumerate(rng.sample(states, 2)):
        left = restored(state, tmp_path / f"on-{number}")
        run_sample(job, left, resume=True)
        assert trees_of(left) == whole


def test_the_newest_whole_checkpoint(tmp_path: Path) -> None:
    said: list[str] = []
    for number in (4, 8, 12):
        folder = tmp_path / f"checkpoint-{number}"
        folder.mkdir()
        (folder / "weights.bin").write_bytes(bytes([number]) * 100)
        write_manifest(folder, {"rounds_done": number})
    assert newest_whole(tmp_path, said.append)[1]["rounds_done"] == 12 and not said
    (tmp_path / "checkpoint-12" / "weights.bin").write_bytes(b"")
    (tmp_path / "checkpoint-8" / "alphazero.json").write_text('{"rounds_done": 8')
    assert newest_whole(tmp_path, said.append)[1]["rounds_done"] == 4
    assert len(said) == 2 and "checkpoint-12" in said[0] and "checkpoint-8" in said[1]
    (tmp_path / "checkpoint-4" / "alphazero.json").write_bytes(b"")
    assert newest_whole(tmp_path, said.append) == (None, {})
