"""Which sequences a forward computes: one a row, or rows that share their beginnings as one, and
where each token is in it.

Rows that begin alike are a depth-first trie in one sequence: sorted, each has only the tokens
appended in which it differs from the one before it. A token sees its ancestors alone (4-D additive
mask) and stands at its depth (position ids), so its hidden state is the one that it has in a row of
its own, and so is every gradient (tree training as in Wang et al. 2025, "Tree Training", and
FACTS).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.nn.utils.rnn import pad_sequence

from ..engine.masks import FLEX, block_masks, make_masks
from .size import layer_sizes
from .train_row import TrainRows

FORWARD = 48  # tokens of padding that a sequence may cost before it gets a forward of its own


@dataclass(frozen=True, slots=True)
class Work:
    """Multiply-adds of a forward: `linear` a token, `pair` for each pair of tokens of a
    sequence.
    """

    linear: float
    pair: float

    @classmethod
    def of(cls, config: Any) -> Work:
        """Of a decoder's layers, read off its configuration."""
        layers, width, inner = layer_sizes(config)
        # Twice for pairs: masked attention runs at about half of a matrix product's rate.
        return cls(layers * (4.0 * width * width + 3.0 * width * inner), layers * 4.0 * width)

    def __call__(self, length: int, count: int = 1) -> float:
        return count * length * (self.linear + self.pair * length)


@dataclass(slots=True)
class Trie:
    """One sequence: tokens, their depths and the ends of their subtrees, all `[N]`.

    Token j is seen by token i when `j <= i < ends[j]`. `path` has the places of the last row's
    tokens.
    """

    tokens: list[int] = field(default_factory=list)
    depths: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    path: list[int] = field(default_factory=list)

    def count_shared(self, ids: Sequence[int]) -> int:
        """How many tokens `ids` and the last row begin with alike."""
        least = min(len(ids), len(self.path))
        return next((i for i in range(least) if self.tokens[self.path[i]] != ids[i]), least)

    def add(self, ids: Sequence[int]) -> list[int]:
        """The places of a row's tokens; those that it shares with the row before it in sorted order
        are there already.
        """
        shared, first = self.count_shared(ids), len(self.tokens)
        self.tokens += ids[shared:]
        self.depths += range(shared, len(ids))
        size = len(self.tokens)
        self.ends += [size] * (size - first)
        self.path = [*self.path[:shared], *range(first, size)]
        for place in self.path[:shared]:  # their subtrees go on
            self.ends[place] = size
        return self.path


@dataclass(frozen=True, slots=True)
class Forward:
    """Sequences that are computed together, each padded to `width` N, and what they predict.

    Prediction m is of token `labels[m]`, at place `at[m]` of the flattened `[G * N]` positions.
    """

    tries: Sequence[Trie]
    width: int
    at: torch.Tensor
    labels: torch.Tensor
    shares: bool

    def inputs(self, config: Any, dtype: torch.dtype, device: Any) -> dict[str, Any]:
        """What a model of `config` takes: where rows share their beginnings a mask, FlexAttention's
        blocks or an additive one of `dtype`.
        """
        ids = stack_rows([trie.tokens for trie in self.tries]).to(device)  # [G, N]
        if not self.shares:
            # Padding is behind a row's end, where none of its tokens sees it: without a mask
            # attention is causal, and has its fastest kernel.
            return {"input_ids": ids}
        positions = stack_rows([trie.depths for trie in self.tries]).to(device)
        ends = stack_rows([trie.ends for trie in self.tries]).to(device)
        places = torch.arange(ids.shape[1], device=device)
        # Padding sees itself alone, so that no row of the mask is empty.
        ends = torch.where(ends > 0, ends, places + 1)
        if config._attn_implementation == FLEX:
            blocks = block_masks(config, lambda g, h, q, k: (k <= q) & (q < ends[g, k]), positions)
            return {"input_ids": ids, "position_ids": positions, "attention_mask": blocks}
        # [G, who sees, who is seen]
        seen = (places <= places[:, None]) & (places[:, None] < ends[:, None, :])
        mask = make_masks(config, seen, positions, positions, dtype)
        return {"input_ids": ids, "position_ids": positions, "attention_mask": mask}


