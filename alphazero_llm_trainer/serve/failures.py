"""What a client gets instead of an answer: OpenAI's error shape, with nothing of this machine or of other requests in it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

INVALID = "invalid_request_error"
LONGEST_VALUE = 60  # characters of a wrong value or name that are shown back


class ApiError(Exception):
    """A request that is answered with `status` and an error; `param` names the parameter that is wrong."""

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
        self.status, self.headers = status, dict(headers or {})
        kind = "server_error" if status >= 500 else "rate_limit_error" if status == 429 else INVALID
        named = param if param is None else param[:LONGEST_VALUE]  # a client may have made it up
        self.body = {"error": {"message": message, "type": kind, "param": named, "code": code}}


def wrong(param: str, message: str, code: str = "invalid_value") -> ApiError:
    """A parameter that is wrong."""
    return ApiError(message, param=param, code=code)


def not_valid(error: ValidationError) -> ApiError:
    """The first thing that is wrong with a request's body."""
    first = error.errors(include_url=False, include_context=False)[0]
    place = [str(part) for part in first["loc"]]
    if first["type"] == "json_invalid" or not place:
        return ApiError("the body is not a JSON object: send one", code="invalid_json")
    name, shown_place = place[0], ".".join(place)[: 2 * LONGEST_VALUE]
    if first["type"] == "extra_forbidden" and len(place) == 1:
        return wrong(name, f"there is no parameter {shown(name)}: leave it out", "unknown_parameter")
    if first["type"] == "missing":
        return wrong(name, f"{shown_place} is missing: give it", "missing_required_parameter")
    value: Any = first["input"]
    is_ = f" is {shown(value)}" if isinstance(value, bool | int | float | str | None) else ""
    reason = first["msg"][0].lower() + first["msg"][1:]
    return wrong(name, f"{shown_place}{is_}: {reason}")


def shown(value: Any) -> str:
    """A value as a message shows it: short."""
    text = repr(value)
    return text if len(text) <= LONGEST_VALUE else text[:LONGEST_VALUE] + "..."
