"""What a chat endpoint said, or why it said nothing: bodies and statuses as text, usage and failures. Pure.

A body comes from a network: whatever it holds becomes a `ChatAnswer` or a `CallError`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any

from pydantic import AliasPath, BaseModel, Field, ValidationError, ValidatorFunctionWrapHandler, WrapValidator

from ..errors import TeacherError

MOST_TOKENS = 10**8  # a usage beyond this is a provider's mistake, and is estimated instead

_THINKING = re.compile(r"<think(?:ing)?>.*?(?:</think(?:ing)?>|\Z)", re.DOTALL | re.IGNORECASE)
# Some templates open the thinking in the prompt, so that only its end is in the answer.
_OPEN_THINKING = re.compile(r"\A.*</think(?:ing)?>", re.DOTALL | re.IGNORECASE)


class Failure(StrEnum):
    """Why a call failed; the keys of `TeacherLedger.failures`."""

    TIMEOUT = "timeout"
    CONNECTION = "connection"
    RATE_LIMIT = "rate_limit"
    SERVER = "server"
    REFUSED_KEY = "refused_key"
    NOT_FOUND = "not_found"
    BAD_REQUEST = "bad_request"
    UNREADABLE = "unreadable"  # no JSON object, or too many bytes
    EMPTY = "empty"
    LENGTH = "length"  # thinking took all of max_tokens
    REFUSAL = "refusal"
    UNUSABLE = "unusable"  # an answer came, but no step or verdict could be read out of it
    BUDGET = "budget"  # not sent: it could have gone over `teachers.budget`


PERMANENT = (Failure.REFUSED_KEY, Failure.NOT_FOUND)  # no later call will fare better


class CallError(TeacherError):
    """A call that failed for good; `kind` says why.

    `charged` tells that the provider may have charged for an answer that never came whole; `sent` is False where nothing
    was asked at all, so that another model may be.
    """

    def __init__(self, kind: Failure, message: str, *, charged: bool = False, sent: bool = True) -> None:
        super().__init__(message)
        self.kind, self.charged, self.sent = kind, charged, sent


def or_none(given: Any, read: ValidatorFunctionWrapHandler) -> Any:
    """What can be read, else None: one odd field of a provider's costs nobody the answer."""
    try:
        return read(given)
    except ValidationError:
        return None


Tokens = Annotated[int, Field(strict=True, ge=0, le=MOST_TOKENS)]
Price = Annotated[float, Field(ge=0, lt=MOST_TOKENS)]
Lenient = WrapValidator(or_none)
CACHED = AliasPath("prompt_tokens_details", "cached_tokens")
Text = Annotated[str | None, Lenient]


class Usage(BaseModel):
    """What a provider reports: tokens, of them prompt tokens out of its cache, and its price where it names one."""

    prompt: Tokens = Field(alias="prompt_tokens")
    sampled: Tokens = Field(alias="completion_tokens")
    cached: Annotated[Tokens | None, Lenient] = Field(
        None, validation_alias=AliasPath("prompt_tokens_details", "cached_tokens")
    )
    dollars: Annotated[Price | None, Lenient] = Field(None, alias="cost")  # OpenRouter's


class Message(BaseModel):
    content: Text = None
    reasoning_content: Text = None  # DeepSeek's and vLLM's thinking
    reasoning: Text = None  # OpenRouter's
    refusal: Text = None


class Choice(BaseModel):
    message: Message | None = None
    finish_reason: str | None = None
    error: Any = None


class Body(BaseModel):
    """A chat completion. Of `usage` nothing is expected: where it can't be read, the answer still can."""

    choices: list[Choice] | None = None
    error: Any = None
    usage: Any = None


@dataclass(frozen=True, slots=True)
class ChatAnswer:
    """A chat completion: `text` is its content without thinking, `characters` counts all that was written, thinking
    included; `failure` tells why `text` can't be used, or is None."""

    text: str
    characters: int
    usage: Usage | None
    failure: Failure | None = None


def without_thinking(text: str) -> str:
    """`text` without what stands between `<think>` tags; an unclosed one takes the rest."""
    return _OPEN_THINKING.sub("", _THINKING.sub("", text))


def read_answer(body: bytes, name: str) -> ChatAnswer:
    """The body of a 200 response.

    Raises:
        CallError: it is no chat completion, or an error of the provider inside a 200 response.
    """
    try:
        answer = Body.model_validate_json(body)
    except ValidationError:
        raise CallError(
            Failure.UNREADABLE, f"{name} answered with something that is no chat completion", charged=True
        ) from None
    choice = answer.choices[0] if answer.choices else Choice()
    # OpenRouter reports a provider's failure inside a 200 response.
    failure = answer.error or choice.error
    if failure:
        code = failure.get("code") if isinstance(failure, dict) else None
        error = status_error(code if isinstance(code, int) else 500, name)
        error.charged = choice.error is not None or answer.usage is not None  # in the middle of an answer
        raise error
    message = choice.message or Message()
    content, thought = message.content or "", message.reasoning_content or message.reasoning or ""
    text, why = without_thinking(content), None
    if message.refusal or choice.finish_reason == "content_filter":
        why = Failure.REFUSAL
    elif not text.strip():
        why = Failure.LENGTH if choice.finish_reason == "length" else Failure.EMPTY
    try:
        usage = Usage.model_validate(answer.usage)
    except ValidationError:
        usage = None
    return ChatAnswer(text, len(content) + len(thought), usage, why)


def failed(why: Failure, name: str) -> CallError:
    """The error of a `ChatAnswer` that has a failure."""
    said = {
        Failure.REFUSAL: "refused to answer",
        Failure.LENGTH: "spent all of its tokens on thinking: raise teachers.max_tokens",
    }
    return CallError(why, f"{name} {said.get(why, 'answered without content')}")


def status_error(status: int, name: str, flagged: bool = False) -> CallError:
    """An HTTP status as an error. A provider's own words are left out: they may repeat a part of the key."""
    if flagged:
        return CallError(Failure.REFUSAL, f"{name} refused to answer: its moderation flagged the question")
    if status == 429:
        return CallError(Failure.RATE_LIMIT, f"{name} limits the rate (429): lower teachers.max_concurrent")
    if status in (401, 402, 403):
        return CallError(
            Failure.REFUSED_KEY, f"{name} refused the key (HTTP {status}): check the key, its rights and its credit"
        )
    if status == 404:
        return CallError(Failure.NOT_FOUND, f"{name} doesn't exist there (404): check base_url, or name another model")
    if 300 <= status < 400:
        return CallError(Failure.BAD_REQUEST, f"{name} is elsewhere (HTTP {status}): set base_url to where it is")
    if status >= 500 or status in (408, 409):
        return CallError(Failure.SERVER, f"{name} failed with HTTP {status}: try again later")
    return CallError(Failure.BAD_REQUEST, f"{name} refused the request (HTTP {status}): check its id and context")
