"""What a model beside the policy reads of one problem, and a value function whose reading is paid for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ..engine.protocol import ValueFunction
from ..types import Cost, Direction, Problem, RewardParts, Step
from .choose import Reading
from .tree import WHOLE


class ReadTokens:
    """The tokens that a model has read for one problem: each costs once, because it keeps their keys and values."""

    def __init__(self) -> None:
        self._known: dict[int, Any] = {}  # token -> what was read after it

    def unread(self, token_ids: Sequence[int]) -> int:
        """How many of these tokens it has not read after the ones before them."""
        node = self._known
        for at, token in enumerate(token_ids):
            if token not in node:
                return len(token_ids) - at
            node = node[token]
        return 0

    def read(self, token_ids: Sequence[int]) -> int:
        """Read them; returns how many were new."""
        new, node = self.unread(token_ids), self._known
        for token in token_ids:
            node = node.setdefault(token, {})
        return new


class MeteredValue:
    """A value function at work on one problem: `cost` takes up each token that a network of its own reads."""

    def __init__(self, value: ValueFunction, cost: Cost) -> None:
        self.value, self.cost, self.reader = value, cost, ReadTokens()
        self.rollout_weight, self.computes = value.rollout_weight, value.computes

    def price(self, token_ids: tuple[int, ...]) -> int:
        """Tokens that V of the state after these computes; 0 for a head, which reads what the policy computed."""
        return self.reader.unread(token_ids) if self.computes else 0

    async def __call__(self, token_ids: tuple[int, ...]) -> float:
        """See `ValueFunction`."""
        if self.computes:
            self.cost.scored_tokens += self.reader.read(token_ids)
        return await self.value(token_ids)


def valued_by(value: MeteredValue, prompt_ids: Callable[[Problem], tuple[int, ...]], reading: Reading) -> Any:
    """A terminal reward (`steps.Evaluate`) without gold: V of the whole response; 0 where it states no answer."""

    async def evaluate(
        problem: Problem, steps: Sequence[Step], directions: Sequence[Direction], verdict: str
    ) -> RewardParts:
        if verdict not in WHOLE or reading("".join(step.text for step in steps)) is None:
            return RewardParts(total=0.0)
        ids = tuple(token for step in steps for token in step.token_ids)
        return RewardParts(total=await value(prompt_ids(problem) + ids))

    return evaluate


@dataclass(frozen=True, slots=True)
class Paid:
    """What a budget pays for beside drawn tokens: grading reads each of them once more (`again`), and perhaps the
    response before them (`whole`)."""

    again: bool = False
    whole: bool = False

    def room(self, left: int, prefix: int, width: int = 1) -> int:
        """The longest continuation of `prefix` tokens that `left` tokens pay for, drawn `width` times."""
        return max(left - prefix * self.whole, 0) // (width + self.again)

    def least(self, prefix: int, width: int = 1) -> int:
        """What a continuation by one token takes."""
        return prefix * self.whole + width + self.again
