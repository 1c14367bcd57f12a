"""What a leaf of step-level search becomes: the policy's continuations, the teachers' steps, and
their grades.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from ..engine.protocol import Drawn, Limits, TeacherProposal
from ..errors import RequestError
from ..grading.answers import is_final
from ..tree.extract import BUDGET, THOUGHT_SPENT
from ..types import Continuation, Cost, Direction, Problem, RewardParts, Step, ids_of, text_of
from .expansion import Expansion
from .mcts import Leaf, LeafEvaluation, Playout
from .seeds import derive_seed
from .waiting import together


class StepPolicy(Protocol):
    """The student as step-level search sees it."""

    async def continuations(
        self,
        problem: Problem,
        steps: Sequence[Step],
        n: int,
        seed: int,
        limits: Limits,
        temperature: float | None = None,
        without: Drawn | None = None,
    ) -> tuple[list[Continuation], Cost]: ...

    async def adopt(
        self, problem: Problem, steps: Sequence[Step], text: str, source: str, direction: Direction
    ) -> tuple[Continuation, Cost]: ...


class Advisor(Protocol):
    """The teachers as the search sees them: one that fails proposes nothing. They keep their own
    ledgers of cost.
    """

    def asks(self, agreement: float, best: float) -> bool:
        """Whether to ask where the student's continuations agree and came out like this (see
        `student_standing`).
        """
        ...

    async def propose(
        self, problem: Problem, steps: Sequence[str], seed: int
    ) -> list[TeacherProposal]: ...

    def learn(self, proposal: TeacherProposal, value: float, student: float) -> None:
        """What a proposal's rollout earned, and what the student's continuations beside it earned
        on average.
        """
        ...


# (problem, response, the rule's verdict) -> whether the response is finished: an optional model's
# opinion.
Finished = Callable[[Problem, str, bool], Awaitable[bool]]


@dataclass
class StepExpansion(Expansion):
    """Evaluates the leaves of one tree whose nodes are reasoning steps.

    With rollouts the policy's continuations run to the end of the response and earn their rewards.
    Without (`search.rollout: none`) they are one step long, and the value network's V of the leaf
    is what is backed up.
    """

    prompt: tuple[int, ...] = ()  # what `value` reads first
    advisor: Advisor | None = None
    finished: Finished | None = None

    def least(self, node: int) -> int:
        """One token a sample, V of the leaf, and what grading takes."""
        ids = ids_of(self.tree.steps(node))
        samples = self.settings.samples * self.paid.least(len(ids))
        return samples if self.value is None else samples + self.value.price(self.prompt + ids)

    async def __call__(self, leaf: Leaf, left: int | None) -> LeafEvaluation:
        """The leaf's playouts: the student's continuations, then each teacher's step with the
        student's rollout.
        """
        settings, tree = self.settings, self.tree
        steps = tree.steps(leaf.node)
        ids, estimate = ids_of(steps), None
        if self.value is not None:
            state = self.prompt + ids
            left = None if left is None else left - self.value.price(state)
            estimate = await self.value(state)
        # Shared out beforehand, so that no draw can take the search over its budget.
        limits = self.limits(
            steps, None if left is None else self.paid.room(left // settings.samples, len(ids))
        )
        if limits is None:
            return LeafEvaluation(estimate=estimate, value=None if self.rolls else estimate)
        draw = derive_seed(self.seed, leaf.node, tree.N[leaf.node])
        asked = limits if self.rolls else replace(limits, steps=1)
        before = self.cost.sampled_tokens + self.cost.scored_tokens
        continuations, spent = await self.policy.continuations(
            self.problem, steps, settings.samples, draw, asked
        )
        self.cost.add(spent)
        directions = [Direction(tree.direction[node]) for node in tree.path(leaf.node)]
        playouts = await self.played(steps, directions, continuations, limits)
        if self.advisor is not None and self.advisor.asks(
            *self.student_standing(steps, playouts, estimate)
        ):
            if left is not None:
                left = max(left - (self.cost.sampled_tokens + self.cost.scored_tokens - before), 0)
            taught = await self.taught(self.advisor, steps, draw, asked, left)
            more = await self.played(
                steps, directions, [continuation for _, continuation in taught], limits
            )
            # The teachers learn what came of their proposals, unless either side has no grade yet.
            own = [playout.reward.total for playout in playouts if playout.reward is not None]
            for (proposal, _), playout in zip(taught, more, strict=True):
                if playout.reward is not None and own:
                    self.advisor.learn(proposal, playout.reward.total, sum(own) / len(own))
            playouts += more
        if not self.rolls:
            return LeafEvaluation(playouts=playouts, estimate=estimate, value=estimate)
        return LeafEvaluation(
            playouts=playouts, estimate=estimate, rollout_weight=self.rollout_weight
        )

    async def played(
        self,
        prefix: list[Step],
        directions: list[Direction],
        continuations: list[Continuation],
        limits: Limits,
    ) -> list[Playout]:
        """The continuations as the terminal checker, if any, leaves them, with their grades."""
        finished = self.finished
        if finished is not None:
            continuations = list(
                await together(*(self.checked(finished, prefix, c) for c in continuations))
            )
        return list(
            await together(*(self.graded(prefix, directions, c, limits) for c in continuations))
        )

    def student_standing(
        self, prefix: list[Step], playouts: Sequence[Playout], estimate: float | None
    ) -> tuple[float, float]:
        """How far the student's own continuations agree, and the best grade among them, both in [0,
        1].

        Agreement is the share of the most frequent final answer (of the most frequent next step
        where nothing is rolled out); one without an answer agrees with none. A grade is the outcome
        or the correctness where it is known, else the reward; where nothing is graded it is V.
        """
        said: Counter[str] = Counter()
        for playout in playouts:
            steps = playout.continuation.steps
            text = (
                (self.reading(text_of((*prefix, *steps))) or "")
                if self.rolls
                else text_of(steps[:1])
            )
            said[text] += bool(text)
        rewards = [p.reward for p in playouts if p.reward is not None]
        grades = [reward.total if reward.grade is None else reward.grade for reward in rewards]
        if not grades and estimate is not None:
            grades = [estimate]
        return max(said.values(), default=0) / max(len(playouts), 1), max(grades, default=0.0)

    async def graded(
        self,
        prefix: list[Step],
        directions: list[Direction],
        continuation: Continuation,
        limits: Limits,
    ) -> Playout:
        """The continuation with its end's verdict and reward; neither where it is a single step
        that goes on.
        """
        over = (
            self.rolls
            or continuation.ended
            or continuation.checked
            or len(prefix) + 1 >= self.settings.max_depth
        )
        if not over and continuation.steps and verdict(continuation, limits, prefix) != "answer":
            return Playout(continuation, None, None)
        return Playout(continuation, *await self.end(prefix, directions, continuation, limits))

    async def end(
        self,
        prefix: list[Step],
        directions: list[Direction],
        continuation: Continuation,
        limits: Limits,
    ) -> tuple[str, RewardParts]:
        """The verdict and reward of a response's end."""
        asked = [
            *directions,
            continuation.direction,
            *([Direction.NONE] * (len(continuation.steps) - 1)),
        ]
        why = verdict(continuation, limits, prefix)
        return why, await self.grade([*prefix, *continuation.steps], asked, why)

    async def taught(
        self, advisor: Advisor, steps: list[Step], seed: int, limits: Limits, left: int | None
    ) -> list[tuple[TeacherProposal, Continuation]]:
        """The teachers' proposals and steps, each followed by one rollout of the student unless it
        ends the response.
        """
        proposals = await advisor.propose(
            self.problem, [step.text.rstrip("\n") for step in steps], seed
        )
        taught = []
        for i, proposal in enumerate(proposals):
            try:
                step, spent = await self.policy.adopt(
                    self.problem, steps, proposal.text, proposal.source, proposal.direction
                )
            except RequestError:
                continue  # a line too long for what is left of the context
            self.cost.add(spent)
            line = len(step.steps[0].token_ids)
            tokens = limits.tokens - line
            if tokens < 0:
                continue  # a line too long for what is left of the response
            if left is not None:
                # The line itself was read before its length was known, and grading will read it.
                taken = spent.scored_tokens + line * self.paid.again
                tokens = min(
                    tokens, self.paid.room(left // len(proposals) - taken, len(ids_of(steps)))
                )
            if not step.ended and tokens > 0 and limits.steps > 1:
                rest = replace(limits, steps=limits.steps - 1, tokens=tokens)
                [rollout], spent = await self.policy.continuations(
                    self.problem, [*steps, *step.steps], 1, derive_seed(seed, "teacher", i), rest
                )
                self.cost.add(spent)
                step = replace(
                    step, steps=step.steps + rollout.steps, ended=rollout.ended, cut=rollout.cut
                )
            taught.append((proposal, step))
        return taught

    async def checked(
        self, finished: Finished, prefix: list[Step], continuation: Continuation
    ) -> Continuation:
        """The continuation up to the first step after which the terminal checker calls the response
        finished.

        Asked only where the rule finds no final-answer line; the step after which it says yes is
        the last one.
        """
        steps = continuation.steps
        text = text_of(prefix)
        if not steps or is_final(steps[-1].text, text + text_of(steps[:-1])):
            return continuation
        for i, step in enumerate(steps, 1):
            text += step.text
            ended = continuation.ended and i == len(steps)  # whatever the checker would say
            if not ended and await finished(self.problem, text, False):
                return Continuation(
                    steps[:i], True, continuation.source, continuation.direction, checked=True
                )
        return continuation

    async def close(self, node: int, left: int | None) -> int:
        """Go on from `node`, the end of the most visited path, to a response's end; returns its
        terminal node.
        """
        tree = self.tree
        if self.rolls or tree.verdict[node] is not None:
            return node
        steps = tree.steps(node)
        limits = self.limits(
            steps, None if left is None else self.paid.room(left, len(ids_of(steps)))
        )
        if limits is None:
            return node
        seed = derive_seed(self.seed, "final")
        [last], spent = await self.policy.continuations(self.problem, steps, 1, seed, limits)
        self.cost.add(spent)
        directions = [Direction(tree.direction[above]) for above in tree.path(node)]
        why, reward = await self.end(steps, directions, last, limits)
        for step in last.steps:
            node = tree.attach(node, step)
        if tree.verdict[node] is None and not tree.children[node]:
            tree.finish(node, why, reward)
        tree.samples[node] += 1
        return node


def verdict(continuation: Continuation, limits: Limits, prefix: Sequence[Step] = ()) -> str:
    """Why a response ended, by rule: its final-answer line, the checker, its end token, its depth
    or its length.
    """
    before = text_of((*prefix, *continuation.steps[:-1]))
    if continuation.steps and is_final(continuation.steps[-1].text, before):
        return "answer"
    if continuation.checked:
        return "checked"
    if continuation.ended:
        return "ended"
    by = "depth" if len(continuation.steps) >= limits.steps else limits.by
    if continuation.why == "thinking" and by == BUDGET:
        return THOUGHT_SPENT
    return continuation.why or by
