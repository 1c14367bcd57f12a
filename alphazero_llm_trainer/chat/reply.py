"""What servers send as a reply: events, text and thinking, tokens, usage, and how it ended. Pure.

Servers write the same in many ways, and a reply comes from a network: what has a meaning is read,
what has none is counted as `odd` and skipped.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BaseModel, Field, ValidationError

from ..types import Cost, JsonObject

BOM = b"\xef\xbb\xbf"  # of UTF-8, that a reply may begin with
DONE = b"[DONE]"  # what ends a stream; no JSON is bytes
EVENT_BYTES = 1 << 24  # of an event
# What servers call the end of a reply, in small letters: every other name is "stop".
ENDS = {
    "length": "length max_tokens max_new_tokens max_output_tokens model_length error_limit "
    "model_context_window_exceeded",
    "content_filter": "content_filter safety recitation prohibited_content blocklist spii refusal "
    "sensitive error_toxic",
    "tool_calls": "tool_calls tool_call tool_use function_call malformed_function_call",
    "failed": "error abort timeout network_error insufficient_system_resource",
}
ENDED = {name: end for end, names in ENDS.items() for name in names.split()}
THOUGHTS = ("reasoning_content", "reasoning", "thinking", "reasoning_details")
KEPT_APART = re.compile("think|thought|reason", re.IGNORECASE)  # the kind of a part of a message
# The kind of a failure that is the request's, and passes at no other time.
REQUESTS = re.compile(r"context|filter|policy|invalid|bad_?request|40[04]|413|422", re.IGNORECASE)

Token = tuple[bytes, float]  # its text in UTF-8, and its log-probability (nats)
ReplyCount = Annotated[int, Field(ge=0, le=10**9)]


class DetailsBody(BaseModel):
    cached_tokens: ReplyCount | None = None


class UsageBody(BaseModel):
    """OpenAI's usage: its prompt tokens include the cached ones, and OpenRouter adds what it
    charges.
    """

    prompt_tokens: ReplyCount
    completion_tokens: ReplyCount
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


class BrokenOff(Exception):
    """A reply that failed, with the `code` of its failure, or ended before its end; `final` where
    the request is at fault, which no other attempt mends.
    """

    final = False
    code: int | None = None


@dataclass(slots=True)
class Sampled:
    """What came of a sample so far: characters, those of a hidden thought too, whether text was
    `shown`, whether tokens were told and whether usage counted them, why it ended, whether the
    stream was `done`, and how many events had no meaning (`odd`).

    `instead` is what came in place of an answer, as an end: a call of a tool, or a refusal.
    """

    cost: Cost
    length: int = 0
    shown: bool = False
    told: bool = False
    counted: bool = False
    finish: str | None = None
    done: bool = False
    odd: int = 0
    instead: str | None = None

    def read(self, event: Any) -> Part:
        """The next piece, or a whole reply where that came. Raises BrokenOff for a failure."""
        body = as_mapping(event)
        choice = next(filter(None, as_objects(body.get("choices"))), {})
        raise_failure(body, choice)
        usage = UsageBody.read(body.get("usage"))
        message = as_mapping(choice.get("delta"))
        if not message and not self.length:
            message = as_mapping(choice.get("message"))
            self.done = bool(message)
        content = message.get("content")
        text, hidden = read_text(content)
        thoughts = (read_text(message[name]) for name in THOUGHTS if message.get(name))
        hidden += "".join(next(thoughts, ("", "")))
        google = as_mapping(as_mapping(message.get("extra_content")).get("google"))
        if google.get("thought"):
            text, hidden = "", hidden + text
        if message.get("tool_calls") or message.get("function_call"):
            self.instead = "tool_calls"
        if message.get("refusal"):
            self.instead = "content_filter"
        said_nothing = bool(content) and not text + hidden
        self.odd += said_nothing or (usage is None and not choice)
        listed = as_objects(as_mapping(choice.get("logprobs")).get("content"))
        tokens = [*map(read_token, listed)]
        self.length += len(text) + len(hidden)
        self.shown = self.shown or bool(text)
        self.cost.sampled_tokens += max(len(tokens), bool(text) + bool(hidden))
        if usage is not None:
            usage.count(self.cost)
            self.counted = True
        finish = finish_of(choice.get("finish_reason"))
        if finish == "stop":
            finish = self.instead or finish
        self.finish = finish or self.finish
        # Tokens of a thought that the server keeps apart are none of the text's.
        known = () if hidden or None in tokens else tuple(filter(None, tokens))
        self.told = self.told or bool(known)
        return Part(text, known, hidden, finish)


def as_mapping(value: Any) -> JsonObject:
    """A JSON object, empty where it is none."""
    return value if isinstance(value, dict) else {}


def as_objects(value: Any) -> list[JsonObject]:
    """The items of a JSON list, {} for each that is no object; [] where `value` is no list."""
    return [*map(as_mapping, value)] if isinstance(value, list) else []


def read_text(content: Any) -> tuple[str, str]:
    """The text of a message's content, and its thinking: of a text, a part of a kind, or parts."""
    if isinstance(content, str):
        return content, ""
    if isinstance(content, list):
        parts = [read_text(part) for part in content]
        return "".join(text for text, _ in parts), "".join(hidden for _, hidden in parts)
    part = as_mapping(content)
    inner = ("text", "content", "summary", *THOUGHTS)
    key = next((key for key in inner if part.get(key)), None)
    if key is None:
        return "", ""
    text, hidden = read_text(part[key])
    apart = KEPT_APART.search(f"{key} {part.get('type')}")
    return ("", text + hidden) if apart else (text, hidden)


