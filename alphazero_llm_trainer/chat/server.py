"""A chat model behind any OpenAI-compatible server: streamed samples, with their tokens where the
server tells log-probabilities.

The openai package connects, retries and heeds `Retry-After`; a sample that breaks off is begun
again, and what a server refuses by name is left out. A sample is closed as soon as its reader has
enough, and servers end the generation then.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import re
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from pydantic import BaseModel, Field, ValidationError

from ..config.sections import ADDRESS, OpenaiConfig, TeacherModel
from ..errors import ConfigError, EngineError, RequestError, reason_of
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
OPTIONAL = ("temperature", "seed", "stream_options", "top_p")  # what a request can do without
RENAMED = "max_completion_tokens"  # what some servers take for `max_tokens`
CUTS = ("length", "max_tokens", "model_length")  # the `finish_reason` of a reply that was cut
FAILED = ("error", "abort")  # of one that failed
SEED_BITS = 31  # some servers take 32 bits with a sign
URL_VARIABLE, LOCAL_URL = "OPENAI_BASE_URL", "http://127.0.0.1:8000/v1"

MOST_CALLS = 32  # under way at once
RETRIES = 6  # after 408, 409, 429 and 5xx by the openai package, and of a sample that breaks off
PAUSE_SECONDS, LONGEST_PAUSE = 0.5, 8.0  # before it is begun again: twice as long each time
GREETING_SECONDS = 5.0  # that a server may take to say which models it has
SAMPLE_SECONDS = 1800.0  # of one sample
MOST_BYTES = 1 << 24  # of an event
MOST_TEXT = 64  # characters a token: more of them are no sample of `max_tokens`

T = TypeVar("T")
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

    choices: list[ChoiceBody]
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
    cost: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None  # dollars

    @classmethod
    def read(cls, usage: Any) -> UsageBody | None:
        """A reply's usage, or None where it is none."""
        try:
            return cls.model_validate(usage)
        except ValidationError:
            return None

    def count(self, cost: Cost) -> None:
        """Set what a reply took; tokens that came are never counted less."""
        details = self.prompt_tokens_details or DetailsBody()
        cost.cached_tokens = min(details.cached_tokens or 0, self.prompt_tokens)
        cost.prompt_tokens = self.prompt_tokens - cost.cached_tokens
        cost.sampled_tokens = max(self.completion_tokens, cost.sampled_tokens)
        cost.dollars = self.cost or 0.0


@dataclass(slots=True)
class Part:
    """A piece of a sample.

    `tokens` are what its text is made of, none where the server doesn't tell; `hidden` is thinking
    that the server keeps apart. `finish` is None until the sample ends (as `finish_of` has it).
    With `again` the sample begins anew: the parts before this one count no more.
    """

    text: str = ""
    tokens: tuple[Token, ...] = ()
    hidden: str = ""
    finish: str | None = None
    again: bool = False


def price(cost: Cost, rates: OpenaiConfig | TeacherModel) -> float:
    """What a reply's tokens cost at a model's rates, in dollars."""
    read = cost.prompt_tokens + cost.cached_tokens
    return (read * rates.prompt_cost + cost.sampled_tokens * rates.completion_cost) / 1e6


class BrokenOff(Exception):
    """A streamed reply that failed, or ended before its end."""


def finish_of(reason: str | None) -> str | None:
    """Why a reply ended: "length" where it was cut, "content_filter", "failed", "stop" for every
    other reason, or None where none is told. Servers name ends as they like.
    """
    if reason is None or reason == "content_filter":
        return reason
    reason = reason.lower()
    return "length" if reason in CUTS else "failed" if reason in FAILED else "stop"


class Asking:
    """How a server wants to be asked: without what it has refused by name (`left_out`)."""

    def __init__(self) -> None:
        self.left_out: set[str] = set()  # a temperature with its value: others may be taken

    async def __call__(
        self, call: Callable[[dict[str, Any]], Awaitable[T]], request: Mapping[str, Any]
    ) -> T:
        """The answer to a request, asked again without a parameter that is refused. What made it
        pass is remembered. Raises the errors of `call`.
        """
        import openai

        left_out = set(self.left_out)
        while True:
            kept = {
                key: value for key, value in request.items() if named(key, value) not in left_out
            }
            if "max_tokens" in left_out:
                kept[RENAMED] = request["max_tokens"]
            try:
                answer = await call(kept)
            except (openai.BadRequestError, openai.UnprocessableEntityError) as error:
                refused = refused_of(kept, f"{error.message} {error.body}")
                if refused is None:
                    raise
                left_out.add(refused)
            else:
                self.left_out |= left_out
                return answer


def named(key: str, value: Any) -> str:
    """A parameter's name, a temperature's with its value."""
    return f"{key} {value:g}" if key == "temperature" else key


def refused_of(request: Mapping[str, Any], words: str) -> str | None:
    """The parameter that a server's words refuse and that a request can do without, or None."""
    if "max_tokens" in request and RENAMED in words:
        return "max_tokens"
    for key in OPTIONAL:
        if key in request and re.search(rf"\b{key}\b", words):
            return named(key, request[key])
    return None


