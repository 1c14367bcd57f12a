"""Naming the best response of a tree, saying why, and telling when more search couldn't change it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ..answers import extract, normalize
from .tree import REJECTED, ROOT, Tree


@dataclass(frozen=True, slots=True)
class Choice:
    """The chosen response: its last node, text and answer, its visits and mean reward, and why it was chosen."""

    node: int
    response: str
    answer: str | None
    visits: int
    value: float
    why: str


@dataclass(frozen=True, slots=True)
class Response:
    """A finished response of a tree: a visited terminal node, or a rollout.

    `earned` is visits times mean reward, `logprob` the log-probability of all its tokens under the policy (nats).
    """

    node: int
    text: str
    visits: int
    earned: float
    logprob: float = 0.0

    @property
    def value(self) -> float:
        return self.earned / self.visits


Text = Callable[[tuple[int, ...]], str]
Reading = Callable[[str], str | None]  # what a response answers: equal for responses that vote together, None for none


def responses(tree: Tree, text: Text | None = None) -> Iterator[Response]:
    """The finished responses: terminal nodes in the order they were made (rejected steps aside), then rollouts.

    `text` decodes a whole response's tokens; without it the nodes' texts are joined, which is right where nodes are lines.
    """
    for leaf in tree.leaves():
        if tree.N[leaf] > 0 and tree.verdict[leaf] != REJECTED:
            yield Response(leaf, read(tree, leaf, (), "", text), tree.N[leaf], tree.W[leaf], logprob(tree, leaf))
    for rollout in tree.rollouts:
        whole = read(tree, rollout.node, rollout.token_ids, rollout.text, text)
        likely = logprob(tree, rollout.node) + sum(rollout.logprobs)
        yield Response(rollout.node, whole, rollout.count, rollout.count * rollout.reward, likely)


def logprob(tree: Tree, node: int) -> float:
    """Log-probability (nats) of the response down to `node`, under the policy at temperature 1."""
    return sum(sum(tree.logprobs[step]) for step in tree.path(node))


def read(tree: Tree, node: int, rest: tuple[int, ...], rest_text: str, text: Text | None) -> str:
    """The text of the response down to `node` and of the tokens `rest` after it."""
    if text is None:
        return tree.response(node) + rest_text
    return text(tree.sequence(node)[0] + rest)


def most_visited(tree: Tree) -> int:
    """The end of the most visited path; the larger value and then the earlier child on ties."""
    node = ROOT
    while visited := [child for child in tree.children[node] if tree.N[child] > 0]:
        node = max(visited, key=lambda child: (tree.N[child], tree.W[child], -child))
    return node


def answer_of(text: str) -> str | None:
    """The normalised final answer of a response, a number."""
    found = extract(text)
    return None if found is None else normalize(found)


def choose(
    tree: Tree, selector: str, end: int | None = None, text: Text | None = None, reading: Reading = answer_of
) -> Choice | None:
    """The best finished response of `tree` by `selector`, or None when no response was finished.

    - "vote": the answer whose responses earned most in all (visits times value, summed over those that agree); of these
      the best one. Weighted majority voting (Wang et al. 2023, self-consistency) over the tree's responses.
    - "mass": as "vote", for a tree in which no step is drawn twice: how often a response was found says nothing of how
      likely it is, so each earns its value times its probability under the policy.
      Where nothing was earned, both count responses without their value.
    - "value": the response with the largest mean reward, the most visited on ties; of those under a verifier a judged one.
    - "visits": the response at the end of the most visited path.
    - "end": the response that ends in or goes on from node `end`.

    `text` decodes token ids (see `responses`), `reading` says what a response answers.
    """
    found = list(responses(tree, text))
    if selector == "end":
        return _end(tree, found, end, text, reading)
    if not found:
        return None
    if selector == "visits":
        node = most_visited(tree)
        at_end = [one for one in found if one.node == node]
        if at_end:
            best = max(at_end, key=lambda one: (one.visits, one.value))
            return _choice(best, reading, f"end of the most visited path ({tree.N[node]} visits)")
        selector = "value"
    if selector == "value":
        # Under a verifier as in `Judgement.rank`; elsewhere nothing was checked.
        best = max(
            found,
            key=lambda one: (one.value > 0, tree.checked(tree.path(one.node)), one.value, one.visits, -one.node),
        )
        return _choice(best, reading, f"largest mean reward ({best.value:.3f}) of {len(found)} finished responses")
    voters = [one for one in found if reading(one.text) is not None]
    if not voters:
        return choose(tree, "value", None, text, reading)
    earned = [one for one in voters if one.earned > 0]
    top = max(one.logprob for one in earned or voters)

    def weight(one: Response) -> float:
        worth = max(one.value, 0.0) if earned else 1.0
        return worth * (one.visits if selector == "vote" else math.exp(min(one.logprob - top, 0.0)))

    votes: dict[str, float] = {}  # by answer, in the order they were first seen
    for one in voters:
        answer = reading(one.text) or ""
        votes[answer] = votes.get(answer, 0.0) + weight(one)
    winner = max(votes, key=lambda answer: votes[answer])
    agreeing = [one for one in voters if reading(one.text) == winner]
    best = max(agreeing, key=lambda one: (weight(one), one.value, -one.node))
    share = votes[winner] / sum(votes.values())
    weighted = "probability" if selector == "mass" else "value" if earned else "visit"
    return _choice(best, reading, f"{share:.0%} of the {weighted}-weighted vote over {len(found)} finished responses")


def _end(tree: Tree, found: list[Response], end: int | None, text: Text | None, reading: Reading) -> Choice | None:
    node = most_visited(tree) if end is None else end
    at_end = [one for one in found if node in (ROOT, one.node, *tree.path(one.node))]
    if not at_end and tree.verdict[node] is not None:
        at_end = [Response(node, read(tree, node, (), "", text), 1, tree.reward[node] or 0.0)]
    if not at_end:
        return None
    best = max(at_end, key=lambda one: (one.visits, one.value))
    return _choice(best, reading, f"the most visited path ({tree.N[node]} visits), then one rollout")


def voting(selector: str, verified: bool) -> str:
    """`search.choose` as a search votes. Under a verifier a vote goes by probability: steps are drawn once there, and where
    they may repeat, visits are no better than what they estimate."""
    return "mass" if verified and selector == "vote" else selector


def accepted(tree: Tree, least: float) -> bool:
    """True when a finished response that was judged earned `least` or more, and anything at all."""
    earned = ((leaf, tree.reward[leaf] or 0.0) for leaf in tree.leaves())
    return any(reward > 0 and reward >= least and tree.checked(tree.path(leaf)) for leaf, reward in earned)


def _choice(best: Response, reading: Reading, why: str) -> Choice:
    # A number is shown as it was written.
    answer = extract(best.text) if reading is answer_of else reading(best.text)
    return Choice(best.node, best.text, answer, best.visits, best.value, why)
