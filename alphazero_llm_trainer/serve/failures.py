"""What a client gets instead of an answer: OpenAI's error shape, with nothing of this machine or of other requests in it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

INVALID = "invalid_request_error"
LONGEST_VALUE = 60  # characters of a wrong value that are shown back


class ApiError(Exception):
    """A request that is answered with `status` and an error; `param` names the parameter that is wrong."""

    def __init__(
        self,
        message: str,
        status: int = 400,
        *,
        param: str | None = None,
        code: str | None = None,
        kind: str = INVALID,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.headers = status, dict(headers or {})
        named = param if param is None else param[:LONGEST_VALUE]  # a client may have made it up, as long as it likes
        self.body = {"error": {"message": message, "type": kind, "param": named, "code": code}}


def not_valid(error: ValidationError) -> ApiError:
    """The first thing that is wrong with a request's body."""
    first = error.errors(include_url=False, include_context=False)[0]
    # A union's location names its members too; what the client wrote are the names and the numbers before them.
    place = [str(part) for part in first["loc"]]
    name = place[0] if place else None
    if first["type"] == "json_invalid":
        return ApiError("the body is not JSON: send a JSON object", code="invalid_json")
    if name is None:
        return ApiError("the body is not a JSON object: send one", code="invalid_json")
    if first["type"] == "extra_forbidden" and len(place) == 1:
        return ApiError(f"there is no parameter {shown(name)}: leave it out", param=name, code="unknown_parameter")
    if first["type"] == "missing":
        return ApiError(f"{shown_name(place)} is missing: give it", param=name, code="missing_required_parameter")
    value: Any = first["input"]
    is_ = f" is {shown(value)}" if isinstance(value, bool | int | float | str | None) else ""
    reason = first["msg"][0].lower() + first["msg"][1:]
    return ApiError(f"{shown_name(place)}{is_}: {reason}", param=name, code="invalid_value")


def shown_name(place: list[str]) -> str:
    """A parameter's name with those that it stands in, short."""
    return ".".join(place)[: 2 * LONGEST_VALUE]


def shown(value: Any) -> str:
    """A value as a message shows it: short."""
    text = repr(value)
    return text if len(text) <= LONGEST_VALUE else text[:LONGEST_VALUE] + "..."


def ending(grace: float) -> ApiError:
    """What is answered once the server was told to end: another one may be there after `grace` seconds."""
    return ApiError(
        "the server ends: ask again later",
        503,
        kind="server_error",
        code="shutting_down",
        headers={"Retry-After": str(math.ceil(grace))},
    )


def no_model(name: str, known: str) -> ApiError:
    return ApiError(f"there is no model {shown(name)}: {known}", 404, param="model", code="model_not_found")


def too_long(prompt: int, context: int, param: str) -> ApiError:
    return ApiError(
        f"the context is {context} tokens and the prompt has {prompt}: shorten it",
        param=param,
        code="context_length_exceeded",
    )
