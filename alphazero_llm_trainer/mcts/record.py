"""What a journal's line holds: a search's record, and the columns of its tree."""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, Strict, ValidationError

from ..errors import DataError

Number = FiniteFloat
Count = Annotated[int, Field(ge=0, lt=2**31)]  # token ids and counts fit into 32 bits with a sign
Ids = Annotated[list[Count], Strict(False)]
Logprobs = Annotated[list[Number], Strict(False)]
Said = dict[str, str | int | Number]


class Strictly(BaseModel):
    """JSON's types as they are; what is read by an older or a newer version may have more keys."""

    model_config = ConfigDict(strict=True)


class SavedRollout(NamedTuple):
    """A row of `rollouts`, see `tree.Rollout`."""

    node: Count
    token_ids: Ids
    logprobs: Logprobs
    text: str
    verdict: str | None
    reward: Number | None
    hre: Number | None
    pre: Number | None
    visits: Number = 1  # `count` there
    samples: Number = 1
    outcome: Number | None = None


class History(Strictly):
    """How a tree grew, see `tree.Tree`."""

    simulations: list[Annotated[list[Count], Strict(False), Field(min_length=3, max_length=3)]] = []
    backups: list[
        Annotated[list[int | Number], Strict(False), Field(min_length=2, max_length=3)]
    ] = []


class SavedTree(Strictly):
    """A tree's columns: one entry a node, which stores only what it adds to its parent."""

    parent: list[Annotated[int, Field(ge=-1, lt=2**31)]]  # index of the parent; -1 for the root
    token_ids: list[Ids]  # the step's token ids
    logprobs: list[
        Logprobs
    ]  # nats, under the policy that sampled them (a teacher's step: under the student)
    text: list[str]  # what the tokens decode to
    source: list[str]  # "student" or "teacher:<name>"
    direction: list[str]  # "right", "wrong" or "none": what the proposer was asked for
    N: list[Count]  # visits
    W: list[Number]  # sum of backed-up rewards
    V: list[Number | None]  # the value estimate of the node's own evaluation, None without one
    prior: list[Number | None]  # P(step | prefix), None where the selection rule needs none
    prm: list[Number | None]  # process reward, None without a model
    samples: list[Count]  # complete responses that ended here
    expanded: list[bool]  # its children were asked for
    verdict: list[
        str | None
    ]  # why a terminal node is one, a verdict of `steps.verdict` or "rejected"; None elsewhere
    reward: list[Number | None]  # a terminal node's reward in [0, 1]
    hre: list[Number | None]  # the reward's correctness part, None where gold is unknown
    pre: list[Number | None]  # the reward's perplexity part, None without a student model
    # Written only where a response has one: correctness and the user's own reward, None where that
    # has no part in it.
    outcome: list[Number | None] = []
    rollouts: list[SavedRollout] = []  # of format 2
    history: History = History()  # since version 0.4


COLUMNS = tuple(name for name, field in SavedTree.model_fields.items() if field.is_required())
OUTCOME = "outcome"


class Record(Strictly):
    """What readers of a record rely on. What is missing of an old one may be."""

    problem: dict[str, str | int] = {}
    ended_by: str = ""
    split: str = ""
    question: str = ""
    prompt_ids: list[Count] | None = None
    cost: dict[str, Number] | None = None
    served: dict[str, Any] | None = None
    search: Said | None = None
    pieces: Said | None = None
    policy_version: str | int | None = None
    tree: SavedTree | None = None


def check(kind: type[Strictly], raw: Any) -> None:
    """Raise DataError where `raw`, read from JSON, is none of its `kind`, and say what is wrong
    with it.
    """
    try:
        kind.model_validate(raw)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"])) or kind.__name__
        raise DataError(f"{place}: {first['msg']}: search it again") from error
