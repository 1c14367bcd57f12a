"""Requests as OpenAI's clients write them, and what this server makes of them: prompts, a method and bounds."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ..config.sections import ServeConfig, Temperature
from ..errors import RequestError
from ..files import parse_json
from ..policy.chat import Chat, ChatMessage
from .failures import ApiError, not_valid, shown, too_long
from .names import MCTS, SAMPLE, Method, Names

# Parameters that are not offered, with the values that ask for nothing. Any other value is refused.
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "response_format": ({"type": "text"},),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "repetition_penalty": (1,),
    "logit_bias": ({},),
    "top_p": (1,),
    "top_k": (0, -1),
    "min_p": (0,),
    "modalities": (["text"],),
    "audio": (),
    "prediction": (),
    "web_search_options": (),
    "echo": (False,),
    "suffix": ("",),
    "best_of": (1,),
}
# Hints that change nothing here.
IGNORED = {
    "user", "metadata", "store", "service_tier", "parallel_tool_calls", "safety_identifier", "prompt_cache_key",
    "prompt_cache_retention", "reasoning_effort", "verbosity",
}  # fmt: skip
CHARACTERS = 32  # of a token, at most, as far as a first look at a prompt's length goes
SEED_BITS = 63  # the engine's seeds have no sign

Count = Annotated[int, Field(ge=1)]
StopText = Annotated[str, Field(min_length=1, max_length=200)]


class StreamOptions(BaseModel):
    model_config = ConfigDict(extra="ignore")

    include_usage: bool | None = None


class Body(BaseModel):
    """What both kinds of request have. The last five are this server's own (`extra_body` of the openai client)."""

    model_config = ConfigDict(extra="forbid", strict=True)

    model: str
    n: Count | None = None
    temperature: Annotated[Temperature, Field(le=2)] | None = None
    max_tokens: Count | None = None
    seed: int | None = None
    stop: StopText | Annotated[list[StopText], Field(max_length=4)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    method: str | None = None
    budget_tokens: Count | None = None
    deadline_ms: Count | None = None
    simulations: Count | None = None
    return_tree: bool | None = None


class ChatBody(Body):
    """POST /v1/chat/completions"""

    messages: Annotated[list[ChatMessage], Field(min_length=1)]
    max_completion_tokens: Count | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None


class CompletionBody(Body):
    """POST /v1/completions"""

    prompt: str | list[str] | list[int] | list[list[int]]
    logprobs: Annotated[int, Field(ge=0, le=5)] | None = None


AnyBody = TypeVar("AnyBody", ChatBody, CompletionBody)


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt's tokens and the question that a search is told (a PRM or a value reads the tokens)."""

    token_ids: tuple[int, ...]
    question: str


@dataclass(frozen=True, slots=True)
class Wanted:
    """A request within this server's bounds. None leaves a number to the method.

    `logprobs` counts the alternatives a token is told with (0: none but itself), None tells none. `deadline` is seconds
    from the request's arrival.
    """

    chat: bool
    model: str
    method: Method
    prompts: tuple[Prompt, ...]
    n: int
    temperature: float | None
    max_tokens: int | None
    seed: int
    stops: tuple[str, ...]
    logprobs: int | None
    budget_tokens: int | None
    simulations: int | None
    deadline: float | None
    stream: bool
    include_usage: bool
    return_tree: bool


def chat_request(raw: bytes, chat: Chat, context: int, names: Names, limits: ServeConfig) -> Wanted:
    """A chat request. Raises ApiError for what is wrong with it or beyond the bounds."""
    body = parsed(ChatBody, raw)
    messages = [message.wire() for message in body.messages]
    users = [message["content"] for message in messages if message["role"] == "user"]
    if not users:
        raise ApiError("messages has no user message: ask something", param="messages", code="invalid_value")
    if messages[0]["role"] != "system":
        messages = [*chat.opening.messages(users[-1]), *messages]
    check_length(sum(len(message["content"]) for message in messages), context, "messages")
    try:
        ids = chat.chat_ids(messages)
    except RequestError as error:
        raise ApiError(str(error), param="messages", code="invalid_value") from error
    if body.top_logprobs and not body.logprobs:
        raise ApiError("top_logprobs needs logprobs: set it to true", param="top_logprobs", code="invalid_value")
    logprobs = (body.top_logprobs or 0) if body.logprobs else None
    longest = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
    return bounded(body, True, (Prompt(ids, users[-1]),), longest, logprobs, context, names, limits)


def completion_request(raw: bytes, chat: Chat, context: int, names: Names, limits: ServeConfig) -> Wanted:
    """A completion request: each prompt is continued as it stands, without a chat template. Raises ApiError as above."""
    body = parsed(CompletionBody, raw)
    given: Any = body.prompt
    if isinstance(given, str) or (given and isinstance(given[0], int)):
        given = [given]
    check_length(sum(len(one) for one in given if isinstance(one, str)), context * limits.max_n, "prompt")
    vocabulary = len(chat.tokenizer)
    prompts = []
    for one in given:
        if isinstance(one, str):
            prompts.append(Prompt(tuple(chat.encode(one)), one))
            continue
        if any(not 0 <= token < vocabulary for token in one):
            raise ApiError(
                f"prompt has a token that is not in 0..{vocabulary - 1}: use this student's tokens",
                param="prompt",
                code="invalid_value",
            )
        prompts.append(Prompt(tuple(one), chat.decode(one)))
    if not 1 <= len(prompts) <= limits.max_n:
        raise ApiError(
            f"prompt has {len(prompts)} prompts: send 1 to {limits.max_n}", param="prompt", code="invalid_value"
        )
    if any(not prompt.token_ids for prompt in prompts):
        raise ApiError("prompt is empty: give at least one token", param="prompt", code="invalid_value")
    return bounded(body, False, tuple(prompts), body.max_tokens, body.logprobs, context, names, limits)


def check_length(characters: int, context: int, param: str) -> None:
    """Refuse a text that is far too long before its tokens are counted, which other requests would wait for."""
    if characters > context * CHARACTERS:
        raise ApiError(
            f"{param} has {characters} characters and the context is {context} tokens: shorten it",
            param=param,
            code="context_length_exceeded",
        )


def parsed(kind: type[AnyBody], raw: bytes) -> AnyBody:
    """The body of a request, without the parameters that ask for nothing. Raises ApiError."""
    try:
        fields = parse_json(raw)
        json.dumps(fields, ensure_ascii=False).encode()  # half a surrogate pair is no text
    except (ValueError, RecursionError) as error:
        raise ApiError("the body is not JSON: send a JSON object", code="invalid_json") from error
    if not isinstance(fields, dict):
        raise ApiError("the body is not a JSON object: send one", code="invalid_json")
    for name in [name for name in fields if name in NEUTRAL or name in IGNORED]:
        value = fields.pop(name)
        if name in NEUTRAL and value is not None and not any(asks_nothing(value, one) for one in NEUTRAL[name]):
            raise ApiError(f"{name} is not offered here: leave it out", param=name, code="unsupported_parameter")
    try:
        return kind.model_validate(fields)
    except ValidationError as error:
        raise not_valid(error) from error


def asks_nothing(value: Any, neutral: Any) -> bool:
    return value == neutral and isinstance(value, bool) == isinstance(neutral, bool)


def bounded(
    body: ChatBody | CompletionBody,
    chat: bool,
    prompts: tuple[Prompt, ...],
    max_tokens: int | None,
    logprobs: int | None,
    context: int,
    names: Names,
    limits: ServeConfig,
) -> Wanted:
    """The request, after a check of every number against the bounds."""
    method = names.method(body.model, body.method)
    for prompt in prompts:
        if len(prompt.token_ids) >= context:
            raise too_long(len(prompt.token_ids), context, "messages" if chat else "prompt")
    deadline_ms = None if limits.deadline_seconds is None else round(1000 * limits.deadline_seconds)
    deadline_ms = deadline_ms if body.deadline_ms is None else body.deadline_ms
    n = 1 if body.n is None else body.n
    if n * len(prompts) > limits.max_n:
        raise beyond("n", n, limits.max_n // len(prompts))
    bounds: Mapping[str, tuple[int | None, int]] = {
        "max_tokens": (max_tokens, limits.max_tokens),
        "budget_tokens": (body.budget_tokens, limits.max_budget_tokens),
        "simulations": (body.simulations, limits.max_simulations),
        "deadline_ms": (deadline_ms, round(1000 * limits.max_deadline_seconds)),
    }
    for name, (given, most) in bounds.items():
        if given is not None and given > most:
            raise beyond(name, given, most)
    for name in ("budget_tokens", "simulations", "return_tree"):
        if getattr(body, name) and method.name == SAMPLE:
            raise ApiError(
                f"{name} is for a search and {shown(body.model)} doesn't search: use student@mcts, or set method",
                param=name,
                code="invalid_value",
            )
    if body.simulations and method.name != MCTS:
        raise ApiError(
            f"simulations is for {MCTS} and the method is {method}: leave it out",
            param="simulations",
            code="invalid_value",
        )
    if logprobs and method.name != SAMPLE:
        raise ApiError(
            "alternatives to a token are not kept by a search: ask for logprobs without them",
            param="top_logprobs" if chat else "logprobs",
            code="unsupported_parameter",
        )
    stops = (body.stop,) if isinstance(body.stop, str) else tuple(body.stop or ())
    options = body.stream_options
    return Wanted(
        chat=chat,
        model=body.model,
        method=method,
        prompts=prompts,
        n=n,
        temperature=body.temperature,
        max_tokens=max_tokens,
        seed=secrets.randbits(31) if body.seed is None else body.seed % (1 << SEED_BITS),
        stops=stops,
        logprobs=logprobs,
        budget_tokens=body.budget_tokens,
        simulations=body.simulations,
        deadline=None if deadline_ms is None else deadline_ms / 1000,
        stream=bool(body.stream),
        include_usage=bool(options is not None and options.include_usage),
        return_tree=bool(body.return_tree),
    )


def beyond(name: str, given: int, most: int) -> ApiError:
    return ApiError(f"{name} is {shown(given)}: at most {most} here", param=name, code="invalid_value")
