"""Remote chat models behind OpenAI-compatible endpoints: bounded in time, bytes, attempts, concurrency and money.

The openai package does the transport; its own retries are off, so that every attempt is counted here.
"""

from __future__ import annotations

import asyncio
import math
import os
import time
import zlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from random import Random
from typing import TYPE_CHECKING, Any

import httpx

from ..config.sections import TeacherModel, TeachersConfig, TeacherTier
from ..errors import ConfigError
from ..types import Cost
from .answer import CallError, ChatAnswer, Failure, failed, read_answer, status_error
from .budget import Books, Spent
from .cache import AnswerCache, request_key

if TYPE_CHECKING:
    import openai

CHARACTERS_PER_TOKEN = 4  # the estimate for providers that report no usage
TEMPLATE_TOKENS = 32  # more than any chat template adds to a message
MOST_BYTES = 1 << 20  # of a response; what follows isn't read
MOST_ERROR_BYTES = 1 << 16  # of an error page: nothing in it is shown
AUTOMATIC = zlib.MAX_WBITS | 32  # gzip or zlib, as the bytes say
THINKING_ROOM = 4  # times max_tokens for a model whose thinking took them all

Message = dict[str, str]


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Bounds of one call, in seconds: at most `(retries + 2) * timeout + retries * longest_wait`.

    One attempt more than the retries is for an answer that thinking left no room for.
    """

    timeout: float = 30.0  # of one attempt, from sending to the last byte
    retries: int = 3
    first_wait: float = 0.5  # doubles with every retry; half of it is jitter
    longest_wait: float = 20.0  # of any wait, one that the provider asks for included


@dataclass(frozen=True, slots=True)
class Completion:
    """A model's answer: `text` without thinking, and what this call cost, failed attempts included.

    `cached` tells that it was answered before, or by a call that was under way; it cost nothing then.
    """

    text: str
    cost: Cost
    cached: bool = False


class _Capped(httpx.AsyncByteStream):
    """A response's bytes up to a limit, unpacked ones where `unpack` is given; one that is cut is no JSON."""

    def __init__(self, stream: httpx.AsyncByteStream, limit: int, unpack: zlib._Decompress | None) -> None:
        self._stream, self._limit, self._unpack = stream, limit, unpack

    async def __aiter__(self) -> AsyncIterator[bytes]:
        left = self._limit
        async for chunk in self._stream:
            try:
                # A few bytes may unpack to gigabytes: no more than `left` of them are ever made.
                found = chunk[:left] if self._unpack is None else self._unpack.decompress(chunk, left)
            except zlib.error:
                return
            yield found
            left -= len(found)
            if left <= 0:
                return

    async def aclose(self) -> None:
        await self._stream.aclose()


async def _cap(response: httpx.Response) -> None:
    assert isinstance(response.stream, httpx.AsyncByteStream)
    limit = MOST_ERROR_BYTES if response.status_code >= 400 else MOST_BYTES
    # A server that packs all the same, though it was asked not to. httpx would unpack without a limit; what is packed in
    # another way stays as it is, and is no JSON.
    packed = response.headers.pop("content-encoding", "identity").strip().lower()
    unpack = zlib.decompressobj(wbits=AUTOMATIC) if packed in ("gzip", "x-gzip", "deflate") else None
    response.stream = _Capped(response.stream, limit, unpack)


class Endpoint:
    """A base URL with its key and its share of concurrency; the models of a tier share one.

    `refused` is the error of a key that was refused: nothing more is sent then. Connections and semaphores belong to an
    event loop, so both are made anew when the running loop is another one.
    """

    def __init__(self, base_url: str, key: str | None, policy: RetryPolicy, max_concurrent: int) -> None:
        self.base_url = base_url
        self.policy = policy
        self.refused: CallError | None = None
        self._key = key
        self._max_concurrent = max_concurrent
        self._loop: asyncio.AbstractEventLoop | None = None
        self._sdk: openai.AsyncOpenAI
        self._gate: asyncio.Semaphore

    def open(self) -> tuple[openai.AsyncOpenAI, asyncio.Semaphore]:
        """The client and the concurrency gate of the running event loop."""
        import openai  # a second of start-up, which most runs do without

        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            # Without a key of its own the SDK would send OPENAI_API_KEY, whatever the server is.
            sdk = openai.AsyncOpenAI(
                api_key=self._key or "none",
                base_url=self.base_url,
                max_retries=0,
                timeout=self.policy.timeout,
                # Not compressed, so that the limit on bytes is one on memory.
                default_headers={"Accept-Encoding": "identity"},
                # The SDK's own client closes itself when it is collected, on whatever loop runs then.
                http_client=openai.DefaultAsyncHttpxClient(
                    timeout=self.policy.timeout,
                    event_hooks={"response": [_cap]},
                    follow_redirects=False,  # the prompt, and maybe the key, would go where nobody sent them
                ),
            )
            sdk.organization = sdk.project = None  # the same holds for OPENAI_ORG_ID and OPENAI_PROJECT_ID
            self._loop, self._sdk, self._gate = loop, sdk, asyncio.Semaphore(self._max_concurrent)
        return self._sdk, self._gate

    async def close(self) -> None:
        """Close the connections of the running event loop."""
        if self._loop is asyncio.get_running_loop():
            self._loop = None
            await self._sdk.close()


