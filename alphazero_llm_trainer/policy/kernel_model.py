"""Models that the kernels alone compute, read without transformers, whose import takes seconds."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn

from ..config.sections import EngineConfig, StudentModel
from ..engine.native import load_library
from ..engine.precision import KERNEL_MODELS, why_uncovered
from ..types import JsonObject
from .folders import ADAPTER_CONFIG
from .weights import not_finite

ROPE = {"rope_type": "default"}
PARTS = ("config.json", "generation_config.json", "model.safetensors")


class Configuration(SimpleNamespace):
    """What a config.json says, as attributes."""

    def get_text_config(self) -> Configuration:
        """Itself: no pictures are read here."""
        return self

    def to_dict(self) -> JsonObject:
        """Its keys and values."""
        return vars(self)


class KernelModel(nn.Module):
    """Weights under the names that transformers gives them, without a forward in torch."""

    config: Configuration
    generation_config: SimpleNamespace
    model: Any
    lm_head: Any

    def get_input_embeddings(self) -> Any:
        """The module of the embedding `[V, D]`."""
        return self.model.embed_tokens

    def get_output_embeddings(self) -> Any:
        """The module of the output layer `[V, D]`: the embedding's, where they are tied."""
        tied = self.config.tie_word_embeddings
        return self.model.embed_tokens if tied else self.lm_head

    def num_parameters(self) -> int:
        """How many numbers its weights have."""
        return sum(weight.numel() for weight in self.parameters())


def weight_shapes(config: Configuration) -> dict[str, tuple[int, ...]]:
    """The shapes of all weights of a model, by name. Raises AttributeError where `config` says too
    little.
    """
    width, inner, head = config.hidden_size, config.intermediate_size, config.head_dim
    rows, shared = config.num_attention_heads * head, config.num_key_value_heads * head
    attention = {"q_proj": (rows, width), "k_proj": (shared, width), "v_proj": (shared, width)}
    of_layer: dict[str, tuple[int, ...]] = {
        f"self_attn.{name}.weight": shape for name, shape in attention.items()
    }
    if config.model_type == "qwen2":
        of_layer |= {f"self_attn.{name}.bias": shape[:1] for name, shape in attention.items()}
    if config.model_type == "qwen3":
        of_layer |= {f"self_attn.{name}_norm.weight": (head,) for name in "qk"}
    of_layer |= {"self_attn.o_proj.weight": (width, rows), "mlp.down_proj.weight": (width, inner)}
    of_layer |= {f"mlp.{name}_proj.weight": (inner, width) for name in ("gate", "up")}
    for name in ("input_layernorm", "post_attention_layernorm"):
        of_layer[f"{name}.weight"] = (width,)
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (config.vocab_size, width)}
    for i in range(config.num_hidden_layers):
        shapes |= {f"model.layers.{i}.{name}": shape for name, shape in of_layer.items()}
    shapes["model.norm.weight"] = (width,)
    if not config.tie_word_embeddings:
        shapes["lm_head.weight"] = (config.vocab_size, width)
    return shapes


def rotary_embedding(config: Configuration) -> Any:
    """A function that gives cosines and sines `[1, T, head_dim]` of positions `[1, T]`."""
    turns = torch.arange(0, config.head_dim, 2, dtype=torch.int64).float() / config.head_dim
    frequencies = 1.0 / config.rope_parameters["rope_theta"] ** turns

    def rotate(_: torch.Tensor, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        angles = positions[..., None].float() * frequencies
        both = torch.cat([angles, angles], dim=-1)
        return both.cos(), both.sin()

    return rotate


def place_weights(root: nn.Module, weights: Mapping[str, torch.Tensor]) -> None:
    """Put each weight under its name into `root`, in modules that are made on the way."""
    for name, weight in weights.items():
        module = root
        *path, last = name.split(".")
        for part in path:
            if part not in module._modules:
                linear = part.endswith("_proj") or part == "lm_head"
                made = nn.Linear(1, 1, bias=False, device="meta") if linear else nn.ModuleList()
                module.add_module(part, made)
            module = module._modules[part]  # type: ignore[assignment]
        module.register_parameter(last, nn.Parameter(weight, requires_grad=False))


def read_kernel_model(
    source: str, spec: StudentModel, settings: EngineConfig
) -> KernelModel | None:
    """The model of a folder for inference, or None where transformers has to load it: one that the
    kernels don't compute as it stands there, or whose files aren't what its configuration says.
    """
    folder = Path(source)
    asked = spec.quantization != "none" or spec.attn_implementation is not None
    if (
        asked
        or (settings.backend, settings.native) != ("inprocess", "auto")
        or load_library() is None
    ):
        return None
    try:
        shape, sampling = (
            json.loads((folder / name).read_text(encoding="utf-8")) for name in PARTS[:2]
        )
        config = Configuration(**shape)
        rope = config.rope_parameters
        plain = why_uncovered(shape) is None and rope == ROPE | {"rope_theta": rope["rope_theta"]}
        plain &= config.rms_norm_eps > 0 and config.max_position_embeddings > 0
        weights = load_file(folder / PARTS[2])
        shapes = weight_shapes(config)
        fits = {name: (*weight.shape,) for name, weight in weights.items()} == shapes
        rotary = rotary_embedding(config)
    except (OSError, ValueError, TypeError, AttributeError, KeyError, SafetensorError):
        return None
    if not plain or not fits or (folder / ADAPTER_CONFIG).is_file():
        return None
    dtype = getattr(torch, spec.dtype)
    model: KernelModel = type(KERNEL_MODELS[config.model_type], (KernelModel,), {})()
    model.config, model.generation_config = config, SimpleNamespace(**sampling)
    # In the layers' order, which isn't the file's, by name. Copies: the file, which is mapped into
    # memory, may be written anew.
    place_weights(model, {name: weights[name].to(dtype, copy=True) for name in shapes})
    model.model.config, model.model.rotary_emb = config, rotary
    return None if not_finite(model) else model.eval()
