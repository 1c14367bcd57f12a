"""What turns a leaf of a tree into children and a value: the part that reasoning steps, tokens and
verified steps share.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ..config.sections import SearchConfig
from ..engine.protocol import Limits
from ..tree.arena import Tree
from ..types import Cost, Direction, Problem, RewardParts, Step, ids_of
from .choose import Reading, answer_of
from .mcts import Leaf, LeafEvaluation
from .metered import FREE, MeteredValue, Paid

# Grades a response's end from the problem, its steps, their directions and its verdict. Has no gold
# but in training.
Evaluate = Callable[[Problem, Sequence[Step], Sequence[Direction], str], Awaitable[RewardParts]]


class Grading(Protocol):
    """The part of a model in what `Evaluate` does: PRE's student, a network that judges.

    `again` tells that it computes each token of a graded response once more.
    """

    @property
    def again(self) -> bool: ...

    async def open(self, problem: Problem, most: int | None) -> Cost | None:
        """Compute what comes before the first response, within `most` tokens (None: without limit).

        Returns None, and computes nothing, where that doesn't fit: then nothing can be graded.
        """
        ...


@dataclass
class Expansion:
    """Evaluates the leaves of one tree.

    Args:
        policy: the student, of the kind that proposes what the nodes are.
        settings: `search.*`.
        problem, tree, seed, cost: the search's own; cost is added to.
        evaluate: grades finished responses, rewards in [0, 1].
        paid: what a budget pays for beside drawn tokens.
        value: the value network, or None.
        rollout_weight: lambda of `mix`.
        reading: what a response answers.
    """

    policy: Any
    settings: SearchConfig
    problem: Problem
    tree: Tree
    seed: int
    cost: Cost
    evaluate: Evaluate | None
    paid: Paid = FREE
    value: MeteredValue | None = None
    rollout_weight: float = 1.0
    reading: Reading = answer_of

    @property
    def rolls(self) -> bool:
        """Whether simulations run to a response's end; without rollouts V of the leaf is what is
        backed up.
        """
        return self.settings.rollout != "none"

    def least(self, node: int) -> int:
        """Sampled and scored tokens that the evaluation of this leaf takes at least."""
        raise NotImplementedError

    async def open(self, left: int | None) -> None:
        """What comes before the first simulation. `left` is how many tokens the budget pays for;
        None: any number.
        """

    async def __call__(self, leaf: Leaf, left: int | None) -> LeafEvaluation:
        raise NotImplementedError

    async def close(self, node: int, left: int | None) -> int:
        """What comes after the last simulation, where the most visited path ends in `node`; returns
        where it ends now.
        """
        raise NotImplementedError

    def limits(self, steps: Sequence[Step], paid: int | None) -> Limits | None:
        """Steps and tokens that a response may still have after `steps`, where a budget pays for
        `paid` tokens (None: for any number); None where it may have none.
        """
        room = self.settings.max_tokens - len(ids_of(steps))
        paid = room if paid is None else paid
        by = "budget" if paid < room else "length"
        limits = Limits(self.settings.max_depth - len(steps), min(room, paid), by)
        return limits if limits.steps > 0 and limits.tokens > 0 else None

    async def grade(
        self, steps: Sequence[Step], directions: Sequence[Direction], verdict: str
    ) -> RewardParts:
        """The reward of a response's end, whose cost is added to the search's."""
        assert self.evaluate is not None
        reward = await self.evaluate(self.problem, steps, directions, verdict)
        if reward.cost is not None:
            self.cost.add(reward.cost)
        return reward
