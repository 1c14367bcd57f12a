"""Requests as OpenAI's clients write them, what this server makes of them, and the errors that clients get instead."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import from_json
from starlette.responses import JSONResponse

from ..config.sections import ServeConfig, Temperature
from ..engine.admission import check_ids
from ..errors import ConfigError, RequestError
from ..mcts.seeds import derive_seed
from ..policy.chat import Chat, ChatMessage

# Parameters that are not offered, with the values that ask for nothing. Any other value is refused.
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "tools": ([],), "tool_choice": ("none", "auto"), "functions": ([],), "function_call": ("none", "auto"),
    "response_format": ({"type": "text"},), "modalities": (["text"],), "logit_bias": ({},), "stop_token_ids": ([],),
    "bad_words": ([],), "chat_template_kwargs": ({},), "presence_penalty": (0,), "frequency_penalty": (0,),
    "repetition_penalty": (1,), "length_penalty": (1,), "top_k": (-1, 0), "min_p": (0,), "min_tokens": (0,), "best_of": (1,),
    "suffix": ("",), "use_beam_search": (False,), "ignore_eos": (False,), "include_stop_str_in_output": (False,),
    "skip_special_tokens": (True,), "spaces_between_special_tokens": (True,), "add_special_tokens": (True,),
    "detokenize": (True,), "return_tokens_as_token_ids": (False,), "typical_p": (1,), "documents": ([],),
}  # fmt: skip
# Hints that change nothing here.
IGNORED = {
    "user", "metadata", "store", "service_tier", "parallel_tool_calls", "safety_identifier", "prompt_cache_key",
    "prompt_cache_retention", "reasoning_effort", "verbosity", "priority", "request_id",
}  # fmt: skip
SAMPLE, MCTS = "sample", "mcts"
COUNTED = {"best-of": "best-of-n", "majority": "majority", "weighted-majority": "weighted-majority"}
REPAIRING = ("step-rejection", "early-abort", "adaptive-best-of-n", "beam")
MOST_SAMPLES, MOST_CHOICES = 64, 16  # N of best-of-N; choices of one prompt
MOST_PROMPTS = 128  # of one request, times the choices of each
MOST_STOPS = 16
CHARACTERS = 32  # of a token, at most, as far as a first look at a prompt's length goes
SEED_BITS = 63  # the engine's seeds have no sign
MOST_LOGPROBS = 20  # alternatives to each token
MOST_COUNTED = 1 << 31  # of anything that a client names a number of
LONGEST_VALUE = 60  # characters of a wrong value or name that are shown back

Count = Annotated[int, Field(ge=1, le=MOST_COUNTED)]
# Parameters that are of several kinds, of which pydantic names the first alone.
KINDS = {
    "prompt": "give one text, one list of token ids, or a list of either",
    "stop": f"give a text of 1 to 200 characters, or a list of at most {MOST_STOPS} of them",
    "content": "give a text, or a list of parts of the type text",
}
StopText = Annotated[str, Field(min_length=1, max_length=200)]


class ApiError(Exception):
    """A request that is answered with `status` and OpenAI's shape of an error, with nothing of this machine in it; `param`
    names the parameter that is wrong."""

    def __init__(
        self,
        message: str,
        status: int = 400,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.headers = status, headers
        kind = "server_error" if status >= 500 else "rate_limit_error" if status == 429 else "invalid_request_error"
        named = param if param is None else param[:LONGEST_VALUE]  # a client may have made it up
        self.body = {"error": {"message": message, "type": kind, "param": named, "code": code}}

    @property
    def response(self) -> JSONResponse:
        return JSONResponse(self.body, self.status, self.headers)


def wrong(param: str, message: str, code: str = "invalid_value") -> ApiError:
    """A parameter that is wrong."""
    return ApiError(message, param=param, code=code)


def too_long(param: str, context: int, has: str) -> ApiError:
    """A prompt that doesn't fit."""
    message = f"the context is {context} tokens and a prompt has {has}: shorten it"
    return wrong(param, message, "context_length_exceeded")


INTERNAL = ApiError("internal error", 500, code="internal_error")  # what broke here


