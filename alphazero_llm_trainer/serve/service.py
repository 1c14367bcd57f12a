"""One server's state, and how a request becomes its choices: wait for a place, answer, keep the
trees.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from ..config.sections import ServeConfig
from ..errors import ConfigError
from ..mcts.seeds import derive_seed
from ..mcts.waiting import gather_all
from ..problems.load import SERVER_TOKENS
from ..tree.arena import Tree
from ..tree.graded import tree_record
from ..tree.journal import JOURNAL, Journal
from ..types import JsonObject, Problem
from ..viewer.record import token_pieces
from .answerer import Answerer
from .requests import ApiError, Models, WantedAnswer
from .wire import DEADLINE, AnswerOutcome, Wire, WireToken

log = logging.getLogger(__name__)

Emit = Callable[[JsonObject], None]  # takes the chunks of a streamed answer
SOON = {"Retry-After": "1"}


class Service:
    """Answers requests with one student, and keeps their trees in the journal of the folder `keep`.

    Raises ConfigError where nothing can be written there.
    """

    def __init__(
        self, answerer: Answerer, models: Models, settings: ServeConfig, keep: Path | None = None
    ) -> None:
        self.answerer, self.models, self.settings = answerer, models, settings
        self.student = answerer.student
        self.fingerprint = f"fp_{self.student.weights[:12]}"
        self.created = int(time.time())
        self.places = asyncio.Semaphore(settings.concurrent)
        self.live, self.waiting = 0, 0
        self.texts: dict[int, str] = {}  # of tokens
        self.journal: Journal | None = None
        if keep is not None:
            try:
                self.journal = Journal(keep / JOURNAL)
            except OSError as error:
                reason = f"--keep-traces is {keep}, where nothing can be written ({error.strerror})"
                raise ConfigError(f"{reason}: name another folder") from error

    async def __call__(self, asked: Sequence[WantedAnswer], emit: Emit) -> JsonObject:
        """The answer to a request, the prompts of one body; a streamed one goes to `emit`. The
        first choice of a prompt has the prompt's own seed.

        Raises ApiError (too many wait, no place before the deadline), RequestError, EngineError.
        """
        body, arrived = asked[0].body, asyncio.get_running_loop().time()
        due = None if body.deadline_ms is None else arrived + body.deadline_ms / 1000
        wire = Wire(asked, self.fingerprint)

        async def choice(index: int, wanted: WantedAnswer, number: int) -> AnswerOutcome:
            """Choice `number` of a prompt, `index` in the answer."""
            name = f"tr-{secrets.token_hex(16)}"

            def tell(text: str, tokens: Sequence[WireToken]) -> None:
                if body.stream and (text or tokens):
                    logprobs = wire.logprobs(tokens) if tokens else None
                    emit(wire.chunk(index, text, logprobs=logprobs))

            def show_tree(tree: Tree) -> None:
                if body.stream and wire.grows:
                    emit(
                        {
                            **wire.chunk(index, ""),
                            "alphazero": self.draw_tree({"tree": tree.to_dict()}),
                        }
                    )

            if body.stream and wire.chat:
                emit(wire.chunk(index, "", delta={"role": "assistant", "content": ""}))
            seed = derive_seed(wanted.seed, number) if number else wanted.seed
            outcome = await self.answerer(wanted, seed, due, tell, name, show_tree)
            outcome.cost.seconds = asyncio.get_running_loop().time() - arrived
            if outcome.tree is not None:
                outcome.trace_id = name
                self.keep(wanted, outcome)
            if body.stream:
                for at, call in enumerate(outcome.calls):
                    emit(wire.chunk(index, "", delta={"tool_calls": [{"index": at, **call}]}))
                emit(
                    {
                        **wire.chunk(index, "", **wire.ending(outcome)),
                        "alphazero": self.draw_tree(wire.about(outcome)),
                    }
                )
            return outcome

        async with self.place(due):
            numbered = [(wanted, number) for wanted in asked for number in range(body.n)]
            outcomes = await gather_all(
                *(choice(index, *which) for index, which in enumerate(numbered))
            )
        if not body.stream:
            return wire.whole(outcomes)
        if body.stream_options.get("include_usage"):
            emit({**wire.chunk(0, ""), "choices": [], "usage": wire.usage(outcomes)})
        return {}

    def draw_tree(self, about: JsonObject) -> JsonObject:
        """`about`, with its tree's tokens as text where it has a tree."""
        if "tree" in about:
            about["pieces"] = token_pieces(about, self.student.decode, self.texts)
        return about

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

    def keep(self, wanted: WantedAnswer, outcome: AnswerOutcome) -> None:
        """Append a choice's tree to the journal, where there is one."""
        if self.journal is None:
            return
        try:
            self.journal.append(answer_record(wanted, outcome, self.student.engine.version))
            self.journal.forget()  # served ids never come twice, and a server runs for long
        except OSError as error:  # a disk that is full costs the trees from then on, and no answer
            log.warning(
                "served trees can't be kept any more (%s): free the disk and start again",
                error.strerror,
            )
            self.journal = None


def answer_record(wanted: WantedAnswer, outcome: AnswerOutcome, version: int) -> JsonObject:
    """An answer's journal line, as `collect` writes those of training: nobody knows the gold answer
    here.
    """
    name, tree, choice = outcome.trace_id, outcome.tree, outcome.choice
    assert name is not None and tree is not None and choice is not None
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
    tokens: JsonObject = SERVER_TOKENS if wanted.messages else {}
    return tree_record(
        name,
        Problem(name, wanted.question, "user"),
        tree,
        outcome.cost,
        outcome.ended_by,
        wanted.prompt,
        version,
        split="served",
        served=served,
        **tokens,
    )
