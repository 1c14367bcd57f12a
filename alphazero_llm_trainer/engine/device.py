"""The device that computes, its memory, and what a token of a cache takes of it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any


def device_memory() -> tuple[str, int, int]:
    """ "cuda" or "cpu", and its free and total bytes."""
    import torch

    if torch.cuda.is_available():
        free, total = torch.cuda.mem_get_info()
        return "cuda", free, total
    page = os.sysconf("SC_PAGE_SIZE")
    total = page * os.sysconf("SC_PHYS_PAGES")
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        return "cpu", next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable")), total
    except (OSError, StopIteration):
        return "cpu", total, total


def kv_shape(shape: Any) -> tuple[int, int]:
    """Key-value heads of a model's configuration, and the size of one."""
    heads = getattr(shape, "num_key_value_heads", None) or shape.num_attention_heads
    return heads, getattr(shape, "head_dim", None) or shape.hidden_size // shape.num_attention_heads


def token_bytes(shape: Any, dtype: Any) -> int:
    """What a token's keys and values take in all layers."""
    heads, size = kv_shape(shape)
    return 2 * shape.num_hidden_layers * heads * size * dtype.itemsize
