"""What a leaf of step-level search becomes under a verifier: one chain, each step judged as soon as
it is drawn.

The chain ends at its first rejected step, which becomes a terminal node of reward 0 with the
verdict "rejected". What was good before it stays in the tree, and `Mcts` draws again from there at
once: no rejected leaf is left unrepaired.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..engine.protocol import Drawn, Judgement, Limits, StepPolicy
from ..tree.arena import REJECTED, ROOT, WHOLE, Rollout
from ..tree.extract import accepted
from ..types import (
    Continuation,
    Logprobs,
    RewardParts,
    Step,
    Steps,
    TokenIds,
    ids_of,
    logprobs_of,
    text_of,
    world_mask,
)
from .choose import voting
from .descent import Arms, BestFirst, Live, Rule, open_rule
from .expansion import Expansion
from .mcts import Leaf, LeafEvaluation, Playout
from .metered import MeteredVerifier, Paid
from .seeds import derive_seed
from .select import Selector
from .steps import end_verdict


class VerifiedExpansion(Expansion[StepPolicy]):
    """Evaluates the leaves of one tree: a chain of judged steps from the leaf to its first rejected
    step or its end.

    A step that is the first after its prefix is drawn at `search.verify.first_temperature`, one
    that replaces or forks another at `search.temperature`. A finished chain earns its judgement's
    `total`, in training what `evaluate` says. A cut one backs up the `total` of the steps before
    the rejected one, from there on: a bad step says little about the good ones above it. Where a
    value network judges, that is the V of the last good step.

    Without rollouts (`search.rollout: none`) a simulation is one step, and its V is backed up once:
    a rejected one changes no mean, for V of what stands before it was backed up as that was drawn.
    A step into a state that the tree has reached by no more steps is rejected too. A step that was
    not checked has no score.
    """

    choice = draws = 1

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        verifier = self.parts.verifier
        assert verifier is not None
        self.judge = MeteredVerifier(verifier, self.problem, self.prompt, self.cost)
        self.evaluate = self.parts.evaluate if self.parts.generating else None
        self.paid = Paid()  # what judging takes shows as a step is drawn
        # By the tokens before it: each step that was drawn, with log-probabilities at
        # `search.temperature`. The tree merges siblings of one text and has no steps that a limit
        # cut.
        self.seen: dict[TokenIds, dict[TokenIds, Logprobs]] = {}

    @property
    def vote(self) -> str:
        """`search.choose` as a search votes."""
        return voting(self.settings.choose, True)

    def make_arms(self, ends: bool) -> Arms:
        """Each node can be drawn from again, and rejected steps are none."""
        return Live(self.tree, self.settings.verify.patience, ends)

    def make_rule(self, selector: Selector, exploration: float, arms: Arms) -> Rule:
        """The selector's rule over a node's children and a step not drawn yet."""
        if selector.open is not None:
            return open_rule(selector.open, exploration, arms)
        guided = self.parts.value is not None or self.judge.verifier.guides
        return BestFirst(arms, selector.priority, exploration, guided)

    @property
    def reserve(self) -> int:
        """Tokens of the chain that answers where none passed."""
        if self.parts.generating or any(self.tree.reward):
            return 0
        return min(self.settings.verify.reserve, self.half)

    def find_end(self, left: int) -> str | None:
        """A response that was accepted ends the tree too, where nobody learns from it."""
        if self.parts.generating or not accepted(self.tree, self.settings.verify.accept_above):
            return super().find_end(left)
        return "accepted"

    def least(self, node: int) -> int:
        """One token of the next step; what judging takes shows as it is drawn."""
        return 1

    async def open(self, left: int | None) -> None:
        """What is known of the prompt: its state where that is free, and without rollouts its V,
        where the budget pays for reading it.
        """
        price = self.judge.step_price(())
        if self.tree.V[ROOT] is not None or (left is not None and price > left):
            return
        if price and self.rolls:
            return
        judged = await self.judge(())
        if not self.rolls:
            self.tree.V[ROOT] = judged.values[-1] if judged.values else None
        self.judge.enter(judged, 0)

    def refuses(self, judged: Judgement, steps: int) -> bool:
        """Whether the last of so many steps is rejected: it is wrong, or leads to a state that as
        few steps reached before.
        """
        if judged.rejects(self.settings.verify.reject_below, last=True):
            return True
        return not self.judge.enter(judged, steps)

    async def __call__(self, leaf: Leaf, left: int | None) -> LeafEvaluation:
        """The leaf's next chain, as a playout with the score of each of its steps."""
        steps = self.tree.growing[leaf.node] = self.tree.steps(leaf.node)
        start = len(steps)
        room = self.settings.max_tokens - len(ids_of(steps))
        draw = derive_seed(self.seed, leaf.node, self.tree.N[leaf.node])
        made: list[Judgement] = []  # of each new step
        before: Judgement | None = None  # of the steps before the next one
        total, why = 0.0, None
        while why is None:
            fresh = len(steps) > start or not self.tree.children[leaf.node]
            allowed = room if left is None else min(room, left)
            limits = Limits(self.settings.max_depth - len(steps), allowed)
            if limits.steps <= 0 or room <= 0:
                why = "depth" if limits.steps <= 0 else "length"
                break
            if allowed <= 0 or (len(steps) > start and not self.rolls):
                return self.leave_open(steps[start:], made)
            known = () if fresh else self.drawn_steps(leaf.node)
            next_step, spent = await self.draw(
                steps, derive_seed(draw, len(steps)), Limits(1, limits.tokens), fresh, known
            )
            ids, logprobs = next_step.drawn
            self.seen.setdefault(ids_of(steps), {})[ids] = logprobs
            room -= spent
            left = None if left is None else left - spent
            answered = end_verdict(next_step, limits, steps) == "answer"
            if next_step.ended or answered:
                why = "answer" if answered else "ended"
            elif not next_step.steps or next_step.cut:
                # The tokens ran out inside a step, and half a step can't be judged.
                if allowed < room + spent:
                    return self.leave_open(steps[start:], made)
                why = "length"
                break
            steps += next_step.steps
            if not next_step.steps:
                break
            price = self.judge.step_price(steps)
            if left is not None:
                if price > left:
                    # Unjudged steps earn nothing: what the budget can't pay for isn't known.
                    if why is None:
                        return self.leave_open(steps[start:], made)
                    total = 0.0
                    break
                left -= price
            judged = await self.judge(steps)
            made.append(judged)
            total = judged.total
            if self.refuses(judged, len(steps)):
                why, total = REJECTED, await self.standing(leaf.node, steps[:-1], before, judged)
            before = judged
        chain = Continuation(tuple(steps[start:]), why == "ended")
        if not chain.steps:
            # Not one step fits: a visit without worth, so that the next draw is another one.
            return LeafEvaluation(value=0.0)
        reward = await self.chain_reward(steps, why, total)
        return LeafEvaluation(
            [Playout(chain, why, reward)],
            estimate=total if why == REJECTED else None,
            **judgement_columns(made),
        )

    async def standing(
        self, leaf: int, steps: Steps, before: Judgement | None, after: Judgement
    ) -> float:
        """What a rejected step backs up from `steps`, the state before it: the `total` there, or V
        where a value network judges; of `leaf` itself, whose V was backed up, the mean as it is.

        `before` is the judgement of `steps`, None where it was made for an earlier chain. A
        beginning in which nothing was checked says nothing of what comes, and keeps 1.
        """
        if after.values:
            new = before is not None  # the state was drawn in this simulation
            return after.values[-2] if new else self.tree.q(leaf)
        if before is None and steps:
            before = await self.judge(steps)
        return before.total if before is not None and before.checked else 1.0

    async def chain_reward(self, steps: Steps, why: str | None, total: float) -> RewardParts:
        """The reward of a chain that ended like this: what it was judged, or graded in training; 0
        without an answer.
        """
        if self.evaluate is not None and why is not None and why != REJECTED:
            return await self.grade(steps, (), why)
        answers = why in WHOLE and self.reading(text_of(steps)) is not None
        return RewardParts(total=total if answers else 0.0)

    def leave_open(self, steps: Steps, made: Sequence[Judgement]) -> LeafEvaluation:
        """What a simulation of one step, or the budget, left of a chain: its steps stay open.

        Without rollouts and without a value, the `total` of the steps so far is backed up.
        """
        playout = Playout(Continuation(tuple(steps), False), None, None)
        total = made[-1].total if made and not self.rolls else None
        return LeafEvaluation([playout], estimate=total, **judgement_columns(made))

    def drawn_steps(self, node: int) -> Drawn:
        """The steps that were drawn after `node`, as `GenerateRequest.without` has them."""
        tree = self.tree
        # A tree holds log-probabilities at temperature 1: at others what an earlier search drew may
        # come again.
        kept = tree.children[node] if self.settings.temperature == 1.0 else ()
        steps = [tree.step(child) for child in kept]
        known = {step.token_ids[: step.drawn]: step.logprobs[: step.drawn] for step in steps}
        return tuple((known | self.seen.get(ids_of(tree.steps(node)), {})).items())

    async def draw(
        self, steps: list[Step], seed: int, limits: Limits, fresh: bool, known: Drawn = ()
    ) -> tuple[Continuation, int]:
        """The next step (or with more lines the rest of the response) after `steps`, and its
        sampled and given tokens.

        `known` are the steps that were drawn there: they are not drawn again, see
        `search.verify.repeat`.
        """
        temperature = self.settings.verify.first_temperature if fresh else self.settings.temperature
        without = None if self.settings.verify.repeat else known
        [drawn], spent = await self.policy.continuations(
            self.problem, steps, 1, seed, limits, temperature=temperature, without=without
        )
        self.cost.add(spent)
        return drawn, spent.computed

    async def close(self, node: int, left: int | None) -> int:
        """Where no response passed: one more chain, unjudged, from the open state with the largest
        V; without a value from the end of the deepest path that was not rejected.

        In training nobody waits for an answer, and a chain that was not judged teaches nothing.
        """
        tree = self.tree
        if self.evaluate is not None or any(tree.reward[leaf] for leaf in tree.leaves()):
            return node
        depths = tree.depths()
        open_ends = [end for end in range(len(tree)) if tree.verdict[end] is None]
        node = max(open_ends, key=lambda end: (tree.V[end] or 0.0, depths[end], -end))
        steps = tree.steps(node)
        limits = self.limits(steps, left)
        if limits is None:
            return node
        seed = derive_seed(self.seed, "final")
        last, _ = await self.draw(steps, seed, limits, not tree.children[node])
        # A rollout and no nodes: it may pass through a step that was rejected.
        ids, logprobs, text = ids_of(last.steps), logprobs_of(last.steps), text_of(last.steps)
        verdict, mask = end_verdict(last, limits), world_mask(last.steps)
        rollout = Rollout(node, ids, logprobs, text, verdict, 0.0, None, None, mask=mask)
        tree.rollouts.append(rollout)
        return node


def judgement_columns(made: Sequence[Judgement]) -> dict[str, Any]:
    """What each judgement says of its last step, as `LeafEvaluation` has it."""
    last = [len(judged.steps) - 1 for judged in made]
    checked = [at not in judged.unchecked for judged, at in zip(made, last, strict=True)]
    return {
        "scores": [
            judged.steps[-1] if known else None for judged, known in zip(made, checked, strict=True)
        ],
        "unread": [at in judged.unread for judged, at in zip(made, last, strict=True)],
        "values": [value for judged in made for value in judged.values[-1:]],
    }
