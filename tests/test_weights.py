"""A student is loaded whole or not at all: damaged weights and strange tokenizers are an error, never random answers."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from alphazero_llm_trainer.cli.main import main
from alphazero_llm_trainer.config.load import load_config
from alphazero_llm_trainer.engine.protocol import GenerateRequest
from alphazero_llm_trainer.errors import CheckpointError, EngineError
from alphazero_llm_trainer.policy.student import PACKAGED, Student, load_student

from support import run  # isort: skip

Weights = dict[str, torch.Tensor]
ROWS = 169  # of the embedded student's embedding


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the embedded student, to be damaged."""
    return Path(shutil.copytree(PACKAGED, tmp_path / "student"))


def change_weights(folder: Path, change: Callable[[Weights], Any]) -> None:
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})


def change_json(file: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    content = json.loads(file.read_text())
    change(content)
    file.write_text(json.dumps(content))


def add_token(folder: Path, token_id: int, token: str = "<new>", special: bool = False) -> None:
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    entry = {"id": token_id, "content": token, "special": special, **plain}
    change_json(folder / "tokenizer.json", lambda content: content["added_tokens"].append(entry))


def load(folder: Path) -> Student:
    return load_student(load_config(overrides=["student=embedded"]), path=folder)


def refused(folder: Path, *words: str) -> None:
    """It can't be loaded, and why is one sentence that has these words."""
    with pytest.raises(CheckpointError) as caught:
        load(folder)
    text = str(caught.value)
    assert str(folder) in text and "\n" not in text and len(text) < 400
    for word in words:
        assert word in text, (word, text)


def lose(weights: Weights) -> None:
    del weights["model.layers.0.self_attn.q_proj.weight"], weights["model.norm.weight"]


FAULTS: dict[str, Callable[[Weights], Any]] = {
    "lacks model.layers.0.self_attn.q_proj.weight, model.norm.weight: copy its files": lose,
    "lacks lm_head.weight, model.embed_tokens.weight": lambda weights: weights.pop("model.embed_tokens.weight"),
    "has another shape than config.json says for model.norm.weight": lambda weights: weights.update(
        {"model.norm.weight": torch.ones(128)}
    ),
    "has numbers that are not finite in model.layers.1.mlp.up_proj.weight": lambda weights: weights[
        "model.layers.1.mlp.up_proj.weight"
    ][3, 5].fill_(float("nan")),
}


@pytest.mark.parametrize("words", FAULTS)
def test_faulty_weights_are_refused(folder: Path, words: str) -> None:
    load(folder)  # its tied output layer is not missing
    change_weights(folder, FAULTS[words])
    refused(folder, words)


def test_the_command_says_so_and_nothing_else(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    change_weights(folder, lambda weights: weights.pop("model.norm.weight"))
    assert main(["search", "--set", "student=embedded", "--model", str(folder)]) == 2
    out, err = capfd.readouterr()
    assert out == "" and err.startswith("error: model ") and err.count("\n") == 1


# -- the tokenizer -----------------------------------------------------------------------------------------------------


def test_a_placeholder_beyond_the_model_is_refused_where_a_prompt_has_it(folder: Path) -> None:
    """Gemma 3's text models have such a token; a prompt without it is answered as ever."""
    add_token(folder, ROWS, "<image>", special=True)
    student, plain = load(folder), load(PACKAGED)
    question = "Ana has 3 pens."
    assert student.prompt_ids(question) == plain.prompt_ids(question)
    request = GenerateRequest(student.prompt_ids(question), max_new_tokens=8, temperature=0.0)
    assert run(lambda: student.engine.generate([request])) == run(lambda: plain.engine.generate([request]))
    wrong = GenerateRequest(student.prompt_ids(f"{question} <image>"))
    with pytest.raises(EngineError, match=f"token id {ROWS} is not one of the model's {ROWS} tokens"):
        run(lambda: student.engine.generate([wrong]))
