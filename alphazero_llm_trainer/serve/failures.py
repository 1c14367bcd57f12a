"""What a client gets instead of an answer: OpenAI's error shape, with nothing of this machine or of other requests in it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError
from starlette.responses import JSONResponse

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


def internal() -> ApiError:
    """What broke here; the client learns nothing of this machine."""
    return ApiError("internal error", 500, code="internal_error")


def not_valid(error: ValidationError) -> ApiError:
    """The first thing that is wrong with a request's body."""
    first = error.errors(include_url=False, include_context=False)[0]
    name, place = str(first["loc"][0]), ".".join(map(str, first["loc"]))[: 2 * LONGEST_VALUE]
    if first["type"] == "extra_forbidden" and name == place:
        return wrong(name, f"there is no parameter {shown(name)}: leave it out", "unknown_parameter")
    if first["type"] == "missing":
        return wrong(name, f"{place} is missing: give it", "missing_required_parameter")
    value: Any = first["input"]
    is_ = f" is {shown(value)}" if isinstance(value, bool | int | float | str) else ""
    return wrong(name, f"{place}{is_}: {first['msg'][0].lower()}{first['msg'][1:]}")


def shown(value: Any) -> str:
    """A value as a message shows it: short."""
    text = repr(value)
    return text if len(text) <= LONGEST_VALUE else text[:LONGEST_VALUE] + "..."
