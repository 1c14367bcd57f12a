"""What search and training may expect of a policy: an engine that speaks token ids only, and
teachers that speak text.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from ..errors import EngineError
from ..grading.answers import is_final
from ..types import (
    Continuation,
    Cost,
    Direction,
    JsonObject,
    LikelyTokens,
    Logprobs,
    Problem,
    Step,
    Steps,
    TokenIds,
    TokenPairs,
    text_of,
)
from .admission import Capabilities, check_ids, check_request, check_room
from .step_ends import StepEnds

if TYPE_CHECKING:
    import torch


Pair = tuple[TokenIds, TokenIds]  # token ids of a prefix and of what follows it
# (token ids, log-probabilities) of sequences
Drawn = tuple[tuple[TokenIds, tuple[float, ...]], ...]


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """Sample `n` sequences after `prompt_ids`.

    A sequence ends after a token of `stop_ids` (kept), after the engine's end-of-sequence token
    (kept), after `max_new_tokens`, or at its `max_steps`-th step's end when that is given. `seed`
    alone decides the draws of each of the n sequences: they don't depend on what else is in the
    batch. `temperature` is 0 (greedy) or MIN_TEMPERATURE and more. `top_k` > 0 returns that many
    log-probabilities for each step. `top_p` < 1 draws from the nucleus alone: the fewest likeliest
    tokens that have this probability at the temperature. Log-probabilities are those of the whole
    distribution.

    `without` are sequences that were drawn after the prompt, with their log-probabilities (nats) at
    the request's temperature: in process, a sample at a temperature above 0 is none of them, see
    `without.Taken`. `tempered` is a temperature at which that engine tells each token's
    log-probability too: that of later draws.
    """

    prompt_ids: TokenIds
    n: int = 1
    max_new_tokens: int = 128
    temperature: float = 1.0
    seed: int = 0
    stop_ids: frozenset[int] = frozenset()
    max_steps: int | None = None
    top_k: int = 0
    without: Drawn = ()
    tempered: float | None = None
    top_p: float = 1.0


@dataclass(frozen=True, slots=True)
class Generated:
    """One sampled sequence: `token_ids` and `logprobs` (nats, under the policy at temperature 1)
    are both `[T]`.

    `finish` is "eos" (the end token is the last id), "stop" (a stop token or step limit) or
    "length". `top` holds for each step its k likeliest `(token id, log-probability)` pairs,
    likeliest first, or is None. `cached_tokens` says how many prompt tokens its request read from a
    cache. `tempered` `[T]` are log-probabilities (nats) at the request's `tempered`, None where it
    has none or the engine doesn't tell.
    """

    token_ids: TokenIds
    logprobs: Logprobs
    finish: str
    top: tuple[TokenPairs, ...] | None = None
    cached_tokens: int = 0
    tempered: Logprobs | None = None


class Sample(Protocol):
    """A sequence while it is drawn: its tokens, their log-probabilities (nats) and, where asked
    for, their top-k.
    """

    tokens: list[int]
    logprobs: list[float]
    top: list[TokenPairs]


@dataclass(slots=True, eq=False)
class Watch:
    """Requests under way, seen from outside: their samples grow here, and `wake` is called after
    each of the engine's steps.
    """

    wake: Callable[[], None] | None = None
    samples: list[Sample] = field(default_factory=list)


@dataclass(slots=True)
class EngineStats:
    """What an engine did since it was made, beyond its cost: tokens that went through the model,
    cached ones left out; and, in process, forwards, their rows, seconds inside the model and inside
    the engine's steps.
    """

    computed_tokens: int = 0
    forwards: int = 0
    rows: int = 0
    forward_seconds: float = 0.0
    step_seconds: float = 0.0


class Engine(ABC):
    """What search asks of a policy, and its keeper's side: new weights, a value head, memory.

    Every call may wait while others join its batch; `cost` adds up what all calls took. `eos_ids`
    are all tokens that end a response, `eos_id` the one that a response is closed with; `step_ends`
    says where steps end. `facts` is what run.json says about the engine.
    """

    capabilities: Capabilities
    cost: Cost
    stats: EngineStats
    version: int
    vocabulary: int
    eos_id: int
    eos_ids: frozenset[int]
    step_ends: StepEnds
    facts: JsonObject

    async def generate(
        self, requests: Sequence[GenerateRequest], watch: Watch | None = None
    ) -> list[list[Generated]]:
        """One list of `n` sequences a request, in order. `watch` sees them grow, in engines that
        can show it: when it is read, there may be several new tokens.

        Raises what `admission.check_request` refuses; `score` and `next_token_topk` refuse the same
        tokens.
        """
        for request in requests:
            check_request(request, self.capabilities, self.vocabulary)
        return await self._generate(requests, watch)

    async def score(self, sequences: Sequence[Pair]) -> list[list[float]]:
        """Log-probabilities (nats) of each continuation's tokens after its prefix: `[T]` a pair."""
        for prefix, continuation in sequences:
            check_room(prefix, self.capabilities, self.vocabulary, len(continuation))
            check_ids(continuation, self.vocabulary)
        return await self._score(sequences)

    async def next_token_topk(self, prefixes: Sequence[TokenIds], k: int) -> list[LikelyTokens]:
        """The k likeliest next tokens of each prefix with their log-probabilities, likeliest
        first.
        """
        if k < 1:
            raise EngineError(f"next_token_topk was asked for {k} tokens: ask for at least 1")
        for prefix in prefixes:
            check_room(prefix, self.capabilities, self.vocabulary, 1)
        return await self._topk(prefixes, k)

    @abstractmethod
    async def _generate(
        self, requests: Sequence[GenerateRequest], watch: Watch | None
    ) -> list[list[Generated]]: ...

    @abstractmethod
    async def _score(self, sequences: Sequence[Pair]) -> list[list[float]]: ...

    @abstractmethod
    async def _topk(self, prefixes: Sequence[TokenIds], k: int) -> list[LikelyTokens]: ...

    @abstractmethod
    def set_policy(self, weights: Any, version: int) -> None:
        """Take new weights (None: the model object was changed in place); forget all that the old
        ones gave, value head too.

        `weights` is a state dict. Raises EngineError while requests are under way.
        """

    async def values(self, sequences: Sequence[TokenIds]) -> list[float]:
        """The value head's output in (0, 1) after the last token of each sequence. Raises
        EngineError without a head.
        """
        raise self._headless()

    def set_value(self, weight: torch.Tensor | None, bias: float = 0.0) -> None:
        """Take the value head V = sigmoid(weight . h + bias), h the final-norm hidden state `[D]`;
        None removes it.
        """
        if weight is not None:
            raise self._headless()

    def sleep(self) -> None:  # noqa: B027 - not every engine has something to do
        """Nothing will be asked for a while: give back the memory that can be given back. The next
        call wakes it.
        """

    def reset_prefix_cache(self) -> None:  # noqa: B027 - not every engine has something to do
        """Drop what is cached of prompts and responses, so that the next call pays for all of its
        own.
        """

    def close(self) -> None:  # noqa: B027 - not every engine has something to do
        """End what runs outside of this process's memory for it; no call may follow."""

    def _headless(self) -> EngineError:
        return EngineError(
            f"engine.backend {self.facts['backend']} has no value head: a critic has an engine of "
            "its own, or set engine.backend=inprocess"
        )


