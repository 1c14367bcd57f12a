"""A chat model behind any OpenAI-compatible server: streamed samples, with their tokens where the
server tells log-probabilities.

The openai package connects, retries and heeds `Retry-After`. A sample is closed as soon as its
reader has enough, and servers end the generation then.
"""

from __future__ import annotations

import asyncio
import math
import os
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, Field, ValidationError

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
THOUGHT = 8  # tokens that a template may open an answer with and leaves out of one that goes on
REFUSALS = (400, 404, 413, 422)  # statuses of a request that the server doesn't take
SEED_BITS = 31  # some servers take 32 bits with a sign

MOST_CALLS = 32  # under way at once
RETRIES = 6  # after 408, 409, 429 and 5xx, by the openai package
SAMPLE_SECONDS = 1800.0  # of one sample
MOST_TEXT = 64  # characters a token: more of them are no sample of `max_tokens`

Message = Mapping[str, str]
Token = tuple[bytes, float]  # its text in UTF-8, and its log-probability (nats)
Count = Annotated[int, Field(ge=0, le=10**9)]


class TokenBody(BaseModel):
    token: str
    logprob: float
    bytes: list[Annotated[int, Field(ge=0, le=255)]] | None = None


class LogprobsBody(BaseModel):
    content: list[TokenBody] | None = None


class DeltaBody(BaseModel):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None


class ChoiceBody(BaseModel):
    delta: DeltaBody | None = None
    finish_reason: str | None = None
    logprobs: LogprobsBody | None = None


class ChunkBody(BaseModel):
    """A streamed chunk. Of `usage` nothing is expected: the sample can be read without it."""

    choices: list[ChoiceBody] = []
    usage: Any = None


class DetailsBody(BaseModel):
    cached_tokens: Count | None = None


class UsageBody(BaseModel):
    """OpenAI's usage: its prompt tokens include the cached ones, and OpenRouter adds what it
    charges.
    """

    prompt_tokens: Count
    completion_tokens: Count
    prompt_tokens_details: DetailsBody | None = None
    cost: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None


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
        self._gate: asyncio.Semaphore

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
        import httpx
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
            "top_p": 1.0,
            "max_tokens": max_tokens,
            "seed": seed % 2**SEED_BITS,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if self.logprobs:
            request["logprobs"] = True
        if going_on:
            request["extra_body"] = GOING_ON
        sample = Sampled(Cost(calls=1))
        try:
            client, gate = self._client()
            async with gate, asyncio.timeout(SAMPLE_SECONDS):
                stream = await client.chat.completions.create(**request)
                async with stream:
                    async for chunk in stream:
                        yield sample.read(chunk)
                        if sample.length > MOST_TEXT * (max_tokens + 16):
                            raise EngineError(
                                f"the server at {self.url} sends more than max_tokens "
                                f"{max_tokens} can be: it ignores the limit"
                            )
            self._check(sample, max_tokens)
        except openai.APIStatusError as error:
            raise self._refused(error) from None  # the SDK's error repeats the server's page
        except ValidationError as error:
            why = str(error.errors(include_url=False)[0]["loc"])
            raise EngineError(
                f"the server at {self.url} answers with no chat completion ({why}): correct "
                "--base-url"
            ) from None
        except (openai.APIError, httpx.HTTPError, ValueError, TimeoutError) as error:
            why = printable(f"{type(error).__name__}: {error}")
            raise EngineError(
                f"the server at {self.url} can't be reached or broke off ({why}): start it, or "
                "correct --base-url"
            ) from error
        finally:
            cost, price = sample.cost, self.settings
            read = cost.prompt_tokens + cost.cached_tokens
            cost.dollars = cost.dollars or (
                (read * price.prompt_cost + cost.sampled_tokens * price.completion_cost) / 1e6
            )
            self.cost.add(cost)
            spent.add(cost)

    def _check(self, sample: Sampled, max_tokens: int) -> None:
        """Raise for a sample that came to its end and can't be counted on."""
        place = f"the server at {self.url}"
        if sample.finish is None:
            raise EngineError(f"{place} broke off in a reply, or sends no chat completion")
        if sample.finish == "content_filter":
            raise RequestError(f"{place} refuses to answer: its content filter ended the reply")
        if not sample.told:
            # A thought that the server keeps apart has no tokens of the text's: it says nothing.
            self.logprobs = self.logprobs and not sample.shown
            if sample.length and not sample.counted:
                raise EngineError(
                    f"{place} tells neither usage nor log-probabilities, so that no token can be "
                    "counted: take another server"
                )
        if sample.cost.sampled_tokens > max_tokens:
            raise EngineError(
                f"{place} sampled {sample.cost.sampled_tokens} tokens where max_tokens was "
                f"{max_tokens}: it ignores the limit"
            )
        price = self.settings
        free = not (price.prompt_cost or price.completion_cost or sample.cost.dollars)
        if price.dollars is not None and free and sample.counted:
            raise EngineError(
                f"engine.openai.dollars is {price.dollars:g} and {place} reports no cost: set "
                "engine.openai.prompt_cost and completion_cost"
            )

    async def greet(self) -> None:
        """Learn once what the server can do, by two requests of one token.

        A message that goes on is as many tokens longer than the question alone as it has, or some
        shorter, where a template opens a thought before an answer; one that was closed, with a new
        one opened behind it, has the chat's own tokens too. A server that doesn't count what it had
        in its cache tells of the message's few tokens alone. Where the server tells no usage, or
        leaves the message out, it counts as one that doesn't go on.

        Raises:
            EngineError: the server can't be reached, or has no such model.
        """
        if self.known:
            return
        loop = asyncio.get_running_loop()
        if self._greeting is None or self._greeting.done() or self._greeting.get_loop() is not loop:
            self._greeting = asyncio.ensure_future(self._greet())
        await asyncio.shield(self._greeting)

    async def _greet(self) -> None:
        # Another one each time, from its first word on: no server has it in its cache.
        words = f"{time.time_ns() // 1000 % 10**9} boxes hold 14 apples each. How many are they?"
        question = {"role": "user", "content": words}
        try:
            asked = await self._prompt([question])
        except RequestError:
            self.logprobs = False
            try:
                asked = await self._prompt([question])
            except RequestError as error:
                raise EngineError(f"{error}; it has {await self._models()}") from error
        begun = [question, {"role": "assistant", "content": PROBE}]
        try:
            longer = await self._prompt(begun, going_on=True)
            within = asked - THOUGHT <= longer <= asked + SPARE or 0 < longer <= SPARE
            self.goes_on = asked > 0 and within and longer != asked
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
            client, _ = self._client()
            return printable(", ".join([card.id async for card in client.models.list()]))
        except (openai.APIError, AttributeError, TypeError):
            return "no list of models"

    def _refused(self, error: openai.APIStatusError) -> EngineError:
        """A status as an error, with the server's own words, which are about the user's request."""
        body = error.body if isinstance(error.body, dict) else {}
        words = printable(str(body.get("message") or error.message))
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

    def _client(self) -> tuple[openai.AsyncOpenAI, asyncio.Semaphore]:
        """The client of the running event loop, to which connections belong, and its gate."""
        import openai

        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            # Without a key of its own the SDK would send OPENAI_API_KEY, whatever the server is;
            # redirected, the key would go where nobody sent it.
            self._sdk = openai.AsyncOpenAI(
                api_key=os.environ.get(self.settings.key_variable, "").strip() or "none",
                base_url=self.url,
                max_retries=RETRIES,
                http_client=openai.DefaultAsyncHttpxClient(follow_redirects=False),
            )
            self._sdk.organization = self._sdk.project = None
            self._gate, self._loop = asyncio.Semaphore(MOST_CALLS), loop
        return self._sdk, self._gate


