"""A plain sample: one response at the given temperature, told as it is drawn, cut at stop strings and deadlines."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ..config.sections import SearchConfig
from ..engine.protocol import GenerateRequest, Watch
from .conversation import Conversation
from .outcomes import DEADLINE, Outcome
from .requests import Wanted
from .text import TextReader, Token

LINE = ("\n",)  # the one stop that ends a reasoning step, which the engine stops at by itself

Tell = Callable[[str, list[Token] | None], None]  # new text, and the tokens that are wholly told with it


@dataclass(frozen=True, slots=True)
class Drawn:
    """A finished sample in the shape of one that is being drawn."""

    tokens: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    top: Sequence[tuple[tuple[int, float], ...]] = ()


class Telling:
    """Reads one sample and tells its text as it grows."""

    def __init__(self, wanted: Wanted, conversation: Conversation, tell: Tell) -> None:
        self.wanted, self.tell = wanted, tell
        self.decode, self.eos_ids = conversation.decode, conversation.engine.eos_ids
        self.reader = TextReader(self.decode, wanted.stops)
        self.seen, self.told = 0, 0  # tokens that were read, and told

    def read(self, sample: Any, final: bool = False) -> None:
        """Take in what is new of a sample; `final` where nothing follows."""
        reader, ids = self.reader, [token for token in sample.tokens[self.seen :] if token not in self.eos_ids]
        self.seen = len(sample.tokens)
        if (
            final
            and not reader.ids
            and not (self.wanted.stream or self.wanted.stops or self.wanted.logprobs is not None)
        ):
            reader.text = self.decode(ids)  # nobody asks for its pieces
            return
        reader.feed(ids)
        if final:
            reader.end()
        if self.wanted.stream:
            text = reader.delta(final)
            tokens = self.tokens(sample, reader.kept() if final else reader.settled(), self.told)
            self.told += len(tokens or ())
            if text or tokens:
                self.tell(text, tokens)

    def tokens(self, sample: Any, count: int, first: int = 0) -> list[Token] | None:
        """Tokens of the text with their log-probabilities; None where they weren't asked for."""
        if self.wanted.logprobs is None:
            return None
        ids, pieces = self.reader.ids, self.reader.pieces
        tops = sample.top or [()] * count
        return [Token(ids[i], pieces[i], sample.logprobs[i], tuple(tops[i])) for i in range(first, count)]


async def sampled(
    conversation: Conversation, wanted: Wanted, seed: int, due: float | None, settings: SearchConfig, tell: Tell
) -> Outcome:
    """One response, of `search.max_tokens` where the request names no number; OpenAI's default temperature is 1."""
    engine = conversation.engine
    most = settings.max_tokens if wanted.max_tokens is None else wanted.max_tokens
    request = GenerateRequest(
        conversation.prompt,
        max_new_tokens=min(most, engine.capabilities.max_context - len(conversation.prompt)),
        temperature=1.0 if wanted.temperature is None else wanted.temperature,
        seed=seed,
        max_steps=1 if wanted.stops == LINE and settings.step == "line" else None,
        top_k=wanted.logprobs or 0,
    )
    telling = Telling(wanted, conversation, tell)
    reader = telling.reader
    woken = asyncio.Event()
    watch = Watch(woken.set if wanted.stream or (wanted.stops and request.max_steps is None) else None)
    drawing = asyncio.ensure_future(engine.generate([request], watch))
    drawing.add_done_callback(lambda _: woken.set())
    try:
        async with asyncio.timeout_at(due) as timer:
            while not drawing.done() and reader.stop is None:
                await woken.wait()
                woken.clear()
                if watch.wake is not None and watch.samples:
                    telling.read(watch.samples[0])
    except TimeoutError:
        if not timer.expired():
            raise
    finally:
        engine.end()
        let_go(drawing)
    sample: Any = watch.samples[0] if watch.samples else Drawn()
    sample = Drawn(tuple(sample.tokens), tuple(sample.logprobs), tuple(sample.top))  # it may grow until it is cancelled
    ended_by = DEADLINE
    if drawing.done():
        [[generated]] = drawing.result()
        ended_by = "length" if generated.finish == "length" else "stop"
        if not watch.samples:  # an engine that doesn't stream
            sample = Drawn(generated.token_ids, generated.logprobs, generated.top or ())
    telling.read(sample, final=True)
    ended_by = ended_by if reader.stop is None else "stop"
    return Outcome(
        text=reader.text,
        finish="stop" if ended_by == "stop" else "length",
        seed=seed,
        cost=engine.cost,
        ended_by=ended_by,
        token_ids=sample.tokens,
        logprobs=sample.logprobs,
        stop=reader.stop,
        tokens=telling.tokens(sample, reader.kept()),
    )


def let_go(task: asyncio.Future[Any]) -> None:
    """Cancel what has not ended, and don't wait: a cancellation takes a turn of the event loop for each task within a
    task, and on a busy server the deadline is long over then."""
    if not task.done():
        task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())  # nobody is left to be told
        task.cancel()
