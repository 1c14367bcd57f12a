"""Frozen matrices under a CPU's autocast, in bfloat16 once: autocast would copy them at each
product.

With LoRA these copies are a quarter of an update of 0.5 B weights in forwards of two rows. The
weights themselves stay as they are, and so does every result.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.functional import linear


def keep_narrow(model: Any) -> None:
    """Give each frozen fp32 matrix of linear layers on the CPU a copy in bfloat16 that products
    under autocast take.
    """
    for layer in model.modules():
        if type(layer) is not nn.Linear or "narrow" in vars(layer):
            continue
        weight = layer.weight
        if (
            weight.dtype == torch.float32
            and weight.device.type == "cpu"
            and not weight.requires_grad
        ):
            vars(layer).update(narrow=weight.detach().bfloat16(), forward=Product(layer))


def narrow(layer: Any) -> torch.Tensor:
    """A linear layer's weights `[out, in]` for a product under autocast."""
    weight: torch.Tensor = layer.weight
    # One that is trained by now is not frozen.
    return weight if weight.requires_grad else vars(layer).get("narrow", weight)


class Product:
    """The forward of a layer that has a narrow copy."""

    def __init__(self, layer: nn.Linear) -> None:
        self.layer = layer

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        weight = narrow(self.layer) if torch.is_autocast_enabled("cpu") else self.layer.weight
        return linear(x, weight, self.layer.bias)
