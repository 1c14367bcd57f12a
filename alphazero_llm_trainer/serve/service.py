"""One server's state, and how a request becomes its choices: wait for a place, answer, keep the trees, count."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from ..config.sections import ServeConfig
from ..errors import EngineError, RequestError
from ..mcts.seeds import derive_seed
from ..mcts.waiting import together
from ..types import Cost
from .answering import Answerer
from .failures import ApiError
from .outcomes import Outcome
from .requests import Models, Wanted
from .traces import Trace, Traces
from .wire import Wire

Emit = Callable[[dict[str, Any]], None]  # takes the chunks of a streamed answer
SOON = {"Retry-After": "1"}
SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)


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
            self.metrics.requests.labels(wanted.body.model, status).inc()
            self.metrics.seconds.labels(wanted.body.model).observe(loop.time() - arrived)

    async def answer(self, wanted: Wanted, arrived: float, emit: Emit) -> dict[str, Any]:
        """See `__call__`."""
        due = None if wanted.deadline is None else arrived + wanted.deadline
        name, decode = f"chatcmpl-{secrets.token_hex(12)}", self.student.decode
        wire = Wire(wanted, name, int(time.time()), self.fingerprint, decode)
        async with self.place(due):
            works = [self.choice(wanted, index, due, arrived, wire, emit) for index in range(wanted.body.n)]
            try:
                outcomes = await together(*works)
            except RequestError as error:
                raise ApiError(str(error), param="messages", code="invalid_value") from error
            except EngineError as error:
                raise ApiError("the engine could not answer: try again", 503, code="engine_error") from error
        if wanted.body.stream and wanted.body.stream_options.include_usage:
            emit(wire.used(outcomes))
        return {} if wanted.body.stream else wire.whole(outcomes)

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
        name, streams = f"tr-{secrets.token_hex(16)}", wanted.body.stream

        def tell(text: str) -> None:
            if streams and text:
                emit(wire.chunk(index, {"content": text}))

        if streams:
            emit(wire.chunk(index, {"role": "assistant", "content": ""}))
        outcome = await self.answerer(wanted, seed, due, tell, name)
        outcome.seconds = asyncio.get_running_loop().time() - arrived
        outcome.trace_id = None if outcome.tree is None else name
        if streams:
            emit(wire.closing(index, outcome))
        self.metrics.spent(outcome.cost)
        if outcome.tree is not None:
            self.traces.put(Trace(name, wanted, outcome, self.student.engine.version))
        return outcome


class Metrics:
    """Counters of one server, in a registry of its own. `live` and `waiting` tell how many requests are."""

    def __init__(self, live: Callable[[], float], waiting: Callable[[], float]) -> None:
        self.registry = registry = CollectorRegistry()
        self.requests = Counter("alphazero_requests", "Answered requests.", ["model", "status"], registry=registry)
        self.seconds = Histogram(
            "alphazero_request_seconds", "From arrival to the answer.", ["model"], buckets=SECONDS, registry=registry
        )
        self.tokens = Counter("alphazero_tokens", "Tokens by kind (types.Cost).", ["kind"], registry=registry)
        Gauge("alphazero_live_requests", "Requests under way.", registry=registry).set_function(live)
        Gauge("alphazero_waiting_requests", "Requests that wait.", registry=registry).set_function(waiting)

    def spent(self, cost: Cost) -> None:
        """Count a choice's tokens."""
        for kind in ("prompt", "cached", "sampled", "scored"):
            self.tokens.labels(kind).inc(getattr(cost, f"{kind}_tokens"))

    def text(self) -> bytes:
        """The exposition format."""
        return generate_latest(self.registry)
