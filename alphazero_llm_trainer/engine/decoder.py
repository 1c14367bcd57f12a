"""One new token for each of many rows, from buffers that stay where they are.

The nodes before each row's token lie in a table on the device, so a step brings four numbers a row.
On CUDA a step that comes again is captured as a graph and replayed: launching a model's kernels one
by one takes many times as long as they do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from .device import tell_once
from .prefix_tree import ROOT_NODE, PrefixTree
from .queue_rows import DecodingRow

LEAST_TOKENS, WIDTH = 64, 512  # of a padded path; of the table at first
MOST_GRAPHS = 64  # the least recently used one goes

Out = tuple[torch.Tensor, torch.Tensor]
# Hidden states `[n, D]` and log-probabilities `[n, V]` of tokens `[n]` at nodes `[n]` with
# positions `[n]`, after the nodes `[n, L]` (ROOT is padding).
DecoderStep = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], Out]


def pad_size(count: int) -> int:
    """`count` or a little more, so that few sizes occur: four to an octave."""
    unit = 1 << max(0, count.bit_length() - 3)
    return -(-count // unit) * unit


class Decoder:
    """Runs `step` for rows of one new node each. What it returns holds until the next call.
    `graphs` says whether CUDA replays them.

    Each row has a seat, which is its line in the table of paths, as long as it goes on.
    """

    def __init__(self, step: DecoderStep, tree: PrefixTree, graphs: bool) -> None:
        self.step, self.tree = step, tree
        self.fixed = tree.device.type == "cuda"  # sizes are padded, so that they come again
        self.graphs_work = graphs and self.fixed
        self.paths = torch.empty((0, 0), dtype=torch.long)  # [seats, L]
        self.release()

    def release(self) -> None:
        """Give the graphs' memory back."""
        # By rows and tokens of a path, the last used one at the end; None: met once.
        self.graphs: dict[tuple[int, int], torch.cuda.CUDAGraph | None] = {}
        self.out: Out | None = None  # of all graphs, which share their memory
        self.pool: Any = None

    def _grow(self, rows: int, tokens: int) -> None:
        """Make room for so many; every row gets a new seat."""
        rows = max(1 << (rows - 1).bit_length(), len(self.paths))
        tokens = max(1 << (tokens - 1).bit_length(), self.paths.shape[1], WIDTH)
        device = self.tree.device
        self.paths = torch.full((rows, tokens), ROOT_NODE, device=device)
        self.inputs = torch.zeros((4, rows), dtype=torch.long, device=device)
        self.seats: dict[DecodingRow, int] = {}
        self.free = list(range(rows))
        self.release()

    def __call__(self, rows: Sequence[DecodingRow]) -> Out:
        """`step`'s results of the rows' last nodes, in order."""
        count, tokens = len(rows), 1 + max(row.start for row in rows)
        size = (count, tokens)
        if self.fixed:
            size = (pad_size(count), pad_size(max(tokens, LEAST_TOKENS)))
        if size[0] > len(self.paths) or size[1] > self.paths.shape[1]:
            self._grow(*size)
        self._seat(rows)
        inputs = np.empty((4, size[0]), dtype=np.int64)  # seat, token, node, position
        nodes = [row.nodes[-1] for row in rows]
        inputs[0, :count] = [self.seats[row] for row in rows]
        inputs[1, :count] = [self.tree.token[node] for node in nodes]
        inputs[2, :count] = nodes
        inputs[3, :count] = [row.start for row in rows]
        inputs[:, count:] = inputs[:, :1]  # padding computes the first row again
        self.inputs[:, : size[0]] = torch.from_numpy(inputs).to(self.tree.device)
        if self.graphs_work:
            with torch.cuda.device(self.tree.device):
                hidden, logprobs = self._replay_step(size)
        else:
            hidden, logprobs = self._compute(size)
        return hidden[:count], logprobs[:count]

    def _seat(self, rows: Sequence[DecodingRow]) -> None:
        """Rows that went on keep their seats and the nodes there; the others' go into the table."""
        here = set(rows)
        for row in [row for row in self.seats if row not in here]:
            self.free.append(self.seats.pop(row))
        new = [row for row in rows if row not in self.seats]
        for row in new:
            self.seats[row] = self.free.pop()
        if not new:
            return
        paths = np.full((len(new), max(row.start for row in new)), ROOT_NODE, dtype=np.int64)
        for i, row in enumerate(new):
            paths[i, : row.start] = self.tree.path(row.nodes[-1])[:-1]
        seats = torch.tensor([self.seats[row] for row in new], device=self.tree.device)
        # Padding reads what is there, and nodes that are gone may be no numbers.
        self.paths[seats] = ROOT_NODE
        self.paths[seats, : paths.shape[1]] = torch.from_numpy(paths).to(self.tree.device)

    def _compute(self, size: tuple[int, int]) -> Out:
        seat, token, node, position = self.inputs[:, : size[0]]
        self.paths[seat, position] = node
        return self.step(token, self.paths[:, : size[1]].index_select(0, seat), node, position)

    def _replay_step(self, size: tuple[int, int]) -> Out:
        """The step, of which a graph is made when its size is met for the second time."""
        if size not in self.graphs:
            made = self._compute(size)
            if self.out is None:
                rows = self.inputs.shape[1]
                hidden, logprobs = (each.new_empty((rows, each.shape[1])) for each in made)
                self.out = hidden, logprobs
            self.graphs[size] = None
            if len(self.graphs) > MOST_GRAPHS:
                del self.graphs[next(iter(self.graphs))]
            return made
        graph = self.graphs.pop(size)
        try:
            if graph is None:
                made = self._without_waits(size)
                self.graphs[size] = self._capture(size)
                return made
        except RuntimeError as error:
            self.graphs_work = False
            self.release()
            reason = str(error).partition("\n")[0]
            tell_once(f"steps launch their kernels one by one, no graph takes them: {reason}")
            return self._compute(size)
        self.graphs[size] = graph
        graph.replay()
        assert self.out is not None
        return self.out

    def _without_waits(self, size: tuple[int, int]) -> Out:
        """The step; RuntimeError where it waits for the device. In a capture that would leave
        torch's allocator in a state which nothing mends.
        """
        before = torch.cuda.get_sync_debug_mode()
        torch.cuda.set_sync_debug_mode("error")
        try:
            return self._compute(size)
        finally:
            torch.cuda.set_sync_debug_mode(before)

    def _capture(self, size: tuple[int, int]) -> torch.cuda.CUDAGraph:
        graph = torch.cuda.CUDAGraph()
        if self.pool is None:
            self.pool = torch.cuda.graph_pool_handle()
        assert self.out is not None
        with torch.cuda.graph(graph, pool=self.pool, capture_error_mode="thread_local"):
            for kept, made in zip(self.out, self._compute(size), strict=True):
                kept[: size[0]] = made
        return graph
