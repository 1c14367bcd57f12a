"""Monte-Carlo tree search over reasoning steps, as ask and tell. Synchronous and pure: no engine, no clock, no gold.

One iteration: descend from the root by the selection rule while the node's children were asked for; there, expand:
continuations are drawn to the end of the response (leaf-parallel playouts, Cazenave & Jouandeau 2007), their first
steps become children, the rest of each stays in the tree below, and every playout's reward is backed up from its end.
A descent that ends in a terminal node backs up that node's reward again and costs nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..types import Continuation, RewardParts
from .select import Select
from .tree import ROOT, Tree


@dataclass(frozen=True, slots=True)
class Leaf:
    """Where continuations are wanted: a node and the number of its iteration, which seeds the draws."""

    node: int
    iteration: int


@dataclass(frozen=True, slots=True)
class Playout:
    """A continuation of a leaf with its end's verdict and reward; None for both when it was not evaluated."""

    continuation: Continuation
    verdict: str | None
    reward: RewardParts | None


class Mcts:
    """`ask` for a leaf, `tell` what came of it, until `ask` returns None.

    Args:
        tree: a new tree, or one to go on with.
        select: a rule of `search.select`.
        exploration: the rule's constant.
        iterations: how many iterations `ask` hands out or does by itself.
    """

    def __init__(self, tree: Tree, select: Select, exploration: float, iterations: int) -> None:
        self.tree, self.select, self.exploration = tree, select, exploration
        self.iterations, self.iteration = iterations, 0
        self._leaf: Leaf | None = None

    def ask(self) -> Leaf | None:
        """The next leaf to expand; the same one until it is told; None when the iterations are used up."""
        while self._leaf is None and self.iteration < self.iterations:
            node = self._descend()
            self.iteration += 1
            reward = self.tree.reward[node]
            if reward is None:
                self._leaf = Leaf(node, self.iteration)
            else:
                self.tree.backup(node, reward)
        return self._leaf

    def _descend(self) -> int:
        tree, node = self.tree, ROOT
        while tree.expanded[node] and tree.children[node]:
            node = self.select(tree, node, self.exploration)
        return node

    def tell(self, leaf: Leaf, playouts: Sequence[Playout]) -> None:
        """Attach a leaf's playouts and back up their rewards. Telling a leaf again changes nothing.

        Raises ValueError for a reward outside [0, 1] (UCB1's constant means nothing there) and leaves the tree alone.
        """
        if leaf != self._leaf:
            return
        for playout in playouts:
            if playout.reward is not None and not 0.0 <= playout.reward.total <= 1.0:
                raise ValueError(f"reward {playout.reward.total} is outside [0, 1]")
        tree = self.tree
        for playout in playouts:
            continuation, node = playout.continuation, leaf.node
            for depth, step in enumerate(continuation.steps):
                if tree.verdict[node] is not None:
                    break
                # Only the proposal is the proposer's; the rollout after a teacher's step is the student's own.
                if depth == 0:
                    node = tree.attach(node, step, continuation.source, continuation.direction)
                else:
                    node = tree.attach(node, step)
            if playout.reward is not None and playout.verdict is not None:
                if tree.verdict[node] is None and not tree.children[node]:
                    tree.finish(node, playout.verdict, playout.reward)
                tree.samples[node] += 1
                # A path that was graded before keeps its grade.
                earned = tree.reward[node]
                tree.backup(node, playout.reward.total if earned is None else earned)
        tree.expanded[leaf.node] = True
        self._leaf = None
