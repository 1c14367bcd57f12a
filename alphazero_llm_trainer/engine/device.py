"""The device that computes, and its memory."""

from __future__ import annotations

import os
from pathlib import Path


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
