"""A plain sample: one response at the given temperature, told as it is drawn, cut at stop strings and deadlines."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from ..config.sections import SearchConfig
from ..engine.protocol import Generated, GenerateRequest, Watch
from .conversation import Conversation
from .outcomes import DEADLINE, Outcome
from .requests import Wanted
from .text import TextReader, Token

LINE = ("\n",)  # the one stop that ends a reasoning step, which the engine stops at by itself


async def sampled(
    conversation: Conversation,
    wanted: Wanted,
    seed: int,
    due: float | None,
    settings: SearchConfig,
    tell: Callable[[str], None],
) -> Outcome:
    """One response, of `search.max_tokens` where the request names no number; OpenAI's default temperature is 1."""
    engine, body = conversation.engine, wanted.body
    most = settings.max_tokens if body.most_tokens is None else body.most_tokens
    request = GenerateRequest(
        conversation.prompt,
        max_new_tokens=min(most, engine.capabilities.max_context - len(conversation.prompt)),
        temperature=1.0 if body.temperature is None else body.temperature,
        seed=seed,
        max_steps=1 if body.stops == LINE and settings.step == "line" else None,
        top_k=body.top_logprobs,
    )
    reader = TextReader(conversation.decode, body.stops, engine.eos_ids)
    watched = body.stream or (bool(body.stops) and request.max_steps is None)
    woken = asyncio.Event()
    watch = Watch(woken.set if watched else None)
    drawing = asyncio.ensure_future(engine.generate([request], watch))
    drawing.add_done_callback(lambda _: woken.set())
    try:
        async with asyncio.timeout_at(due) as timer:
            while not drawing.done() and reader.stop is None:
                await woken.wait()
                woken.clear()
                if watched and watch.samples:
                    reader.read(watch.samples[0].tokens)
                    tell(reader.delta())
    except TimeoutError:
        if not timer.expired():
            raise
    finally:
        engine.end()
        let_go(drawing)
    drawn = drawn_by(drawing, watch)
    reader.read(drawn.token_ids)
    reader.end()
    tell(reader.delta(final=True))
    ended_by = DEADLINE if not drawing.done() else "length" if drawn.finish == "length" else "stop"
    ended_by = ended_by if reader.stop is None else "stop"
    tops = drawn.top or [()] * len(drawn.logprobs)
    tokens = zip(reader.ids, reader.pieces, drawn.logprobs, tops, strict=False)  # the end token has no text
    return Outcome(
        text=reader.text,
        finish="stop" if ended_by == "stop" else "length",
        seed=seed,
        cost=engine.cost,
        ended_by=ended_by,
        token_ids=drawn.token_ids,
        logprobs=drawn.logprobs,
        stop=reader.stop,
        tokens=[Token(*token) for token in tokens][: reader.kept()] if body.logprobs else None,
    )


def drawn_by(drawing: asyncio.Future[list[list[Generated]]], watch: Watch) -> Generated:
    """What was drawn, or what there is of it by now: a sample that is let go may still grow."""
    if drawing.done():
        return drawing.result()[0][0]
    if not watch.samples:
        return Generated((), (), "length")
    [sample] = watch.samples
    return Generated(tuple(sample.tokens), tuple(sample.logprobs), "length", tuple(sample.top) or None)


def let_go(task: asyncio.Future[Any]) -> None:
    """Cancel what has not ended, and don't wait: a cancellation takes a turn of the event loop for each task within a
    task, and on a busy server the deadline is long over then."""
    if not task.done():
        task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())  # nobody is left to be told
        task.cancel()
