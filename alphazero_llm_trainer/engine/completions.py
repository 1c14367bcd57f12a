"""`engine.protocol.Engine` over any backend that completes one token-id prompt at a time: what
vLLM's two ways share.

A request becomes one completion a sample, each with a seed of its own, so a sample depends on
(request seed, sample index) alone, and one with fewer lines is the beginning of one with more. A
limit of one line is a set of stop tokens; with more, what follows the last line is cut off (line by
line would compute the block that a line begins in again, for every line).

Sampling is from the whole distribution, or its nucleus where a request says top-p; temperature is
the only other change to it, and top-k off, min-p 0 and no penalty are sent with every completion,
so that nothing of a model's generation_config gets in. Training says no top-p, so the mask of kept
tokens is all ones and isn't stored. Log-probabilities are those of temperature 1 and the whole
distribution, as in the in-process engine, whatever the tokens were drawn at: GRPO's ratio is that
of two policies at temperature 1, and at another search.temperature its rows are off-policy by the
temperature alone.
"""

from __future__ import annotations

import asyncio
import hashlib
from abc import abstractmethod
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from ..errors import EngineError
from ..types import Cost, JsonObject, LikelyTokens, Logprobs, TokenIds, TokenPairs
from .admission import Capabilities
from .background import LoopThread
from .device import context_of, text_config
from .protocol import Engine, EngineStats, Generated, GenerateRequest, Pair, Watch
from .step_ends import StepEnds

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Ask:
    """One completion: at most `max_new_tokens` tokens, ended by a token of `stop_ids` (kept).

    `top_k` likeliest tokens are wanted with each. What follows `max_steps` line ends is not wanted:
    a backend that can stop there does. `scored` wants the log-probabilities of the prompt's own
    tokens too.
    """

    prompt_ids: TokenIds
    max_new_tokens: int
    temperature: float
    seed: int
    stop_ids: TokenIds = ()
    top_k: int = 0
    max_steps: int | None = None
    scored: bool = False
    top_p: float = 1.0


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of an `Ask`: tokens and log-probabilities `[T]`, the top k of each, prompt tokens
    read from a cache.

    `scores` `[P]` are the log-probabilities of the prompt's tokens, the first one's is None; empty
    unless they were asked for.
    """

    token_ids: TokenIds
    logprobs: Logprobs
    top: tuple[TokenPairs, ...]
    cached: int = 0
    scores: tuple[float | None, ...] = ()


def sample_seed(seed: int, index: int) -> int:
    """The 62-bit seed of a request's sample; those of neighbours have nothing in common."""
    digest = hashlib.blake2b(f"{seed}/{index}".encode(), digest_size=8)
    return int.from_bytes(digest.digest(), "big") >> 2


def sampling_fields(ask: Ask) -> JsonObject:
    """What vLLM is told of an `Ask`, in process and over HTTP: whatever a model's or a server's
    defaults could change.
    """
    parameters: dict[str, Any] = {
        "temperature": ask.temperature,
        "top_p": ask.top_p,
        "top_k": 0,
        "min_p": 0.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "repetition_penalty": 1.0,
        "max_tokens": ask.max_new_tokens,
        # The end tokens of generation_config would stop it too: ours are among `stop_token_ids`.
        "ignore_eos": True,
        "stop_token_ids": list(ask.stop_ids),
        "logprobs": ask.top_k,
    }
    if ask.temperature > 0:
        parameters["seed"] = ask.seed
    return parameters | ({"prompt_logprobs": 0} if ask.scored else {})


def rank_tokens(pairs: dict[int, float], k: int) -> TokenPairs:
    """The k likeliest of token -> log-probability, likeliest first; of equal ones the lower
    token.
    """
    return tuple(sorted(pairs.items(), key=lambda pair: (-pair[1], pair[0]))[:k])


