"""What a tree says: its responses token for token, statistics of them, and value and preference
targets.

No model and no generation.

Targets go by a node's *outcomes*: the finished responses that passed through it and how many of
them were correct, or how good they were where grades lie between right and wrong. Step-level trees
end their responses in terminal nodes, token-level ones in terminal nodes and rollouts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from ..grading.answers import extract
from ..types import STUDENT, Facts, Logprobs, Step, TokenIds, drawn_mask, world_mask
from .arena import REJECTED, ROOT, WHOLE, Rollout, Tree

OUTSIDE = -1  # where a trajectory's node stands for a rollout's tokens, which have none

SILENT = "no answer"
BUDGET = "budget"
THOUGHT_SPENT = "thinking budget"  # that thinking alone has taken
# How a response is cut, or ends without an answer: in words, and what helps, as it is typed, with
# limits twice as high.
SHORT = {
    "length": ("were cut by search.max_tokens", "--set search.max_tokens={max_tokens}"),
    "depth": ("were cut by search.max_depth", "--set search.max_depth={max_depth}"),
    BUDGET: ("were cut by the budget", "--set search.budget_tokens={budget_tokens}"),
    "context": ("were cut by the context", "raise engine.max_context, or take shorter questions"),
    "server": ("were cut by the server's own limit", "raise that where the server is started"),
    "thinking": ("were thinking alone", "--set search.max_tokens={max_tokens}"),
    THOUGHT_SPENT: (
        "were thinking alone within the budget",
        "--set search.budget_tokens={budget_tokens}",
    ),
    "tool call": ("called a tool instead", "switch tools off where the server is started"),
    "refusal": ("were refused", "take another model, or other questions"),
    "empty": ("were empty", "look at the server's chat template and log"),
    SILENT: ("stated no answer", "--set problems.shots=4"),
}
MUCH = 0.2  # of all responses


# -- responses -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Trajectory:
    """One distinct finished response of a tree.

    `token_ids` and `logprobs` (nats, at ingest) are `[T]`; `nodes` are the steps' nodes and
    `lengths` their token counts; a rollout's tokens come last, as node `OUTSIDE`; `samples` is how
    often it was sampled; `source` is who wrote it: "student", or the teachers that wrote one of its
    steps ("teacher:a+teacher:b"); `text` is the response's; `outcome` is its correctness, with the
    user's own reward where that takes part, and None where neither is known; `verdict` is why it
    ended, as a terminal node's; `mask` `[T]` tells the tokens that were drawn from those that a
    world gave, and () says that all were drawn.
    """

    token_ids: TokenIds
    logprobs: Logprobs
    nodes: tuple[int, ...]
    lengths: tuple[int, ...]
    reward: float
    hre: float | None
    samples: int
    source: str
    text: str
    outcome: float | None = None
    verdict: str | None = None
    mask: tuple[bool, ...] = ()

    @property
    def student(self) -> bool:
        """Whether the student wrote all of it."""
        return self.source == STUDENT

    @property
    def right(self) -> bool:
        """Whether it is known to have full marks."""
        return self.outcome == 1.0


def trajectories(tree: Tree) -> list[Trajectory]:
    """All different finished responses; those without a token (an empty answer) are left out."""
    distinct: dict[TokenIds, Trajectory] = {}
    for end in tree.finished():
        nodes, (ids, logprobs) = tree.path(end.node), tree.sequence(end.node)
        token_ids, samples = ids + end.token_ids, max(end.samples, 1)
        if token_ids in distinct:  # a rollout and a terminal node may be one response
            samples += distinct[token_ids].samples
            distinct[token_ids] = replace(distinct[token_ids], samples=samples)
        elif token_ids:
            rest = [len(end.token_ids)] if end.token_ids else []
            writers = dict.fromkeys(
                tree.source[node] for node in nodes if tree.source[node] != STUDENT
            )
            distinct[token_ids] = Trajectory(
                token_ids=token_ids,
                logprobs=logprobs + end.logprobs,
                nodes=(*nodes, *[OUTSIDE] * len(rest)),
                lengths=(*(len(tree.token_ids[node]) for node in nodes), *rest),
                reward=end.reward,
                hre=end.hre,
                samples=samples,
                source="+".join(writers) or STUDENT,
                text=tree.response(end.node) + end.text,
                outcome=end.grade,
                verdict=end.verdict,
                mask=response_mask(tree, end),
            )
    return list(distinct.values())


def response_mask(tree: Tree, end: Rollout) -> tuple[bool, ...]:
    """For each token of a finished response, whether it was drawn `[T]`; () where no world
    answered."""
    steps = tree.steps(end.node)
    if not (end.mask or world_mask(steps)):
        return ()
    return drawn_mask(steps) + (end.mask or (True,) * len(end.token_ids))


# -- statistics ------------------------------------------------------------------------------------


def right_responses(tree: Tree, judged: bool = False) -> int:
    """How many right responses were drawn; `judged`: of those that a verifier judged."""
    right = (end for end in tree.finished() if end.grade == 1.0)
    return sum(end.samples for end in right if not judged or tree.checked(tree.path(end.node)))


def finished_responses(tree: Tree) -> int:
    """How many responses were drawn to an end, right or wrong; a rejected step is no end."""
    return sum(end.samples for end in tree.finished() if end.verdict != REJECTED)


def accepted(tree: Tree, least: float) -> bool:
    """True when a finished response whose steps were checked earned `least` or more, and anything
    at all.
    """
    good = (end for end in tree.finished() if end.reward > 0 and end.reward >= least)
    return any(tree.sure(tree.path(end.node)) for end in good)


def endings(tree: Tree) -> Counter[str]:
    """How many responses of a tree ended how: by a key of `SHORT`, or "answer"."""
    ends: Counter[str] = Counter()
    for response in trajectories(tree):
        # A world asks for no line that states the answer.
        silent = response.verdict == "ended" and not response.mask
        if silent and extract(response.text, words=True) is None:
            ends[SILENT] += response.samples
        elif response.verdict in SHORT:
            ends[response.verdict] += response.samples
        elif response.verdict in WHOLE:
            ends["answer"] += response.samples
    return ends


def remedy(why: str, search: Facts, budget: int | None = None) -> str:
    """What to type against the limit that did cut (a key of SHORT), under the settings `search.*`,
    and in an evaluation a budget.
    """
    if why in (BUDGET, THOUGHT_SPENT) and budget is not None:
        return f"--budget-tokens {2 * budget}"
    doubled = {key: 2 * limit for key, limit in search.items() if isinstance(limit, int)}
    return SHORT[why][1].format(**doubled)


def shortfall(
    ends: Mapping[str, int],
    search: Facts,
    budget: int | None = None,
    what: str = "responses",
) -> str | None:
    """A line for the user where more than a fifth of the responses was cut or stated no answer;
    else None. See `remedy`.
    """
    total, short = sum(ends.values()), {why: ends[why] for why in SHORT if ends.get(why)}
    if sum(short.values()) <= MUCH * total:
        return None
    said = ", ".join(f"{count:,} {SHORT[why][0]}" for why, count in short.items())
    most = max(short, key=short.__getitem__)
    return f"of {total:,} {what} {said}: {remedy(most, search, budget)}"


def step_values(
    trajectory: Trajectory, reward: float, counts: Sequence[int], sums: Sequence[float]
) -> list[tuple[float, float]]:
    """For each step `(Q(child), V(parent))`: what the step's node and the one before it are worth.

    A node is worth `sums[node] / counts[node]`: a tree's `W` and `N`, or `outcomes`. `reward` is
    what the response earned in the same currency: what a rollout's tokens are worth, and a node
    without a count.
    """
    values, parent = [], ROOT
    for node in trajectory.nodes:
        before = sums[parent] / counts[parent] if counts[parent] else reward
        after = reward if node == OUTSIDE or not counts[node] else sums[node] / counts[node]
        values.append((after, before))
        parent = parent if node == OUTSIDE else node
    return values


def turn_values(
    trajectory: Trajectory, reward: float, counts: Sequence[int], sums: Sequence[float]
) -> list[tuple[float, float]]:
    """`step_values` with a V(parent) that has none of the child's own samples.

    Where no other turn was sampled after the parent, it is that of the nearest state above which
    has other samples: a baseline needs to know nothing of what was chosen, and no more. Where all
    samples went through the child, nothing tells what it is worth beside others: V is Q.
    """
    values, above = [], [ROOT]
    for node in trajectory.nodes:
        inside = node != OUTSIDE and counts[node] > 0
        count, earned = (counts[node], sums[node]) if inside else (1, reward)
        after = before = earned / count
        for state in reversed(above):
            if counts[state] > count:
                before = (sums[state] - earned) / (counts[state] - count)
                break
        values.append((after, before))
        above.append(above[-1] if node == OUTSIDE else node)
    return values


# -- outcomes --------------------------------------------------------------------------------------


def graded(tree: Tree, correctness: bool = False) -> Iterator[tuple[int, TokenIds, int, float]]:
    """Every way a response of the tree ended: (node, tokens after that node, how often, its outcome
    in [0, 1]).

    The outcome is the correctness where gold was known, joined by the user's own reward where that
    takes part (not with `correctness`); the reward where neither is known.
    """
    for end in tree.finished():
        if end.count:
            known = end.hre if correctness else end.grade
            yield end.node, end.token_ids, end.count, end.reward if known is None else known


def outcomes(tree: Tree, correctness: bool = False) -> tuple[list[int], list[float]]:
    """For each node, how many finished responses passed through it and the sum of their outcomes
    (see `graded`).
    """
    counts, sums = [0] * len(tree), [0.0] * len(tree)
    for node, _, count, outcome in graded(tree, correctness):
        counts[node] += count
        sums[node] += count * outcome
    # Children come after their parents, so one backward pass adds everything up.
    for node in range(len(tree) - 1, ROOT, -1):
        counts[tree.parent[node]] += counts[node]
        sums[tree.parent[node]] += sums[node]
    return counts, sums


def prefixes(tree: Tree) -> list[TokenIds]:
    """For each node, the response's tokens down to it and its own included."""
    paths: list[TokenIds] = [()]
    for node in range(1, len(tree)):
        paths.append(paths[tree.parent[node]] + tuple(tree.token_ids[node]))
    return paths


