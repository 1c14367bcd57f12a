"""The tree: an index arena that is the search log, the training batch and what the viewer draws."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from ..types import STUDENT, Direction, JsonObject, Logprobs, RewardParts, Step, Steps, TokenIds
from .columns import COLUMNS, UNSET, Rollout
from .statistics import Statistics

ROOT = 0

REJECTED = "rejected"  # the verdict of a step that a verifier refused
WHOLE = ("answer", "checked", "ended")  # verdicts of responses that no limit cut


class Tree(Statistics):
    """Columns of node data indexed by node; children are lists of indices. Node 0 is the root (the
    prompt, no tokens).

    A node is a step (a line) in step-level search and a token in token-level search. Two columns
    are not saved: `virtual` counts the simulations in flight below each node (virtual loss), 0
    everywhere in a finished tree; `drawn` counts the steps that were attached below it, repeated
    ones too.

    How it grew is kept as well: `backups` are (node, reward, above) as `backup` was called,
    `simulations` are (leaf, nodes so far, backups so far) after each simulation. Replaying the
    backups in order gives N and W exactly.

    `growing` are the steps down to a leaf and those that a simulation in flight has drawn after
    them, by leaf: for those who watch, and not saved.

    `discount` is gamma: a value that is backed up is worth gamma times itself one step above.
    `best` is the largest that was backed up to each node, None where Q is the mean; see `maximise`.
    `low` and `span` say how selection scales Q, see `rescale`.

    Invariants: `N[parent] >= sum(N[children])`, `0 <= W <= N`, a terminal node has no children.
    """

    def __init__(self) -> None:
        for name in (*COLUMNS, *UNSET):
            setattr(self, name, [])
        self.children: list[list[int]] = []
        self.rollouts: list[Rollout] = []
        self.backups: list[tuple[int, float, int]] = []
        self.simulations: list[tuple[int, int, int]] = []
        self.growing: dict[int, list[Step]] = {}
        self.discount, self.low, self.span = 1.0, 0.0, 1.0
        self.best: list[float] | None = None
        self._append(-1, [Step((), (), "")], [None])

    def __repr__(self) -> str:
        ended = sum(rollout.samples for rollout in self.finished())
        return (
            f"Tree({len(self):,} nodes, {len(self.simulations):,} simulations, {ended:,} responses)"
        )

    def rows(self) -> list[JsonObject]:
        """One row a node, for a table such as `pandas.DataFrame(tree.rows())`: its columns, depth
        and mean value `Q`, None where it has no visit.
        """
        names = [name for name in (*COLUMNS, *UNSET) if name not in ("virtual", "drawn")]
        return [
            {
                "node": node,
                "depth": depth,
                **{name: getattr(self, name)[node] for name in names},
                "Q": self.q(node) if self.N[node] else None,
            }
            for node, depth in enumerate(self.depths())
        ]

    def attach(
        self, parent: int, step: Step, source: str = STUDENT, direction: Direction = Direction.NONE
    ) -> int:
        """The child of `parent` with this step's text, made where there is none. Siblings with one
        text are one node.
        """
        self.drawn[parent] += 1
        for child in self.children[parent]:
            if self.text[child] == step.text and not self._conflicts(child, step):
                if self.direction[child] == Direction.NONE:
                    # The student's own step stays its own; that a teacher was asked for it is kept.
                    self.direction[child] = str(direction)
                return child
        node = len(self)
        self._append(parent, [step], [None])
        self.source[node], self.direction[node] = source, str(direction)
        self.children[parent].append(node)
        return node

    def ahead(self) -> Tree:
        """A copy that has the `growing` steps, too."""
        tree = Tree.from_dict(self.to_dict())
        for leaf, steps in self.growing.items():
            node = leaf
            for step in steps[len(self.steps(leaf)) :]:
                node = tree.attach(node, step)
        return tree

    def expand(self, parent: int, steps: Steps, priors: Sequence[float]) -> None:
        """New children of `parent`, one a step, whose priors sum to 1. They must differ from each
        other.
        """
        first = len(self)
        self._append(parent, steps, priors)
        self.children[parent] += range(first, len(self))

    def _append(self, parent: int, steps: Steps, priors: Sequence[float | None]) -> None:
        """Nodes at the end of all columns, which their parent doesn't know yet."""
        count = len(steps)
        self.parent += [parent] * count
        self.token_ids += [step.token_ids for step in steps]
        self.logprobs += [step.logprobs for step in steps]
        self.text += [step.text for step in steps]
        self.prior += priors
        self.children += [[] for _ in range(count)]
        if self.best is not None:
            self.best += [0.0] * count
        for name, unset in UNSET.items():
            getattr(self, name).extend([unset] * count)
        self.seen[-count or len(self.seen) :] = [step.seen for step in steps]

    def _conflicts(self, child: int, step: Step) -> bool:
        # A text with and without the end token is one step only when the tokens agree: a response
        # may end there or not.
        # What a world answered follows from the turn.
        mine, theirs = (one.token_ids[: one.drawn] for one in (self.step(child), step))
        return mine != theirs and (mine[: len(theirs)] == theirs or theirs[: len(mine)] == mine)

    def finish(self, node: int, verdict: str, reward: RewardParts) -> None:
        """Make `node` terminal."""
        self.verdict[node], self.reward[node] = verdict, reward.total
        self.hre[node], self.pre[node], self.outcome[node] = reward.hre, reward.pre, reward.outcome

    def simulated(self, leaf: int) -> None:
        """One simulation, whose descent ended in `leaf`, is backed up: all nodes and backups so far
        belong to it.
        """
        self.simulations.append((leaf, len(self.parent), len(self.backups)))

    def sink_rollouts(self, text: Callable[[TokenIds], str]) -> None:
        """Move every rollout down to the deepest node whose tokens it begins with, and merge equal
        ones.

        A response that was rolled out from above passed through that node all the same. `text`
        decodes token ids.
        """
        sunk: dict[tuple[int, TokenIds], Rollout] = {}
        for rollout in self.rollouts:
            node, at, ids = rollout.node, 0, rollout.token_ids
            while at < len(ids):
                for child in self.children[node]:
                    step = self.token_ids[child]
                    if ids[at : at + len(step)] == step:
                        node, at = child, at + len(step)
                        break
                else:
                    break
            rest = ids[at:]
            same = sunk.get((node, rest))
            if same is not None:
                same.count += rollout.count
                same.samples += rollout.samples
                continue
            rollout.node, rollout.token_ids, rollout.logprobs = node, rest, rollout.logprobs[at:]
            rollout.text, rollout.mask = text(rest), rollout.mask[at:]
            sunk[node, rest] = rollout
        self.rollouts = list(sunk.values())

    def steps(self, node: int) -> list[Step]:
        """The steps down to `node`."""
        return [self.step(i) for i in self.path(node)]

    def step(self, node: int) -> Step:
        """A node's own step."""
        return Step(self.token_ids[node], self.logprobs[node], self.text[node], self.seen[node])

    def sequence(self, node: int) -> tuple[TokenIds, Logprobs]:
        """Token ids and log-probabilities (nats) of the response down to `node`."""
        ids: list[int] = []
        logprobs: list[float] = []
        for i in self.path(node):
            ids += self.token_ids[i]
            logprobs += self.logprobs[i]
        return tuple(ids), tuple(logprobs)

    def response(self, node: int) -> str:
        """The response's text down to `node`."""
        return "".join(self.text[i] for i in self.path(node))

    def finished(self) -> Iterator[Rollout]:
        """Every finished response: terminal nodes in the order they were made, as rollouts without
        a token, then rollouts.

        A terminal node counts its visits; the response that ends a search without rollouts was
        sampled and never visited.
        """
        for leaf in self.leaves():
            reward, verdict = self.reward[leaf], self.verdict[leaf]
            if reward is not None and verdict is not None:
                count, parts = (
                    max(self.N[leaf], self.samples[leaf]),
                    (reward, self.hre[leaf], self.pre[leaf]),
                )
                yield Rollout(
                    leaf, (), (), "", verdict, *parts, count, self.samples[leaf], self.outcome[leaf]
                )
        yield from self.rollouts

    def leaves(self) -> Iterator[int]:
        """Terminal nodes in the order they were made."""
        return (node for node in range(len(self)) if self.verdict[node] is not None)
