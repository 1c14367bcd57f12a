"""Attention masks for sequences of our own making (slots of a cache, packed tries), as a model's
own forward would make them.

transformers takes a 4-D mask as it is, for all layers alike: a model's own windows are ours to keep
then.
"""

from __future__ import annotations

from typing import Any

import torch

FULL, SLIDING, CHUNKED = "full_attention", "sliding_attention", "chunked_attention"
Masks = torch.Tensor | dict[str, torch.Tensor]


def spans(config: Any) -> dict[str, int | None]:
    """What kinds of layers a model has, and how far each sees: tokens of a window or a chunk, None
    for all.

    The rules are those of transformers' `create_masks_for_generate`.
    """
    shape = config.get_text_config()
    window, chunk = (
        getattr(shape, "sliding_window", None),
        getattr(shape, "attention_chunk_size", None),
    )
    sizes = {FULL: None, SLIDING: window, CHUNKED: chunk}
    kinds = getattr(shape, "layer_types", None)
    if kinds:
        return {kind: sizes.get(kind) for kind in sorted(set(kinds))}
    return {SLIDING: window} if window else {CHUNKED: chunk} if chunk else {FULL: None}


def masks(
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
    near = keys[:, None, :], queries[:, :, None]
    made: dict[str, torch.Tensor] = {}
    for kind, span in spans(config).items():
        if span is None or seen.shape[-1] <= span:
            made[kind] = seen
        elif kind == CHUNKED:
            made[kind] = seen & (near[0] // span == near[1] // span)
        else:
            made[kind] = seen & (near[1] - near[0] < span)
    if all(mask is seen for mask in made.values()):
        made = {FULL: seen}
    if dtype != torch.bool:
        for kind, mask in made.items():
            made[kind] = torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill_(
                ~mask, torch.finfo(dtype).min
            )
    made = {kind: mask[:, None] for kind, mask in made.items()}
    return made if len(made) > 1 else next(iter(made.values()))
