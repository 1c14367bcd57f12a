"""Tree -> training data, with no generation: every finished response, token for token, with its nodes' statistics."""

from __future__ import annotations

from dataclasses import dataclass

from ..types import STUDENT
from .tree import ROOT, Tree


@dataclass(frozen=True, slots=True)
class Trajectory:
    """One distinct finished response of a tree.

    `token_ids` and `logprobs` (nats, at ingest) are `[T]`; `nodes` are the steps' nodes and `lengths` their token
    counts; `samples` is how often it was sampled; `student` is False when a teacher wrote one of its steps.
    """

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    nodes: tuple[int, ...]
    lengths: tuple[int, ...]
    reward: float
    hre: float | None
    samples: int
    student: bool


def trajectories(tree: Tree) -> list[Trajectory]:
    """All finished responses in the order they were found. Responses without a token (an empty answer) are left out."""
    found = []
    for leaf in tree.leaves():
        nodes = tree.path(leaf)
        token_ids = tuple(token for node in nodes for token in tree.token_ids[node])
        reward = tree.reward[leaf]
        if not token_ids or reward is None:
            continue
        found.append(
            Trajectory(
                token_ids=token_ids,
                logprobs=tuple(value for node in nodes for value in tree.logprobs[node]),
                nodes=tuple(nodes),
                lengths=tuple(len(tree.token_ids[node]) for node in nodes),
                reward=reward,
                hre=tree.hre[leaf],
                samples=max(tree.samples[leaf], 1),
                student=all(tree.source[node] == STUDENT for node in nodes),
            )
        )
    return found


def step_values(tree: Tree, trajectory: Trajectory) -> list[tuple[float, float]]:
    """For each step `(Q(child), V(parent))`: the mean backed-up rewards of the step's node and of the one before it."""
    values, parent = [], ROOT
    for node in trajectory.nodes:
        values.append((tree.q(node), tree.q(parent)))
        parent = node
    return values
