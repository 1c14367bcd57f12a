"""The in-process engine: continuous batching over one transformers model, every token of a shared prefix computed once.

A *row* is a tree node being computed; its *riders* are the samples that wait for that node's next-token distribution.
Samples of one request, and of different requests, share a row as long as their tokens agree. Each step computes all
live rows, lets every rider draw, walks riders through what the prefix tree already knows, and makes rows of the rest.
Rows of finished samples are refilled from the queue at once. Draws depend on (request seed, sample index) alone.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

from ..config import EngineConfig
from ..errors import EngineError, RequestError
from ..types import Cost
from .forward import make_forward
from .prefix_tree import PrefixTree
from .protocol import Capabilities, Generated, GenerateRequest
from .slots import Slots

MEMO_BYTES = 1 << 30  # next-token distributions are kept where all of them fit into this
CACHE_BYTES = 4 << 30  # keys and values of the prefix tree, whatever engine.cache_tokens allows
PREFILL_TOKENS = 8192  # padded tokens of one prefill forward
PREFILL_ROWS, PADDING = 8, 1.2  # beyond so many rows, padding may add a fifth at most


@dataclass(slots=True, eq=False)
class _Call:
    """A request under way and the future its caller waits on."""

    request: GenerateRequest
    future: asyncio.Future[list[Generated]]
    done: list[Generated | None]
    missing: int
    cached: int = 0


@dataclass(slots=True, eq=False)
class _Rider:
    """One of a request's samples."""

    call: _Call
    index: int
    draws: np.ndarray
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    top: list[tuple[tuple[int, float], ...]] = field(default_factory=list)
    lines: int = 0


@dataclass(slots=True, eq=False)
class _Row:
    """Nodes to compute after `start` tokens already known; riders (or score futures) wait at the last of them."""

    nodes: list[int]
    start: int
    riders: list[_Rider]
    scoring: asyncio.Future[list[float]] | None = None
    scored: list[int] = field(default_factory=list)
    slot: int = -1


@dataclass(slots=True)
class EngineStats:
    """What the engine did since it was made: forwards, rows and tokens computed, seconds inside the model's forward."""

    forwards: int = 0
    rows: int = 0
    computed_tokens: int = 0
    forward_seconds: float = 0.0
    step_seconds: float = 0.0


