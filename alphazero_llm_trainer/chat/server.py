"""A chat model behind any OpenAI-compatible server: streamed samples, with their tokens where the
server tells log-probabilities.

The openai package connects, retries and heeds `Retry-After`; a sample that breaks off is begun
again, and what a server refuses by name is left out. A sample is closed as soon as its reader has
enough, and servers end the generation then.
"""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing
from typing import TYPE_CHECKING, Any, TypeVar

from ..config.sections import ADDRESS, OpenaiConfig, TeacherModel
from ..errors import ConfigError, EngineError, RequestError, reason_of
from ..types import Cost, Facts, JsonObject, in_first_question
from .reply import DONE, BrokenOff, Part, Sampled, clean_words, read_events

if TYPE_CHECKING:
    import openai

# How vLLM, llama.cpp's server and `serve` go on from an assistant's message; Ollama does so
# without.
CONTINUE_FIELDS = {"continue_final_message": True, "add_generation_prompt": False}
PROBE = "1"  # one token, of nearly every tokenizer
SPARE = 2  # tokens: PROBE's, and where it isn't one
THOUGHT = 8  # tokens that a template may open an answer with and leaves out of one that goes on
REFUSED_STATUSES = (400, 404, 413, 422)  # statuses of a request that the server doesn't take
# What a request can do without.
OPTIONAL_FIELDS = ("temperature", "seed", "stream_options", "top_p")
RENAMED = "max_completion_tokens"  # what some servers take for `max_tokens`
SYSTEM = "system messages"  # what some chat templates have no place for, and how they say so
NO_SYSTEM = re.compile(
    r"system.{0,40}(role|message|prompt|instruction)|(role|instruction).{0,60}system"
    r"|developer instruction|only user and assistant|roles must alternate",
    re.IGNORECASE | re.DOTALL,
)
FEW = re.compile(r"max_\w*tokens|output (token )?limit", re.IGNORECASE)  # a limit that is too low
MOST_GREETED = 1024  # tokens of a greeting
SERVER_SEED_BITS = 31  # some servers take 32 bits with a sign
URL_VARIABLE, LOCAL_URL = "OPENAI_BASE_URL", "http://127.0.0.1:8000/v1"

SERVER_CALLS = 32  # under way at once
SERVER_RETRIES = (
    6  # after 408, 409, 429 and 5xx by the openai package, and of a sample that breaks off
)
PAUSE_SECONDS, LONGEST_PAUSE = 0.5, 8.0  # before it is begun again: twice as long each time
GREETING_SECONDS = 5.0  # that a server may take to say which models it has
SAMPLE_SECONDS = 1800.0  # of one sample
MOST_TEXT = 64  # characters a token: more of them are no sample of `max_tokens`

T = TypeVar("T")
RequestMessage = Mapping[str, str]


def price_tokens(cost: Cost, rates: OpenaiConfig | TeacherModel) -> float:
    """What a reply's tokens cost at a model's rates, in dollars."""
    read = cost.prompt_tokens + cost.cached_tokens
    return (read * rates.prompt_cost + cost.sampled_tokens * rates.completion_cost) / 1e6


class Asking:
    """How a server wants to be asked: without what it has refused by name (`left_out`)."""

    def __init__(self) -> None:
        self.left_out: set[str] = set()  # a temperature with its value: others may be taken

    async def __call__(self, call: Callable[[JsonObject], Awaitable[T]], request: Facts) -> T:
        """The answer to a request, asked again without what is refused of it. What made it pass is
        remembered. Raises the errors of `call`.
        """
        import openai

        left_out = set(self.left_out)
        while True:
            kept = leave_out(request, left_out)
            try:
                answer = await call(kept)
            except openai.APIStatusError as error:
                refused = refused_of(kept, f"{error.message} {error.body}")
                if refused is None or (
                    refused != SYSTEM and error.status_code not in REFUSED_STATUSES
                ):
                    raise
                left_out.add(refused)
            else:
                self.left_out |= left_out
                return answer


def leave_out(request: Facts, left_out: Collection[str]) -> JsonObject:
    """A request without what is left out of it: a limit by its other name, and a system prompt
    before the first question.
    """
    kept = {
        key: value for key, value in request.items() if name_parameter(key, value) not in left_out
    }
    if "max_tokens" in left_out:
        kept[RENAMED] = request["max_tokens"]
    if SYSTEM in left_out:
        kept["messages"] = in_first_question(kept["messages"])
    return kept