def not_valid(error: ValidationError) -> ApiError:
    """The first thing that is wrong with a request's body."""
    first = error.errors(include_url=False, include_context=False)[0]
    path = [str(part) for part in first["loc"]]
    name, place = path[0], ".".join(path)[: 2 * LONGEST_VALUE]
    if first["type"] == "extra_forbidden" and len(path) == 1:
        return wrong(name, f"there is no parameter {shown(name)}: leave it out", "unknown_parameter")
    for kind in KINDS.keys() & path[:-1]:
        place = ".".join(path[: path.index(kind) + 1])
        return wrong(name, f"{place} is of no kind that is read here: {KINDS[kind]}")
    if first["type"] == "missing":
        return wrong(name, f"{place} is missing: give it", "missing_required_parameter")
    value: Any = first["input"]
    is_ = f" is {shown(value)}" if isinstance(value, bool | int | float | str) else ""
    return wrong(name, f"{place}{is_}: {first['msg'][0].lower()}{first['msg'][1:]}")


def shown(value: Any) -> str:
    """A value as a message shows it: short."""
    text = repr(value)
    return text if len(text) <= LONGEST_VALUE else text[:LONGEST_VALUE] + "..."


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
        plain = (SAMPLE, MCTS, *REPAIRING) if judged else (SAMPLE, MCTS)
        counted = tuple(COUNTED) if judged else ("majority",)
        self.name = name
        self.methods = {label: Method(label, label) for label in plain}
        self.listed = [name, *(f"{name}@{label}" for label in (*plain, *(f"{label}-8" for label in counted)))]
        for label in counted:
            numbered = {f"{label}-{n}": Method(f"{label}-{n}", COUNTED[label], n) for n in range(1, MOST_SAMPLES + 1)}
            self.methods |= numbered
        self.known = ", ".join([*plain, *(f"{label}-N with N up to {MOST_SAMPLES}" for label in counted)])
        if default not in self.methods:
            raise ConfigError(f"--search is {default!r}: choose one of {self.known}")
        self.default = self.methods[default]

    def of(self, model: str, method: str | None = None) -> Method:
        """The method of a request's `model` and `method`. Raises ApiError when there is no such one, or they disagree."""
        name, at, suffix = model.partition("@")
        if name != self.name or (at and suffix not in self.methods):
            message = f"there is no model {shown(model)}: use {self.name!r}, or {self.name}@METHOD of {self.known}"
            raise ApiError(message, 404, param="model", code="model_not_found")
        if method is not None and method not in self.methods:
            raise wrong("method", f"there is no method {shown(method)}: the methods are {self.known}")
        if method is not None and at and method != suffix:
            raise wrong("method", f"method is {shown(method)} and model is {shown(model)}: name one of them")
        named = suffix if at else method
        return self.default if named is None else self.methods[named]


class StreamOptions(BaseModel):
    include_usage: bool = False


AnyBody = TypeVar("AnyBody", bound="Body")


