"""Tree -> training data, with no generation: every finished response, token for token, with its nodes' statistics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ..answers import extract
from ..types import STUDENT
from .tree import ROOT, Rollout, Tree

OUTSIDE = -1  # where a trajectory's node stands for a rollout's tokens, which have none

SILENT = "no answer"
# How a response is cut, or ends without an answer, and the key that helps.
SHORT = {
    "length": "search.max_tokens",
    "depth": "search.max_depth",
    SILENT: "problems.shots",
}
MUCH = 0.2  # of all responses


@dataclass(frozen=True, slots=True)
class Trajectory:
    """One distinct finished response of a tree.

    `token_ids` and `logprobs` (nats, at ingest) are `[T]`; `nodes` are the steps' nodes and `lengths` their token
    counts; a rollout's tokens come last, as node `OUTSIDE`; `samples` is how often it was sampled; `student` is False
    when a teacher wrote one of its steps; `text` is the response's; `outcome` is its correctness, with the user's own reward
    where that takes part, and None where neither is known; `verdict` is why it ended, as a terminal node's.
    """

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    nodes: tuple[int, ...]
    lengths: tuple[int, ...]
    reward: float
    hre: float | None
    samples: int
    student: bool
    text: str
    outcome: float | None = None
    verdict: str | None = None

    @property
    def right(self) -> bool:
        """Whether it has full marks."""
        return self.outcome == 1.0


def trajectories(tree: Tree) -> list[Trajectory]:
    """All finished responses in the order they were found: terminal nodes, then rollouts.

    Responses without a token (an empty answer) are left out.
    """
    found: dict[tuple[int, ...], Trajectory] = {}
    ends: list[tuple[int, Rollout | None]] = [(leaf, None) for leaf in tree.leaves()]
    ends += [(rollout.node, rollout) for rollout in tree.rollouts]
    for node, rollout in ends:
        one = _trajectory(tree, node, rollout)
        if one is None:
            continue
        same = found.get(one.token_ids)
        # A rollout and a terminal node may be one response.
        found[one.token_ids] = one if same is None else replace(same, samples=same.samples + one.samples)
    return list(found.values())


def _trajectory(tree: Tree, end: int, rollout: Rollout | None) -> Trajectory | None:
    nodes = tree.path(end)
    token_ids, logprobs = tree.sequence(end)
    lengths = [len(tree.token_ids[node]) for node in nodes]
    student, text = all(tree.source[node] == STUDENT for node in nodes), tree.response(end)
    reward, hre, outcome, samples = tree.reward[end], tree.hre[end], tree.grade(end), max(tree.samples[end], 1)
    verdict = tree.verdict[end]
    if rollout is not None:
        token_ids, logprobs = token_ids + rollout.token_ids, logprobs + rollout.logprobs
        text += rollout.text
        reward, hre, outcome, samples = rollout.reward, rollout.hre, rollout.grade, max(rollout.samples, 1)
        verdict = rollout.verdict
        if rollout.token_ids:
            nodes, lengths = [*nodes, OUTSIDE], [*lengths, len(rollout.token_ids)]
    if not token_ids or reward is None:
        return None
    where = tuple(nodes), tuple(lengths)
    return Trajectory(token_ids, logprobs, *where, reward, hre, samples, student, text, outcome, verdict)


def endings(tree: Tree) -> Counter[str]:
    """How many responses of a tree ended how: by a key of `SHORT`, or "answer"."""
    found: Counter[str] = Counter()
    for one in trajectories(tree):
        if one.verdict == "ended" and extract(one.text, words=True) is None:
            found[SILENT] += one.samples
        elif one.verdict in SHORT:
            found[one.verdict] += one.samples
        elif one.verdict in ("ended", "answer", "checked"):
            found["answer"] += one.samples
    return found


def shortfall(ends: Mapping[str, int]) -> str | None:
    """A line for the user where more than a fifth of the responses was cut or stated no answer; else None."""
    total, short = sum(ends.values()), {why: ends[why] for why in SHORT if ends.get(why)}
    if sum(short.values()) <= MUCH * total:
        return None
    silent = short.get(SILENT, 0)
    return (
        f"of {total:,} responses {sum(short.values()) - silent:,} were cut and {silent:,} stated no answer: raise"
        f" {SHORT[max(short, key=short.__getitem__)]}"
    )


def source_of(tree: Tree, trajectory: Trajectory) -> str:
    """Who wrote a response: "student", or the teachers that wrote one of its steps, such as "teacher:a+teacher:b"."""
    sources = (tree.source[node] for node in trajectory.nodes if node != OUTSIDE)
    return "+".join(dict.fromkeys(source for source in sources if source != STUDENT)) or STUDENT


def step_values(
    trajectory: Trajectory, reward: float, counts: Sequence[int], sums: Sequence[float]
) -> list[tuple[float, float]]:
    """For each step `(Q(child), V(parent))`: what the step's node and the one before it are worth.

    A node is worth `sums[node] / counts[node]`: a tree's `W` and `N`, or `targets.outcomes`. `reward` is what the
    response earned in the same currency: what a rollout's tokens are worth, and a node without a count.
    """
    values, parent = [], ROOT
    for node in trajectory.nodes:
        before = sums[parent] / counts[parent] if counts[parent] else reward
        after = reward if node == OUTSIDE or not counts[node] else sums[node] / counts[node]
        values.append((after, before))
        parent = parent if node == OUTSIDE else node
    return values
