"""The engine's queue: which rows are computed next, and what their riders draw and where they go.

A *row* is a tree node being computed; its *riders* are the samples that wait for that node's
next-token distribution. Samples of one request, and of different requests, share a row as long as
their tokens agree. After a forward every rider draws, walks through what the prefix tree already
knows, and joins or makes the row of the first node that is not known.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import NamedTuple

import torch

from ..errors import EngineError
from ..types import Cost, TokenPairs
from .prefix_tree import PrefixTree
from .protocol import Generated
from .queue_rows import Computed, DecodingRow, Rider
from .sampling import Sampler, Special
from .step_ends import StepEnds

Frontier = list[tuple[int, list[Rider], DecodingRow | None]]


class _Drawn(NamedTuple):
    """What riders drew, in order; `tops` has the likeliest tokens of the draws that asked for
    them.
    """

    tokens: list[int]
    logprobs: list[float]
    tops: dict[int, TokenPairs]


class Schedule:
    """Rows that wait, rows that are live, and walkers: locked nodes, already known, whose riders
    draw next.

    `pending` finds the row that computes a node, `coming` has the nodes that queued rows will
    compute. `eos_ids` and `step_ends` end samples as `GenerateRequest` says.
    """

    def __init__(
        self,
        tree: PrefixTree,
        sampler: Sampler,
        cost: Cost,
        eos_ids: frozenset[int],
        step_ends: StepEnds,
    ) -> None:
        self.tree = tree
        self.sampler = sampler
        self.cost = cost
        self.eos_ids = eos_ids
        self.step_ends = step_ends
        self.waiting: deque[DecodingRow] = deque()
        self.live: list[DecodingRow] = []
        self.pending: dict[int, DecodingRow] = {}
        self.coming: set[int] = set()
        self.walkers: list[tuple[int, list[Rider]]] = []
        self.drawing: list[
            list[Rider]
        ] = []  # riders of the step under way: a failure must find every caller

    def __bool__(self) -> bool:
        """True while anything waits or is live."""
        return bool(self.live or self.waiting or self.walkers or self.drawing)

    def clear(self) -> list[asyncio.Future]:
        """Let everything go; returns the futures that waited."""
        futures = [future for row in (*self.live, *self.waiting) for future in row.futures()]
        futures += [rider.call.future for _, group in self.walkers for rider in group]
        futures += [rider.call.future for group in self.drawing for rider in group]
        self.live, self.walkers, self.drawing = [], [], []
        self.waiting.clear()
        self.pending.clear()
        self.coming.clear()
        return futures

    # -- what is computed next ---------------------------------------------------------------------

    def reserve(self, count: int) -> None:
        """Make room for `count` nodes, or raise EngineError."""
        if not self.tree.reserve(count):
            raise EngineError(
                f"engine.cache_tokens is {self.tree.capacity}: too few for the live rows; "
                "raise it or lower search.concurrent"
            )

    def row(self, node: int, path: list[int] | None) -> tuple[DecodingRow, int]:
        """The row that computes `node` (the one that is pending, or a new one), and how many tokens
        before it are known or another row's: what questions share is counted once.
        """
        pending = self.pending.get(node)
        if pending is not None:
            return pending, pending.start + len(pending.nodes)
        path = path if path is not None else self.tree.path(node)
        made = self.queue(path, len(path) - 1)
        self.pending[node] = made
        return made, made.start + made.shared

    def queue(self, path: list[int], start: int) -> DecodingRow:
        """Put a row in the queue that computes `path` from `start` on, and what is not ready before
        that.
        """
        ready = self.tree.ready
        while start > 0 and not ready[path[start - 1]]:
            start -= 1
        self.tree.lock(path[-1])
        made = DecodingRow(path[start:], start)
        while made.shared < len(made.nodes) and made.nodes[made.shared] in self.coming:
            made.shared += 1
        self.coming.update(made.nodes)
        self.waiting.append(made)
        return made

    def place(self, path: list[int], riders: list[Rider]) -> int:
        """Let a call's riders wait for the end of `path`; returns how many tokens down to it were
        known already.
        """
        if self.tree.memoised[path[-1]]:
            self.tree.lock(path[-1])
            self.walkers.append((path[-1], riders))
            return len(path)
        row, cached = self.row(path[-1], path)
        row.riders += riders
        return cached

    def refill(self, limit: int) -> None:
        """Take rows from the queue until `limit` are live, leaving out those that nobody waits for
        any more.
        """
        room = limit - len(self.live)
        while self.waiting and room > 0:
            row = self.waiting.popleft()
            if all(future.done() for future in row.futures()):
                self.close(row)
            else:
                self.live.append(row)
                room -= 1

    def close(self, row: DecodingRow) -> None:
        """A row has been computed, or given up: its nodes may be dropped now."""
        if row.scoring is None:
            self.pending.pop(row.nodes[-1], None)
        self.coming.difference_update(row.nodes)
        self.tree.unlock(row.nodes[-1])

    # -- after a forward ---------------------------------------------------------------------------

    def settle(self, computed: Computed) -> None:
        """Give everyone who waits for a live row what they wait for; rows that go on are live
        afterwards.
        """
        tree, table = self.tree, computed.table
        if self.coming:
            for row in self.live:  # its nodes are there now, and it may go on with others
                self.coming.difference_update(row.nodes)
        read = [row for row in self.live if row.riders or row.peeks]
        index = list(range(len(read)))
        if table is None and read:
            table, index = tree.next_logprobs, [row.nodes[-1] for row in read]
        if len(read) < len(self.live) or any(row.peeks or row.values for row in read):
            self._answer(read, table, index)
            index = [place for row, place in zip(read, index, strict=True) if row.riders]
        frontier: Frontier = [(row.nodes[-1], row.riders, row) for row in read if row.riders]
        for node, _, _ in frontier:
            self.pending.pop(node, None)
        self.drawing = [riders for _, riders, _ in frontier]
        self.live = self.advance(frontier, table, index) if frontier else []
        self.drawing = []

    def _answer(
        self, read: list[DecodingRow], table: torch.Tensor | None, index: list[int]
    ) -> None:
        """Resolve the futures of the live rows (all but the riders') and close the rows that have
        no riders.

        `read` are the rows whose distribution is at `index` of `table`.
        """
        for row, place in zip(read, index, strict=True):
            for future, k in row.peeks:
                if not future.done():
                    assert table is not None
                    future.set_result(list(self.sampler.top(table, [place], k)[0]))
        for row in self.live:
            for value in row.values:
                if not value.done():
                    value.set_result(self.tree.value[row.nodes[-1]])
            if row.scoring is not None and not row.scoring.done():
                row.scoring.set_result([self.tree.logprob[node] for node in row.scored])
            if not row.riders:
                self.close(row)

    def walk(self) -> None:
        """Let the walkers draw."""
        if self.walkers:
            walkers, self.walkers = self.walkers, []
            self.drawing = [riders for _, riders in walkers]
            self.advance([(node, riders, None) for node, riders in walkers], None, [])
            self.drawing = []

    def advance(
        self, frontier: Frontier, table: torch.Tensor | None, index: list[int]
    ) -> list[DecodingRow]:
        """Every rider draws its next token and goes on through known nodes until it ends or must
        wait for a forward.

        Args:
            frontier: locked nodes, their riders, and the row that has just computed them (None:
                known before).
            table, index: log-probabilities `[*, V]` and where each node's are; None to read them
                from the tree.

        Returns:
            the rows that go on in the place of the row before them.
        """
        tree, pending, kept = self.tree, self.pending, []
        while frontier:
            drawn = self._draw(frontier, table, index)
            self.cost.sampled_tokens += len(drawn.tokens)
            self.reserve(len(drawn.tokens))
            onward: Frontier = []
            at = 0
            for node, riders, computed in frontier:
                row = computed  # None once a branch has taken its place
                groups: dict[int, list[Rider]] = {}
                for rider in riders:
                    call, tokens = rider.call, rider.tokens
                    if call.future.done():  # the caller was cancelled
                        continue
                    token = drawn.tokens[at]
                    tokens.append(token)
                    rider.logprobs.append(drawn.logprobs[at])
                    if at in drawn.tops:
                        rider.top.append(drawn.tops[at])
                    at += 1
                    if token in call.ends or len(tokens) == len(rider.draws):
                        finish = self._finish(rider, token)
                        if finish is not None:
                            self._emit(rider, finish)
                            continue
                    if token in groups:
                        groups[token].append(rider)
                    else:
                        groups[token] = [rider]
                for token, group in groups.items():
                    child = tree.child(node, token)
                    tree.logprob[child] = group[0].logprobs[-1]
                    if row is not None and not tree.memoised[child] and child not in pending:
                        tree.locks[child] += 1
                        row.start += len(row.nodes)
                        row.nodes, row.riders = [child], group
                        if row.peeks or row.values:
                            row.peeks, row.values = [], []
                        pending[child] = row
                        kept.append(row)
                        row = None
                    else:
                        onward += self._onward(child, group)
                tree.unlock(node)
            frontier, table = onward, None
        return kept

    def _onward(self, node: int, riders: list[Rider]) -> Frontier:
        """Riders that can draw at once from what is known of `node`; the others wait for a row."""
        if self.tree.memoised[node]:
            self.tree.lock(node)
            return [(node, riders, None)]
        row, _ = self.row(node, None)
        row.riders += riders
        return []

    def _draw(self, frontier: Frontier, table: torch.Tensor | None, index: list[int]) -> _Drawn:
        """Draw for each rider of `frontier` whose caller still waits."""
        tree = self.tree
        if table is None:
            table, index = tree.next_logprobs, [node for node, _, _ in frontier]
            assert table is not None
        rows: list[int] = []
        temperatures: list[float] = []
        uniforms: list[float] = []
        special: dict[int, Special] = {}
        riding: list[tuple[int, Rider]] = []  # of these draws
        wanted: dict[int, list[int]] = {}  # k -> draws that want the k likeliest tokens
        for (_, riders, _), place in zip(frontier, index, strict=True):
            for rider in riders:
                call = rider.call
                if call.future.done():
                    continue
                request = call.request
                if request.top_k:
                    wanted.setdefault(request.top_k, []).append(len(rows))
                if rider.taken is not None or request.tempered is not None or request.top_p < 1:
                    special[len(rows)] = Special(request.top_p, rider.taken, request.tempered)
                    riding.append((len(rows), rider))
                rows.append(place)
                temperatures.append(request.temperature)
                uniforms.append(rider.draws[len(rider.tokens)])
        if not rows:
            return _Drawn([], [], {})
        tokens, logprobs, warm = self.sampler.draw(table, rows, temperatures, uniforms, special)
        for i, rider in riding:
            if rider.taken is not None:
                rider.taken = rider.taken.after.get(tokens[i])
            if i in warm:
                rider.tempered.append(warm[i])
        tops: dict[int, TokenPairs] = {}
        for k, draws in wanted.items():
            tops.update(
                zip(draws, self.sampler.top(table, [rows[i] for i in draws], k), strict=True)
            )
        return _Drawn(tokens, logprobs, tops)

    def _finish(self, rider: Rider, token: int) -> str | None:
        """Why a sample ends with `token`, its newest, or None where it goes on."""
        request = rider.call.request
        if token in self.eos_ids:
            return "eos"
        if token in request.stop_ids:
            return "stop"
        if (
            request.max_steps is not None
            and len(self.step_ends.cut(rider.tokens)) == request.max_steps
        ):
            return "stop"
        return "length" if len(rider.tokens) == len(rider.draws) else None

    def _emit(self, rider: Rider, finish: str) -> None:
        call = rider.call
        top = tuple(rider.top) if call.request.top_k else None
        warm = None if call.request.tempered is None else tuple(rider.tempered)
        ids, logprobs = tuple(rider.tokens), tuple(rider.logprobs)
        call.done[rider.index] = Generated(ids, logprobs, finish, top, call.cached, warm)
        call.missing -= 1
        if not call.missing:
            call.future.set_result([generated for generated in call.done if generated is not None])
