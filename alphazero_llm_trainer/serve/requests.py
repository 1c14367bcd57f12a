"""Requests as OpenAI's clients write them, what this server makes of them, and the errors that
clients get instead.
"""

from __future__ import annotations

import json
import secrets
from bisect import insort
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Annotated, Any, Literal

from fastapi import HTTPException
from fastapi.exceptions import RequestValidationError, StarletteHTTPException
from openai.types.chat import ChatCompletionStreamOptionsParam
from pydantic import BaseModel, ConfigDict, Field, Json, model_validator

from ..chat.remote import RemoteStudent
from ..chat.tool_calls import as_message
from ..config.sections import Temperature
from ..engine.admission import check_ids
from ..errors import ConfigError, EngineError, RequestError
from ..mcts.seeds import derive_seed
from ..policy.tool_chat import ToolChat
from ..types import Facts, JsonObject, Said, TokenIds, ToolCall

# Parameters that are not offered: these values of them ask for nothing, as an empty value of any
# other does.
UNCHANGED: dict[str, tuple[Any, ...]] = {
    "function_call": ("none", "auto"),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "repetition_penalty": (1,),
    "length_penalty": (1,),
    "typical_p": (1,),
    "best_of": (1,),
    "top_k": (-1, 0),
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True,),
    "add_special_tokens": (True,),
    "detokenize": (True,),
}
# Hints that change nothing here.
IGNORED = {
    "user",
    "metadata",
    "store",
    "service_tier",
    "parallel_tool_calls",
    "safety_identifier",
    "prompt_cache_key",
    "prompt_cache_retention",
    "reasoning_effort",
    "verbosity",
    "priority",
    "request_id",
}
EMPTY: tuple[Any, ...] = ([], {}, "", 0, False)
SAMPLE, MCTS = "sample", "mcts"
JUDGED_METHODS = ("step-rejection", "adaptive-best-of-n", "beam")  # methods that need a verifier
OF_SAMPLE = ("logprobs", "top_p", "continue_final_message")
ROLES = {"developer": "system"}  # what templates know some roles by
TURN_METHODS = (SAMPLE, "majority")  # those that need no world of the caller's
# Parameters that mean nothing to a method; to those that aren't here, OF_SAMPLE and `simulations`.
UNFIT = {SAMPLE: ("budget_tokens", "simulations", "return_tree"), MCTS: ("logprobs", "top_p")}
MOST_SAMPLES, MOST_CHOICES = 64, 16  # N of best-of-N; choices of one prompt
MOST_PROMPTS = 128  # of one request, times the choices of each
MOST_STOPS = 16
MOST_BUDGET = 20_000  # tokens of a search that a request may ask for
SEED_BITS = 63  # the engine's seeds have no sign
MOST_LOGPROBS = 20  # alternatives to each token
MOST_COUNTED = 1 << 31  # of anything that a client names a number of
LONGEST_NAME = 200  # characters of a message, and of a name that a client may have made up

FieldCount = Annotated[int, Field(ge=1, le=MOST_COUNTED)]
StopText = Annotated[str, Field(min_length=1, max_length=200)]
ToolName = Annotated[str, Field(pattern="^[a-zA-Z0-9_-]{1,64}$")]


# -- errors ----------------------------------------------------------------------------------------


