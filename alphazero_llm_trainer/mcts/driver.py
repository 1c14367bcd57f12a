"""One coroutine a tree: ask the search for leaves, evaluate them, tell. Many trees, one engine."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from ..config.refusals import refuse_conflicts
from ..errors import ConfigError, RequestError
from ..tree.arena import Tree
from ..types import Cost, Problem
from .choose import Choice, choose, most_visited
from .descent import rescaled_rule
from .expansion import Expansion, Parts
from .gumbel import GumbelRoot
from .mcts import Mcts
from .seeds import derive_seed
from .select import constant, selector_of
from .steps import StepExpansion
from .tokens import TokenExpansion
from .verified import VerifiedExpansion
from .waiting import gather_all

# What a node is: by `search.mode`, and under a verifier.
EXPANSIONS: dict[str, type[Expansion[Any]]] = {
    "step": StepExpansion,
    "token": TokenExpansion,
    "verified": VerifiedExpansion,
}


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


@dataclass
class Search(Parts):
    """The search of one configuration over one policy: over reasoning steps, or with `search.mode:
    token` over tokens. See `Parts`.

    Raises ConfigError where the settings need a value network and there is none.
    """

    def __post_init__(self) -> None:
        settings, verifier = self.settings, self.verifier
        name = settings.selector(verifier is not None)
        self.selector = selector_of(name)
        if verifier is None and self.selector.select is None:
            raise ConfigError(
                f"search.select is {name}, which needs a verifier: name one (eval --verifier, "
                "train.groups=verified), or take ucb1, puct or gumbel"
            )
        self.expansion = EXPANSIONS[settings.mode if verifier is None else "verified"]
        guided = verifier is not None and verifier.guides
        self.guided = guided or self.value is not None
        # An open node's next step is all that best-first searches ask for, by the policy alone too.
        single = guided or (verifier is not None and self.selector.open is None)
        valued = self.value is not None or single
        refuse_conflicts(
            (), "search", search=settings, valued=valued, verified=verifier is not None
        )
        if settings.rollout is None:
            self.settings = settings.with_values(rollout="none" if single else "sample")
        largest = settings.backup == "max"
        self.exploration = constant(name, settings.exploration, self.guided, largest)

    async def run(
        self, problem: Problem, seed: int, tree: Tree | None = None, cost: Cost | None = None
    ) -> SearchResult:
        """Search one problem, going on with `tree`; `cost` counts up while it runs (None: a new
        tree and cost).
        """
        began = time.perf_counter()
        tree = Tree() if tree is None else tree
        cost = Cost() if cost is None else cost
        expansion = self.expansion(self, problem, tree, seed, cost)
        mcts = self.make_mcts(expansion)
        if self.grading is not None:
            # At most half of a budget: the rest is for responses.
            most = None if self.settings.budget_tokens is None else expansion.half
            opening = await self.grading.open(problem, most)
            if opening is None:
                return SearchResult(problem, tree, None, cost, "tokens", seed)
            cost.add(opening)
        try:
            ended_by = await self.simulate(mcts, expansion)
            node = await expansion.close(most_visited(tree), self.left(cost))
        except RequestError as error:
            error.cost = cost  # what was sampled is paid for all the same
            raise
        finally:
            cost.seconds = time.perf_counter() - began
            mcts.cancel()
        saved = mcts.left if ended_by in ("accepted", "enough") else 0
        # What was accepted is the answer.
        vote = "value" if ended_by == "accepted" else expansion.vote
        choice = choose(tree, vote, node, expansion.text, expansion.reading)
        return SearchResult(problem, tree, choice, cost, ended_by, seed, saved)

    def left(self, cost: Cost, reserve: int = 0) -> int | None:
        """Sampled and scored tokens that the budget leaves beside `reserve`; None without a
        budget.
        """
        budget = self.settings.budget_tokens
        return None if budget is None else max(budget - reserve - cost.computed, 0)

    async def simulate(self, mcts: Mcts, expansion: Expansion[Any]) -> str:
        """Run simulations until something ends the tree; returns what did."""
        cost = expansion.cost
        await expansion.open(self.left(cost, expansion.reserve))
        before = cost.computed
        ended_by: str | None = None
        while ended_by is None:
            left = self.left(cost, expansion.reserve)
            spent = cost.computed - before
            if left is not None and spent:
                # What is left pays for, at what a simulation cost so far.
                mcts.expected = min(max(1, left * mcts.simulation // spent), mcts.left)
            leaves = mcts.ask(self.settings.width)
            if not leaves:
                return "simulations"
            if self.stop():
                return "stopped"
            share = None if left is None else left // len(leaves)
            if share is not None and share < max(expansion.least(leaf.node) for leaf in leaves):
                return "tokens"
            evaluations = await gather_all(*(expansion(leaf, share) for leaf in leaves))
            for leaf, evaluation in zip(leaves, evaluations, strict=True):
                mcts.tell(leaf, evaluation)
            ended_by = expansion.find_end(mcts.left)
        return ended_by

    def make_mcts(self, expansion: Expansion[Any]) -> Mcts:
        """The tree search of one tree that the settings describe."""
        settings, selector, tree = self.settings, self.selector, expansion.tree
        # The improved policy would look at nothing else than a finished response, and that is
        # known.
        arms = expansion.make_arms(ends=not selector.halves)
        rule = expansion.make_rule(selector, self.exploration, arms)
        if self.guided:
            rule = rescaled_rule(rule)
        tree.discount = settings.discount
        if settings.backup == "max":
            tree.maximise()
        if selector.halves:
            rule = GumbelRoot(
                derive_seed(expansion.seed, "gumbel"),
                settings.candidates,
                rule,
                arms=arms,
                choice=expansion.choice,
                draws=-(-settings.candidates // expansion.draws),
                scale=self.exploration,
            )
        return Mcts(tree, rule, settings.simulations)
