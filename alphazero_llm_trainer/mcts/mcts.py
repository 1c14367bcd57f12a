"""Monte-Carlo tree search, as ask and tell. Synchronous and pure: no engine, no clock, no gold.

One simulation: descend from the root by the selector while the node's children were asked for;
there, the caller evaluates the leaf, and its evaluation becomes children and a backed-up value.
What a leaf is, is the caller's choice:

- a reasoning step: continuations are drawn to the end of the response (leaf-parallel playouts,
  Cazenave & Jouandeau 2007), their first steps become children, the rest of each stays in the tree
  below, and every playout's reward is backed up from its end;
- a token: its likeliest next tokens become unvisited children with priors, and a value, a rollout's
  reward or a mix of the two is backed up from the leaf (Silver et al. 2016, "Mastering the game of
  Go", AlphaGo).

A descent that ends in a terminal node backs up that node's reward again and costs nothing.

Where a descent goes is one rule (`descent.py`): of UCB1 or PUCT, of a Gumbel root, or of a
verifier's open arms.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..tree.arena import REJECTED, ROOT, Rollout, Tree
from ..types import Continuation, RewardParts, Steps
from .descent import Rule


@dataclass(frozen=True, slots=True)
class Leaf:
    """Where an evaluation is wanted: a node and the number of its simulation."""

    node: int
    simulation: int


@dataclass(frozen=True, slots=True)
class Playout:
    """A continuation of a leaf with its end's verdict and reward; None for both when it was not
    evaluated.
    """

    continuation: Continuation
    verdict: str | None
    reward: RewardParts | None


@dataclass(frozen=True, slots=True)
class LeafEvaluation:
    """What came of a leaf.

    playouts: continuations that are grafted below it, each backed up from its own end.
    rollout_weight: lambda of `mix`, for what the playouts back up to the leaf and above it when
    there is an estimate.
    steps, priors: children that are attached unvisited; the priors are probabilities that sum to 1.
    terminal: verdict and reward when the leaf turned out to be a response's end.
    estimate: the value network's V of the leaf, in [0, 1].
    value: what this simulation backs up from the leaf, in [0, 1]; None when the playouts did that.
    rollouts: how responses went on from the leaf; kept beside the tree.
    scores: a verifier's score of each step of the one playout, in [0, 1]; None where it checked
    nothing.
    unread: for each of these steps, whether it states something that could not be checked.
    values: V of each step of the one playout, where the verifier is a value network. A judged
    playout without a reward backs up V of its last step, once, and without a value `estimate`.
    """

    playouts: Sequence[Playout] = ()
    steps: Steps = ()
    priors: Sequence[float] = ()
    terminal: tuple[str, RewardParts] | None = None
    estimate: float | None = None
    value: float | None = None
    rollouts: Sequence[Rollout] = ()
    rollout_weight: float = 1.0
    scores: Sequence[float | None] = ()
    values: Sequence[float] = ()
    unread: Sequence[bool] = ()

    def rewards(self) -> list[float]:
        """Everything that must lie in [0, 1]."""
        rewards = [playout.reward for playout in self.playouts]
        if self.terminal is not None:
            rewards.append(self.terminal[1])
        numbers = [
            self.estimate,
            self.value,
            *self.scores,
            *self.values,
            *(reward.total for reward in rewards if reward is not None),
        ]
        return [number for number in numbers if number is not None]


def mix(value: float, rollout: float, rollout_weight: float) -> float:
    """`Q = (1 - lambda)*Q_value + lambda*Q_rollout` with lambda = `rollout_weight` (Silver et al.
    2016, AlphaGo, leaf evaluation).
    """
    return (1.0 - rollout_weight) * value + rollout_weight * rollout


class Mcts:
    """`ask` for leaves, `tell` what came of each, until `ask` returns none.

    Args:
        tree: a new tree, or one to go on with.
        rule: where a descent goes, see `descent.py`.
        simulations: how many simulations `ask` hands out or does by itself.

    A simulation in flight counts as a visit of value 0 along its path (virtual loss, Chaslot et al.
    2008, "Parallel Monte-Carlo tree search"), so that the next descent goes elsewhere.

    `expected` is how many simulations are still to come, for the rule: what is left of
    `simulations`, or fewer where the driver knows that a budget of tokens ends the search before.
    """

    def __init__(self, tree: Tree, rule: Rule, simulations: int) -> None:
        self.tree, self.rule = tree, rule
        self.simulations, self.simulation, self.expected = simulations, 0, simulations
        # Leaves that were asked for and not yet backed up, in ask order, with the evaluation of
        # each that has come.
        self._pending: dict[Leaf, LeafEvaluation | None] = {}

    @property
    def left(self) -> int:
        """How many simulations are still to come."""
        return self.simulations - self.simulation

    def ask(self, n: int = 1) -> list[Leaf]:
        """Up to `n` leaves to evaluate at once: those in flight first, then new ones; none when the
        simulations are over.

        Fewer than `n` come back when a descent ends in a node whose evaluation is under way
        already.
        """
        while len(self._pending) < n and self.simulation < self.simulations:
            node = self._descend()
            if node is None or any(leaf.node == node for leaf in self._pending):
                break
            self.simulation += 1
            self.expected = max(self.expected - 1, 1)
            reward = self.tree.reward[node]
            if reward is not None:
                self.tree.backup(node, reward)
                self.tree.simulated(node)
                continue
            self._pending[Leaf(node, self.simulation)] = None
            self.tree.hold(node, 1)
        return list(self._pending)

    def _descend(self) -> int | None:
        """The node that the next simulation ends in; None where the rule waits for values in
        flight.
        """
        node = ROOT
        while (below := self.rule(self.tree, node, self.expected)) != node:
            if below is None:
                return None
            node = below
        return node

    def tell(self, leaf: Leaf, evaluation: LeafEvaluation) -> None:
        """Take a leaf's evaluation in. Leaves are backed up in ask order, whatever order they are
        told in.

        Telling a leaf again changes nothing. Raises ValueError for a value outside [0, 1] (UCB1's
        constant means nothing there) and leaves the tree alone.
        """
        pending = self._pending
        if leaf not in pending or pending[leaf] is not None:
            return
        for value in evaluation.rewards():
            if not 0.0 <= value <= 1.0:
                raise ValueError(f"reward {value} is outside [0, 1]")
        pending[leaf] = evaluation
        for first, known in list(pending.items()):
            if known is None:
                break
            del pending[first]
            self.tree.hold(first.node, -1)
            self._apply(first.node, known)

    def cancel(self) -> None:
        """Let go of every leaf in flight: their virtual losses are taken back, nothing is backed
        up.
        """
        for leaf in self._pending:
            self.tree.hold(leaf.node, -1)
        self._pending = {}
        self.tree.growing = {}

    def _apply(self, node: int, evaluation: LeafEvaluation) -> None:
        tree = self.tree
        tree.growing.pop(node, None)
        if evaluation.estimate is not None and not evaluation.scores:
            tree.V[node] = evaluation.estimate
        if evaluation.terminal is not None:
            tree.finish(node, *evaluation.terminal)
            tree.samples[node] += 1
        elif evaluation.steps:
            tree.expand(node, evaluation.steps, evaluation.priors)
        tree.rollouts += evaluation.rollouts
        for playout in evaluation.playouts:
            self._graft(node, playout, evaluation)
        if evaluation.value is not None:
            tree.backup(node, evaluation.value)
        # A draw that gave nothing is one all the same.
        tree.drawn[node] += not (evaluation.playouts or evaluation.steps)
        tree.expanded[node] = True
        tree.simulated(node)

    def _graft(self, leaf: int, playout: Playout, evaluation: LeafEvaluation) -> None:
        """Attach a playout's steps below `leaf` and back its reward up from its end."""
        tree, continuation, node = self.tree, playout.continuation, leaf
        for depth, step in enumerate(continuation.steps):
            if tree.verdict[node] is not None:
                break
            # Only the proposal is the proposer's; the rollout after a teacher's step is the
            # student's own.
            proposer = (continuation.source, continuation.direction) if depth == 0 else ()
            node = tree.attach(node, step, *proposer)
            if depth < len(evaluation.scores):
                tree.prm[node] = evaluation.scores[depth]
            if depth < len(evaluation.unread):
                tree.unread[node] = evaluation.unread[depth]
            if depth < len(evaluation.values):
                tree.V[node] = evaluation.values[depth]
        if playout.reward is None and evaluation.scores:
            standing = evaluation.values[-1] if evaluation.values else evaluation.estimate
            if standing is not None:
                tree.backup(node, standing)
        if playout.reward is not None and playout.verdict is not None:
            if tree.verdict[node] is None and not tree.children[node]:
                tree.finish(node, playout.verdict, playout.reward)
            tree.samples[node] += 1
            # A path that was graded before keeps its grade.
            earned = tree.reward[node]
            reward = playout.reward.total if earned is None else earned
            if playout.verdict == REJECTED and evaluation.estimate is not None:
                tree.backup(node, reward, above=tree.parent[node])
                tree.backup(tree.parent[node], evaluation.estimate)
            elif (
                evaluation.estimate is None
                or evaluation.rollout_weight == 1.0
                or evaluation.value is not None
            ):
                tree.backup(node, reward)
            else:
                tree.backup(node, reward, above=leaf)
                tree.backup(leaf, mix(evaluation.estimate, reward, evaluation.rollout_weight))
