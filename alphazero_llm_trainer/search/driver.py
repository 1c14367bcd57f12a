"""One coroutine a tree: ask the search for a leaf, get continuations, grade their ends, tell. Many trees, one engine."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from ..answers import is_final
from ..config import SearchConfig
from ..policy.protocol import Limits, TeacherProposal
from ..types import Continuation, Cost, Direction, Problem, RewardParts, Step
from .choose import Choice, choose
from .mcts import Leaf, Mcts, Playout
from .select import RULES
from .tree import Tree


class StepPolicy(Protocol):
    """The student as the search sees it."""

    async def continuations(
        self, problem: Problem, steps: Sequence[Step], n: int, seed: int, limits: Limits
    ) -> tuple[list[Continuation], Cost]: ...

    async def adopt(
        self, problem: Problem, steps: Sequence[Step], text: str, source: str, direction: Direction
    ) -> tuple[Continuation, Cost]: ...


class Advisor(Protocol):
    """The teachers as the search sees them: one that fails proposes nothing. They keep their own ledgers of cost."""

    async def propose(self, problem: Problem, steps: Sequence[str], seed: int) -> list[TeacherProposal]: ...


# Grades a response's end from the problem, its steps and their directions. Has no gold but in training (collect).
Evaluate = Callable[[Problem, Sequence[Step], Sequence[Direction], str], Awaitable[RewardParts]]
# (problem, response, the rule's verdict) -> whether the response is finished: an optional model's opinion.
Finished = Callable[[Problem, str, bool], Awaitable[bool]]


@dataclass(slots=True)
class SearchResult:
    """A finished search: the tree, the best response and why it was chosen, what it cost, and what ended it.

    `ended_by` is "iterations", "tokens", "seconds" or "stopped".
    """

    problem: Problem
    tree: Tree
    choice: Choice | None
    cost: Cost
    ended_by: str
    seed: int


def derive_seed(*parts: object) -> int:
    """A 63-bit seed from the parts' text: the same everywhere, whatever runs beside it."""
    digest = hashlib.blake2b("\x1f".join(str(part) for part in parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


class Search:
    """The step-level search of one configuration over one policy.

    Args:
        policy: the student.
        evaluate: grades terminal responses, rewards in [0, 1].
        settings: iterations, widths, depth and budgets.
        advisor: teachers, or None.
        finished: a terminal checker beside the rule, or None.
        stop: asked before each expansion; True ends every tree with the best so far.
    """

    def __init__(
        self,
        policy: StepPolicy,
        evaluate: Evaluate,
        settings: SearchConfig,
        advisor: Advisor | None = None,
        finished: Finished | None = None,
        stop: Callable[[], bool] = lambda: False,
    ) -> None:
        self.policy, self.evaluate, self.settings = policy, evaluate, settings
        self.advisor, self.finished, self.stop = advisor, finished, stop

    async def run(self, problem: Problem, seed: int, tree: Tree | None = None) -> SearchResult:
        """Search one problem, going on with `tree` when one is given."""
        settings, cost, began = self.settings, Cost(), time.perf_counter()
        tree = Tree() if tree is None else tree
        mcts = Mcts(tree, RULES[settings.select], settings.exploration, settings.iterations)
        ended_by = "iterations"
        while (leaf := mcts.ask()) is not None:
            left = settings.budget_tokens - cost.sampled_tokens if settings.budget_tokens is not None else None
            if self.stop():
                ended_by = "stopped"
            elif left is not None and left < settings.samples:
                ended_by = "tokens"
            elif settings.budget_seconds is not None and time.perf_counter() - began >= settings.budget_seconds:
                ended_by = "seconds"
            else:
                mcts.tell(leaf, await self.expand(problem, tree, leaf, seed, left, cost))
                continue
            break
        cost.seconds = time.perf_counter() - began
        return SearchResult(problem, tree, choose(tree, settings.choose), cost, ended_by, seed)

    async def expand(
        self, problem: Problem, tree: Tree, leaf: Leaf, seed: int, left: int | None, cost: Cost
    ) -> list[Playout]:
        """The leaf's playouts: the student's continuations, then each teacher's step with the student's rollout."""
        settings, steps = self.settings, tree.steps(leaf.node)
        used = sum(len(step.token_ids) for step in steps)
        share = settings.max_tokens - used
        if left is not None:
            # Shared out beforehand, so that no draw can take the search over its budget.
            share = min(share, left // settings.samples)
        limits = Limits(lines=settings.max_depth - len(steps), tokens=share)
        if limits.lines <= 0 or limits.tokens <= 0:
            return []
        draw = derive_seed(seed, leaf.node, tree.N[leaf.node])
        continuations, spent = await self.policy.continuations(problem, steps, settings.samples, draw, limits)
        cost.add(spent)
        if self.advisor is not None:
            if left is not None:
                left -= spent.sampled_tokens
            continuations += await self.taught(problem, steps, draw, limits, left, cost)
        finished = self.finished
        if finished is not None:
            asked = (self.checked(finished, problem, steps, c) for c in continuations)
            continuations = list(await asyncio.gather(*asked))
        directions = [Direction(tree.direction[node]) for node in tree.path(leaf.node)]
        grades = await asyncio.gather(*(self.grade(problem, steps, directions, c, limits) for c in continuations))
        return [Playout(c, *grade) for c, grade in zip(continuations, grades, strict=True)]

    async def taught(
        self, problem: Problem, steps: list[Step], seed: int, limits: Limits, left: int | None, cost: Cost
    ) -> list[Continuation]:
        """The teachers' steps, each followed by one rollout of the student unless it ends the response."""
        assert self.advisor is not None
        proposals = await self.advisor.propose(problem, [step.text.rstrip("\n") for step in steps], seed)
        taught = []
        for i, proposal in enumerate(proposals):
            step, spent = await self.policy.adopt(problem, steps, proposal.text, proposal.source, proposal.direction)
            cost.add(spent)
            tokens = limits.tokens - len(step.steps[0].token_ids)
            if tokens < 0:
                continue  # a line too long for what is left of the response
            if left is not None:
                tokens = min(tokens, left // len(proposals))
            if not step.ended and tokens > 0 and limits.lines > 1:
                rest = Limits(limits.lines - 1, tokens)
                [rollout], spent = await self.policy.continuations(
                    problem, [*steps, *step.steps], 1, derive_seed(seed, "teacher", i), rest
                )
                cost.add(spent)
                step = Continuation(step.steps + rollout.steps, rollout.ended, step.source, step.direction)
            taught.append(step)
        return taught

    async def grade(
        self,
        problem: Problem,
        prefix: list[Step],
        directions: list[Direction],
        continuation: Continuation,
        limits: Limits,
    ) -> tuple[str, RewardParts]:
        """The verdict and reward of a response's end."""
        steps = [*prefix, *continuation.steps]
        asked = [*directions, continuation.direction, *([Direction.NONE] * (len(continuation.steps) - 1))]
        verdict = self.verdict(continuation, limits)
        return verdict, await self.evaluate(problem, steps, asked, verdict)

    async def checked(
        self, finished: Finished, problem: Problem, prefix: list[Step], continuation: Continuation
    ) -> Continuation:
        """The continuation up to the first step after which the terminal checker calls the response finished.

        Asked only where the rule finds no final-answer line; the step after which it says yes is the last one.
        """
        steps = continuation.steps
        if not steps or is_final(steps[-1].text):
            return continuation
        text = "".join(step.text for step in prefix)
        for i, step in enumerate(steps, 1):
            text += step.text
            rule = continuation.ended and i == len(steps)
            if await finished(problem, text, rule) and not rule:
                return Continuation(steps[:i], True, continuation.source, continuation.direction, checked=True)
        return continuation

    def verdict(self, continuation: Continuation, limits: Limits) -> str:
        """Why a response ended, by rule: its final-answer line, the checker, its end token, its depth or its length."""
        if continuation.steps and is_final(continuation.steps[-1].text):
            return "answer"
        if continuation.checked:
            return "checked"
        if continuation.ended:
            return "ended"
        return "depth" if len(continuation.steps) >= limits.lines else "length"

    async def run_many(
        self, problems: Sequence[tuple[Problem, int]], trees: Sequence[Tree | None] | None = None
    ) -> AsyncIterator[tuple[int, SearchResult]]:
        """Search (problem, seed) pairs, `settings.concurrent` at once; yields (index, result) as each ends."""
        gate = asyncio.Semaphore(self.settings.concurrent)

        async def one(index: int) -> tuple[int, SearchResult]:
            async with gate:
                problem, seed = problems[index]
                return index, await self.run(problem, seed, None if trees is None else trees[index])

        tasks = [asyncio.ensure_future(one(i)) for i in range(len(problems))]
        try:
            for done in asyncio.as_completed(tasks):
                yield await done
        finally:
            for task in tasks:
                task.cancel()
