"""One request's own view of the student: its prompt, and an engine that counts what this request takes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from ..engine.protocol import Engine, Generated, GenerateRequest, Judgement, Verifier, Watch
from ..mcts.metered import CountedVerifier
from ..types import Cost, Problem, Step


class Meter:
    """The student's engine as one choice of one request sees it; `cost` adds up its part.

    `partial` is the longest response that was under way when a call was cancelled, or at `end`: its tokens after the prompt.
    """

    def __init__(self, engine: Engine, prompt: int) -> None:
        self.engine, self.prompt, self.cost = engine, prompt, Cost()
        self.partial: tuple[int, ...] = ()
        self._open: dict[Watch, Sequence[GenerateRequest]] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)

    async def generate(self, requests: Sequence[GenerateRequest], watch: Watch | None = None) -> list[list[Generated]]:
        """See `Engine.generate`. Where the engine streams, tokens of a call that is cancelled count too."""
        watch = Watch() if watch is None else watch
        self._open[watch] = requests
        try:
            found = await self.engine.generate(requests, watch)
        except asyncio.CancelledError:
            self._close(watch)
            raise
        if self._open.pop(watch, None) is not None:
            self.cost.sampled_tokens += sum(len(one.token_ids) for row in found for one in row)
        for request, row in zip(requests, found, strict=True):
            cached = row[0].cached_tokens
            self.cost.cached_tokens += cached
            self.cost.prompt_tokens += len(request.prompt_ids) - cached
            self.cost.calls += 1
        return found

    def end(self) -> None:
        """Count what is under way as it stands: its cancellation takes a while on a busy event loop, and an answer is due."""
        for watch in list(self._open):
            self._close(watch)

    def _close(self, watch: Watch) -> None:
        asked = [request for request in self._open.pop(watch, ()) for _ in range(request.n)]
        for request, sample in zip(asked, watch.samples, strict=False):
            self.cost.sampled_tokens += len(sample.tokens)
            self.partial = max(self.partial, (*request.prompt_ids[self.prompt :], *sample.tokens), key=len)

    async def score(self, sequences: Sequence[tuple[tuple[int, ...], tuple[int, ...]]]) -> list[list[float]]:
        """See `Engine.score`."""
        found = await self.engine.score(sequences)
        self.cost.scored_tokens += sum(len(continuation) for _, continuation in sequences)
        self.cost.calls += len(sequences)
        return found

    async def next_token_topk(self, prefixes: Sequence[tuple[int, ...]], k: int) -> list[list[tuple[int, float]]]:
        """See `Engine.next_token_topk`; one sampled token each, as token-level search counts it."""
        found = await self.engine.next_token_topk(prefixes, k)
        self.cost.sampled_tokens += len(prefixes)
        self.cost.calls += len(prefixes)
        return found


class Conversation:
    """A student (`policy.chat.Chat` with an engine) whose one prompt is this request's, whatever its last question was."""

    def __init__(self, student: Any, prompt: tuple[int, ...]) -> None:
        self.student, self.prompt = student, prompt
        self.engine = Meter(student.engine, len(prompt))

    def prompt_ids(self, question: str) -> tuple[int, ...]:
        return self.prompt

    def __getattr__(self, name: str) -> Any:
        return getattr(self.student, name)


class MeteredVerifier:
    """A verifier that counts what it computes for one request in that request's cost."""

    def __init__(self, verifier: Verifier, problem: Problem, conversation: Conversation) -> None:
        self.verifier = verifier
        self.judge = CountedVerifier(verifier, problem, conversation.prompt, conversation.engine.cost)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.verifier, name)

    async def __call__(self, problem: Problem, prompt_ids: tuple[int, ...], steps: Sequence[Step]) -> Judgement:
        return await self.judge(steps)
