"""What a leaf of step-level search becomes: the policy's continuations, the teachers' steps, and
their grades.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from ..engine.protocol import Limits, StepPolicy, TeacherProposal
from ..errors import RequestError
from ..grading.answers import is_final
from ..tree.extract import BUDGET, THOUGHT_SPENT
from ..types import Continuation, Direction, RewardParts, Step, ids_of, text_of
from .expansion import Advisor, Expansion
from .mcts import Leaf, LeafEvaluation, Playout
from .seeds import derive_seed
from .waiting import gather_all


class StepExpansion(Expansion[StepPolicy]):
    """Evaluates the leaves of one tree whose nodes are reasoning steps.

    With rollouts the policy's continuations run to the end of the response and earn their rewards.
    Without (`search.rollout: none`) they are one step long, and the value network's V of the leaf
    is what is backed up.
    """

    def least(self, node: int) -> int:
        """One token a sample, V of the leaf, and what grading takes."""
        ids = ids_of(self.tree.steps(node))
        samples = self.settings.samples * self.paid.least(len(ids))
        return samples if self.value is None else samples + self.value.price(self.prompt + ids)

    async def __call__(self, leaf: Leaf, left: int | None) -> LeafEvaluation:
        """The leaf's playouts: the student's continuations, then each teacher's step with the
        student's rollout.
        """
        steps, estimate = self.tree.steps(leaf.node), None
        if self.value is not None:
            state = self.prompt + ids_of(steps)
            left = None if left is None else left - self.value.price(state)
            estimate = await self.value(state)
        # Shared out beforehand, so that no draw can take the search over its budget.
        limits = self.limits(steps, left, self.settings.samples)
        playouts: list[Playout] = []
        if limits is not None:
            draw = derive_seed(self.seed, leaf.node, self.tree.N[leaf.node])
            asked = limits if self.rolls else replace(limits, steps=1)
            before = self.cost.computed
            drawn = await self.draw(steps, self.settings.samples, draw, asked)
            playouts = await self.play_all(leaf.node, drawn, limits)
            advisor = self.parts.advisor
            standing = self.student_standing(steps, playouts, estimate)
            if advisor is not None and advisor.asks(*standing):
                left = None if left is None else max(left - self.cost.computed + before, 0)
                proposed = await self.ask_teachers(advisor, steps, draw, asked, left)
                more = await self.play_all(leaf.node, [step for _, step in proposed], limits)
                # The teachers learn what came of their proposals, unless either side has no grade
                # yet.
                own = [playout.reward.total for playout in playouts if playout.reward is not None]
                for (proposal, _), playout in zip(proposed, more, strict=True):
                    if playout.reward is not None and own:
                        advisor.learn(proposal, playout.reward.total, sum(own) / len(own))
                playouts += more
        return LeafEvaluation(
            playouts,
            estimate=estimate,
            value=None if self.rolls else estimate,
            rollout_weight=self.rollout_weight,
        )

    async def draw(
        self, steps: Sequence[Step], n: int, seed: int, limits: Limits
    ) -> list[Continuation]:
        """The policy's continuations of `steps`, paid for."""
        drawn, spent = await self.policy.continuations(self.problem, steps, n, seed, limits)
        self.cost.add(spent)
        return drawn

    async def play_all(
        self, node: int, continuations: list[Continuation], limits: Limits
    ) -> list[Playout]:
        """The continuations of `node` with their grades."""
        return await gather_all(*(self.play(node, each, limits) for each in continuations))

    async def play(self, node: int, continuation: Continuation, limits: Limits) -> Playout:
        """The continuation as the terminal checker, if any, leaves it, with its end's verdict and
        reward; neither where it is a single step that goes on.
        """
        prefix = self.tree.steps(node)
        continuation = await self.check_end(prefix, continuation)
        over = (
            self.rolls
            or continuation.ended
            or continuation.checked
            or len(prefix) + 1 >= self.settings.max_depth
            or not continuation.steps
            or (continuation.cut and continuation.why is not None)
        )
        if not over and end_verdict(continuation, limits, prefix) != "answer":
            return Playout(continuation, None, None)
        return Playout(continuation, *await self.end(node, continuation, limits))

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
            whole = text_of((*prefix, *steps))
            said[(self.reading(whole) or "") if self.rolls else text_of(steps[:1])] += 1
        del said[""]
        rewards = [p.reward for p in playouts if p.reward is not None]
        grades = [reward.total if reward.grade is None else reward.grade for reward in rewards]
        if not grades and estimate is not None:
            grades = [estimate]
        return max(said.values(), default=0) / max(len(playouts), 1), max(grades, default=0.0)

    async def end(
        self, node: int, continuation: Continuation, limits: Limits
    ) -> tuple[str, RewardParts]:
        """The verdict and reward of a response's end."""
        tree, steps = self.tree, continuation.steps
        directions = [
            *(Direction(tree.direction[above]) for above in tree.path(node)),
            continuation.direction,
            *([Direction.NONE] * (len(steps) - 1)),
        ]
        prefix = tree.steps(node)
        why = end_verdict(continuation, limits, prefix)
        return why, await self.grade([*prefix, *steps], directions, why)

    async def ask_teachers(
        self, advisor: Advisor, steps: list[Step], seed: int, limits: Limits, left: int | None
    ) -> list[tuple[TeacherProposal, Continuation]]:
        """The teachers' proposals and steps, each followed by one rollout of the student unless it
        ends the response.
        """
        lines = [step.text.rstrip("\n") for step in steps]
        proposals = await advisor.propose(self.problem, lines, seed)
        adopted = []
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
                rest = left // len(proposals) - spent.scored_tokens - line * self.paid.again
                tokens = min(tokens, self.paid.room(rest, len(ids_of(steps))))
            if not step.ended and tokens > 0 and limits.steps > 1:
                [rollout] = await self.draw(
                    [*steps, *step.steps],
                    1,
                    derive_seed(seed, "teacher", i),
                    replace(limits, steps=limits.steps - 1, tokens=tokens),
                )
                step = replace(
                    step, steps=step.steps + rollout.steps, ended=rollout.ended, cut=rollout.cut
                )
            adopted.append((proposal, step))
        return adopted

    async def check_end(self, prefix: list[Step], continuation: Continuation) -> Continuation:
        """The continuation up to the first step after which the terminal checker, if any, calls the
        response finished.

        Asked only where the rule finds no final-answer line; the step after which it says yes is
        the last one.
        """
        steps, finished = continuation.steps, self.parts.finished
        text = text_of(prefix)
        if not finished or not steps or is_final(steps[-1].text, text + text_of(steps[:-1])):
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
        tree, steps = self.tree, self.tree.steps(node)
        limits = self.limits(steps, left)
        if self.rolls or tree.verdict[node] is not None or limits is None:
            return node
        [last] = await self.draw(steps, 1, derive_seed(self.seed, "final"), limits)
        why, reward = await self.end(node, last, limits)
        for step in last.steps:
            node = tree.attach(node, step)
        if tree.verdict[node] is None and not tree.children[node]:
            tree.finish(node, why, reward)
        tree.samples[node] += 1
        return node


def end_verdict(continuation: Continuation, limits: Limits, prefix: Sequence[Step] = ()) -> str:
    """Why a response ended, by rule: its final-answer line, the checker, its end token, its depth
    or its length.
    """
    before = text_of((*prefix, *continuation.steps[:-1]))
    last = continuation.steps[-1:]
    cut = continuation.why == limits.by  # inside a turn of a world
    if last and last[0].final and not cut and is_final(last[0].text, before):
        return "answer"
    if continuation.checked:
        return "checked"
    if continuation.ended:
        return "ended"
    by = "depth" if len(continuation.steps) >= limits.steps else limits.by
    if continuation.why == "thinking" and by == BUDGET:
        return THOUGHT_SPENT
    return continuation.why or by
