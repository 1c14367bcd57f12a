"""Requests as OpenAI's clients write them, and what this server makes of them: a prompt, a method and bounds."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import from_json

from ..config.sections import ServeConfig, Temperature
from ..errors import ConfigError, RequestError
from ..policy.chat import Chat, ChatMessage
from .failures import ApiError, not_valid, shown, wrong

# Parameters that are not offered, with the value that asks for nothing. Any other value is refused.
NEUTRAL: dict[str, Any] = {
    "tools": [], "tool_choice": "none", "response_format": {"type": "text"}, "presence_penalty": 0,
    "frequency_penalty": 0, "repetition_penalty": 1, "logit_bias": {}, "top_p": 1, "top_k": -1, "min_p": 0,
}  # fmt: skip
# Hints that change nothing here.
IGNORED = {
    "user", "metadata", "store", "service_tier", "parallel_tool_calls", "safety_identifier", "prompt_cache_key",
    "reasoning_effort", "verbosity",
}  # fmt: skip
SAMPLE, MCTS = "sample", "mcts"
COUNTED = {"best-of": "best-of-n", "majority": "majority", "weighted-majority": "weighted-majority"}
REPAIRING = ("step-rejection", "early-abort", "adaptive-best-of-n", "beam")
MOST_SAMPLES, MOST_CHOICES = 64, 16  # N of best-of-N; choices of one request
CHARACTERS = 32  # of a token, at most, as far as a first look at a prompt's length goes
SEED_BITS = 63  # the engine's seeds have no sign

Count = Annotated[int, Field(ge=1)]
StopText = Annotated[str, Field(min_length=1, max_length=200)]


@dataclass(frozen=True, slots=True)
class Method:
    """How an answer is found: `label` as clients write it, `name` in `eval.methods`, `count` its N of samples."""

    label: str
    name: str
    count: int | None = None


class Models:
    """The models of this server: `name` by the method `default`, and `name@METHOD` for every method.

    judged: there is a verifier, which most methods need. Raises ConfigError for a default that there isn't.
    """

    def __init__(self, name: str, default: str = SAMPLE, judged: bool = True) -> None:
        self.name = name
        self.counted = tuple(COUNTED) if judged else ("majority",)
        self.plain = (SAMPLE, MCTS, *REPAIRING) if judged else (SAMPLE, MCTS)
        try:
            self.default = self.parse(default)
        except ApiError as error:
            raise ConfigError(f"--search is {default!r}: choose one of {', '.join(self.methods())}") from error

    def methods(self) -> list[str]:
        """The methods, the counted ones with one number of samples."""
        return [*self.plain, *(f"{name}-8" for name in self.counted)]

    def listed(self) -> list[str]:
        """What /v1/models lists."""
        return [self.name, *(f"{self.name}@{method}" for method in self.methods())]

    def parse(self, label: str) -> Method:
        """A method by its name. Raises ApiError."""
        if label in self.plain:
            return Method(label, label)
        name, _, number = label.rpartition("-")
        numbers = [str(count) for count in range(1, MOST_SAMPLES + 1)]
        if name in self.counted and number in numbers:
            return Method(label, COUNTED[name], int(number))
        known = ", ".join([*self.plain, *(f"{name}-N with N up to {MOST_SAMPLES}" for name in self.counted)])
        raise wrong("method", f"there is no method {shown(label)}: the methods are {known}")

    def of(self, model: str, method: str | None = None) -> Method:
        """The method of a request's `model` and `method`. Raises ApiError when there is no such one, or they disagree."""
        name, at, suffix = model.partition("@")
        if name != self.name or (at and not suffix):
            message = f"there is no model {shown(model)}: use {self.name}, or one that /v1/models lists"
            raise ApiError(message, 404, param="model", code="model_not_found")
        try:
            found = self.parse(suffix) if at else self.default
        except ApiError as error:
            raise ApiError(str(error), 404, param="model", code="model_not_found") from error
        named = found if method is None else self.parse(method)
        if at and named != found:
            raise wrong("method", f"method is {shown(method)} and model is {shown(model)}: name one of them")
        return named


class StreamOptions(BaseModel):
    model_config = ConfigDict(extra="ignore")

    include_usage: bool | None = None


