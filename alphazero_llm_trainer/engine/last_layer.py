"""A causal model's logits of hidden states, by all that its own forward does after its backbone:
scales and caps included.
"""

from __future__ import annotations

import copy
from typing import Any

import torch


class _Backbone(torch.nn.Module):
    """Stands in for a model's layers: its hidden states are the embeddings that it is called
    with.
    """

    @property
    def decoder(self) -> _Backbone:
        """What some models call of their backbone."""
        return self

    def forward(self, *args: Any, inputs_embeds: torch.Tensor, **kwargs: Any) -> Any:
        return _States(inputs_embeds)


class _States:
    """A backbone's output with hidden states alone."""

    def __init__(self, hidden: torch.Tensor) -> None:
        self.last_hidden_state = hidden

    def __getattr__(self, name: str) -> None:
        return None

    def __getitem__(self, index: Any) -> Any:
        return (self.last_hidden_state,)[index]


class LastLayer:
    """Hidden states `[..., D]` -> logits `[..., V]` of a causal model of transformers, whose last
    layer it shares.
    """

    def __init__(self, model: Any) -> None:
        self.model = copy.copy(model)
        self.model._modules = {**model._modules, model.base_model_prefix: _Backbone()}

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.model(
            inputs_embeds=hidden.reshape(1, -1, hidden.shape[-1])
        ).logits
        return logits.view(*hidden.shape[:-1], -1)