class ValueFunction(Protocol):
    """A value network as search sees it.

    `rollout_weight` is the lambda of `Q = (1 - lambda)*Q_value + lambda*Q_rollout` that was fitted
    for it on held-out questions: 1 where it did not beat chance. `computes` tells that a network of
    its own reads the prompt and every token: these are paid for. A head on the policy's own hidden
    states is free.
    """

    @property
    def rollout_weight(self) -> float: ...

    @property
    def computes(self) -> bool: ...

    async def __call__(self, token_ids: TokenIds) -> float:
        """V in [0, 1] of the state after these tokens, prompt included."""
        ...


@dataclass(frozen=True, slots=True)
class Judgement:
    """What a verifier makes of a response or the beginning of one; every number is in [0, 1].

    `steps` `[S]` has a score a step: how likely the step is right after the steps before it.
    `total` is the score of the whole: how likely it is right, or will come out right. `unchecked`
    are the numbers of the steps that were not checked, whose scores reject nothing; `unread` are
    those of them that state something all the same, which could not be checked. A response is
    accepted only where a step was checked and none is unread. `values` `[S]` are a value network's
    V after each step, where one was asked; of no steps V of the prompt alone. `state` is what the
    source knows the state after the steps by, see `Source.state`.
    """

    steps: tuple[float, ...]
    total: float
    unchecked: frozenset[int] = frozenset()
    values: tuple[float, ...] = ()
    state: str | None = None
    unread: frozenset[int] = frozenset()

    @property
    def checked(self) -> bool:
        """Whether a step was checked."""
        return len(self.unchecked) < len(self.steps)

    @property
    def sure(self) -> bool:
        """Whether all steps that state something were checked, and one of them does."""
        return self.checked and not self.unread

    def rejects(self, below: float, last: bool = False) -> bool:
        """Whether a checked step (the `last` one alone) scores less than `below`."""
        steps = list(enumerate(self.steps))[-1:] if last else enumerate(self.steps)
        return any(score < below and at not in self.unchecked for at, score in steps)

    @property
    def rank(self) -> tuple[bool, bool, bool, float]:
        """How responses are compared: by their totals. One with an unread step stands below all
        that are sure, one without a checked step below both, and all of them above a total of 0.
        """
        return self.total > 0, self.sure, self.checked, self.total


