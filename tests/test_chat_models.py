"""A chat model in a folder: what it is called, how it is trained, what limits its responses have and what it is told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import alphazero_llm_trainer as alphazero
from alphazero_llm_trainer.api.settings import configured
from alphazero_llm_trainer.cli.main import main
from alphazero_llm_trainer.config.load import load_config
from alphazero_llm_trainer.errors import CheckpointError
from alphazero_llm_trainer.policy import folders
from alphazero_llm_trainer.policy.folders import PACKAGED, find_model

from support import tiny_chat  # isort: skip


@pytest.fixture(scope="module")
def chat(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_chat(tmp_path_factory.mktemp("models") / "Tiny-Chat", dtype=torch.bfloat16)


def printed(capsys: pytest.CaptureFixture[str], *argv: str) -> Any:
    assert main([*argv, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


# -- what a folder is --------------------------------------------------------------------------------------------------


def test_a_folder_is_a_student_of_its_own(chat: Path, capsys: pytest.CaptureFixture[str]) -> None:
    student = printed(capsys, "info", "--model", str(chat))["student"]
    assert (student["name"], student["path"], student["trained"]) == ("tiny-chat", str(chat), "full")
    assert student["numbers"] == "float32"  # what is trained whole is trained in it
    facts = printed(capsys, "train", "--dry-run", "--model", str(chat))["student"]
    assert facts == {"name": "tiny-chat", "path": str(chat), "trained": "all weights"}


def test_a_large_folder_gets_adapters(chat: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folders, "LORA_FROM", 10_000)
    found, folder = find_model(str(chat), load_config())
    assert folder is None and found["student"] == "tiny-chat"
    spec = load_config(overrides=[found]).models["tiny-chat"]
    assert (spec.adapter, spec.dtype, spec.quantization, spec.path) == ("lora", "bfloat16", "none", str(chat))


@pytest.mark.parametrize(
    ("place", "known", "name"),
    [
        ("Qwen2.5-0.5B", None, "qwen2.5-0.5b"),
        ("here", "Qwen/Qwen2.5-0.5B-Instruct", "qwen2.5-0.5b-instruct"),
        ("models--Qwen--Qwen3-0.6B/snapshots/abc", None, "qwen3-0.6b"),
        ("embedded", None, "embedded-folder"),
    ],
)
def test_a_folders_name_is_the_hubs_or_its_own(tmp_path: Path, place: str, known: str | None, name: str) -> None:
    folder = tmp_path / place
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(
        json.dumps({"hidden_size": 8} | ({} if known is None else {"_name_or_path": known}))
    )
    assert find_model(str(folder), load_config())[0]["student"] == name


def test_folders_of_the_embedded_kind_and_of_a_named_student_stay_what_they_are(chat: Path) -> None:
    assert find_model(str(PACKAGED), load_config()) == ({"student": "embedded"}, PACKAGED)
    assert find_model(str(chat), load_config(overrides=["student=smollm2-135m"])) == ({}, chat)


TRAINED = ["train.num_examples=4", "train.questions_per_round=4", "train.eval_size=2", "train.validation_size=0",
           "train.iterations=1", "train.samples=2", "train.requeue_limit=0", "train.rft.updates_per_round=1",
           "search.max_tokens=12", "engine.max_context=512", "train.demonstrations=8"]  # fmt: skip


@pytest.mark.parametrize("adapter", ["full", "lora"])
def test_what_a_run_wrote_goes_on_as_what_it_is(
    chat: Path, tmp_path: Path, adapter: str, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = [part for text in [*TRAINED, f"train.adapter={adapter}"] for part in ("--set", text)]
    assert main(["rft", "--model", str(chat), "--out", str(tmp_path), *settings, "--quiet"]) == 0
    run = tmp_path / "run-001"
    card = json.loads((run / "run.json").read_text())
    assert card["student"] == "tiny-chat" and "rft on tiny-chat" in (run / "report.html").read_text()
    assert (run / "student" / "README.md").read_text().count("# tiny-chat, trained by search") == 1
    capsys.readouterr()
    student = printed(capsys, "info", "--model", str(run / "student"))["student"]
    assert (student["name"], student["path"]) == ("tiny-chat", str(run / "student"))
    if adapter == "lora":  # the adapter knows its base
        found, folder = find_model(str(run / "adapter"), load_config())
        assert folder == run / "adapter" and load_config(overrides=[found]).models["tiny-chat"].path == str(chat)


def test_a_broken_note_is_one_sentence(tmp_path: Path) -> None:
    folder = tiny_chat(tmp_path / "broken")
    (folder / folders.FACTS).write_text("{}")
    with pytest.raises(CheckpointError, match=r"broken student\.json"):
        find_model(str(folder), load_config())


# -- limits ------------------------------------------------------------------------------------------------------------


def limits(*overrides: Any) -> tuple[int, int]:
    search = load_config(overrides=overrides).search
    return search.max_tokens, search.max_depth


def test_limits_are_the_students_and_explicit_ones_win(chat: Path) -> None:
    assert limits("student=embedded") == limits("student=small") == (160, 12)
    found, _ = find_model(str(chat), load_config())
    assert limits(found) == limits("student=smollm2-135m") == (400, 40)
    assert limits("student=smollm2-135m", "search.max_tokens=99") == (99, 40)
    assert limits("student=embedded", "models.embedded.max_tokens=70") == (70, 12)
    assert limits(found, {"search": {"max_tokens": None, "max_depth": 3}}) == (400, 3)


def test_a_loaded_student_brings_its_limits(chat: Path) -> None:
    resolved, folder = configured(alphazero.load(chat), [], None)
    assert (resolved.student, resolved.search.max_tokens, folder) == ("tiny-chat", 400, None)
