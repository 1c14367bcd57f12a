"""The in-process engine: continuous batching over one transformers model, every token of a shared
prefix computed once.

Each step computes all live rows of the queue (`schedule.py`) in one forward (`native.py`, else
`library_forward.py`), lets their samples draw, and refills the batch at once. Draws depend on
(request seed, sample index) alone.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from ..config.sections import MEMO_BYTES, EngineConfig
from ..errors import EngineError
from ..types import Cost, JsonObject, LikelyTokens, TokenIds
from .admission import Capabilities, Door, check_room
from .device import context_of, device_memory, kv_shape, tell_once, text_config, token_bytes
from .kernel_build import kernel_status
from .native import NativeLlama, load_library
from .prefix_tree import PrefixTree
from .protocol import Engine, EngineStats, Generated, GenerateRequest, Pair, Watch
from .queue_rows import Call, DecodingRow, Rider, RowForward
from .sampling import DeviceSampler, Sampler
from .schedule import Schedule
from .step_ends import StepEnds
from .without import Taken

if TYPE_CHECKING:
    from transformers import PreTrainedModel

# Turns of the event loop that callers get to put in their next requests before a step: while they
# do, and at most.
QUIET, TURNS = 3, 16

T = TypeVar("T")


class InProcessEngine(Engine):
    """`engine.protocol.Engine` over a causal language model of transformers.

    `miniature.check_forward` refuses those that it doesn't compute as transformers does.

    Args:
        model: the policy; it is read, never changed, except by `set_policy`.
        eos_id: the token that ends a response.
        eos_ids: all tokens that do, `eos_id` among them (chat models have several); None: `eos_id`
            alone.
        step_ends: where steps end.
        settings: batch, context and cache limits.
        unknown: the model's tokens that its tokenizer doesn't have, which are never drawn.

    `forward.name` says what computes it: "native" (C) or "transformers".
    """

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        eos_id: int,
        step_ends: StepEnds,
        settings: EngineConfig,
        eos_ids: frozenset[int] | None = None,
        unknown: Sequence[int] = (),
    ) -> None:
        self.eos_ids = frozenset({eos_id}) if eos_ids is None else eos_ids | {eos_id}
        self.model, self.eos_id, self.step_ends, self.settings = model, eos_id, step_ends, settings
        shape = text_config(model)
        context = context_of(shape, settings.context)
        weight: torch.Tensor = model.get_input_embeddings().weight  # type: ignore[assignment]
        dtype = weight.dtype if weight.dtype.is_floating_point else torch.bfloat16
        kernels = load_library() if settings.native == "auto" else None
        reason = self._why_not()
        if reason is None:
            dtype = torch.float32  # of the kernels' keys and values, whatever the weights are
        else:
            from .miniature import check_forward

            check_forward(model, context)
            if settings.native == "auto" and weight.device.type == "cpu":
                tell_once(f"torch computes the engine's forward, many times slower: {reason}")
        size = token_bytes(shape, dtype)
        memory = device_memory()[2]
        self.tree = PrefixTree(
            max(min(settings.cache_tokens, settings.cache(memory) // size), 4 * context),
            shape.num_hidden_layers,
            *kv_shape(shape),
            shape.vocab_size,
            memo_bytes=MEMO_BYTES,
            dtype=dtype,
            device=weight.device,
        )
        whole = context_of(shape, context + 1) == context
        self.capabilities, self.vocabulary = Capabilities(context, of_model=whole), shape.vocab_size
        self.unknown = torch.tensor(unknown, dtype=torch.long, device=weight.device)
        self.max_batch = settings.rows(size * context, memory)
        self.forward = self._make_forward()
        self.valued = False
        self.cost, self.stats, self.version = Cost(), EngineStats(), 0
        self.facts: JsonObject = {"backend": "inprocess", "forward": self.forward.facts()}
        on_host = weight.device.type == "cpu"
        self.sampler = Sampler(kernels) if on_host else DeviceSampler(kernels)
        self.queue = Schedule(self.tree, self.sampler, self.cost, self.eos_ids, step_ends)
        self._pump: asyncio.Task[None] | None = None
        self._door: Door | None = None
        self._wakes: set[Watch] = set()

    def _why_not(self) -> str | None:
        """Why the kernels don't compute the model, or None where they do."""
        if self.settings.native != "auto":
            return "engine.native is off"
        return NativeLlama.why_not(self.model) or (None if load_library() else kernel_status())

    def _make_forward(self) -> RowForward:
        """The fastest forward that computes the model's function here. Its weights may be copies:
        make a new one when they have changed.
        """
        if self._why_not() is None:
            return NativeLlama(self.model, self.tree, self.settings.dtype)
        from .library_forward import LibraryForward

        return LibraryForward(self.model, self.tree, self.settings.native == "auto")

    # -- the protocol ------------------------------------------------------------------------------

    async def _generate(
        self, requests: Sequence[GenerateRequest], watch: Watch | None
    ) -> list[list[Generated]]:
        calls = [partial(self._submit, request, watch) for request in requests]
        most = [len(one.prompt_ids) + one.n * one.max_new_tokens for one in requests]
        if watch is None:
            return await self._ask(calls, most)
        self._wakes.add(watch)
        try:
            return await self._ask(calls, most)
        finally:
            self._wakes.discard(watch)

    async def _score(self, sequences: Sequence[Pair]) -> list[list[float]]:
        calls = [partial(self._submit_scoring, *pair) for pair in sequences]
        return await self._ask(calls, [len(before) + len(after) for before, after in sequences])

    async def _topk(self, prefixes: Sequence[TokenIds], k: int) -> list[LikelyTokens]:
        """What is known costs nothing and waits for nothing."""
        return await self._ask([partial(self._submit_peek, prefix, k) for prefix in prefixes])

    async def values(self, sequences: Sequence[TokenIds]) -> list[float]:
        """The value head's output in (0, 1) after the last token of each sequence. What is known
        costs nothing and waits for nothing.
        """
        if not self.valued:
            raise EngineError("the engine has no value head: give it one with set_value")
        for tokens in sequences:
            check_room(tokens, self.capabilities, self.vocabulary, 0)
        return await self._ask([partial(self._submit_value, tokens) for tokens in sequences])

    def set_policy(self, weights: Any, version: int) -> None:
        """Take new weights (None: the model object was changed in place); forget all that the old
        ones gave, value head too.
        """
        self._refuse_busy("set_policy")
        if weights is not None:
            self.model.load_state_dict(weights)
        self.version, self.valued = version, False
        self.tree.clear()
        # Packed weights are copies, and adapters may have been added since. The old copy goes
        # first: both may not fit.
        self.forward.release()
        del self.forward
        self.forward = self._make_forward()
        self.facts["forward"] = self.forward.facts()

    def set_value(self, weight: torch.Tensor | None, bias: float = 0.0) -> None:
        """Take the value head V = sigmoid(weight . h + bias), h the final-norm hidden state `[D]`;
        None removes it. Raises EngineError for another shape than `[hidden size]` or while requests
        are under way.
        """
        self._refuse_busy("set_value")
        size = text_config(self.model).hidden_size
        if weight is not None and tuple(weight.shape) != (size,):
            raise EngineError(
                f"the value head's weight has shape {tuple(weight.shape)}: give one of ({size},)"
            )
        self.forward.set_value(weight, bias)
        self.valued = weight is not None
        self.tree.clear_values()

    def sleep(self) -> None:
        """Nothing will be asked for a while: give back the memory that can be given back. Its model
        is the trainer's own, the cache is given back.
        """
        if not self._busy():
            self.tree.release()
            self.forward.release()

    def reset_prefix_cache(self) -> None:
        """Drop what is cached of prompts and responses, so that the next call pays for all of its
        own.
        """
        self.tree.clear()

    # -- taking requests in ------------------------------------------------------------------------

    async def _ask(
        self, submissions: Sequence[Callable[[], T | asyncio.Future[T]]], most: Sequence[int] = ()
    ) -> list[T]:
        """Submit and wait for what is not known at once. Calls that may hold `most` tokens wait
        while the cache is full of others; what reads on from known tokens holds few, and doesn't.
        """
        answers: list[T | asyncio.Future[T]] = []
        self._ensure_pump()
        try:
            for at, submit in enumerate(submissions):
                answers.append(await self._enter(submit, most[at]) if most else submit())
            return [
                await answer if isinstance(answer, asyncio.Future) else answer for answer in answers
            ]
        finally:
            for answer in answers:
                if isinstance(answer, asyncio.Future) and not answer.get_loop().is_closed():
                    # what nobody waits for any more is let go; changes nothing where it has ended
                    answer.cancel()

    async def _enter(
        self, submit: Callable[[], T | asyncio.Future[T]], tokens: int
    ) -> T | asyncio.Future[T]:
        """What `submit` returns, once there is room for the tokens that its call may hold."""
        if self._door is None or self._door.loop is not asyncio.get_running_loop():
            self._door = Door(self.tree.capacity - 1)  # beside the root
        door, answer = self._door, None
        await door.enter(tokens)
        self._ensure_pump()
        try:
            answer = submit()
        finally:
            if isinstance(answer, asyncio.Future):
                answer.add_done_callback(partial(door.leave, tokens))
            else:
                door.leave(tokens)
        return answer

    def _refuse_busy(self, call: str) -> None:
        if self._busy():
            raise EngineError(
                f"{call} was called while requests are under way: wait for them first"
            )

    def _busy(self) -> bool:
        if not self.queue:
            return False
        if (
            self._pump is not None
            and not self._pump.done()
            and not self._pump.get_loop().is_closed()
        ):
            return True
        # Left over from an event loop that ended before the pump could run once more.
        self._abandon(RuntimeError("the event loop ended"))
        return False

    def _submit(
        self, request: GenerateRequest, watch: Watch | None = None
    ) -> asyncio.Future[list[Generated]]:
        self.queue.reserve(len(request.prompt_ids))
        path = self.tree.walk(request.prompt_ids)
        limit = min(request.max_new_tokens, self.capabilities.max_context - len(path))
        ends = request.stop_ids | self.eos_ids
        if request.max_steps is not None:
            ends |= self.step_ends.tokens
        call = Call(
            request, asyncio.get_running_loop().create_future(), ends, [None] * request.n, request.n
        )
        taken = Taken.of(request.without) if request.without and request.temperature > 0 else None
        riders = [
            Rider(call, i, self.sampler.uniforms(request.seed, i, limit), taken)
            for i in range(request.n)
        ]
        if watch is not None:
            watch.samples += riders
        call.cached = self.queue.place(path, riders)
        self._charge(len(path), call.cached)
        return call.future

    def _charge(self, tokens: int, known: int) -> None:
        self.cost.calls += 1
        self.cost.cached_tokens += known
        self.cost.prompt_tokens += tokens - known

    def _row(self, tokens: TokenIds) -> DecodingRow:
        """The row that computes the last of `tokens`; what it takes is charged."""
        self.queue.reserve(len(tokens))
        path = self.tree.walk(tokens)
        row, cached = self.queue.row(path[-1], path)
        self._charge(len(path), cached)
        return row

    def _submit_peek(self, prefix: TokenIds, k: int) -> Any:
        node = self.tree.find(prefix)
        if node is not None and self.tree.memoised[node]:
            self._charge(len(prefix), len(prefix))
            assert self.tree.next_logprobs is not None
            return list(self.sampler.top(self.tree.next_logprobs, [node], k)[0])
        future: asyncio.Future[LikelyTokens] = asyncio.get_running_loop().create_future()
        self._row(prefix).peeks.append((future, k))
        return future

    def _submit_value(self, tokens: TokenIds) -> Any:
        node = self.tree.find(tokens)
        if node is not None and not math.isnan(self.tree.value[node]):
            self._charge(len(tokens), len(tokens))
            return self.tree.value[node]
        future: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        self._row(tokens).values.append(future)
        return future

    def _submit_scoring(self, prefix: TokenIds, continuation: TokenIds) -> Any:
        """Queue what is needed to know the log-probability of every token of `continuation`;
        nothing where all are known.
        """
        tree = self.tree
        self.queue.reserve(len(prefix) + len(continuation))
        path = tree.walk(prefix + continuation)
        self.cost.calls += 1
        self.cost.scored_tokens += len(continuation)
        wanted = path[len(prefix) :]
        for i in range(len(prefix), len(path)):
            if math.isnan(tree.logprob[path[i]]):
                parent = path[i - 1]
                if not tree.memoised[parent]:
                    break
                assert tree.next_logprobs is not None
                known = float(tree.next_logprobs[parent, tree.token[path[i]]])
                if known == -math.inf:  # ruled out, which the model doesn't say
                    break
                tree.logprob[path[i]] = known
        else:
            return [tree.logprob[node] for node in wanted]
        row = self.queue.queue(path, i - 1)
        row.scoring, row.scored = asyncio.get_running_loop().create_future(), wanted
        return row.scoring

    # -- the loop ----------------------------------------------------------------------------------

    def _ensure_pump(self) -> None:
        """Have a task that steps the engine on this event loop. Call it before anything is
        queued.
        """
        loop, pump = asyncio.get_running_loop(), self._pump
        if pump is not None and not pump.done():
            owner = pump.get_loop()
            if owner is loop:
                return
            if not owner.is_closed():
                raise EngineError(
                    "the engine serves another event loop now: wait for it, or load a second engine"
                )
            self._pump = None
        self._busy()
        self._pump = loop.create_task(self._run())

    async def _run(self) -> None:
        """Step until nothing waits. Before each step every caller who can go on puts in what it
        asks for next.
        """
        try:
            while self.queue:
                await self._let_callers_park()
                began = time.perf_counter()
                self._step()
                for watch in self._wakes:
                    if watch.wake is not None:
                        watch.wake()
                self.stats.step_seconds += time.perf_counter() - began
        except Exception as error:  # noqa: BLE001 - every caller gets it as its own EngineError
            self._abandon(error)
        except BaseException as error:
            self._abandon(error)
            raise

    async def _let_callers_park(self) -> None:
        """Yield until nobody has asked for more in QUIET turns of the event loop, or the batch is
        full, or TURNS have passed.

        Woken callers pass through a few nested awaits before they submit again.
        """
        calls, quiet = self.cost.calls, 0
        for _ in range(TURNS):
            await asyncio.sleep(0)
            quiet = quiet + 1 if self.cost.calls == calls else 0
            calls = self.cost.calls
            if quiet == QUIET or len(self.queue.live) + len(self.queue.waiting) >= self.max_batch:
                return

    def _abandon(self, error: BaseException) -> None:
        """Hand a failure (or the end of the event loop) to every caller that still waits, and start
        afresh.
        """
        if not self.queue:
            return
        for future in self.queue.clear():
            if not future.done() and not future.get_loop().is_closed():
                failure = EngineError(f"the engine's loop ended early: {error!r}")
                failure.__cause__ = error
                future.set_exception(failure)
        self.tree.clear()

    @torch.inference_mode()
    def _rule_out(self, table: torch.Tensor | None) -> None:
        """Make tokens that the tokenizer doesn't have impossible in what was computed last; the
        others' log-probabilities stay as the model has them.
        """
        if table is not None:
            table.index_fill_(1, self.unknown, -torch.inf)
        elif self.tree.next_logprobs is not None:
            ends = [row.nodes[-1] for row in self.queue.live]
            nodes = torch.tensor(ends, device=self.unknown.device)
            self.tree.next_logprobs[nodes[:, None], self.unknown] = -torch.inf

    def _step(self) -> None:
        """Let those who wait for nothing draw, fill the batch, compute it, and hand out what came
        of it.
        """
        queue, stats = self.queue, self.stats
        queue.walk()
        queue.refill(self.max_batch)
        if not queue.live:
            return
        computed = self.forward.compute(queue.live)
        stats.forwards += 1
        stats.rows += len(queue.live)
        stats.computed_tokens += computed.tokens
        stats.forward_seconds += computed.seconds
        if len(self.unknown):
            self._rule_out(computed.table)
        queue.settle(computed)
