"""transformers' own forward over rows of the prefix tree, for any model.

Its attention reads keys and values from the tree's pool, gathered along each row's path.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from inspect import signature
from typing import Any

import numpy as np
import torch
from transformers import AttentionInterface, DynamicCache, PreTrainedModel
from transformers.cache_utils import DynamicLayer

from ..config.sections import PREFILL_TOKENS
from ..types import JsonObject
from .decoder import Decoder, Out
from .device import tell_once, text_config
from .last_layer import LastLayer
from .masks import DENSE, GROUPED, grouped_attention, make_masks, use_attention
from .prefix_tree import ROOT_NODE, PrefixTree
from .queue_rows import Computed, DecodingRow

PREFILL_ROWS, PADDING = 8, 1.2  # beyond so many rows, padding may add a fifth at most


class _TreeLayer(DynamicLayer):
    """One layer of the tree's keys and values, in the form that transformers' attention reads.

    The forward under way reads the nodes `paths` `[n, L]` (ROOT is padding) and writes `new_nodes`,
    whose tokens are in rows and columns `at` of its input.
    """

    def __init__(self, index: int, tree: PrefixTree) -> None:
        super().__init__()
        self.index, self.tree = index, tree
        self.paths: torch.Tensor
        self.new_nodes: torch.Tensor
        self.at: tuple[torch.Tensor, torch.Tensor]
        self.is_initialized = True

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Store new keys and values `[n, kv_heads, S, head_dim]`; returns all of the paths', with
        `L` tokens.
        """
        states = self.tree.states[:, self.index]  # [capacity, 2, kv_heads, head_dim]
        new = torch.stack((key_states, value_states)).permute(1, 3, 0, 2, 4)
        states[self.new_nodes] = new[self.at].to(states.dtype)
        # A 4-bit model's adapters may compute in another precision than its cache.
        read = states.index_select(0, self.paths.flatten()).view(*self.paths.shape, *new.shape[2:])
        keys, values = read.permute(2, 0, 3, 1, 4).to(key_states.dtype)
        return keys, values

    def get_seq_length(self) -> int:
        return self.paths.shape[1]

    def get_mask_sizes(self, query_length: Any) -> tuple[int, int]:
        return self.paths.shape[1], 0


