"""Tree -> training targets for value, preference, policy and supervised training. Pure: no generation, no model.

Every reader goes by a node's *outcomes*: the finished responses that passed through it and how many of them were
correct, or how good they were where grades lie between right and wrong. Step-level trees end their responses in terminal
nodes, token-level ones in terminal nodes and rollouts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ..types import STUDENT
from .extract import source_of, trajectories
from .gumbel import improved_policy
from .tree import ROOT, Tree


@dataclass(frozen=True, slots=True)
class ValueTarget:
    """What a state was worth.

    `node` is the state's node (0: the prompt alone); `token_ids` `[T]` are the response's tokens down to the state, T = 0
    at the root; `target` in [0, 1] is the mean outcome of the finished responses through it, `weight` >= 1 their number,
    `square` the mean of the outcomes' squares: the target itself where each is 0 or 1.
    """

    node: int
    token_ids: tuple[int, ...]
    target: float
    weight: int
    square: float


@dataclass(frozen=True, slots=True)
class StepPreference:
    """Two steps after one prefix, of which one led to better outcomes (Bradley-Terry pair of a process reward model).

    `prefix_ids` `[P]` are the response's tokens before the step (P = 0 at the root), `chosen_ids` and `rejected_ids` the
    two steps' own tokens; `margin` in (0, 1] is the difference of their mean outcomes, `count` the smaller of the two
    numbers of responses behind them.
    """

    prefix_ids: tuple[int, ...]
    chosen_ids: tuple[int, ...]
    rejected_ids: tuple[int, ...]
    margin: float
    count: int


@dataclass(frozen=True, slots=True)
class PolicyTarget:
    """Where the search went from an expanded node (AlphaZero's policy target, Silver et al. 2018).

    `prefix_ids` `[P]` are the response's tokens down to the node; `children_ids` are the tokens that each of its K
    children adds (one each in a token-level tree); `probabilities` `[K]` are the children's shares of the visits and
    sum to 1; `improved` `[K]` is Gumbel's target instead, the student's probabilities raised or lowered by completed Q
    (Danihelka et al. 2022, equation 11), which sums to 1 too; `visits` is how many visits they share out.
    """

    node: int
    prefix_ids: tuple[int, ...]
    children_ids: tuple[tuple[int, ...], ...]
    probabilities: tuple[float, ...]
    improved: tuple[float, ...]
    visits: int


@dataclass(frozen=True, slots=True)
class SftRow:
    """A distinct correct response: `token_ids` `[T]`, its `text`, how often it was sampled, and who wrote it."""

    token_ids: tuple[int, ...]
    text: str
    count: int
    source: str = STUDENT


def endings(tree: Tree, correctness: bool = False) -> Iterator[tuple[int, tuple[int, ...], int, float]]:
    """Every way a response of the tree ended: (node, tokens after that node, how often, its outcome in [0, 1]).

    The outcome is the correctness where gold was known, joined by the user's own reward where that takes part (not with
    `correctness`); the reward where neither is known. A terminal node counts its visits.
    """

    for leaf in tree.leaves():
        reward = tree.reward[leaf]
        # The response that ends a search without rollouts was sampled and never visited.
        count = max(tree.N[leaf], tree.samples[leaf])
        if reward is not None and count > 0:
            known = tree.hre[leaf] if correctness else tree.grade(leaf)
            yield leaf, (), count, reward if known is None else known
    for rollout in tree.rollouts:
        known = rollout.hre if correctness else rollout.grade
        yield rollout.node, rollout.token_ids, rollout.count, rollout.reward if known is None else known


def outcomes(tree: Tree, correctness: bool = False, power: int = 1) -> tuple[list[int], list[float]]:
    """For each node, how many finished responses passed through it and the sum of their outcomes (see `endings`), each to
    the power `power`."""
    counts, sums = [0] * len(tree), [0.0] * len(tree)
    for node, _, count, outcome in endings(tree, correctness):
        counts[node] += count
        sums[node] += count * outcome**power
    # Children come after their parents, so one backward pass adds everything up.
    for node in range(len(tree) - 1, ROOT, -1):
        counts[tree.parent[node]] += counts[node]
        sums[tree.parent[node]] += sums[node]
    return counts, sums


def prefixes(tree: Tree) -> list[tuple[int, ...]]:
    """For each node, the response's tokens down to it and its own included."""
    paths: list[tuple[int, ...]] = [()]
    for node in range(1, len(tree)):
        paths.append(paths[tree.parent[node]] + tuple(tree.token_ids[node]))
    return paths


