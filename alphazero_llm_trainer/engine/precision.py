"""Which models the C kernels compute, in what numbers, and on how many threads. Told without
torch.
"""

from __future__ import annotations

from typing import Literal

from ..config.train import LARGE
from ..errors import ConfigError
from ..types import Facts
from .kernel_build import open_kernels

FLOATS = 0
UNITS = {1: "AVX512-BF16", 2: "AMX"}  # `enum unit` of kernels/products.h

# Model types and their classes: Llama, with biases on q, k and v (Qwen2), with norms of each head
# of q and k (Qwen3).
KERNEL_MODELS = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}
ROPES = ("default", "linear", "llama3")  # other rotary embeddings depend on the length

Precision = Literal["auto", "float32", "bfloat16"]


def why_uncovered(shape: Facts) -> str | None:
    """Why the kernels can't compute a model whose config.json says `shape`, or None where they
    can.
    """
    kind = shape.get("model_type")
    if kind not in KERNEL_MODELS:
        return f"the kernels compute {', '.join(KERNEL_MODELS)} and not {kind}"
    rope = shape.get("rope_parameters") or shape.get("rope_scaling") or {}
    turns = rope.get("rope_type") or rope.get("type") or "default"
    if turns not in ROPES:
        return f"the kernels have no rotary embedding {turns}"
    if shape.get("use_sliding_window") or set(shape.get("layer_types") or ()) - {"full_attention"}:
        return "the kernels have no sliding window"
    heads = shape.get("num_attention_heads") or 1
    if heads % (shape.get("num_key_value_heads") or heads):
        return "the kernels share keys and values among whole groups of heads alone"
    if shape.get("mlp_bias") or (shape.get("attention_bias") and kind != "qwen2"):
        return "the kernels have no biases but those of Qwen2"
    if shape.get("hidden_act") != "silu":
        return f"the kernels have no {shape.get('hidden_act')}"
    return (
        "the kernels don't compute quantised weights" if shape.get("quantization_config") else None
    )


def product_unit(wanted: Precision, parameters: int) -> int:
    """The kernels' unit for a model's products: FLOATS, or a number of UNITS.

    `wanted` is `engine.dtype`. Raises ConfigError where bfloat16 is asked for and can't be had.
    """
    if wanted == "float32" or (wanted == "auto" and parameters < LARGE):
        return FLOATS
    loaded = open_kernels()
    unit = FLOATS if loaded.library is None else int(loaded.library.bf16_unit())
    if unit == FLOATS and wanted == "bfloat16":
        reason = (
            loaded.status
            if loaded.library is None
            else "this processor has neither AMX nor AVX512-BF16"
        )
        raise ConfigError(f"engine.dtype is 'bfloat16', and {reason}: set it to auto or float32")
    return unit


def unit_name(unit: int) -> str:
    """A unit as people know it."""
    return "float32" if unit == FLOATS else f"bfloat16 ({UNITS[unit]})"


def kernel_threads(parameters: int, available: int) -> int:
    """How many of the `available` threads compute a model of so many parameters."""
    return available if parameters >= LARGE else 1
