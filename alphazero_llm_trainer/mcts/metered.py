"""Models beside the policy at work on one problem: what a value network and a verifier read is paid
for, each token once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

from ..engine.protocol import Judgement, ValueFunction, Verifier
from ..types import Cost, Direction, Problem, RewardParts, Step, ids_of, text_of
from .choose import Reading
from .tree import WHOLE


class ReadTokens:
    """The tokens that a model has read for one problem: each costs once, because it keeps their
    keys and values.
    """

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
    """A value function at work on one problem: `cost` takes up each token that a network of its own
    reads.
    """

    def __init__(self, value: ValueFunction, cost: Cost) -> None:
        self.value, self.cost, self.reader = value, cost, ReadTokens()
        self.rollout_weight, self.computes = value.rollout_weight, value.computes

    def price(self, token_ids: tuple[int, ...]) -> int:
        """Tokens that V of the state after these computes; 0 for a head, which reads what the
        policy computed.
        """
        return self.reader.unread(token_ids) if self.computes else 0

    async def __call__(self, token_ids: tuple[int, ...]) -> float:
        """See `ValueFunction`."""
        if self.computes:
            self.cost.scored_tokens += self.reader.read(token_ids)
        return await self.value(token_ids)


@dataclass(slots=True)
class CountedVerifier:
    """A verifier at work on one problem: `cost` takes up each token that a model of its own
    computes, once.

    The tokens of `prompt_ids` are part of that: such a model reads the prompt before it can judge
    the first step.
    """

    verifier: Verifier
    problem: Problem
    prompt_ids: tuple[int, ...]
    cost: Cost
    known: set[tuple[int, ...]] = field(default_factory=set)
    unjudged: set[str] = field(
        default_factory=set
    )  # responses, and beginnings, of which no step was checked

    def price(self, steps: Sequence[Step]) -> int:
        """Tokens that judging `steps` computes beyond what was judged before; 0 for a rule."""
        if not self.verifier.computes:
            return 0
        new = [
            step
            for step, prefix in zip(steps, prefixes(steps)[1:], strict=True)
            if prefix not in self.known
        ]
        return len(ids_of(new)) + (0 if self.known else len(self.prompt_ids))

    def open(self) -> int:
        """Read the prompt; returns what that computes."""
        price = self.price(())
        self.cost.scored_tokens += price
        self.known.add(())
        return price

    async def __call__(self, steps: Sequence[Step]) -> Judgement:
        self.cost.scored_tokens += self.price(steps)
        self.known.update(prefixes(steps))
        judged = await self.verifier(self.problem, self.prompt_ids, steps)
        if not judged.checked:
            self.unjudged.add(text_of(steps))
        return judged


def prefixes(steps: Sequence[Step]) -> list[tuple[int, ...]]:
    """The token ids before the first of `steps` (none), and up to the end of each."""
    return list(accumulate((step.token_ids for step in steps), initial=()))


def valued_by(
    value: MeteredValue, prompt_ids: Callable[[Problem], tuple[int, ...]], reading: Reading
) -> Any:
    """A terminal reward (`steps.Evaluate`) without gold: V of the whole response; 0 where it states
    no answer.
    """

    async def evaluate(
        problem: Problem, steps: Sequence[Step], directions: Sequence[Direction], verdict: str
    ) -> RewardParts:
        if verdict not in WHOLE or reading(text_of(steps)) is None:
            return RewardParts(total=0.0)
        return RewardParts(total=await value(prompt_ids(problem) + ids_of(steps)))

    return evaluate


@dataclass(frozen=True, slots=True)
class Paid:
    """What a budget pays for beside drawn tokens: grading reads each of them once more (`again`),
    and perhaps the response before them (`whole`).
    """

    again: bool = False
    whole: bool = False

    def room(self, left: int, prefix: int, width: int = 1) -> int:
        """The longest continuation of `prefix` tokens that `left` tokens pay for, drawn `width`
        times.
        """
        return max(left - prefix * self.whole, 0) // (width + self.again)

    def least(self, prefix: int, width: int = 1) -> int:
        """What a continuation by one token takes."""
        return prefix * self.whole + width + self.again


FREE = Paid()
