"""What a search is made of, and what turns a leaf of its tree into children and a value: the part
that all expansions share.

An expansion is a class in a file of its own, chosen in `driver.EXPANSIONS`. It says what a node is
(a step, a token), what a descent may choose from, when the tree is done and what votes at its end.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Generic, Protocol, TypeVar

from ..config.sections import SearchConfig
from ..engine.protocol import (
    Generated,
    Limits,
    RolloutRequest,
    StepPolicy,
    TeacherProposal,
    ValueFunction,
    Verifier,
)
from ..live import StopAsked
from ..tree.arena import WHOLE, Tree
from ..tree.extract import finished_responses, right_responses
from ..types import (
    Cost,
    Direction,
    LikelyTokens,
    Logprobs,
    Problem,
    RewardParts,
    Step,
    Steps,
    TokenIds,
    ids_of,
    text_of,
)
from .choose import Decode, Reading, answer_of
from .descent import Arms, Rule, closed_rule, expanded_children
from .mcts import Leaf, LeafEvaluation
from .metered import MeteredValue, Paid
from .select import Selector


class TokenPolicy(Protocol):
    """The student as token-level search sees it: token ids in, token ids out. `context`: prompt and
    response, tokens.
    """

    context: int

    def prompt_ids(self, problem: Problem) -> TokenIds: ...

    def text(self, token_ids: TokenIds) -> str: ...

    def lines(self, token_ids: TokenIds, logprobs: Logprobs) -> list[Step]:
        """A response as reasoning steps, for its reward."""
        ...

    def verdict(self, response: TokenIds) -> str | None:
        """Why a response is finished after its last token ("answer", "ended"), or None where it
        goes on.
        """
        ...

    async def rollout(self, asked: RolloutRequest) -> tuple[Generated, Cost]: ...

    async def topk(self, prefix: TokenIds, k: int) -> tuple[LikelyTokens, Cost]:
        """The k likeliest next tokens with their log-probabilities (nats), likeliest first."""
        ...


class Advisor(Protocol):
    """The teachers as the search sees them: one that fails proposes nothing. They keep their own
    ledgers of cost.
    """

    def asks(self, agreement: float, best: float) -> bool:
        """Whether to ask where the student's continuations agree and came out like this (see
        `StepExpansion.student_standing`).
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


class Grading(Protocol):
    """The part of a model in what `Evaluate` does: PRE's student, a network that judges.

    `again` tells that it computes each token of a graded response once more.
    """

    @property
    def again(self) -> bool: ...

    async def open(self, problem: Problem, most: int | None) -> Cost | None:
        """Compute what comes before the first response, within `most` tokens (None: without limit).

        Returns None, and computes nothing, where that doesn't fit: then nothing can be graded.
        """
        ...


# Grades a response's end from the problem, its steps, their directions and its verdict. Has no gold
# but in training.
Evaluate = Callable[[Problem, Sequence[Step], Sequence[Direction], str], Awaitable[RewardParts]]
# (problem, response, the rule's verdict) -> whether the response is finished: an optional model's
# opinion.
Finished = Callable[[Problem, str, bool], Awaitable[bool]]


@dataclass
class Parts:
    """What a search is made of.

    Args:
        policy: the student, of the kind that proposes what the nodes are.
        evaluate: grades terminal responses, rewards in [0, 1]; None: `value` does (V of the whole
            response).
        settings: simulations, widths, depth and budgets.
        advisor: teachers, or None (steps alone).
        finished: a terminal checker beside the rule, or None (steps alone).
        stop: asked before each simulation; True ends every tree with the best so far.
        value: the value network, or None.
        generating: `search.enough_correct` and `enough_finished` apply (training searches).
        grading: what `evaluate` computes, where a model has a part in it.
        verifier: checks each step as it is drawn (`search.verify`, steps alone); `evaluate` is
            asked in training searches alone then.
        reading: for a problem, what a response answers; without it answers are numbers.
    """

    policy: StepPolicy | TokenPolicy
    evaluate: Evaluate | None
    settings: SearchConfig
    advisor: Advisor | None = None
    finished: Finished | None = None
    stop: StopAsked = lambda: False
    value: ValueFunction | None = None
    generating: bool = False
    grading: Grading | None = None
    verifier: Verifier | None = None
    reading: Callable[[Problem], Reading] = lambda problem: answer_of


P = TypeVar("P", StepPolicy, TokenPolicy)


