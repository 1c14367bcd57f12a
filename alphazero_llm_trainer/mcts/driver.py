"""One coroutine a tree: ask the search for leaves, evaluate them, tell. Many trees, one engine."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..config.sections import SearchConfig
from ..engine.protocol import ValueFunction, Verifier
from ..errors import ConfigError, RequestError
from ..tree.arena import Tree
from ..tree.extract import accepted, finished_responses, right_responses
from ..types import Cost, Problem
from .choose import Choice, Reading, answer_of, choose, most_visited, voting
from .descent import BestFirst, Live, Rule, closed, expanded, opened, rescaled
from .expansion import Evaluate, Expansion, Grading
from .gumbel import GumbelRoot
from .mcts import Mcts
from .metered import MeteredValue, MeteredVerifier, Paid, valued_by
from .seeds import derive_seed
from .select import constant, selector_of
from .steps import Advisor, Finished, StepExpansion, StepPolicy
from .tokens import TokenExpansion, TokenPolicy
from .verified import VerifiedExpansion
from .waiting import together


@dataclass(slots=True)
class SearchResult:
    """A finished search: the tree, the best response and why it was chosen, what it cost, and what
    ended it.

    `ended_by` is "simulations", "tokens", "stopped", "accepted" (a response passed the verifier) or
    "enough" (right responses, data generation). `saved` counts the simulations that were not
    needed.
    """

    problem: Problem
    tree: Tree
    choice: Choice | None
    cost: Cost
    ended_by: str
    seed: int
    saved: int = 0

    @property
    def answer(self) -> str | None:
        """The final answer of the chosen response; None where no response was finished."""
        return None if self.choice is None else self.choice.answer

    @property
    def response(self) -> str | None:
        """The chosen response's text."""
        return None if self.choice is None else self.choice.response