@dataclass(frozen=True, slots=True)
class Plan:
    """The forwards that compute rows' responses; `where` `[B, T]` each token is among all their
    predictions (-1: padding).
    """

    forwards: Sequence[Forward]
    where: torch.Tensor

    @property
    def tokens(self) -> int:
        """What is computed, padding included."""
        return sum(len(forward.tries) * forward.width for forward in self.forwards)

    def work(self, work: Work) -> float:
        """Its multiply-adds."""
        return sum(work(forward.width, len(forward.tries)) for forward in self.forwards)

    def spread(self, predictions: Sequence[torch.Tensor]) -> torch.Tensor:
        """Numbers of each forward's predictions `[M]` at the rows' tokens `[B, T]`; padding is
        0.
        """
        every = torch.cat(list(predictions))
        index = self.where.to(every.device)
        return (
            every.index_select(0, index.clamp(min=0).reshape(-1))
            .view(index.shape)
            .masked_fill(index < 0, 0.0)
        )


def plan_rows(rows: TrainRows, work: Work | None) -> Plan:
    """How to compute rows: as few sequences as are least `work`; None for one forward with a
    sequence a row.
    """
    whole = [(*row.prompt_ids, *row.completion_ids) for row in rows]
    order = list(range(len(rows)))
    if work is not None:
        order.sort(key=whole.__getitem__)
    tries: list[Trie] = []
    members: list[
        list[tuple[int, list[int]]]
    ] = []  # of each trie: its rows, and where their tokens are
    for r in order:
        if work is None or not tries or not joins_last(tries[-1], whole[r], work):
            tries.append(Trie())
            members.append([])
        members[-1].append((r, tries[-1].add(whole[r])))
    forwards, start = [], 0
    where = torch.full((len(rows), max(len(row.completion_ids) for row in rows)), -1)
    for batch in [order] if work is None else group_alike(tries):
        width = max(len(tries[i].tokens) for i in batch)
        predictions: dict[tuple[int, int], int] = {}  # rows that begin alike share these, too
        for g, i in enumerate(batch):
            for r, path in members[i]:
                # A token is predicted at the one before it.
                before, labels = path[len(rows[r].prompt_ids) - 1 : -1], rows[r].completion_ids
                pairs = [
                    (g * width + place, label) for place, label in zip(before, labels, strict=True)
                ]
                indices = [start + predictions.setdefault(pair, len(predictions)) for pair in pairs]
                where[r, : len(indices)] = torch.tensor(indices)
        start += len(predictions)
        at, of = (torch.tensor(column) for column in zip(*predictions, strict=True))
        forwards.append(Forward([tries[i] for i in batch], width, at, of, work is not None))
    return Plan(forwards, where)


def joins_last(trie: Trie, ids: Sequence[int], work: Work) -> bool:
    """Whether a row is less work in the last sequence, whose beginning it shares, than in one of
    its own.
    """
    shared, size = trie.count_shared(ids), len(trie.tokens)
    return bool(shared) and work(size + len(ids) - shared) - work(size) <= work(len(ids))


def group_alike(tries: Sequence[Trie]) -> list[list[int]]:
    """Indices of tries, those of like length together: a forward more costs about as much as
    `FORWARD` tokens.
    """
    batches: list[list[int]] = []
    for i in sorted(range(len(tries)), key=lambda i: -len(tries[i].tokens)):
        if batches and len(tries[batches[-1][0]].tokens) - len(tries[i].tokens) <= FORWARD:
            batches[-1].append(i)
        else:
            batches.append([i])
    return batches


def stack_rows(rows: Sequence[Sequence[float]]) -> torch.Tensor:
    """Rows of numbers as one tensor `[B, N]`, 0 beyond a row's end."""
    return pad_sequence([torch.tensor(row) for row in rows], batch_first=True)