class LibraryForward:
    """`queue_rows.RowForward` by transformers: rows of one token together, longer ones of similar
    length in padded windows.
    """

    name = "transformers"

    def __init__(self, model: PreTrainedModel, tree: PrefixTree, graphs: bool = True) -> None:
        self.model, self.tree = model, tree
        self.layers = [_TreeLayer(index, tree) for index in range(tree.states_shape[1])]
        self.cache = DynamicCache()
        self.cache.layers = list(self.layers)
        self.cache.layer_class_to_replicate = None
        self.value: tuple[torch.Tensor, float] | None = None
        whole: Any = getattr(model, "shared", model)
        self.last_layer, self.shape = LastLayer(whole), text_config(model)
        self.attention = self.shape._attn_implementation
        if self.attention not in DENSE:
            self.attention = "sdpa" if whole._supports_sdpa else "eager"
            tell_once(
                f"attn_implementation is {self.shape._attn_implementation} in training alone: the "
                f"in-process engine has masks of its own, which {self.attention} takes"
            )
        # What a model adds to its scores itself is a number; torch's attention takes a bool for
        # scores of any precision.
        self.mask_dtype = tree.dtype if self.attention == "eager" else torch.bool
        if self.attention == "sdpa" and whole._supports_attention_backend:
            self.attention = GROUPED
            AttentionInterface.register(GROUPED, grouped_attention)
        # transformers 5.24 renames it.
        takes = signature(whole.base_model.forward).parameters
        self.cache_name = "cache" if "cache" in takes else "past_key_values"
        self.decoder = Decoder(self._step, tree, graphs)

    def release(self) -> None:
        """Give memory back that it needs while it computes."""
        self.decoder.release()

    def facts(self) -> JsonObject:
        """What run.json says about it: its name, what it multiplies in, its threads."""
        products = str(self.tree.dtype).removeprefix("torch.")
        return {"name": self.name, "products": products, "threads": torch.get_num_threads()}

    def set_value(self, weight: torch.Tensor | None, bias: float) -> None:
        """Have sigmoid(weight . h + bias) computed of every node's final hidden state h; None ends
        that.
        """
        self.value = None if weight is None else (weight.detach().to(self.tree.device), bias)

    @torch.inference_mode()
    def compute(self, rows: Sequence[DecodingRow]) -> Computed:
        """Compute rows, ancestors before descendants; the class says what is ready then."""
        began = time.perf_counter()
        parts = []
        for window in split_windows(sorted(rows, key=lambda row: len(row.nodes))):
            if len(window[0].nodes) > 1:
                logprobs = self._prefill(window)
            else:
                hidden, logprobs = self.decoder(window)
                self._settle(window, hidden)
            parts.append((window, logprobs))
        table = self._memoise(rows, parts)
        seconds = time.perf_counter() - began
        return Computed(sum(len(row.nodes) for row in rows), seconds, table)

    def _run(
        self,
        ids: torch.Tensor,
        paths: torch.Tensor,
        positions: torch.Tensor,
        nodes: torch.Tensor,
        at: tuple[torch.Tensor, torch.Tensor],
    ) -> torch.Tensor:
        """Hidden states `[n, S, D]` of tokens `[n, S]`; see `_TreeLayer` for the others."""
        for layer in self.layers:
            layer.paths, layer.new_nodes, layer.at = paths, nodes, at
        # A query sees the keys at its own position and before; padding is behind them.
        keys = torch.arange(paths.shape[1], device=paths.device)[None]
        seen = keys[:, None] <= positions[:, :, None]  # [n, S, L]
        with use_attention(self.shape, self.attention):
            hidden: torch.Tensor = self.model.base_model(
                input_ids=ids,
                attention_mask=make_masks(
                    self.model.config, seen, positions, keys, self.mask_dtype
                ),
                position_ids=positions,
                use_cache=True,
                **{self.cache_name: self.cache},
            ).last_hidden_state
        return hidden

    def _logprobs(self, last: torch.Tensor) -> torch.Tensor:
        """Next-token log-probabilities `[n, V]` (nats) after hidden states `[n, D]`."""
        return torch.log_softmax(self.last_layer(last).float(), dim=-1)

    def _step(
        self, ids: torch.Tensor, paths: torch.Tensor, nodes: torch.Tensor, positions: torch.Tensor
    ) -> Out:
        """One step of decoding on the device, of which a `Decoder` makes graphs."""
        at = (torch.arange(len(ids), device=ids.device), torch.zeros_like(ids))
        hidden = self._run(ids[:, None], paths, positions[:, None], nodes, at)[:, 0]
        return hidden, self._logprobs(hidden)

    def _prefill(self, rows: list[DecodingRow]) -> torch.Tensor:
        """Compute one window of longer rows; log-probabilities `[n, V]` after them."""
        tree, device = self.tree, self.tree.device
        lengths = np.array([len(row.nodes) for row in rows])
        starts = np.array([row.start for row in rows])
        columns = np.arange(lengths.max())
        ids = np.zeros((len(rows), len(columns)), dtype=np.int64)  # [n, S]
        paths = np.full((len(rows), (starts + lengths).max()), ROOT_NODE)  # [n, L]
        for i, row in enumerate(rows):
            ids[i, : len(row.nodes)] = [tree.token[node] for node in row.nodes]
            paths[i, : row.start + len(row.nodes)] = tree.path(row.nodes[-1])
        nodes = torch.tensor([node for row in rows for node in row.nodes], device=device)
        at = np.nonzero(columns < lengths[:, None])
        given = [
            torch.from_numpy(each).to(device)
            for each in (ids, paths, starts[:, None] + columns, *at)
        ]
        new = (given[3], given[4])
        hidden = self._run(given[0], given[1], given[2], nodes, new)  # [n, S, D]
        ends = torch.from_numpy(lengths - 1).to(device)
        self._settle(rows, hidden[new])
        for i, row in enumerate(rows):
            if row.scoring is not None:
                self._record_scores(row, self.last_layer(hidden[i, : len(row.nodes)]).float())
        return self._logprobs(hidden[torch.arange(len(rows), device=device), ends])

    def _settle(self, rows: list[DecodingRow], hidden: torch.Tensor) -> None:
        """Mark the rows' nodes as computed, and store the value head's outputs for them;
        `hidden` is `[new tokens, D]`.
        """
        tree, nodes = self.tree, [node for row in rows for node in row.nodes]
        for node in nodes:
            tree.ready[node] = True
        if self.value is not None:
            weight, bias = self.value
            values = torch.sigmoid(hidden.float() @ weight.float() + bias).tolist()
            for node, value in zip(nodes, values, strict=True):
                tree.value[node] = value

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
        self, rows: Sequence[DecodingRow], parts: list[tuple[list[DecodingRow], torch.Tensor]]
    ) -> torch.Tensor | None:
        """Keep the distributions `[n, V]` after the last nodes of each window's rows in the tree,
        else return those that are read, in the order of `rows`.
        """
        tree = self.tree
        if tree.next_logprobs is not None:
            for window, logprobs in parts:
                ends = [row.nodes[-1] for row in window]
                tree.next_logprobs[torch.tensor(ends, device=logprobs.device)] = logprobs
                for node in ends:
                    tree.memoised[node] = True
            return None
        window, logprobs = parts[0]
        if window == list(rows) and all(row.read() for row in rows):
            return logprobs
        tables = {
            id(row): whole
            for window, logprobs in parts
            for row, whole in zip(window, logprobs, strict=True)
        }
        read = [tables[id(row)] for row in rows if row.read()]
        return torch.stack(read) if read else None


def split_windows(rows: list[DecodingRow]) -> Iterator[list[DecodingRow]]:
    """Rows (sorted by length) that are computed together: those of one token, then longer ones with
    little padding.
    """
    window: list[DecodingRow] = []
    tokens = 0
    for row in rows:
        length = len(row.nodes)
        padded = (len(window) + 1) * length
        wide = len(window) >= PREFILL_ROWS and padded > PADDING * (tokens + length)
        first = length > 1 and window and len(window[-1].nodes) == 1
        if length > 1 and window and (padded > PREFILL_TOKENS or wide or first):
            yield window
            window, tokens = [], 0
        window.append(row)
        tokens += length
    if window:
        yield window
