"""A Llama's weights without transformers' model code: the same numbers, and whatever is unusual is left to transformers."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from test_native import KINDS, engine_of, llama
from transformers import AutoConfig, LlamaForCausalLM

from alphazero_llm_trainer.config.load import load_config
from alphazero_llm_trainer.engine.native import rotary_table
from alphazero_llm_trainer.engine.plain import WEIGHTS, PlainLlama, read_plain
from alphazero_llm_trainer.engine.protocol import GenerateRequest
from alphazero_llm_trainer.policy.adapters import fingerprint
from alphazero_llm_trainer.policy.folders import PACKAGED
from alphazero_llm_trainer.policy.student import Student, load_student

EMBEDDED = ["student=embedded"]


@pytest.fixture(scope="module")
def both() -> tuple[Student, Student]:
    """The embedded student as transformers loads it, and without its model code."""
    config = load_config(overrides=EMBEDDED)
    return load_student(config), load_student(config, inference=True)


def test_weights_names_and_positions_are_transformers_own(both: tuple[Student, Student]) -> None:
    theirs, ours = (student.model for student in both)
    assert type(ours) is PlainLlama and type(theirs) is not PlainLlama
    assert fingerprint(ours) == fingerprint(theirs)
    assert set(dict(ours.named_parameters())) == set(dict(theirs.named_parameters()))  # tied weights are there once
    for mine, other in zip(rotary_table(ours.model), rotary_table(theirs.model), strict=True):  # type: ignore[arg-type]
        assert torch.equal(mine, other)


def test_both_answer_alike_to_the_bit() -> None:
    config = load_config(overrides=EMBEDDED)
    found = []
    for inference in (False, True):
        student = load_student(config, inference=inference)
        prompt = student.prompt_ids("Ana has 3 pens. She buys 4 more pens. How many pens does Ana have now?")
        [[sample]] = asyncio.run(student.engine.generate([GenerateRequest(prompt, max_new_tokens=40, seed=3)]))
        found.append((student.decode(sample.token_ids), sample.token_ids, sample.logprobs))
    assert found[0] == found[1]
    assert "#### " in found[0][0]
    off = load_student(load_config(overrides=[*EMBEDDED, "engine.native=off"]), inference=True)
    assert type(off.model) is not PlainLlama  # it has no forward beside the kernels


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_and_its_half_precision_file_is_what_transformers_loads(kind: str, tmp_path: Path) -> None:
    model = llama(kind, tie_word_embeddings=kind == "qwen2").bfloat16()
    model.save_pretrained(tmp_path)
    for dtype in (torch.bfloat16, torch.float32):
        ours, theirs = read_plain(tmp_path, dtype), KINDS[kind][1].from_pretrained(tmp_path, dtype=dtype)
        assert type(ours) is PlainLlama and fingerprint(ours) == fingerprint(theirs)
        pair = ((3, 4, 5), (6, 7, 8, 9))
        first, second = (asyncio.run(engine_of(one).score([pair])) for one in (ours, theirs))
        assert first == second


def test_layers_are_in_their_order_beyond_the_tenth(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(PACKAGED, tmp_path / "deep"))
    config = AutoConfig.from_pretrained(folder)
    config.num_hidden_layers, config.layer_types = 12, None
    torch.manual_seed(0)
    LlamaForCausalLM(config).save_pretrained(folder)
    found = []
    for inference in (False, True):
        student = load_student(load_config(overrides=EMBEDDED), path=folder, inference=inference)
        [scores] = asyncio.run(student.engine.score([(student.prompt_ids("Ana has 3 pens?"), tuple(range(5, 40)))]))
        found.append((type(student.model) is PlainLlama, scores))
    assert [plain for plain, _ in found] == [False, True] and found[0][1] == found[1][1]


def test_tokenizers_agree(both: tuple[Student, Student]) -> None:
    theirs, ours = both
    assert ours.prompt_ids("Ana has 3 pens?") == theirs.prompt_ids("Ana has 3 pens?")
    assert ours.engine.step_ends == theirs.engine.step_ends and ours.engine.eos_ids == theirs.engine.eos_ids


def changed(folder: Path, **values: object) -> Path:
    """A copy of the packaged student with other values in config.json."""
    shutil.copytree(PACKAGED, folder)
    config = json.loads((folder / "config.json").read_text()) | values
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize(
    "values",
    [
        {"model_type": "mistral"},
        {"attention_bias": True},
        {"hidden_act": "gelu"},
        {"num_hidden_layers": 3},
        {"vocab_size": 168},
        {"head_dim": None},
        {"architectures": ["LlamaForSequenceClassification"]},
        {"rope_parameters": {"rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0}},
        {"quantization_config": {"load_in_4bit": True}},
        {"tie_word_embeddings": False},  # the file has no output layer of its own
    ],
    ids=lambda values: next(iter(values)),
)
def test_another_model_is_left_to_transformers(values: dict[str, object], tmp_path: Path) -> None:
    assert read_plain(changed(tmp_path / "same")) is not None
    assert read_plain(changed(tmp_path / "other", **values)) is None


def test_a_faulty_file_is_left_to_transformers(tmp_path: Path) -> None:
    folder = changed(tmp_path / "student")
    weights = load_file(folder / WEIGHTS)
    name = "model.layers.1.mlp.up_proj.weight"
    for fault in ({name: weights[name] * torch.nan}, {name: weights[name].double()}, {"more": torch.zeros(1)}):
        save_file(weights | fault, folder / WEIGHTS)
        assert read_plain(folder) is None
    (folder / WEIGHTS).write_bytes(b"cut")
    assert read_plain(folder) is None
    assert read_plain(tmp_path / "nowhere") is None


def test_a_search_loads_neither_model_code_nor_what_it_does_not_ask() -> None:
    code = (
        "import sys\nfrom alphazero_llm_trainer.cli.main import main\n"
        "assert main(['search', '--model', 'embedded', '--simulations', '2']) == 0\n"
        "heavy = {'transformers.modeling_utils', 'torch._dynamo', 'sympy', 'openai', 'datasets', 'trl', 'peft', 'accelerate'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)"
    )
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=environment)
    assert result.returncode == 0, result.stderr
