"""transformers' own forward over rows of the prefix tree, for any model."""

from __future__ import annotations

from typing import Any

import torch
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import DynamicLayer

from .prefix_tree import PrefixTree
from .slots import SlotForward, Slots


class LibraryForward(SlotForward):
    """transformers' own forward, reading and writing the slots through its cache interface."""

    name = "transformers"

    def __init__(self, model: PreTrainedModel, tree: PrefixTree, max_batch: int, context: int) -> None:
        super().__init__(model, tree, max_batch, context)
        self.cache = DynamicCache()
        self.layers = [_SlotLayer(index, self.slots) for index in range(self.slots.layers)]
        self.cache.layers = list(self.layers)
        self.cache.layer_class_to_replicate = None

    def hidden(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        hidden = self.model.base_model(
            input_ids=ids,
            attention_mask=mask,
            position_ids=self.slots.window.positions,
            past_key_values=self.cache,
            use_cache=True,
        ).last_hidden_state
        self.slots.remember([layer.new for layer in self.layers])
        return hidden


class _SlotLayer(DynamicLayer):
    """One layer of the slots in the form that transformers' attention reads. Its own DynamicCache concatenates."""

    def __init__(self, index: int, slots: Slots) -> None:
        super().__init__()
        self.index, self.slots = index, slots
        self.new: torch.Tensor
        self.is_initialized = True

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        self.new = torch.stack((key_states, value_states))
        return self.slots.write(self.index, self.new)

    def get_seq_length(self) -> int:
        return self.slots.window.length

    def get_mask_sizes(self, query_length: Any) -> tuple[int, int]:
        return self.slots.window.length, 0