async def all_or_none(works: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """The results in order. Where one fails or the caller is cancelled the others are cancelled."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()


class CompletionEngine(Engine):
    """See the module. A subclass completes (`_complete`) and takes new weights (`_push`), both on
    `thread`'s event loop.

    Args:
        model: the trainer's model, whose weights `set_policy` sends on.
        eos_id: the token that ends a response; `eos_ids` are all that do, it among them.
        step_ends: where steps end.
        context: tokens of prompt and response together.
        trainable: `set_policy` can send new weights.
    """

    def __init__(
        self,
        model: Any,
        *,
        eos_id: int,
        eos_ids: frozenset[int],
        step_ends: StepEnds,
        context: int,
        trainable: bool = True,
    ) -> None:
        self.model = model
        self.eos_id = eos_id
        self.eos_ids = eos_ids | {eos_id}
        self.step_ends = step_ends
        self.vocabulary = text_config(model).vocab_size
        # A sequence that fills the context has one token more where it is scored.
        whole = context_of(text_config(model), context + 2) < context + 2
        self.capabilities = Capabilities(context, trainable, of_model=whole)
        self.cost, self.stats, self.version = Cost(), EngineStats(), 0
        self.facts: JsonObject = {}
        self.thread: LoopThread
        self._live: set[asyncio.Task[Any]] = set()

    @abstractmethod
    async def _complete(self, ask: Ask, base: bool = False) -> Answer:
        """One completion, by the base model without an adapter where `base`. Raises EngineError
        where the backend fails.
        """

    @abstractmethod
    async def _push(self) -> None:
        """Send the weights that `model` has now."""

    # -- the protocol ------------------------------------------------------------------------------

    async def _generate(
        self, requests: Sequence[GenerateRequest], watch: Watch | None
    ) -> list[list[Generated]]:
        return await self._run([self._request(request) for request in requests])

    async def _score(self, sequences: Sequence[Pair]) -> list[list[float]]:
        """The backend reads no cache for these: prefix and continuation are computed."""
        return await self._run([self._score_tokens(*pair) for pair in sequences])

    async def _topk(self, prefixes: Sequence[TokenIds], k: int) -> list[LikelyTokens]:
        return await self._run([self._peek(prefix, min(k, self.vocabulary)) for prefix in prefixes])

    def set_policy(self, weights: Any, version: int) -> None:
        """Take new weights (None: the model object was changed in place); forget all that the old
        ones gave, value head too.
        """
        if weights is not None:
            self.model.load_state_dict(weights)
        self.thread.wait(self._swap())
        self.version = version

    # -- on the thread's event loop ----------------------------------------------------------------

    async def _run(self, works: list[Coroutine[Any, Any, T]]) -> list[T]:
        async def run_counted() -> list[T]:
            task = asyncio.current_task()
            assert task is not None
            self._live.add(task)
            try:
                return await all_or_none(works)
            finally:
                self._live.discard(task)

        return await self.thread.run(run_counted())

    async def _swap(self) -> None:
        # Callers whose event loop ended were cancelled, but their tasks here may still have to
        # notice.
        ending = [task for task in self._live if task.cancelling()]
        await asyncio.gather(*ending, return_exceptions=True)
        if self._live:
            raise EngineError(
                "set_policy was called while requests are under way: wait for them first"
            )
        await self._push()

    async def _count_call(self, ask: Ask) -> Answer:
        answer = await self._complete(ask)
        self.stats.computed_tokens += len(ask.prompt_ids) - answer.cached + len(answer.token_ids)
        return answer

    async def _request(self, request: GenerateRequest) -> list[Generated]:
        room = self.capabilities.max_context - len(request.prompt_ids)
        limit = min(request.max_new_tokens, room)
        # vLLM draws nothing at temperature 0: every sample is the same.
        drawn = 1 if request.temperature == 0 else request.n
        samples = await all_or_none([self._sample(request, index, limit) for index in range(drawn)])
        samples *= request.n // drawn
        cached = min(answer.cached for answer, _ in samples)
        self.cost.calls += 1
        self.cost.cached_tokens += cached
        # The block that the prompt ends in is computed again for each sample.
        self.cost.prompt_tokens += sum(
            len(request.prompt_ids) - answer.cached for answer, _ in samples[:drawn]
        )
        self.cost.sampled_tokens += sum(tokens for _, tokens in samples)
        top = request.top_k > 0
        return [
            Generated(
                answer.token_ids,
                answer.logprobs,
                self._finish(request, answer),
                answer.top if top else None,
                cached,
            )
            for answer, _ in samples
        ]

    async def _sample(self, request: GenerateRequest, index: int, limit: int) -> tuple[Answer, int]:
        """One sample, and how many tokens were drawn for it: those after its last step are cut off,
        but paid for.
        """
        ends, steps = request.stop_ids | self.eos_ids, request.max_steps
        single = steps == 1
        stops = ends | self.step_ends.tokens if single else ends
        seed = sample_seed(request.seed, index)
        ask = Ask(
            request.prompt_ids,
            limit,
            request.temperature,
            seed,
            tuple(sorted(stops)),
            request.top_k,
            None if single else steps,
            top_p=request.top_p,
        )
        answer = await self._count_call(ask)
        drawn, last = len(answer.token_ids), answer.token_ids[-1]
        if (
            single
            and drawn < limit
            and last not in ends
            and not self.step_ends.whole(answer.token_ids)
        ):
            # It stopped at a blank line, which belongs to the step: the same draw again, as far as
            # it goes.
            answer = await self._count_call(
                replace(ask, stop_ids=tuple(sorted(ends)), max_steps=steps)
            )
            drawn += len(answer.token_ids)
        cuts = [] if steps is None else self.step_ends.cut(answer.token_ids)
        end = cuts[steps - 1] if steps is not None and len(cuts) >= steps else len(answer.token_ids)
        return replace(
            answer,
            token_ids=answer.token_ids[:end],
            logprobs=answer.logprobs[:end],
            top=answer.top[:end],
        ), drawn

    def _finish(self, request: GenerateRequest, answer: Answer) -> str:
        last = answer.token_ids[-1]
        if last in self.eos_ids:
            return "eos"
        full = (
            request.max_steps is not None
            and len(self.step_ends.cut(answer.token_ids)) >= request.max_steps
        )
        return "stop" if last in request.stop_ids or full else "length"

    async def _score_tokens(self, prefix: TokenIds, continuation: TokenIds) -> list[float]:
        self.cost.calls += 1
        self.cost.scored_tokens += len(continuation)
        if not continuation:
            return []
        answer = await self._count_call(Ask(prefix + continuation, 1, 0.0, 0, scored=True))
        return [float(value) for value in answer.scores[len(prefix) :] if value is not None]

    async def _peek(self, prefix: TokenIds, k: int) -> LikelyTokens:
        answer = await self._count_call(Ask(prefix, 1, 0.0, 0, top_k=k))
        self.cost.calls += 1
        self.cost.cached_tokens += answer.cached
        self.cost.prompt_tokens += len(prefix) - answer.cached
        return list(answer.top[0])


class BaseModelEngine(CompletionEngine):
    """The base model of a running engine, without adapters: what training never changes. Costs are
    its own.
    """

    def __init__(self, owner: CompletionEngine) -> None:
        super().__init__(
            owner.model,
            eos_id=owner.eos_id,
            eos_ids=owner.eos_ids,
            step_ends=owner.step_ends,
            context=owner.capabilities.max_context,
            trainable=False,
        )
        self.owner, self.thread, self.facts = owner, owner.thread, owner.facts

    async def _complete(self, ask: Ask, base: bool = True) -> Answer:
        return await self.owner._complete(ask, base=True)

    async def _push(self) -> None:
        raise EngineError("the base model's engine takes no weights: give them to the policy's")
