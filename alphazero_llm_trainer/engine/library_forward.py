"""transformers' own forward over rows of the prefix tree, for any model.

Its rows are slots: preallocated keys and values, copied from the prefix tree, that transformers'
cache interface reads.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import DynamicLayer

from ..config.sections import FIRST_ROWS, FIRST_TOKENS, PREFILL_TOKENS
from .device import text_config
from .last_layer import LastLayer
from .masks import Masks, masks
from .prefix_tree import PrefixTree
from .queue_rows import Computed, DecodingRow

PREFILL_ROWS, PADDING = 8, 1.2  # beyond so many rows, padding may add a fifth at most


class Window:
    """Which rows, positions and tree nodes the forward under way reads and writes.

    The rows are slots `start...`; they read `length` tokens. `positions` `[n, S]` is where each new
    token goes. `new_nodes[i]` is the tree's node of the token in row `new_rows[i]`, column
    `new_columns[i]` (padding has none).
    """

    def __init__(self) -> None:
        self.start = self.length = 0
        self.positions: torch.Tensor
        self.new_rows: torch.Tensor
        self.new_columns: torch.Tensor
        self.new_nodes: torch.Tensor


class Slots:
    """Rows of keys and values, `[layers, 2, slots, kv_heads, room, head_dim]`, written in place at
    any position.

    A forward's rows are slots 0..n-1, so that a decode step reads plain views.
    """

    def __init__(
        self, slots: int, room: int, layers: int, kv_heads: int, head_dim: int, tree: PrefixTree
    ) -> None:
        self.layers, self.tree, self.window = layers, tree, Window()
        self.ends: dict[
            int, int
        ] = {}  # node -> the slot that holds the path down to it, from the last forward
        self.states = torch.zeros(
            (layers, 2, slots, kv_heads, room, head_dim), dtype=tree.dtype, device=tree.device
        )

    def place(self, rows: Sequence[DecodingRow]) -> list[DecodingRow]:
        """Bring the known tokens of `rows` into slots 0..n-1; returns the rows in that order, short
        ones first.

        A row of one token whose parent was computed in the last forward goes on in that one's slot.
        """
        parent = self.tree.parent
        order = sorted(rows, key=lambda row: len(row.nodes))
        self.ensure(len(order), max(row.start + len(row.nodes) for row in order))
        decoding = sum(len(row.nodes) == 1 for row in order)
        placed: dict[int, DecodingRow] = {}
        homeless: list[DecodingRow] = []
        for row in order[:decoding]:
            slot = self.ends.pop(parent[row.nodes[0]], None) if row.start else None
            if slot is None:
                homeless.append(row)
            else:
                placed[slot] = row
        # a node may be dropped and its number used again: what nobody claims now is gone
        self.ends = {}
        holes = [slot for slot in range(decoding) if slot not in placed]
        for slot in [slot for slot in placed if slot >= decoding]:
            hole = holes.pop()
            placed[hole] = placed.pop(slot)
            self.move(slot, hole, placed[hole].start)
        for slot, row in zip(
            [*holes, *range(decoding, len(order))], [*homeless, *order[decoding:]], strict=True
        ):
            placed[slot] = row
            self.load(slot, self.tree.path(row.nodes[0])[:-1])
        return [placed[slot] for slot in range(len(order))]

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
        larger = self.states.new_zeros((layers, two, new_slots, kv_heads, new_room, head_dim))
        larger[:, :, :old_slots, :, :old_room] = self.states
        self.states = larger

    def write(self, layer: int, states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Put a layer's new keys and values `[2, n, kv_heads, S, head_dim]` into the window;
        returns what it reads.

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
        every = torch.stack(list(new)).permute(
            2, 4, 0, 1, 3, 5
        )  # [n, S, layers, 2, kv_heads, head_dim]
        self.tree.states[window.new_nodes] = every[window.new_rows, window.new_columns].to(
            self.tree.dtype
        )

    def load(self, slot: int, nodes: list[int]) -> None:
        """Copy the keys and values of `nodes` from the tree to the start of `slot`."""
        if nodes:
            index = torch.tensor(nodes, device=self.states.device)
            self.states[:, :, slot, :, : len(nodes)] = self.tree.states[index].permute(
                1, 2, 3, 0, 4
            )

    def move(self, source: int, target: int, length: int) -> None:
        """Copy the first `length` tokens of slot `source` to slot `target`."""
        self.states[:, :, target, :, :length] = self.states[:, :, source, :, :length]


class _SlotLayer(DynamicLayer):
    """One layer of the slots in the form that transformers' attention reads. Its own DynamicCache
    concatenates.
    """

    def __init__(self, index: int, slots: Slots) -> None:
        super().__init__()
        self.index, self.slots = index, slots
        self.new: torch.Tensor
        self.is_initialized = True

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> Any:
        self.new = torch.stack((key_states, value_states))
        return self.slots.write(self.index, self.new)

    def get_seq_length(self) -> int:
        return self.slots.window.length

    def get_mask_sizes(self, query_length: Any) -> tuple[int, int]:
        return self.slots.window.length, 0


class LibraryForward:
    """`queue_rows.Forward` by transformers: rows in slots, computed in padded windows."""

    name = "transformers"

    def __init__(
        self, model: PreTrainedModel, tree: PrefixTree, max_batch: int, context: int
    ) -> None:
        _, layers, _, kv_heads, head_dim = tree.states_shape
        self.model, self.tree = model, tree
        rows, room = min(FIRST_ROWS, max_batch), min(FIRST_TOKENS, context)
        self.slots = Slots(rows, room, layers, kv_heads, head_dim, tree)
        self.cache = DynamicCache()
        self.layers = [_SlotLayer(index, self.slots) for index in range(layers)]
        self.cache.layers = list(self.layers)
        self.cache.layer_class_to_replicate = None
        self.value: tuple[torch.Tensor, float] | None = None
        self.last_layer = LastLayer(getattr(model, "shared", model))
        # What a model adds to its scores itself is a number; torch's attention takes a bool for
        # scores of any precision.
        self.mask_dtype = (
            tree.dtype if text_config(model)._attn_implementation == "eager" else torch.bool
        )

    def hidden(self, ids: torch.Tensor, mask: Masks) -> torch.Tensor:
        """`ids` `[n, S]` of the slots' window -> final hidden states `[n, S, D]`; new keys and
        values go to slots, tree.
        """
        hidden = self.model.base_model(
            input_ids=ids,
            attention_mask=mask,
            position_ids=self.slots.window.positions,
            past_key_values=self.cache,
            use_cache=True,
        ).last_hidden_state
        self.slots.remember([layer.new for layer in self.layers])
        return hidden

    def facts(self) -> dict[str, Any]:
        """See `Forward.facts`."""
        products = str(self.tree.dtype).removeprefix("torch.")
        return {"name": self.name, "products": products, "threads": torch.get_num_threads()}

    def set_value(self, weight: torch.Tensor | None, bias: float) -> None:
        """See `Forward.set_value`."""
        self.value = None if weight is None else (weight.detach().to(self.tree.device), bias)

    @torch.inference_mode()
    def compute(self, rows: Sequence[DecodingRow]) -> Computed:
        """See `Forward.compute`."""
        began = time.perf_counter()
        placed = self.slots.place(rows)
        tables: dict[int, np.ndarray] = {}
        for start, end in self._windows(placed):
            self._window(placed[start:end], start, tables)
        self.slots.ends = {row.nodes[-1]: slot for slot, row in enumerate(placed) if row.riders}
        seconds = time.perf_counter() - began
        read = [tables[id(row)] for row in rows if id(row) in tables]
        return Computed(
            sum(len(row.nodes) for row in rows), seconds, np.stack(read) if read else None
        )

    def _windows(self, rows: list[DecodingRow]) -> list[tuple[int, int]]:
        """Ranges of rows (sorted by length) that are computed together."""
        windows: list[tuple[int, int]] = []
        decode = next((i for i, row in enumerate(rows) if len(row.nodes) > 1), len(rows))
        if decode:
            windows.append((0, decode))
        start = decode
        while start < len(rows):
            end, tokens = start + 1, len(rows[start].nodes)
            while end < len(rows):
                padded = (end + 1 - start) * len(rows[end].nodes)
                tokens += len(rows[end].nodes)
                if padded > PREFILL_TOKENS or (
                    end - start >= PREFILL_ROWS and padded > PADDING * tokens
                ):
                    break
                end += 1
            windows.append((start, end))
            start = end
        return windows

    def _window(self, rows: list[DecodingRow], start: int, tables: dict[int, np.ndarray]) -> None:
        """Compute the rows in the slots from `start` on; distributions that the tree can't keep go
        to `tables`.
        """
        tree, window = self.tree, self.slots.window
        device = tree.device
        lengths = np.array([len(row.nodes) for row in rows])
        starts = np.array([row.start for row in rows])
        columns = np.arange(lengths.max())
        # Padding may reach beyond what the rows themselves need.
        self.slots.ensure(0, int(starts.max() + len(columns)))
        ids = np.zeros((len(rows), len(columns)), dtype=np.int64)
        for i, row in enumerate(rows):
            ids[i, : len(row.nodes)] = [tree.token[node] for node in row.nodes]
        new_rows, new_columns = np.nonzero(columns < lengths[:, None])
        nodes = [node for row in rows for node in row.nodes]
        window.start, window.length = start, int((starts + lengths).max())
        window.positions = torch.from_numpy(starts[:, None] + columns).to(device)
        window.new_rows = torch.from_numpy(new_rows).to(device)
        window.new_columns = torch.from_numpy(new_columns).to(device)
        window.new_nodes = torch.tensor(nodes, device=device)
        # A query sees the keys at its own position and before; whatever lies in the slot beyond is
        # masked.
        keys = torch.arange(window.length, device=device)[None]
        seen = keys[:, None] <= window.positions[:, :, None]  # [n, S, length]
        mask = masks(self.model.config, seen, window.positions, keys, self.mask_dtype)
        hidden = self.hidden(torch.from_numpy(ids).to(device), mask)  # [n, S, D]
        head = self.last_layer
        last = hidden[
            torch.arange(len(rows), device=device), torch.from_numpy(lengths - 1).to(device)
        ]
        logprobs = torch.log_softmax(head(last).float(), dim=-1)  # [n, D] -> [n, V], nats
        values: list[float] = []
        if self.value is not None:
            weight, bias = self.value
            new = hidden[
                window.new_rows, window.new_columns
            ].float()  # [new tokens, D]: padding has none
            values = torch.sigmoid(new @ weight.float() + bias).tolist()
        for node in nodes:
            tree.ready[node] = True
        for node, value in zip(nodes, values, strict=False):
            tree.value[node] = value
        for i, row in enumerate(rows):
            if row.scoring is not None:
                self._record_scores(row, head(hidden[i, : len(row.nodes)]).float())
        self._memoise(rows, logprobs, tables)

    def _record_scores(self, row: DecodingRow, logits: torch.Tensor) -> None:
        """Write the log-probabilities of a scoring row's chain (all but its first token) into the
        tree.
        """
        tokens = torch.tensor(
            [self.tree.token[node] for node in row.nodes[1:]], device=logits.device
        )
        picked = torch.log_softmax(logits[:-1], dim=-1).gather(1, tokens[:, None])[:, 0].tolist()
        for node, value in zip(row.nodes[1:], picked, strict=True):
            self.tree.logprob[node] = value

    def _memoise(
        self, rows: list[DecodingRow], logprobs: torch.Tensor, tables: dict[int, np.ndarray]
    ) -> None:
        """Keep the distributions `[n, V]` after the rows' last nodes: in the tree, else in `tables`
        where they are read.
        """
        tree = self.tree
        ends = [row.nodes[-1] for row in rows]
        if tree.next_logprobs is not None:
            tree.next_logprobs[torch.tensor(ends, device=logprobs.device)] = logprobs
            for node in ends:
                tree.memoised[node] = True
            return
        for row, whole in zip(rows, logprobs.cpu().numpy(), strict=True):
            if row.read():
                tables[id(row)] = whole