class InProcessEngine:
    """`policy.protocol.Engine` over a causal language model of transformers (Llama-like: RoPE by position ids).

    Args:
        model: the policy; it is read, never changed, except by `set_policy`.
        eos_id: the token that ends a response.
        line_end_ids: tokens whose text ends a line (a step).
        settings: batch, context and cache limits.
    """

    def __init__(
        self, model: PreTrainedModel, *, eos_id: int, line_end_ids: frozenset[int], settings: EngineConfig
    ) -> None:
        self.model, self.eos_id, self.line_end_ids, self.settings = model, eos_id, line_end_ids, settings
        shape = model.config
        layers = shape.num_hidden_layers
        kv_heads = getattr(shape, "num_key_value_heads", None) or shape.num_attention_heads
        head_dim = getattr(shape, "head_dim", None) or shape.hidden_size // shape.num_attention_heads
        context = min(settings.max_context, shape.max_position_embeddings)
        weight: torch.Tensor = model.get_input_embeddings().weight  # type: ignore[assignment]
        dtype = weight.dtype if weight.dtype.is_floating_point else torch.bfloat16
        token_bytes = 2 * layers * kv_heads * head_dim * dtype.itemsize
        self.tree = PrefixTree(
            max(min(settings.cache_tokens, CACHE_BYTES // token_bytes), 4 * context),
            layers,
            kv_heads,
            head_dim,
            shape.vocab_size,
            memo_bytes=MEMO_BYTES,
            dtype=dtype,
            device=weight.device,
        )
        self.slots = Slots(min(32, settings.max_batch), min(128, context), layers, kv_heads, head_dim, self.tree)
        self.forward = make_forward(model, self.slots)
        self.capabilities = Capabilities(scores=True, topk=True, trainable=True, max_context=context)
        self.cost, self.stats, self.version = Cost(), EngineStats(), 0
        self._waiting: deque[_Row] = deque()
        self._live: list[_Row] = []
        self._pending: dict[int, _Row] = {}
        self._walkers: list[tuple[int, list[_Rider]]] = []
        self._pump: asyncio.Task[None] | None = None

    # -- the protocol ------------------------------------------------------------------------------------------------

    async def generate(self, requests: Sequence[GenerateRequest]) -> list[list[Generated]]:
        """See `Engine.generate`. Raises EngineError for an empty or too long prompt."""
        for request in requests:
            self._admit_check(len(request.prompt_ids))
            if request.n < 1 or request.max_new_tokens < 1:
                raise EngineError(
                    f"a request wants {request.n} samples of {request.max_new_tokens} tokens: ask for some"
                )
        self._ensure_pump()
        calls: list[_Call] = []
        try:
            for request in requests:
                calls.append(self._submit(request))
            return [await call.future for call in calls]
        finally:
            for call in calls:
                call.future.cancel()  # what nobody waits for any more is let go; changes nothing where it has ended

    async def score(self, sequences: Sequence[tuple[tuple[int, ...], tuple[int, ...]]]) -> list[list[float]]:
        """See `Engine.score`."""
        for prefix, continuation in sequences:
            self._admit_check(len(prefix), len(continuation))
        self._ensure_pump()
        waits: list[asyncio.Future[list[float]]] = []
        try:
            for prefix, continuation in sequences:
                waits.append(self._submit_scoring(prefix, continuation))
            return [await wait for wait in waits]
        finally:
            for wait in waits:
                wait.cancel()

    async def next_token_topk(self, prefixes: Sequence[tuple[int, ...]], k: int) -> list[list[tuple[int, float]]]:
        """See `Engine.next_token_topk`."""
        drawn = await self.generate(
            [GenerateRequest(prompt_ids=p, max_new_tokens=1, temperature=0.0, top_k=k) for p in prefixes]
        )
        return [list(generated[0].top[0]) if generated[0].top else [] for generated in drawn]

    def set_policy(self, weights: Any, version: int) -> None:
        """See `Engine.set_policy`; `weights` is a state dict or None. Raises EngineError while requests are under way."""
        if self._busy():
            raise EngineError("set_policy was called while requests are under way: wait for them first")
        if weights is not None:
            self.model.load_state_dict(weights)
        self.version = version
        self.tree.clear()
        # Adapters may have been added since: the fused forward fits plain layers alone.
        self.forward = make_forward(self.model, self.slots)

    # -- taking requests in ------------------------------------------------------------------------------------------

    def _busy(self) -> bool:
        if not (self._live or self._waiting or self._walkers):
            return False
        if self._pump is not None and not self._pump.done() and not self._pump.get_loop().is_closed():
            return True
        # Left over from an event loop that ended before the pump could run once more.
        self._abandon(RuntimeError("the event loop ended"))
        return False

    def _admit_check(self, prompt: int, response: int = 1) -> None:
        limit = self.capabilities.max_context
        if prompt == 0:
            raise RequestError("prompt is empty: give at least one token")
        if prompt + response > limit:
            raise RequestError(
                f"prompt has {prompt} tokens, the context is {limit}: shorten the prompt or raise engine.max_context"
            )

    def _submit(self, request: GenerateRequest) -> _Call:
        future = asyncio.get_running_loop().create_future()
        call = _Call(request, future, [None] * request.n, request.n)
        self._reserve(len(request.prompt_ids))
        path = self.tree.walk(request.prompt_ids)
        limit = min(request.max_new_tokens, self.capabilities.max_context - len(path))
        riders = [
            _Rider(call, i, np.random.Generator(np.random.Philox(key=[request.seed, i])).random(limit))
            for i in range(request.n)
        ]
        known = self._place(path[-1], riders, path)
        call.cached = known
        self.cost.calls += 1
        self.cost.cached_tokens += known
        self.cost.prompt_tokens += len(path) - known
        return call

    def _place(self, node: int, riders: list[_Rider], path: list[int] | None = None) -> int:
        """Let riders wait for `node`'s distribution; returns how many tokens down to it were known already."""
        tree = self.tree
        if tree.memoised[node]:
            tree.lock(node)
            self._walkers.append((node, riders))
            return len(path) if path else 0
        row = self._pending.get(node)
        if row is not None:
            row.riders.extend(riders)
            return row.start + len(row.nodes)
        path = path if path is not None else tree.path(node)
        start = len(path) - 1
        while start > 0 and not tree.ready[path[start - 1]]:
            start -= 1
        tree.lock(node)
        row = _Row(path[start:], start, riders)
        self._pending[node] = row
        self._waiting.append(row)
        return start

    def _submit_scoring(self, prefix: tuple[int, ...], continuation: tuple[int, ...]) -> asyncio.Future[list[float]]:
        """Queue what is needed to know the log-probability of every token of `continuation`; at once where all are."""
        tree = self.tree
        self._reserve(len(prefix) + len(continuation))
        path = tree.walk(prefix + continuation)
        self.cost.calls += 1
        self.cost.scored_tokens += len(continuation)
        future: asyncio.Future[list[float]] = asyncio.get_running_loop().create_future()
        wanted = path[len(prefix) :]
        for i in range(len(prefix), len(path)):
            if tree.logprob[path[i]] != tree.logprob[path[i]]:  # NaN: not known yet
                parent = path[i - 1]
                if tree.memoised[parent] and tree.next_logprobs is not None:
                    tree.logprob[path[i]] = float(tree.next_logprobs[parent, tree.token[path[i]]])
                    continue
                break
        else:
            future.set_result([tree.logprob[node] for node in wanted])
            return future
        start = i - 1
        while start > 0 and not tree.ready[path[start - 1]]:
            start -= 1
        tree.lock(path[-1])
        self._waiting.append(_Row(path[start:], start, [], scoring=future, scored=wanted))
        return future

    def _reserve(self, count: int) -> None:
        if not self.tree.reserve(count):
            raise EngineError(
                f"engine.cache_tokens is {self.tree.capacity}: too few for the live rows; raise it or lower"
                " search.concurrent"
            )

    # -- the loop ----------------------------------------------------------------------------------------------------

    def _ensure_pump(self) -> None:
        """Have a task that steps the engine on this event loop. Call it before anything is queued."""
        loop, pump = asyncio.get_running_loop(), self._pump
        if pump is not None and not pump.done():
            owner = pump.get_loop()
            if owner is loop:
                return
            if not owner.is_closed():
                raise EngineError("the engine serves another event loop now: wait for it, or load a second engine")
            self._pump = None
        self._busy()
        self._pump = loop.create_task(self._run())

    async def _run(self) -> None:
        """Step until nothing waits. After each step every caller whose request ended may put in the next one."""
        try:
            while self._walkers or self._waiting or self._live:
                began = time.perf_counter()
                self._step()
                self.stats.step_seconds += time.perf_counter() - began
                # Woken callers pass through a few nested awaits before they submit again.
                for _ in range(3):
                    await asyncio.sleep(0)
        except Exception as error:  # noqa: BLE001 - every waiting caller gets it as its own EngineError
            self._abandon(error)
        except BaseException as error:
            self._abandon(error)
            raise

    def _abandon(self, error: BaseException) -> None:
        """Hand a failure (or the end of the event loop) to every caller that still waits, and start afresh."""
        rows = [*self._live, *self._waiting]
        if not rows and not self._walkers:
            return
        riders = [rider for row in rows for rider in row.riders]
        riders += [rider for _, group in self._walkers for rider in group]
        futures: list[asyncio.Future] = [rider.call.future for rider in riders]
        futures += [row.scoring for row in rows if row.scoring is not None]
        for future in futures:
            if not future.done() and not future.get_loop().is_closed():
                failure = EngineError(f"the engine's loop ended early: {error!r}")
                failure.__cause__ = error
                future.set_exception(failure)
        self._live, self._walkers = [], []
        self._waiting.clear()
        self._pending.clear()
        self.tree.clear()

    @torch.inference_mode()
    def _step(self) -> None:
        if self._walkers:
            self._draw([(node, riders, None) for node, riders in self._walkers], None)
            self._walkers = []
        self._refill()
        if not self._live:
            return
        # Rows stay in `_live` until the step is through: a failure must find every caller there.
        frontier: list[tuple[int, list[_Rider], _Row | None]] = []
        parts = []
        for start, end, width in self._windows():
            logprobs = self._forward(start, end, width)
            sampling = [i for i, row in enumerate(self._live[start:end]) if row.scoring is None]
            for i in sampling:
                row = self._live[start + i]
                frontier.append((row.nodes[-1], row.riders, row))
            parts.append(logprobs if len(sampling) == end - start else logprobs[sampling])
        for row in self._live:
            if row.scoring is not None:
                if not row.scoring.done():
                    row.scoring.set_result([self.tree.logprob[node] for node in row.scored])
                self.tree.unlock(row.nodes[-1])
            else:
                self._pending.pop(row.nodes[-1], None)
        kept: list[_Row] = []
        if frontier:
            kept = self._draw(frontier, np.concatenate(parts))
        self._compact(kept)

    def _refill(self) -> None:
        """Take rows from the queue into free slots, short ones first so that they join the decode window."""
        room = self.settings.max_batch - len(self._live)
        taken: list[_Row] = []
        while self._waiting and len(taken) < room:
            row = self._waiting.popleft()
            if not self._forsaken(row):
                taken.append(row)
        if not taken:
            return
        taken.sort(key=lambda row: len(row.nodes))
        for slot, row in enumerate(taken, len(self._live)):
            row.slot = slot
        self._live += taken
        self.slots.ensure(len(self._live), max(row.start + len(taken[-1].nodes) for row in taken))
        for row in taken:
            self.slots.load(row.slot, self.tree.path(row.nodes[0])[:-1])

    def _forsaken(self, row: _Row) -> bool:
        """True, and the row is let go, when every caller of it was cancelled."""
        alive = [rider for rider in row.riders if not rider.call.future.done()]
        if alive or (row.scoring is not None and not row.scoring.done()):
            return False
        if row.scoring is None:
            self._pending.pop(row.nodes[-1], None)
        self.tree.unlock(row.nodes[-1])
        return True

    def _windows(self) -> list[tuple[int, int, int]]:
        """Ranges of live rows (start, end, widest chain) that are computed together."""
        windows: list[tuple[int, int, int]] = []
        start, live = 0, self._live
        decode = next((i for i, row in enumerate(live) if len(row.nodes) > 1), len(live))
        if decode:
            windows.append((0, decode, 1))
            start = decode
        while start < len(live):
            end, tokens = start + 1, len(live[start].nodes)
            while end < len(live):
                padded = (end + 1 - start) * len(live[end].nodes)
                tokens += len(live[end].nodes)
                if padded > PREFILL_TOKENS or (end - start >= PREFILL_ROWS and padded > PADDING * tokens):
                    break
                end += 1
            windows.append((start, end, len(live[end - 1].nodes)))
            start = end
        return windows

    def _forward(self, start: int, end: int, width: int) -> np.ndarray:
        """Compute the chains of live rows start..end; returns next-token log-probabilities at their ends `[n, V]`."""
        tree, rows, window = self.tree, self._live[start:end], self.slots.window
        device = tree.states.device
        lengths = np.array([len(row.nodes) for row in rows])
        starts = np.array([row.start for row in rows])
        self.slots.ensure(len(self._live), int((starts + width).max()))
        columns = np.arange(width)
        ids = np.zeros((len(rows), width), dtype=np.int64)
        for i, row in enumerate(rows):
            ids[i, : len(row.nodes)] = [tree.token[node] for node in row.nodes]
        positions = starts[:, None] + columns
        new_rows, new_columns = np.nonzero(columns < lengths[:, None])
        nodes = [node for row in rows for node in row.nodes]
        window.start, window.length = start, int((starts + lengths).max())
        window.positions = torch.from_numpy(positions).to(device)
        window.new_rows = torch.from_numpy(new_rows).to(device)
        window.new_columns = torch.from_numpy(new_columns).to(device)
        window.new_nodes = torch.tensor(nodes, device=device)
        # A query sees the keys at its own position and before; whatever lies in the slot beyond is masked.
        mask = (torch.arange(window.length, device=device) <= window.positions[:, :, None])[:, None]
        began = time.perf_counter()
        hidden = self.forward(torch.from_numpy(ids).to(device), mask)
        head = self.model.get_output_embeddings()
        last = hidden[torch.arange(len(rows), device=device), torch.from_numpy(lengths - 1).to(device)]
        logprobs = torch.log_softmax(head(last).float(), dim=-1)
        self.stats.forward_seconds += time.perf_counter() - began
        for node in nodes:
            tree.ready[node] = True
        for i, row in enumerate(rows):
            if row.scoring is not None:
                self._record_scores(row, head(hidden[i, : len(row.nodes)]).float())
        if tree.next_logprobs is not None:
            ends = [row.nodes[-1] for row in rows]
            tree.next_logprobs[torch.tensor(ends, device=device)] = logprobs
            for node in ends:
                tree.memoised[node] = True
        self.stats.forwards += 1
        self.stats.rows += len(rows)
        self.stats.computed_tokens += len(nodes)
        return logprobs.cpu().numpy()

    def _record_scores(self, row: _Row, logits: torch.Tensor) -> None:
        """Write the log-probabilities of a scoring row's chain (all but its first token) into the tree."""
        tokens = torch.tensor([self.tree.token[node] for node in row.nodes[1:]], device=logits.device)
        picked = torch.log_softmax(logits[:-1], dim=-1).gather(1, tokens[:, None])[:, 0].tolist()
        for node, value in zip(row.nodes[1:], picked, strict=True):
            self.tree.logprob[node] = value

    # -- drawing -----------------------------------------------------------------------------------------------------

    def _draw(self, frontier: list[tuple[int, list[_Rider], _Row | None]], logprobs: np.ndarray | None) -> list[_Row]:
        """Every rider draws its next token and goes on through known nodes until it ends or must wait for a forward.

        Args:
            frontier: locked nodes, their riders, and the row that has just computed them (None: from the tree).
            logprobs: `[len(frontier), V]`, or None to read them from the tree.

        Returns:
            the rows that go on in the slot of the row before them.
        """
        tree, kept = self.tree, []
        while frontier:
            if logprobs is None:
                assert tree.next_logprobs is not None
                index = torch.tensor([node for node, _, _ in frontier], device=tree.next_logprobs.device)
                logprobs = tree.next_logprobs[index].cpu().numpy()
            self._reserve(sum(len(riders) for _, riders, _ in frontier))
            onward: list[tuple[int, list[_Rider], _Row | None]] = []
            cumulative: dict[float, np.ndarray] = {}
            for i, ((node, riders, row), after) in enumerate(zip(frontier, logprobs, strict=True)):
                slot_owner = row
                for token, group in self._next_tokens(riders, logprobs, i, cumulative).items():
                    child = tree.child(node, token)
                    tree.logprob[child] = float(after[token])
                    if tree.memoised[child]:
                        tree.lock(child)
                        onward.append((child, group, None))
                    elif slot_owner is not None and child not in self._pending:
                        tree.lock(child)
                        next_row = _Row([child], slot_owner.start + len(slot_owner.nodes), group, slot=slot_owner.slot)
                        self._pending[child] = next_row
                        kept.append(next_row)
                        slot_owner = None
                    else:
                        self._place(child, group)
                tree.unlock(node)
            frontier, logprobs = onward, None
        return kept

    def _next_tokens(
        self, riders: list[_Rider], logprobs: np.ndarray, i: int, cumulative: dict[float, np.ndarray]
    ) -> dict[int, list[_Rider]]:
        """Draw a token for each rider from row i of `logprobs` `[F, V]` (nats); returns those that go on, by token.

        `cumulative` holds the rows' cumulative probabilities by temperature, computed for all rows at once.
        """
        after = logprobs[i]
        groups: dict[int, list[_Rider]] = {}
        for rider in riders:
            request = rider.call.request
            if rider.call.future.done():  # the caller was cancelled
                continue
            if request.temperature == 0:
                token = int(after.argmax())
            else:
                if request.temperature not in cumulative:
                    scaled = logprobs.astype(np.float64) / request.temperature
                    cumulative[request.temperature] = np.exp(scaled).cumsum(axis=1)
                cdf = cumulative[request.temperature][i]
                token = int(cdf.searchsorted(rider.draws[len(rider.tokens)] * cdf[-1], side="right"))
            rider.tokens.append(token)
            rider.logprobs.append(float(after[token]))
            if request.top_k:
                best = np.argpartition(-after, min(request.top_k, after.size) - 1)[: request.top_k]
                best = best[np.argsort(-after[best], kind="stable")]
                rider.top.append(tuple((int(i), float(after[i])) for i in best))
            finish = self._finish(rider, token)
            if finish is None:
                groups.setdefault(token, []).append(rider)
            else:
                self._emit(rider, finish)
        return groups

    def _finish(self, rider: _Rider, token: int) -> str | None:
        request = rider.call.request
        if token == self.eos_id:
            return "eos"
        if token in request.stop_ids:
            return "stop"
        if token in self.line_end_ids:
            rider.lines += 1
            if rider.lines == request.max_lines:
                return "stop"
        return "length" if len(rider.tokens) == len(rider.draws) else None

    def _emit(self, rider: _Rider, finish: str) -> None:
        call = rider.call
        top = tuple(rider.top) if call.request.top_k else None
        call.done[rider.index] = Generated(tuple(rider.tokens), tuple(rider.logprobs), finish, top, call.cached)
        call.missing -= 1
        self.cost.sampled_tokens += len(rider.tokens)
        if not call.missing:
            call.future.set_result([generated for generated in call.done if generated is not None])

    def _compact(self, kept: list[_Row]) -> None:
        """Close the holes that ended rows left, so that live rows are slots 0..n-1 again."""
        taken = {row.slot: row for row in kept}
        for hole in range(len(kept)):
            if hole in taken:
                continue
            last = max(taken)
            row = taken.pop(last)
            self.slots.move(last, hole, row.start)
            row.slot = hole
            taken[hole] = row
        self._live = [taken[slot] for slot in range(len(kept))]
