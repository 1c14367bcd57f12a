"""Preallocated keys and values of the rows that are being computed."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from .prefix_tree import PrefixTree


class Window:
    """Which rows, positions and tree nodes the forward under way reads and writes.

    The rows are slots `start...`; they read `length` tokens. `positions` `[n, S]` is where each new token goes.
    `new_nodes[i]` is the tree's node of the token in row `new_rows[i]`, column `new_columns[i]` (padding has none).
    """

    def __init__(self) -> None:
        self.start = self.length = 0
        self.positions: torch.Tensor
        self.new_rows: torch.Tensor
        self.new_columns: torch.Tensor
        self.new_nodes: torch.Tensor


class Slots:
    """Rows of keys and values, `[layers, 2, slots, kv_heads, room, head_dim]`, written in place at any position.

    Live rows are slots 0..n-1, so that a decode step reads plain views.
    """

    def __init__(self, slots: int, room: int, layers: int, kv_heads: int, head_dim: int, tree: PrefixTree) -> None:
        self.layers, self.tree, self.window = layers, tree, Window()
        self.states = torch.zeros(
            (layers, 2, slots, kv_heads, room, head_dim), dtype=tree.states.dtype, device=tree.states.device
        )

    def ensure(self, slots: int, room: int) -> None:
        """Make room for `slots` rows of `room` tokens."""
        layers, two, old_slots, kv_heads, old_room, head_dim = self.states.shape
        if slots <= old_slots and room <= old_room:
            return
        new_slots, new_room = old_slots, old_room
        while new_slots < slots:
            new_slots *= 2
        while new_room < room:
            new_room *= 2
        grown = self.states.new_zeros((layers, two, new_slots, kv_heads, new_room, head_dim))
        grown[:, :, :old_slots, :, :old_room] = self.states
        self.states = grown

    def write(self, layer: int, states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Put a layer's new keys and values `[2, n, kv_heads, S, head_dim]` into the window; returns what it reads.

        Both views are `[n, kv_heads, length, head_dim]`.
        """
        window = self.window
        rows = self.states[layer, :, window.start : window.start + states.shape[1]]
        at = window.positions[None, :, None, :, None].expand(states.shape)
        rows.scatter_(3, at, states.to(rows.dtype))
        # A 4-bit model's adapters may compute in another precision than its cache.
        read = rows[:, :, :, : window.length].to(states.dtype)
        return read[0], read[1]

    def remember(self, new: Sequence[torch.Tensor]) -> None:
        """Copy the window's new keys and values, one tensor a layer, to the tree."""
        window = self.window
        every = torch.stack(list(new)).permute(2, 4, 0, 1, 3, 5)  # [n, S, layers, 2, kv_heads, head_dim]
        self.tree.states[window.new_nodes] = every[window.new_rows, window.new_columns].to(self.tree.states.dtype)

    def load(self, slot: int, nodes: list[int]) -> None:
        """Copy the keys and values of `nodes` from the tree to the start of `slot`."""
        if nodes:
            index = torch.tensor(nodes, device=self.states.device)
            self.states[:, :, slot, :, : len(nodes)] = self.tree.states[index].permute(1, 2, 3, 0, 4)

    def move(self, source: int, target: int, length: int) -> None:
        """Copy the first `length` tokens of slot `source` to slot `target`."""
        self.states[:, :, target, :, :length] = self.states[:, :, source, :, :length]
