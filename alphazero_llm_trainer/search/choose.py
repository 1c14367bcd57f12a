"""Naming the best response of a tree, and saying why."""

from __future__ import annotations

from dataclasses import dataclass

from ..answers import extract, normalize
from .tree import ROOT, Tree


@dataclass(frozen=True, slots=True)
class Choice:
    """The chosen response: its terminal node, text and answer, its visits and mean reward, and the rule that chose it."""

    node: int
    response: str
    answer: str | None
    visits: int
    value: float
    why: str


def choose(tree: Tree, rule: str) -> Choice | None:
    """The best finished response of `tree` by `rule`, or None when no response was finished.

    - "vote": the answer whose leaves earned most in all (visits times value, summed over leaves that agree); of its
      leaves the best one. Weighted majority voting (Wang et al. 2023, self-consistency) over the tree's leaves.
    - "value": the leaf with the largest mean reward, the most visited on ties.
    - "visits": the leaf at the end of the most visited path.
    """
    leaves = [node for node in tree.leaves() if tree.N[node] > 0]
    if not leaves:
        return None
    if rule == "visits":
        node = ROOT
        while tree.children[node]:
            node = max(tree.children[node], key=lambda child: (tree.N[child], tree.W[child], -child))
        if tree.verdict[node] is not None:
            return _choice(tree, node, f"end of the most visited path ({tree.N[node]} visits)")
        rule = "value"
    if rule == "value":
        node = max(leaves, key=lambda leaf: (tree.q(leaf), tree.N[leaf], -leaf))
        return _choice(tree, node, f"largest mean reward ({tree.q(node):.3f}) of {len(leaves)} finished responses")
    votes: dict[str | None, float] = {}
    answers = {}
    for leaf in leaves:
        found = extract(tree.response(leaf))
        answers[leaf] = None if found is None else normalize(found)
        if found is not None:
            votes[answers[leaf]] = votes.get(answers[leaf], 0.0) + tree.W[leaf]
    if not votes:
        return choose(tree, "value")
    winner = max(votes, key=lambda answer: votes[answer])
    agreeing = [leaf for leaf in leaves if answers[leaf] == winner]
    node = max(agreeing, key=lambda leaf: (tree.W[leaf], tree.q(leaf), -leaf))
    total = sum(votes.values())
    share = votes[winner] / total if total > 0 else 0.0
    return _choice(tree, node, f"{share:.0%} of the value-weighted vote over {len(leaves)} finished responses")


def _choice(tree: Tree, node: int, why: str) -> Choice:
    response = tree.response(node)
    return Choice(node, response, extract(response), tree.N[node], tree.q(node), why)
