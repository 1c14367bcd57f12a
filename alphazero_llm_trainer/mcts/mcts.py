"""Monte-Carlo tree search, as ask and tell. Synchronous and pure: no engine, no clock, no gold.

One simulation: descend from the root by the selector while the node's children were asked for; there, the caller
evaluates the leaf, and its evaluation becomes children and a backed-up value. What a leaf is, is the caller's choice:

- a reasoning step: continuations are drawn to the end of the response (leaf-parallel playouts, Cazenave & Jouandeau
  2007), their first steps become children, the rest of each stays in the tree below, and every playout's reward is
  backed up from its end;
- a token: its likeliest next tokens become unvisited children with priors, and a value, a rollout's reward or a mix of
  the two is backed up from the leaf (Silver et al. 2016, "Mastering the game of Go", AlphaGo).

A descent that ends in a terminal node backs up that node's reward again and costs nothing.

Under a verifier (`search.verified`) a rejected step is a terminal node that no descent looks at again. A node whose
children are all rejected is drawn from again at once, and after `patience` rejections it counts as rejected itself, so
that the search goes one step back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..types import Continuation, RewardParts, Step
from .gumbel import GumbelRoot
from .select import OpenSelect, Select, open_puct
from .tree import REJECTED, ROOT, Rollout, Tree


@dataclass(frozen=True, slots=True)
class Leaf:
    """Where an evaluation is wanted: a node and the number of its simulation."""

    node: int
    simulation: int


@dataclass(frozen=True, slots=True)
class Playout:
    """A continuation of a leaf with its end's verdict and reward; None for both when it was not evaluated."""

    continuation: Continuation
    verdict: str | None
    reward: RewardParts | None


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What came of a leaf.

    playouts: continuations that are grafted below it, each backed up from its own end.
    rollout_weight: lambda of `mix`, for what the playouts back up to the leaf and above it when there is an estimate.
    steps, priors: children that are attached unvisited; the priors are probabilities that sum to 1.
    terminal: verdict and reward when the leaf turned out to be a response's end.
    estimate: the value network's V of the leaf, in [0, 1].
    value: what this simulation backs up from the leaf, in [0, 1]; None when the playouts did that.
    rollouts: how responses went on from the leaf; kept beside the tree.
    scores: a verifier's score of each step of the one playout, in [0, 1]; None where it had nothing to check.
    """

    playouts: Sequence[Playout] = ()
    steps: Sequence[Step] = ()
    priors: Sequence[float] = ()
    terminal: tuple[str, RewardParts] | None = None
    estimate: float | None = None
    value: float | None = None
    rollouts: Sequence[Rollout] = ()
    rollout_weight: float = 1.0
    scores: Sequence[float | None] = ()

    def rewards(self) -> list[float]:
        """Everything that must lie in [0, 1]."""
        found = [playout.reward.total for playout in self.playouts if playout.reward is not None]
        found += [value for value in (self.estimate, self.value) if value is not None]
        found += [score for score in self.scores if score is not None]
        return found if self.terminal is None else [*found, self.terminal[1].total]


def mix(value: float, rollout: float, rollout_weight: float) -> float:
    """`Q = (1 - lambda)*Q_value + lambda*Q_rollout` with lambda = `rollout_weight` (Silver et al. 2016, AlphaGo, leaf
    evaluation)."""
    return (1.0 - rollout_weight) * value + rollout_weight * rollout


class Mcts:
    """`ask` for leaves, `tell` what came of each, until `ask` returns none.

    Args:
        tree: a new tree, or one to go on with.
        select: one of `select.SELECTORS`.
        exploration: the selector's constant.
        simulations: how many simulations `ask` hands out or does by itself.
        virtual_loss: visits of value 0 that a simulation in flight counts as along its path (Chaslot et al. 2008,
            "Parallel Monte-Carlo tree search"), so that the next descent goes elsewhere.
        patience: rejected draws below a node without a good one after which the node is rejected too; None without a
            verifier. With it `open_select` is asked and not `select`.
        open_select: one of `select.OPEN_SELECTORS`.
        root: chooses among the root's children instead of `select`.

    `expected` is how many simulations are still to come, for `root`: what is left of `simulations`, or fewer where the
    driver knows that a budget of tokens ends the search before.
    """

    def __init__(
        self,
        tree: Tree,
        select: Select,
        exploration: float,
        simulations: int,
        *,
        virtual_loss: int = 1,
        patience: int | None = None,
        open_select: OpenSelect = open_puct,
        root: GumbelRoot | None = None,
    ) -> None:
        self.tree, self.select, self.exploration = tree, select, exploration
        self.open_select, self.root = open_select, root
        self.simulations, self.simulation, self.expected = simulations, 0, simulations
        self.virtual_loss, self.patience = virtual_loss, patience
        self.dead: set[int] = set()
        for node in range(len(tree) - 1, ROOT, -1) if patience is not None else ():
            self._bury(node)
        # Leaves that were asked for and not yet backed up, in ask order, with what was told of them so far.
        self._told: dict[Leaf, Evaluation | None] = {}

    def ask(self, n: int = 1) -> list[Leaf]:
        """Up to `n` leaves to evaluate at once: those in flight first, then new ones; none when the simulations are over.

        Fewer than `n` come back when a descent ends in a node whose evaluation is under way already.
        """
        while len(self._told) < n and self.simulation < self.simulations:
            node = self._descend()
            if node is None or any(leaf.node == node for leaf in self._told):
                break
            self.simulation += 1
            self.expected = max(self.expected - 1, 1)
            reward = self.tree.reward[node]
            if reward is not None:
                self.tree.backup(node, reward)
                self.tree.simulated(node)
                continue
            self._told[Leaf(node, self.simulation)] = None
            self.tree.hold(node, self.virtual_loss)
        return list(self._told)

    def _descend(self) -> int | None:
        """The node that the next simulation ends in; None where the root waits for values in flight."""
        tree, node, root = self.tree, ROOT, self.root
        if root is not None and root.draws_more(tree, self.expected):
            return ROOT
        chosen = False  # whether there was a choice above the node
        # Under a verifier a chain's nodes are arms as soon as they are there: each can be drawn from again.
        while (tree.expanded[node] or self.patience is not None) and (children := tree.children[node]):
            if self.patience is not None:
                children = [child for child in children if not (self._rejected(child) or self._unjudged(child))]
                if root is not None:  # what is finished is known, and the improved policy would never look elsewhere
                    children = [child for child in children if tree.verdict[child] is None]
            if root is not None and not chosen and children and (len(children) > 1 or self.patience is not None):
                chosen = True
                best = root.choose(tree, node, children, self.expected)
                if best is None:
                    return None
                node = best
                continue
            if self.patience is not None:
                best = self.open_select(tree, node, self.exploration, children)
                if best == node:
                    break
                node = best
                continue
            node = children[0] if len(children) == 1 else self.select(tree, node, self.exploration)
        return node

    def _rejected(self, node: int) -> bool:
        return self.tree.verdict[node] == REJECTED or node in self.dead

    def _unjudged(self, node: int) -> bool:
        """Whether a response ended here of which no step was checked: another visit would learn nothing of it."""
        return self.tree.verdict[node] is not None and not self.tree.checked(self.tree.path(node))

    def _bury(self, node: int) -> None:
        """Count `node` as rejected when `patience` draws below it were and nothing good is left; then look at its parent."""
        tree = self.tree
        while node > ROOT and node not in self.dead:
            children = tree.children[node]
            if not children or not all(map(self._rejected, children)):
                return
            # A buried child counts once: its own rejections were counted where they happened.
            draws = sum(1 if child in self.dead else tree.N[child] for child in children)
            if draws < (self.patience or 0):
                return
            self.dead.add(node)
            node = tree.parent[node]

    def tell(self, leaf: Leaf, evaluation: Evaluation) -> None:
        """Take a leaf's evaluation in. Leaves are backed up in ask order, whatever order they are told in.

        Telling a leaf again changes nothing. Raises ValueError for a value outside [0, 1] (UCB1's constant means nothing
        there) and leaves the tree alone.
        """
        told = self._told
        if leaf not in told or told[leaf] is not None:
            return
        for value in evaluation.rewards():
            if not 0.0 <= value <= 1.0:
                raise ValueError(f"reward {value} is outside [0, 1]")
        told[leaf] = evaluation
        while told and (first := next(iter(told))) is not None and (found := told[first]) is not None:
            del told[first]
            self.tree.hold(first.node, -self.virtual_loss)
            self._apply(first.node, found)

    def cancel(self) -> None:
        """Let go of every leaf in flight: their virtual losses are taken back, nothing is backed up."""
        for leaf in self._told:
            self.tree.hold(leaf.node, -self.virtual_loss)
        self._told = {}

    def _apply(self, node: int, evaluation: Evaluation) -> None:
        tree = self.tree
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
        tree.expanded[node] = True
        tree.simulated(node)

    def _graft(self, leaf: int, playout: Playout, evaluation: Evaluation) -> None:
        """Attach a playout's steps below `leaf` and back its reward up from its end."""
        tree, continuation, node = self.tree, playout.continuation, leaf
        for depth, step in enumerate(continuation.steps):
            if tree.verdict[node] is not None:
                break
            # Only the proposal is the proposer's; the rollout after a teacher's step is the student's own.
            if depth == 0:
                node = tree.attach(node, step, continuation.source, continuation.direction)
            else:
                node = tree.attach(node, step)
            if evaluation.scores and depth < len(evaluation.scores):
                tree.prm[node] = evaluation.scores[depth]
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
                self._bury(tree.parent[node])
            elif evaluation.estimate is None or evaluation.rollout_weight == 1.0 or evaluation.value is not None:
                tree.backup(node, reward)
            else:
                tree.backup(node, reward, above=leaf)
                tree.backup(leaf, mix(evaluation.estimate, reward, evaluation.rollout_weight))