class ApiError(HTTPException):
    """A request that is refused; `param` names the parameter that is wrong."""

    def __init__(
        self,
        message: str,
        param: str | None = None,
        code: str = "invalid_value",
        status: int = 400,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(status, message, headers)
        self.param, self.code = param, code


def api_error(error: BaseException) -> ApiError:
    """What a client hears of `error`: nothing of what broke here."""
    match error:
        case ApiError():
            return error
        case StarletteHTTPException():
            return ApiError(error.detail, None, "invalid_request", error.status_code, error.headers)
        case RequestValidationError():
            return not_valid(error.errors()[0])
        case RequestError():
            return ApiError(str(error))
        case EngineError():
            return ApiError("the engine could not answer: try again", None, "engine_error", 503)
    return ApiError("internal error", None, "internal_error", 500)


def not_valid(first: Facts) -> ApiError:
    """The first thing that is wrong with a request's body, as pydantic names it."""
    path = first["loc"][1:]
    if not path or first["type"] == "json_invalid":
        return ApiError(
            "the body: send a JSON object, with Content-Type: application/json", code="invalid_json"
        )
    param = ascii(path[0])[1:-1][:LONGEST_NAME]
    place = ".".join([param, *map(str, path[1:])])
    unknown = first["type"] == "extra_forbidden"
    message = (
        f"{place} is not offered here: leave it out" if unknown else f"{place}: {first['msg']}"
    )
    return ApiError(
        message[:LONGEST_NAME], param, "unknown_parameter" if unknown else "invalid_value"
    )


def error_body(error: BaseException) -> JsonObject:
    """An error in OpenAI's shape."""
    refusal = api_error(error)
    kinds = {429: "rate_limit_error", 500: "server_error", 503: "server_error"}
    kind = kinds.get(refusal.status_code, "invalid_request_error")
    return {
        "error": {
            "message": refusal.detail,
            "type": kind,
            "param": refusal.param,
            "code": refusal.code,
        }
    }


# -- models ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ServedMethod:
    """How a request is answered: `label` as clients write it, `name` in `eval.methods`, `count` its
    N of samples.
    """

    label: str
    name: str
    count: int | None = None


class Models:
    """The models of this server: `name` by the method `default`, and `name@METHOD` for every
    method.

    judged: there is a verifier, which most methods need. Raises ConfigError for a default that
    doesn't exist.
    """

    def __init__(self, name: str, default: str = SAMPLE, judged: bool = True) -> None:
        searching = [MCTS, *(JUDGED_METHODS if judged else ())]
        methods = [ServedMethod(label, label) for label in (SAMPLE, *searching)]
        counted = {"majority": "majority"} | ({"best-of": "best-of-n"} if judged else {})
        for label, method in counted.items():
            methods += [ServedMethod(f"{label}-{n}", method, n) for n in range(1, MOST_SAMPLES + 1)]
        self.name, self.methods = name, {method.label: method for method in methods}
        shown = [method.label for method in methods if method.count in (None, 8)]
        self.known = ", ".join(shown)
        self.searching = searching
        self.listed = [name, *(f"{name}@{label}" for label in shown)]
        if default not in self.methods:
            raise ConfigError(f"--search is {default!r}: choose one of {self.known}")
        self.default = self.methods[default]

    def of(self, model: str, method: str | None = None) -> ServedMethod:
        """The method of a request's `model` and `method`. Raises ApiError when it doesn't exist, or
        they disagree.
        """
        name, at, suffix = model.partition("@")
        if name != self.name or (at and suffix not in self.methods):
            message = (
                f"there is no model {model[:LONGEST_NAME]!r}: "
                f"use {self.name!r}, or {self.name}@METHOD of {self.known}"
            )
            raise ApiError(message, "model", "model_not_found", 404)
        label = method or suffix
        if label and label not in self.methods:
            raise ApiError(f"there is no such method: the methods are {self.known}", "method")
        if at and label != suffix:
            raise ApiError("method and model name two methods: leave one out", "method")
        return self.methods[label] if label else self.default


# -- bodies ----------------------------------------------------------------------------------------


class RequestBody(BaseModel):
    """What chats and completions share. `deadline_ms` is this server's own, `return_token_ids`
    vLLM's.
    """

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    model: str
    n: Annotated[int, Field(ge=1, le=MOST_CHOICES)] = 1
    temperature: Annotated[Temperature, Field(le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    seed: int = Field(default_factory=lambda: secrets.randbits(31))
    stop: StopText | Annotated[list[StopText], Field(max_length=MOST_STOPS)] = Field(
        default_factory=list
    )
    stream: bool = False
    stream_options: ChatCompletionStreamOptionsParam = {}
    deadline_ms: FieldCount | None = None
    return_token_ids: bool = False

    @model_validator(mode="before")
    @classmethod
    def _drop_empty(cls, fields: Any) -> Any:
        """The parameters without those that ask for nothing."""
        if not isinstance(fields, dict):
            return fields
        json.dumps(
            fields, ensure_ascii=False
        ).encode()  # half a surrogate pair is no text: a ValueError
        asked = {name: value for name, value in fields.items() if value is not None}
        nothing = {
            name
            for name in asked.keys() - cls.model_fields.keys()
            if name in IGNORED or asked[name] in UNCHANGED.get(name, EMPTY)
        }
        return {name: value for name, value in asked.items() if name not in nothing}

    @property
    def stops(self) -> tuple[str, ...]:
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)


class TextPart(BaseModel):
    type: Literal["text"]
    text: str


class WireFunction(BaseModel):
    name: ToolName
    arguments: Json[JsonObject]


class WireCall(BaseModel):
    """A call of a tool in a message."""

    id: str
    function: WireFunction


class ChatMessage(BaseModel):
    """A message as OpenAI's clients write it."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[TextPart] | None = None
    tool_calls: list[WireCall] | None = None
    tool_call_id: str = ""

    @model_validator(mode="after")
    def _says_something(self) -> ChatMessage:
        if self.tool_calls and self.role != "assistant":
            raise ValueError("tool_calls are the assistant's: leave them out")
        if self.content is None and not self.tool_calls:
            raise ValueError("content is missing: give the message's text")
        return self

    @property
    def text(self) -> str:
        if isinstance(self.content, list):
            return "\n".join(part.text for part in self.content)
        return self.content or ""


class ToolFunction(BaseModel):
    """A tool; `strict` is no key of a template."""

    model_config = ConfigDict(extra="forbid")

    name: ToolName
    description: str = ""
    parameters: JsonObject = {"type": "object", "properties": {}}
    strict: Literal[False] | None = Field(None, exclude=True)


class Tool(BaseModel):
    """A tool as OpenAI's clients write it."""

    model_config = ConfigDict(extra="forbid")

    type: Literal["function"]
    function: ToolFunction


class ChatBody(RequestBody):
    """POST /v1/chat/completions. The last six are this server's own or vLLM's (`extra_body` of the
    openai client).
    """

    messages: Annotated[list[ChatMessage], Field(min_length=1)]
    max_tokens: FieldCount | None = None
    max_completion_tokens: FieldCount | None = None
    logprobs: bool = False
    top_logprobs: Annotated[int, Field(ge=0, le=MOST_LOGPROBS)] = 0
    tools: list[Tool] = []
    tool_choice: Literal["none", "auto"] = "auto"
    parallel_tool_calls: bool = True
    method: str | None = None
    budget_tokens: Annotated[int, Field(ge=1, le=MOST_BUDGET)] | None = None
    simulations: FieldCount | None = None
    return_tree: bool = False
    continue_final_message: bool = (
        False  # as vLLM's: the answer goes on from the last message, the assistant's
    )
    add_generation_prompt: bool | None = (
        None  # as vLLM's: null is whatever the parameter above needs
    )

    @property
    def callable(self) -> list[Tool]:
        """The tools that the answer may call."""
        return self.tools if self.tool_choice == "auto" else []

    @property
    def most_tokens(self) -> int | None:
        """Tokens of the response, at most; None leaves them to the method."""
        return self.max_completion_tokens or self.max_tokens

    @property
    def alternatives(self) -> int | None:
        """How many likeliest tokens are wanted with each token of the answer; None: no
        log-probabilities at all.
        """
        return self.top_logprobs if self.logprobs else None


class CompletionBody(RequestBody):
    """POST /v1/completions."""

    prompt: str | list[int] | list[str] | list[list[int]]
    max_tokens: Annotated[int, Field(ge=0, le=MOST_COUNTED)] = 16
    logprobs: Annotated[int, Field(ge=0, le=MOST_LOGPROBS)] | None = None

    @property
    def most_tokens(self) -> int:
        return self.max_tokens

    @property
    def alternatives(self) -> int | None:
        return self.logprobs


@dataclass(frozen=True, slots=True)
class WantedAnswer:
    """A prompt of a request within this server's bounds.

    `question` is what a search works on (a PRM or a value reads the prompt's tokens), "" for a
    completion. `messages` are the chat where another server reads it, `tools` those that the answer
    may call.
    """

    body: ChatBody | CompletionBody
    method: ServedMethod
    prompt: TokenIds
    question: str
    seed: int
    messages: tuple[Mapping[str, str], ...] = ()
    tools: ToolChat | None = None


# -- what is wanted --------------------------------------------------------------------------------


def chat_request(body: ChatBody, student: Any, models: Models) -> WantedAnswer:
    """What a chat request wants: its tokens are opened as every chat of the student is. Raises
    ApiError.
    """
    method = models.of(body.model, body.method)
    check_body(body, method)
    messages = read_messages(body.messages)
    users = [message["content"] for message in messages if message["role"] == "user"]
    if not users:
        raise ApiError("messages has no user message: ask something", "messages")
    if messages[0]["role"] != "system":
        messages = [*student.opening.messages(users[-1]), *messages]
    seed = body.seed % (1 << SEED_BITS)
    if isinstance(student, RemoteStudent):
        plain = all("tool_calls" not in one and one["role"] != "tool" for one in messages)
        searches = method.name != SAMPLE and not body.return_token_ids
        check_remote(searches and plain and not body.callable)
        if body.continue_final_message:
            behind = (
                "the model is behind another server, which answers from the start: leave it out"
            )
            raise ApiError(behind, "continue_final_message")
        return WantedAnswer(body, method, (), users[-1], seed, tuple(messages))
    tools = ToolChat(student, [tool.model_dump() for tool in body.callable])
    try:
        ids = student.chat_ids(messages, body.continue_final_message, tools.tools)
        _ = tools.tools and tools.form
    except ConfigError as error:
        raise ApiError(str(error), "tools") from error
    check_length(len(ids), student.engine.capabilities.max_context - 1)
    return WantedAnswer(body, method, ids, users[-1], seed, tools=tools if tools.tools else None)


def read_messages(sent: Sequence[ChatMessage]) -> list[Facts]:
    """The messages as a chat template takes them: calls are numbered, and what answers them stands
    in their order. Raises ApiError for an answer without a call.
    """
    messages: list[Facts] = []
    calls: dict[str, tuple[str, str]] = {}  # of the turn before, by the client's ids
    turn = 0  # where the answers to it begin
    for at, message in enumerate(sent):
        if message.role == "tool":
            if message.tool_call_id not in calls:
                raise ApiError(
                    f"messages.{at}.tool_call_id names no call of the turn before it that is not "
                    "answered: give the id of one",
                    "messages",
                )
            number, name = calls.pop(message.tool_call_id)
            answer = {"role": "tool", "name": name, "content": message.text, "tool_call_id": number}
            insort(messages, answer, lo=turn, key=itemgetter("tool_call_id"))
            continue
        asked = message.tool_calls or ()
        made = [ToolCall(call.function.name, call.function.arguments) for call in asked]
        said = as_message(Said(message.text, tuple(made)))
        messages.append({**said, "role": ROLES.get(message.role, message.role)})
        turn = len(messages)
        calls = {
            call.id: (numbered["id"], call.function.name)
            for call, numbered in zip(asked, said.get("tool_calls", ()), strict=True)
        }
    return messages


def check_remote(searches: bool) -> None:
    """Raise ApiError for what isn't search where the model is behind another server."""
    if not searches:
        raise ApiError(
            "the model is behind another server: ask that one for plain samples", "model"
        )


def check_body(body: ChatBody, method: ServedMethod) -> None:
    """Raise ApiError for a parameter beyond the bounds, or one that the method or a stream would
    ignore.
    """
    if body.callable and method.name not in TURN_METHODS:
        raise ApiError(
            f"{method.label} searches turns in a world, and the caller runs these tools: use "
            f"{SAMPLE} or majority-N",
            "tools",
            "unsupported_parameter",
        )
    of_trees = ["return_tree"] if body.callable else []
    for name in (*UNFIT.get(method.name, (*OF_SAMPLE, "simulations")), *of_trees):
        if getattr(body, name) != ChatBody.model_fields[name].default:
            raise ApiError(
                f"{name} means nothing to {method.label}: leave it out",
                name,
                "unsupported_parameter",
            )
    if body.add_generation_prompt is body.continue_final_message:
        both = (
            "add_generation_prompt opens an answer and continue_final_message goes on with one: "
            "set one of them"
        )
        raise ApiError(both, "add_generation_prompt")
    last = body.messages[-1]
    begun = last.role == "assistant" and last.text.strip() and not last.tool_calls
    if body.continue_final_message and not begun:
        message = "the last message has no words of the assistant: there is nothing to go on from"
        raise ApiError(message, "continue_final_message")
    if body.top_logprobs and not body.logprobs:
        raise ApiError("top_logprobs needs logprobs: set it to true", "top_logprobs")


def completion_request(body: CompletionBody, student: Any, models: Models) -> list[WantedAnswer]:
    """The prompts of a completion request, which are sampled. Raises ApiError."""
    check_remote(not isinstance(student, RemoteStudent))
    if models.of(body.model).name != SAMPLE and "@" in body.model:
        raise ApiError(f"completions are sampled: use {models.name}@{SAMPLE}", "model")
    if body.stream and body.alternatives is not None:
        message = "logprobs of completions are not streamed: leave it out"
        raise ApiError(message, "logprobs", "unsupported_parameter")
    prompts: Any = body.prompt
    if isinstance(prompts, str) or (prompts and isinstance(prompts[0], int)):
        prompts = [prompts]
    if not 1 <= len(prompts) * body.n <= MOST_PROMPTS:
        raise ApiError(
            f"prompt: give at least one, and at most {MOST_PROMPTS} prompts times n", "prompt"
        )
    wanted = []
    for number, prompt in enumerate(prompts):
        ids = completion_ids(prompt, student, body.max_tokens)
        seed = derive_seed(body.seed, "prompt", number) if number else body.seed
        method = models.methods[SAMPLE]
        wanted.append(WantedAnswer(body, method, ids, "", seed % (1 << SEED_BITS)))
    return wanted


def completion_ids(prompt: str | list[int], student: Any, more: int) -> TokenIds:
    """The tokens of a completion's prompt, with those that the tokenizer opens a text with. Raises
    ApiError.
    """
    context = student.engine.capabilities.max_context
    ids = tuple(student.tokenizer(prompt)["input_ids"] if isinstance(prompt, str) else prompt)
    check_length(len(ids), context - (more > 0))  # where nothing is drawn, nothing has to follow
    if not ids:
        raise ApiError("prompt is empty: give at least one token", "prompt")
    check_ids(ids, student.engine.vocabulary)
    return ids


def check_length(length: int, most: int) -> None:
    """Raise ApiError for a prompt of so many tokens that it doesn't fit."""
    if length > most:
        message = f"the prompt has {length} tokens and the context takes {most}: shorten it"
        raise ApiError(message, code="context_length_exceeded")
