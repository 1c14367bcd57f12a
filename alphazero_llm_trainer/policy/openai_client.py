"""Remote chat models behind OpenAI-compatible endpoints: bounded in time, attempts and concurrency, and accounted for.

The openai package does the transport; its own retries are off, so that every attempt is counted here.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from enum import StrEnum
from random import Random
from typing import Any

import openai

from ..errors import ConfigError, TeacherError
from ..sections import TeacherModel, TeachersConfig, TeacherTier
from ..types import Cost

RETRIED_STATUS = {408, 409, 429}  # and everything from 500 on
CHARACTERS_PER_TOKEN = 4  # the estimate for providers that report no usage

Message = dict[str, str]


class Failure(StrEnum):
    """Why a call failed; the keys of `TeacherLedger.failures`."""

    TIMEOUT = "timeout"
    CONNECTION = "connection"
    RATE_LIMIT = "rate_limit"
    SERVER = "server"
    REFUSED_KEY = "refused_key"
    NOT_FOUND = "not_found"
    BAD_REQUEST = "bad_request"
    BAD_JSON = "bad_json"
    EMPTY_CHOICES = "empty_choices"
    NO_CONTENT = "no_content"
    REFUSAL = "refusal"
    UNUSABLE = "unusable"  # an answer came, but no step or verdict could be read out of it
    OTHER = "other"


class CallError(TeacherError):
    """A call that failed for good, after its retries where they make sense. `kind` says why."""

    def __init__(self, kind: Failure, message: str, wait: float | None = None) -> None:
        super().__init__(message)
        self.kind = kind
        self.wait = wait  # seconds that the provider asked for, if it did


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Bounds of one call, in seconds: it takes at most `(retries + 1) * timeout + retries * longest_wait`."""

    timeout: float = 30.0  # of one attempt, from sending to the last byte
    retries: int = 3
    first_wait: float = 0.5  # doubles with every retry; half of it is jitter
    longest_wait: float = 20.0  # of any wait, one that the provider asks for included


@dataclass(frozen=True, slots=True)
class Completion:
    """A model's answer: `text` without reasoning fields, and what this call cost, failed attempts included."""

    text: str
    cost: Cost


class Endpoint:
    """A base URL with its key and its share of concurrency; the models of a tier share one.

    Connections and semaphores belong to an event loop, so both are made anew when the running loop is another one.
    """

    def __init__(self, base_url: str, key: str | None, policy: RetryPolicy, max_concurrent: int) -> None:
        self.base_url = base_url
        self.policy = policy
        self._key = key
        self._max_concurrent = max_concurrent
        self._loop: asyncio.AbstractEventLoop | None = None
        self._sdk: openai.AsyncOpenAI
        self._gate: asyncio.Semaphore

    def open(self) -> tuple[openai.AsyncOpenAI, asyncio.Semaphore]:
        """The client and the concurrency gate of the running event loop."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            # Without a key of its own the SDK would send OPENAI_API_KEY, whatever the server is.
            sdk = openai.AsyncOpenAI(
                api_key=self._key or "none",
                base_url=self.base_url,
                max_retries=0,
                timeout=self.policy.timeout,
                # The SDK's own client closes itself when it is collected, on whatever loop runs then.
                http_client=openai.DefaultAsyncHttpxClient(timeout=self.policy.timeout),
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
        ConfigError: the tier's key variable isn't set.
    """
    key = None
    if tier.key_variable is not None:
        key = os.environ.get(tier.key_variable, "").strip()
        if not key:
            raise ConfigError(
                f"teachers.tier {name} needs a key: set {tier.key_variable} to the key of {tier.base_url},"
                " or choose another tier"
            )
    policy = RetryPolicy(timeout=config.timeout_seconds, retries=config.max_retries)
    return Endpoint(tier.base_url, key, policy, config.max_concurrent)


