"""`--model` takes what transformers loads: other architectures get LoRA on their own linear layers, GGUF files are read."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AutoTokenizer,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    Phi3Config,
    Phi3ForCausalLM,
)

from alphazero_llm_trainer.config.load import Config, load_config
from alphazero_llm_trainer.errors import ConfigError
from alphazero_llm_trainer.files import read_object, write_json
from alphazero_llm_trainer.policy.adapters import activate, load_adapter, own_parameters
from alphazero_llm_trainer.policy.folders import find_model, with_model
from alphazero_llm_trainer.policy.student import PACKAGED, load_student
from alphazero_llm_trainer.training.models import make_trainable, save_adapter

from gguf_file import TOKENS, tiny_gguf  # isort: skip

QUESTION = "How many apples are in 3 boxes of 14 apples?"
SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}


def gpt2(ids: dict[str, int]) -> Any:
    return GPT2LMHeadModel(GPT2Config(n_embd=32, n_layer=2, n_head=4, n_positions=256, **ids))


def phi3(ids: dict[str, int]) -> Any:
    return Phi3ForCausalLM(Phi3Config(**SMALL, intermediate_size=48, num_key_value_heads=2, **ids))


KINDS = {
    "gpt2": (gpt2, {"c_attn", "c_proj", "c_fc"}),
    "phi3": (phi3, {"qkv_proj", "o_proj", "gate_up_proj", "down_proj"}),
}


@pytest.fixture(params=list(KINDS))
def unknown(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Config, set[str]]:
    """A student of an architecture that models.yaml has none of, and its linear layers' names."""
    make, names = KINDS[request.param]
    tokenizer = AutoTokenizer.from_pretrained(PACKAGED)
    torch.manual_seed(0)
    ids = {
        "vocab_size": len(tokenizer),
        "eos_token_id": tokenizer.eos_token_id,
        "bos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    folder = tmp_path / request.param
    make(ids).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return load_config(overrides=[{"student": "mine", "models": {"mine": {"path": str(folder)}}}]), names


def logits(student: Any) -> torch.Tensor:
    ids = torch.tensor([student.prompt_ids(QUESTION)])
    with torch.no_grad():
        return student.model(input_ids=ids).logits


def test_lora_is_on_all_linear_layers_of_an_unknown_architecture(
    unknown: tuple[Config, set[str]], tmp_path: Path
) -> None:
    config, names = unknown
    student = load_student(config)
    assert set(student.spec.lora.targets) == names
    before = logits(student)
    make_trainable(student.model, student.spec, "lora")
    adapted = own_parameters(student.model, "default")
    found = {key.split(".lora_")[0].rpartition(".")[2] for key in adapted}
    assert found == names
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in adapted.values():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    student.model.eval()
    changed = logits(student)
    assert (changed - before).abs().max() > 1e-3
    save_adapter(student.model, tmp_path / "adapter")
    fresh = load_student(config)
    load_adapter(fresh.model, tmp_path / "adapter", "default")
    activate(fresh.model, "default")
    torch.testing.assert_close(logits(fresh), changed)
    wrong = {"models": {"mine": {"path": config.models["mine"].path, "lora": {"targets": ["q_porj"]}}}}
    with pytest.raises(ConfigError, match="q_porj") as caught:
        load_student(load_config(overrides=[{"student": "mine"}, wrong]))
    assert min(names) in str(caught.value)


def test_a_gguf_file_is_a_model(tmp_path: Path) -> None:
    path = tmp_path / "Tiny.gguf"
    model = tiny_gguf(path)
    found, folder = find_model(str(path), load_config())
    assert folder is None and found["student"] == "tiny-gguf"
    student = load_student(load_config(overrides=[found]))
    assert student.encode("the") == [TOKENS.index("the")] and student.engine.eos_id == 0
    ids = torch.tensor([student.encode("an apple\n")])
    with torch.no_grad():
        torch.testing.assert_close(student.model(input_ids=ids).logits, model(input_ids=ids).logits)
    # It has no chat template: a prompt is plain text.
    assert student.decode(student.prompt_ids("an apple")) == "an apple\n"
    with pytest.raises(ConfigError, match="no folder or GGUF file"):
        find_model(str(tmp_path / "gone.gguf"), load_config())


@pytest.mark.parametrize("method", ["awq", "gptq", "fp8", "compressed-tensors", "mxfp4"])
def test_weights_in_another_format_say_what_they_are(method: str, tmp_path: Path) -> None:
    folder = saved(tmp_path / "student", "float32")
    shape = read_object(folder / "config.json")
    write_json(folder / "config.json", shape | {"quantization_config": {"quant_method": method, "bits": 4}})
    config, path = with_model(str(folder), [], lambda overrides: load_config(overrides=list(overrides)))
    with pytest.raises(ConfigError, match=rf"student {folder} is quantised by {method.upper()}, .*nf4") as caught:
        load_student(config, path=path)
    assert "\n" not in str(caught.value)


def test_a_float16_folder_is_computed_as_it_is(tmp_path: Path) -> None:
    """By the kernels in float32, which holds its numbers; training all of its weights is refused."""
    folder = saved(tmp_path / "student", "float16")
    entry = {"path": str(folder), "dtype": "float16", "adapter": "lora"}
    student = load_student(load_config(overrides=[{"student": "mine", "models": {"mine": entry}}]))
    assert student.model.dtype == torch.float16
    prompt = student.prompt_ids(QUESTION)
    [scores] = asyncio.run(student.engine.score([(prompt[:5], prompt[5:])]))
    right = logits(student)[0].float().log_softmax(-1)[4:-1].gather(1, torch.tensor(prompt[5:])[:, None])[:, 0]
    torch.testing.assert_close(torch.tensor(scores), right, rtol=0, atol=0.02)
    with pytest.raises(ConfigError, match="dtype is float16, in which updates are lost: use 'lora'"):
        make_trainable(student.model, student.spec, "full")


def saved(folder: Path, dtype: str) -> Path:
    """A tiny Llama's folder with the embedded student's tokenizer."""
    tokenizer = AutoTokenizer.from_pretrained(PACKAGED)
    torch.manual_seed(0)
    shape = LlamaConfig(**SMALL, intermediate_size=48, vocab_size=len(tokenizer), eos_token_id=tokenizer.eos_token_id)
    LlamaForCausalLM(shape).to(getattr(torch, dtype)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