class Body(BaseModel):
    """What chats and completions share. `deadline_ms` is this server's own, `return_token_ids` vLLM's."""

    model_config = ConfigDict(extra="forbid", strict=True)

    model: str
    n: Annotated[int, Field(ge=1, le=MOST_CHOICES)] = 1
    temperature: Annotated[Temperature, Field(le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    seed: int = Field(default_factory=lambda: secrets.randbits(31))
    stop: StopText | Annotated[list[StopText], Field(max_length=MOST_STOPS)] = Field(default_factory=list)
    stream: bool = False
    stream_options: StreamOptions = StreamOptions()
    deadline_ms: Count | None = None
    return_token_ids: bool = False

    @property
    def stops(self) -> tuple[str, ...]:
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)


class ChatBody(Body):
    """POST /v1/chat/completions. The last six are this server's own or vLLM's (`extra_body` of the openai client)."""

    messages: Annotated[list[ChatMessage], Field(min_length=1)]
    max_tokens: Count | None = None
    max_completion_tokens: Count | None = None
    logprobs: bool = False
    top_logprobs: Annotated[int, Field(ge=0, le=MOST_LOGPROBS)] = 0
    echo: Literal[False] = False
    method: str | None = None
    budget_tokens: Count | None = None
    simulations: Count | None = None
    return_tree: bool = False
    continue_final_message: bool = False  # as vLLM's: the answer goes on from the last message, the assistant's
    add_generation_prompt: bool | None = None  # as vLLM's: None is whatever the one above needs

    @property
    def most_tokens(self) -> int | None:
        """Tokens of the response, at most; None leaves them to the method."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    @property
    def alternatives(self) -> int | None:
        """How many likeliest tokens are wanted with each token of the answer; None: no log-probabilities at all."""
        return self.top_logprobs if self.logprobs else None


class CompletionBody(Body):
    """POST /v1/completions."""

    prompt: str | list[int] | list[str] | list[list[int]]
    max_tokens: Annotated[int, Field(ge=0, le=MOST_COUNTED)] = 16
    logprobs: Annotated[int, Field(ge=0, le=MOST_LOGPROBS)] | None = None
    echo: bool = False

    @property
    def most_tokens(self) -> int:
        return self.max_tokens

    @property
    def alternatives(self) -> int | None:
        return self.logprobs

    @property
    def prompts(self) -> list[str | list[int]]:
        """The prompts, as text or token ids."""
        prompt: Any = self.prompt
        single = isinstance(prompt, str) or (prompt and isinstance(prompt[0], int))
        return [prompt] if single else prompt


@dataclass(frozen=True, slots=True)
class Wanted:
    """A prompt of a request within this server's bounds.

    `question` is what a search is told (a PRM or a value reads the prompt's tokens), or a completion's prompt as text.
    `deadline` is seconds from the request's arrival.
    """

    body: ChatBody | CompletionBody
    method: Method
    prompt: tuple[int, ...]
    question: str
    seed: int
    deadline: float | None


def chat_request(raw: bytes, student: Any, models: Models, limits: ServeConfig) -> Wanted:
    """A chat request. Raises ApiError for what is wrong with it or beyond the bounds."""
    body = parsed(raw, ChatBody)
    method = models.of(body.model, body.method)
    check(body, method, limits)
    context = student.engine.capabilities.max_context
    messages = [message.wire() for message in body.messages]
    prompt, question = prompt_of(messages, student, context, body.continue_final_message)
    seconds = None if body.deadline_ms is None else body.deadline_ms / 1000
    return Wanted(body, method, prompt, question, body.seed % (1 << SEED_BITS), seconds)


def completion_request(raw: bytes, student: Any, models: Models, limits: ServeConfig) -> list[Wanted]:
    """The prompts of a completion request. Raises ApiError."""
    body = parsed(raw, CompletionBody)
    method = models.of(body.model)
    if method.name != SAMPLE:
        if "@" in body.model:
            raise wrong("model", f"model is {shown(body.model)}: completions are sampled, use {models.name}@{SAMPLE}")
        method = models.methods[SAMPLE]
    prompts = body.prompts
    if not 1 <= len(prompts) * body.n <= MOST_PROMPTS:
        many = f"prompt has {len(prompts)} prompts with n={body.n}"
        raise wrong("prompt", f"{many}: give at least one, and at most {MOST_PROMPTS} prompts times n")
    if body.stream and body.logprobs is not None:
        raise wrong("logprobs", "logprobs are not streamed: leave it out", "unsupported_parameter")
    seconds = None if body.deadline_ms is None else body.deadline_ms / 1000
    seeds = [body.seed, *(derive_seed(body.seed, "prompt", number) for number in range(1, len(prompts)))]
    made = []
    for prompt, seed in zip(prompts, seeds, strict=True):
        ids = completion_ids(prompt, student, body.max_tokens)
        text = prompt if isinstance(prompt, str) else student.decode(ids)
        made.append(Wanted(body, method, ids, text, seed % (1 << SEED_BITS), seconds))
    return made


def completion_ids(prompt: str | list[int], student: Any, more: int) -> tuple[int, ...]:
    """The tokens of a completion's prompt, with those that the tokenizer opens a text with. Raises ApiError."""
    context = student.engine.capabilities.max_context
    room = context - 1 if more else context  # where nothing is drawn, nothing has to follow
    if isinstance(prompt, str) and len(prompt) > context * CHARACTERS:
        raise too_long("prompt", context, f"{len(prompt)} characters")
    ids = tuple(student.tokenizer(prompt)["input_ids"] if isinstance(prompt, str) else prompt)
    if not ids:
        raise wrong("prompt", "prompt is empty: give at least one token")
    if len(ids) > room:
        raise too_long("prompt", context, f"{len(ids)} tokens")
    try:
        check_ids(ids, student.engine.vocabulary)
    except RequestError as error:
        raise wrong("prompt", str(error)) from error
    return ids


def parsed(raw: bytes, kind: type[AnyBody]) -> AnyBody:
    """The body of a request, without the parameters that ask for nothing. Raises ApiError."""
    try:
        fields = from_json(raw, allow_inf_nan=False)
    except ValueError as error:
        raise ApiError("the body is not JSON: send a JSON object", code="invalid_json") from error
    if not isinstance(fields, dict):
        raise ApiError("the body is not a JSON object: send one", code="invalid_json")
    given = {name: value for name, value in fields.items() if value is not None and name not in IGNORED}
    for name in [name for name in given if name in NEUTRAL]:
        if given.pop(name) not in NEUTRAL[name]:
            raise wrong(name, f"{name} is not offered here: leave it out", "unsupported_parameter")
    try:
        return kind.model_validate(given)
    except ValidationError as error:
        raise not_valid(error) from error


def check(body: ChatBody, method: Method, limits: ServeConfig) -> None:
    """Raise ApiError for a parameter beyond the bounds, or one that the method has no use for."""
    if body.budget_tokens is not None and body.budget_tokens > limits.max_budget_tokens:
        raise wrong(
            "budget_tokens", f"budget_tokens is {shown(body.budget_tokens)}: at most {limits.max_budget_tokens}"
        )
    searches = method.name != SAMPLE
    for name in ("budget_tokens", "simulations", "return_tree"):
        if getattr(body, name) and not searches:
            raise wrong(name, f"{name} is for a search and {shown(body.model)} doesn't search: use @{MCTS}")
    if body.simulations and method.name != MCTS:
        raise wrong("simulations", f"simulations is for {MCTS} and the method is {method.label}: leave it out")
    if body.logprobs and (searches or body.stream):
        kept = "kept by a search" if searches else "streamed"
        raise wrong("logprobs", f"logprobs are not {kept}: leave it out", "unsupported_parameter")
    if body.top_p < 1 and searches:
        raise wrong(
            "top_p", "top_p is for a sample, and a search draws from the whole distribution", "unsupported_parameter"
        )
    if body.add_generation_prompt not in (None, not body.continue_final_message):
        both = "it opens an answer, and continue_final_message goes on with one: exactly one of the two is true"
        raise wrong("add_generation_prompt", f"add_generation_prompt is {shown(body.add_generation_prompt)}: {both}")
    if body.continue_final_message and searches:
        raise wrong("continue_final_message", f"continue_final_message is for @{SAMPLE}: a search begins an answer")
    if body.continue_final_message:
        last = body.messages[-1].wire()
        if last["role"] != "assistant" or not last["content"].strip():
            raise wrong(
                "continue_final_message",
                "the last message has no words of the assistant: there is nothing to go on from",
            )
    if body.top_logprobs and not body.logprobs:
        raise wrong("top_logprobs", "top_logprobs needs logprobs: set it to true")


def prompt_of(
    messages: list[dict[str, str]], chat: Chat, context: int, going_on: bool = False
) -> tuple[tuple[int, ...], str]:
    """The tokens of a chat, opened as every chat of the student is, and its last question; `going_on`: the answer is the
    rest of the last message. Raises ApiError."""
    users = [message["content"] for message in messages if message["role"] == "user"]
    if not users:
        raise wrong("messages", "messages has no user message: ask something")
    if messages[0]["role"] != "system":
        messages = [*chat.opening.messages(users[-1]), *messages]
    # What is far too long is refused before its tokens are counted, which other requests would wait for.
    characters = sum(len(message["content"]) for message in messages)
    try:
        ids = () if characters > context * CHARACTERS else chat.chat_ids(messages, going_on)
    except RequestError as error:
        raise wrong("messages", str(error)) from error
    if not 0 < len(ids) < context:
        raise too_long("messages", context, f"{len(ids)} tokens" if ids else f"{characters} characters")
    return ids, users[-1]
