"""The selection rules: which child a simulation descends to."""

from __future__ import annotations

import math
from collections.abc import Callable

from .tree import Tree

Select = Callable[[Tree, int, float], int]


def ucb1(tree: Tree, node: int, exploration: float) -> int:
    """The child with the largest `W/N + c*sqrt(ln(N_parent)/N)`; an unvisited one first, the earliest on ties.

    Auer et al. 2002, "Finite-time Analysis of the Multiarmed Bandit Problem"; Kocsis & Szepesvari 2006 for trees.
    """
    log_parent = math.log(tree.N[node]) if tree.N[node] > 0 else 0.0
    best, best_score = -1, -math.inf
    for child in tree.children[node]:
        visits = tree.N[child]
        score = math.inf if visits == 0 else tree.W[child] / visits + exploration * math.sqrt(log_parent / visits)
        if score > best_score:
            best, best_score = child, score
    return best


def puct(tree: Tree, node: int, exploration: float) -> int:
    """The child with the largest `Q + c_puct * P * sqrt(N_parent)/(1 + N)`; Q of an unvisited child is 0.

    Silver et al. 2017, "Mastering the game of Go without human knowledge". Priors are normalised over the siblings;
    a step's prior is the probability of its tokens where the tree holds none.
    """
    children = tree.children[node]
    priors = [step_prior(tree, child) for child in children]
    total = math.fsum(priors)
    root_visits = math.sqrt(tree.N[node])
    best, best_score = -1, -math.inf
    for child, prior in zip(children, priors, strict=True):
        visits = tree.N[child]
        share = prior / total if total > 0 else 1.0 / len(children)
        score = (tree.W[child] / visits if visits else 0.0) + exploration * share * root_visits / (1 + visits)
        if score > best_score:
            best, best_score = child, score
    return best


def step_prior(tree: Tree, node: int) -> float:
    """The stored prior, or the probability of the step's tokens under the policy."""
    stored = tree.prior[node]
    return stored if stored is not None else math.exp(max(math.fsum(tree.logprobs[node]), -700.0))


RULES: dict[str, Select] = {"ucb1": ucb1, "puct": puct}
