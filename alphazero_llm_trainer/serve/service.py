"""One server's state, and how a request becomes its choices: wait for a place, answer, keep the trees, count."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from ..config.sections import ServeConfig
from ..errors import EngineError, RequestError
from ..mcts.driver import derive_seed
from ..mcts.waiting import together
from .answering import Answerer, Told
from .failures import ApiError
from .outcomes import Outcome
from .prometheus import Metrics
from .requests import Models, Wanted
from .text import Token
from .traces import Trace, Traces
from .wire import Wire

Emit = Callable[[dict[str, Any]], None]  # takes the chunks of a streamed answer
SOON = {"Retry-After": "1"}


class Service:
    """Answers requests with one student.

    Args:
        answerer: finds choices.
        models: those that there are.
        settings: bounds.
        fingerprint: of the student's weights.
        traces: keeps the trees.
    """

    def __init__(
        self, answerer: Answerer, models: Models, settings: ServeConfig, fingerprint: str, traces: Traces
    ) -> None:
        self.answerer, self.models, self.settings, self.traces = answerer, models, settings, traces
        self.student = answerer.student
        self.fingerprint, self.created = f"fp_{fingerprint[:12]}", int(time.time())
        self.places = asyncio.Semaphore(settings.concurrent)
        self.live, self.waiting = 0, 0
        self.metrics = Metrics(lambda: self.live, lambda: self.waiting)

    @property
    def context(self) -> int:
        """Tokens of a prompt and its response together."""
        return self.student.engine.capabilities.max_context

    async def __call__(self, wanted: Wanted, arrived: float, emit: Emit) -> dict[str, Any]:
        """The answer to a request that arrived at `arrived` by the event loop's clock; a streamed one goes to `emit`.

        Raises ApiError: too many wait, no place before the deadline, a prompt that doesn't fit, a broken engine.
        """
        loop, status = asyncio.get_running_loop(), 500
        try:
            body = await self.answer(wanted, arrived, emit)
            status = 200
            return body
        except ApiError as error:
            status = error.status
            raise
        except asyncio.CancelledError:
            status = 499  # the client went, or the server ends
            raise
        finally:
            self.metrics.requests.labels(wanted.model, status).inc()
            self.metrics.seconds.labels(wanted.model).observe(loop.time() - arrived)

    async def answer(self, wanted: Wanted, arrived: float, emit: Emit) -> dict[str, Any]:
        """See `__call__`."""
        due = None if wanted.deadline is None else arrived + wanted.deadline
        name, decode = f"chatcmpl-{secrets.token_hex(12)}", self.student.decode
        wire = Wire(wanted, name, int(time.time()), self.fingerprint, decode)
        async with self.place(due):
            works = [self.choice(wanted, index, due, arrived, wire, emit) for index in range(wanted.n)]
            try:
                outcomes = await together(*works)
            except RequestError as error:
                raise ApiError(str(error), param="messages", code="invalid_value") from error
            except EngineError as error:
                raise ApiError("the engine could not answer: try again", 503, code="engine_error") from error
        if wanted.stream and wanted.include_usage:
            emit(wire.used(outcomes))
        return {} if wanted.stream else wire.whole(outcomes)

    @asynccontextmanager
    async def place(self, due: float | None) -> AsyncIterator[None]:
        """One of the places of requests that are answered at once; first come, first served."""
        if self.waiting >= self.settings.queue:
            raise ApiError("too many requests wait: try again later", 429, code="queue_full", headers=SOON)
        self.waiting += 1
        try:
            async with asyncio.timeout_at(due):
                await self.places.acquire()
        except TimeoutError as error:
            late = "the deadline passed before this request's turn came: ask for more time, or later"
            raise ApiError(late, 503, code="deadline_exceeded", headers=SOON) from error
        finally:
            self.waiting -= 1
        self.live += 1
        try:
            yield
        finally:
            self.live -= 1
            self.places.release()

    async def choice(
        self, wanted: Wanted, index: int, due: float | None, arrived: float, wire: Wire, emit: Emit
    ) -> Outcome:
        """One choice; the first one's seed is the request's own."""
        seed = wanted.seed if index == 0 else derive_seed(wanted.seed, index)
        told: Told = Streamed(wire, index, emit) if wanted.stream else Told()
        if wanted.stream:
            emit(wire.opening(index))
        name = f"tr-{secrets.token_hex(16)}"
        outcome = await self.answerer(wanted, seed, due, told, name)
        outcome.seconds = asyncio.get_running_loop().time() - arrived
        outcome.trace_id = None if outcome.tree is None else name
        if wanted.stream:
            if wanted.searches:
                emit(wire.delta(index, outcome.text, None))
            emit(wire.closing(index, outcome))
        self.metrics.spent(outcome.cost)
        if outcome.tree is not None:
            self.traces.put(Trace(name, wanted, outcome, self.student.engine.version))
        return outcome


class Streamed(Told):
    """Sends what is told of one choice as chunks."""

    def __init__(self, wire: Wire, index: int, emit: Emit) -> None:
        self.wire, self.index, self.emit = wire, index, emit

    def text(self, text: str, tokens: list[Token] | None) -> None:
        self.emit(self.wire.delta(self.index, text, tokens))

    def progress(self, event: dict[str, Any]) -> None:
        self.emit(self.wire.progress(self.index, event))