class Connection:
    """The openai client of a server, and the gate of the calls under way. They belong to an event
    loop, and are made anew for another one.

    Args:
        calls: under way at once.
        options: of httpx, such as a time-out.
    """

    def __init__(self, url: str, key: str | None, retries: int, calls: int, **options: Any) -> None:
        self.url, self.retries, self.calls = url, retries, calls
        self._key, self._options = key, options
        self._loop: asyncio.AbstractEventLoop | None = None
        self._sdk: openai.AsyncOpenAI
        self._gate: asyncio.Semaphore

    def open(self) -> tuple[openai.AsyncOpenAI, asyncio.Semaphore]:
        """The client and the gate of the running event loop. Raises ConfigError for a proxy that
        httpx doesn't speak to.

        Without a key of its own the SDK would send OPENAI_API_KEY, whatever the server is;
        redirected, the key would go where nobody sent it; and the same holds for OPENAI_ORG_ID.
        """
        import openai

        loop = asyncio.get_running_loop()
        if self._loop is loop:
            return self._sdk, self._gate
        try:
            http = openai.DefaultAsyncHttpxClient(follow_redirects=False, **self._options)
        except (ImportError, ValueError) as error:
            raise ConfigError(
                "ALL_PROXY, HTTPS_PROXY or HTTP_PROXY names a proxy of a kind that needs another "
                "package, such as socks5: pip install 'httpx[socks]', or unset the variable"
            ) from error
        self._sdk = openai.AsyncOpenAI(
            api_key=self._key or "none",
            base_url=self.url,
            max_retries=self.retries,
            http_client=http,
        )
        self._sdk.organization = self._sdk.project = None
        self._loop, self._gate = loop, asyncio.Semaphore(self.calls)
        return self._sdk, self._gate

    async def close(self) -> None:
        """Close what the running event loop has opened."""
        if self._loop is asyncio.get_running_loop():
            self._loop = None
            await self._sdk.close()


