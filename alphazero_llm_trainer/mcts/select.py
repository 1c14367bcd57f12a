"""The selection rules: which child a simulation descends to. `descent.py` makes a descent of them.

N are visits, W sums of rewards, P priors. Q of a child is `discount * W/N`, read as
`(Q - tree.low) / tree.span`, which is W/N until a value guides the search (`descent.rescaled_rule`)
and a discount is set. A simulation in flight counts as `tree.virtual` visits of value 0 (virtual
loss). Under a verifier a node has one more arm: a step not drawn yet.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from ..config.objects import own_object
from ..config.sections import SELECTOR_NAMES as NAMES
from ..errors import ConfigError
from ..tree.arena import Tree
from .descent import TINY, OpenNode, OpenSelect, Priority, Select, child_probabilities
from .gumbel import SCALE, furthest_short, gumbel, improved_logits, raw_value, softmax


def ucb1_score(tree: Tree, child: int, exploration: float) -> float:
    """`W/N + c*sqrt(ln(N_parent)/N)`, infinite for an unvisited child.

    Auer et al. 2002, "Finite-time Analysis of the Multiarmed Bandit Problem"; Kocsis & Szepesvari
    2006 for trees.
    """
    # The formula's N has simulations in flight as well, its W has not: each is a visit of value 0
    # and lowers W/N.
    visits = visits_of(tree, child)
    if not visits:
        return math.inf
    bonus = exploration * math.sqrt(math.log(visits_of(tree, tree.parent[child])) / visits)
    return tree.scaled(child, visits) + bonus


def ucb1(tree: Tree, node: int, exploration: float) -> int:
    """The child with the largest `ucb1_score`, the earliest on ties."""
    return max(tree.children[node], key=lambda child: ucb1_score(tree, child, exploration))


def open_ucb1(tree: Tree, node: int, exploration: float, arms: Sequence[int]) -> int:
    """UCB1 over the arms of `open_puct`: a new step is worth the node's mean and was visited once a
    draw.
    """
    draws = len(tree.children[node])
    bonus = exploration * math.sqrt(math.log(max(visits_of(tree, node), 1)) / draws)
    new = (tree.q(node) - tree.low) / tree.span + bonus
    return best_arm(node, arms, new, lambda child: ucb1_score(tree, child, exploration))


def puct_score(tree: Tree, child: int, bonus: float) -> float:
    """`Q + bonus/(1 + N)`; Q of an unvisited child is 0."""
    visits = visits_of(tree, child)
    score = bonus / (1 + visits)
    return tree.scaled(child, visits) + score if visits else score


def puct(tree: Tree, node: int, exploration: float) -> int:
    """The child with the largest `Q + c_puct * P * sqrt(N_parent)/(1 + N)`, the earliest on ties.

    Silver et al. 2017, "Mastering the game of Go without human knowledge". Priors that the tree
    holds sum to 1 over the siblings; where it holds none, P is the probability of the step's
    tokens, normalised over the siblings here.
    """
    children = tree.children[node]
    priors: Sequence[Any] = [tree.prior[child] for child in children]
    if priors[0] is None:
        priors = softmax([math.fsum(tree.logprobs[child]) for child in children])
    share, root = dict(zip(children, priors, strict=True)), math.sqrt(visits_of(tree, node))
    # U = c P sqrt(N_parent)/(1 + N): falls as the child is visited, rises as its siblings are.
    return max(children, key=lambda c: puct_score(tree, c, exploration * share[c] * root))


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
    drawn, left = child_probabilities(tree, node)
    scale = exploration * math.sqrt(visits_of(tree, node))
    # The new step: Q(node) + c P_left sqrt(N)/(1 + k), k draws so far.
    mean = (tree.q(node) - tree.low) / tree.span if tree.N[node] else 0.0
    new = mean + scale * left / (1 + len(drawn))
    return best_arm(
        node, arms, new, lambda child: puct_score(tree, child, scale * max(drawn[child], left))
    )


def visits_of(tree: Tree, node: int) -> int:
    """A node's visits, simulations in flight among them."""
    return tree.N[node] + tree.virtual[node]


def best_arm(node: int, arms: Sequence[int], new: float, score: Callable[[int], float]) -> int:
    """The arm with the largest score, the latest on ties, or `node` for a step not drawn yet,
    whose score is `new`.
    """
    return max((*reversed(arms), node), key=lambda arm: new if arm == node else score(arm))


def restart(tree: Tree, node: int, exploration: float, arms: Sequence[int]) -> int:
    """Each chain begins anew at the root: what a tree is held against."""
    return node


def open_gumbel(tree: Tree, node: int, scale: float, arms: Sequence[int]) -> int:
    """The improved policy over the arms of `open_puct`, visited as `gumbel.gumbel` does; a child
    goes before the new step on ties.

    Here the arms are all steps there are, so that the logits are plain log-probabilities. The new
    step has no Q of its own: the mixed value completes it.
    """
    drawn, left = child_probabilities(tree, node)
    logits = [math.log(max(p, TINY)) for p in (*(drawn[child] for child in arms), left)]
    visits = [tree.N[child] for child in arms]
    values = [tree.q(child) for child in arms]
    # pi' = softmax(log P + sigma(completed Q)) over K children and the new step, `[K + 1]`.
    policy = softmax(
        improved_logits(logits, [*visits, 0], [*values, 0.0], raw_value(tree, node), scale)
    )
    flying = [visits_of(tree, child) for child in arms]
    return (*arms, node)[furthest_short(policy, [*flying, len(drawn)])]


GUIDED_EXPLORATION = 0.5  # PUCT's constant where a value guides
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
UCB1 = Selector(ucb1, open_ucb1, 2**0.5, 2**0.5)
PUCT = Selector(puct, open_puct, 2.0, GUIDED_EXPLORATION, largest=0.05)
GUMBEL = Selector(gumbel, open_gumbel, SCALE, SCALE, halves=True)
RESTART = Selector(None, restart, 0.0, 0.0)
BEST_FIRST = Selector(None, None, 0.0, 0.0)
PHS = Selector(None, None, 100.0, 2.0, priority=phs)
# The list is that of the configuration's names: best-first is BEST_FIRST.
SELECTORS: dict[str, Selector] = {name: globals()[name.upper().replace("-", "_")] for name in NAMES}


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
