"""Core types that every room shares. Standard library only."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from enum import StrEnum
from itertools import compress
from typing import Any, NamedTuple

JsonObject = dict[str, Any]
Facts = Mapping[str, Any]  # names and values that are read alone
TokenIds = tuple[int, ...]  # of a sequence
Logprobs = tuple[float, ...]  # of a sequence's tokens (nats)
LikelyTokens = list[tuple[int, float]]  # the same, likeliest first
TokenPairs = tuple[tuple[int, float], ...]  # tokens with their log-probabilities (nats)


class Direction(StrEnum):
    """What a proposer was asked for: a likely-right step, a likely-wrong one, or nothing in
    particular.
    """

    RIGHT = "right"
    WRONG = "wrong"
    NONE = "none"


class StepCheck(StrEnum):
    """What a rule says of a step. `UNCHECKED`: the step states something that the rule can't read.
    `NOTHING`: it states nothing that the rule checks, as words do.
    """

    RIGHT = "right"
    WRONG = "wrong"
    UNCHECKED = "unchecked"
    NOTHING = "nothing"


# of those above 0: half a nat between two tokens is a factor of e^50 then, as good as greedy
MIN_TEMPERATURE = 0.01

STUDENT = "student"  # Node.source of the policy's own tokens; a teacher's is "teacher:<name>".


@dataclass(frozen=True, slots=True)
class Problem:
    """A question without its answer: all that search ever sees."""

    id: str
    question: str
    source: str
    level: int = 0


@dataclass(frozen=True, slots=True)
class Task:
    """A problem with its gold answer and, where one is known, a worked solution in the `#### N`
    format.

    others: gold answers that count as well.
    row: the columns that it was read from, as they are written, for rewards; {} where it was made.
    """

    problem: Problem
    gold: str
    solution: str | None = None
    others: tuple[str, ...] = ()
    row: Facts = field(default_factory=dict, repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class Opening:
    """What a chat says before a question: a system prompt, and worked solutions as earlier turns.

    `worked` are (question, solution) pairs, of which the first `shots` are shown that aren't the
    question itself.
    """

    system_prompt: str | None = None
    worked: tuple[tuple[str, str], ...] = ()
    shots: int = 0

    def messages(self, question: str) -> list[dict[str, str]]:
        """The messages before `question`, the same for every question that is none of `worked`."""
        messages = (
            []
            if self.system_prompt is None
            else [{"role": "system", "content": self.system_prompt}]
        )
        for asked, solution in [pair for pair in self.worked if pair[0] != question][: self.shots]:
            messages += [
                {"role": "user", "content": asked},
                {"role": "assistant", "content": solution},
            ]
        return messages


NOTHING = Opening()


def in_first_question(messages: Sequence[Mapping[str, str]]) -> list[Mapping[str, str]]:
    """`messages` with the text of their leading system messages before the first user's, a blank
    line between.
    """
    texts, rest = [], [*messages]
    while rest and rest[0]["role"] == "system":
        texts.append(rest.pop(0)["content"])
    for at, message in enumerate(rest):
        if message["role"] == "user":
            rest[at] = {**message, "content": "\n\n".join([*texts, message["content"]])}
            break
    return rest


class ToolCall(NamedTuple):
    """A call of a tool that a turn makes; `error` says why it can't be read, and then the name may
    be "".
    """

    name: str
    arguments: Facts
    error: str | None = None


class Said(NamedTuple):
    """A turn of the student: its text beside the calls, and the calls in order."""

    text: str
    calls: tuple[ToolCall, ...] = ()


class Observation(NamedTuple):
    """What a world answered to a turn.

    Attributes:
        tokens: how many tokens at the step's end are given: no policy drew them. They have the
            log-probability 0.
        text: what these tokens say.
        calls: the tools that the turn called, in order.
        errors: those that raised, were cut, or couldn't be read.
    """

    tokens: int
    text: str
    calls: tuple[str, ...] = ()
    errors: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Step:
    """One reasoning step, or a turn with what a world answered: token ids, their log-probabilities
    (nats, under the sampling policy) and their text.

    `token_ids` and `logprobs` have the same length `[T]`; the text is what the drawn tokens decode
    to, line end included. `seen` is a world's answer, whose tokens come last.
    """

    token_ids: TokenIds
    logprobs: Logprobs
    text: str
    seen: Observation | None = None

    @property
    def final(self) -> bool:
        """Whether a line that states the answer may end the response here: a world says itself
        when it is over.
        """
        return self.seen is None

    @property
    def drawn(self) -> int:
        """How many tokens were drawn; those after them are given."""
        return len(self.token_ids) - (0 if self.seen is None else self.seen.tokens)


Steps = Sequence[Step]  # of a response, or of a part of one


def token_text(decode: Callable[[Sequence[int]], str], token: int) -> str:
    """What a token adds to the text of another one: its leading space is kept."""
    alone, twice = decode([token]), decode([token, token])
    return twice[len(alone) :] if twice.startswith(alone) else alone


def ids_of(steps: Iterable[Step]) -> TokenIds:
    """The token ids of `steps`, one after the other `[T]`."""
    return tuple(token for step in steps for token in step.token_ids)


def text_of(steps: Iterable[Step]) -> str:
    """The text of steps, joined."""
    return "".join(step.text for step in steps)


def logprobs_of(steps: Iterable[Step]) -> Logprobs:
    """The log-probabilities of the tokens of `steps`, one after the other `[T]`: 0 of given
    ones."""
    return tuple(value for step in steps for value in step.logprobs)


def drawn_logprobs(steps: Iterable[Step]) -> Logprobs:
    """The log-probabilities of the drawn tokens of `steps` alone, one after the other."""
    return tuple(value for step in steps for value in step.logprobs[: step.drawn])


def drawn_mask(steps: Iterable[Step]) -> tuple[bool, ...]:
    """For each token of `steps`, whether it was drawn and not given `[T]`."""
    return tuple(at < step.drawn for step in steps for at in range(len(step.token_ids)))


def world_mask(steps: Steps) -> tuple[bool, ...]:
    """`drawn_mask` of turns in a world; () of steps that no world answered."""
    return drawn_mask(steps) if any(step.seen for step in steps) else ()


@dataclass(frozen=True, slots=True)
class Continuation:
    """Steps proposed after a prefix. The first is the proposal; the others are the rollout that
    follows it.

    `ended` is True when the policy closed the response itself (end of sequence), False when a limit
    cut it. `checked` is True when a terminal checker called it finished after its last step; `cut`
    when a limit ended it inside its last step. `why` is what cut it or came in its place (a key of
    `tree.extract.SHORT`), None where a limit says that. `tempered` `[T]` are its tokens'
    log-probabilities (nats) at the temperature of later draws, None where that is 1: then the steps
    have them.
    """

    steps: tuple[Step, ...]
    ended: bool
    source: str = STUDENT
    direction: Direction = Direction.NONE
    checked: bool = False
    cut: bool = False
    why: str | None = None
    tempered: Logprobs | None = None

    @property
    def drawn(self) -> tuple[TokenIds, Logprobs]:
        """Token ids `[T]` and log-probabilities `[T]` at the temperature of later draws, which
        leave it out.
        """
        ids = tuple(compress(ids_of(self.steps), drawn_mask(self.steps)))
        return ids, drawn_logprobs(self.steps) if self.tempered is None else self.tempered


OF_WORLDS = ("given_tokens", "turns", "tool_calls", "tool_errors")  # fields of `Cost`


@dataclass(slots=True)
class Cost:
    """The currency of every comparison.

    prompt_tokens: prefix tokens that were computed; cached_tokens: prefix tokens read from a cache
    instead;
    sampled_tokens: tokens generated; scored_tokens: tokens whose log-probability alone was asked
    for; given_tokens: tokens of what worlds answered, read once;
    calls: requests to an engine; seconds: wall-clock; dollars: what providers charge;
    turns: taken in worlds; tool_calls, tool_errors: of tools, and those that gave an error.
    """

    prompt_tokens: int = 0
    cached_tokens: int = 0
    sampled_tokens: int = 0
    scored_tokens: int = 0
    calls: int = 0
    seconds: float = 0.0
    dollars: float = 0.0
    given_tokens: int = 0
    turns: int = 0
    tool_calls: int = 0
    tool_errors: int = 0

    @property
    def computed(self) -> int:
        """Sampled, scored and given tokens: what a budget counts."""
        return self.sampled_tokens + self.scored_tokens + self.given_tokens

    def add(self, other: Cost) -> None:
        """Add `other` to this cost in place."""
        for part in fields(self):
            setattr(self, part.name, getattr(self, part.name) + getattr(other, part.name))

    def as_dict(self) -> JsonObject:
        """For JSON; what only worlds cost is there where there was one."""
        own = asdict(self)
        return own if self.turns else {name: own[name] for name in own if name not in OF_WORLDS}


@dataclass(frozen=True, slots=True)
class RewardParts:
    """A terminal reward and what it was made of. `total` is in [0, 1]; a part that is switched off
    is None.

    `outcome` in [0, 1] is what the response is worth to those who learn from outcomes where a
    reward of the user's own takes part: correctness and that reward, by their weights; None
    elsewhere: then the correctness is. `cost` is what a model computed to tell it, beyond the
    response's own tokens; None for nothing.
    """

    total: float
    hre: float | None = None
    pre: float | None = None
    custom: float | None = None
    outcome: float | None = None
    cost: Cost | None = None

    @property
    def grade(self) -> float | None:
        """The outcome, else the correctness; None where neither is known."""
        return self.hre if self.outcome is None else self.outcome
