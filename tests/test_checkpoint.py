"""Checkpoints prove themselves; run folders are found again."""

from __future__ import annotations

from pathlib import Path

import pytest
from support import grpo_config

from alphazero_llm_trainer.errors import CheckpointError
from alphazero_llm_trainer.training.checkpoint import (
    MANIFEST,
    fingerprint,
    newest_whole,
    read_manifest,
    write_manifest,
)
from alphazero_llm_trainer.training.run import RunFolder, find_run, new_run


def sealed(folder: Path, **facts: int) -> Path:
    folder.mkdir(parents=True)
    (folder / "weights.safetensors").write_bytes(bytes(range(256)) * 20)
    (folder / "state.json").write_text("{}")
    (folder / "nested").mkdir()
    write_manifest(folder, {"round": 3, **facts})
    return folder


def test_a_manifest_comes_back(tmp_path: Path) -> None:
    folder = sealed(tmp_path / "checkpoint-10", seen=7)
    facts = read_manifest(folder)
    assert (facts["round"], facts["seen"]) == (3, 7)
    assert set(facts["files"]) == {"weights.safetensors", "state.json"}
    assert facts["files"]["weights.safetensors"] == fingerprint(folder / "weights.safetensors")
    assert facts["files"]["weights.safetensors"]["bytes"] == 5120
    write_manifest(folder, {"round": 4})  # sealed again: the manifest never names itself
    assert read_manifest(folder)["round"] == 4 and MANIFEST not in read_manifest(folder)["files"]
    assert not list(folder.glob("*.part"))


def truncate(folder: Path) -> None:
    file = folder / "weights.safetensors"
    file.write_bytes(file.read_bytes()[:-1])


def change(folder: Path) -> None:
    file = folder / "weights.safetensors"
    raw = bytearray(file.read_bytes())
    raw[100] ^= 1
    file.write_bytes(raw)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (truncate, "truncated or changed weights.safetensors"),
        (change, "truncated or changed weights.safetensors"),
        (lambda folder: (folder / "state.json").unlink(), "lacks state.json"),
        (lambda folder: (folder / MANIFEST).unlink(), "never finished"),
        (lambda folder: (folder / MANIFEST).write_text('{"round": 3, "fil'), "broken"),
        (lambda folder: (folder / MANIFEST).write_bytes(b"\xff\xfe"), "broken"),
        (lambda folder: (folder / MANIFEST).write_text("[]"), "broken"),
        (lambda folder: (folder / MANIFEST).write_text('{"round": 3}'), "broken"),
    ],
)
def test_a_damaged_checkpoint_is_one_sentence(tmp_path: Path, damage, words: str) -> None:
    folder = sealed(tmp_path / "checkpoint-10")
    damage(folder)
    with pytest.raises(CheckpointError, match=words) as caught:
        read_manifest(folder)
    assert str(folder) in str(caught.value) and "\n" not in str(caught.value)


def test_the_newest_is_the_highest_sealed_one(tmp_path: Path) -> None:
    assert newest_whole(tmp_path, pytest.fail) == (None, {})
    for number in (9, 10, 100):
        sealed(tmp_path / f"checkpoint-{number}")
    unsealed = tmp_path / "checkpoint-200"
    unsealed.mkdir()
    (unsealed / "weights.safetensors").write_bytes(b"half")
    assert newest_whole(tmp_path, pytest.fail)[0] == tmp_path / "checkpoint-100"  # by number, not by name


def test_runs_are_numbered(tmp_path: Path) -> None:
    assert new_run(tmp_path / "checkpoints").path.name == "run-001"
    assert new_run(tmp_path / "checkpoints").path.name == "run-002"
    (tmp_path / "checkpoints" / "run-041").mkdir()
    (tmp_path / "checkpoints" / "run-old").mkdir()
    assert new_run(tmp_path / "checkpoints").path.name == "run-042"


def test_a_run_is_found_again(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="found no run"):
        find_run(tmp_path, None)
    with pytest.raises(CheckpointError, match=r"no run\.json"):
        find_run(tmp_path, tmp_path / "run-001")
    first, second, third = (new_run(tmp_path) for _ in range(3))
    for folder in (first, second):
        folder.write_card({"config": grpo_config().model_dump(mode="json")})
    assert find_run(tmp_path, None).path == second.path  # the third never began
    assert find_run(tmp_path, first.path).path == first.path
    with pytest.raises(CheckpointError):
        find_run(tmp_path, third.path)


def test_the_newest_run_is_by_number_not_by_name(tmp_path: Path) -> None:
    for name in ("run-999", "run-1000"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.json").write_text("{}")
    assert find_run(tmp_path, None).path.name == "run-1000"


def test_a_card_holds_the_configuration(tmp_path: Path) -> None:
    folder = new_run(tmp_path)
    config = grpo_config(["train.optimizer.learning_rate=1e-4", "search.budget_tokens=77", "student=embedded"])
    folder.write_card({"config": config.model_dump(mode="json"), "seed": 3})
    assert folder.config() == config
    assert folder.read_card()["seed"] == 3


@pytest.mark.parametrize("text", [None, "", "{", "[]", '{"seed": 3}'])
def test_a_broken_card_is_one_sentence(tmp_path: Path, text: str | None) -> None:
    folder = RunFolder(tmp_path)
    if text is not None:
        folder.card.write_text(text)
    with pytest.raises(CheckpointError, match=r"run\.json") as caught:
        folder.read_card()
    assert "\n" not in str(caught.value)


def test_metrics_survive_a_cut_and_a_step_back(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    assert folder.read_metrics() == []
    lines = [{"event": "start"}, *({"round": i, "reward": i / 4} for i in range(4))]
    for line in lines:
        folder.append_metrics(line)
    assert folder.read_metrics() == lines
    with folder.metrics.open("a") as file:
        file.write('{"round": 4, "rew')
    assert folder.read_metrics() == lines
    folder.forget_metrics_from(2)
    assert folder.read_metrics() == lines[:3]
    folder.append_metrics({"round": 2})
    assert folder.read_metrics()[-1] == {"round": 2}
