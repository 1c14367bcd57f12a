"""`--model` takes what transformers loads: other architectures get LoRA on their own linear layers, GGUF files are read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AutoTokenizer,
    GPT2Config,
    GPT2LMHeadModel,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    Phi3Config,
    Phi3ForCausalLM,
)

from alphazero_llm_trainer.config.load import Config, load_config
from alphazero_llm_trainer.errors import ConfigError
from alphazero_llm_trainer.policy.adapters import load_adapter, own_parameters
from alphazero_llm_trainer.policy.folders import find_model
from alphazero_llm_trainer.policy.student import PACKAGED, load_student
from alphazero_llm_trainer.train.models import make_trainable, save_adapter

QUESTION = "How many apples are in 3 boxes of 14 apples?"
SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}


def gpt2(ids: dict[str, int]) -> Any:
    return GPT2LMHeadModel(GPT2Config(n_embd=32, n_layer=2, n_head=4, n_positions=256, **ids))


def phi3(ids: dict[str, int]) -> Any:
    return Phi3ForCausalLM(Phi3Config(**SMALL, intermediate_size=48, num_key_value_heads=2, **ids))


def neox(ids: dict[str, int]) -> Any:
    return GPTNeoXForCausalLM(GPTNeoXConfig(**SMALL, intermediate_size=48, **ids))


KINDS = {
    "gpt2": (gpt2, {"c_attn", "c_proj", "c_fc"}),
    "phi3": (phi3, {"qkv_proj", "o_proj", "gate_up_proj", "down_proj"}),
    "neox": (neox, {"query_key_value", "dense", "dense_h_to_4h", "dense_4h_to_h"}),
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
    save_adapter(student.model, student.spec.lora, tmp_path / "adapter")
    fresh = load_student(config)
    load_adapter(fresh.model, tmp_path / "adapter", "default")
    for module in fresh.model.modules():
        if hasattr(module, "_active_adapter"):
            module._active_adapter = ["default"]
    torch.testing.assert_close(logits(fresh), changed)


def test_lora_targets_of_ones_own_must_be_there(unknown: tuple[Config, set[str]]) -> None:
    config, names = unknown
    wrong = {"models": {"mine": {"path": config.models["mine"].path, "lora": {"targets": ["q_porj"]}}}}
    with pytest.raises(ConfigError, match="q_porj") as caught:
        load_student(load_config(overrides=[{"student": "mine"}, wrong]))
    assert min(names) in str(caught.value)


def write_gguf(path: Path, model: LlamaForCausalLM, tokens: list[str], merges: list[str]) -> None:
    """The model and a byte-level BPE as llama.cpp's converter writes them."""
    gguf = pytest.importorskip("gguf")
    shape, writer = model.config, gguf.GGUFWriter(path, "llama")
    writer.add_block_count(shape.num_hidden_layers)
    writer.add_context_length(shape.max_position_embeddings)
    writer.add_embedding_length(shape.hidden_size)
    writer.add_feed_forward_length(shape.intermediate_size)
    writer.add_head_count(shape.num_attention_heads)
    writer.add_head_count_kv(shape.num_key_value_heads)
    writer.add_layer_norm_rms_eps(shape.rms_norm_eps)
    writer.add_rope_freq_base(10_000.0)
    writer.add_rope_dimension_count(shape.head_dim)
    writer.add_vocab_size(shape.vocab_size)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(tokens)
    writer.add_token_merges(merges)
    writer.add_token_types([gguf.TokenType.CONTROL] + [gguf.TokenType.NORMAL] * (len(tokens) - 1))
    writer.add_eos_token_id(0)
    writer.add_bos_token_id(0)
    names = {
        "input_layernorm": "attn_norm",
        "post_attention_layernorm": "ffn_norm",
        "self_attn.q_proj": "attn_q",
        "self_attn.k_proj": "attn_k",
        "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output",
        "mlp.gate_proj": "ffn_gate",
        "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down",
    }
    whole = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
    for key, weight in model.state_dict().items():
        name, values = key.removesuffix(".weight"), weight
        heads = {"q_proj": shape.num_attention_heads, "k_proj": shape.num_key_value_heads}.get(name[-6:])
        if heads:  # llama.cpp rotates pairs that lie side by side, transformers halves of a head
            values = weight.reshape(heads, 2, -1, shape.hidden_size).swapaxes(1, 2).reshape(weight.shape)
        if name in whole:
            written = whole[name]
        else:
            layer, _, rest = name.removeprefix("model.layers.").partition(".")
            written = f"blk.{layer}.{names[rest]}"
        writer.add_tensor(f"{written}.weight", values.contiguous().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_a_gguf_file_is_a_model(tmp_path: Path) -> None:
    tokens = ["<|end|>", *map(chr, range(33, 127)), "Ġ", "Ċ", "th", "the", "an"]
    torch.manual_seed(0)
    shape = LlamaConfig(
        **SMALL, num_key_value_heads=2, head_dim=8, intermediate_size=48, vocab_size=len(tokens), rope_theta=10_000.0
    )
    model = LlamaForCausalLM(shape).eval()
    path = tmp_path / "Tiny.gguf"
    write_gguf(path, model, tokens, ["t h", "th e", "a n"])
    found, folder = find_model(str(path), load_config())
    assert folder is None and found["student"] == "tiny-gguf"
    student = load_student(load_config(overrides=[found]))
    assert student.encode("the") == [tokens.index("the")] and student.engine.eos_id == 0
    ids = torch.tensor([student.encode("an apple\n")])
    with torch.no_grad():
        torch.testing.assert_close(student.model(input_ids=ids).logits, model(input_ids=ids).logits)
    with pytest.raises(ConfigError, match="no folder or GGUF file"):
        find_model(str(tmp_path / "gone.gguf"), load_config())
