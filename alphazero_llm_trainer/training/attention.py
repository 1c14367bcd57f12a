"""Attention in training on a CPU under autocast: products and a softmax over a whole sequence,
where torch's kernel is slower.

That kernel computes short sequences in bfloat16 slowly, its backward pass most of all. The plain
products and softmax keep the probabilities for the backward pass, `[H, N, N]` a sequence and layer,
so sequences above `LONGEST` keep the kernel. `benchmarks/real_training.py` measures whole updates.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

NAME = "sdpa_or_products"
# Decoders that do nothing with the attention's name but look it up. Others compare it with "sdpa"
# (DeepSeek's sparse layers).
PLAIN = {
    "llama",
    "mistral",
    "qwen2",
    "qwen3",
    "smollm3",
    "gemma",
    "gemma3_text",
    "phi3",
    "olmo2",
    "granite",
}
LONGEST = 768  # tokens: 318 MiB of SmolLM2-135M's probabilities (30 layers of 9 heads)


def attend(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """`[B, N, H, D]` of queries `[B, H, N, D]`, keys and values `[B, K, N, D]`; the mask is `[B or
    1, 1, N, N]`, bool (seen) or additive. transformers' `sdpa` for what isn't a short whole
    sequence under a CPU's autocast.
    """
    count, heads, length, width = query.shape
    plain = length == key.shape[2] <= LONGEST and not dropout
    plain = plain and query.device.type == "cpu" and torch.is_autocast_enabled("cpu")
    causal = options.get("is_causal")
    causal = getattr(module, "is_causal", True) if causal is None else causal
    if (
        not plain
        or scaling is None
        or options.get("position_bias") is not None
        or (attention_mask is None and not causal)
    ):
        return sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **options
        )
    groups = key.shape[1]
    # The heads that share a key are one longer sequence of queries: nothing is repeated.
    scores = (query * scaling).reshape(count, groups, -1, width) @ key.transpose(2, 3)
    scores = scores.view(count, heads, length, length)
    # A finite least number: a row of padding that sees nothing is no NaN.
    least = torch.finfo(scores.dtype).min
    if attention_mask is None:
        attention_mask = torch.ones(length, length, dtype=torch.bool).tril()
    if attention_mask.dtype == torch.bool:
        scores = scores.masked_fill_(~attention_mask, least)
    else:
        scores = scores.add_(attention_mask.clamp(min=least))
    chances = scores.softmax(-1).view(count, groups, -1, length)
    return (chances @ value).view(count, heads, length, -1).transpose(1, 2).contiguous(), None


AttentionInterface.register(NAME, attend)
AttentionMaskInterface.register(NAME, sdpa_mask)


def attend_by_length(model: Any) -> None:
    """Have a plain decoder on a CPU that computes attention with `sdpa` take `attend`; others stay
    as they are.
    """
    on_cpu = next(model.parameters()).device.type == "cpu"
    if on_cpu and model.config.model_type in PLAIN and model.config._attn_implementation == "sdpa":
        model.set_attn_implementation(NAME)
