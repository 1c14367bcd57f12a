"""The perplexity reward (PRE): how likely a response is under the frozen student, against a
baseline response.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import compress
from typing import TYPE_CHECKING

from ..engine.protocol import GenerateRequest
from ..mcts.metered import ReadTokens
from ..types import Cost, Logprobs, Problem, Steps, drawn_logprobs, drawn_mask, ids_of

if TYPE_CHECKING:
    from ..policy.student import Student

NEUTRAL = 0.5  # as perplexing as the baseline


def mean_loss(logprobs: Sequence[float]) -> float:
    """Mean negative log-probability in nats; infinite for no tokens."""
    return -math.fsum(logprobs) / len(logprobs) if len(logprobs) else math.inf


def pre(logprobs: Sequence[float], base_logprobs: Sequence[float]) -> float:
    """`(ppl_base - ppl) / ppl_base`, clipped to [-1, 1] and mapped to [0, 1].

    Args:
        logprobs: log-probabilities (nats) of the response's own tokens, given the question: `[T]`.
        base_logprobs: the same for the baseline response: `[B]`.

    A perplexity equal to the baseline's gives 0.5, one towards 1 of a hopeless baseline gives 1,
    twice the baseline's or more gives 0. An empty response gives 0.0; with an empty baseline there
    is nothing to compare with: 0.5.
    """
    if not len(logprobs):
        return 0.0
    if not len(base_logprobs):
        return NEUTRAL
    loss, base = mean_loss(logprobs), mean_loss(base_logprobs)
    if loss == base:
        return NEUTRAL
    # (base - ppl) / base is 1 - ppl/base; in log space the quotient can't overflow, and it is never
    # below 0.
    ratio = math.exp(min(loss - base, math.log(2.0)))
    return 1.0 - ratio / 2.0  # (1 - ratio) in [-1, 1] -> [0, 1]


@dataclass(slots=True)
class _Measured:
    """What is known of a problem: its baseline's log-probabilities with what they took, and which
    tokens were scored.
    """

    baseline: asyncio.Future[tuple[Logprobs, Cost]]
    scored: ReadTokens = field(default_factory=ReadTokens)
    paid: bool = False


class Perplexity:
    """PRE of responses under a frozen student; its greedy answer to each question is the baseline,
    computed once.

    Args:
        frozen: the student that measures.
        max_tokens: of a baseline.
        own: the responses are the frozen student's own: what it sampled them with is the measure,
            and nothing is scored but text that somebody else wrote.

    Each call tells its cost: a question's first one pays for the baseline, and each token is scored
    once.
    """

    def __init__(self, frozen: Student, max_tokens: int, own: bool = False) -> None:
        self.frozen, self.max_tokens, self.again = frozen, max_tokens, not own
        self._known: dict[str, _Measured] = {}

    async def __call__(self, problem: Problem, steps: Steps) -> tuple[float, Cost]:
        """PRE in [0, 1] (0.5 is as perplexing as the baseline), and what it took."""
        cost = Cost()
        token_ids = ids_of(steps)
        if not token_ids:
            return 0.0, cost
        known = self._measure_problem(problem)
        logprobs, drawn = drawn_logprobs(steps), drawn_mask(steps)
        if self.again or len(logprobs) != sum(drawn):
            cost.add(Cost(scored_tokens=known.scored.read(token_ids), calls=1))
            [scored] = await self.frozen.engine.score(
                [(self.frozen.prompt_ids(problem.question), token_ids)]
            )
            logprobs = tuple(compress(scored, drawn))
        return pre(logprobs, await self._baseline(known, cost)), cost

    async def open(self, problem: Problem, most: int | None) -> Cost:
        """Compute the baseline, of at most so many tokens (see `mcts.expansion.Grading`)."""
        cost = Cost()
        await self._baseline(self._measure_problem(problem, most), cost)
        return cost

    def _measure_problem(self, problem: Problem, most: int | None = None) -> _Measured:
        known = self._known.get(problem.id)
        if known is None or known.baseline.cancelled():
            limit = self.max_tokens if most is None else min(most, self.max_tokens)
            known = _Measured(asyncio.ensure_future(self._greedy(problem, limit)))
            self._known[problem.id] = known
        return known

    async def _baseline(self, known: _Measured, cost: Cost) -> Logprobs:
        # Shielded: a cancelled caller must not take the baseline from the others.
        logprobs, spent = await asyncio.shield(known.baseline)
        if not known.paid:
            known.paid = True
            cost.add(spent)
        return logprobs

    async def _greedy(self, problem: Problem, limit: int) -> tuple[Logprobs, Cost]:
        if limit < 1:
            return (), Cost()
        prompt = self.frozen.prompt_ids(problem.question)
        [[greedy]] = await self.frozen.engine.generate(
            [GenerateRequest(prompt, max_new_tokens=limit, temperature=0.0)]
        )
        cached = greedy.cached_tokens
        return greedy.logprobs, Cost(
            prompt_tokens=len(prompt) - cached,
            cached_tokens=cached,
            sampled_tokens=len(greedy.token_ids),
            calls=1,
        )

    def forget(self, problem: Problem | None = None) -> None:
        """Drop what is known of a problem, or of all: a baseline belongs to the event loop that
        computed it.
        """
        if problem is None:
            self._known.clear()
        else:
            self._known.pop(problem.id, None)
