"""A plain sample: one response at the given temperature, told as it is drawn, cut at stop strings and deadlines."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from ..engine.protocol import GenerateRequest, Watch
from .conversation import Conversation
from .outcomes import DEADLINE, Decode, Outcome, Whole, tokens_of
from .token_text import TextReader
from .wanted import Wanted

COMPLETION_TOKENS = 16  # OpenAI's default for completions; a chat has none

Tell = Callable[[dict[str, Any]], None]


def let_go(task: asyncio.Future[Any]) -> None:
    """Cancel what has not ended, and don't wait: a cancellation takes a turn of the event loop for each task within a
    task, and on a busy server the deadline is long over then."""
    if not task.done():
        task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())  # nobody is left to be told
        task.cancel()


class Telling:
    """Reads one sample and tells its text, and with that the tokens that are wholly told."""

    def __init__(self, wanted: Wanted, index: int, eos_ids: frozenset[int], decode: Decode, tell: Tell) -> None:
        self.wanted, self.index, self.eos_ids, self.tell = wanted, index, eos_ids, tell
        self.reader = TextReader(decode, wanted.stops)
        self.seen, self.told = 0, 0  # tokens that were read, and told

    @property
    def piecewise(self) -> bool:
        """Whether anybody asks for less than the whole text."""
        return self.wanted.stream or bool(self.wanted.stops) or self.wanted.logprobs is not None

    def read(self, sample: Any, final: bool = False) -> None:
        """Take in what is new of a sample; `final` where nothing follows."""
        reader, ids = self.reader, sample.tokens[self.seen :]
        self.seen += len(ids)
        reader.feed(token for token in ids if token not in self.eos_ids)
        if final:
            reader.end()
        if not self.wanted.stream:
            return
        text = reader.delta(final)
        tokens = None
        if self.wanted.logprobs is not None:
            count = reader.kept() if final else reader.settled()
            tokens = tokens_of(reader, sample, count)[self.told :]
            self.told += len(tokens)
        if text or tokens:
            self.tell({"index": self.index, "text": text, "tokens": tokens})


async def sampled(
    conversation: Conversation,
    wanted: Wanted,
    index: int,
    seed: int,
    due: float | None,
    longest: int,
    decode: Decode,
    tell: Tell,
) -> Outcome:
    """One response of at most `longest` tokens where the request names no number; OpenAI's default temperature is 1."""
    engine = conversation.engine
    if wanted.max_tokens is not None:
        longest = wanted.max_tokens
    elif not wanted.chat:
        longest = COMPLETION_TOKENS
    request = GenerateRequest(
        conversation.prompt,
        max_new_tokens=min(longest, engine.capabilities.max_context - len(conversation.prompt)),
        temperature=1.0 if wanted.temperature is None else wanted.temperature,
        seed=seed,
        top_k=wanted.logprobs or 0,
    )
    telling = Telling(wanted, index, engine.eos_ids, decode, tell)
    reader = telling.reader
    woken = asyncio.Event()
    watch = Watch(woken.set if wanted.stream or wanted.stops else None)
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
    sample: Any = watch.samples[0] if watch.samples else Whole((), (), ())
    sample = Whole(tuple(sample.tokens), tuple(sample.logprobs), tuple(sample.top))  # it may grow until it is cancelled
    finish, ended_by, closed = "length", DEADLINE, 0
    if drawing.done():
        [[generated]] = drawing.result()
        finish = ended_by = "length" if generated.finish == "length" else "stop"
        closed = int(generated.finish == "eos")
        if not watch.samples:  # an engine that doesn't stream
            sample = Whole(generated.token_ids, generated.logprobs, generated.top or ())
    if telling.piecewise:
        telling.read(sample, final=True)
    else:
        reader.whole([token for token in sample.tokens if token not in engine.eos_ids])
    if reader.stop is not None:
        finish, ended_by, closed = "stop", "stop", 0
    return Outcome(
        text=reader.text,
        finish=finish,
        seed=seed,
        cost=engine.cost,
        ended_by=ended_by,
        stop=reader.stop,
        tokens=None if wanted.logprobs is None else tokens_of(reader, sample, reader.kept()),
        deadline_hit=ended_by == DEADLINE,
        text_tokens=reader.kept() + closed if telling.piecewise else len(sample.tokens),
    )