async def events(pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The data of server-sent events, each of one line."""
    rest = b""
    async for piece in pieces:
        *lines, rest = (rest + piece).split(b"\n")
        if len(rest) > MOST_BYTES:
            raise BrokenOff("an event doesn't end")
        for line in lines:
            if line.startswith(b"data:"):
                yield line[5:].strip()
    if rest.startswith(b"data:"):
        yield rest[5:].strip()


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
        url = settings.base_url or os.environ.get(URL_VARIABLE, "").strip() or LOCAL_URL
        if re.fullmatch(ADDRESS, url) is None:  # which may have a password in it
            raise ConfigError(f"{URL_VARIABLE} is no address: write https://HOST/v1 without a name")
        self.settings, self.model, self.url = settings, model, url.rstrip("/")
        self.asking = Asking()
        self.cost, self.logprobs, self.goes_on, self.known = Cost(), True, False, False
        self._greeting: asyncio.Task[None] | None = None
        key = os.environ.get(settings.key_variable, "").strip()
        self.connection = Connection(self.url, key, RETRIES, MOST_CALLS)

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
        What it took is added to `spent`. A reply that breaks off is begun again.

        Raises:
            RequestError: the server doesn't take this request.
            EngineError: the server can't be reached or fails, or the dollars are spent.
        """
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
        for attempt in range(RETRIES + 1):
            try:
                async with aclosing(self._once(request, spent, max_tokens)) as parts:
                    async for part in parts:
                        yield part
                return
            except BrokenOff as error:
                if attempt == RETRIES:
                    raise EngineError(
                        f"the server at {self.url} broke off in a reply, or sends no chat "
                        f"completion ({error}): look at its log, or correct --base-url"
                    ) from error
            await asyncio.sleep(min(PAUSE_SECONDS * 2**attempt, LONGEST_PAUSE))
            yield Part(again=True)

    async def _once(
        self, request: dict[str, Any], spent: Cost, max_tokens: int
    ) -> AsyncGenerator[Part, None]:
        """One attempt at `sample`. Raises BrokenOff, too."""
        import httpx
        import openai

        limit = self.settings.dollars
        if limit is not None and self.cost.dollars >= limit:
            raise EngineError(
                f"engine.openai.dollars is {limit:g} and {self.cost.dollars:.4f} are spent: raise "
                "it"
            )
        sample = Sampled(Cost(calls=1))
        try:
            client, gate = self.connection.open()
            async with gate, asyncio.timeout(SAMPLE_SECONDS), AsyncExitStack() as stack:

                def call(kept: dict[str, Any]) -> Awaitable[Any]:
                    streaming = client.chat.completions.with_streaming_response
                    return stack.enter_async_context(streaming.create(**kept))

                reply = await self.asking(call, request)
                try:
                    async for data in events(reply.iter_bytes()):
                        if data == b"[DONE]":
                            sample.done = True
                            break
                        yield sample.read(self._body(data))
                        if sample.length > MOST_TEXT * (max_tokens + 16):
                            raise EngineError(
                                f"the server at {self.url} sends more than max_tokens "
                                f"{max_tokens} can be: it ignores the limit"
                            )
                except httpx.TransportError as error:
                    if isinstance(error, httpx.TimeoutException):
                        raise
                    raise BrokenOff(printable(reason_of(error))) from error
            if sample.finish is None and sample.done:  # some name no reason
                full = sample.cost.sampled_tokens >= max_tokens
                sample.finish = "length" if full else "stop"
                yield Part(finish=sample.finish)
            self._check(sample, max_tokens)
        except openai.APIStatusError as error:
            raise self._refused(error) from None  # the SDK's error repeats the server's page
        except ValidationError as error:
            why = str(error.errors(include_url=False)[0]["loc"])
            raise EngineError(
                f"the server at {self.url} answers with no chat completion ({why}): correct "
                "--base-url"
            ) from None
        except (openai.APIError, httpx.HTTPError, TimeoutError) as error:
            raise self._unreachable(error) from error
        finally:
            cost = sample.cost
            cost.dollars = cost.dollars or price(cost, self.settings)
            self.cost.add(cost)
            spent.add(cost)

    def _body(self, data: bytes) -> Any:
        """An event's JSON. Raises BrokenOff where it is none, or a failure that may pass."""
        try:
            body = json.loads(data)
        except ValueError as error:
            raise BrokenOff("an event is no JSON") from error
        failure = body.get("error") if isinstance(body, dict) else None
        if not failure:
            return body
        code, words = None, failure
        if isinstance(failure, dict):
            code, words = failure.get("code"), failure.get("message")
        if code in REFUSALS:
            raise RequestError(f"the server at {self.url} refuses ({printable(str(words))})")
        raise BrokenOff(printable(str(words)))

    def _unreachable(self, error: Exception) -> EngineError:
        return EngineError(
            f"the server at {self.url} can't be reached ({printable(reason_of(error))}): "
            "start it, or correct --base-url"
        )

    def _check(self, sample: Sampled, max_tokens: int) -> None:
        """Raise for a sample that came to its end and can't be counted on."""
        place = f"the server at {self.url}"
        if sample.finish in (None, "failed"):
            raise BrokenOff("no end came" if sample.finish is None else "it says so")
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
            EngineError: the server can't be reached, which is told at once, or has no such model.
        """
        if self.known:
            return
        loop = asyncio.get_running_loop()
        if self._greeting is None or self._greeting.done() or self._greeting.get_loop() is not loop:
            self._greeting = asyncio.ensure_future(self._greet())
        await asyncio.shield(self._greeting)

    async def _greet(self) -> None:
        import httpx
        import openai

        client, _ = self.connection.open()
        try:
            once = client.with_options(max_retries=0, timeout=GREETING_SECONDS)
            await once.models.with_raw_response.list()
        except openai.APIError as error:  # many have no list
            if isinstance(error.__cause__, httpx.ConnectError):
                raise self._unreachable(error.__cause__) from error
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
            client, _ = self.connection.open()
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


@dataclass(slots=True)
class Sampled:
    """What came of a sample so far: characters, those of a hidden thought too, whether text was
    `shown`, whether tokens were told and whether usage counted them, why it ended, and whether the
    stream was `done`.
    """

    cost: Cost
    length: int = 0
    shown: bool = False
    told: bool = False
    counted: bool = False
    finish: str | None = None
    done: bool = False

    def read(self, chunk: Any) -> Part:
        """The next piece. Raises ValidationError where it is no chunk of a chat completion."""
        body = ChunkBody.model_validate(chunk)
        choice = body.choices[0] if body.choices else ChoiceBody()
        delta = choice.delta or DeltaBody()
        hidden = delta.reasoning_content or delta.reasoning or ""
        listed = (choice.logprobs.content if choice.logprobs is not None else None) or []
        text = delta.content or ""
        self.length += len(text) + len(hidden)
        self.shown = self.shown or bool(text)
        self.cost.sampled_tokens += max(len(listed), bool(text) + bool(hidden))
        finish = finish_of(choice.finish_reason or None)
        self.finish = finish or self.finish
        usage = UsageBody.read(body.usage)
        if usage is not None:
            usage.count(self.cost)
            self.counted = True
        # Tokens of a thought that the server keeps apart are none of the text's.
        known = all(token.logprob <= 0 and math.isfinite(token.logprob) for token in listed)
        tokens = () if hidden or not known else tuple(map(read_token, listed))
        self.told = self.told or bool(tokens)
        return Part(text, tokens, hidden, finish)


def read_token(token: TokenBody) -> Token:
    """A token's text and log-probability."""
    text = bytes(token.bytes) if token.bytes is not None else token.token.encode(errors="replace")
    return text, token.logprob


def printable(words: str) -> str:
    """A server's words on one short line, without what a terminal would obey."""
    return "".join(letter for letter in " ".join(words.split()) if letter.isprintable())[:200]