def name_parameter(key: str, value: Any) -> str:
    """A parameter's name, a temperature's with its value."""
    return f"{key} {value:g}" if key == "temperature" else key


def refused_of(request: Facts, words: str) -> str | None:
    """The part that a server's words refuse and that a request can do without, or None."""
    if request["messages"][0]["role"] == "system" and NO_SYSTEM.search(words):
        return SYSTEM
    if "max_tokens" in request and RENAMED in words:
        return "max_tokens"
    for key in OPTIONAL_FIELDS:
        if key in request and re.search(rf"\b{key}\b", words):
            return name_parameter(key, request[key])
    return None


class ServerConnection:
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
        self.told, self.least = False, 1
        self.odd: Counter[str] = Counter()
        self._greeting: asyncio.Task[None] | None = None
        key = os.environ.get(settings.key_variable, "").strip()
        self.connection = ServerConnection(self.url, key, SERVER_RETRIES, SERVER_CALLS)

    @property
    def closes(self) -> bool:
        """Whether a sample may be closed before its end: what came says what it took then, but not
        what it costs in dollars.
        """
        price = self.settings
        return self.logprobs and not (price.prompt_cost or price.completion_cost or price.dollars)

    async def sample(
        self,
        messages: Sequence[RequestMessage],
        spent: Cost,
        *,
        temperature: float = 0.0,
        max_tokens: int = 1,
        seed: int = 0,
        going_on: bool = False,
        retries: int = SERVER_RETRIES,
    ) -> AsyncGenerator[Part, None]:
        """One reply to `messages`, piece by piece; with `going_on` the rest of the last message.
        What it took is added to `spent`. A reply that breaks off is begun again.

        Raises:
            RequestError: the server doesn't take this request, or fails with it alone.
            EngineError: the server can't be reached or fails, or the dollars are spent.
        """
        request: JsonObject = {
            "model": self.model,
            "messages": list(messages),
            "temperature": temperature,
            "top_p": 1.0,
            "max_tokens": max_tokens,
            "seed": seed % 2**SERVER_SEED_BITS,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if self.logprobs:
            request["logprobs"] = True
        if going_on:
            request["extra_body"] = CONTINUE_FIELDS
        for attempt in range(retries + 1):
            try:
                async with aclosing(self._once(request, spent, max_tokens, retries)) as parts:
                    async for part in parts:
                        yield part
                return
            except BrokenOff as error:
                refused = refused_of(leave_out(request, self.asking.left_out), str(error))
                if refused is not None:
                    self.asking.left_out.add(refused)
                elif error.final:
                    raise RequestError(f"the server at {self.url} refuses ({error})") from error
                if attempt == retries:
                    failure = EngineError(
                        f"the server at {self.url} broke off in a reply, or sends no chat "
                        f"completion ({error}): look at its log, or correct --base-url"
                    )
                    raise await self._blame(failure, retries) from error
            except EngineError as error:
                raise await self._blame(error, retries) from error
            await asyncio.sleep(min(PAUSE_SECONDS * 2**attempt, LONGEST_PAUSE))
            yield Part(again=True)

    async def _blame(self, error: EngineError, retries: int) -> EngineError:
        """A failure of the server, or of one request where another one is answered."""
        if not self.known or not retries or isinstance(error, RequestError):
            return error
        try:
            await self._prompt([new_question()], retries=0)
        except EngineError:
            return error
        return RequestError(str(error))

    async def _once(
        self, request: JsonObject, spent: Cost, max_tokens: int, retries: int
    ) -> AsyncGenerator[Part, None]:
        """One attempt at a reply. Raises BrokenOff, too."""
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

                def call(kept: JsonObject) -> Awaitable[Any]:
                    asked = client.with_options(max_retries=retries)
                    streaming = asked.chat.completions.with_streaming_response
                    return stack.enter_async_context(streaming.create(**kept))

                reply = await self.asking(call, request)
                try:
                    async for event in read_events(reply.iter_bytes()):
                        if event == DONE:
                            sample.done = True
                            break
                        yield sample.read(event)
                        if sample.length > MOST_TEXT * (max_tokens + 16):
                            raise EngineError(
                                f"the server at {self.url} sends more than max_tokens "
                                f"{max_tokens} can be: it ignores the limit"
                            )
                except httpx.TransportError as error:
                    if isinstance(error, httpx.TimeoutException):
                        raise
                    raise BrokenOff(clean_words(reason_of(error))) from error
            if sample.finish is None and sample.done:  # some name no reason
                full = sample.cost.sampled_tokens >= max_tokens
                sample.finish = "length" if full else sample.instead or "stop"
                yield Part(finish=sample.finish)
            sample.cost.sampled_tokens = max(sample.cost.sampled_tokens, 1)  # an end is a token
            self._check(sample, max_tokens)
        except openai.APIStatusError as error:
            raise self._read_refusal(error) from None  # the SDK's error repeats the server's page
        except RecursionError as error:
            raise BrokenOff("an event is nested too deeply") from error
        except (openai.APIError, httpx.HTTPError, TimeoutError) as error:
            raise self._unreachable(error) from error
        finally:
            cost = sample.cost
            cost.dollars = cost.dollars or price_tokens(cost, self.settings)
            self.cost.add(cost)
            spent.add(cost)
            self.odd["events without a meaning"] += sample.odd

    def _unreachable(self, error: Exception) -> EngineError:
        return EngineError(
            f"the server at {self.url} can't be reached ({clean_words(reason_of(error))}): "
            "start it, or correct --base-url"
        )

    def _check(self, sample: Sampled, max_tokens: int) -> None:
        """Raise for a sample that came to its end and can't be counted on."""
        place = f"the server at {self.url}"
        if sample.finish in (None, "failed"):
            raise BrokenOff("no end came" if sample.finish is None else "it says so")
        self.told = self.told or sample.told
        if not sample.told:
            # A thought that the server keeps apart has no tokens of the text's: it says nothing.
            self.odd["replies without log-probabilities"] += self.told and sample.shown
            self.logprobs = self.logprobs and (self.told or not sample.shown)
            if sample.length and not sample.counted:
                raise EngineError(
                    f"{place} tells neither usage nor log-probabilities, so that no token can be "
                    "counted: take another server"
                )
        if sample.cost.sampled_tokens > max_tokens:
            raise EngineError(
                f"{place} sampled {sample.cost.sampled_tokens} tokens where max_tokens was "
                f"{max_tokens}: it ignores the limit, or searches; of this package's `serve` name "
                "MODEL@sample"
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
        question = new_question()
        while True:
            try:
                asked = await self._prompt([question])
                break
            except RequestError as error:
                if FEW.search(str(error)) and self.least < MOST_GREETED:
                    self.least *= 4
                elif self.logprobs:
                    self.logprobs, self.least = False, 1
                else:
                    fix = "" if self.url.endswith("/v1") else ": most addresses end in /v1"
                    raise EngineError(f"{error}; it has {await self._models()}{fix}") from error
        begun = [question, {"role": "assistant", "content": PROBE}]
        try:
            longer = await self._prompt(begun, going_on=True)
            within = asked - THOUGHT <= longer <= asked + SPARE or 0 < longer <= SPARE
            self.goes_on = asked > 0 and within and longer != asked
        except RequestError:
            pass  # it takes no such message
        self.known = True

    async def _prompt(self, messages: Sequence[RequestMessage], **more: Any) -> int:
        """How many tokens the server reads of `messages`; 0 where it doesn't tell."""
        spent = Cost()
        async for _ in self.sample(messages, spent, max_tokens=self.least, **more):
            pass
        return spent.prompt_tokens + spent.cached_tokens

    async def _models(self) -> str:
        import openai

        try:
            client, _ = self.connection.open()
            return clean_words(", ".join([card.id async for card in client.models.list()]))
        except (openai.APIError, AttributeError, TypeError):
            return "no list of models"

    def _read_refusal(self, error: openai.APIStatusError) -> EngineError:
        """An HTTP error status as an EngineError with the words of the server."""
        body = error.body if isinstance(error.body, dict) else {}
        words = clean_words(str(body.get("message") or error.message))
        if error.status_code == 401 or (error.status_code == 403 and not self.known):
            return EngineError(
                f"the server at {self.url} refuses the key ({words}): put it into the variable "
                f"{self.settings.key_variable}, or name another by engine.openai.key_variable"
            )
        kind = RequestError if error.status_code in REFUSED_STATUSES else EngineError
        return kind(
            f"the server at {self.url} answers with HTTP {error.status_code} for model "
            f"{self.model!r} ({words})"
        )


def new_question() -> RequestMessage:
    """A question that differs from its first word on each time: no server has it in its cache."""
    words = f"{time.time_ns() // 1000 % 10**9} boxes hold 14 apples each. How many are they?"
    return {"role": "user", "content": words}
