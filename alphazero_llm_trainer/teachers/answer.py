"""What a chat endpoint said, or why it said nothing: bodies and statuses as text, usage and failures. Pure.

A body comes from a network: whatever it holds becomes a `ChatAnswer` or a `CallError`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import AliasPath, BaseModel, Field, ValidationError

from ..answers import without_thinking
from ..errors import TeacherError

MOST_TOKENS = 10**8  # a usage beyond this is a provider's mistake, and is estimated instead
BUDGET = "budget"  # the kind of a call that was not sent: it could have gone over `teachers.budget`
UNUSABLE = "unusable"  # an answer came, but no step or verdict could be read out of it

_HELP = {
    401: "check the key",
    402: "check the key's credit",
    403: "check the key and its rights; questions that are moderated away are refused so too",
    404: "check base_url, or name another model",
    429: "wait, or name another tier",
}


class CallError(TeacherError):
    """A call that failed for good; `kind` says why, it is a key of `TeacherLedger.failures`.

    `charged` tells that the provider may have charged for an answer that never came whole.
    """

    def __init__(self, kind: str, message: str, *, charged: bool = False) -> None:
        super().__init__(message)
        self.kind, self.charged = kind, charged


Tokens = Annotated[int, Field(strict=True, ge=0, le=MOST_TOKENS)]


class Usage(BaseModel):
    """What a provider reports: tokens, of them prompt tokens out of its cache, and its price where it names one."""

    prompt: Tokens = Field(alias="prompt_tokens")
    sampled: Tokens = Field(alias="completion_tokens")
    cached: Tokens | None = Field(None, validation_alias=AliasPath("prompt_tokens_details", "cached_tokens"))
    dollars: Annotated[float, Field(ge=0, lt=MOST_TOKENS)] | None = Field(None, alias="cost")  # OpenRouter's


class Message(BaseModel):
    content: str | None = None
    reasoning_content: str | None = None  # DeepSeek's and vLLM's thinking
    reasoning: str | None = None  # OpenRouter's
    refusal: str | None = None


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
    failure: CallError | None = None


def read_answer(body: bytes, name: str) -> ChatAnswer:
    """The body of a 200 response.

    Raises:
        CallError: it is no chat completion, or an error of the provider inside a 200 response.
    """
    try:
        answer = Body.model_validate_json(body)
    except ValidationError:
        raise CallError(
            "unreadable", f"{name} answered with something that is no chat completion", charged=True
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
        why = CallError("refusal", f"{name} refused to answer")
    elif not text.strip() and choice.finish_reason == "length":
        why = CallError("length", f"{name} spent all of its tokens on thinking: raise teachers.max_tokens")
    elif not text.strip():
        why = CallError("empty", f"{name} answered without content")
    try:
        usage = Usage.model_validate(answer.usage)
    except ValidationError:
        usage = None
    return ChatAnswer(text, len(content) + len(thought), usage, why)


def status_error(status: int, name: str) -> CallError:
    """An HTTP status as an error. A provider's own words are left out: they may repeat a part of the key."""
    other = "try again later" if status >= 500 else "check base_url, the model's id and its context"
    return CallError(f"http {status}", f"{name} answered with HTTP {status}: {_HELP.get(status, other)}")
