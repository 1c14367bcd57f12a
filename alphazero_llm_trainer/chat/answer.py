"""What a chat endpoint said, or why it said nothing: bodies and statuses as text, usage and
failures. Pure.

A body comes from a network: whatever it holds becomes a `ChatAnswer` or a `CallError`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ValidationError

from ..errors import TeacherError
from ..grading.answers import without_thinking
from .server import UsageBody, finish_of

BUDGET = "budget"  # the kind of a call that was not sent: `teachers.budget` is spent
RESTS = "rests"  # of a call that was not sent: the model failed too often in a row
UNUSABLE = "unusable"  # an answer came, but no step or verdict could be read out of it

_HELP = {
    401: "check the key",
    402: "check the key's credit",
    403: "check the key and its rights; questions that are moderated away are refused so too",
    404: "check base_url, or name another model",
    429: "wait, or name another tier",
}


class CallError(TeacherError):
    """A call that failed for good; `kind` says why, it is a key of `TeacherLedger.failures`."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class Message(BaseModel):
    content: str | None = None
    refusal: str | None = None


class ReplyChoice(BaseModel):
    message: Message | None = None
    finish_reason: str | None = None
    error: Any = None


class ReplyBody(BaseModel):
    """A chat completion. Of `usage` nothing is expected: the answer can be read without it."""

    choices: list[ReplyChoice] | None = None
    error: Any = None
    usage: Any = None


@dataclass(frozen=True, slots=True)
class ChatAnswer:
    """A chat completion: `text` is its content without thinking, `failure` why it can't be used."""

    text: str
    usage: UsageBody | None
    failure: CallError | None = None


def read_answer(body: bytes, name: str) -> ChatAnswer:
    """The body of a 200 response.

    Raises:
        CallError: it is no chat completion, or an error of the provider inside a 200 response.
    """
    try:
        answer = ReplyBody.model_validate_json(body)
    except ValidationError:
        raise CallError("unreadable", f"{name} answered with no chat completion") from None
    choice = answer.choices[0] if answer.choices else ReplyChoice()
    # OpenRouter reports a provider's failure inside a 200 response.
    if failure := answer.error or choice.error:
        code = failure.get("code") if isinstance(failure, dict) else None
        raise status_error(code if isinstance(code, int) else 500, name)
    message = choice.message or Message()
    text, why = without_thinking(message.content or ""), None
    if message.refusal or choice.finish_reason == "content_filter":
        why = CallError("refusal", f"{name} refused to answer")
    elif not text.strip() and finish_of(choice.finish_reason) == "length":
        why = CallError("length", f"{name} only thought: raise teachers.max_tokens")
    elif not text.strip():
        why = CallError("empty", f"{name} answered without content")
    return ChatAnswer(text, UsageBody.read(answer.usage), why)


def status_error(status: int, name: str) -> CallError:
    """An HTTP status as an error, without the provider's words: they may repeat a part of the
    key.
    """
    other = "check base_url, the model's id and its context"
    if status >= 500:
        other = "try again later"
    message = f"{name} answered with HTTP {status}: {_HELP.get(status, other)}"
    return CallError(f"http {status}", message)
