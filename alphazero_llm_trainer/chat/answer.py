"""What a chat endpoint said, or why it said nothing: bodies and statuses as text, usage and
failures. Pure.

A body comes from a network: whatever it holds becomes a `ChatAnswer` or a `CallError`.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import TeacherError
from ..grading.answers import without_thinking
from ..types import Cost
from .reply import BrokenOff, Sampled, UsageBody, as_mapping, json_of

BUDGET_SPENT = "budget"  # the kind of a call that was not sent: `teachers.budget` is spent
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
    sample = Sampled(Cost())
    try:
        event = json_of(bytearray(body), False)
        part = sample.read(event)
    except (BrokenOff, RecursionError) as error:
        # OpenRouter reports a provider's failure inside a 200 response.
        if code := getattr(error, "code", None):
            raise status_error(code, name) from None
        sample.odd = 1
    if sample.odd:
        raise CallError("unreadable", f"{name} answered with no chat completion")
    text, why = without_thinking(part.text), None
    if part.finish == "content_filter":
        why = CallError("refusal", f"{name} refused to answer")
    elif not text.strip() and part.finish == "length":
        why = CallError("length", f"{name} only thought: raise teachers.max_tokens")
    elif not text.strip():
        why = CallError("empty", f"{name} answered without content")
    return ChatAnswer(text, UsageBody.read(as_mapping(event).get("usage")), why)


def status_error(status: int, name: str) -> CallError:
    """An HTTP status as an error, without the provider's words: they may repeat a part of the
    key.
    """
    other = "check base_url, the model's id and its context"
    if status >= 500:
        other = "try again later"
    message = f"{name} answered with HTTP {status}: {_HELP.get(status, other)}"
    return CallError(f"http {status}", message)
