"""A server's model as step-level search sees it: what all ways of calling it have in common."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from ..engine.completions import all_or_none
from ..engine.protocol import PaidContinuations, StepPolicy, Wanted
from ..types import Continuation, Cost, Facts, Problem, Steps, TokenIds, text_of


class ServedSteps(StepPolicy):
    """Steps of a server's model: a continuation is one sample of a chat.

    The steps so far stand in one assistant's message as they were written, so that the model reads
    its own chain and no turns that it never had. `seed_of` makes a sample's seed of the draw's and
    its number.
    """

    seed_of: ClassVar[Callable[..., int]]

    def prompt_ids(self, problem: Problem) -> TokenIds:
        """None: the server alone knows them."""
        return ()

    async def draw(self, problem: Problem, steps: Steps, wanted: Wanted) -> PaidContinuations:
        """The samples, side by side.

        Raises:
            EngineError: one failed; a RequestError where the server answers others.
        """
        await self.greet(steps)
        cost = Cost()
        seeds = [self.seed_of(wanted.seed, index) for index in range(wanted.n)]
        each = [replace(wanted, n=1, seed=seed) for seed in seeds]
        return await all_or_none([self.sample(problem, steps, one, cost) for one in each]), cost

    @abstractmethod
    async def greet(self, steps: Steps) -> None:
        """Find out, once, what has to be known of the server to go on from `steps`."""

    @abstractmethod
    async def sample(
        self, problem: Problem, steps: Steps, wanted: Wanted, cost: Cost
    ) -> Continuation:
        """One continuation of `steps`, whose cost is added to `cost`."""


def chat_of(opening: Sequence[Facts], steps: Steps) -> list[Any]:
    """The messages that ask a question, and the steps so far in one assistant's message."""
    begun = [{"role": "assistant", "content": text_of(steps)}] if steps else []
    return [*opening, *begun]