class Expansion(ABC, Generic[P]):
    """Evaluates the leaves of one tree of a search. `cost`, the search's own, is added to."""

    policy: P
    text: Decode | None = None  # decodes a response, where its nodes' texts don't join to it
    choice: ClassVar = 2  # arms that make a choice

    def __init__(self, parts: Parts, problem: Problem, tree: Tree, seed: int, cost: Cost) -> None:
        self.parts, self.settings = parts, parts.settings
        self.policy = parts.policy  # type: ignore[assignment] # of the kind that `mode` asks for
        self.problem, self.reading = problem, parts.reading(problem)
        self.tree, self.seed, self.cost = tree, seed, cost
        self.value = None if parts.value is None else MeteredValue(parts.value, cost)
        weight, value, grading = self.settings.rollout_weight, self.value, parts.grading
        if weight is None:
            weight = 1.0 if parts.value is None else parts.value.rollout_weight
        self.rollout_weight = weight  # lambda of `mix`
        # Without rollouts nothing was graded before a response's end.
        again = grading is not None and grading.again
        self.paid = Paid(again, whole=again and not self.rolls)
        if parts.evaluate is None:
            self.paid = Paid(value is not None and value.computes)

    @cached_property
    def prompt(self) -> TokenIds:
        """The problem's prompt."""
        return self.policy.prompt_ids(self.problem)

    @property
    def rolls(self) -> bool:
        """Whether simulations run to a response's end; without rollouts V of the leaf is what is
        backed up.
        """
        return self.settings.rollout != "none"

    @property
    def draws(self) -> int:
        """How many children one evaluation brings at most."""
        return self.settings.samples

    @property
    def vote(self) -> str:
        """What chooses the response at the end, see `choose.choose`."""
        return self.settings.votes

    def make_arms(self, ends: bool) -> Arms:
        """The children that a descent may go on to; with `ends` those that are finished, too."""
        return expanded_children

    def make_rule(self, selector: Selector, exploration: float, arms: Arms) -> Rule:
        """How a descent goes by this selector."""
        assert selector.select is not None, "a selector under a verifier alone was refused"
        return closed_rule(selector.select, exploration)

    @property
    def reserve(self) -> int:
        """Tokens of the budget that simulations leave to `close`."""
        return 0 if self.rolls else min(self.settings.max_tokens, self.half)

    @property
    def half(self) -> int:
        """Half of the budget."""
        return (self.settings.budget_tokens or 0) // 2

    def find_end(self, left: int) -> str | None:
        """Why the tree needs no further simulation, of which `left` are left, or None."""
        if not self.parts.generating:
            return None
        finished, right = self.settings.enough_finished, left and self.settings.enough_correct
        judged = self.parts.verifier is not None
        if finished and finished_responses(self.tree) >= finished:
            return "enough"
        return "enough" if right and right_responses(self.tree, judged) >= right else None

    @abstractmethod
    def least(self, node: int) -> int:
        """Sampled and scored tokens that the evaluation of this leaf takes at least."""

    async def open(self, left: int | None) -> None:
        """What comes before the first simulation. `left` is how many tokens the budget pays for;
        None: any number.
        """

    @abstractmethod
    async def __call__(self, leaf: Leaf, left: int | None) -> LeafEvaluation: ...

    @abstractmethod
    async def close(self, node: int, left: int | None) -> int:
        """What comes after the last simulation, where the most visited path ends in `node`; returns
        where it ends now.
        """

    def limits(self, steps: Steps, left: int | None, draws: int = 1) -> Limits | None:
        """Steps and tokens that each of so many `draws` after `steps` may still have, where a
        budget has `left` tokens (None: any number); None where it may have none.
        """
        length = len(ids_of(steps))
        room = self.settings.max_tokens - length
        paid = room if left is None else self.paid.room(left // draws, length)
        by = "budget" if paid < room else "length"
        limits = Limits(self.settings.max_depth - len(steps), min(room, paid), by)
        return limits if limits.steps > 0 and limits.tokens > 0 else None

    async def grade(
        self, steps: Steps, directions: Sequence[Direction], verdict: str
    ) -> RewardParts:
        """The reward of a response's end, whose cost is added to the search's. Where nothing else
        grades it is V of the whole response, 0 where that states no answer.
        """
        if self.parts.evaluate is not None:
            reward = await self.parts.evaluate(self.problem, steps, directions, verdict)
            if reward.cost is not None:
                self.cost.add(reward.cost)
            return reward
        assert self.value is not None, "a search needs something that grades responses"
        answers = verdict in WHOLE and self.reading(text_of(steps)) is not None
        return RewardParts(await self.value(self.prompt + ids_of(steps)) if answers else 0.0)
