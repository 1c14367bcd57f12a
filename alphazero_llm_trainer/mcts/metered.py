"""Models beside the policy at work on one problem: what a value network and a verifier read is paid
for, each token once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..engine.protocol import Judgement, ValueFunction, Verifier
from ..errors import EngineError
from ..types import Cost, Problem, Steps, TokenIds, ids_of, text_of


class ReadTokens:
    """The tokens that a model has read for one problem: each costs once, because it keeps their
    keys and values.
    """

    def __init__(self) -> None:
        self._known: dict[int, Any] = {}  # token -> what was read after it

    def count_unread(self, token_ids: Sequence[int]) -> int:
        """How many of these tokens it has not read after the ones before them."""
        node = self._known
        for at, token in enumerate(token_ids):
            if token not in node:
                return len(token_ids) - at
            node = node[token]
        return 0

    def read(self, token_ids: Sequence[int]) -> int:
        """Read them; returns how many were new."""
        new, node = self.count_unread(token_ids), self._known
        for token in token_ids:
            node = node.setdefault(token, {})
        return new


class Metered:
    """A model of its own at work on one problem: `cost` takes up each token that it computes, once.

    `computes` is False for what needs no computation: a rule, or a head that reads what the policy
    computed.
    """

    def __init__(self, computes: bool, cost: Cost) -> None:
        self.computes, self.cost, self.reader = computes, cost, ReadTokens()

    def price(self, token_ids: TokenIds) -> int:
        """Tokens that reading these computes beyond what was read before."""
        return self.reader.count_unread(token_ids) if self.computes else 0

    def pay(self, token_ids: TokenIds) -> None:
        """Count what reading these tokens computes."""
        if self.computes:
            self.cost.scored_tokens += self.reader.read(token_ids)


class MeteredValue(Metered):
    """A value function at work on one problem."""

    def __init__(self, value: ValueFunction, cost: Cost) -> None:
        super().__init__(value.computes, cost)
        self.value = value

    async def __call__(self, token_ids: TokenIds) -> float:
        """V in [0, 1] of the state after these tokens, prompt included."""
        self.pay(token_ids)
        return check_share("the value network", await self.value(token_ids))


def check_share(who: str, said: float) -> float:
    """`said`, which is in [0, 1]. Raises EngineError for another number, and for NaN."""
    if not 0.0 <= said <= 1.0:
        raise EngineError(
            f"{who} says {said}, no number from 0 to 1: train it again, or leave it out"
        )
    return said


class MeteredVerifier(Metered):
    """A verifier at work on one problem, whose model reads the prompt before the first step.

    `unjudged` are the responses, and beginnings, that are not sure. A step into a state that as
    few steps reached before gains nothing: `enter` tells.
    """

    def __init__(
        self, verifier: Verifier, problem: Problem, prompt_ids: TokenIds, cost: Cost
    ) -> None:
        super().__init__(verifier.computes, cost)
        self.verifier, self.problem, self.prompt_ids = verifier, problem, prompt_ids
        self.unjudged: set[str] = set()
        self.reached: dict[str, int] = {}  # by what a state is known by: its fewest steps

    def step_price(self, steps: Steps) -> int:
        """Tokens that judging `steps` computes beyond what was judged before; 0 for a rule."""
        return self.price(self.prompt_ids + ids_of(steps))

    def enter(self, judged: Judgement, steps: int) -> bool:
        """Note that so many steps reached the state of a judgement; whether as few never did
        before.
        """
        if judged.state is None:
            return True
        new = steps < self.reached.get(judged.state, steps + 1)
        if new:
            self.reached[judged.state] = steps
        return new

    async def __call__(self, steps: Steps) -> Judgement:
        self.pay(self.prompt_ids + ids_of(steps))
        judged = await self.verifier(self.problem, self.prompt_ids, steps)
        for said in (judged.total, *judged.steps, *judged.values):
            check_share(self.verifier.name, said)
        if not judged.sure:
            self.unjudged.add(text_of(steps))
        return judged


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
