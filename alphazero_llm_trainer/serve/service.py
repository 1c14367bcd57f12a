"""One server's state, and how a request becomes its choices: wait for a place, answer, keep the
trees, count.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from ..config.sections import ServeConfig
from ..errors import ConfigError
from ..mcts.journal import JOURNAL, Journal
from ..mcts.seeds import derive_seed
from ..mcts.waiting import together
from ..policy.adapters import fingerprint
from ..rollouts import GradedTree
from ..types import Problem, Task
from .answering import Answerer
from .requests import ApiError, Models, Wanted, api_error
from .wire import DEADLINE, Outcome, Wire

log = logging.getLogger(__name__)

Emit = Callable[[dict[str, Any]], None]  # takes the chunks of a streamed answer
SOON = {"Retry-After": "1"}
TRACES = 200  # the newest trees, which are kept in memory for /v1/traces


class Service:
    """Answers requests with one student, and keeps the newest trees; all of them in the journal of
    the folder `keep`.

    Raises ConfigError where nothing can be written there.
    """

    def __init__(
        self, answerer: Answerer, models: Models, settings: ServeConfig, keep: Path | None = None
    ) -> None:
        self.answerer, self.models, self.settings = answerer, models, settings
        self.student = answerer.student
        self.fingerprint, self.created = (
            f"fp_{fingerprint(self.student.model)[:12]}",
            int(time.time()),
        )
        self.places = asyncio.Semaphore(settings.concurrent)
        self.live, self.waiting = 0, 0
        self.traces: dict[
            str, Callable[[], dict[str, Any]]
        ] = {}  # by id: a tree becomes a record when it is asked for
        self.journal: Journal | None = None
        if keep is not None:
            try:
                self.journal = Journal(keep / JOURNAL)
            except OSError as error:
                reason = f"--keep-traces is {keep}, where nothing can be written ({error.strerror})"
                raise ConfigError(f"{reason}: name another folder") from error
        self.registry = mine = CollectorRegistry()
        self.requests = Counter(
            "alphazero_requests", "Answered requests.", ["model", "status"], registry=mine
        )
        self.seconds = Histogram(
            "alphazero_request_seconds", "From arrival to the answer.", ["model"], registry=mine
        )
        self.tokens = Counter(
            "alphazero_tokens", "Tokens by kind (types.Cost).", ["kind"], registry=mine
        )
        Gauge("alphazero_live_requests", "Requests under way.", registry=mine).set_function(
            lambda: self.live
        )
        Gauge("alphazero_waiting_requests", "Requests that wait.", registry=mine).set_function(
            lambda: self.waiting
        )

    def exposition(self) -> bytes:
        """The counters, as Prometheus reads them."""
        return generate_latest(self.registry)

    async def __call__(self, asked: Sequence[Wanted], emit: Emit) -> dict[str, Any]:
        """The answer to a request, the prompts of one body; a streamed one goes to `emit`.

        Raises ApiError (too many wait, no place before the deadline), RequestError, EngineError.
        """
        arrived, status = (
            asyncio.get_running_loop().time(),
            499,
        )  # where the client went, or the server ends
        try:
            body = await self.answer(asked, arrived, emit)
            status = 200
            return body
        except Exception as error:
            status = api_error(error).status_code
            raise
        finally:
            model = asked[0].body.model
            self.requests.labels(model, status).inc()
            self.seconds.labels(model).observe(asyncio.get_running_loop().time() - arrived)

    async def answer(self, asked: Sequence[Wanted], arrived: float, emit: Emit) -> dict[str, Any]:
        """See `__call__`. The first choice of a prompt has the prompt's own seed."""
        body = asked[0].body
        due = None if body.deadline_ms is None else arrived + body.deadline_ms / 1000
        wire = Wire(asked, self.fingerprint)

        async def choice(index: int, wanted: Wanted, number: int) -> Outcome:
            """Choice `number` of a prompt, `index` in the answer."""
            name = f"tr-{secrets.token_hex(16)}"

            def tell(text: str) -> None:
                if body.stream and text:
                    emit(wire.chunk(index, text))

            if body.stream and wire.chat:
                emit(wire.chunk(index, "", delta={"role": "assistant", "content": ""}))
            seed = derive_seed(wanted.seed, number) if number else wanted.seed
            outcome = await self.answerer(wanted, seed, due, tell, name)
            outcome.cost.seconds = asyncio.get_running_loop().time() - arrived
            if outcome.tree is not None:
                outcome.trace_id = name
                self.keep(name, wanted, outcome)
            if body.stream:
                emit(
                    {
                        **wire.chunk(index, "", **wire.ending(outcome)),
                        "alphazero": wire.about(outcome),
                    }
                )
            for kind in ("prompt", "cached", "sampled", "scored"):
                self.tokens.labels(kind).inc(getattr(outcome.cost, f"{kind}_tokens"))
            return outcome

        async with self.place(due):
            numbered = [(wanted, number) for wanted in asked for number in range(body.n)]
            outcomes = await together(
                *(choice(index, *which) for index, which in enumerate(numbered))
            )
        if not body.stream:
            return wire.whole(outcomes)
        if body.stream_options.get("include_usage"):
            emit({**wire.chunk(0, ""), "choices": [], "usage": wire.usage(outcomes)})
        return {}

    @asynccontextmanager
    async def place(self, due: float | None) -> AsyncIterator[None]:
        """A place among the requests that are answered at once; first come, first served."""
        if self.waiting >= self.settings.queue:
            raise ApiError("too many requests wait: try again later", None, "queue_full", 429, SOON)
        self.waiting += 1
        try:
            async with asyncio.timeout_at(due):
                await self.places.acquire()
        except TimeoutError as error:
            late = (
                "the deadline passed before this request's turn came: ask for more time, or later"
            )
            raise ApiError(late, None, "deadline_exceeded", 503, SOON) from error
        finally:
            self.waiting -= 1
        self.live += 1
        try:
            yield
        finally:
            self.live -= 1
            self.places.release()

    def keep(self, name: str, wanted: Wanted, outcome: Outcome) -> None:
        """Keep a choice's tree, and drop the oldest beyond `TRACES`."""
        version = self.student.engine.version
        self.traces[name] = lambda: record(name, wanted, outcome, version)
        if len(self.traces) > TRACES:
            del self.traces[next(iter(self.traces))]
        if self.journal is None:
            return
        try:
            self.journal.append(self.record(name))
            self.journal.forget()  # served ids never come twice, and a server runs for long
        except OSError as error:  # a disk that is full costs the trees from then on, and no answer
            log.warning(
                "served trees can't be kept any more (%s): free the disk and start again",
                error.strerror,
            )
            self.journal = None

    def record(self, name: str) -> dict[str, Any]:
        """The record of a trace by its id. Raises ApiError where it isn't there, or no more."""
        trace = self.traces.get(name)
        if trace is None:
            raise ApiError(
                "there is no such trace, or no more: only the newest are kept",
                None,
                "not_found",
                404,
            )
        return trace()


def record(name: str, wanted: Wanted, outcome: Outcome, version: int) -> dict[str, Any]:
    """An answer's journal line, as `collect` writes those of training: nobody knows the gold answer
    here.
    """
    tree, choice = outcome.tree, outcome.choice
    assert tree is not None and choice is not None
    task = Task(Problem(name, wanted.question, "user"), "")
    ungraded = GradedTree(
        name, task, tree, outcome.cost, outcome.ended_by, True, 0, wanted.prompt, version
    )
    served = {
        "method": wanted.method.label,
        "response": outcome.text,
        "deadline_hit": outcome.ended_by == DEADLINE,
    }
    served |= {
        "answer": choice.answer,
        "node": choice.node,
        "why": choice.why,
        "seed": outcome.seed,
    }
    # Its own split, so that nothing learns from it by mistake: the question may be anybody's, a
    # benchmark's too.
    return ungraded.record(split="served", served=served)
