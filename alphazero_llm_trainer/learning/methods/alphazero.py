"""AlphaZero: one network's policy and value, trained together on the trees that they searched.

    loss = -sum(pi * log p) / sum(pi) + value_coefficient * BCE(V, z)

Silver et al. 2017, "Mastering the game of Go without human knowledge", equation 1, with steps of
reasoning for moves. The value is one linear layer over the policy's own last hidden state after
each step, so that a search pays no token for it, and its gradient reaches the layers below.

pi is the right response (`train.credit: path`), or at each state on its way the search's own choice
among the steps that it drew there: its visits (`visits`), or Gumbel's improved policy (`gumbel`,
Danihelka et al. 2022, equation 11). z is `discount^d` where d more steps end right, 0 where the
search found no such steps.

What is left out of the game's own algorithm: no moves are played, one tree is one question; no
noise at the root, since steps are sampled and none is drawn twice; no rollouts. The
recipe searches best-first, which spends fewer tokens on the first steps than PUCT
(`search.select: puct`). The first round's trees are plain chains under the rule, because its value
knows nothing yet.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import permutations
from random import Random
from statistics import fmean
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from ...config.train import Rates, TrainConfig
from ...mcts.gumbel import SCALE, node_logits, softmax
from ...mcts.seeds import derive_seed
from ...policy.states import States, ranking_of
from ...tree.arena import REJECTED, ROOT, Tree
from ...tree.extract import OUTSIDE
from ...tree.graded import GradedTree
from ...types import TokenIds, world_mask
from ..rows import GoodRows
from ..stats import RoundStats
from ..train_row import Minibatches, TrainRow, TrainRows, sum_own
from .base import Method, Objective, Totals

if TYPE_CHECKING:
    import torch

    from ..losses import Coefficients

OFF_PATH = 12  # states of a tree that are no part of a solution and that the value learns from


class AlphaZero(Objective):
    """Likelihood of what the search chose, and the value's cross-entropy."""

    # pi into the likelihood of tokens, z into the value of the states before them
    columns: ClassVar = {
        "likelihood": "pi",
        "targets": "targets",
        "value_weights": "value_weights",
    }

    def __init__(self, settings: TrainConfig, model: Any) -> None:
        from ..critic_network import CriticNetwork

        self.coefficient = settings.value_coefficient
        self.critic = CriticNetwork(model, head=True, start=0.0)
        self.value = self.critic.score

    def totals(self, rows: TrainRows) -> Totals:
        """The sums of the policy's weights and of the value's."""
        return sum_own(rows, "pi"), max(sum_own(rows, "value_weights"), 1e-8)

    def extra(self) -> Mapping[str, torch.nn.Parameter]:
        """The value's layer."""
        return self.critic.trained_parameters()

    def coefficients(self) -> Coefficients:
        """The value's weight."""
        from ..losses import Coefficients

        return Coefficients(value=self.coefficient)


class AlphaZeroRows(GoodRows):
    """Rows of the policy, and rows of states that are no part of a solution: an update has as many
    of either.
    """

    stream = "pi"

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.states: list[TrainRow] = []  # of all rounds so far, as `own` has the policy's

    def remember(self, trees: Sequence[GradedTree]) -> list[TrainRow]:
        """The rows of a round's trees that later rounds draw from too."""
        fresh: list[TrainRow] = []
        for graded in trees:
            rows = self.rows_of(graded)
            fresh += [row for row in rows if any(row.pi)]
            self.states += [row for row in rows if not any(row.pi)]
        self.own += fresh
        return fresh

    def minibatches(self, number: int, trees: list[GradedTree], stats: RoundStats) -> Minibatches:
        """One pass of round `number`: rows by minibatch. `stats` gets how well the value knew these
        trees.
        """
        self.judge(trees, stats)
        return super().minibatches(number, trees, stats)

    def beside(self, rng: Random, count: int) -> list[TrainRow]:
        """`count` rows of earlier rounds' states, drawn by `rng`, or all that there are."""
        return rng.sample(self.states, min(count, len(self.states)))

    def rows_of(self, graded: GradedTree) -> list[TrainRow]:
        """A tree's rows: what the search chose, and the states that the value learns from."""
        tree, discount = graded.tree, self.config.search.discount
        way = self.solution(graded)
        targets = state_outcomes(tree, discount)
        lost = [node for node, z in targets.items() if not z]
        rng = Random(derive_seed(self.config.seed, "states", graded.key))
        off = set(rng.sample(lost, min(OFF_PATH, len(lost))))
        kept = {node: z for node, z in targets.items() if z or node in off}
        pi = step_targets(tree, way, self.config.train.credit)
        return branch_rows(tree, graded.prompt_ids, pi, kept, self.indices)

    def solution(self, graded: GradedTree) -> list[int]:
        """The nodes of the right response with the fewest steps, the likeliest of several; none
        where nothing was right.
        """
        right = [one for one in self.right(graded) if OUTSIDE not in one.nodes]
        if not right:
            return []
        best = min(right, key=lambda one: (len(one.nodes), -math.fsum(one.logprobs)))
        return list(best.nodes)

    def judge(self, trees: Sequence[GradedTree], stats: RoundStats) -> None:
        """Tell in `stats` what V knew of these trees, which it has not learnt from: nothing where
        there is no V, or one outcome alone.
        """
        values, ends, questions = list[float](), list[float](), list[int]()
        ordered = list[float]()
        for number, graded in enumerate(trees):
            z = state_outcomes(graded.tree, self.config.search.discount)
            known = state_values(graded.tree, z)
            values += known.values()
            ends += [z[node] for node in known]
            questions += [number] * len(known)
            ordered += order_steps(graded.tree, z)
        if not values:
            return
        right = np.array([float(z > 0) for z in ends])
        ones = np.ones(len(right))
        states = States(right, ones, right, ones * math.nan, ones < 1, np.array(questions))
        area = ranking_of(np.array(values), states)(np.ones(len(trees)))
        stats.value_auc = None if math.isnan(area) else area
        stats.value_pair_accuracy = fmean(ordered) if ordered else None
        stats.value_error = fmean(values) - fmean(ends)


