"""Power cuts at every write of small runs: nothing is lost that was reported as done, and every run goes on."""

from __future__ import annotations

import errno
import json
import os
import shutil
from pathlib import Path
from random import Random
from typing import Any

import pytest
from cut_runs import SMALL, TREES, CutSample, CutTrain, command, product, refused, train_on, trees_of
from faults import a_job, trees_in, what_counts
from power_cuts import ForgetfulDisk, restored

from alphazero_llm_trainer.errors import DataError
from alphazero_llm_trainer.files import before, read_sealed, sync, write_sealed, write_whole
from alphazero_llm_trainer.mcts.journal import Journal, read_shards
from alphazero_llm_trainer.scale.sample import run_sample
from alphazero_llm_trainer.training.checkpoint import newest_whole, write_manifest


def test_a_file_is_whole_at_every_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """600 cuts: the file is the old one or the new one, and never one that was not finished."""
    root, seen = tmp_path / "disk", set()
    root.mkdir()

    def look(disk: ForgetfulDisk) -> None:
        left = disk.restore(tmp_path / f"cut-{disk.cuts}")
        if (left / "a.txt").is_file():
            text = (left / "a.txt").read_text()
            assert text == f"{text[:1]}" * 3, text
            seen.add(text)
            reported = max(done, default="")
            assert text >= reported, "what was reported as written is gone"
        shutil.rmtree(left)

    done: list[str] = []
    disk = ForgetfulDisk(root, monkeypatch, look)
    for number in range(200):
        text = chr(ord("0") + number) * 3
        write_whole(root / "a.txt", text)
        done.append(text)
    assert disk.cuts >= 400 and len(seen) == 200


def test_a_sealed_object_is_there_at_every_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "disk"
    root.mkdir()
    done = [-1]

    def look(disk: ForgetfulDisk) -> None:
        left = disk.restore(tmp_path / f"cut-{disk.cuts}")
        if done[-1] >= 0:
            assert read_sealed(left / "run.json")["number"] >= done[-1]
        shutil.rmtree(left)

    disk = ForgetfulDisk(root, monkeypatch, look)
    for number in range(100):
        write_sealed(root / "run.json", {"number": number})
        done.append(number)
    assert disk.cuts >= 200


@pytest.mark.parametrize("damage", [b"", b'{"number": 2', b'{"number": 3, "sha256": "0"}', b"[" * 100_000])
def test_a_broken_object_is_the_one_of_before(tmp_path: Path, damage: bytes) -> None:
    said: list[str] = []
    for number in (1, 2):
        write_sealed(tmp_path / "run.json", {"number": number})
    assert read_sealed(tmp_path / "run.json", said.append) == {"number": 2} and not said
    (tmp_path / "run.json").write_bytes(damage)
    assert read_sealed(tmp_path / "run.json", said.append) == {"number": 1}
    assert len(said) == 1 and "run.json is broken" in said[0]
    before(tmp_path / "run.json").unlink()
    with pytest.raises(ValueError):
        read_sealed(tmp_path / "run.json")