UNJUDGED = 0.5  # the total of a response in which nothing was checked: it may be right or wrong


class Verifier(Protocol):
    """Judges responses without a gold answer: a calculator, log-probabilities, a process reward
    model, a value network.

    `checks` tells that it checks steps, and so accepts and rejects; one that doesn't ranks
    responses by their totals alone, and leaves all steps unchecked. `guides` tells that a value
    network has a part in it: its judgements have `values`, which decide where a search looks.
    `computes` tells that a model of its own reads the prompt and every step: each comparison adds
    those tokens to the sampled ones (`mcts.metered.MeteredVerifier` counts them). A rule, and what
    the policy's own sampling gave already, is free. `scored_tokens` is what such a model's engine
    computed so far, over all problems.
    """

    @property
    def name(self) -> str: ...

    @property
    def checks(self) -> bool: ...

    @property
    def guides(self) -> bool: ...

    @property
    def computes(self) -> bool: ...

    @property
    def scored_tokens(self) -> int: ...

    async def __call__(self, problem: Problem, prompt_ids: TokenIds, steps: Steps) -> Judgement:
        """The judgement of `steps` (lines of a response, the last one may end it) after the prompt
        that the policy read.

        Pure: the same for the same input.
        """
        ...


@dataclass(frozen=True, slots=True)
class Limits:
    """What one continuation may take: `steps` steps and `tokens` tokens, and by which limit that
    are no more (a key of `tree.extract.SHORT`).
    """

    steps: int
    tokens: int
    by: str = "length"


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is asked of a step policy: `n` continuations at this temperature, none of them one of
    `without` (see `GenerateRequest`), within these limits.
    """

    n: int
    seed: int
    limits: Limits
    temperature: float
    without: Drawn | None

    def request_after(self, prefix: TokenIds, own: float, steps: int | None) -> GenerateRequest:
        """What a policy whose own temperature is `own` asks of its engine: at most `steps` steps
        after `prefix`."""
        return GenerateRequest(
            prefix,
            n=self.n,
            max_new_tokens=self.limits.tokens,
            temperature=self.temperature,
            seed=self.seed,
            max_steps=steps,
            without=self.without or (),
            tempered=own if self.without is not None and own not in (0.0, 1.0) else None,
        )


@dataclass(frozen=True, slots=True)
class RolloutRequest:
    """What is asked of a token policy: to go on after `response` to its end ("sample", "greedy" or
    "beam"), `limit` tokens at most, with each step's `top_k` next tokens.
    """

    prompt: TokenIds
    response: TokenIds
    kind: str
    limit: int
    seed: int
    top_k: int


PaidContinuations = tuple[list[Continuation], Cost]  # with what they cost


class StepPolicy(ABC):
    """The student as step-level search sees it. `Cost` of every call is returned with its result.

    `lead` is what a response's text begins with that stands in its prompt; `temperature` is the
    policy's own.
    """

    lead = ""
    temperature: float

    @abstractmethod
    def prompt_ids(self, problem: Problem) -> TokenIds:
        """Token ids of the prompt that asks a problem's question."""

    @asynccontextmanager
    async def episode(self, problem: Problem) -> AsyncIterator[None]:
        """Everything that is asked about a problem is asked within it."""
        yield

    def state_answer(self, problem: Problem, response: str) -> str:
        """What of a response states its answer: all, or what an episode ended with."""
        return response

    async def continuations(
        self,
        problem: Problem,
        steps: Steps,
        n: int,
        seed: int,
        limits: Limits,
        temperature: float | None = None,
        without: Drawn | None = None,
    ) -> PaidContinuations:
        """`n` continuations of `steps` to the end of the response or its limits, each cut into
        steps; None: at the policy's own temperature.

        None of them is one of `without`, see `GenerateRequest`, where the engine can see to that;
        what was drawn is told with its chance at the own temperature (`Continuation.drawn`).
        Without `without` draws may repeat, and a server's may always.
        """
        warm = self.temperature if temperature is None else temperature
        return await self.draw(problem, steps, Wanted(n, seed, limits, warm, without))

    @abstractmethod
    async def draw(self, problem: Problem, steps: Steps, wanted: Wanted) -> PaidContinuations:
        """What is `wanted` after `steps`, as `continuations` tells it, and what that cost."""

    async def adopt(
        self, problem: Problem, steps: Steps, text: str, source: str, direction: Direction
    ) -> tuple[Continuation, Cost]:
        """A step that somebody else wrote."""
        line = text.rstrip("\n")
        final = is_final(line, text_of(steps) if steps else self.lead)
        step, cost = await self.read_step(problem, steps, line if final else line + "\n", final)
        return Continuation((step,), ended=final, source=source, direction=direction), cost

    @abstractmethod
    async def read_step(
        self, problem: Problem, steps: Steps, text: str, ended: bool
    ) -> tuple[Step, Cost]:
        """The step after `steps` that has this text; `ended`: and ends the response."""


