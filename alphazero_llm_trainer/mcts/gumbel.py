"""Gumbel selection: sequential halving at the root, the improved policy below it.

Danihelka et al. 2022, "Policy improvement by planning with Gumbel", with the constants of mctx's
`gumbel_muzero_policy`. At the root, k candidates are taken by Gumbel-top-k, and the budget is
shared out in rounds: each round visits the candidates that are left equally often and keeps the
better half (Karnin et al. 2013, "Almost optimal exploration in multi-armed bandits"). Below the
root each visit goes where visits fall furthest short of the improved policy.

What the logits are. A token's children are ranked by the policy, so a logit is the log of its
prior. A step's children are no list of all steps: they are the distinct ones among k samples of the
policy. Sampling has thinned out the unlikely ones already, and the plain log-probability would
count that twice; with long steps, which are never drawn twice, it would leave one sample with all
the weight. So a step weighs `p / (1 - (1 - p)^k)`, its probability over that of being among k
samples (Kool et al. 2019, "Stochastic beams and where to find them", section 4.2): p itself for a
step that is always drawn, and the same 1/k for each of many rare ones (as in Hubert et al. 2021,
Sampled MuZero, where samples have equal priors).

Simulations in flight count as visits but not as lost ones (Liu et al. 2020, WU-UCT): the rounds
know which visits come next, and no value has to be spoilt to send two simulations to different
places.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from random import Random

from ..tree.arena import ROOT, Tree
from .descent import TINY, Arms, Rule, expanded_children

SCALE = 0.1  # mctx's value_scale, c_scale in the paper
MAX_VISIT_INIT = 50.0  # mctx's maxvisit_init, c_visit in the paper
LEAST_RANGE = 1e-8  # the least range that values are rescaled by


class Halving:
    """The schedule of sequential halving over `considered` arms: before each visit, how many visits
    the arm to take has.

    It is mctx's `get_sequence_of_considered_visits`, made round by round, so that the simulations
    that a token budget pays for can be estimated anew before each round.
    """

    def __init__(self, considered: int) -> None:
        self.arms, self.rounds = (
            considered,
            max(1, math.ceil(math.log2(considered))) if considered > 1 else 1,
        )
        self.visits = [0] * considered
        self.plan: list[int] = []

    def extend(self, simulations: int) -> None:
        """Plan the next round of a search that has `simulations` in all; the last two arms (or one)
        go on to its end.
        """
        arms = self.arms
        for _ in range(max(1, simulations // (self.rounds * arms))):
            self.plan += self.visits[:arms]
            for i in range(arms):
                self.visits[i] += 1
        self.arms = min(len(self.visits), max(2, arms // 2))


def mixed_value(
    raw: float | None, priors: Sequence[float], visits: Sequence[int], values: Sequence[float]
) -> float:
    """v_mix, what an unvisited child is taken to be worth (Danihelka et al. 2022, equation 33).

    `raw` is the node's own estimate; without one the visited children's values, weighted by their
    priors, are all there is.
    """
    total = sum(visits)
    seen = math.fsum(p for p, n in zip(priors, visits, strict=True) if n)
    if not total or not seen:
        return 0.0 if raw is None else raw
    # sum_visited P(a) Q(a) / sum_visited P(a): the visited children's values under the policy.
    weighted = math.fsum(p * q for p, n, q in zip(priors, visits, values, strict=True) if n) / seen
    # v_mix = (v + N * weighted) / (1 + N): the node's own estimate counts as one visit among N.
    return weighted if raw is None else (raw + total * weighted) / (1 + total)


def improved_logits(
    logits: Sequence[float],
    visits: Sequence[int],
    values: Sequence[float],
    raw: float | None,
    scale: float = SCALE,
) -> list[float]:
    """`logits + sigma(completed Q)` `[K]`: unnormalised log-probabilities of the improved policy
    (equation 11).

    Q is completed by the mixed value and rescaled to [0, 1] over the children, then multiplied by
    `(MAX_VISIT_INIT + max visits) * scale`: mctx's `qtransform_completed_by_mix_value`.

    Args:
        logits: of the children's priors, up to a constant.
        visits, values: N and Q of the children; Q of an unvisited one is not read.
        raw: the node's own value, None where it has none.
    """
    # completedQ(a) = Q(a) where a was visited, else v_mix: an unvisited child is neither punished
    # nor favoured.
    mixed = mixed_value(raw, softmax(logits), visits, values)
    completed = [q if n else mixed for q, n in zip(values, visits, strict=True)]
    low = min(completed)
    # sigma(q) = (c_visit + max_b N(b)) * c_scale * q, q rescaled to [0, 1] over the K children: the
    # more visits, the more the values outweigh the priors.
    factor = (MAX_VISIT_INIT + max(visits)) * scale / max(max(completed) - low, LEAST_RANGE)
    return [logit + factor * (q - low) for logit, q in zip(logits, completed, strict=True)]


def softmax(logits: Sequence[float]) -> list[float]:
    """Probabilities `[K]` that sum to 1."""
    highest = max(logits)
    weights = [math.exp(logit - highest) for logit in logits]
    total = math.fsum(weights)
    return [weight / total for weight in weights]


def furthest_short(policy: Sequence[float], visits: Sequence[int]) -> int:
    """The index with the largest `pi'(a) - N(a) / (1 + sum N)` (equation 14); the earliest on
    ties.
    """
    total = 1 + sum(visits)
    return max(range(len(policy)), key=lambda i: policy[i] - visits[i] / total)


def raw_value(tree: Tree, node: int) -> float | None:
    """The mean of `node`'s own evaluations, else its V; None where it has neither: everything came
    through its children.
    """
    children = tree.children[node]
    own = tree.N[node] - sum(tree.N[child] for child in children)
    if own <= 0:
        return tree.V[node]
    earned = tree.W[node] - math.fsum(tree.W[child] for child in children)
    return min(1.0, max(0.0, earned / own))


def prior_logits(tree: Tree, node: int, children: Sequence[int]) -> list[float]:
    """Logits of `node`'s children: of the priors that the tree holds, else of sampled steps'
    weights (see above).
    """
    if tree.prior[children[0]] is not None:
        return [math.log(max(tree.prior[child] or 0.0, TINY)) for child in children]
    # k draws: repeated samples count, and siblings that are left out.
    return [sampled_logit(math.fsum(tree.logprobs[child]), tree.drawn[node]) for child in children]


def sampled_logit(logprob: float, draws: int) -> float:
    """`log(p / (1 - (1 - p)^draws))` of a step that is one of `draws` samples; `logprob` is log p
    in nats.
    """
    logprob = max(logprob, -700.0)  # exp must not be 0
    p = math.exp(logprob)
    return logprob if p >= 1.0 else logprob - math.log(-math.expm1(draws * math.log1p(-p)))


def node_logits(tree: Tree, node: int, children: Sequence[int], scale: float) -> list[float]:
    """`improved_logits` of a node's children."""
    values = [tree.q(child) for child in children]
    visits = [tree.N[child] for child in children]
    return improved_logits(
        prior_logits(tree, node, children), visits, values, raw_value(tree, node), scale
    )


