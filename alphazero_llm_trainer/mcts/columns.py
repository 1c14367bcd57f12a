"""What a saved tree holds: its columns, and whether values that were read from JSON can be theirs.

A journal has gigabytes of them, so a column is looked at as a whole: its types as a set, its numbers in one pass.
"""

from __future__ import annotations

import math
import reprlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from ..errors import DataError

MOST_IDS = 2**31  # token ids and counts fit into 32 bits with a sign

# Every column has one entry a node. A node stores only what it adds to its parent.
COLUMNS = (
    "parent",  # index of the parent; -1 for the root
    "token_ids",  # the step's token ids
    "logprobs",  # nats, under the policy that sampled them (a teacher's: the student's at ingest)
    "text",  # what the tokens decode to
    "source",  # "student" or "teacher:<name>"
    "direction",  # "right", "wrong" or "none": what the proposer was asked for
    "N",  # visits
    "W",  # sum of backed-up rewards
    "V",  # the value estimate of the node's own evaluation, None without one
    "prior",  # P(step | prefix), None where the selection rule needs none
    "prm",  # process reward, None without a model
    "samples",  # complete responses that ended here
    "expanded",  # its children were asked for
    "verdict",  # why a terminal node is one, a verdict of `steps.verdict` or "rejected"; None elsewhere
    "reward",  # a terminal node's reward in [0, 1]
    "hre",  # the reward's correctness part, None where gold is unknown
    "pre",  # the reward's perplexity part, None without a student model
)
# Written only where a response has one: correctness and the user's own reward, None where that has no part in it.
OUTCOME = "outcome"


@dataclass(frozen=True, slots=True)
class Values:
    """The values of a column: their types, and for integers the least of them. `lists` says that they are lists of such."""

    types: frozenset[type]
    least: int | None = None
    lists: bool = False

    def fit(self, values: Sequence[Any]) -> bool:
        """Whether all of `values` are such: integers of 32 bits, finite numbers, or texts."""
        if self.lists:
            if not set(map(type, values)) <= {list, tuple}:
                return False
            values = list(chain.from_iterable(values))
        found = set(map(type, values))
        if not found <= self.types:
            return False
        if self.least is not None:
            return not values or (min(values) >= self.least and max(values) < MOST_IDS)
        if float in self.types:
            return finite(values if type(None) not in found else [one for one in values if one is not None])
        return True


def finite(values: Sequence[float]) -> bool:
    """Whether all numbers are finite as a float."""
    try:
        return all(map(math.isfinite, values))
    except OverflowError:
        return False


IDS = Values(frozenset({int}), 0)
NUMBERS = Values(frozenset({int, float}))
NUMBERS_OR_NONE = Values(frozenset({int, float, type(None)}))
TEXTS = Values(frozenset({str}))
TEXTS_OR_NONE = Values(frozenset({str, type(None)}))

# What a column's values are.
HELD: dict[str, Values] = {
    "parent": Values(frozenset({int}), -1),
    "token_ids": Values(frozenset({int}), 0, lists=True),
    "logprobs": Values(frozenset({int, float}), lists=True),
    **dict.fromkeys(("text", "source", "direction"), TEXTS),
    **dict.fromkeys(("N", "samples"), IDS),
    "W": NUMBERS,
    "expanded": Values(frozenset({bool})),
    "verdict": TEXTS_OR_NONE,
    **dict.fromkeys(("V", "prior", "prm", "reward", "hre", "pre", OUTCOME), NUMBERS_OR_NONE),
}
LISTS = Values(frozenset({int, float}), lists=True)


def check_columns(raw: Any) -> None:
    """Raise DataError where what was read as a tree has a column of another type, and say which."""
    if not isinstance(raw, dict):
        raise DataError("it holds no search tree: name a journal that a search wrote")
    lists = [name for name in COLUMNS if not isinstance(raw.get(name), list)]
    lists += [name for name in (OUTCOME, "rollouts") if not isinstance(raw.get(name, []), list)]
    if lists:
        raise DataError(f"tree column {lists[0]} is no list: search it again")
    for name, held in HELD.items():
        values = raw.get(name, ())
        if not held.fit(values):
            wrong = next(value for value in values if not held.fit((value,)))
            raise DataError(f"tree column {name} has {reprlib.repr(wrong)}: search it again")
    if list(map(len, raw["token_ids"])) != list(map(len, raw["logprobs"])):
        raise DataError("a node of the tree has more tokens than log-probabilities, or fewer: search it again")
    check_rollouts(raw.get("rollouts", ()))
    history = raw.get("history", {})
    if not isinstance(history, dict) or not all(isinstance(rows, list | tuple) for rows in history.values()):
        raise DataError("the tree's history is none: search it again")
    if not all(LISTS.fit(rows) for rows in history.values()):
        raise DataError("the tree's history is none: search it again")


def check_rollouts(rows: Sequence[Any]) -> None:
    """Raise DataError where a row is no rollout as `Tree.to_dict` writes it."""
    if not all(isinstance(row, list) and len(row) >= 8 for row in rows):
        raise DataError("a rollout of the tree is none: search it again")
    columns = list(zip(*(row[:5] for row in rows), strict=True)) or [()] * 5
    held = (IDS, HELD["token_ids"], HELD["logprobs"], TEXTS, TEXTS_OR_NONE)
    if not all(one.fit(column) for one, column in zip(held, columns, strict=True)):
        raise DataError("a rollout of the tree is none: search it again")
    if not NUMBERS_OR_NONE.fit([value for row in rows for value in row[5:]]):
        raise DataError("a rollout of the tree has a reward that is no number: search it again")
