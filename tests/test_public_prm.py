"""Public process reward models: each format's scores against plain transformers on a tiny random model of its shape."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, Qwen2Config, Qwen2Model

from alphazero_llm_trainer.config.load import Config, load_config
from alphazero_llm_trainer.errors import CheckpointError, RequestError
from alphazero_llm_trainer.policy.critic import load_prm
from alphazero_llm_trainer.policy.public_prm import QWEN_SYSTEM
from alphazero_llm_trainer.policy.student import Student, load_student
from alphazero_llm_trainer.types import Problem, Step
from tests.support import run

WORDS = ["<pad>", "<eos>", "<unk>", "+", "-", "ки", "Step", "1:", "2:", "3:", "Ana", "has", "four", "apples", "so", "eight",
         "user", "assistant", "system", "end"]  # fmt: skip
TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }} {{ message['content'] }} end {% endfor %}"
    "{% if add_generation_prompt %}assistant {% endif %}"
)
QUESTION, LINES = "Ana has four apples", ["four apples", "so eight", "eight"]
SHAPE: dict[str, Any] = {
    "vocab_size": len(WORDS) + 1, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256, "initializer_range": 0.4,
    "bos_token_id": None, "eos_token_id": 1, "pad_token_id": 0,
}  # fmt: skip


@pytest.fixture(scope="module")
def student() -> Student:
    return load_student(load_config(None, [{"student": "embedded"}]))


def settings(name: str) -> Config:
    return load_config(None, [{"student": "embedded", "train": {"critic": {"format": name}}}])


def a_tokenizer(folder: Path) -> PreTrainedTokenizerFast:
    core = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>",
        additional_special_tokens=["<extra_0>"],
    )  # fmt: skip
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder)
    return tokenizer


def a_byte_tokenizer(folder: Path) -> PreTrainedTokenizerFast:
    """Bytes as tokens: the folder of a Qwen2 model is read with Qwen2's own tokenizer class."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    core = Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(letters)}, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core, pad_token="<pad>", eos_token="<eos>", additional_special_tokens=["<extra_0>"]
    )
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder)
    return tokenizer


def a_causal_model(folder: Path) -> LlamaForCausalLM:
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**SHAPE)).eval()
    model.save_pretrained(folder)
    return model


def steps() -> list[Step]:
    return [Step((), (), line + "\n") for line in LINES]


@torch.inference_mode()
def test_math_shepherd_is_read_at_its_step_tag(student: Student, tmp_path: Path) -> None:
    tokenizer, model = a_tokenizer(tmp_path), a_causal_model(tmp_path)
    verifier = load_prm(tmp_path, student, settings("math-shepherd"))
    judged = run(lambda: verifier(Problem("p", QUESTION, "s"), (), steps()))
    # As on the model's card.
    output = "Step 1: four apples ки\nStep 2: so eight ки\nStep 3: eight ки"
    ids = torch.tensor([tokenizer.encode(f"{QUESTION} {output}")])
    candidates = tokenizer.encode("+ -")
    scores = model(ids).logits[:, :, candidates].softmax(dim=-1)[:, :, 0]
    expected = scores[ids == tokenizer.encode("ки")[-1]].tolist()
    assert len(expected) == 3 and list(judged.steps) == pytest.approx(expected, abs=1e-5)
    assert judged.total == min(judged.steps) and verifier.scored_tokens >= ids.numel()
    with pytest.raises(RequestError, match="tag itself"):
        run(lambda: verifier(Problem("p", QUESTION, "s"), (), [Step((), (), "so ки eight")]))


@torch.inference_mode()
def test_rlhflow_is_read_where_the_assistant_answers(student: Student, tmp_path: Path) -> None:
    tokenizer, model = a_tokenizer(tmp_path), a_causal_model(tmp_path)
    verifier = load_prm(tmp_path, student, settings("rlhflow"))
    judged = run(lambda: verifier(Problem("p", QUESTION, "s"), (), steps()))
    # As in the project's evaluation script, where `-3` is the token before the assistant's answer and its end.
    candidates = [tokenizer.encode("+")[-1], tokenizer.encode("-")[-1]]
    conversation, expected = [], []
    for k, line in enumerate(LINES):
        conversation.append({"content": QUESTION + " " + line if k == 0 else line, "role": "user"})
        conversation.append({"content": "+", "role": "assistant"})
        ids = torch.tensor([tokenizer.encode(tokenizer.apply_chat_template(conversation, tokenize=False))])
        expected.append(float(model(ids).logits[0, -3, candidates].softmax(dim=-1)[0]))
    assert list(judged.steps) == pytest.approx(expected, abs=1e-5)
    computed = verifier.scored_tokens
    assert (
        run(lambda: verifier(Problem("p", QUESTION, "s"), (), steps())) == judged and verifier.scored_tokens == computed
    )


@pytest.mark.parametrize("deep", [False, True])
def test_qwen_prm_is_read_at_its_separators(deep: bool, student: Student, tmp_path: Path) -> None:
    tokenizer = a_byte_tokenizer(tmp_path)
    torch.manual_seed(0)
    backbone = Qwen2Model(Qwen2Config(**{**SHAPE, "vocab_size": len(tokenizer)})).eval()
    first, last = torch.nn.Linear(32, 32), torch.nn.Linear(32, 2)
    backbone.save_pretrained(tmp_path)
    tensors = {f"model.{name}": tensor for name, tensor in load_file(tmp_path / "model.safetensors").items()}
    head = {"score.0": first, "score.2": last} if deep else {"score": last}
    for name, layer in head.items():
        tensors |= {f"{name}.weight": layer.weight.detach(), f"{name}.bias": layer.bias.detach()}
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    verifier = load_prm(tmp_path, student, settings("qwen-prm"))
    judged = run(lambda: verifier(Problem("p", QUESTION, "s"), (), steps()))
    # As on the model's card.
    messages = [
        {"role": "system", "content": QWEN_SYSTEM},
        {"role": "user", "content": QUESTION},
        {"role": "assistant", "content": "<extra_0>".join(LINES) + "<extra_0>"},
    ]
    ids = torch.tensor([tokenizer.encode(tokenizer.apply_chat_template(messages, tokenize=False))])
    with torch.inference_mode():
        states = backbone(ids).last_hidden_state
        logits = last(first(states).relu()) if deep else last(states)
    at = ids == tokenizer.encode("<extra_0>")[0]
    expected = logits.softmax(dim=-1)[at][:, 1].tolist()
    assert len(set(expected)) == 3 and list(judged.steps) == pytest.approx(expected, abs=1e-5)
    assert verifier.scored_tokens == int(at[0].nonzero().max()) + 1
    assert run(lambda: verifier(Problem("p", QUESTION, "s"), (), [])).total == 1.0


def test_a_folder_of_another_kind_is_refused(student: Student, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="can't be read as rlhflow"):
        load_prm(tmp_path, student, settings("rlhflow"))
    a_tokenizer(tmp_path)
    a_causal_model(tmp_path)
    with pytest.raises(CheckpointError, match="no score head"):
        load_prm(tmp_path, student, settings("qwen-prm"))
