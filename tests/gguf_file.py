"""A tiny Llama with a byte-level BPE as a GGUF file, written as llama.cpp's converter writes them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

TOKENS = ["<|end|>", "<|im_end|>", *map(chr, range(33, 127)), "Ġ", "Ċ", "th", "the", "an"]
MERGES = ["t h", "th e", "a n"]


def tiny_gguf(path: Path) -> LlamaForCausalLM:
    """Write the file and return the model that it holds."""
    torch.manual_seed(0)
    shape = LlamaConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=8,
        intermediate_size=48, vocab_size=len(TOKENS), rope_theta=10_000.0, tie_word_embeddings=False,
    )  # fmt: skip
    model = LlamaForCausalLM(shape).eval()
    write_gguf(path, model, TOKENS, MERGES)
    return model


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
