"""The best response of a tree, and why it is."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ..grading.answers import extract, normalize
from ..tree.arena import REJECTED, ROOT, Tree


@dataclass(frozen=True, slots=True)
class Choice:
    """The chosen response: its last node, text and answer, its visits and mean reward, and why it
    was chosen.
    """

    node: int
    response: str
    answer: str | None
    visits: int
    value: float
    why: str


@dataclass(frozen=True, slots=True)
class Response:
    """A finished response of a tree: its last node and text, its visits (at least 1) and their mean
    reward, and the log-probability of all its tokens under the policy at temperature 1 (nats).
    """

    node: int
    text: str
    visits: int
    value: float
    logprob: float


Decode = Callable[[tuple[int, ...]], str]
# What a response answers: equal for responses that vote together, None for none.
Reading = Callable[[str], str | None]


def responses(tree: Tree, text: Decode | None = None) -> Iterator[Response]:
    """The finished responses: terminal nodes in the order they were made (rejected steps aside),
    then rollouts.

    `text` decodes a whole response's tokens; without it the nodes' texts are joined, which is right
    where nodes are lines.
    """
    for end in tree.finished():
        if end.count and end.verdict != REJECTED:
            ids, logprobs = tree.sequence(end.node)
            whole = (
                tree.response(end.node) + end.text if text is None else text(ids + end.token_ids)
            )
            yield Response(
                end.node, whole, end.count, end.reward, sum(logprobs) + sum(end.logprobs)
            )


def most_visited(tree: Tree) -> int:
    """The end of the most visited path; the larger value and then the earlier child on ties."""
    node = ROOT
    while visited := [child for child in tree.children[node] if tree.N[child] > 0]:
        node = max(visited, key=lambda child: (tree.N[child], tree.W[child], -child))
    return node


def answer_of(text: str) -> str | None:
    """The normalised final answer of a response, a number."""
    answer = extract(text)
    return None if answer is None else normalize(answer)


def choose(
    tree: Tree,
    selector: str,
    end: int | None = None,
    text: Decode | None = None,
    reading: Reading = answer_of,
) -> Choice | None:
    """The best finished response of `tree` by `selector`, or None when no response was finished.

    - "vote": the answer whose responses earned most in all (visits times value, summed over those
      that agree); of these the best one. Weighted majority voting (Wang et al. 2023,
      self-consistency) over the tree's responses.
    - "mass": as "vote", for a tree in which no step is drawn twice: how often a response came says
      nothing of how likely it is, so each earns its value times its probability under the policy.
      Where nothing was earned, both count responses without their value.
    - "value": the response with the largest mean reward, the most visited on ties.
    - "visits": the response at the end of the most visited path.
    - "end": the response that ends in or goes on from node `end`.

    Under a verifier responses whose steps were all checked come before those with unread ones, and
    these before those in which nothing was checked; see `Judgement.rank`.

    `text` decodes token ids (see `responses`), `reading` says what a response answers.
    """

    def standing(response: Response) -> tuple[bool, bool, bool]:
        path = tree.path(response.node)
        return response.value > 0, tree.sure(path), tree.checked(path)

    finished = list(responses(tree, text))
    counted = "1 finished response" if len(finished) == 1 else f"{len(finished)} finished responses"
    if selector in ("visits", "end"):
        node = most_visited(tree) if selector == "visits" or end is None else end
        there = [
            response
            for response in finished
            if node in (ROOT, response.node, *tree.path(response.node))
        ]
        if there or selector == "end":
            best = max(there, key=lambda response: (response.visits, response.value), default=None)
            return _choice(best, reading, f"end of the most visited path ({tree.N[node]} visits)")
    answered = [] if selector in ("visits", "value") else [(reading(r.text), r) for r in finished]
    voters = [(answer, response) for answer, response in answered if answer is not None]
    if not voters:
        best = max(finished, key=lambda r: (*standing(r), r.value, r.visits, -r.node), default=None)
        if best is None:
            return None
        said = checks_of(tree, best.node) or f"largest mean reward ({best.value:.3f})"
        return _choice(best, reading, f"{said}: the best of {counted}")
    most = max(standing(response) for _, response in voters)
    if most[1]:  # what can be read and isn't wrong votes alone
        voters = [pair for pair in voters if standing(pair[1]) == most]
    earned = any(response.value > 0 for _, response in voters)
    top = max(response.logprob for _, response in voters if response.value > 0 or not earned)

    def weight(response: Response) -> float:
        value = max(response.value, 0.0) if earned else 1.0
        return value * (
            response.visits if selector == "vote" else math.exp(min(response.logprob - top, 0.0))
        )

    votes: dict[str, float] = {}  # by answer, in the order they were first seen
    for answer, response in voters:
        votes[answer] = votes.get(answer, 0.0) + weight(response)
    winner = max(votes, key=lambda answer: votes[answer])
    agreeing = [response for answer, response in voters if answer == winner]
    best = max(agreeing, key=lambda response: (weight(response), response.value, -response.node))
    share = votes[winner] / sum(votes.values())
    weighted = "probability" if selector == "mass" else "value" if earned else "visit"
    said = checks_of(tree, best.node)
    vote = f"{share:.0%} of the {weighted}-weighted vote over {counted}"
    return _choice(best, reading, f"{vote}; {said}" if said else vote)


def checks_of(tree: Tree, node: int) -> str:
    """What a verifier made of the steps down to `node`, in words; "" where none was asked."""
    path = tree.path(node)
    scores = [tree.prm[step] for step in path if tree.prm[step] is not None]
    unread = sum(tree.unread[step] for step in path)
    stated = len(scores) + unread
    if unread:
        return f"{unread} of {stated} steps couldn't be checked"
    if not scores:
        return ""
    least = min(score for score in scores if score is not None)
    rest = "none wrong" if least == 1.0 else f"the least {least:.2f}"
    return f"{len(scores)} of {stated} steps checked, {rest}"


def voting(selector: str, verified: bool) -> str:
    """`search.choose` as a search votes. Under a verifier a vote goes by probability: steps are
    drawn once there, and where they may repeat, visits are no better than what they estimate.
    """
    return "mass" if verified and selector == "vote" else selector


def _choice(best: Response | None, reading: Reading, why: str) -> Choice | None:
    if best is None:
        return None
    # A number is shown as it was written.
    answer = extract(best.text) if reading is answer_of else reading(best.text)
    return Choice(best.node, best.text, answer, best.visits, best.value, why)
