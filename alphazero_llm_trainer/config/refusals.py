"""What can't stand together: the one reader of refusals.yaml, and of the conditions in it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from operator import attrgetter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from ..errors import ConfigError
from ..types import JsonObject
from .shipped import parse_yaml


@lru_cache
def read_refusals() -> dict[str, list[JsonObject]]:
    """What refusals.yaml says: the sentences of each place."""
    return parse_yaml(Path(__file__).with_name("refusals.yaml").read_text(encoding="utf-8"))


def split_condition(each: str) -> tuple[str, bool, list[str]]:
    """The key of a condition without alternatives (`KEY=VALUE,VALUE` or `KEY!=VALUE`), whether it
    is to have one of the values, and these.
    """
    key, equals, values = re.split("(!?=)", each, maxsplit=1)
    return key, equals == "=", values.split(",")


def name_value(value: Any) -> str:
    """A value as conditions name it."""
    return "null" if value is None else str(value)


def refuse_conflicts(config: Iterable[tuple[str, Any]], *places: str, **facts: Any) -> None:
    """Raise ConfigError with the first sentence of these places of refusals.yaml that holds, of the
    sections of `config` and of `facts`.
    """
    named = dict(config) | facts
    known = SimpleNamespace(**named)

    def holds(condition: str) -> bool:
        parts = map(split_condition, condition.split("|"))
        return any(
            (name_value(attrgetter(key)(known)) in values) == wanted
            for key, wanted, values in parts
        )

    for refusal in (each for place in places for each in read_refusals().get(place, ())):
        if all(map(holds, refusal["where"])):
            for setting, condition in refusal.get("each", {"": ""}).items():
                if not condition or holds(condition):
                    raise ConfigError(refusal["says"].format(setting=setting, **named))
