"""How a descent goes through a tree: what plain, Gumbel and verified search pass to the one loop in
`Mcts`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from ..tree.arena import REJECTED, ROOT, Tree

TINY = 1e-300  # log must not see 0

# (tree, node, simulations still to come) -> where the descent goes from `node`: to a child; to
# `node` itself, which is the leaf then; None where the next choice waits for values of simulations
# in flight.
Rule = Callable[[Tree, int, int], int | None]
Arms = Callable[[Tree, int], Sequence[int]]  # the children of a node that a descent may go on to
Select = Callable[[Tree, int, float], int]  # (tree, node, exploration) -> a child
# (tree, node, exploration, arms) -> an arm, or the node itself for a step that is not drawn yet
OpenSelect = Callable[[Tree, int, float, Sequence[int]], int]


def expanded_children(tree: Tree, node: int) -> Sequence[int]:
    """The children of a node that was evaluated."""
    return tree.children[node] if tree.expanded[node] else ()


def closed_rule(select: Select, exploration: float) -> Rule:
    """Down by `select` to the first node that wasn't evaluated: an evaluation gives a node all its
    children at once.
    """

    def rule(tree: Tree, node: int, left: int) -> int:
        return select(tree, node, exploration) if expanded_children(tree, node) else node

    return rule


def open_rule(select: OpenSelect, exploration: float, arms: Arms) -> Rule:
    """Down by `select` until it prefers a new step: each node can be drawn from again, and is once
    no arm is left.
    """

    def rule(tree: Tree, node: int, left: int) -> int:
        live = arms(tree, node)
        return select(tree, node, exploration, live) if live else node

    return rule


def rescaled_rule(rule: Rule) -> Rule:
    """`rule` over Q that is scaled to [0, 1] by its least and largest in the tree, anew for each
    descent: values of .01 to .1 would be drowned by the priors (see `Tree.rescale`).
    """

    def scale_first(tree: Tree, node: int, left: int) -> int | None:
        if node == ROOT:
            tree.rescale()
        return rule(tree, node, left)

    return scale_first


class OpenNode(NamedTuple):
    """A node that a step can be drawn from, as a `Priority` reads it.

    `logprob` (nats) is of the path to it and a step not drawn yet, under `child_shares`; `draws`
    are those from it so far and in flight; `value` is its V, the mean of what was backed up where
    its V isn't known, and None in a search without a value.
    """

    depth: int
    logprob: float
    draws: int
    value: float | None


# (node, exploration, discount) -> a number: the node with the least one is drawn from next
Priority = Callable[[OpenNode, float, float], float]


class BestFirst:
    """The rule of best-first searches: down to the open node with the least `priority`, the
    earliest on ties. A state is asked for one step at a time.

    `guided`: by a value. A root whose V the budget didn't pay for stands at the mean of what was
    backed up.
    """

    def __init__(
        self, arms: Arms, priority: Priority, exploration: float = 0.0, guided: bool = True
    ) -> None:
        self.arms, self.priority = arms, priority
        self.exploration, self.guided = exploration, guided
        self.way: list[int] = []  # from the node that the descent has reached to its end

    def __call__(self, tree: Tree, node: int, left: int) -> int:
        if node == ROOT:
            self.way = tree.path(self.best(tree))
        return self.way.pop(0) if self.way else node

    def best(self, tree: Tree) -> int:
        """The node to draw from next."""
        live = [(ROOT, 0, 0.0)]  # with its depth and the log-probability of the path to it
        scores = []
        for node, depth, logprob in live:  # grows while it is read
            drawn, new = child_shares(tree, node)
            live += [
                (child, depth + 1, logprob + math.log(drawn[child]))
                for child in self.arms(tree, node)
                if tree.verdict[child] is None
            ]
            value = tree.V[node]
            if value is None and self.guided:
                value = tree.q(node)
            draws = tree.drawn[node] + tree.virtual[node]
            state = OpenNode(depth, logprob + math.log(new), draws, value)
            scores.append((self.priority(state, self.exploration, tree.discount), node))
        return min(scores)[1]


def child_probabilities(tree: Tree, node: int) -> tuple[dict[int, float], float]:
    """The probability of each child's tokens under the policy, and what is left for steps not drawn
    yet.
    """
    drawn = {child: math.exp(math.fsum(tree.logprobs[child])) for child in tree.children[node]}
    return drawn, max(1.0 - math.fsum(drawn.values()), 0.0)


def child_shares(tree: Tree, node: int) -> tuple[dict[int, float], float]:
    """What each child and a step not drawn yet have of a probability of 1, all above 0.

    A child has the probability of its tokens, and no less than an equal part of what k children
    leave, `left / (1 + k)`: a long step has next to none and is never drawn twice (as samples have
    equal priors in Hubert et al. 2021). A new step has the rest, less for each draw in flight and
    each that brought no new child.
    """
    drawn, left = child_probabilities(tree, node)
    count = 1 + len(drawn)
    drawn = {child: max(p, left / count, TINY) for child, p in drawn.items()}
    vain = (1 + tree.drawn[node] + tree.virtual[node]) / count
    return drawn, max((1.0 - math.fsum(drawn.values())) / vain, TINY)


class Live:
    """The arms of a search under a verifier: a node's children but for rejected ones.

    A node whose children are all rejected is drawn from again at once, and after `patience`
    rejections it counts as rejected itself (it is in `dead`), so that the search goes one step
    back. A finished response is an arm only where its steps were checked (another visit would learn
    nothing of it), and without `ends` none is.
    """

    def __init__(self, tree: Tree, patience: int, ends: bool = True) -> None:
        self.patience, self.ends = patience, ends
        self.dead: set[int] = set()
        self._backups = len(tree.backups)  # that were looked at
        for node in range(len(tree) - 1, ROOT, -1):
            self._bury(tree, node)

    def __call__(self, tree: Tree, node: int) -> list[int]:
        for end, _, _ in tree.backups[self._backups :]:
            self._bury(tree, tree.parent[end])
        self._backups = len(tree.backups)
        return [
            child
            for child in tree.children[node]
            if not self._is_rejected(tree, child) and self._open(tree, child)
        ]

    def _is_rejected(self, tree: Tree, node: int) -> bool:
        return tree.verdict[node] == REJECTED or node in self.dead

    def _open(self, tree: Tree, node: int) -> bool:
        return tree.verdict[node] is None or (self.ends and tree.sure(tree.path(node)))

    def _bury(self, tree: Tree, node: int) -> None:
        """Count `node` as rejected once `patience` draws below it were and nothing good is left;
        then look at its parent.
        """
        while node > ROOT and node not in self.dead:
            children = tree.children[node]
            if not children or not all(self._is_rejected(tree, child) for child in children):
                return
            # A dead child counts once: its own rejections were counted where they happened.
            if (
                sum(1 if child in self.dead else tree.N[child] for child in children)
                < self.patience
            ):
                return
            self.dead.add(node)
            node = tree.parent[node]