def open_endpoint(name: str, tier: TeacherTier, config: TeachersConfig) -> Endpoint:
    """The endpoint of the tier called `name`, with its key from the environment.

    Raises:
        ConfigError: the tier's key variable isn't set, or it has no address.
    """
    if tier.base_url is None:
        raise ConfigError(f"teacher_tiers.{name}.base_url is null: name the address of an OpenAI-compatible server")
    key = None
    if tier.key_variable is not None:
        key = os.environ.get(tier.key_variable, "").strip()
        if not key:
            raise ConfigError(
                f"teachers.tier {name} needs a key: set {tier.key_variable} to the key of {tier.base_url},"
                " or choose another tier"
            )
        if not all("!" <= character <= "~" for character in key):  # no header holds anything else
            raise ConfigError(
                f"{tier.key_variable} has a space or another character that is in no key: copy the key again"
            )
    policy = RetryPolicy(timeout=config.timeout_seconds, retries=config.max_retries)
    return Endpoint(tier.base_url, key, policy, config.max_concurrent)


@dataclass(slots=True)
class _UnderWay:
    """A request that somebody waits for: `waiting` counts who does."""

    task: asyncio.Task[Completion]
    waiting: int = 0


class ChatClient:
    """One model at an endpoint. `cost` adds up every attempt; `seed` decides the jitter of the waits.

    Args:
        books: where every attempt is reserved and settled.
        cache: where answers are kept.
        name: what the books call this model.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        model: TeacherModel,
        seed: int = 0,
        *,
        books: Books | None = None,
        cache: AnswerCache | None = None,
        name: str | None = None,
    ) -> None:
        self.endpoint = endpoint
        self.model = model
        self.name = model.model if name is None else name
        self.books = Books() if books is None else books
        self.cache = AnswerCache() if cache is None else cache
        self.cost = self.books.ledger(self.name).cost
        self._random = Random(f"{model.model}/{seed}")
        self._under_way: dict[str, _UnderWay] = {}
        self._room = 1  # THINKING_ROOM once the model's thinking took all of max_tokens

    async def complete(
        self,
        messages: Sequence[Message],
        *,
        max_tokens: int = 512,
        temperature: float = 1.0,
        seed: int | None = None,
        question: str = "",
    ) -> Completion:
        """The model's answer to `messages`, out of the cache where it is there; `question` is whose budget pays.

        Raises:
            CallError: the last attempt's failure; only time-outs, connections, 408, 409, 429 and 5xx are tried again.
        """
        request: dict[str, Any] = {
            "model": self.model.model,
            "messages": list(messages),
            "max_tokens": max_tokens,
            "temperature": temperature,
            "seed": seed,
        }
        key = request_key(self.endpoint.base_url, request)
        known = self.cache.get(key)
        if known is not None:
            return Completion(known, Cost(), cached=True)
        shared = self._under_way.get(key)
        if shared is None:
            task = asyncio.ensure_future(self._asked(key, request, question))
            shared = self._under_way[key] = _UnderWay(task)
            task.add_done_callback(lambda ended: self._over(key, ended))
        first = shared.waiting == 0
        shared.waiting += 1
        try:
            # Shielded: one who gives up must not take the answer from the others.
            completion = await asyncio.shield(shared.task)
        finally:
            shared.waiting -= 1
            if not shared.waiting and not shared.task.done():
                self._under_way.pop(key, None)  # whoever asks now is not to get a cancelled answer
                shared.task.cancel()
                await asyncio.wait([shared.task])
        return completion if first else Completion(completion.text, Cost(), cached=True)

    def _over(self, key: str, ended: asyncio.Task[Completion]) -> None:
        shared = self._under_way.get(key)
        if shared is not None and shared.task is ended:
            del self._under_way[key]
        if not ended.cancelled():
            ended.exception()  # seen, should nobody wait any more

    async def _asked(self, key: str, request: dict[str, Any], question: str) -> Completion:
        """The answer after as many attempts as it takes."""
        policy, cost, attempt = self.endpoint.policy, Cost(), 0
        asked = request["max_tokens"]
        while True:
            room = self._room
            try:
                text = await self._attempt(cost, {**request, "max_tokens": asked * room}, question)
            except CallError as error:
                if error.kind is Failure.LENGTH and room == 1:
                    self._room = THINKING_ROOM
                    continue
                retried = error.kind in (Failure.TIMEOUT, Failure.CONNECTION, Failure.RATE_LIMIT, Failure.SERVER)
                if not retried or attempt == policy.retries:
                    raise
                wait = error.wait
                if wait is None:
                    wait = policy.first_wait * 2**attempt * self._random.uniform(0.5, 1.0)
                attempt += 1
                await asyncio.sleep(min(wait, policy.longest_wait))
                continue
            self.cache.put(key, self.model.model, text)
            return Completion(text, cost)

    async def _attempt(self, total: Cost, request: dict[str, Any], question: str) -> str:
        """One request; what it takes is reserved before, settled after, and added to `total`."""
        sdk, gate = self.endpoint.open()
        async with gate:
            if self.endpoint.refused is not None:
                raise CallError(Failure.REFUSED_KEY, str(self.endpoint.refused))
            reserved = self.books.reserve(self.name, question, self._most(request))
            cost, sure, start = Cost(calls=1), False, time.perf_counter()
            try:
                answer = await self._sent(sdk, request)
                sure = self._charge(cost, answer, request["messages"])
            except CallError as error:
                sure = not error.unknown
                if error.kind is Failure.REFUSED_KEY:
                    self.endpoint.refused = error
                raise
            finally:
                cost.seconds = time.perf_counter() - start
                self.books.settle(reserved, cost, sure)
                total.add(cost)
        if answer.failure is not None:
            raise failed(answer.failure, self.model.model)
        return answer.text

    async def _sent(self, sdk: openai.AsyncOpenAI, request: dict[str, Any]) -> ChatAnswer:
        """The response to one request."""
        import openai

        name, base_url, timeout = self.model.model, self.endpoint.base_url, self.endpoint.policy.timeout
        try:
            # The SDK's time-out is for each read, so a server that drips bytes would never end.
            async with asyncio.timeout(timeout):
                raw = await sdk.chat.completions.with_raw_response.create(**request)
                body = raw.http_response.content
        except (TimeoutError, openai.APITimeoutError) as error:
            raise CallError(
                Failure.TIMEOUT,
                f"{name} didn't answer within {timeout:g} s: raise teachers.timeout_seconds",
                # A connection that was never made carried no request.
                unknown=not isinstance(error.__cause__, httpx.ConnectTimeout),
            ) from error
        except openai.APIConnectionError as error:
            raise CallError(
                Failure.CONNECTION,
                f"{name} can't be reached at {base_url}: check the URL and the network",
                unknown=not isinstance(error.__cause__, httpx.ConnectError),
            ) from error
        except openai.APIStatusError as error:
            wait = retry_after(error.response.headers.get("retry-after"))
            # Not `from error`: the SDK's error repeats the provider's page.
            raise status_error(error.status_code, name, base_url, wait, body=error.body) from None
        if len(body) >= MOST_BYTES:
            raise CallError(Failure.TOO_LARGE, f"{name} answered with more than {MOST_BYTES:,} bytes", unknown=True)
        return read_answer(body, name, base_url)

    def _most(self, request: dict[str, Any]) -> Spent:
        """The most that a request can cost: no tokenizer makes more tokens of a text than it has bytes."""
        prompt = sum(len(message["content"].encode()) + TEMPLATE_TOKENS for message in request["messages"])
        return Spent(self._dollars(prompt, request["max_tokens"]), prompt + request["max_tokens"], 1)

    def _dollars(self, prompt: int, sampled: int) -> float:
        return (prompt * self.model.prompt_cost + sampled * self.model.completion_cost) / 1e6

    def _charge(self, cost: Cost, answer: ChatAnswer, messages: Sequence[Message]) -> bool:
        """Add an answer's tokens and dollars; where its usage is missing they are estimated from the characters, and
        the result is False."""
        usage = answer.usage
        if usage is None:
            prompt = -(-sum(len(message["content"]) for message in messages) // CHARACTERS_PER_TOKEN)
            sampled, cached, dollars = -(-answer.characters // CHARACTERS_PER_TOKEN), 0, None
        else:
            prompt, sampled, cached, dollars = usage.prompt, usage.sampled, usage.cached, usage.dollars
        cost.prompt_tokens, cost.cached_tokens, cost.sampled_tokens = prompt - cached, cached, sampled
        cost.dollars = self._dollars(prompt, sampled) if dollars is None else dollars
        return usage is not None


def retry_after(value: str | None, now: datetime | None = None) -> float | None:
    """Seconds that a `Retry-After` header asks for, at least 0 (it may be a number or an HTTP date), or None."""
    if value is None:
        return None
    try:
        seconds = float(value)
    except ValueError:
        try:
            date = parsedate_to_datetime(value)
        except ValueError:
            return None
        # A date without a zone is in UTC, as HTTP has it.
        date = date if date.tzinfo else date.replace(tzinfo=UTC)
        seconds = (date - (now or datetime.now(UTC))).total_seconds()
    return max(0.0, seconds) if math.isfinite(seconds) else None
