"""Preallocated keys and values of the rows that are being computed, in the shape that transformers' models read."""

from __future__ import annotations

import torch
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from .prefix_tree import PrefixTree


class SlotLayer(DynamicLayer):
    """One layer's keys and values for a range of rows, written in place at each row's own positions.

    `room_k`, `room_v`: `[slots, kv_heads, room, head_dim]`. `update` writes `[n, kv_heads, S, head_dim]` at
    `window.positions` `[n, S]` of rows `window.start...`, copies the window's new tokens to the prefix tree, and
    returns views `[n, kv_heads, window.length, head_dim]`. transformers' own DynamicCache concatenates every step.
    """

    def __init__(self, index: int, window: Window, kv_heads: int, head_dim: int, tree: PrefixTree) -> None:
        super().__init__()
        self.index, self.window, self.tree = index, window, tree
        self.shape = (kv_heads, head_dim)
        self.grow(window.slots, window.room)

    def grow(self, slots: int, room: int) -> None:
        kv_heads, head_dim = self.shape
        pool = self.tree.keys[self.index]
        old = (self.room_k, self.room_v) if self.is_initialized else None
        self.room_k = torch.zeros((slots, kv_heads, room, head_dim), dtype=pool.dtype, device=pool.device)
        self.room_v = torch.zeros_like(self.room_k)
        if old is not None:
            count, length = old[0].shape[0], old[0].shape[2]
            self.room_k[:count, :, :length], self.room_v[:count, :, :length] = old
        self.keys, self.values = self.room_k, self.room_v
        self.is_initialized, self.dtype, self.device = True, pool.dtype, pool.device

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *args, **kwargs):
        window = self.window
        end = window.start + key_states.shape[0]
        room_k, room_v = self.room_k[window.start : end], self.room_v[window.start : end]
        at = window.positions[:, None, :, None].expand(key_states.shape)
        room_k.scatter_(2, at, key_states)
        room_v.scatter_(2, at, value_states)
        self.tree.keys[self.index][window.new_nodes] = key_states[window.new_rows, :, window.new_columns]
        self.tree.values[self.index][window.new_nodes] = value_states[window.new_rows, :, window.new_columns]
        return room_k[:, :, : window.length], room_v[:, :, : window.length]

    def get_seq_length(self) -> int:
        return self.window.length

    def get_mask_sizes(self, query_length) -> tuple[int, int]:
        return self.window.length, 0


class Window:
    """Which rows, positions and tree nodes the forward under way reads and writes; all layers share it."""

    def __init__(self, slots: int, room: int) -> None:
        self.slots, self.room = slots, room
        self.start = self.length = 0
        self.positions: torch.Tensor
        self.new_rows: torch.Tensor
        self.new_columns: torch.Tensor
        self.new_nodes: torch.Tensor


class Slots:
    """Rows of keys and values. Live rows are 0..n-1, so that a decode step reads plain views."""

    def __init__(self, slots: int, room: int, layers: int, kv_heads: int, head_dim: int, tree: PrefixTree) -> None:
        self.window = Window(slots, room)
        self.layers = [SlotLayer(i, self.window, kv_heads, head_dim, tree) for i in range(layers)]
        self.cache = DynamicCache()
        self.cache.layers = self.layers
        self.cache.layer_class_to_replicate = None
        self.tree = tree

    def ensure(self, slots: int, room: int) -> None:
        """Make room for `slots` rows of `room` tokens."""
        window = self.window
        if slots <= window.slots and room <= window.room:
            return
        while window.room < room:
            window.room *= 2
        while window.slots < slots:
            window.slots *= 2
        for layer in self.layers:
            layer.grow(window.slots, window.room)

    def load(self, slot: int, nodes: list[int]) -> None:
        """Copy the keys and values of `nodes` from the tree to the start of `slot`."""
        if not nodes:
            return
        index = torch.tensor(nodes, device=self.layers[0].room_k.device)
        for layer in self.layers:
            layer.room_k[slot, :, : len(nodes)] = self.tree.keys[layer.index][index].transpose(0, 1)
            layer.room_v[slot, :, : len(nodes)] = self.tree.values[layer.index][index].transpose(0, 1)

    def move(self, source: int, target: int, length: int) -> None:
        """Copy the first `length` tokens of slot `source` to slot `target`."""
        for layer in self.layers:
            layer.room_k[target, :, :length] = layer.room_k[source, :, :length]
            layer.room_v[target, :, :length] = layer.room_v[source, :, :length]
