"""A choice of an answer: its text, how it ended and what it took; and how a search's choice becomes one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..answers import extract
from ..mcts.choose import Choice, most_visited
from ..mcts.tree import WHOLE, Tree
from ..types import Cost
from .text import Token

if TYPE_CHECKING:
    from .conversation import Conversation
    from .requests import Wanted

DEADLINE = "deadline"


@dataclass(slots=True)
class Outcome:
    """A choice.

    `token_ids` are the response's, with `logprobs` (nats) where it is a plain sample; `tokens` its text's where they were
    asked for. `stop` is the stop string that cut it. `tree` is None for a plain sample. `ended_by` is a search's (see
    `SearchResult`), "deadline", or the engine's reason.
    """

    text: str
    finish: str  # "stop" or "length"
    seed: int
    cost: Cost
    ended_by: str
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    stop: str | None = None
    tokens: list[Token] | None = None
    answer: str | None = None
    why: str | None = None
    tree: Tree | None = None
    node: int | None = None
    trace_id: str | None = None
    seconds: float = 0.0  # from the request's arrival


def chosen(
    conversation: Conversation, wanted: Wanted, seed: int, tree: Tree, choice: Choice | None, ended_by: str
) -> Outcome:
    """A search's choice as a choice of the request; where nothing was finished, the best beginning there is."""
    engine, why = conversation.engine, None
    if choice is not None:
        node, why, answer, text = choice.node, choice.why, choice.answer, choice.response
        ids, verdict = response_of(tree, choice)
        whole = verdict in WHOLE or extract(text, strict=True) is not None
    else:
        node, answer, whole, why = most_visited(tree), None, False, "no response was finished: the best beginning"
        ids = max(tree.sequence(node)[0], engine.partial, key=len)
        text = conversation.decode([token for token in ids if token not in engine.eos_ids])
    found = [(at, stop) for stop in wanted.body.stops if (at := text.find(stop)) >= 0]
    at, stop = min(found, key=lambda one: one[0], default=(len(text), None))
    finish = "stop" if whole or stop is not None else "length"
    return Outcome(
        text[:at], finish, seed, engine.cost, ended_by, ids, stop=stop, answer=answer, why=why, tree=tree, node=node
    )  # fmt: skip


def response_of(tree: Tree, choice: Choice) -> tuple[tuple[int, ...], str | None]:
    """Token ids and verdict of a chosen response: a path, or a rollout that goes on from one."""
    ids, verdict = tree.sequence(choice.node)[0], tree.verdict[choice.node]
    if verdict is None:
        own = [rollout for rollout in tree.rollouts if rollout.node == choice.node]
        for rollout in own:
            if len(own) == 1 or choice.response.endswith(rollout.text):
                return ids + rollout.token_ids, rollout.verdict
    return ids, verdict
