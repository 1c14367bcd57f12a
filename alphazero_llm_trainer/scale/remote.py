"""The two sides of an engine that another process searches with: letters out, letters back, many to an envelope.

A search actor's coroutines ask for sequences one by one. What they ask in the same turn of its event loop travels as one
remote call, and what the engine has finished when it looks travels back as one, so a call's fixed cost is shared.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..engine.protocol import Capabilities, Generated, GenerateRequest, Watch
from ..engine.step_ends import StepEnds
from ..errors import AlphaZeroError, EngineError
from ..types import Cost
from .pool import reason_of

GATHER_TURNS = 3  # woken coroutines pass through a few nested awaits before they ask again


class EngineLostError(Exception):
    """The engine's process has died; nobody's fault in particular."""


@dataclass(frozen=True, slots=True)
class EngineCard:
    """What a search actor must know of an engine that it can't touch."""

    version: int
    eos_id: int
    eos_ids: frozenset[int]
    step_ends: StepEnds
    capabilities: Capabilities


@dataclass(frozen=True, slots=True)
class Letter:
    """One call: `method` of the engine called `engine` ("policy" or "frozen") with `args`."""

    number: int
    engine: str
    method: str
    args: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Reply:
    """The end of a letter's call: its value, or the error that it raised."""

    number: int
    value: Any = None
    error: BaseException | None = None


@dataclass(slots=True)
class _Box:
    """One client's calls under way and finished."""

    running: dict[int, asyncio.Task[None]] = field(default_factory=dict)
    finished: list[Reply] = field(default_factory=list)
    news: asyncio.Event = field(default_factory=asyncio.Event)


class PostOffice:
    """The engine's side: runs letters as they come, keeps replies until their client asks.

    Args:
        engines: the engines by name.
    """

    def __init__(self, engines: dict[str, Any]) -> None:
        self.engines = engines
        self._boxes: dict[str, _Box] = {}

    def put(self, client: str, letters: Sequence[Letter]) -> None:
        """Start these calls."""
        box = self._boxes.setdefault(client, _Box())
        for letter in letters:
            box.running[letter.number] = asyncio.ensure_future(self._serve(box, letter))

    async def _serve(self, box: _Box, letter: Letter) -> None:
        try:
            value = await getattr(self.engines[letter.engine], letter.method)(*letter.args)
            reply = Reply(letter.number, value)
        except AlphaZeroError as error:
            reply = Reply(letter.number, error=type(error)(str(error)))
        except Exception as error:  # noqa: BLE001 - handed to the caller in the other process
            # Its text travels; the object might not.
            reply = Reply(letter.number, error=EngineError(reason_of(error)))
        box.running.pop(letter.number, None)
        box.finished.append(reply)
        box.news.set()

    async def take(self, client: str) -> list[Reply]:
        """What has finished since the client last asked; waits for something."""
        box = self._boxes.setdefault(client, _Box())
        await box.news.wait()
        box.news.clear()
        replies, box.finished = box.finished, []
        return replies

    def cancel(self, client: str, number: int) -> None:
        """The client waits for this call no more."""
        box = self._boxes.get(client)
        if box is not None and (task := box.running.pop(number, None)) is not None:
            task.cancel()

    def drop(self, client: str) -> None:
        """This client is dead: end its calls, and the `take` that waits for them."""
        box = self._boxes.pop(client, None)
        if box is not None:
            for task in box.running.values():
                task.cancel()
            box.news.set()


class Link:
    """The searcher's side.

    Args:
        send: delivers letters; returns once they are on their way.
        take: waits for replies.
        cancel: calls a letter off.
    """

    def __init__(
        self,
        send: Callable[[list[Letter]], None],
        take: Callable[[], Awaitable[list[Reply]]],
        cancel: Callable[[int], None],
    ) -> None:
        self._send, self._take, self._cancel = send, take, cancel
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._outbox: list[Letter] = []
        self._number = 0
        self._lost: BaseException | None = None
        self._reader: asyncio.Task[None] | None = None

    async def call(self, engine: str, method: str, *args: Any) -> Any:
        """The value of the engine's method. Raises what the method raised, and EngineLostError when the engine died."""
        if self._lost is not None:
            raise EngineLostError("the engine died") from self._lost
        loop = asyncio.get_running_loop()
        self._number += 1
        number, future = self._number, loop.create_future()
        self._waiting[number] = future
        if not self._outbox:
            loop.call_soon(self._post, GATHER_TURNS)
        self._outbox.append(Letter(number, engine, method, args))
        if self._reader is None or self._reader.done():
            self._reader = asyncio.ensure_future(self._read())
        try:
            return await future
        except asyncio.CancelledError:
            if self._waiting.pop(number, None) is not None and self._lost is None:
                self._cancel(number)
            raise

    def _post(self, turns: int) -> None:
        if turns:
            asyncio.get_running_loop().call_soon(self._post, turns - 1)
            return
        letters, self._outbox = [one for one in self._outbox if one.number in self._waiting], []
        if letters and self._lost is None:
            self._send(letters)

    async def _read(self) -> None:
        """Hand replies to those who wait, as long as somebody does."""
        while self._waiting:
            try:
                replies = await self._take()
            except EngineLostError as error:
                self.lose(error)
                return
            for reply in replies:
                future = self._waiting.pop(reply.number, None)
                if future is None or future.done():
                    continue
                if reply.error is not None:
                    future.set_exception(reply.error)
                else:
                    future.set_result(reply.value)

    def lose(self, error: BaseException) -> None:
        """The engine is gone: everybody who waits gets EngineLostError."""
        self._lost = error
        waiting, self._waiting = self._waiting, {}
        for future in waiting.values():
            if not future.done():
                future.set_exception(EngineLostError("the engine died"))


class RemoteEngine:
    """`TokenEngine` over a `Link`. What it costs is counted where the engine is; weights are pushed there by the driver.

    Args:
        link: the way to the engine's process.
        name: which of its engines, "policy" or "frozen".
        card: the engine's facts.
    """

    def __init__(self, link: Link, name: str, card: EngineCard) -> None:
        self.link, self.name = link, name
        self.version, self.step_ends = card.version, card.step_ends
        self.eos_id, self.eos_ids = card.eos_id, card.eos_ids
        self.capabilities, self.cost = card.capabilities, Cost()

    async def generate(self, requests: Sequence[GenerateRequest], watch: Watch | None = None) -> list[list[Generated]]:
        """See `TokenEngine.generate`; nothing streams to `watch`."""
        return await self.link.call(self.name, "generate", list(requests))

    async def score(self, sequences: Sequence[tuple[tuple[int, ...], tuple[int, ...]]]) -> list[list[float]]:
        """See `Engine.score`."""
        return await self.link.call(self.name, "score", list(sequences))

    async def next_token_topk(self, prefixes: Sequence[tuple[int, ...]], k: int) -> list[list[tuple[int, float]]]:
        """See `Engine.next_token_topk`."""
        return await self.link.call(self.name, "next_token_topk", list(prefixes), k)


class RemoteValue:
    """`engine.protocol.ValueFunction` over a `Link`; the other two are the value's own."""

    def __init__(self, link: Link, rollout_weight: float, computes: bool) -> None:
        self.link, self.rollout_weight, self.computes = link, rollout_weight, computes

    async def __call__(self, token_ids: tuple[int, ...]) -> float:
        """See `ValueFunction`."""
        return await self.link.call("value", "__call__", token_ids)
