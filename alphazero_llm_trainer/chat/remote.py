"""A student behind an OpenAI-compatible server: searched step by step, and never trained.

Its tokens are numbered as they are met: a number stands for a token's text, in this process alone.
Where the server tells no log-probabilities a whole step is one such token, of unknown probability.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from ..config.load import Config, resolve_name
from ..config.sections import StepRule, StudentModel
from ..engine.admission import Capabilities
from ..engine.completions import sample_seed
from ..engine.protocol import EngineStats, Limits, PaidContinuations, Wanted
from ..engine.step_ends import response_steps, split_steps
from ..errors import ConfigError, RequestError
from ..grading.answers import is_final, without_thinking
from ..types import (
    NOTHING,
    Continuation,
    Cost,
    JsonObject,
    Opening,
    Problem,
    Step,
    Steps,
    TokenIds,
    text_of,
)
from .chat_steps import ServedSteps, chat_of
from .reply import Token
from .server import SPARE, SYSTEM, ChatServer, RequestMessage

UNKNOWN = 1 << 20  # tokens of a context that the server doesn't tell
# Nats of a step whose probability the server doesn't tell: the same for all, and next to none, so
# that siblings have equal priors and a step not drawn yet has as much (`mcts.select.open_puct`).
UNSURE = -20.0
# What comes in place of an answer, by its key of `tree.extract.SHORT`.
SILENCES = {
    "thinking": "replies that were thinking alone",
    "tool call": "calls of tools instead of text",
    "refusal": "refusals",
    "empty": "empty replies",
}
MOST_SILENT = 4  # replies in a row to one question that say nothing, and aren't cut
AGAIN = (
    "Go on with your solution from exactly where it stops. "
    "Write only what comes next and repeat nothing of it."
)


class TokenNumbers:
    """Token ids of texts, in the order in which they were met."""

    def __init__(self) -> None:
        self.ids: dict[bytes, int] = {}
        self.texts: list[bytes] = []

    def of(self, text: bytes) -> int:
        """The number of a token's text."""
        number = self.ids.setdefault(text, len(self.texts))
        if number == len(self.texts):
            self.texts.append(text)
        return number

    def decode(self, token_ids: Sequence[int], **options: Any) -> str:
        """The text of tokens."""
        return b"".join(self.texts[number] for number in token_ids).decode(errors="replace")


@dataclass(slots=True)
class RemoteEngine:
    """What search asks of an engine that it doesn't draw from."""

    server: ChatServer
    capabilities: Capabilities = field(default_factory=lambda: Capabilities(UNKNOWN, False))
    version: int = 0

    @property
    def cost(self) -> Cost:
        return self.server.cost

    @property
    def stats(self) -> EngineStats:
        """Without what the server had cached."""
        return EngineStats(self.cost.prompt_tokens + self.cost.sampled_tokens)

    @property
    def facts(self) -> JsonObject:
        server = self.server
        return {"backend": "openai", "base_url": server.url, "model": server.model}

    def reset_prefix_cache(self) -> None:
        """The server's cache is its own."""

    def close(self) -> None:
        """Nothing is held."""


