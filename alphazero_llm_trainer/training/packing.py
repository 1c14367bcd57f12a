"""Shared prefixes trained once: the responses of one question as a depth-first trie in one sequence.

Rows are sorted, so that each shares its longest common beginning with the one before it and only its new tokens are
appended: prompt and common steps are computed once. A token sees its ancestors alone (4-D additive mask) and stands at
its depth (position ids), so its hidden state is the one that it has in the flat batch, and so is every gradient.
A token that has several successors is fed once more for each further one: then every position predicts one label, and
the causal language model's own forward and loss head do the rest. (Tree training as in Wang et al. 2025, "Tree
Training", and FACTS.)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.utils.rnn import pad_sequence

from ..engine.masks import masks

IGNORED = -100  # the label of a position that predicts nothing
FORWARD = 48  # tokens of padding that a sequence may cost before it gets a forward of its own

Ids = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Work:
    """Multiply-adds of a forward: `linear` a token, `pair` for each pair of tokens of a sequence."""

    linear: float
    pair: float

    @classmethod
    def of(cls, config: Any) -> Work:
        """Of a decoder's layers, read off its configuration."""
        shape = config.get_text_config()
        width, layers = shape.hidden_size, shape.num_hidden_layers
        inner = getattr(shape, "intermediate_size", None) or 4 * width
        # Twice for pairs: masked attention runs at about half of a matrix product's rate.
        return cls(layers * (4.0 * width * width + 3.0 * width * inner), layers * 4.0 * width)

    def __call__(self, length: int, count: int = 1) -> float:
        return count * length * (self.linear + self.pair * length)


@dataclass(slots=True)
class Trie:
    """One sequence: tokens, depths, labels and subtree ends, all `[N]`; `twins` are (second copy, first copy) pairs.

    Token j is seen by token i when `j <= i < ends[j]` and j is not i's twin.
    """

    tokens: list[int] = field(default_factory=list)
    depths: list[int] = field(default_factory=list)
    labels: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    twins: list[tuple[int, int]] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.tokens)


@dataclass(frozen=True, slots=True)
class PackingPlan:
    """Where every row's tokens went: `tries` in forwards of like length, and `where[r, t]` `[B, T]`.

    `where` indexes the scores of all forwards one after the other, each padded to its longest trie; -1 is padding.
    `flat_tokens` and `tokens` count what the flat batch and the packed one compute, padding included.
    """

    batches: tuple[tuple[Trie, ...], ...]
    where: Ids
    flat_tokens: int
    tokens: int
    work: float
    flat_work: float


def plan(prompts: Sequence[Ids], completions: Sequence[Ids], longest: int, work: Work) -> PackingPlan:
    """Pack rows; equal prompts share, and a question's responses are split where two sequences cost less than one.

    `longest` is the T of the flat batch.
    """
    order = sorted(range(len(prompts)), key=lambda r: (prompts[r].tolist(), completions[r].tolist()))
    tries: list[Trie] = []
    place: dict[int, tuple[int, Ids]] = {}
    trie, at, path, previous, prompt = Trie(), _none(), _none(), _none(), _none()
    for r in order:
        row = np.concatenate((prompts[r], completions[r]))
        shared = common(previous, row) if tries and np.array_equal(prompt, prompts[r]) else 0
        size, new = len(trie), len(row) - shared
        if not shared or work(size + new) - work(size) > work(len(row)):
            trie, shared = Trie(), 0
            tries.append(trie)
            at, path = _none(), _none()
        at, path = append(trie, row, len(prompts[r]), shared, at, path)
        place[r] = len(tries) - 1, at[len(prompts[r]) - 1 :]
        previous, prompt = row, prompts[r]
    batches = grouped(tries)
    start, offsets, tokens, spent = 0, {}, 0, 0.0
    for batch in batches:
        width = max(len(tries[i]) for i in batch)
        for i in batch:
            offsets[i], start = start, start + width
        tokens += width * len(batch)
        spent += work(width, len(batch))
    where = np.full((len(prompts), longest), -1, dtype=np.int64)
    for r, (i, found) in place.items():
        where[r, : len(found)] = offsets[i] + found
    width = max(map(len, prompts)) + longest
    made = tuple(tuple(tries[i] for i in batch) for batch in batches)
    return PackingPlan(made, where, width * len(prompts), tokens, spent, work(width, len(prompts)))


