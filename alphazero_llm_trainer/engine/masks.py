"""Attention masks for sequences of our own making (slots of a cache, packed tries), as a model's
own forward would make them.

transformers takes a 4-D mask as it is, for all layers alike: a model's own windows are ours to keep
then.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn.attention.flex_attention import BlockMask, create_block_mask

DENSE = ("sdpa", "eager")  # attention that takes a 4-D tensor as its mask
GROUPED = "grouped"  # what `grouped_attention` is called in transformers
FLEX = "flex_attention"  # takes blocks of one, which is held in bytes while they are made
FULL, SLIDING, CHUNKED = "full_attention", "sliding_attention", "chunked_attention"
Masks = torch.Tensor | dict[str, torch.Tensor]
BlockMasks = BlockMask | dict[str, BlockMask]


def layer_spans(config: Any) -> dict[str, int | None]:
    """What kinds of layers a model has, and how far each sees: tokens of a window or a chunk, None
    for all.

    The rules are those of transformers' `create_masks_for_generate`.
    """
    shape = config.get_text_config()
    window = getattr(shape, "sliding_window", None)
    chunk = getattr(shape, "attention_chunk_size", None)
    sizes = {FULL: None, SLIDING: window, CHUNKED: chunk}
    kinds = getattr(shape, "layer_types", None)
    if kinds:
        return {kind: sizes.get(kind) for kind in sorted(set(kinds))}
    return {SLIDING: window} if window else {CHUNKED: chunk} if chunk else {FULL: None}


def make_masks(
    config: Any, seen: torch.Tensor, queries: torch.Tensor, keys: torch.Tensor, dtype: torch.dtype
) -> Masks:
    """The mask of every layer `[G, 1, N, M]`, or one by kind of layer where they differ.

    Args:
        config: the model's.
        seen: `[G, N, M]`, which keys come before a query on its own path, itself among them.
        queries: `[G, N]` positions in their own paths.
        keys: `[G or 1, M]` likewise.
        dtype: of an additive mask; bool for one that is True where a query sees.
    """
    made: dict[str, torch.Tensor] = {}
    for kind, span in layer_spans(config).items():
        if span is None or seen.shape[-1] <= span:
            made[kind] = seen
        else:
            made[kind] = seen & is_near(kind, span, queries[:, :, None], keys[:, None, :])
    if all(mask is seen for mask in made.values()):
        made = {FULL: seen}
    if dtype != torch.bool:
        for kind, mask in made.items():
            made[kind] = torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill_(
                ~mask, torch.finfo(dtype).min
            )
    made = {kind: mask[:, None] for kind, mask in made.items()}
    return made if len(made) > 1 else next(iter(made.values()))


def is_near(kind: str, span: int, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    """Whether layers of a kind see a key at a position as far before their query's."""
    return query // span == key // span if kind == CHUNKED else query - key < span


def block_masks(
    config: Any, seen: Callable[..., torch.Tensor], positions: torch.Tensor
) -> BlockMasks:
    """`masks` of FlexAttention: `seen(sequence, head, query, key)` are indices, `positions`
    `[G, N]`.
    """

    def of(kind: str, span: int | None) -> Callable[..., torch.Tensor]:
        if span is None or positions.shape[1] <= span:
            return seen
        return lambda g, h, q, k: (
            seen(g, h, q, k) & is_near(kind, span, positions[g, q], positions[g, k])
        )

    count, width = positions.shape
    made = {
        kind: create_block_mask(of(kind, span), count, None, width, width, device=positions.device)
        for kind, span in layer_spans(config).items()
    }
    return made if len(made) > 1 else next(iter(made.values()))


def grouped_attention(
    module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: Any, **more: Any
) -> tuple[torch.Tensor, None]:
    """transformers' `sdpa`; of one query a row, the heads of a key-value head are queries of it
    together, where copies of keys and values would take most of the time.
    """
    count, heads, length, size = query.shape
    groups = key.shape[1]
    if length > 1 or heads == groups or mask is None or "position_bias" in more:
        # Its import takes seconds, which students of the kernels needn't wait.
        from transformers.integrations.sdpa_attention import sdpa_attention_forward

        found: tuple[torch.Tensor, None] = sdpa_attention_forward(
            module, query, key, value, mask, **more
        )
        return found
    together = query.reshape(count, groups, heads // groups, size)
    if mask.shape[1] > 1:
        mask = mask.reshape(count, groups, heads // groups, -1)
    # [n, groups, heads / groups, size of a value]
    out = torch.nn.functional.scaled_dot_product_attention(
        together, key, value, attn_mask=mask, scale=more.get("scaling")
    )
    return out.reshape(count, 1, heads, -1), None


@contextmanager
def use_attention(shape: Any, name: str) -> Iterator[None]:
    """Attention of a name within, for the layers that a configuration belongs to."""
    own, shape._attn_implementation = shape._attn_implementation, name
    try:
        yield
    finally:
        shape._attn_implementation = own


def plain_config(model: Any) -> Any:
    """A copy of a model's configuration without quantisation, and without flash attention and the
    like, for which a copy has no kernels on the CPU.
    """
    config = copy.deepcopy(model.config)
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    if config._attn_implementation not in DENSE:
        config._attn_implementation = None  # as transformers chooses
    return config
