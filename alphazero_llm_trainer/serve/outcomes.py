"""A choice of an answer: the response that a search chose, or as much of one as there was when the time was over."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ..answers import extract
from ..mcts.choose import Choice, most_visited, read
from ..mcts.tree import ROOT, WHOLE, Tree
from ..types import Cost
from .conversation import Conversation
from .token_text import TextReader, Token
from .wanted import Wanted

DEADLINE = "deadline"

Decode = Callable[[Sequence[int]], str]


@dataclass(slots=True)
class Outcome:
    """A choice: its text, how it ended, and what it took.

    `tokens` are the text's, where they were asked for. `stop` is the stop string that cut it. `tree` is None for a
    plain sample. `ended_by` is a search's (see `SearchResult`), "deadline", or the engine's reason.
    """

    text: str
    finish: str  # "stop" or "length"
    seed: int
    cost: Cost
    ended_by: str
    stop: str | None = None
    tokens: list[Token] | None = None
    answer: str | None = None
    why: str | None = None
    deadline_hit: bool = False
    tree: Tree | None = None
    node: int | None = None
    saved: int = 0
    text_tokens: int = 0
    trace_id: str | None = None

    @property
    def simulations(self) -> int:
        return 0 if self.tree is None else self.tree.N[ROOT]


@dataclass(frozen=True, slots=True)
class Whole:
    """A finished sample in the shape of one that is being drawn."""

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    top: Sequence[tuple[tuple[int, float], ...]]


def tokens_of(reader: TextReader, sample: Any, count: int) -> list[Token]:
    """The first tokens of a response; none where their log-probabilities aren't known."""
    if sample is None or len(sample.logprobs) < count:
        return []
    return [
        Token(reader.ids[i], reader.pieces[i], sample.logprobs[i], tuple(sample.top[i]) if sample.top else ())
        for i in range(count)
    ]


def chosen(
    conversation: Conversation,
    wanted: Wanted,
    seed: int,
    tree: Tree,
    choice: Choice | None,
    ended_by: str,
    text_of: Callable[[tuple[int, ...]], str] | None,
    decode: Decode,
) -> Outcome:
    """A search's choice as a choice of the request; where nothing was finished, the best beginning there is.

    `text_of` is what the search reads responses with (None: its nodes' texts), `decode` the student's.
    """
    cost = conversation.engine.cost
    if choice is None:
        return beginning(conversation, wanted, seed, tree, ended_by, decode)
    ids, logprobs, verdict = response_of(tree, choice, text_of)
    whole = verdict in WHOLE or extract(choice.response, strict=True) is not None
    text, stop = cut_at(choice.response, wanted.stops)
    tokens, count = None, len(ids)
    if wanted.logprobs is not None or stop is not None:
        reader = TextReader(decode, wanted.stops)
        ends = conversation.engine.eos_ids
        reader.feed(token for token in ids if token not in ends)
        reader.end()
        count = reader.kept()
        if wanted.logprobs is not None:
            tokens = tokens_of(reader, Whole(ids, logprobs, ()), reader.kept())
    return Outcome(
        text=text,
        finish="stop" if whole or stop is not None else "length",
        seed=seed,
        cost=cost,
        ended_by=ended_by,
        stop=stop,
        tokens=tokens,
        answer=choice.answer,
        why=choice.why,
        tree=tree,
        node=choice.node,
        text_tokens=count,
    )


def beginning(
    conversation: Conversation, wanted: Wanted, seed: int, tree: Tree, ended_by: str, decode: Decode
) -> Outcome:
    """The most visited path, or what was being drawn when the search was ended, whichever is longer."""
    node = most_visited(tree)
    ids, logprobs = tree.sequence(node)
    if len(conversation.engine.partial) > len(ids):
        ids, logprobs = conversation.engine.partial, ()
    reader = TextReader(decode, wanted.stops)
    ends = conversation.engine.eos_ids
    reader.feed(token for token in ids if token not in ends)
    reader.end()
    return Outcome(
        text=reader.text,
        finish="length" if reader.stop is None else "stop",
        seed=seed,
        cost=conversation.engine.cost,
        ended_by=ended_by,
        stop=reader.stop,
        tokens=None if wanted.logprobs is None else tokens_of(reader, Whole(ids, logprobs, ()), reader.kept()),
        why="no response was finished: the best beginning",
        tree=tree,
        node=node,
        text_tokens=reader.kept(),
    )


def response_of(
    tree: Tree, choice: Choice, decode: Callable[[tuple[int, ...]], str] | None
) -> tuple[tuple[int, ...], tuple[float, ...], str | None]:
    """Token ids, log-probabilities and verdict of a chosen response: a path, or a rollout that goes on from one."""
    ids, logprobs = tree.sequence(choice.node)
    if tree.verdict[choice.node] is None:
        for rollout in tree.rollouts:
            if rollout.node == choice.node:
                text = read(tree, rollout.node, rollout.token_ids, rollout.text, decode)
                if text == choice.response:
                    return ids + rollout.token_ids, logprobs + rollout.logprobs, rollout.verdict
    return ids, logprobs, tree.verdict[choice.node]


def cut_at(text: str, stops: Sequence[str]) -> tuple[str, str | None]:
    """`text` up to the first of the stop strings in it, and which one that is."""
    found = [(at, stop) for stop in stops if (at := text.find(stop)) >= 0]
    if not found:
        return text, None
    at, stop = min(found, key=lambda one: one[0])
    return text[:at], stop
