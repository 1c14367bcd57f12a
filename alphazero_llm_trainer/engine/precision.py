"""In what numbers the C kernels compute a model's products, and on how many threads. Told without torch."""

from __future__ import annotations

from typing import Literal

from ..config.train import LARGE
from ..errors import ConfigError
from .kernel_build import kernels

FLOATS = 0
UNITS = {1: "AVX512-BF16", 2: "AMX"}  # `enum unit` of kernels/products.h

Wanted = Literal["auto", "float32", "bfloat16"]


def product_unit(wanted: Wanted, parameters: int) -> int:
    """The kernels' unit for a model's products: FLOATS, or a number of UNITS.

    `wanted` is `engine.dtype`. Raises ConfigError where bfloat16 is asked for and can't be had.
    """
    if wanted == "float32" or (wanted == "auto" and parameters < LARGE):
        return FLOATS
    found = kernels()
    unit = FLOATS if found.library is None else int(found.library.bf16_unit())
    if unit == FLOATS and wanted == "bfloat16":
        reason = found.status if found.library is None else "this processor has neither AMX nor AVX512-BF16"
        raise ConfigError(f"engine.dtype is 'bfloat16', and {reason}: set it to auto or float32")
    return unit


def unit_name(unit: int) -> str:
    """A unit as people know it."""
    return "float32" if unit == FLOATS else f"bfloat16 ({UNITS[unit]})"


def kernel_threads(parameters: int, available: int) -> int:
    """How many of the `available` threads compute a model of so many parameters."""
    return available if parameters >= LARGE else 1
