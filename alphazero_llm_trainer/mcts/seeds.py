"""Seeds that depend on what they are for and on nothing else."""

from __future__ import annotations

import hashlib


def derive_seed(*parts: object) -> int:
    """A 63-bit seed from the parts' text: the same everywhere, whatever runs beside it."""
    digest = hashlib.blake2b(
        "\x1f".join(str(part) for part in parts).encode(), digest_size=8
    ).digest()
    return int.from_bytes(digest, "big") >> 1
