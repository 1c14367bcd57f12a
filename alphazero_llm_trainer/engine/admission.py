"""What every engine refuses at its door: requests that can't be computed, and tokens that would be
read outside the model. And who has to wait there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import EngineError, RequestError
from ..types import MIN_TEMPERATURE


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What an engine offers; asking for more raises `EngineError`."""

    max_context: int  # prompt and response together, tokens
    trainable: bool = True  # `set_policy` takes new weights
    of_model: bool = False  # whether it is all that the model reads

    @property
    def limit(self) -> tuple[str, str]:
        """What limits the context, for people, and what helps."""
        if self.of_model:
            return f"the model, which reads {self.max_context:,} tokens", "take another model"
        return f"engine.max_context, which is {self.max_context:,}", "raise it"


def check_request(request: Any, capabilities: Capabilities, vocabulary: int) -> None:
    """Raise EngineError for a `GenerateRequest` for nothing, RequestError for its prompt (see
    `check_room`) or temperature.

    `vocabulary` is the number of the model's tokens.
    """
    check_room(request.prompt_ids, capabilities, vocabulary, response=1)
    if request.n < 1 or request.max_new_tokens < 1:
        raise EngineError(
            f"a request wants {request.n} samples of {request.max_new_tokens} tokens: ask for some"
        )
    if request.temperature != 0 and not MIN_TEMPERATURE <= request.temperature < float("inf"):
        raise RequestError(
            f"temperature is {request.temperature}: give 0 for the likeliest tokens, "
            f"or at least {MIN_TEMPERATURE}"
        )
    if not 0 < request.top_p <= 1:
        raise RequestError(f"top_p is {request.top_p}: give a probability above 0, at most 1")
    if request.top_p < 1 and request.without:
        raise EngineError(
            "a request has top_p and without: "
            "draws without replacement are from the whole distribution"
        )


def check_room(
    tokens: Sequence[int], capabilities: Capabilities, vocabulary: int, response: int
) -> None:
    """Raise RequestError for a prompt that is empty, has no room for `response` tokens after it, or
    has unknown tokens.
    """
    if not tokens:
        raise RequestError("prompt is empty: give at least one token")
    if len(tokens) + response > capabilities.max_context:
        limit, fix = capabilities.limit
        raise RequestError(
            f"prompt has {len(tokens):,} tokens and doesn't fit {limit}: "
            f"shorten the prompt, or {fix}"
        )
    check_ids(tokens, vocabulary)


def check_ids(tokens: Sequence[int], vocabulary: int) -> None:
    """Raise RequestError for a token id that the model has no row for: the kernels would read past
    its weights.
    """
    if tokens and not 0 <= min(tokens) <= max(tokens) < vocabulary:
        wrong = next(token for token in tokens if not 0 <= token < vocabulary)
        raise RequestError(
            f"token id {wrong} is not one of the model's {vocabulary} tokens: use the tokenizer "
            "that belongs to the model"
        )


class Door:
    """Lets the calls of one event loop in, in their order, while the most tokens that they may hold
    fit into a cache of `capacity` together; a call on its own always.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity, self.inside = capacity, 0  # tokens
        self.loop = asyncio.get_running_loop()
        self.line, self.left = asyncio.Lock(), asyncio.Event()

    async def enter(self, tokens: int) -> None:
        """Wait for room. What enters has to `leave`."""
        async with self.line:
            while self.inside and self.inside + tokens > self.capacity:
                self.left.clear()
                await self.left.wait()
            self.inside += tokens

    def leave(self, tokens: int, call: object = None) -> None:
        """Make room for the next (once `call` is done)."""
        self.inside -= tokens
        self.left.set()
