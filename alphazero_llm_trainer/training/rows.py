"""What every trainer eats: one response a row, token ids only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..types import STUDENT


@dataclass(frozen=True, slots=True)
class TrainRow:
    """A prompt `[P]` and its response: `completion_ids`, `old_logprobs` (nats, the student's own at ingest) and
    `advantages` are `[T]`. `weight` is the row's weight in the legacy loss, `reward` the outcome that PPO's critic and
    advantages are made from. `kind` is "policy" or "demonstration", `source` who wrote the response ("student", or the
    teachers that wrote one of its steps).
    """

    prompt_ids: tuple[int, ...]
    completion_ids: tuple[int, ...]
    old_logprobs: tuple[float, ...]
    advantages: tuple[float, ...]
    weight: float = 1.0
    kind: str = "policy"
    reward: float = 0.0
    source: str = STUDENT


# The rows of round k, asked for with the weights of the moment.
RowsOfRound = Callable[[int], Sequence[TrainRow]]


@dataclass(frozen=True, slots=True)
class ValueRow:
    """All states of a question in one sequence: the prompt, then the responses' tokens as a depth-first trie `[T]`.

    `ends[i]` is the end of token i's subtree: token j is seen by token i when `j <= i < ends[j]`. `positions[i]` is the
    token's place in its own response, prompt included. `targets[i]` in [0, 1] and `weights[i]` belong to the state
    whose last token i is; a weight of 0 means that the token is no target. `question` names the question (the split
    goes by it), `states` gives for each target, in the order it came in, its index in the sequence.
    """

    question: str
    token_ids: tuple[int, ...]
    ends: tuple[int, ...]
    positions: tuple[int, ...]
    targets: tuple[float, ...]
    weights: tuple[float, ...]
    states: tuple[int, ...]

    @property
    def teaches(self) -> bool:
        """Whether a finished response went through the question's states."""
        return any(self.weights)


def pack_values(
    question: str, prompt_ids: Sequence[int], targets: Sequence[tuple[Sequence[int], float, float]]
) -> ValueRow:
    """(response tokens down to a state, target, weight) triples of one question as one row: each token occurs once.

    States with the same tokens become one, with the weighted mean of their targets. Raises ValueError for an empty prompt.
    """
    if not prompt_ids:
        raise ValueError("the prompt is empty: a state's value sits at its last token, so give at least one")
    children: list[dict[int, int]] = [{}]
    tokens = [prompt_ids[-1]]  # trie node 0 is the prompt's last token: the root's state
    totals, weights, trie_nodes = [0.0], [0.0], []
    for path, target, weight in targets:
        node = 0
        for token in path:
            found = children[node].get(token)
            if found is None:
                found = children[node][token] = len(tokens)
                tokens.append(token)
                children.append({})
                totals.append(0.0)
                weights.append(0.0)
            node = found
        totals[node] += weight * target
        weights[node] += weight
        trie_nodes.append(node)
    head = len(prompt_ids) - 1
    order: list[int] = []
    ends, depths = [0] * len(tokens), [0] * len(tokens)
    stack = [(0, False)]
    while stack:
        node, left = stack.pop()
        if left:
            ends[node] = head + len(order)
            continue
        order.append(node)
        stack.append((node, True))
        for child in reversed(children[node].values()):
            depths[child] = depths[node] + 1
            stack.append((child, False))
    length = head + len(order)
    place = {node: head + i for i, node in enumerate(order)}
    return ValueRow(
        question,
        (*prompt_ids[:-1], *(tokens[node] for node in order)),
        (*[length] * head, *(ends[node] for node in order)),
        (*range(head), *(head + depths[node] for node in order)),
        (*[0.0] * head, *(totals[node] / weights[node] if weights[node] else 0.0 for node in order)),
        (*[0.0] * head, *(weights[node] for node in order)),
        tuple(place[node] for node in trie_nodes),
    )