def append(trie: Trie, row: Ids, prompt: int, shared: int, at: Ids, path: Ids) -> tuple[Ids, Ids]:
    """Add a row whose first `shared` tokens are the last row's.

    `path[d]` is the position of the row's token d, `at[d]` the position that predicts its token d + 1; both are given
    for the last row and returned for this one.
    """
    for node in path[shared:]:
        trie.ends[node] = len(trie)
    if shared == len(row):
        return at[: shared - 1], path
    joint = int(path[shared - 1]) if shared else -1
    if shared and trie.labels[joint] != IGNORED:
        # The token before the branch predicts another token already: feed it again for this one.
        twin = len(trie)
        trie.tokens.append(trie.tokens[joint])
        trie.depths.append(shared - 1)
        trie.labels.append(IGNORED)
        trie.ends.append(twin + 1)
        trie.twins.append((twin, joint))
        joint = twin
    first, count = len(trie), len(row) - shared
    own = np.arange(first, first + count)
    trie.tokens += row[shared:].tolist()
    trie.depths += range(shared, len(row))
    trie.labels += [*row[shared + 1 :].tolist(), IGNORED]
    trie.ends += [0] * count
    if shared:
        trie.labels[joint] = int(row[shared])
    else:
        trie.labels[first : first + prompt - 1] = [IGNORED] * (prompt - 1)
    predictors = np.concatenate((at[: shared - 1], [joint], own[:-1])) if shared else own[:-1]
    return predictors, np.concatenate((path[:shared], own))


def common(a: Ids, b: Ids) -> int:
    """Length of the longest common beginning."""
    least = min(len(a), len(b))
    different = np.flatnonzero(a[:least] != b[:least])
    return int(different[0]) if len(different) else least


def grouped(tries: Sequence[Trie]) -> list[list[int]]:
    """Indices of tries, those of like length together: a forward more costs about as much as `FORWARD` tokens."""
    batches: list[list[int]] = []
    for i in sorted(range(len(tries)), key=lambda i: -len(tries[i])):
        if batches and len(tries[batches[-1][0]]) - len(tries[i]) <= FORWARD:
            batches[-1].append(i)
        else:
            batches.append([i])
    return batches


def tensors(batch: Sequence[Trie], dtype: torch.dtype, device: torch.device, config: Any) -> dict[str, Any]:
    """A forward's `input_ids`, `position_ids`, `shift_labels` `[G, N]` and additive `attention_mask` `[G, 1, N, N]`, or one for
    each kind of the layers that the model of `config` has."""
    count, width = len(batch), max(map(len, batch))
    ids, depths, ends = (np.zeros((count, width), dtype=np.int64) for _ in range(3))
    labels = np.full((count, width), IGNORED, dtype=np.int64)
    ends[:] = np.arange(1, width + 1)  # padding sees itself alone, so that no row of the mask is empty
    for g, trie in enumerate(batch):
        size = len(trie)
        ids[g, :size], depths[g, :size], labels[g, :size] = trie.tokens, trie.depths, trie.labels
        # The last row's tokens were never closed.
        ends[g, :size] = [end or size for end in trie.ends]
    seen = ancestors(torch.from_numpy(ends).to(device), [trie.twins for trie in batch])
    positions = torch.from_numpy(depths).to(device)
    return {
        "input_ids": torch.from_numpy(ids).to(device),
        "position_ids": positions,
        "shift_labels": torch.from_numpy(labels).to(device),
        "attention_mask": masks(config, seen, positions, positions, dtype),
    }


def ancestors(ends: torch.Tensor, twins: Sequence[Sequence[tuple[int, int]]] = ()) -> torch.Tensor:
    """Which tokens each sees, `[G, N, N]`, in tries with subtree ends `[G, N]`: itself and its ancestors."""
    column = torch.arange(ends.shape[1], device=ends.device)
    seen = (column[None, None, :] <= column[None, :, None]) & (column[None, :, None] < ends[:, None, :])
    for g, pairs in enumerate(twins):
        if pairs:
            second, first = torch.tensor(pairs, device=ends.device).unbind(1)
            seen[g, second, first] = False
    return seen