def gumbel(tree: Tree, node: int, scale: float) -> int:
    """The child that the improved policy visits next: the largest `pi'(a) - N(a) / (1 + sum N)`,
    the earliest on ties.

    Danihelka et al. 2022, equation 14. Simulations in flight are visits.
    """
    children = tree.children[node]
    policy = softmax(node_logits(tree, node, children, scale))
    return children[
        furthest_short(policy, [tree.N[child] + tree.virtual[child] for child in children])
    ]


class GumbelRoot:
    """The rule of descent with sequential halving at the root: the first node with a choice, by
    `arms`.

    Args:
        seed: of the Gumbel noise, which is one number a child in the order they were made.
        candidates: how many children are considered at most.
        below: the rule elsewhere.
        arms: the children that can be candidates.
        choice: how many of them make a choice; 1 where the root can be drawn from again.
        draws: evaluations of the root before that; more than one where its children are sampled.
        scale: of the values.

    A search that goes on with a tree shares out its own budget and reads the values of all visits.
    """

    def __init__(
        self,
        seed: int,
        candidates: int,
        below: Rule,
        *,
        arms: Arms = expanded_children,
        choice: int = 2,
        draws: int = 1,
        scale: float = SCALE,
    ) -> None:
        self.candidates, self.below, self.arms, self.choice = candidates, below, arms, choice
        self.draws, self.scale = draws, scale
        self._rng = Random(seed)
        self.noise: list[float] = []  # drawn as children come
        self._node: int | None = None  # where the candidates are
        self._counted = 0  # simulations of the tree that were looked at
        self._drawn = 0  # those that ended in the root
        self._visits: dict[
            int, int
        ] = {}  # finished simulations through each child since the halving began
        self._halving: Halving | None = None
        self._skipped = 0  # visits of the plan that no child was left for

    def __call__(self, tree: Tree, node: int, left: int) -> int | None:
        if node == ROOT:
            self._count(tree)
            if self._draws_more(left):
                return ROOT
        children = self.arms(tree, node)
        if self._node is None and len(children) >= self.choice:
            self._node = node
        if node != self._node or not children:
            return self.below(tree, node, left)
        return self._choose(tree, node, children, left)

    def _draws_more(self, left: int) -> bool:
        """Whether the root is to be evaluated again before its candidates are compared; half of the
        simulations at most.
        """
        if self.draws == 1 or self._halving is not None:
            return False
        return self._drawn < min(self.draws, max(1, (self._drawn + left) // 2))

    def _choose(self, tree: Tree, node: int, children: Sequence[int], left: int) -> int | None:
        """The next of `children` to visit; None where the next round waits for values of
        simulations in flight.

        `left` is how many simulations are still to come, this one included.
        """
        siblings = tree.children[node]  # those that are no candidates had visits as well
        flying = {child: tree.virtual[child] for child in siblings}
        visits = {child: self._visits.get(child, 0) + flying[child] for child in siblings}
        while True:
            if self._halving is None or all(
                visits[child] < self._wanted_visits(visits) for child in children
            ):
                if any(flying.values()):
                    return None
                self._visits, self._skipped = {}, 0
                visits = dict.fromkeys(siblings, 0)
                self._halving = Halving(min(self.candidates, len(children)))
            if sum(visits.values()) + self._skipped >= len(self._halving.plan):
                if any(flying.values()):
                    return None
                self._halving.extend(sum(visits.values()) + left)
            wanted = self._wanted_visits(visits)
            if any(visits[child] == wanted for child in children):
                break
            self._skipped += 1
        scores = dict(zip(children, node_logits(tree, node, children, self.scale), strict=True))
        noise = dict(zip(siblings, self._gumbels(len(siblings)), strict=True))
        # Gumbel-top-k: argmax of g(a) + logit(a) + sigma(q(a)) among those that the halving's round
        # visits next; a sample of the improved policy without replacement (equation 12). The first
        # of equals: children are in order.
        return max(
            (c for c in children if visits[c] == wanted),
            key=lambda child: noise[child] + scores[child],
        )

    def _wanted_visits(self, visits: dict[int, int]) -> int:
        """How many visits the next child to take has."""
        assert self._halving is not None
        at = sum(visits.values()) + self._skipped
        return self._halving.plan[at] if at < len(self._halving.plan) else 0

    def _count(self, tree: Tree) -> None:
        """Take in the simulations that were backed up since the last call."""
        for leaf, _, _ in tree.simulations[self._counted :]:
            self._drawn += leaf == ROOT
            child = leaf
            while child > ROOT and tree.parent[child] != self._node:
                child = tree.parent[child]
            if child > ROOT and self._halving is not None:
                self._visits[child] = self._visits.get(child, 0) + 1
        self._counted = len(tree.simulations)

    def _gumbels(self, count: int) -> list[float]:
        while len(self.noise) < count:
            self.noise.append(-math.log(-math.log(max(self._rng.random(), TINY))))
        return self.noise[:count]
