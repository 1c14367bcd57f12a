"""The device that computes, its memory, and what a token of a cache takes of it."""

from __future__ import annotations

import functools
import logging
import os
import re
import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..errors import ConfigError, EngineError

GIB = 1 << 30
# Of torch's allocators, cuBLAS and oneDNN.
FULL = re.compile("allocate memory|out of memory|ALLOC_FAILED|create a memory object")

log = logging.getLogger(__name__)


@functools.cache
def tell_once(sentence: str) -> None:
    """Warn of something once a process."""
    log.warning(sentence)


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
        return (
            "cpu",
            next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable")),
            total,
        )
    except (OSError, StopIteration):
        return "cpu", total, total


@contextmanager
def within_memory(what: str, fix: str) -> Iterator[None]:
    """Raise ConfigError, one sentence with the `fix`, where `what` is computed in here takes more
    memory than is free. On a CPU an allocation beyond that fails in here; elsewhere the system
    would end the process for it.
    """
    device, free, _ = device_memory()
    limits = resource.getrlimit(resource.RLIMIT_AS)
    if device == "cpu" and limits[0] == resource.RLIM_INFINITY and sys.platform == "linux":
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
        most = pages * resource.getpagesize() + free
        resource.setrlimit(resource.RLIMIT_AS, (most, limits[1]))
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not isinstance(error, MemoryError) and not FULL.search(str(error)):
            raise
        raise ConfigError(
            f"{what} takes more memory than {device} has free ({free / GIB:.1f} GiB): {fix}"
        ) from error
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)


def multiplies_fast(dtype: str) -> bool:
    """Whether torch has quick products in "float32", "bfloat16" or "float16" here: on CUDA, and on
    CPUs for which oneDNN has such kernels. Elsewhere a gradient takes a hundred times longer.
    """
    import torch

    if dtype == "float32" or torch.cuda.is_available():
        return True
    units = torch.ops.mkldnn if torch._C._has_mkldnn else None
    name = "_is_mkldnn_bf16_supported" if dtype == "bfloat16" else "_is_mkldnn_fp16_supported"
    return units is not None and bool(getattr(units, name)())


def release_cache() -> None:
    """Give memory that torch keeps for itself back to the device."""
    import torch

    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def text_config(model: Any) -> Any:
    """The configuration of a model's language layers, which may be a part of its own."""
    config = model.config
    return config.get_text_config() if hasattr(config, "get_text_config") else config


def kv_shape(shape: Any) -> tuple[int, int]:
    """Key-value heads of a model's configuration, and the size of one. Raises EngineError for a
    model without attention.
    """
    heads = getattr(shape, "num_attention_heads", None)
    if not heads:
        raise EngineError(
            f"a {shape.model_type} model keeps no keys and values of each token: use another "
            "student"
        )
    groups = getattr(shape, "num_key_value_heads", None) or heads
    if getattr(shape, "multi_query", False) and not getattr(
        shape, "new_decoder_architecture", False
    ):
        groups = 1  # GPT-BigCode, Falcon
    return groups, getattr(shape, "head_dim", None) or shape.hidden_size // heads


def context_of(shape: Any, wanted: int) -> int:
    """Tokens of a sequence: `wanted`, or what a model's configuration has room for."""
    room: int | None = getattr(shape, "max_position_embeddings", None) or getattr(
        shape, "max_seq_len", None
    )
    return wanted if room is None else min(wanted, room)


def token_bytes(shape: Any, dtype: Any) -> int:
    """What a token's keys and values take in all layers."""
    heads, size = kv_shape(shape)
    return 2 * shape.num_hidden_layers * heads * size * dtype.itemsize