def together(groups: Sequence[int], batches: int) -> list[int]:
    """An order of rows `[B]` in which a minibatch holds whole groups as far as it can.

    `groups[r]` names row r's group. Groups keep the order in which they first appear, rows of their own are dealt out
    evenly over the `batches` equal minibatches.
    """
    members: dict[int, list[int]] = {}
    for row, group in enumerate(groups):
        members.setdefault(group, []).append(row)
    shared = [row for rows in members.values() if len(rows) > 1 for row in rows]
    alone = [rows[0] for rows in members.values() if len(rows) == 1]
    size, order = len(groups) // batches, []
    for batch in range(batches):
        some = shared[batch * len(shared) // batches : (batch + 1) * len(shared) // batches]
        left = size - len(some)
        order += some + alone[:left]
        alone = alone[left:]
    return order


def spread(scores: Sequence[torch.Tensor], where: Ids) -> torch.Tensor:
    """Scores of all forwards (each `[G, N]`) back at the rows' tokens `[B, T]`; padding is 0."""
    flat = torch.cat([one.reshape(-1) for one in scores])
    index = torch.from_numpy(where).to(flat.device)
    found = flat.index_select(0, index.clamp(min=0).reshape(-1)).view(index.shape)
    return found.masked_fill(index < 0, 0.0)


def _none() -> Ids:
    return np.zeros(0, dtype=np.int64)


# -- states of a question, for critics ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ValueRow:
    """All states of a question in one sequence: the prompt, then the responses' tokens as a depth-first trie `[T]`.

    `ends[i]` is the end of token i's subtree: token j is seen by token i when `j <= i < ends[j]`. `positions[i]` is the
    token's place in its own response, prompt included. `targets[i]` in [0, 1] and `weights[i]` belong to the state
    whose last token i is; a weight of 0 means that the token is no target, and all of a question's sum to 1. `states` gives
    for each target, in the order it came in, its index in the sequence.
    """

    token_ids: tuple[int, ...]
    ends: tuple[int, ...]
    positions: tuple[int, ...]
    targets: tuple[float, ...]
    weights: tuple[float, ...]
    states: tuple[int, ...]


def pack_values(prompt_ids: Sequence[int], targets: Sequence[tuple[Sequence[int], float, float]]) -> ValueRow:
    """(response tokens down to a state, target, weight) triples of one question as one row: each token occurs once.

    States with the same tokens become one, with the weighted mean of their targets.
    """
    head = len(prompt_ids) - 1
    # Node 0 of the trie is the prompt's last token: the root's state. Parents come before their children.
    tokens, parents, nodes = [prompt_ids[-1]], [0], []
    known: dict[tuple[int, int], int] = {}
    for path, _, _ in targets:
        node = 0
        for token in path:
            parent, node = node, known.setdefault((node, token), len(tokens))
            if node == len(tokens):
                tokens.append(token)
                parents.append(parent)
        nodes.append(node)
    count, length = len(tokens), head + len(tokens)
    sizes = [1] * count  # of a node's subtree: its place is after its parent and its elder siblings' subtrees
    for node in range(count - 1, 0, -1):
        sizes[parents[node]] += sizes[node]
    place, depth, free = [head] * count, [head] * count, [head + 1] * count
    for node in range(1, count):
        parent = parents[node]
        place[node], depth[node], free[node] = free[parent], depth[parent] + 1, free[parent] + 1
        free[parent] += sizes[node]
    ids, ends, positions = [*prompt_ids[:-1], *tokens], [length] * length, [*range(length)]
    for node, at in enumerate(place):
        ids[at], ends[at], positions[at] = tokens[node], at + sizes[node], depth[node]
    totals, weights = [0.0] * length, [0.0] * length
    states = tuple(place[node] for node in nodes)
    for at, (_, target, weight) in zip(states, targets, strict=True):
        totals[at] += weight * target
        weights[at] += weight
    means = tuple(total / weight if weight else 0.0 for total, weight in zip(totals, weights, strict=True))
    whole = math.fsum(weights) or 1.0
    shares = tuple(weight / whole for weight in weights)
    return ValueRow(tuple(ids), tuple(ends), tuple(positions), means, shares, states)


def collate(rows: Sequence[ValueRow], dtype: torch.dtype, config: Any) -> dict[str, Any]:
    """Rows, padded on the right: `input_ids`, `position_ids`, `targets`, `weights` `[B, T]` and a mask `[B, 1, T, T]`, or one
    for each kind of the layers that the model of `config` has."""

    def padded(name: str) -> torch.Tensor:
        return pad_sequence([torch.tensor(getattr(row, name)) for row in rows], batch_first=True)

    ends = padded("ends")
    # Padding sees itself alone, so that no row of the mask is empty.
    ends = torch.where(ends > 0, ends, torch.arange(1, ends.shape[1] + 1))
    positions = padded("positions")
    return {
        "input_ids": padded("token_ids"),
        "position_ids": positions,
        "attention_mask": masks(config, ancestors(ends), positions, positions, dtype),
        "targets": padded("targets"),
        "weights": padded("weights"),
    }