def read_token(token: JsonObject) -> Token | None:
    """A token's text and log-probability, None where it is impossible or not told."""
    text, raw = token.get("token"), token.get("bytes")
    try:
        value = float(token["logprob"])
        told = bytes(raw) if isinstance(raw, list) else str(text).encode(errors="replace")
    except (KeyError, TypeError, ValueError, OverflowError):
        return None
    return (told, value) if value <= 0 and math.isfinite(value) else None


def finish_of(reason: Any) -> str | None:
    """How a reply ended: a key of ENDS, "stop" for every other reason, or None where none is told.
    Servers name ends as they like.
    """
    name = str(as_mapping(reason).get("type", reason) or "null").lower().partition(":")[0]
    return None if name == "null" else ENDED.get(name, "stop")


def raise_failure(body: JsonObject, choice: JsonObject) -> None:
    """Raise BrokenOff for a failure that is told in a reply."""
    failure = body.get("error") or choice.get("error")
    if not failure and "error" in (body.get("object"), body.get("type")):
        failure = body
    if not failure:
        return
    about = as_mapping(failure)
    broken = BrokenOff(clean_words(str(about.get("message") or failure)))
    code = about.get("code")
    broken.final = REQUESTS.search(f"{code} {about.get('type')}") is not None
    broken.code = code if isinstance(code, int) else 500
    raise broken


def clean_words(words: str) -> str:
    """A server's words on one short line, without what a terminal would obey."""
    return "".join(letter for letter in " ".join(words.split()) if letter.isprintable())[:200]


async def read_events(pieces: AsyncIterator[bytes]) -> AsyncIterator[Any]:
    """What server-sent events say, as JSON: DONE at their end, None for one that says nothing, and
    a failure as `{"error": ...}`. JSON that came in their place counts as one event.

    Raises BrokenOff where a JSON text breaks off.
    """
    held, whole, failing = bytearray(), False, False
    async for line in reply_lines(pieces):
        if len(held) > EVENT_BYTES:
            raise BrokenOff("an event doesn't end")
        name, _, value = line.partition(b":")
        value = value.strip()
        if whole or (not held and line.startswith((b"{", b"["))):
            whole = True
            held += line
        elif not line:  # an event's end
            if held:
                yield json_of(held, failing)
            held.clear()
            failing = False
        elif name == b"event":
            failing = value == b"error"
        elif name in (b"data", b"error"):
            failing = failing or name == b"error"
            begun = bool(held)
            held += value
            if begun:
                continue  # an event of several lines
            try:
                event = json_of(held, failing)
            except BrokenOff:
                if value != DONE and value.startswith((b"{", b"[")):
                    continue  # more lines of it may come
                event = DONE if value == DONE else None
            held.clear()
            yield event
    if held:
        yield json_of(held, failing)


def json_of(text: bytearray, failing: bool) -> Any:
    """An event's JSON. Raises BrokenOff where it is none."""
    try:
        event = json.loads(text)
    except (ValueError, RecursionError) as error:
        if failing:
            return {"error": text.decode(errors="replace")}
        raise BrokenOff("an event is no JSON") from error
    return {"error": event} if failing and not as_mapping(event).get("error") else event


async def reply_lines(pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The lines of a reply, without their ends. Raises BrokenOff for one that doesn't end."""
    rest = b""
    async for piece in pieces:
        *lines, rest = (rest + piece).split(b"\n")
        if len(rest) > EVENT_BYTES:
            raise BrokenOff("an event doesn't end")
        for line in lines:
            yield line.removeprefix(BOM).strip()
    yield rest.strip()
