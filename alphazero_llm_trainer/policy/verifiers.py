"""Verifiers without a model of their own: the policy's own probabilities, and several verifiers at
once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ..engine.protocol import Judgement, Verifier
from ..types import Problem, Steps, TokenIds, drawn_logprobs

RANKING = "log-probability"  # in a product


class LogProbability:
    """The policy's own probabilities, which its sampling gave already.

    A step scores exp of the mean of its tokens' log-probabilities; the total is that over all
    tokens. No tokens give 1.
    """

    name, checks, guides, computes, scored_tokens = "log-probability", True, False, False, 0

    async def __call__(self, problem: Problem, prompt_ids: TokenIds, steps: Steps) -> Judgement:
        return Judgement(
            tuple(mean_probability(drawn_logprobs([step])) for step in steps),
            mean_probability(drawn_logprobs(steps)),
        )


def mean_probability(logprobs: Sequence[float]) -> float:
    """The geometric mean of tokens' probabilities; 1 of none."""
    return min(1.0, math.exp(math.fsum(logprobs) / len(logprobs))) if logprobs else 1.0


class Product:
    """Several verifiers at once (`calculator+log-probability`): the product of their totals, and of
    their step scores.

    Log-probability ranks finished responses, and neither checks nor rejects a step: one that is
    merely unlikely isn't wrong. A step's score is of the parts that checked it, 1 where none did;
    of all other parts where none checks.
    """

    def __init__(self, parts: Sequence[Verifier]) -> None:
        self.parts = parts
        self.name = "+".join(part.name for part in parts)
        self.checks = any(part.checks for part in parts if part.name != RANKING)
        self.guides = any(part.guides for part in parts)
        self.computes = any(part.computes for part in parts)

    @property
    def scored_tokens(self) -> int:
        return sum(part.scored_tokens for part in self.parts)

    async def __call__(self, problem: Problem, prompt_ids: TokenIds, steps: Steps) -> Judgement:
        scores, total = [1.0] * len(steps), 1.0
        unchecked: list[frozenset[int]] = []
        unread: frozenset[int] = frozenset()
        values: tuple[float, ...] = ()
        state: str | None = None
        for part in self.parts:
            judged = await part(problem, prompt_ids, steps)
            total *= judged.total
            values = judged.values or values  # one network at most is asked
            state = judged.state or state  # as is one rule
            if part.name != RANKING:
                for at in range(len(steps)):
                    if at not in judged.unchecked or not self.checks:
                        scores[at] *= judged.steps[at]
                unchecked.append(judged.unchecked)
                unread |= judged.unread
        common = frozenset.intersection(*unchecked) if unchecked else frozenset()
        return Judgement(tuple(scores), total, common, values, state, unread & common)
