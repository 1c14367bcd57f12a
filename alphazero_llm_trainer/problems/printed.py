"""Lists and objects that a table holds as text: JSON, or what Python, pandas and numpy print."""

from __future__ import annotations

import ast
import io
import tokenize
from contextlib import suppress
from typing import Any

from ..files import parse_json

VALUES = (tokenize.STRING, tokenize.NUMBER, tokenize.NAME)
# What a text that is no list or object makes Python's parser raise.
NO_LITERAL = (ValueError, SyntaxError, RecursionError, MemoryError, tokenize.TokenError)


def parse_printed(value: Any) -> Any:
    """The list or object that a text holds; any other value itself."""
    if not isinstance(value, str) or value.strip()[:1] not in ("[", "{"):
        return value
    with suppress(ValueError):
        return parse_json(value)
    with suppress(*NO_LITERAL):
        read = ast.literal_eval(as_python(value.strip()))
        if isinstance(read, list | dict):  # `{2, 3}` is a set of somebody's question
            return read
    return value


def as_python(text: str) -> str:
    """What numpy printed as Python: `array([...], dtype=object)` is its list, and values that stand
    side by side have a comma between them."""
    parts, ended = list[str](), False
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    for token in tokens:
        if token.string == "array" or not token.string.strip():
            continue
        if token.string == "dtype":
            next(tokens), next(tokens)
            parts.pop()
            continue
        begins = token.type in VALUES or token.string in ("[", "{", "(")
        parts.append(f", {token.string}" if begins and ended else token.string)
        ended = token.type in VALUES or token.string in ("]", "}", ")")
    return "".join(parts)
