"""A chat model behind any OpenAI-compatible server: streamed samples, with their tokens where the
server tells log-probabilities.

The openai package connects, retries and heeds `Retry-After`. A sample is closed as soon as its
reader has enough, and servers end the generation then.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..config.sections import OpenaiConfig
from ..errors import EngineError, RequestError
from ..types import Cost

if TYPE_CHECKING:
    import openai

# How vLLM, llama.cpp's server and `serve` go on from an assistant's message; Ollama does so
# without.
GOING_ON = {"continue_final_message": True, "add_generation_prompt": False}
PROBE = "1"  # one token, of nearly every tokenizer
SPARE = 2  # tokens: PROBE's, and where it isn't one
REFUSALS = (400, 404, 413, 422)  # statuses of a request that the server doesn't take
SEED_BITS = 31  # some servers take 32 bits with a sign

Message = Mapping[str, str]
Token = tuple[bytes, float]  # its text in UTF-8, and its log-probability (nats)


@dataclass(slots=True)
class Part:
    """A piece of a sample.

    `tokens` are what its text is made of, none where the server doesn't tell; `hidden` is thinking
    that the server keeps apart. `finish` is None until the sample ends ("stop", "length").
    """

    text: str = ""
    tokens: tuple[Token, ...] = ()
    hidden: str = ""
    finish: str | None = None


class ChatServer:
    """The model `model` of a server.

    `logprobs` says whether the server tells them, `goes_on` whether it continues a message that was
    begun; both are `known` once `greet` has learnt them. `cost` is what all samples took: the
    server's usage, or the pieces that came where a sample was closed early.

    Args:
        settings: where the server is, and what it may cost.
        model: the model's name there.
    """

    def __init__(self, settings: OpenaiConfig, model: str) -> None:
        self.settings, self.model, self.url = settings, model, settings.base_url.rstrip("/")
        self.cost, self.logprobs, self.goes_on, self.known = Cost(), True, False, False
        self._greeting: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._sdk: openai.AsyncOpenAI

    @property
    def closes(self) -> bool:
        """Whether a sample may be closed before its end: what came says what it took then, but not
        what it costs in dollars.
        """
        price = self.settings
        return self.logprobs and not (price.prompt_cost or price.completion_cost or price.dollars)

    async def sample(
        self,
        messages: Sequence[Message],
        spent: Cost,
        *,
        temperature: float = 0.0,
        max_tokens: int = 1,
        seed: int = 0,
        going_on: bool = False,
    ) -> AsyncGenerator[Part, None]:
        """One reply to `messages`, piece by piece; with `going_on` the rest of the last message.
        What it took is added to `spent`.

        Raises:
            RequestError: the server doesn't take this request.
            EngineError: the server can't be reached or fails, or the dollars are spent.
        """
        import openai

        limit = self.settings.dollars
        if limit is not None and self.cost.dollars >= limit:
            raise EngineError(
                f"engine.openai.dollars is {limit:g} and {self.cost.dollars:.4f} are spent: raise "
                "it"
            )
        request: dict[str, Any] = {
            "model": self.model,
            "messages": list(messages),
            "temperature": temperature,
            "max_tokens": max_tokens,
            "seed": seed % 2**SEED_BITS,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if self.logprobs:
            request["logprobs"] = True
        if going_on:
            request["extra_body"] = GOING_ON
        cost = Cost(calls=1)
        try:
            stream = await self._client().chat.completions.create(**request)
            async with stream:
                async for chunk in stream:
                    if chunk.usage is not None:
                        read_usage(chunk.usage.model_dump(), cost)
                    for choice in chunk.choices[:1]:
                        part = read_part(choice)
                        if part.text and not part.tokens:
                            self.logprobs = False
                        if chunk.usage is None:
                            pieces = bool(part.text) + bool(part.hidden)
                            cost.sampled_tokens += max(len(part.tokens), pieces)
                        yield part
        except openai.APIStatusError as error:
            raise self._refused(error) from None  # the SDK's error repeats the server's page
        except (openai.APIError, ValueError) as error:
            why = f"{type(error).__name__}: {error}"[:200]
            raise EngineError(
                f"the server at {self.url} can't be reached or broke off ({why}): start it, or "
                "correct --base-url"
            ) from error
        finally:
            price = self.settings
            read = cost.prompt_tokens + cost.cached_tokens
            cost.dollars = cost.dollars or (
                (read * price.prompt_cost + cost.sampled_tokens * price.completion_cost) / 1e6
            )
            self.cost.add(cost)
            spent.add(cost)

    async def greet(self, opening: Sequence[Message]) -> None:
        """Learn what the server can do, by two requests of one token after the messages `opening`,
        once.

        A message that goes on is as many tokens longer than the question alone as it has; one that
        was closed, with a new one opened behind it, has the chat's own tokens too. Where the server
        tells no usage it counts as one that doesn't go on.

        Raises:
            EngineError: the server can't be reached, or has no such model.
        """
        if self._greeting is None:
            self._greeting = asyncio.ensure_future(self._greet(opening))
        await asyncio.shield(self._greeting)

    async def _greet(self, opening: Sequence[Message]) -> None:
        try:
            asked = await self._prompt(opening)
        except RequestError:
            self.logprobs = False
            try:
                asked = await self._prompt(opening)
            except RequestError as error:
                raise EngineError(f"{error}; it has {await self._models()}") from error
        begun = [*opening, {"role": "assistant", "content": PROBE}]
        try:
            longer = await self._prompt(begun, going_on=True)
            self.goes_on = asked > 0 and longer <= asked + SPARE
        except RequestError:
            pass  # it takes no such message
        self.known = True

    async def _prompt(self, messages: Sequence[Message], going_on: bool = False) -> int:
        """How many tokens the server reads of `messages`; 0 where it doesn't tell."""
        spent = Cost()
        async for _ in self.sample(messages, spent, going_on=going_on):
            pass
        return spent.prompt_tokens + spent.cached_tokens

    async def _models(self) -> str:
        import openai

        try:
            return ", ".join([card.id async for card in self._client().models.list()])[:300]
        except openai.APIError:
            return "no list of models"

    def _refused(self, error: openai.APIStatusError) -> EngineError:
        """A status as an error, with the server's own words, which are about the user's request."""
        body = error.body if isinstance(error.body, dict) else {}
        words = " ".join(str(body.get("message") or error.message).split())[:200]
        if error.status_code in (401, 403):
            return EngineError(
                f"the server at {self.url} refuses the key ({words}): put it into the variable "
                f"{self.settings.key_variable}, or name another by engine.openai.key_variable"
            )
        kind = RequestError if error.status_code in REFUSALS else EngineError
        return kind(
            f"the server at {self.url} answers with HTTP {error.status_code} for model "
            f"{self.model!r} ({words})"
        )

    def _client(self) -> openai.AsyncOpenAI:
        """The client of the running event loop: connections belong to one."""
        import openai

        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            # Without a key of its own the SDK would send OPENAI_API_KEY, whatever the server is;
            # redirected, the key would go where nobody sent it.
            self._sdk = openai.AsyncOpenAI(
                api_key=os.environ.get(self.settings.key_variable, "").strip() or "none",
                base_url=self.url,
                http_client=openai.DefaultAsyncHttpxClient(follow_redirects=False),
            )
            self._sdk.organization = self._sdk.project = None
            self._loop = loop
        return self._sdk


def read_part(choice: Any) -> Part:
    """A choice of a streamed chunk."""
    delta = choice.delta
    text = (delta.content if delta is not None else None) or ""
    extra = {} if delta is None else delta.model_extra or {}
    hidden = extra.get("reasoning_content") or extra.get("reasoning") or ""
    listed = choice.logprobs.content if choice.logprobs is not None else None
    tokens = tuple(
        (
            bytes(token.bytes) if token.bytes is not None else token.token.encode(),
            float(token.logprob),
        )
        for token in listed or ()
    )
    return Part(text, tokens, str(hidden), choice.finish_reason)


def read_usage(usage: Mapping[str, Any], cost: Cost) -> None:
    """Put OpenAI's usage into `cost`; its prompt tokens include the cached ones, and OpenRouter
    adds what it charges.
    """
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    cost.prompt_tokens = max((usage.get("prompt_tokens") or 0) - cached, 0)
    cost.cached_tokens = cached
    cost.sampled_tokens = usage.get("completion_tokens") or 0
    charged = usage.get("cost")
    cost.dollars = float(charged) if isinstance(charged, int | float) else 0.0
