"""One server's state, and how a request becomes its choices: wait for a turn, answer, keep the trees, count."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

from ..config.sections import ServeConfig
from ..errors import EngineError, RequestError
from ..mcts.driver import derive_seed
from ..mcts.waiting import together
from .answering import Answerer
from .failures import ApiError, ending
from .fair import FairQueue
from .lag import Lag
from .names import SAMPLE, Names
from .outcomes import Outcome
from .prometheus import Metrics
from .traces import KeptJournal, Trace, TraceStore
from .wanted import Prompt, Wanted
from .wire import Wire

# What a streamed answer is told as it comes: a chunk for the client, or None when its turn has come.
Emit = Callable[[dict[str, Any] | None], None]


@dataclass(slots=True)
class ServedAnswer:
    """A request's choices, and the seconds that each took."""

    wire: Wire
    outcomes: list[Outcome]
    seconds: list[float]

    def body(self) -> dict[str, Any]:
        return self.wire.whole(self.outcomes, self.seconds)


class Service:
    """Answers requests with one student.

    Args:
        answerer: finds choices.
        names: the models that there are.
        settings: bounds.
        fingerprint: of the student's weights.
        journal: where served trees are kept, or None.
    """

    def __init__(
        self,
        answerer: Answerer,
        names: Names,
        settings: ServeConfig,
        fingerprint: str,
        journal: KeptJournal | None = None,
    ) -> None:
        self.answerer, self.names, self.settings, self.journal = answerer, names, settings, journal
        self.student = answerer.student
        self.fingerprint, self.created = f"fp_{fingerprint[:12]}", int(time.time())
        self.lag = Lag()
        self.ending = False  # the server was told to end: what is under way goes on, nothing new is taken in
        self.queue = FairQueue(settings.concurrent, settings.queue)
        self.traces = TraceStore(settings.traces, settings.trace_bytes, settings.trace_seconds)
        self.metrics = Metrics(self.queue, self.traces, self.lag, self.student.engine)

    def closed(self) -> ApiError | None:
        """Why no request is taken in: the server was told to end."""
        return ending(self.settings.grace_seconds) if self.ending else None

    @property
    def context(self) -> int:
        """Tokens of a prompt and its response together."""
        return self.student.engine.capabilities.max_context

    async def __call__(self, wanted: Wanted, client: str, arrived: float, emit: Emit) -> ServedAnswer:
        """All choices of a request that arrived at `arrived` by the event loop's clock.

        Raises ApiError: no place in the queue, no turn before the deadline, a prompt that doesn't fit, a broken engine.
        """
        loop = asyncio.get_running_loop()
        deadline = wanted.deadline
        due = None if deadline is None else arrived + deadline - self.lag.early(deadline)
        kind = "chatcmpl" if wanted.chat else "cmpl"
        wire = Wire(wanted, f"{kind}-{secrets.token_hex(12)}", int(time.time()), self.fingerprint, self.answerer.decode)
        async with AsyncExitStack() as turn:
            try:
                async with asyncio.timeout_at(due):
                    await turn.enter_async_context(self.queue.turn(client))
            except TimeoutError as error:
                raise ApiError(
                    "the deadline passed before this request's turn came: ask for more time, or later",
                    503,
                    kind="server_error",
                    code="deadline_exceeded",
                    headers={"Retry-After": "1", "x-should-retry": "false"},
                ) from error
            self.metrics.queued.observe(loop.time() - arrived)
            emit(None)
            if wanted.stream:
                for chunk in wire.opening():
                    emit(chunk)
            works = [
                self.choice(wanted, prompt, at * wanted.n + i, due, arrived, wire, emit)
                for at, prompt in enumerate(wanted.prompts)
                for i in range(wanted.n)
            ]
            try:
                found = await together(*works)
            except RequestError as error:
                raise ApiError(str(error), param="messages", code="invalid_value") from error
            except EngineError as error:
                raise ApiError(
                    "the engine could not answer: try again", 503, kind="server_error", code="engine_error"
                ) from error
        if wanted.stream and wanted.include_usage:
            emit(wire.used([outcome for outcome, _ in found]))
        return ServedAnswer(wire, [outcome for outcome, _ in found], [seconds for _, seconds in found])

    async def choice(
        self,
        wanted: Wanted,
        prompt: Prompt,
        index: int,
        due: float | None,
        arrived: float,
        wire: Wire,
        emit: Emit,
    ) -> tuple[Outcome, float]:
        """One choice, and the seconds from the request's arrival to it. The first one's seed is the request's own."""
        seed = wanted.seed if index == 0 else derive_seed(wanted.seed, index)
        searching = wanted.method.name != SAMPLE

        def tell(event: dict[str, Any]) -> None:
            if "progress" in event:
                emit(wire.progress(event["index"], event["progress"]))
            elif event["text"] or event["tokens"]:
                emit(wire.delta(event["index"], event["text"], event["tokens"]))

        name = f"tr-{secrets.token_hex(16)}"
        if searching:
            self.metrics.searches.inc()
        try:
            outcome = await self.answerer(wanted, prompt, index, seed, due, tell, name)
        finally:
            if searching:
                self.metrics.searches.dec()
        seconds = asyncio.get_running_loop().time() - arrived
        if outcome.tree is not None:
            outcome.trace_id = name
        if wanted.stream:
            if searching:
                emit(wire.delta(index, outcome.text, outcome.tokens))
            emit(wire.closing(index, outcome, seconds))
        self.metrics.spent(outcome.cost)
        if outcome.deadline_hit:
            self.metrics.misses.labels(wanted.model).inc()
        if outcome.tree is not None:
            version = self.student.engine.version
            trace = Trace(name, prompt.question, prompt.token_ids, outcome, str(wanted.method), version)
            self.traces.put(trace)
            if self.journal is not None:
                self.journal.append(trace.record())
        return outcome, seconds