class Search:
    """The search of one configuration over one policy: over reasoning steps, or with `search.mode:
    token` over tokens.

    Args:
        policy: the student, as a `StepPolicy` or a `TokenPolicy`.
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

    Raises ConfigError where the settings need a value network and there is none.
    """

    def __init__(
        self,
        policy: StepPolicy | TokenPolicy,
        evaluate: Evaluate | None,
        settings: SearchConfig,
        advisor: Advisor | None = None,
        finished: Finished | None = None,
        stop: Callable[[], bool] = lambda: False,
        *,
        value: ValueFunction | None = None,
        generating: bool = False,
        grading: Grading | None = None,
        verifier: Verifier | None = None,
        reading: Callable[[Problem], Reading] = lambda problem: answer_of,
    ) -> None:
        self.policy, self.evaluate, self.settings, self.reading = (
            policy,
            evaluate,
            settings,
            reading,
        )
        self.advisor, self.finished, self.stop = advisor, finished, stop
        self.value, self.generating, self.verifier, self.grading = (
            value,
            generating,
            verifier,
            grading,
        )
        selector = settings.selector(verifier is not None)
        rules = selector_of(selector)
        if verifier is None and rules.select is None:
            raise ConfigError(
                f"search.select is {selector}, which needs a verifier: name one (eval --verifier, "
                "train.groups=verified), or take ucb1, puct or gumbel"
            )
        if verifier is not None and settings.mode == "token":
            raise ConfigError(
                "search.mode is token and a verifier is given: "
                "it judges steps; use search.mode=step"
            )
        guided = verifier is not None and verifier.guides
        # An open node's next step is all that best-first searches ask for, by the policy alone too.
        single = guided or (verifier is not None and rules.open is None)
        check_settings(settings, value is not None or single)
        if settings.rollout is None:
            rollout = "none" if single else "sample"
            self.settings = settings = settings.changed(rollout=rollout)
        self.guided = guided or value is not None
        # Tokens don't always decode one by one; lines do.
        self.text = policy.text if settings.mode == "token" else None  # type: ignore[union-attr]
        if settings.rollout_weight is not None:
            self.rollout_weight = settings.rollout_weight
        else:
            self.rollout_weight = 1.0 if value is None else value.rollout_weight

    async def run(
        self, problem: Problem, seed: int, tree: Tree | None = None, cost: Cost | None = None
    ) -> SearchResult:
        """Search one problem, going on with `tree`; `cost` counts up while it runs (None: a new
        tree and cost).
        """
        settings, began = self.settings, time.perf_counter()
        tree = Tree() if tree is None else tree
        cost = Cost() if cost is None else cost
        expansion = self.expansion(problem, tree, seed, cost)
        mcts = self.mcts(tree, seed)
        if self.grading is not None:
            # At most half of a budget: the rest is for responses.
            budget = settings.budget_tokens
            opening = await self.grading.open(problem, None if budget is None else budget // 2)
            if opening is None:
                return SearchResult(problem, tree, None, cost, "tokens", seed)
            cost.add(opening)
        try:
            ended_by = await self.simulate(mcts, expansion, cost)
            node = await expansion.close(most_visited(tree), self.left(cost))
        except RequestError as error:
            cost.seconds = time.perf_counter() - began
            error.cost = cost  # what was sampled is paid for all the same
            raise
        finally:
            mcts.cancel()
        cost.seconds = time.perf_counter() - began
        saved = mcts.simulations - mcts.simulation if ended_by in ("accepted", "enough") else 0
        judged = self.verifier is not None
        selector = voting(settings.choose if judged else settings.votes, judged)
        if ended_by == "accepted":  # what was accepted is the answer
            selector = "value"
        choice = choose(tree, selector, node, self.text, self.reading(problem))
        return SearchResult(problem, tree, choice, cost, ended_by, seed, saved)

    def left(self, cost: Cost, kept: int = 0) -> int | None:
        """Sampled and scored tokens that the budget leaves beside `kept`; None without a budget."""
        budget = self.settings.budget_tokens
        return (
            None
            if budget is None
            else max(budget - kept - cost.sampled_tokens - cost.scored_tokens, 0)
        )

    def kept(self, tree: Tree) -> int:
        """Tokens of the budget that simulations leave to `Expansion.close`."""
        settings = self.settings
        half = (settings.budget_tokens or 0) // 2
        if settings.rollout == "none" and self.verifier is None:  # the one rollout at the end
            return min(settings.max_tokens, half)
        if self.verifier is None or self.generating or any(tree.reward):
            return 0
        return min(settings.verify.reserve, half)  # the chain that answers where none passed

    async def simulate(self, mcts: Mcts, expansion: Expansion, cost: Cost) -> str:
        """Run simulations until something ends the tree; returns what did."""
        settings, tree = self.settings, mcts.tree
        await expansion.open(self.left(cost, self.kept(tree)))
        before = cost.sampled_tokens + cost.scored_tokens
        ended_by: str | None = None
        while ended_by is None:
            left = self.left(cost, self.kept(tree))
            spent = cost.sampled_tokens + cost.scored_tokens - before
            if left is not None and spent:
                # What is left pays for, at what a simulation cost so far.
                paid = max(1, left * mcts.simulation // spent)
                mcts.expected = min(paid, mcts.simulations - mcts.simulation)
            leaves = mcts.ask(settings.width)
            if not leaves:
                ended_by = "simulations"
            elif self.stop():
                ended_by = "stopped"
            elif left is not None and left < len(leaves) * max(
                expansion.least(leaf.node) for leaf in leaves
            ):
                ended_by = "tokens"
            elif len(leaves) == 1:
                mcts.tell(leaves[0], await expansion(leaves[0], left))
                ended_by = self.decided(mcts)
            else:
                share = None if left is None else left // len(leaves)
                evaluations = await together(*(expansion(leaf, share) for leaf in leaves))
                for leaf, evaluation in zip(leaves, evaluations, strict=True):
                    mcts.tell(leaf, evaluation)
                ended_by = self.decided(mcts)
        return ended_by

    def mcts(self, tree: Tree, seed: int) -> Mcts:
        """The tree search that the settings describe; `seed` is the tree's."""
        settings, judged = self.settings, self.verifier is not None
        selector = settings.selector(judged)
        rules = selector_of(selector)
        largest = settings.backup == "max"
        exploration = constant(selector, settings.exploration, self.guided, largest)
        # The improved policy would look at nothing else than a finished response, and that is
        # known.
        arms = Live(tree, settings.verify.patience, ends=not rules.halves) if judged else expanded
        rule: Rule
        if rules.select is not None and not judged:
            rule = closed(rules.select, exploration)
        elif rules.open is not None:
            rule = opened(rules.open, exploration, arms)
        else:
            rule = BestFirst(arms, rules.priority, exploration, self.guided)
        if self.guided:
            rule = rescaled(rule)
        tree.discount = settings.discount
        if largest:
            tree.maximise()
        if rules.halves:
            # Tokens are all there after one evaluation, steps are drawn `samples` at a time, or
            # under a verifier singly.
            drawn = (
                settings.candidates
                if settings.mode == "token"
                else 1
                if judged
                else settings.samples
            )
            rule = GumbelRoot(
                derive_seed(seed, "gumbel"),
                settings.candidates,
                rule,
                arms=arms,
                choice=1 if judged else 2,
                draws=-(-settings.candidates // drawn),
                scale=exploration,
            )
        return Mcts(tree, rule, settings.simulations)

    def expansion(self, problem: Problem, tree: Tree, seed: int, cost: Cost) -> Expansion:
        """What turns a leaf of this tree into children and a value."""
        settings, reading = self.settings, self.reading(problem)
        policy: Any = self.policy
        common = (policy, settings, problem, tree, seed, cost)
        if self.verifier is not None:
            judge = MeteredVerifier(self.verifier, problem, policy.prompt_ids(problem), cost)
            return VerifiedExpansion(
                *common, self.evaluate if self.generating else None, reading=reading, judge=judge
            )
        value = None if self.value is None else MeteredValue(self.value, cost)
        evaluate, grading = self.evaluate, self.grading
        if evaluate is None:
            assert value is not None, "a search needs something that grades responses"
            evaluate = valued_by(value, policy.prompt_ids, reading)
            paid = Paid(value.computes)
        else:
            again = grading is not None and grading.again
            # Without rollouts nothing was graded before a response's end.
            paid = Paid(again, whole=again and settings.rollout == "none")
        shared = (*common, evaluate, paid, value, self.rollout_weight, reading)
        if settings.mode == "token":
            return TokenExpansion(*shared, self.generating)
        prompt = () if value is None else policy.prompt_ids(problem)
        return StepExpansion(*shared, prompt, self.advisor, self.finished)

    def decided(self, mcts: Mcts) -> str | None:
        """Why the tree needs no further simulation, or None."""
        settings, tree, left = self.settings, mcts.tree, mcts.simulations - mcts.simulation
        if (
            self.verifier is not None
            and not self.generating
            and accepted(tree, settings.verify.accept_above)
        ):
            return "accepted"
        finished = settings.enough_finished
        if self.generating and finished and finished_responses(tree) >= finished:
            return "enough"
        if left == 0:
            return None
        enough = settings.enough_correct
        if (
            self.generating
            and enough
            and right_responses(tree, self.verifier is not None) >= enough
        ):
            return "enough"
        return None


def check_settings(settings: SearchConfig, valued: bool) -> None:
    """Raise ConfigError for settings that need a value network where none is there."""
    weight = 1.0 if settings.rollout_weight is None else settings.rollout_weight
    if not valued and (settings.rollout == "none" or weight < 1):
        raise ConfigError(
            f"search.rollout is {settings.rollout} and search.rollout_weight is {weight:g}, which"
            " needs a value network: set search.value to a folder that `value` wrote"
        )
