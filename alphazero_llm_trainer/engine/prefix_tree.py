"""The engine's memory: a trie of tokens with each token's keys, values, log-probability and
next-token distribution.

A token's node is computed once, whoever asks for it: requests that reach a node already computed
read it, requests that reach one being computed wait for it. This is RadixAttention's prefix tree
(Zheng et al. 2024, SGLang) with one token a node, so that a branch may leave anywhere, and with the
next-token distributions kept beside the keys.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import numpy as np
import torch

ROOT_NODE = 0
NAN = float("nan")


class PrefixTree:
    """A trie over token ids in fixed storage of `capacity` nodes; node i's data are entry i of
    everything.

    `parent` and `token` (C ints: the kernels read them where they are), `children` (token id ->
    node), `ready` (keys and values are stored), `memoised` (the next-token distribution is),
    `locks` (rows that need it now), `stamp` (last use), `logprob` (of the token after its prefix;
    nats, NaN where unknown), `value` (the value head's output, NaN where unknown).

    Pools: `states` `[capacity, layers, 2, kv_heads, head_dim]` holds keys and values; it takes no
    memory before its first use and after `release`. Where all next-token distributions fit
    `memo_bytes`, `next_logprobs` is `[capacity, vocabulary]`; elsewhere it is None, and none is
    kept.
    """

    def __init__(
        self,
        capacity: int,
        layers: int,
        kv_heads: int,
        head_dim: int,
        vocabulary: int,
        *,
        memo_bytes: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.capacity, self.vocabulary = capacity, vocabulary
        self.states_shape = (capacity, layers, 2, kv_heads, head_dim)
        self.dtype = dtype
        self.device = device
        self._states: torch.Tensor | None = None
        self.next_logprobs: torch.Tensor | None = None
        if capacity * vocabulary * 4 <= memo_bytes:
            self.next_logprobs = torch.empty(
                (capacity, vocabulary), dtype=torch.float32, device=device
            )
        self.clear()

    @property
    def states(self) -> torch.Tensor:
        """Keys and values, see the class."""
        if self._states is None:
            capacity, layers, *node = self.states_shape
            pool = torch.empty((layers, capacity, *node), dtype=self.dtype, device=self.device)
            pool[:, ROOT_NODE] = 0.0  # what padding reads, which has to be numbers
            # A layer's nodes lie together: attention reads one layer at a time.
            self._states = pool.transpose(0, 1)
        return self._states

    def release(self) -> None:
        """Forget every node but the root, and give the memory of keys and values back until they
        are used again.
        """
        self._states = None
        self.clear()

    def clear(self) -> None:
        """Forget every node but the root (after a change of weights)."""
        self.parent, self.token = array("i", [0]) * self.capacity, array("i", [-1]) * self.capacity
        self.ready, self.memoised = bytearray(self.capacity), bytearray(self.capacity)
        self.locks, self.stamp = array("i", [0]) * self.capacity, array("q", [0]) * self.capacity
        self.logprob = array("d", [NAN]) * self.capacity
        self.clear_values()
        self.children: list[dict[int, int]] = [{}]
        self.ready[ROOT_NODE] = True
        self.free: list[int] = []  # nodes that were dropped
        self.clock = 0

    def clear_values(self) -> None:
        """Forget every node's value (after a change of the value head)."""
        self.value = array("d", [NAN]) * self.capacity

    def child(self, node: int, token: int) -> int:
        """The child of `node` for `token`, made where there is none. Call `reserve` first."""
        known = self.children[node].get(token)
        if known is not None:
            return known
        if self.free:
            made = self.free.pop()
            self.logprob[made] = self.value[made] = NAN
        else:
            made = len(self.children)
            self.children.append({})
        self.parent[made], self.token[made], self.stamp[made] = node, token, self.clock
        self.children[node][token] = made
        return made

    def walk(self, tokens: Sequence[int]) -> list[int]:
        """The nodes of `tokens` from the root, made where missing."""
        self.clock += 1
        path = self._find_known(tokens)
        node = path[-1] if path else ROOT_NODE
        for token in tokens[len(path) :]:
            node = self.child(node, token)
            self.stamp[node] = self.clock
            path.append(node)
        return path

    def find(self, tokens: Sequence[int]) -> int | None:
        """The node of `tokens`, or None where there is none; nothing is made. Counts as a use."""
        self.clock += 1
        path = self._find_known(tokens)
        if len(path) < len(tokens):
            return None
        return path[-1] if path else ROOT_NODE

    def _find_known(self, tokens: Sequence[int]) -> list[int]:
        """The nodes of `tokens` from the root, as far as they are there. Counts as a use."""
        node: int | None = ROOT_NODE
        nodes: list[int] = []
        for token in tokens:
            node = self.children[node].get(token)  # type: ignore[index]
            if node is None:
                break
            self.stamp[node] = self.clock
            nodes.append(node)
        return nodes

    def path(self, node: int) -> list[int]:
        """The nodes from the root (left out) down to `node`."""
        nodes = []
        while node != ROOT_NODE:
            nodes.append(node)
            node = self.parent[node]
        nodes.reverse()
        return nodes

    def lock(self, node: int) -> None:
        """Keep `node`, and so its ancestors, from being evicted."""
        self.locks[node] += 1

    def unlock(self, node: int) -> None:
        self.locks[node] -= 1
        self.stamp[node] = self.clock

    def reserve(self, count: int) -> bool:
        """Make room for `count` new nodes, dropping the least recently used leaves; False when
        locks forbid it.
        """
        if self.room() >= count:
            return True
        # One sweep frees an extra tenth, so that sweeps stay rare.
        wanted = max(count, self.capacity // 10)
        while self.room() < wanted:
            leaves = self._leaves()
            if not len(leaves):
                break
            for node in leaves[: wanted - self.room()].tolist():
                self._drop(node)
        return self.room() >= count

    def _leaves(self) -> np.ndarray:
        """The nodes without children that no row needs, the least recently used first."""
        # In numpy: a server's other requests wait for a sweep over all nodes.
        count = len(self.children)
        token, parent, locks = (
            np.frombuffer(column, np.intc, count)
            for column in (self.token, self.parent, self.locks)
        )
        spare = token >= 0
        inner = np.zeros(count, dtype=bool)
        inner[parent[spare]] = True
        leaves = np.flatnonzero(spare & ~inner & (locks == 0))
        return leaves[
            np.argsort(np.frombuffer(self.stamp, np.longlong, count)[leaves], kind="stable")
        ]

    def _drop(self, node: int) -> None:
        del self.children[self.parent[node]][self.token[node]]
        self.token[node] = -1
        self.ready[node] = self.memoised[node] = False
        self.free.append(node)

    def room(self) -> int:
        """How many nodes can be made without dropping any."""
        return self.capacity - len(self.children) + len(self.free)

    def count_used(self) -> int:
        """How many nodes hold a token."""
        return len(self.children) - 1 - len(self.free)