class ChatBody(BaseModel):
    """POST /v1/chat/completions. The last six are this server's own (`extra_body` of the openai client)."""

    model_config = ConfigDict(extra="forbid", strict=True)

    model: str
    messages: Annotated[list[ChatMessage], Field(min_length=1)]
    n: Annotated[int, Field(ge=1, le=MOST_CHOICES)] | None = None
    temperature: Annotated[Temperature, Field(le=2)] | None = None
    max_tokens: Count | None = None
    max_completion_tokens: Count | None = None
    seed: int | None = None
    stop: StopText | Annotated[list[StopText], Field(max_length=4)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    method: str | None = None
    budget_tokens: Count | None = None
    deadline_ms: Count | None = None
    simulations: Count | None = None
    return_tree: bool | None = None
    return_token_ids: bool | None = None  # as vLLM's


@dataclass(frozen=True, slots=True)
class Wanted:
    """A request within this server's bounds. None leaves a number to the method.

    `question` is what a search is told (a PRM or a value reads the prompt's tokens). `logprobs` counts the alternatives a
    token is told with (0: none but itself), None tells none. `deadline` is seconds from the request's arrival.
    """

    model: str
    method: Method
    prompt: tuple[int, ...]
    question: str
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
    return_token_ids: bool

    @property
    def searches(self) -> bool:
        return self.method.name != SAMPLE


def chat_request(raw: bytes, chat: Chat, context: int, models: Models, limits: ServeConfig) -> Wanted:
    """A chat request. Raises ApiError for what is wrong with it or beyond the bounds."""
    body = parsed(raw)
    method = models.of(body.model, body.method)
    check(body, method, limits)
    prompt, question = prompt_of([message.wire() for message in body.messages], chat, context)
    seconds = limits.deadline_seconds if body.deadline_ms is None else body.deadline_ms / 1000
    return Wanted(
        model=body.model,
        method=method,
        prompt=prompt,
        question=question,
        n=1 if body.n is None else body.n,
        temperature=body.temperature,
        max_tokens=body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens,
        seed=secrets.randbits(31) if body.seed is None else body.seed % (1 << SEED_BITS),
        stops=(body.stop,) if isinstance(body.stop, str) else tuple(body.stop or ()),
        logprobs=(body.top_logprobs or 0) if body.logprobs else None,
        budget_tokens=body.budget_tokens,
        simulations=body.simulations,
        deadline=seconds,
        stream=bool(body.stream),
        include_usage=body.stream_options is not None and bool(body.stream_options.include_usage),
        return_tree=bool(body.return_tree),
        return_token_ids=bool(body.return_token_ids),
    )


def parsed(raw: bytes) -> ChatBody:
    """The body of a request, without the parameters that ask for nothing. Raises ApiError."""
    try:
        fields = from_json(raw, allow_inf_nan=False)
    except ValueError as error:
        raise ApiError("the body is not JSON: send a JSON object", code="invalid_json") from error
    if not isinstance(fields, dict):
        raise ApiError("the body is not a JSON object: send one", code="invalid_json")
    for name in [name for name in fields if name in NEUTRAL or name in IGNORED]:
        value = fields.pop(name)
        if name in NEUTRAL and value is not None and value != NEUTRAL[name]:
            raise wrong(name, f"{name} is not offered here: leave it out", "unsupported_parameter")
    try:
        return ChatBody.model_validate(fields)
    except ValidationError as error:
        raise not_valid(error) from error


def check(body: ChatBody, method: Method, limits: ServeConfig) -> None:
    """Raise ApiError for a parameter beyond the bounds, or one that the method has no use for."""
    if body.budget_tokens is not None and body.budget_tokens > limits.max_budget_tokens:
        most = limits.max_budget_tokens
        raise wrong("budget_tokens", f"budget_tokens is {shown(body.budget_tokens)}: at most {most} here")
    for name in ("budget_tokens", "simulations", "return_tree"):
        if getattr(body, name) and method.name == SAMPLE:
            raise wrong(
                name, f"{name} is for a search and {shown(body.model)} doesn't search: use @{MCTS}, or set method"
            )
    if body.simulations and method.name != MCTS:
        raise wrong("simulations", f"simulations is for {MCTS} and the method is {method.label}: leave it out")
    if body.logprobs and method.name != SAMPLE:
        raise wrong("logprobs", "logprobs are not kept by a search: leave it out", "unsupported_parameter")
    if body.top_logprobs and not body.logprobs:
        raise wrong("top_logprobs", "top_logprobs needs logprobs: set it to true")


def prompt_of(messages: list[dict[str, str]], chat: Chat, context: int) -> tuple[tuple[int, ...], str]:
    """The tokens of a chat, opened as every chat of the student is, and its last question. Raises ApiError."""
    users = [message["content"] for message in messages if message["role"] == "user"]
    if not users:
        raise wrong("messages", "messages has no user message: ask something")
    if messages[0]["role"] != "system":
        messages = [*chat.opening.messages(users[-1]), *messages]
    # What is far too long is refused before its tokens are counted, which other requests would wait for.
    characters = sum(len(message["content"]) for message in messages)
    try:
        ids = () if characters > context * CHARACTERS else chat.chat_ids(messages)
    except RequestError as error:
        raise wrong("messages", str(error)) from error
    if not 0 < len(ids) < context:
        long = f"{len(ids)} tokens" if ids else f"{characters} characters"
        message = f"the context is {context} tokens and the prompt has {long}: shorten it"
        raise wrong("messages", message, "context_length_exceeded")
    return ids, users[-1]