@dataclass(frozen=True, slots=True)
class TeacherProposal:
    """A next step as a teacher wrote it (text, one line without its line end)."""

    text: str
    source: str  # "teacher:<name>"
    direction: Direction


@dataclass(slots=True)
class TeacherLedger:
    """What one teacher did.

    `calls` are asks; `failures` are by kind; `used` counts the proposals that the search took in
    and graded, `value` adds up what they gained (each in [0, 1], 0.5 is as good as the student's
    own); `cost` is the provider's.
    """

    calls: int = 0
    used: int = 0
    value: float = 0.0
    failures: dict[str, int] = field(default_factory=dict)
    cost: Cost = field(default_factory=Cost)

    def as_dict(self) -> JsonObject:
        """For run.json."""
        return {
            "calls": self.calls,
            "failures": dict(self.failures),
            "proposals_used": self.used,
            "mean_value": self.value / self.used if self.used else None,
            "cost": self.cost.as_dict(),
        }


class Teacher(Protocol):
    """Something that proposes next steps in text. Never used at evaluation."""

    name: str

    @property
    def ledger(self) -> TeacherLedger:
        """What it did so far."""
        ...

    async def propose(
        self, problem: Problem, steps: Sequence[str], direction: Direction, seed: int
    ) -> TeacherProposal | None:
        """The next step after `steps` (lines without line ends), or None when it has nothing usable
        to say.

        Raises TeacherError when it can't be asked; the caller records that and goes on without it.
        """
        ...
