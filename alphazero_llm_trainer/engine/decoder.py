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
from .prefix_tree import ROOT, PrefixTree
from .queue_rows import DecodingRow

LEAST_TOKENS, WIDTH = 64, 512  # of a padded path; of the table at first

Out = tuple[torch.Tensor, torch.Tensor]
# Hidden states `[n, D]` and log-probabilities `[n, V]` of tokens `[n]` at nodes `[n]` with
# positions `[n]`, after the nodes `[n, L]` (ROOT is padding).
Step = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], Out]


def padded(count: int) -> int:
    """`count` or a little more, so that few sizes occur: four to an octave."""
    unit = 1 << max(0, count.bit_length() - 3)
    return -(-count // unit) * unit


class Decoder:
    """Runs `step` for rows of one new node each. What it returns holds until the next call.
    `graphs` says whether CUDA replays them.
    """

    def __init__(self, step: Step, tree: PrefixTree, graphs: bool) -> None:
        self.step, self.tree = step, tree
        self.fixed = tree.device.type == "cuda"  # sizes are padded, so that they come again
        self.graphs_work = graphs and self.fixed
        self.paths = torch.empty((0, 0), dtype=torch.long)
        self.release()

    def release(self) -> None:
        """Give the graphs' memory back."""
        self.graphs: dict[tuple[int, int], torch.cuda.CUDAGraph | None] = {}
        self.out: Out | None = None  # of all graphs, which share their memory
        self.pool: Any = None
        self.states_at = 0

    def _grow(self, rows: int, tokens: int) -> None:
        """Make room for so many; every row is seated anew."""
        rows = max(1 << (rows - 1).bit_length(), len(self.paths))
        tokens = max(1 << (tokens - 1).bit_length(), self.paths.shape[1], WIDTH)
        device = self.tree.device
        self.paths = torch.full((rows, tokens), ROOT, device=device)
        self.inputs = torch.zeros((4, rows), dtype=torch.long, device=device)
        self.seats: dict[DecodingRow, int] = {}
        self.free = list(range(rows))
        self.release()

    def __call__(self, rows: Sequence[DecodingRow]) -> Out:
        """`step`'s results of the rows' last nodes, in order."""
        count, tokens = len(rows), 1 + max(row.start for row in rows)
        wide, long = count, tokens
        if self.fixed:
            wide, long = padded(count), padded(max(tokens, LEAST_TOKENS))
        if wide > len(self.paths) or long > self.paths.shape[1]:
            self._grow(wide, long)
        self._seat(rows)
        inputs = np.empty((4, wide), dtype=np.int64)  # seat, token, node, position
        nodes = [row.nodes[-1] for row in rows]
        inputs[0, :count] = [self.seats[row] for row in rows]
        inputs[1, :count] = [self.tree.token[node] for node in nodes]
        inputs[2, :count] = nodes
        inputs[3, :count] = [row.start for row in rows]
        inputs[:, count:] = inputs[:, :1]  # padding computes the first row again
        self.inputs[:, :wide] = torch.from_numpy(inputs).to(self.tree.device)
        hidden, logprobs = self._run(wide, long)
        return hidden[:count], logprobs[:count]

    def _seat(self, rows: Sequence[DecodingRow]) -> None:
        """Rows that went on keep their seats, with the nodes there; the others' go into the table."""
        here = set(rows)
        for row in [row for row in self.seats if row not in here]:
            self.free.append(self.seats.pop(row))
        new = [row for row in rows if row not in self.seats]
        for row in new:
            self.seats[row] = self.free.pop()
        if not new:
            return
        paths = np.full((len(new), max(row.start for row in new)), ROOT, dtype=np.int64)
        for i, row in enumerate(new):
            paths[i, : row.start] = self.tree.path(row.nodes[-1])[:-1]
        seats = torch.tensor([self.seats[row] for row in new], device=self.tree.device)
        self.paths[seats] = (
            ROOT  # padding reads what is there, and nodes that are gone may be no numbers
        )
        self.paths[seats, : paths.shape[1]] = torch.from_numpy(paths).to(self.tree.device)

    def _compute(self, wide: int, long: int) -> Out:
        seat, token, node, position = self.inputs[:, :wide]
        self.paths[seat, position] = node
        return self.step(token, self.paths[:, :long].index_select(0, seat), node, position)

    def _run(self, wide: int, long: int) -> Out:
        """The step, which is captured when it comes for the second time."""
        if not self.graphs_work:
            return self._compute(wide, long)
        if self.tree.states.data_ptr() != self.states_at:  # the cache was let go in between
            self.release()
            self.states_at = self.tree.states.data_ptr()
        if (wide, long) not in self.graphs:
            self.graphs[wide, long] = None
            made = self._compute(wide, long)
            if self.out is None:
                rows = self.inputs.shape[1]
                self.out = (
                    made[0].new_empty(rows, made[0].shape[1]),
                    made[1].new_empty(rows, made[1].shape[1]),
                )
            return made
        graph = self.graphs[wide, long]
        if graph is None:
            try:
                graph = self.graphs[wide, long] = self._capture(wide, long)
            except RuntimeError as error:
                self.graphs_work = False
                reason = str(error).partition("\n")[0]
                tell_once(f"steps launch their kernels one by one, no graph takes them: {reason}")
                return self._compute(wide, long)
        graph.replay()
        assert self.out is not None
        return self.out

    def _capture(self, wide: int, long: int) -> torch.cuda.CUDAGraph:
        graph = torch.cuda.CUDAGraph()
        if self.pool is None:
            self.pool = torch.cuda.graph_pool_handle()
        assert self.out is not None
        with torch.cuda.graph(graph, pool=self.pool, capture_error_mode="thread_local"):
            for kept, made in zip(self.out, self._compute(wide, long), strict=True):
                kept[:wide] = made
        return graph
