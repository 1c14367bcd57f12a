"""Chat models behind an OpenAI-compatible endpoint, by the openai package: it connects, retries and heeds `Retry-After`.
What is added here: a bound on the time and the bytes of an answer, and a budget that is asked before each call."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import httpx

from ..config.sections import TeacherModel, TeachersConfig
from ..types import Cost
from .answer import CallError, ChatAnswer, read_answer, status_error
from .budget import Books, Spent

if TYPE_CHECKING:
    import openai

CHARACTERS_PER_TOKEN = 4  # the estimate for providers that report no usage
TEMPLATE_TOKENS = 32  # more than any chat template adds to a message
MOST_BYTES = 1 << 20  # of a response; what follows isn't read
MOST_CALLS = 8  # under way at once

Message = dict[str, str]


class _Capped(httpx.AsyncByteStream):
    """A response's bytes up to a limit; one that is cut is no JSON."""

    def __init__(self, stream: httpx.AsyncByteStream) -> None:
        self._stream = stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        left = MOST_BYTES
        async for chunk in self._stream:
            yield chunk[:left]
            left -= len(chunk)
            if left <= 0:
                return

    async def aclose(self) -> None:
        await self._stream.aclose()


async def _cap(response: httpx.Response) -> None:
    assert isinstance(response.stream, httpx.AsyncByteStream)
    # Packed bytes were not asked for. They stay packed, and are no JSON: a few of them may unpack to gigabytes.
    response.headers.pop("content-encoding", None)
    response.stream = _Capped(response.stream)


class Endpoint:
    """Where a tier's models answer, with its key, its share of concurrency and the books that they share.

    Connections and semaphores belong to an event loop, so both are made anew when the running loop is another one.
    """

    def __init__(self, base_url: str, key: str | None, settings: TeachersConfig, books: Books | None = None) -> None:
        self.base_url, self.settings = base_url, settings
        self.books = Books(settings.budget) if books is None else books
        self._key = key
        self._loop: asyncio.AbstractEventLoop | None = None
        self._sdk: openai.AsyncOpenAI
        self._gate: asyncio.Semaphore
        self._sessions = 0

    def open(self) -> tuple[openai.AsyncOpenAI, asyncio.Semaphore]:
        """The client and the concurrency gate of the running event loop."""
        import openai  # a second of start-up, which most runs do without

        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            sdk = openai.AsyncOpenAI(
                # Without a key of its own the SDK would send OPENAI_API_KEY, whatever the server is.
                api_key=self._key or "none",
                base_url=self.base_url,
                max_retries=self.settings.max_retries,
                default_headers={"Accept-Encoding": "identity"},
                http_client=openai.DefaultAsyncHttpxClient(
                    timeout=self.settings.timeout_seconds,
                    event_hooks={"response": [_cap]},
                    follow_redirects=False,  # the prompt, and maybe the key, would go where nobody sent them
                ),
            )
            sdk.organization = sdk.project = None  # the same holds for OPENAI_ORG_ID and OPENAI_PROJECT_ID
            self._loop, self._sdk, self._gate = loop, sdk, asyncio.Semaphore(MOST_CALLS)
        return self._sdk, self._gate

    @asynccontextmanager
    async def session(self) -> AsyncIterator[None]:
        """The connections are closed when the last of those inside leaves."""
        self._sessions += 1
        try:
            yield
        finally:
            self._sessions -= 1
            if not self._sessions and self._loop is asyncio.get_running_loop():
                self._loop = None
                await self._sdk.close()


class ChatClient:
    """One model at an endpoint; `name` is what the books call it."""

    def __init__(self, endpoint: Endpoint, model: TeacherModel, name: str | None = None) -> None:
        self.endpoint, self.model, self.books = endpoint, model, endpoint.books
        self.name = model.model if name is None else name

    async def complete(
        self, messages: Sequence[Message], temperature: float = 1.0, seed: int | None = None, **more: Any
    ) -> str:
        """The model's answer to `messages`, without its thinking; `more` are other parameters of the request.

        Raises:
            CallError: why there is none, after the retries.
        """
        request: dict[str, Any] = {
            "model": self.model.model,
            "messages": list(messages),
            "max_tokens": self.endpoint.settings.max_tokens,
            "temperature": temperature,
            "seed": seed,
            **more,
        }
        sdk, gate = self.endpoint.open()
        async with gate:
            most, cost, sure, start = self._most(request), Cost(calls=1), False, time.perf_counter()
            self.books.reserve(self.name, most)
            try:
                answer = await self._sent(sdk, request)
                sure = self._charge(cost, answer, messages)
            except CallError as error:
                sure = not error.charged
                raise
            finally:
                cost.seconds = time.perf_counter() - start
                self.books.settle(self.name, most, cost, sure)
        if answer.failure is not None:
            raise answer.failure
        return answer.text

    async def _sent(self, sdk: openai.AsyncOpenAI, request: dict[str, Any]) -> ChatAnswer:
        """The response to a request."""
        import openai

        name, timeout = self.model.model, self.endpoint.settings.timeout_seconds
        try:
            # The SDK's time-out is for each read, so a server that drips bytes would never end.
            async with asyncio.timeout(timeout):
                raw = await sdk.chat.completions.with_raw_response.create(**request)
                body = raw.http_response.content
        except (TimeoutError, openai.APITimeoutError) as error:
            said = f"{name} didn't answer within {timeout:g} s: raise teachers.timeout_seconds"
            raise CallError("timeout", said, charged=was_sent(error)) from error
        except openai.APIConnectionError as error:
            said = f"{name} can't be reached at {self.endpoint.base_url}: check the URL and the network"
            raise CallError("connection", said, charged=was_sent(error)) from error
        except openai.APIStatusError as error:
            # Not `from error`: the SDK's error repeats the provider's page.
            raise status_error(error.status_code, name) from None
        if len(body) >= MOST_BYTES:
            raise CallError("unreadable", f"{name} answered with more than {MOST_BYTES:,} bytes", charged=True)
        return read_answer(body, name)

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
            prompt, sampled, dollars = usage.prompt, usage.sampled, usage.dollars
            cached = min(prompt, usage.cached or 0)
        cost.prompt_tokens, cost.cached_tokens, cost.sampled_tokens = prompt - cached, cached, sampled
        cost.dollars = self._dollars(prompt, sampled) if dollars is None else dollars
        return usage is not None


def was_sent(error: BaseException) -> bool:
    """Whether a request that failed may have reached its server: a connection that was never made carried none."""
    return not isinstance(error.__cause__, httpx.ConnectError | httpx.ConnectTimeout)
