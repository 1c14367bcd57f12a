"""The selection rules: which child a simulation descends to. `descent.py` makes a descent of them.

N are visits, W sums of rewards, P priors. Q of a child is `discount * W/N`, read as
`(Q - tree.low) / tree.span`, which is W/N until a value guides the search (`descent.rescaled`) and
a discount is set. A simulation in flight counts as `tree.virtual` visits of value 0 (virtual
loss). Under a verifier a node has one more arm: a step not drawn yet.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from ..config.objects import own_object
from ..errors import ConfigError
from ..tree.arena import Tree
from .descent import TINY, OpenNode, OpenSelect, Priority, Select, probabilities
from .gumbel import SCALE, furthest_short, gumbel, improved_logits, raw_value, softmax


def ucb1(tree: Tree, node: int, exploration: float) -> int:
    """The child with the largest `W/N + c*sqrt(ln(N_parent)/N)`; an unvisited one first, the
    earliest on ties.

    Auer et al. 2002, "Finite-time Analysis of the Multiarmed Bandit Problem"; Kocsis & Szepesvari
    2006 for trees.
    """
    N, virtual = tree.N, tree.virtual
    parent = N[node] + virtual[node]
    log_parent = math.log(parent) if parent > 0 else 0.0
    best, best_score = -1, -math.inf
    for child in tree.children[node]:
        # The formula's N has simulations in flight as well, its W has not: each is a visit of value
        # 0 and lowers W/N.
        visits = N[child] + virtual[child]
        score = (
            math.inf
            if visits == 0
            else tree.scaled(child, visits) + exploration * math.sqrt(log_parent / visits)
        )
        if score > best_score:
            best, best_score = child, score
    return best


def puct(tree: Tree, node: int, exploration: float) -> int:
    """The child with the largest `Q + c_puct * P * sqrt(N_parent)/(1 + N)`; Q of an unvisited child
    is 0.

    Silver et al. 2017, "Mastering the game of Go without human knowledge". Priors that the tree
    holds sum to 1 over the siblings; where it holds none, P is the probability of the step's
    tokens, normalised over the siblings here.
    """
    N, virtual, prior = tree.N, tree.virtual, tree.prior
    children = tree.children[node]
    priors: Sequence[Any] = [prior[child] for child in children]
    if priors[0] is None:
        priors = softmax([math.fsum(tree.logprobs[child]) for child in children])
    root_visits = math.sqrt(N[node] + virtual[node])
    best, best_score = -1, -math.inf
    for child, share in zip(children, priors, strict=True):
        visits = N[child] + virtual[child]
        # U = c P sqrt(N_parent)/(1 + N): falls as the child is visited, rises as its siblings are.
        score = exploration * share * root_visits / (1 + visits)
        if visits:
            score = tree.scaled(child, visits) + score
        if score > best_score:
            best, best_score = child, score
    return best


def open_puct(tree: Tree, node: int, exploration: float, arms: Sequence[int]) -> int:
    """PUCT over the children in `arms` and one more arm, a step not drawn yet; `node` itself stands
    for that one.

    The new step's prior is what the policy leaves beside all children that were drawn, rejected
    ones too, so that uncertain steps are forked and certain ones kept; its Q is the node's mean and
    its visits are the draws so far. A child's prior is the probability of its tokens, and no less
    than the new step's: a long step has next to none and is never drawn twice, so that its own says
    nothing (samples of the policy have equal priors in Hubert et al. 2021, "Learning and planning
    in complex action spaces").
    """
    N, virtual = tree.N, tree.virtual
    drawn, left = probabilities(tree, node)
    scale = exploration * math.sqrt(N[node] + virtual[node])
    # The new step: Q(node) + c P_left sqrt(N)/(1 + k), k draws so far.
    mean = (tree.q(node) - tree.low) / tree.span if N[node] else 0.0
    best, best_score = node, mean + scale * left / (1 + len(drawn))
    for child in arms:
        visits = N[child] + virtual[child]
        score = scale * max(drawn[child], left) / (1 + visits)
        if visits:
            score = tree.scaled(child, visits) + score
        if score >= best_score:
            best, best_score = child, score
    return best


def restart(tree: Tree, node: int, exploration: float, arms: Sequence[int]) -> int:
    """Each chain begins anew at the root: what a tree is held against."""
    return node


def open_ucb1(tree: Tree, node: int, exploration: float, arms: Sequence[int]) -> int:
    """UCB1 over the arms of `open_puct`: a new step is worth the node's mean and was visited once a
    draw.
    """
    N, virtual = tree.N, tree.virtual
    log_parent = math.log(max(N[node] + virtual[node], 1))
    best, best_score = (
        node,
        (tree.q(node) - tree.low) / tree.span
        + exploration * math.sqrt(log_parent / len(tree.children[node])),
    )
    for child in arms:
        visits = N[child] + virtual[child]
        score = (
            math.inf
            if not visits
            else tree.scaled(child, visits) + exploration * math.sqrt(log_parent / visits)
        )
        if score >= best_score:
            best, best_score = child, score
    return best


def open_gumbel(tree: Tree, node: int, scale: float, arms: Sequence[int]) -> int:
    """The improved policy over the arms of `open_puct`, visited as `gumbel.gumbel` does; a child
    goes before the new step on ties.

    Here the arms are all steps there are, so that the logits are plain log-probabilities. The new
    step has no Q of its own: the mixed value completes it.
    """
    N, virtual = tree.N, tree.virtual
    drawn, left = probabilities(tree, node)
    logits = [math.log(max(p, TINY)) for p in (*(drawn[child] for child in arms), left)]
    values = [tree.q(child) for child in arms]
    # pi' = softmax(log P + sigma(completed Q)) over K children and the new step, `[K + 1]`.
    policy = softmax(
        improved_logits(
            logits, [*(N[c] for c in arms), 0], [*values, 0.0], raw_value(tree, node), scale
        )
    )
    best = furthest_short(policy, [*(N[child] + virtual[child] for child in arms), len(drawn)])
    return node if best == len(arms) else arms[best]


GUIDED = 0.5  # PUCT's constant where a value guides
DRAWS = 3  # of best-first search: after so many from a state its V counts half


def best_first(node: OpenNode, exploration: float, discount: float) -> float:
    """Least for the largest `V / (1 + k / DRAWS)`, k draws from the node so far: a state gives way
    as it was asked. Without a value V is 1.
    """
    return -(1.0 if node.value is None else node.value) / (1 + node.draws / DRAWS)


def phs(node: OpenNode, scale: float, discount: float) -> float:
    """Policy-guided heuristic search: `log(g + h) - L * (1 + h / g)`, the least first.

    g are the steps down to a new one, L the log-probability of the path with it, and h the steps
    from there to the goal, so that the path goes on as likely as it began. V = gamma^d says
    `h = scale * ln V / ln gamma`; under no discount V is the chance of the goal, and h is
    `-scale * ln V`, the nats that it takes. Without a value h is `scale` itself: Levin tree search
    with 0, and the larger the nearer to the mean log-probability of a step.

    Orseau & Lelis 2021, "Policy-guided heuristic search with guarantees", for sampled steps; Orseau
    et al. 2018, "Single-agent policy tree search with guarantees".
    """
    steps, ahead = node.depth + 1, scale
    if node.value is not None:
        ahead *= math.log(max(node.value, TINY)) / (math.log(discount) if discount < 1 else -1.0)
    return math.log(steps + ahead) - node.logprob * (1 + ahead / steps)


class Selector(NamedTuple):
    """A value of `search.select`: its rule, its rule under a verifier, and its usual exploration
    constant (of gumbel: the scale of the values), without a value and under one.

    Your own is an object of this kind in a file: `search.select: file.py:NAME`.
    """

    select: Select | None  # None: under a verifier alone
    open: OpenSelect | None  # None: `descent.BestFirst`, by `priority`
    exploration: float
    guided: float  # where Q is scaled by the tree's least and largest
    halves: bool = False  # the root's children share the simulations by sequential halving
    priority: Priority = best_first
    largest: float | None = None  # in place of `guided` with `search.backup: max`, where it differs


SELECT = "search.select"
SELECTORS = {
    "ucb1": Selector(ucb1, open_ucb1, 2**0.5, 2**0.5),
    "puct": Selector(puct, open_puct, 2.0, GUIDED, largest=0.05),
    "gumbel": Selector(gumbel, open_gumbel, SCALE, SCALE, halves=True),
    "restart": Selector(None, restart, 0.0, 0.0),
    "best-first": Selector(None, None, 0.0, 0.0),
    "phs": Selector(None, None, 100.0, 2.0, priority=phs),
}


def selector_of(named: str) -> Selector:
    """The selector that `search.select` names. Raises ConfigError where it is none."""
    selector = SELECTORS[named] if named in SELECTORS else own_object(named, SELECT)
    if not isinstance(selector, Selector):
        raise ConfigError(
            f"{SELECT} is {named!r}, a {type(selector).__name__}: name a `mcts.select.Selector`"
        )
    return selector


def under_verifier(selector: str) -> str:
    """How a record calls a selector's rule under a verifier."""
    return f"open_{selector}" if selector in ("puct", "ucb1") else selector


def constant(
    selector: str, exploration: float | None, guided: bool = False, largest: bool = False
) -> float:
    """The selector's exploration constant: `exploration`, or its usual one for None. `guided`: by a
    value, `largest`: Q is the largest one.
    """
    if exploration is not None:
        return exploration
    rules = selector_of(selector)
    if guided and largest and rules.largest is not None:
        return rules.largest
    return rules.guided if guided else rules.exploration
