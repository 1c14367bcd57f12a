"""One server's state, and how a request becomes its choices: wait for a place, answer, keep the trees, count."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from ..config.sections import ServeConfig
from ..errors import ConfigError, EngineError, RequestError
from ..mcts.journal import Journal
from ..mcts.seeds import derive_seed
from ..mcts.waiting import together
from ..policy.adapters import fingerprint
from ..rollouts import GradedTree
from ..types import Problem, Task
from .answering import Answerer
from .requests import ApiError, ChatBody, Models, Wanted
from .wire import DEADLINE, CompletionWire, Outcome, Wire

log = logging.getLogger(__name__)

Emit = Callable[[dict[str, Any]], None]  # takes the chunks of a streamed answer
SOON = {"Retry-After": "1"}
TRACES = 200  # the newest trees, which are kept in memory for /v1/traces
SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)


@dataclass(frozen=True, slots=True)
class Trace:
    """An answer with its tree. It becomes JSON when somebody asks for it."""

    name: str
    wanted: Wanted
    outcome: Outcome
    policy_version: int

    def record(self) -> dict[str, Any]:
        """The journal line, as `collect` writes those of training: nobody knows the gold answer here."""
        outcome, wanted, choice = self.outcome, self.wanted, self.outcome.choice
        assert outcome.tree is not None and choice is not None
        ungraded = GradedTree(
            self.name,
            Task(Problem(self.name, wanted.question, "user"), ""),
            outcome.tree,
            outcome.cost,
            outcome.ended_by,
            flat_at_first=True,
            extensions=0,
            prompt_ids=wanted.prompt,
            policy_version=self.policy_version,
        )
        served = {"method": wanted.method.label, "response": outcome.text, "deadline_hit": outcome.ended_by == DEADLINE}
        served |= {"answer": choice.answer, "node": choice.node, "why": choice.why, "seed": outcome.seed}
        # Its own split, so that nothing learns from it by mistake: the question may be anybody's, a benchmark's too.
        return ungraded.record(split="served", served=served)


class Service:
    """Answers requests with one student, and keeps the newest trees; all of them in the journal of the folder `keep`.

    Raises ConfigError where nothing can be written there.
    """

    def __init__(self, answerer: Answerer, models: Models, settings: ServeConfig, keep: Path | None = None) -> None:
        self.answerer, self.models, self.settings = answerer, models, settings
        self.student = answerer.student
        self.fingerprint, self.created = f"fp_{fingerprint(self.student.model)[:12]}", int(time.time())
        self.places = asyncio.Semaphore(settings.concurrent)
        self.live, self.waiting = 0, 0
        self.traces: OrderedDict[str, Trace] = OrderedDict()
        self.journal: Journal | None = None
        if keep is not None:
            try:
                self.journal = Journal(keep / "journal.jsonl")
            except OSError as error:
                reason = f"--keep-traces is {keep}, where nothing can be written ({error.strerror})"
                raise ConfigError(f"{reason}: name another folder") from error
        self.registry = mine = CollectorRegistry()
        self.requests = Counter("alphazero_requests", "Answered requests.", ["model", "status"], registry=mine)
        self.seconds = Histogram(
            "alphazero_request_seconds", "From arrival to the answer.", ["model"], buckets=SECONDS, registry=mine
        )
        self.tokens = Counter("alphazero_tokens", "Tokens by kind (types.Cost).", ["kind"], registry=mine)
        Gauge("alphazero_live_requests", "Requests under way.", registry=mine).set_function(lambda: self.live)
        Gauge("alphazero_waiting_requests", "Requests that wait.", registry=mine).set_function(lambda: self.waiting)

    def exposition(self) -> bytes:
        """The counters, as Prometheus reads them."""
        return generate_latest(self.registry)

    async def __call__(self, asked: Sequence[Wanted], arrived: float, emit: Emit) -> dict[str, Any]:
        """The answer to a request, the prompts of one body, that arrived at `arrived` by the event loop's clock; a streamed
        one goes to `emit`.

        Raises ApiError: too many wait, no place before the deadline, a prompt that doesn't fit, a broken engine.
        """
        loop, status = asyncio.get_running_loop(), 500
        try:
            body = await self.answer(asked, arrived, emit)
            status = 200
            return body
        except ApiError as error:
            status = error.status
            raise
        except asyncio.CancelledError:
            status = 499  # the client went, or the server ends
            raise
        finally:
            model = asked[0].body.model
            self.requests.labels(model, status).inc()
            self.seconds.labels(model).observe(loop.time() - arrived)

    async def answer(self, asked: Sequence[Wanted], arrived: float, emit: Emit) -> dict[str, Any]:
        """See `__call__`."""
        body, deadline = asked[0].body, asked[0].deadline
        due = None if deadline is None else arrived + deadline
        chat = isinstance(body, ChatBody)
        wire = (Wire if chat else CompletionWire)(asked, self.fingerprint, self.student.decode)
        async with self.place(due):
            works = []
            for prompt, wanted in enumerate(asked):
                for number in range(body.n):
                    works.append(self.choice(wanted, number, prompt * body.n + number, due, arrived, wire, emit))
            try:
                outcomes = await together(*works)
            except RequestError as error:
                raise ApiError(str(error), param="messages" if chat else "prompt", code="invalid_value") from error
            except EngineError as error:
                raise ApiError("the engine could not answer: try again", 503, code="engine_error") from error
        if body.stream and body.stream_options.include_usage:
            emit(wire.used(outcomes))
        return {} if body.stream else wire.whole(outcomes)

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
        self, wanted: Wanted, number: int, index: int, due: float | None, arrived: float, wire: Wire, emit: Emit
    ) -> Outcome:
        """Choice `number` of a prompt, `index` in the answer; the first one's seed is the prompt's own."""
        seed = wanted.seed if number == 0 else derive_seed(wanted.seed, number)
        name, streams = f"tr-{secrets.token_hex(16)}", wanted.body.stream

        def tell(text: str) -> None:
            if streams and text:
                emit(wire.chunk(index, wire.told(text)))

        if streams:
            for chunk in wire.opening(index):
                emit(chunk)
        outcome = await self.answerer(wanted, seed, due, tell, name)
        outcome.seconds = asyncio.get_running_loop().time() - arrived
        outcome.trace_id = None if outcome.tree is None else name
        if streams:
            emit(wire.closing(index, outcome))
        for kind in ("prompt", "cached", "sampled", "scored"):
            self.tokens.labels(kind).inc(getattr(outcome.cost, f"{kind}_tokens"))
        if outcome.tree is not None:
            self.keep(Trace(name, wanted, outcome, self.student.engine.version))
        return outcome

    def keep(self, trace: Trace) -> None:
        """Keep a trace, and drop the oldest one beyond `TRACES`."""
        self.traces[trace.name] = trace
        while len(self.traces) > TRACES:
            self.traces.popitem(last=False)
        if self.journal is None:
            return
        try:
            self.journal.append(trace.record())
            self.journal.forget()  # served ids never come twice, and a server runs for long
        except OSError as error:  # a disk that is full costs the trees from then on, and no answer
            log.warning("served trees can't be kept any more (%s): free the disk and start again", error.strerror)
            self.journal = None

    def trace(self, name: str) -> Trace:
        """A trace by its id. Raises ApiError where it isn't there, or no more."""
        if name not in self.traces:
            raise ApiError("there is no such trace, or no more: the newest ones alone are kept", 404, code="not_found")
        return self.traces[name]