@dataclass(slots=True)
class Sampled:
    """What came of a sample so far: characters, those of a hidden thought too, whether text was
    `shown`, whether tokens were told and whether usage counted them, and why it ended.
    """

    cost: Cost
    length: int = 0
    shown: bool = False
    told: bool = False
    counted: bool = False
    finish: str | None = None

    def read(self, chunk: Any) -> Part:
        """The next piece. Raises ValidationError where it is no chunk of a chat completion."""
        body = ChunkBody.model_validate(
            chunk.model_dump(warnings=False) if isinstance(chunk, BaseModel) else chunk
        )
        choice = body.choices[0] if body.choices else ChoiceBody()
        delta = choice.delta or DeltaBody()
        hidden = delta.reasoning_content or delta.reasoning or ""
        listed = (choice.logprobs.content if choice.logprobs is not None else None) or []
        text = delta.content or ""
        self.length += len(text) + len(hidden)
        self.shown = self.shown or bool(text)
        self.cost.sampled_tokens += max(len(listed), bool(text) + bool(hidden))
        self.finish = choice.finish_reason or self.finish
        self.count(body.usage)
        # Tokens of a thought that the server keeps apart are none of the text's.
        known = all(token.logprob <= 0 and math.isfinite(token.logprob) for token in listed)
        tokens = () if hidden or not known else tuple(map(read_token, listed))
        self.told = self.told or bool(tokens)
        return Part(text, tokens, hidden, choice.finish_reason)

    def count(self, usage: Any) -> None:
        """Take the server's usage where it is one; tokens that came are never counted less."""
        try:
            told = UsageBody.model_validate(usage)
        except ValidationError:
            return
        details, cost = told.prompt_tokens_details or DetailsBody(), self.cost
        cost.cached_tokens = min(details.cached_tokens or 0, told.prompt_tokens)
        cost.prompt_tokens = told.prompt_tokens - cost.cached_tokens
        cost.sampled_tokens = max(told.completion_tokens, cost.sampled_tokens)
        cost.dollars = told.cost or 0.0
        self.counted = True


def read_token(token: TokenBody) -> Token:
    """A token's text and log-probability."""
    text = bytes(token.bytes) if token.bytes is not None else token.token.encode(errors="replace")
    return text, token.logprob


def printable(words: str) -> str:
    """A server's words on one short line, without what a terminal would obey."""
    return "".join(letter for letter in " ".join(words.split()) if letter.isprintable())[:200]
