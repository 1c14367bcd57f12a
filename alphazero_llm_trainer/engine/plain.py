"""A Llama's or Qwen's weights without transformers' model code, for search alone.

Importing that code takes as long as importing torch and transformers together, and the engine computes such a model
without it (`native.py`). The modules have transformers' names, so that weights and fingerprints agree.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn
from torch.nn import functional as F

from ..files import read_object
from .precision import KINDS, uncovered

WEIGHTS = "model.safetensors"
DTYPES = (torch.float32, torch.bfloat16, torch.float16)  # of weights that the kernels pack
SIZES = (
    "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "vocab_size",
    "max_position_embeddings",
)  # fmt: skip


class PlainLlama(nn.Module):
    """The weights of a model that the kernels compute, on the CPU. It has no forward of its own."""

    def __init__(self, config: SimpleNamespace, weights: Mapping[str, torch.Tensor]) -> None:
        super().__init__()
        self.config = config
        self.model = Backbone(config)
        self.lm_head = Head()
        # Not nn.Linear and its like: they draw random numbers first, and torch's meta device loads its compiler.
        # In the order of the layers: a file has them by name, 10 before 2.
        for name in shapes(config):
            *parents, last = name.split(".")
            module: nn.Module = self
            for part in parents:
                if part not in module._modules:
                    module.add_module(part, nn.ModuleList() if part == "layers" else nn.Module())
                module = module.get_submodule(part)
            module.register_parameter(last, nn.Parameter(weights[name]))
        if config.tie_word_embeddings:
            self.lm_head.register_parameter("weight", self.get_input_embeddings().weight)  # type: ignore[arg-type]

    def get_input_embeddings(self) -> nn.Module:
        return self.model.get_submodule("embed_tokens")

    def get_output_embeddings(self) -> nn.Module:
        return self.lm_head


class Head(nn.Module):
    """The output layer: the one module that the engine calls."""

    weight: nn.Parameter

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Final hidden states `[..., D]` -> logits `[..., V]`."""
        return F.linear(hidden, self.weight)


class Backbone(nn.Module):
    """Embedding, layers and last norm, and the rotary embedding."""

    def __init__(self, config: SimpleNamespace) -> None:
        super().__init__()
        self.config = config

    def rotary_emb(self, like: torch.Tensor, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosine and sine `[B, T, head_dim]` at `positions` `[B, T]`."""
        size = self.config.head_dim
        turns = 1.0 / self.config.rope_parameters["rope_theta"] ** (torch.arange(0, size, 2).float() / size)
        angles = positions[..., None].float() * turns
        angles = torch.cat((angles, angles), dim=-1)
        return angles.cos().to(like.dtype), angles.sin().to(like.dtype)


def shapes(config: SimpleNamespace) -> dict[str, tuple[int, ...]]:
    """The shape of every weight in the file."""
    width, ffn = config.hidden_size, config.intermediate_size
    queries, keys = config.num_attention_heads * config.head_dim, config.num_key_value_heads * config.head_dim
    layer = {
        "self_attn.q_proj": (queries, width),
        "self_attn.k_proj": (keys, width),
        "self_attn.v_proj": (keys, width),
        "self_attn.o_proj": (width, queries),
        "mlp.gate_proj": (ffn, width),
        "mlp.up_proj": (ffn, width),
        "mlp.down_proj": (width, ffn),
        "input_layernorm": (width,),
        "post_attention_layernorm": (width,),
    }
    own: dict[str, tuple[int, ...]] = {f"{name}.weight": shape for name, shape in layer.items()}
    if config.model_type == "qwen2":
        own |= {f"self_attn.{name}_proj.bias": (size,) for name, size in (("q", queries), ("k", keys), ("v", keys))}
    if config.model_type == "qwen3":
        own |= {f"self_attn.{name}_norm.weight": (config.head_dim,) for name in "qk"}
    every = {f"model.layers.{i}.{name}": shape for i in range(config.num_hidden_layers) for name, shape in own.items()}
    every |= {"model.embed_tokens.weight": (config.vocab_size, width), "model.norm.weight": (width,)}
    return every if config.tie_word_embeddings else every | {"lm_head.weight": (config.vocab_size, width)}


def read_plain(folder: Path, dtype: torch.dtype = torch.float32) -> PlainLlama | None:
    """The model of a folder in `dtype`, or None for one that transformers must load (another kind, or a faulty file)."""
    try:
        given: dict[str, Any] = read_object(folder / "config.json")
        if uncovered(given) is not None or given.get("architectures") != [KINDS[given["model_type"]]]:
            return None
        rope = given.get("rope_parameters") or {}
        if rope.get("rope_type") != "default" or set(rope) != {"rope_type", "rope_theta"}:
            return None
        if any(not isinstance(given.get(key), int) for key in SIZES) or "rms_norm_eps" not in given:
            return None
        weights = load_file(folder / WEIGHTS)
    except (OSError, ValueError, AttributeError, SafetensorError):
        return None
    size = given["hidden_size"] // given["num_attention_heads"]
    config = SimpleNamespace(**{"tie_word_embeddings": False, "head_dim": size, **given})
    if not isinstance(config.head_dim, int):
        return None
    if {name: tuple(weight.shape) for name, weight in weights.items()} != shapes(config):
        return None
    if any(weight.dtype not in DTYPES or not weight.sum(dtype=torch.float32).isfinite() for weight in weights.values()):
        return None
    return PlainLlama(config, {name: weight.to(dtype) for name, weight in weights.items()}).eval()
