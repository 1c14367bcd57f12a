"""Splits by a stable hash: what generated sources and files without splits of their own are divided by."""

from __future__ import annotations

import hashlib

SHARES = {"test": 15, "validation": 5, "arena": 5, "train": 75}  # of 100


def split_of(text: str) -> str:
    """The split that a stable hash of `text` names: the same on every machine, in the shares of `SHARES`."""
    place = int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big") % 100
    for split, share in SHARES.items():
        if place < share:
            return split
        place -= share
    raise AssertionError("the shares add up to 100")
