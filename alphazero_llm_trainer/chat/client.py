"""Chat models behind an OpenAI-compatible endpoint, by the openai package: it connects, retries and
heeds `Retry-After`. What is added here: a bound on a call's time, the budget, and rest for a model
that fails and fails."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from ..config.sections import TeacherModel, TeachersConfig
from ..types import Cost, JsonObject
from .answer import RESTS, CallError, ChatAnswer, read_answer, status_error
from .budget import Ledgers
from .reply import UsageBody
from .server import Asking, ServerConnection, price_tokens

if TYPE_CHECKING:
    import openai

log = logging.getLogger(__name__)

TEACHER_CALLS = 8  # under way at once
TEACHER_RETRIES = 3  # after time-outs, cut connections, 408, 409, 429 and 5xx
MOST_FAILURES = 10  # calls in a row without an answer, after which a model rests

Message = dict[str, str]


class Endpoint:
    """Where a tier's models answer, with its key, its concurrency and the ledgers they share."""

    def __init__(self, base_url: str, key: str | None, settings: TeachersConfig) -> None:
        self.base_url, self.settings = base_url, settings
        self.ledgers = Ledgers(settings.budget)
        timeout = settings.timeout_seconds
        self.connection = ServerConnection(
            base_url, key, TEACHER_RETRIES, TEACHER_CALLS, timeout=timeout
        )
        self._sessions = 0

    @asynccontextmanager
    async def session(self) -> AsyncIterator[None]:
        """The connections are closed when the last of those inside leaves."""
        self._sessions += 1
        try:
            yield
        finally:
            self._sessions -= 1
            if not self._sessions:
                await self.connection.close()


class ChatClient:
    """One model at an endpoint; `name` is that of its ledger. After MOST_FAILURES calls in a row
    without an answer it isn't called again, nor where the endpoint has no such model.
    """

    def __init__(self, endpoint: Endpoint, model: TeacherModel, name: str | None = None) -> None:
        self.endpoint, self.model, self.ledgers = endpoint, model, endpoint.ledgers
        self.name = model.model if name is None else name
        self.asking = Asking()
        self._failures = 0  # in a row
        self._closed: CallError | None = None  # why it isn't asked again

    async def complete(
        self,
        messages: Sequence[Message],
        temperature: float = 1.0,
        seed: int = 0,
        **more: Any,
    ) -> str:
        """The model's answer to `messages`, without its thinking.

        `more` are other parameters of the request.

        Raises:
            CallError: why there is none, after the retries.
        """
        request: JsonObject = {
            "model": self.model.model,
            "messages": list(messages),
            "max_tokens": self.endpoint.settings.max_tokens,
            "temperature": temperature,
            "seed": seed % 2**31,  # some providers take 32 bits with a sign
            **more,
        }
        sdk, gate = self.endpoint.connection.open()
        async with gate:
            if self._closed is not None:
                raise self._closed
            self.ledgers.begin(self.name)
            cost, start = Cost(calls=1), time.perf_counter()
            try:
                answer = await self._send(sdk, request)
                self._charge(cost, answer.usage)
                if answer.failure is not None:
                    raise answer.failure
                self._failures = 0
            except CallError as error:
                self._fail(error)
                raise
            finally:
                cost.seconds = time.perf_counter() - start
                self.ledgers.add(self.name, cost)
        return answer.text

    def _fail(self, error: CallError) -> None:
        """Count a call without an answer."""
        self._failures += 1
        missing = error.kind == "http 404"
        if (missing or self._failures == MOST_FAILURES) and self._closed is None:
            failed = "is missing" if missing else f"failed {MOST_FAILURES} times in a row"
            rests = f"{self.name} {failed} and rests for the run: {error}"
            log.warning("%s", rests)
            self._closed = CallError(RESTS, rests)

    async def _send(self, sdk: openai.AsyncOpenAI, request: JsonObject) -> ChatAnswer:
        """The response to a request."""
        import openai

        name, timeout = self.model.model, self.endpoint.settings.timeout_seconds
        try:
            # The SDK's time-out is for each read: a server that drips bytes would never end.
            async with asyncio.timeout(timeout):
                raw = await self.asking(
                    lambda kept: sdk.chat.completions.with_raw_response.create(**kept), request
                )
        except (TimeoutError, openai.APITimeoutError) as error:
            why = f"{name} didn't answer within {timeout:g} s: raise teachers.timeout_seconds"
            raise CallError("timeout", why) from error
        except openai.APIConnectionError as error:
            url = self.endpoint.base_url
            why = f"{name} can't be reached at {url}: check the URL and the network"
            raise CallError("connection", why) from error
        except openai.APIStatusError as error:
            # Not `from error`: the SDK's error repeats the provider's page.
            raise status_error(error.status_code, name) from None
        return read_answer(raw.http_response.content, name)

    def _charge(self, cost: Cost, usage: UsageBody | None) -> None:
        """Add an answer's tokens and dollars, at the provider's price or the model's own.

        Raises CallError for an answer without usage where the budget can't be kept without it; such
        a model isn't asked again.
        """
        model, limits = self.model, self.ledgers.limits
        priced = limits.dollars is not None and model.prompt_cost + model.completion_cost > 0
        if usage is not None:
            usage.count(cost)
            cost.dollars = price_tokens(cost, model) if usage.cost is None else usage.cost
        elif priced or limits.tokens is not None:
            self._closed = CallError(
                "no usage",
                f"{self.name} reports no usage, so teachers.budget.dollars and tokens can't be"
                " kept: set both to null and limit teachers.budget.calls",
            )
            raise self._closed