class ChatClient:
    """One model at an endpoint. `cost` adds up every attempt; `seed` decides the jitter of the waits."""

    def __init__(self, endpoint: Endpoint, model: TeacherModel, seed: int = 0) -> None:
        self.endpoint = endpoint
        self.model = model
        self.cost = Cost()
        self._random = Random(f"{model.model}/{seed}")

    async def complete(
        self, messages: Sequence[Message], *, max_tokens: int = 512, temperature: float = 1.0, seed: int | None = None
    ) -> Completion:
        """The model's answer to `messages`.

        Raises:
            CallError: the last attempt's failure; only time-outs, connections, 408, 409, 429 and 5xx are tried again.
        """
        policy = self.endpoint.policy
        cost = Cost()
        attempt = 0
        try:
            while True:
                try:
                    return Completion(await self._attempt(cost, messages, max_tokens, temperature, seed), cost)
                except CallError as error:
                    retried = error.kind in (Failure.TIMEOUT, Failure.CONNECTION, Failure.RATE_LIMIT, Failure.SERVER)
                    if not retried or attempt == policy.retries:
                        raise
                    wait = error.wait
                    if wait is None:
                        wait = policy.first_wait * 2**attempt * self._random.uniform(0.5, 1.0)
                attempt += 1
                await asyncio.sleep(min(wait, policy.longest_wait))
        finally:
            self.cost.add(cost)

    async def _attempt(
        self, cost: Cost, messages: Sequence[Message], max_tokens: int, temperature: float, seed: int | None
    ) -> str:
        """One request; what it takes is added to `cost`."""
        sdk, gate = self.endpoint.open()
        async with gate:
            cost.calls += 1
            start = time.perf_counter()
            try:
                # The SDK's time-out is for each read, so a server that drips bytes would never end.
                async with asyncio.timeout(self.endpoint.policy.timeout):
                    raw = await sdk.chat.completions.with_raw_response.create(
                        model=self.model.model,
                        messages=list(messages),  # type: ignore[arg-type]
                        max_tokens=max_tokens,
                        temperature=temperature,
                        seed=seed,
                    )
                    body = raw.http_response.text
            except (TimeoutError, openai.APIConnectionError, openai.APIStatusError) as error:
                raise self._explain(error) from error
            finally:
                cost.seconds += time.perf_counter() - start
        return self._read(body, cost, messages)

    def _explain(self, error: TimeoutError | openai.APIConnectionError | openai.APIStatusError) -> CallError:
        name = self.model.model
        if isinstance(error, TimeoutError | openai.APITimeoutError):
            return CallError(
                Failure.TIMEOUT,
                f"{name} didn't answer within {self.endpoint.policy.timeout:g} s: raise teachers.timeout_seconds",
            )
        if isinstance(error, openai.APIConnectionError):
            return CallError(
                Failure.CONNECTION,
                f"{name} can't be reached at {self.endpoint.base_url}: check the URL and the network",
            )
        return self._refusal_by_status(error.status_code, retry_after(error.response.headers.get("retry-after")))

    def _refusal_by_status(self, status: int, wait: float | None = None) -> CallError:
        """An HTTP status as an error. A provider's own words are left out: they may repeat a part of the key."""
        name = self.model.model
        if status == 429:
            return CallError(Failure.RATE_LIMIT, f"{name} limits the rate (429): lower teachers.max_concurrent", wait)
        if status in RETRIED_STATUS or status >= 500:
            return CallError(Failure.SERVER, f"{name} failed with HTTP {status}: try again later", wait)
        if status in (401, 402, 403):
            return CallError(
                Failure.REFUSED_KEY, f"{name} refused the key (HTTP {status}): check the key, its rights and its credit"
            )
        if status == 404:
            return CallError(Failure.NOT_FOUND, f"{name} doesn't exist at {self.endpoint.base_url} (404): name another")
        return CallError(Failure.BAD_REQUEST, f"{name} refused the request (HTTP {status}): check its id and context")

    def _read(self, body: str, cost: Cost, messages: Sequence[Message]) -> str:
        """The answer's text out of a 200 response's body; its tokens are added to `cost`."""
        name = self.model.model
        try:
            answer = json.loads(body)
        except ValueError as error:
            raise CallError(Failure.BAD_JSON, f"{name} answered with something that is not JSON") from error
        if not isinstance(answer, dict):
            raise CallError(Failure.BAD_JSON, f"{name} answered with JSON that is not a chat completion")
        choices = answer.get("choices")
        choice = choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else {}
        # OpenRouter reports a provider's failure inside a 200 response.
        failure = answer.get("error") or choice.get("error")
        if failure:
            code = failure.get("code") if isinstance(failure, dict) else None
            raise self._refusal_by_status(code if isinstance(code, int) else 500)
        found = choice.get("message")
        message: dict[str, Any] = found if isinstance(found, dict) else {}
        content = message.get("content")
        text = content if isinstance(content, str) else ""
        self._charge(cost, answer.get("usage"), messages, text)
        if not choice:
            raise CallError(Failure.EMPTY_CHOICES, f"{name} answered with no choices")
        if message.get("refusal"):
            raise CallError(Failure.REFUSAL, f"{name} refused to answer")
        if not text.strip():
            raise CallError(Failure.NO_CONTENT, f"{name} answered without content")
        return text

    def _charge(self, cost: Cost, usage: Any, messages: Sequence[Message], text: str) -> None:
        """Add tokens and dollars; where the provider reports no usage, tokens are estimated from the characters."""
        usage = usage if isinstance(usage, dict) else {}
        asked = sum(len(message["content"]) for message in messages)
        prompt = _count(usage.get("prompt_tokens"), asked)
        sampled = _count(usage.get("completion_tokens"), len(text))
        details = usage.get("prompt_tokens_details")
        cached = min(prompt, _count(details.get("cached_tokens"), 0) if isinstance(details, dict) else 0)
        cost.prompt_tokens += prompt - cached
        cost.cached_tokens += cached
        cost.sampled_tokens += sampled
        cost.dollars += (prompt * self.model.prompt_cost + sampled * self.model.completion_cost) / 1e6


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


def _count(reported: Any, characters: int) -> int:
    if isinstance(reported, int) and reported >= 0:
        return reported
    return -(-characters // CHARACTERS_PER_TOKEN)
