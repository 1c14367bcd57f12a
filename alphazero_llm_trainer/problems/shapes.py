"""How known data sets write a part of a task: the tables of columns.yaml, and their reader."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from ..config.shipped import read_yaml

KINDS = {"any": object, "maybe": object, "list": list, "text": str}
# What is made of a shape's values, in their order.
SHAPE_RULES: dict[str, Callable[..., Any]] = {
    "it": lambda value: value,
    "one and more": lambda one, more: [one, *as_list(more)],
    "pairs": lambda titles, texts: [list(pair) for pair in zip(titles, texts, strict=False)],
    "title and sentences": lambda title, texts: f"{title}: {''.join(map(str, texts)).strip()}",
    "texts and labels": lambda texts, labels: (texts, as_list(labels)),
}


@cache
def usual_columns(part: str) -> Any:
    """What columns.yaml lists: the usual names of the columns that have a part of a task."""
    return read_yaml(Path(__file__).with_name("columns.yaml"))[part]


def read_shape(part: str, value: Any, otherwise: Any = None) -> Any:
    """What an object or a list holds as a part of a task, read by the first of the part's shapes
    that fits; `otherwise` where none does.
    """
    for shape in usual_columns("shapes")[part]:
        held = values_of(shape["has"], value)
        if held is not None:
            return SHAPE_RULES[shape["as"]](*held)
    return otherwise


def values_of(has: Mapping[str, str] | Sequence[str], value: Any) -> list[Any] | None:
    """The values that a shape wants of an object or a list; None where it doesn't fit."""
    if isinstance(has, Mapping):
        names = has if isinstance(value, Mapping) else ()
        there = [name for name in names if has[name] == "maybe" or name in value]
        kinds, held = [*has.values()], [value.get(name) for name in there]
    else:
        kinds, held = [*has], [*value] if isinstance(value, list | tuple) else []
    fits = len(held) == len(kinds) and all(
        isinstance(each, KINDS[kind]) for kind, each in zip(kinds, held, strict=True)
    )
    return held if fits else None


def as_list(value: Any) -> list[Any]:
    """A list's values; a single value alone, and none for None."""
    if isinstance(value, list | tuple):
        return [*value]
    return [] if value is None else [value]