@dataclass(slots=True)
class RemoteStudent:
    """The model of `engine.openai`, with what search reads of a student.

    `max_tokens` are a response's at most. `heard` is called with the number of a sample and its
    text so far, while it comes. `messages` are a conversation that takes the place of every
    problem's question.
    """

    name: str
    spec: StudentModel
    engine: RemoteEngine
    step: StepRule
    max_tokens: int
    opening: Opening = NOTHING
    tokenizer: TokenNumbers = field(default_factory=TokenNumbers)
    heard: Callable[[int, str], None] = lambda number, text: None
    draws: int = 0
    silences: Counter[str] = field(default_factory=Counter)  # what came in place of text
    letters: int = 0  # of all samples
    folder: None = None
    messages: tuple[RequestMessage, ...] = ()

    @property
    def title(self) -> str:
        return f"{self.name} at {self.engine.server.url}"

    @property
    def word(self) -> str | None:
        """What a user should know of how the server was asked, None before and where all is
        well.
        """
        server, words = self.engine.server, []
        if server.known and not server.goes_on:
            words.append(
                "begins a new message where it should go on from a prefix: "
                "the model is asked to go on instead"
            )
        if server.known and not server.logprobs:
            words.append("tells no log-probabilities: siblings have equal priors")
        if SYSTEM in server.asking.left_out:
            words.append(
                f"refuses {SYSTEM}: the prompt stands before the question's text "
                "(--set problems.system_prompt= empties it)"
            )
        left_out = ", ".join(sorted(server.asking.left_out - {SYSTEM}))
        if left_out:
            words.append(f"refuses {left_out}: it is asked without")
        counts = [f"{count:,} {what}" for what, count in (server.odd + self.silences).items()]
        if counts:
            words.append(f"sent {', '.join(counts)}")
        return f"the server {' and '.join(words)}" if words else None

    @property
    def weights(self) -> str:
        """What stands for a hash of the weights."""
        return hashlib.sha256(self.title.encode()).hexdigest()

    def prompt_ids(self, question: str) -> TokenIds:
        """None: the server alone knows them."""
        return ()

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of tokens."""
        return self.tokenizer.decode(token_ids)


def remote_student(config: Config, opening: Opening = NOTHING) -> RemoteStudent:
    """The student of `engine.openai`. Raises ConfigError where the search needs what no such server
    has.
    """
    name = resolve_name(config)
    refused = {
        "search.mode=token": config.search.mode == "token",
        "search.value": config.search.value is not None,
    }
    for key, used in refused.items():
        if used:
            raise ConfigError(
                f"{key} is set and the model is behind --base-url, "
                "whose tokens are the server's: unset it"
            )
    spec = config.models[name]
    server = ChatServer(config.engine.openai, spec.path)
    search = config.search
    return RemoteStudent(name, spec, RemoteEngine(server), search.step, search.max_tokens, opening)


def silence_of(text: str, thought: bool, finish: str | None, new: bool) -> str | None:
    """What came in place of an answer, a key of SILENCES, or None where there is some of one.

    `text` is the response with its last sample, `new` whether that has any; `thought` tells of
    thinking that the server keeps apart.
    """
    if finish == "content_filter":
        return "refusal"
    if finish == "tool_calls" and not new:
        return "tool call"
    if finish is None or without_thinking(text).strip():
        return None
    return "thinking" if thought or new else "empty"


def tokens_after(tokens: Sequence[Token], length: int) -> list[Token]:
    """The tokens after the first `length` bytes of their text; none where a token lies across."""
    for at, (text, _) in enumerate(tokens):
        if length <= 0:
            return [*tokens[at:]] if length == 0 else []
        length -= len(text)
    return []


class RemoteSteps(ServedSteps):
    """Steps over a server's chat: each sample is streamed.

    Where the server opens a new message behind the steps so far, the model is asked to go on
    (`AGAIN`), and what it repeats is left out.

    Args:
        temperature: of the samples.
    """

    seed_of = staticmethod(sample_seed)

    def __init__(self, student: RemoteStudent, temperature: float) -> None:
        self.student, self.temperature = student, temperature
        self.silent: Counter[str] = Counter()  # by problem: replies in a row that say nothing

    async def greet(self, steps: Steps) -> None:
        """Learn once what the server can do, by two requests of one token."""
        await self.student.engine.server.greet()

    async def draw(self, problem: Problem, steps: Steps, wanted: Wanted) -> PaidContinuations:
        """The samples, side by side. Samples that say nothing are counted."""
        drawn, cost = await super().draw(problem, steps, wanted)
        for continuation in drawn:
            self.count_silence(problem, continuation.why)
        return drawn, cost

    def count_silence(self, problem: Problem, why: str | None) -> None:
        """Count a reply that said nothing. Raises RequestError for too many in a row: the next ones
        would say nothing either, and cost next to nothing.
        """
        if why not in SILENCES or why == "thinking":
            self.silent[problem.id] = 0
            return
        self.silent[problem.id] += 1
        if self.silent[problem.id] >= MOST_SILENT:
            raise RequestError(f"the server sent {MOST_SILENT} {SILENCES[why]} in a row")

    async def sample(
        self, problem: Problem, steps: Steps, wanted: Wanted, cost: Cost
    ) -> Continuation:
        """One continuation of `steps`, whose cost is added to `cost`."""
        student, before, limits = self.student, text_of(steps), wanted.limits
        server, number = student.engine.server, student.draws
        asked = {"role": "user", "content": problem.question}
        question = student.messages or [*student.opening.messages(problem.question), asked]
        messages = chat_of(question, steps)
        if steps and not server.goes_on:
            messages.append({"role": "user", "content": AGAIN})
        text = thought = ""
        student.draws += 1
        most = limits.tokens
        if student.letters and any(UNSURE in step.logprobs for step in steps):
            # A step counts as one token there: how many it has is told by all samples' text.
            taken = len(before) * server.cost.sampled_tokens / student.letters
            most = min(most, max(1, student.max_tokens - round(taken)))
        if most < server.least:  # it takes no request for so few: they are lost to the answer
            cost.sampled_tokens += most
            return Continuation((), ended=False, cut=True)
        own = Cost()
        tokens: list[Token] = []
        finish: str | None = None
        stream = server.sample(
            messages,
            own,
            temperature=wanted.temperature,
            max_tokens=most,
            seed=wanted.seed,
            going_on=bool(steps) and server.goes_on,
        )
        async with aclosing(stream) as parts:
            async for part in parts:
                if part.again:
                    text, thought, finish = "", "", None
                    tokens.clear()
                text += part.text
                tokens += part.tokens
                thought, finish = thought + part.hidden, part.finish or finish
                student.heard(number, before + text)
                new = self._new(text, before)
                closes = server.closes and part.tokens and "\n" in part.text
                if closes and self._full(new, before, limits):
                    break
        cost.add(own)
        student.letters += len(text) + len(thought)
        new = self._new(text, before)
        if new != text:
            tokens = tokens_after(
                tokens, len(text.encode(errors="replace")) - len(new.encode(errors="replace"))
            )
        why = silence_of(before + new, bool(thought), finish, bool(new.strip()))
        if why is None and finish == "length" and own.sampled_tokens + SPARE < most:
            why = "server"
        if why in SILENCES:
            student.silences[SILENCES[why]] += 1
            finish = "length"
            if not new.strip():
                end = Step((student.tokenizer.of(b""),), (0.0,), "")
                return Continuation((end,), ended=False, cut=True, why=why)
        kept, read = response_steps(new, student.step, before, limits.steps)
        ended = read and finish is not None and finish != "length"
        cut = read and finish == "length" and new[-1:] != "\n"
        return Continuation(self._steps(kept, tokens, ended), ended, cut=cut, why=why)

    def _new(self, text: str, before: str) -> str:
        """What of a sample's text is new: a model that was asked to go on may repeat the beginning,
        of which nothing is new while it does.
        """
        if not before or self.student.engine.server.goes_on:
            return text
        if before.startswith(text):
            return ""
        return text.removeprefix(before)

    def _full(self, text: str, before: str, limits: Limits) -> bool:
        """Whether the whole steps of `text` are as many as wanted, or end the response."""
        whole = split_steps(f"{text}.", self.student.step)[:-1]  # a step begins where one has ended
        for step in whole:
            if is_final(step, before):
                return True
            before += step
        return len(whole) >= limits.steps

    def _steps(
        self, texts: Sequence[str], tokens: Sequence[Token], ended: bool
    ) -> tuple[Step, ...]:
        """Steps of these texts with their tokens, the one that ends a response with an end token of
        no text.

        A step ends after the token that holds the end of its text, as in process.
        """
        number = self.student.tokenizer.of
        whole = b"".join(text for text, _ in tokens)
        steps: list[Step] = []
        at = begin = end = 0  # a token's index; bytes before the step, and before its text's end
        told = whole.startswith("".join(texts).encode())
        for text in texts:
            if not told:
                steps.append(Step((number(text.encode()),), (UNSURE,), text))
                continue
            end += len(text.encode())
            first, reached = at, begin
            while reached < end:
                reached += len(tokens[at][0])
                at += 1
            mine = tokens[first:at]
            ids = tuple(number(piece) for piece, _ in mine)
            shown = whole[begin:reached].decode(errors="replace")
            steps.append(Step(ids, tuple(value for _, value in mine), shown))
            begin = reached
        if ended:
            last = steps.pop() if steps else Step((), (), "")
            steps.append(Step((*last.token_ids, number(b"")), (*last.logprobs, 0.0), last.text))
        return tuple(steps)

    async def read_step(
        self, problem: Problem, steps: Steps, text: str, ended: bool
    ) -> tuple[Step, Cost]:
        """The text as it stands."""
        [step] = self._steps([text], (), ended)
        return step, Cost()