def value_targets(tree: Tree, *, every_token: bool = False) -> list[ValueTarget]:
    """The mean outcome of every state that a finished response passed through, parents before children.

    A state is a node. With `every_token` it is every token prefix of a response, inside steps and rollouts too: what a
    token-level search asks the value of. Its `node` is then the one that holds the prefix's last token (a rollout's
    tokens: the node that it started from), and prefixes that two siblings share are one state.
    """
    if not every_token:
        counts, totalled = outcomes(tree)
        squares = outcomes(tree, power=2)[1]
        return [
            ValueTarget(node, path, totalled[node] / counts[node], counts[node], squares[node] / counts[node])
            for node, path in enumerate(prefixes(tree))
            if counts[node]
        ]
    paths = prefixes(tree)
    totals: dict[tuple[int, ...], list[float]] = {}
    nodes: dict[tuple[int, ...], int] = {}
    for end, rest, count, outcome in endings(tree):
        whole = paths[end] + rest
        node = end
        for length in range(len(whole), -1, -1):
            while node != ROOT and len(paths[tree.parent[node]]) >= length:
                node = tree.parent[node]
            state = whole[:length]
            nodes.setdefault(state, node)
            sums = totals.setdefault(state, [0, 0.0, 0.0])
            sums[0] += count
            sums[1] += count * outcome
            sums[2] += count * outcome**2
    targets = []
    for state in sorted(totals, key=len):
        weight, earned, squared = totals[state]
        targets.append(ValueTarget(nodes[state], state, earned / weight, int(weight), squared / weight))
    return targets


def step_preferences(tree: Tree, margin: float = 0.25, least: int = 2) -> list[StepPreference]:
    """All sibling pairs whose mean outcomes differ by `margin` or more, each sibling with `least` responses or more.

    Raises ValueError for a margin of 0 or less: equal steps are no preference.
    """
    if margin <= 0:
        raise ValueError(f"margin is {margin}: equal outcomes prefer nothing, use one above 0")
    counts, sums = outcomes(tree)
    paths = prefixes(tree)
    pairs = []
    for node in range(len(tree)):
        known = [child for child in tree.children[node] if counts[child] >= least]
        for i, a in enumerate(known):
            for b in known[i + 1 :]:
                difference = sums[a] / counts[a] - sums[b] / counts[b]
                if abs(difference) + 1e-12 < margin:
                    continue
                good, bad = (a, b) if difference > 0 else (b, a)
                pairs.append(
                    StepPreference(
                        paths[node],
                        tuple(tree.token_ids[good]),
                        tuple(tree.token_ids[bad]),
                        abs(difference),
                        min(counts[a], counts[b]),
                    )
                )
    return pairs


def policy_targets(tree: Tree) -> list[PolicyTarget]:
    """The distribution of visits over the children of every expanded node that has visited ones.

    A prefix that the search was forced to begin with is left out: nothing was chosen there.
    """
    paths = prefixes(tree)
    targets = []
    for node in range(len(tree)):
        children = tree.children[node]
        visits = sum(tree.N[child] for child in children)
        forced = node == ROOT and len(children) == 1 and tree.prior[children[0]] == 1.0
        if tree.expanded[node] and visits and not forced:
            targets.append(
                PolicyTarget(
                    node,
                    paths[node],
                    tuple(tuple(tree.token_ids[child]) for child in children),
                    tuple(tree.N[child] / visits for child in children),
                    tuple(improved_policy(tree, node, tree.N, tree.W, children)),
                    visits,
                )
            )
    return targets


def sft_rows(tree: Tree) -> list[SftRow]:
    """The distinct responses that are known to have full marks (`Trajectory.right`), in the order they were found.

    A terminal node counts its samples, not its visits: descending to it again drew nothing. Where gold was unknown
    nothing is known to be correct, whatever the reward.
    """
    right = (found for found in trajectories(tree) if found.right)
    return [SftRow(found.token_ids, found.text, found.samples, source_of(tree, found)) for found in right]