def test_checkpoints_at_every_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint that was reported is there whole, with all trees that it counts, whatever its trainer synced."""
    root = tmp_path / "run"
    root.mkdir()
    reported = 0

    def look(disk: ForgetfulDisk) -> None:
        left = disk.restore(tmp_path / f"cut-{disk.cuts}")
        folder, facts = newest_whole(left, pytest.fail)
        assert facts.get("rounds_done", 0) >= reported
        if folder is not None:
            assert (folder / "weights.bin").read_bytes() == bytes([facts["rounds_done"]]) * 1000
            trees = Journal(left / "journal.jsonl")
            assert len(trees.records) >= 3 * facts["rounds_done"] and not trees.damaged
            trees.close()
        shutil.rmtree(left)

    disk = ForgetfulDisk(root, monkeypatch, look)
    journal = Journal(root / "journal.jsonl")
    for number in range(1, 15):
        for tree in range(3):
            journal.append({"key": f"{number}/{tree}", "tree": {}})
        folder = root / f"checkpoint-{number}"
        folder.mkdir()
        (folder / "weights.bin").write_bytes(bytes([number]) * 1000)
        (folder / "trainer_state.json").write_text("{}")
        journal.sync()
        write_manifest(folder, {"rounds_done": number})
        reported = number
    journal.close()
    assert disk.cuts >= 240


@pytest.mark.slow
def test_sample_at_every_cut(tmp_path: Path) -> None:
    """A whole run, cut at every write, rename and sync: all that was reported is there, and what was left goes on."""
    run = CutSample(tmp_path, Random(0), questions=7, keep=2)
    assert not run.cuts.wrong, run.cuts.wrong[:3]
    assert run.cuts.tried >= 300 and run.cuts.states >= 150
    assert run.goes_on() == [None] * 2


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
    assert disk.left() == {"a": b"12"} and disk.left("kept") == {"a": b"12345"}
    assert disk.left("zeros") == {"a": b"12\0\0\0"}
    torn = {disk.left("torn", rng=Random(n))["a"] for n in range(50)}
    assert torn == {b"12", b"123", b"1234", b"12345"}
    os.replace(root / "a", root / "b")
    (root / "c").mkdir()
    assert disk.left() == {"a": b"12"} and disk.left(names="kept") == {"b": b"12", "c": None}
    sync(root)
    assert restored(disk.left(), tmp_path / "left").joinpath("b").read_bytes() == b"12"
    assert disk.cuts == 8
    file.close()
    disk.close()


@pytest.mark.parametrize("error", [errno.EDQUOT, pytest.param(errno.EROFS, marks=pytest.mark.slow)])
def test_a_disk_that_refuses_ends_sample_in_a_sentence(error: int, tmp_path: Path) -> None:
    """A quota that is used up, or a disk that turned read-only: nothing is lost, and the same command goes on."""
    operations, wrong = refused(TREES, tmp_path / "whole", 10**9, error)
    whole = trees_of(tmp_path / "whole")
    assert wrong is None and len(whole) == 8 and operations > 40
    for first in Random(error).sample(range(operations), 3):
        place = tmp_path / f"at-{first}"
        assert refused(TREES, place, first, error)[1] is None
        code, said = command((*TREES[:-1], "--resume", "--out", str(place)))
        assert code == 0 and trees_of(place) == whole, said


# -- flipped bits ------------------------------------------------------------------------------------------------------


def flipped(data: bytes, at: int, bit: int) -> bytes:
    return data[:at] + bytes([data[at] ^ (1 << bit)]) + data[at + 1 :]


def test_a_flipped_bit_in_a_journal_is_found_and_named(tmp_path: Path) -> None:
    """Every bit of a line: its record is gone, or it is what was written; the others stay."""
    path = tmp_path / "journal.jsonl"
    journal = Journal(path)
    records: list[dict[str, Any]] = [{"key": f"k{i}", "tree": {"W": [i * 1.5], "text": ["a = 3\n"]}} for i in range(3)]
    for record in records:
        journal.append(record)
    journal.close()
    whole = path.read_bytes()
    first, second = whole.index(b"\n") + 1, whole.index(b"\n", whole.index(b"\n") + 1)
    damaged = 0
    for at in range(first, second):
        for bit in range(8):
            broken = flipped(whole, at, bit)
            if broken[at : at + 1] == b"\n":  # two half lines, which is no tree either
                continue
            path.write_bytes(broken)
            try:
                again = Journal(path)
            except DataError as error:
                assert "line 2" in str(error)
                damaged += 1
                continue
            again.close()
            assert again.records["k0"] == records[0] and again.records["k2"] == records[2]
            if again.damaged:
                damaged += 1
                assert again.damaged == [f"{path} line 2"] and "k1" not in again.records
                assert path.read_bytes().count(b"\n") == 2
            else:
                assert {k: v for k, v in again.records["k1"].items() if k in records[1]} == records[1]
    assert damaged > 0.9 * 8 * (second - first - 90)


def test_a_journal_of_an_older_version_has_no_hashes_and_is_read(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    path.write_text('{"key":"a","tree":{}}\n{"key":"b"}\n')
    journal = Journal(path)
    assert journal.records == {"a": {"key": "a", "tree": {}}, "b": {"key": "b"}} and not journal.damaged
    journal.append({"key": "c"})
    journal.close()
    again = Journal(path)
    assert list(again.records) == ["a", "b", "c"] and again.records["c"] == {"key": "c"}
    again.close()


def test_a_flipped_digit_in_an_open_shard_is_searched_again(tmp_path: Path) -> None:
    job = a_job(5)
    run_sample(job, tmp_path / "whole")
    run_sample(job, tmp_path / "out")
    folder = tmp_path / "out"
    manifest = read_sealed(folder / "manifest.json")
    write_sealed(folder / "manifest.json", {**manifest, "shards": [], "status": "running"})
    [shard] = folder.glob("shard-*")
    lines = shard.read_bytes().splitlines(keepends=True)
    lines[2] = lines[2].replace(b'"N":[', b'"N":[1', 1)
    shard.write_bytes(b"".join(lines))
    with pytest.raises(DataError, match="line 3 doesn't fit its hash"):
        list(read_shards(folder))
    run_sample(job, folder, resume=True)
    whole, found = trees_in(tmp_path / "whole"), trees_in(folder)
    assert {k: what_counts(v) for k, v in found.items()} == {k: what_counts(v) for k, v in whole.items()}


def test_a_flipped_bit_in_weights_is_found(tmp_path: Path) -> None:
    import torch

    from alphazero_llm_trainer.errors import CheckpointError
    from alphazero_llm_trainer.policy.weights import load_sealed, save_sealed

    state = {"a": torch.randn(5, 3), "b": torch.arange(4).to(torch.bfloat16), "c": torch.tensor(2.0)}
    path = tmp_path / "best.safetensors"
    save_sealed(state, path)
    assert all(torch.equal(state[name], tensor) for name, tensor in load_sealed(path).items())
    whole = path.read_bytes()
    start = 8 + int.from_bytes(whole[:8], "little")
    for at in range(start, len(whole)):
        path.write_bytes(flipped(whole, at, at % 8))
        with pytest.raises(CheckpointError, match="best"):
            load_sealed(path)
    for at in range(len(whole) - 20, len(whole)):
        path.write_bytes(whole[:at])
        with pytest.raises(CheckpointError):
            load_sealed(path)


def test_the_newest_whole_checkpoint(tmp_path: Path) -> None:
    said: list[str] = []
    for number in (4, 8, 12):
        folder = tmp_path / f"checkpoint-{number}"
        folder.mkdir()
        (folder / "weights.bin").write_bytes(bytes([number]) * 100)
        write_manifest(folder, {"rounds_done": number})
    assert newest_whole(tmp_path, said.append)[1]["rounds_done"] == 12 and not said
    (tmp_path / "checkpoint-12" / "weights.bin").write_bytes(b"")
    card = json.loads((tmp_path / "checkpoint-8" / "alphazero.json").read_text())
    (tmp_path / "checkpoint-8" / "alphazero.json").write_text(json.dumps({**card, "rounds_done": 9}))
    assert newest_whole(tmp_path, said.append)[1]["rounds_done"] == 4
    assert len(said) == 2 and "checkpoint-12" in said[0] and "checkpoint-8" in said[1]
    (tmp_path / "checkpoint-4" / "alphazero.json").write_bytes(b"")
    assert newest_whole(tmp_path, said.append) == (None, {})


@pytest.mark.slow
@pytest.mark.parametrize("method", ["rft", "ppo"])
def test_train_at_every_cut(method: str, tmp_path: Path) -> None:
    """A whole run, cut at every write, rename and sync: all that was reported is there, and what was left goes on."""
    run = CutTrain(tmp_path, Random(0), method, keep=7, most=4)
    assert not run.cuts.wrong, run.cuts.wrong[:3]
    assert run.cuts.tried >= 600 and run.cuts.states >= 300
    assert run.goes_on() == [None] * 7


@pytest.mark.slow
def test_a_disk_that_refuses_ends_train_in_a_sentence(tmp_path: Path) -> None:
    words = ("-q", "train", "--use-grpo", *SMALL, "--checkpoint-dir")
    operations, wrong = refused(words, tmp_path / "whole", 10**9, errno.EDQUOT)
    assert wrong is None
    whole = product(tmp_path / "whole")
    for first in Random(0).sample(range(operations), 3):
        place = tmp_path / f"at-{first}"
        assert refused(words, place, first, errno.EDQUOT)[1] is None
        assert train_on(words, place, whole) is None
