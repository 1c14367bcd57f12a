"""A tree's data: its columns and history, and how they are saved."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any, Self

from ..errors import DataError
from ..types import STUDENT, Direction, JsonObject, Logprobs, Observation, TokenIds

FORMAT = 3
WITHOUT_TURNS = 2  # of a tree without turns

# What a new node has in the columns that its step doesn't fill.
UNSET: dict[str, Any] = {
    "source": STUDENT,
    "direction": str(Direction.NONE),
    "N": 0,
    "W": 0.0,
    **dict.fromkeys(("V", "prm", "verdict", "reward", "hre", "pre", "outcome", "seen")),
    "samples": 0,
    "expanded": False,
    "unread": False,
    "virtual": 0,
    "drawn": 0,
}


@dataclass(slots=True)
class Rollout:
    """How responses went on from `node` to their end, outside the tree: token-level search keeps
    those here.

    `token_ids` and `logprobs` (nats, under the policy at temperature 1) are `[T]`, T = 0 where the
    response ends in the node itself; `verdict`, `reward`, `hre`, `pre` and `outcome` grade the
    whole response as a terminal node's columns do; `count` is how many simulations ended this way,
    `samples` how many draws that were: a greedy rollout that is read again from a node along it is
    a visit and no new draw. `mask` `[T]` tells the tokens that were drawn from those that a world
    gave, and () says that all were drawn.
    """

    node: int
    token_ids: TokenIds
    logprobs: Logprobs
    text: str
    verdict: str
    reward: float
    hre: float | None
    pre: float | None
    count: int = 1
    samples: int = 1
    outcome: float | None = None
    mask: tuple[bool, ...] = ()

    @property
    def grade(self) -> float | None:
        """The outcome, else the correctness; None where neither is known."""
        return self.hre if self.outcome is None else self.outcome


class Columns:
    """What a tree has of each node, by its number."""

    parent: list[int]  # index of the parent; -1 for the root
    token_ids: list[TokenIds]  # the step's token ids
    # Nats, under the policy that sampled them (a teacher's step: under the student).
    logprobs: list[Logprobs]
    text: list[str]  # what the drawn tokens decode to
    source: list[str]  # "student" or "teacher:<name>"
    direction: list[str]  # "right", "wrong" or "none": what the proposer was asked for
    N: list[int]  # visits
    W: list[float]  # sum of backed-up rewards
    V: list[float | None]  # the value estimate of the node's own evaluation, None without one
    prior: list[float | None]  # P(step | prefix), None where the selection rule needs none
    prm: list[float | None]  # process reward, None without a model
    samples: list[int]  # complete responses that ended here
    expanded: list[bool]  # its children were asked for
    # Why a terminal node is one, a verdict of `steps.end_verdict` or "rejected"; None elsewhere.
    verdict: list[str | None]
    reward: list[float | None]  # a terminal node's reward in [0, 1]
    hre: list[float | None]  # the reward's correctness part, None where gold is unknown
    pre: list[float | None]  # the reward's perplexity part, None without a student model
    # Correctness and the user's own reward, None where that has no part in it: saved where it has.
    outcome: list[float | None]
    # The step states something that the verifier could not check: saved where one does.
    unread: list[bool]
    # What a world answered to the node's turn, whose tokens come last: saved where one did.
    seen: list[Observation | None]
    virtual: list[int]
    drawn: list[int]


OPTIONAL = ("outcome", "unread", "seen")  # columns that are saved where a node has something there
UNSAVED = (*OPTIONAL, "virtual", "drawn")
COLUMNS = tuple(name for name in Columns.__annotations__ if name not in UNSAVED)


class SavedColumns(Columns):
    """Columns with a history, as they are saved. See `Tree`, which reads and grows them."""

    children: list[list[int]]
    rollouts: list[Rollout]
    backups: list[tuple[int, float, int]]
    simulations: list[tuple[int, int, int]]
    discount: float

    def to_dict(self) -> JsonObject:
        """Plain columns, ready for JSON."""
        columns: JsonObject = {name: list(getattr(self, name)) for name in COLUMNS}
        for name in OPTIONAL:
            if any(value != UNSET[name] for value in getattr(self, name)):
                columns[name] = list(getattr(self, name))
        rollouts = [
            [getattr(rollout, name) for name in Rollout.__slots__] for rollout in self.rollouts
        ]
        rollouts = [row[: -1 - (row[-2] is None)] if not row[-1] else row for row in rollouts]
        backups = [
            [node, reward] if above < 0 else [node, reward, above]
            for node, reward, above in self.backups
        ]
        history = {"simulations": [list(row) for row in self.simulations], "backups": backups}
        if self.discount != 1.0:
            columns["discount"] = self.discount
        turns = "seen" in columns or any(rollout.mask for rollout in self.rollouts)
        number = FORMAT if turns else WITHOUT_TURNS
        return {"format": number, **columns, "rollouts": rollouts, "history": history}

    @classmethod
    def from_dict(cls, raw: Any) -> Self:
        """The tree that `to_dict` saved. Raises DataError for what it can't have saved."""
        tree = cls()
        try:
            if raw["format"] not in (WITHOUT_TURNS, FORMAT):
                raise DataError(
                    f"a tree's format is {raw['format']!r}, "
                    f"this version reads {WITHOUT_TURNS} and {FORMAT}: search it again"
                )
            for name in COLUMNS:
                setattr(tree, name, list(raw[name]))
            count = len(tree.parent)
            for name in OPTIONAL:
                setattr(tree, name, list(raw.get(name) or [UNSET[name]] * count))
            tree.token_ids = [tuple(ids) for ids in tree.token_ids]
            tree.logprobs = [tuple(logprobs) for logprobs in tree.logprobs]
            tree.seen = [as_observation(row) for row in tree.seen]
            tree.rollouts = [
                Rollout(node, tuple(ids), tuple(logprobs), *rest)
                for node, ids, logprobs, *rest in raw["rollouts"]
            ]
            spans = [*zip(tree.token_ids, tree.logprobs, strict=True)]
            for rollout in tree.rollouts:
                rollout.mask = tuple(rollout.mask)
                spans += [(rollout.token_ids, rollout.logprobs)]
                spans += [(rollout.token_ids, rollout.mask)] if rollout.mask else []
            if (
                any(len(getattr(tree, name)) != count for name in (*COLUMNS, *OPTIONAL))
                or any(len(ids) != len(logprobs) for ids, logprobs in spans)
                or any(parent >= node for node, parent in enumerate(tree.parent))
                or any(
                    seen is not None and not 0 <= seen.tokens <= len(ids)
                    for seen, ids in zip(tree.seen, tree.token_ids, strict=True)
                )
            ):
                raise ValueError("columns that don't fit each other")
            tree.children = [[] for _ in range(count)]
            for node in range(1, count):
                tree.children[tree.parent[node]].append(node)
            tree.virtual, tree.drawn = [0] * count, [len(children) for children in tree.children]
            tree.discount = float(raw.get("discount", 1.0))
            history = raw["history"]
            tree.simulations = [tuple(row) for row in history["simulations"]]
            tree.backups = [
                (node, reward, *(above or (-1,))) for node, reward, *above in history["backups"]
            ]
        except (IndexError, KeyError, TypeError, ValueError) as error:
            raise DataError(f"a saved tree can't be read ({error!r}): search it again") from error
        return tree


def as_observation(row: Any) -> Observation | None:
    """A row of the column `seen`, as JSON has it. Raises TypeError or ValueError for another."""
    if row is None:
        return None
    tokens, text, calls, errors = row
    return Observation(operator.index(tokens), text, tuple(calls), tuple(errors))