# -- targets ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ValueTarget:
    """What a state was worth.

    `node` is the state's node (0: the prompt alone); `token_ids` `[T]` are the response's tokens
    down to the state, T = 0 at the root; `target` in [0, 1] is the mean outcome of the finished
    responses through it, `weight` >= 1 their number, `square` the mean of the outcomes' squares:
    the target itself where each is 0 or 1.
    """

    node: int
    token_ids: TokenIds
    target: float
    weight: int
    square: float


@dataclass(frozen=True, slots=True)
class StepPreference:
    """Two steps after one prefix, of which one led to better outcomes (Bradley-Terry pair of a
    process reward model).

    `prefix_ids` `[P]` are the response's tokens before the step (P = 0 at the root), `chosen_ids`
    and `rejected_ids` the two steps' own tokens; `margin` in (0, 1] is the difference of their mean
    outcomes, `count` the smaller of the two numbers of responses behind them.
    """

    prefix_ids: TokenIds
    chosen_ids: TokenIds
    rejected_ids: TokenIds
    margin: float
    count: int


def value_targets(tree: Tree, *, every_token: bool = False) -> list[ValueTarget]:
    """The mean outcome of every state that a finished response passed through, parents before
    children.

    A state is a node. With `every_token` it is every token prefix of a response, inside steps and
    rollouts too: what a token-level search asks the value of. Its `node` is then the one that holds
    the prefix's last token (a rollout's tokens: the node that it started from), and prefixes that
    two siblings share are one state. None ends inside of what a world gave.
    """
    paths = prefixes(tree)
    # By the state, a node or a prefix: its node, its tokens; count, sum of outcomes, sum of their
    # squares.
    states: dict[int | TokenIds, tuple[int, TokenIds, list[float]]] = {}
    for end, rest, count, outcome in graded(tree):
        whole, nodes = paths[end] + rest, [ROOT, *tree.path(end)]
        if every_token:
            nodes = [
                ROOT,
                *(node for node in nodes for _ in tree.token_ids[node]),
                *[end] * len(rest),
            ]
        for length, node in enumerate(nodes):
            if every_token and inside_given(
                tree.step(node), length - len(paths[tree.parent[node]])
            ):
                continue
            key, ids = (whole[:length],) * 2 if every_token else (node, paths[node])
            sums = states.setdefault(key, (node, ids, [0, 0.0, 0.0]))[2]
            for power in range(3):
                sums[power] += count * outcome**power
    targets = [
        ValueTarget(node, ids, earned / weight, int(weight), squared / weight)
        for node, ids, (weight, earned, squared) in states.values()
    ]
    return sorted(targets, key=lambda state: len(state.token_ids) if every_token else state.node)


def inside_given(step: Step, tokens: int) -> bool:
    """Whether the first `tokens` of a step end inside of what a world gave."""
    return step.drawn < tokens < len(step.token_ids)


def step_preferences(tree: Tree, margin: float = 0.25, least: int = 2) -> list[StepPreference]:
    """All sibling pairs whose mean outcomes differ by `margin` (above 0: equal steps are no
    preference) or more, each sibling with `least` responses or more.
    """
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