def state_outcomes(tree: Tree, discount: float) -> dict[int, float]:
    """z of each state of a tree, ends included: `discount` to the power of the fewest steps from it
    to a right end, 0 where none was found. Rejected steps are no states.
    """
    steps: dict[int, int] = {}  # to the nearest right end
    for end in tree.leaves():
        if (tree.hre[end] if tree.outcome[end] is None else tree.outcome[end]) == 1.0:
            node, away = end, 0
            while node >= 0 and away < steps.get(node, away + 1):
                steps[node] = away
                node, away = tree.parent[node], away + 1
    return {
        node: discount ** steps[node] if node in steps else 0.0
        for node in range(len(tree))
        if tree.verdict[node] != REJECTED
    }


def state_values(tree: Tree, z: Mapping[int, float]) -> dict[int, float]:
    """V of the states in `z` that no response ends in, where the search asked for it."""
    asked = {node: tree.V[node] for node in z if tree.verdict[node] is None}
    return {node: value for node, value in asked.items() if value is not None}


def order_steps(tree: Tree, z: Mapping[int, float]) -> list[float]:
    """Of each two steps after one state whose z differ, 1 where the better one has the higher V, .5
    where V is the same. It is what a search reads off V; AUC over all states is high where V
    knows no more than how near the end they are.
    """
    known = state_values(tree, z)
    siblings = defaultdict(list)
    for node in known:
        siblings[tree.parent[node]].append(node)
    return [
        (known[a] > known[b]) + 0.5 * (known[a] == known[b])
        for family in siblings.values()
        for a, b in permutations(family, 2)
        if z[a] > z[b]
    ]


def step_targets(tree: Tree, way: Sequence[int], credit: str) -> dict[int, float]:
    """pi of steps by their nodes: 1 of each step of the `way` to a right response (`path`), or
    along it the search's shares of all steps that it drew after each state.
    """
    if credit == "path":
        return dict.fromkeys(way, 1.0)
    pi: dict[int, float] = {}
    for parent in [ROOT, *way[:-1]] if way else []:
        drawn = [child for child in tree.children[parent] if tree.verdict[child] != REJECTED]
        if credit == "visits":
            total = sum(tree.N[child] for child in drawn)
            shares = [tree.N[child] / total for child in drawn]
        else:
            shares = softmax(node_logits(tree, parent, drawn, SCALE))
        pi |= dict(zip(drawn, shares, strict=True))
    return pi


def branch_rows(
    tree: Tree,
    prompt: TokenIds,
    pi: Mapping[int, float],
    targets: Mapping[int, float],
    indices: Any,
) -> list[TrainRow]:
    """The longest beginnings of responses that hold all of these steps and states, each step and
    state in one row alone.

    A row's value weights `[T]` are those of the states before its tokens, and sum to 1; a token
    that nothing learns from follows a state at a row's end. In a world a state is a turn's end,
    after what was answered to it.
    """
    chosen = pi.keys() | targets.keys()
    above = {ROOT} if chosen - {ROOT} else set()
    for node in chosen:
        above.update(tree.path(node)[:-1])
    # The likeliest first: the way to a right response is one row, whole.
    ends = sorted(chosen - above, key=lambda node: (-pi.get(node, -1.0), node))
    rows, taken = [], set[int]()
    for end in ends:
        ids, logprobs = tree.sequence(end)
        mask = world_mask(tree.steps(end))
        weights, known = list[float](), dict[int, float]()
        for node in [ROOT, *tree.path(end)]:
            fresh = node not in taken
            weights += [pi.get(node, 0.0) if fresh else 0.0] * len(tree.token_ids[node])
            if fresh and node in targets:
                known[len(weights)] = targets[node]
            taken.add(node)
        if len(ids) in known:
            ids, logprobs, weights = (*ids, prompt[-1]), (*logprobs, 0.0), [*weights, 0.0]
            mask = (*mask, True) if mask else ()
        places = range(len(ids))
        rows.append(
            TrainRow(
                prompt,
                ids,
                logprobs,
                pi=tuple(weights),
                targets=tuple(known.get(at, 0.0) for at in places),
                value_weights=tuple(1 / len(known) if at in known else 0.0 for at in places),
                index=next(indices),
                mask=mask,
            )
        )
    return rows


ALPHAZERO = Method(
    name="alphazero",
    rates=Rates(small=2e-3),
    rows=AlphaZeroRows,
    objective=lambda train, model, lora: AlphaZero(train, model),
    reads=frozenset({"buffer_passes", "credit", "updates_per_round", "value_coefficient"}),
    credits=("path", "visits", "gumbel"),
    supervised=True,
    ruled=True,
    guided=True,
    sharded=False,
)
