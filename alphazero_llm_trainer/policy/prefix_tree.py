"""The engine's memory: a trie of tokens with each token's keys, values, log-probability and next-token distribution.

A token's node is computed once, whoever asks for it: requests that reach a node already computed read it, requests
that reach one being computed wait for it. This is RadixAttention's prefix tree (Zheng et al. 2024, SGLang) with one
token a node, so that a branch may leave anywhere, and with the next-token distributions kept beside the keys.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..errors import EngineError

ROOT = 0


class PrefixTree:
    """A trie over token ids in fixed storage of `capacity` nodes; node i's data are row i of the pools.

    Fields, one entry a node: `parent`, `children` (token id -> node), `ready` (keys and values are stored),
    `memoised` (the next-token distribution is stored), `locks` (rows that read it now), `stamp` (last use).
    Pools: `states` `[capacity, layers, 2, kv_heads, head_dim]` holds keys and values; `logprob` `[capacity]` is each
    token's own log-probability after its prefix (nats, NaN where unknown); `next_logprobs` is `[capacity, vocabulary]`
    or None.
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
        self.capacity = capacity
        self.states = torch.empty((capacity, layers, 2, kv_heads, head_dim), dtype=dtype, device=device)
        self.next_logprobs: torch.Tensor | None = None
        if capacity * vocabulary * 4 <= memo_bytes:
            self.next_logprobs = torch.empty((capacity, vocabulary), dtype=torch.float32, device=device)
        self.clear()

    def clear(self) -> None:
        """Forget every node but the root (after a change of weights)."""
        self.parent, self.token = [ROOT], [-1]
        self.children: list[dict[int, int]] = [{}]
        self.ready, self.memoised = [True], [False]
        self.locks, self.stamp = [0], [0]
        self.logprob = [float("nan")]
        self.free: list[int] = []  # nodes that were dropped
        self.clock = 0

    def child(self, node: int, token: int) -> int:
        """The child of `node` for `token`, made where there is none. Call `reserve` first."""
        found = self.children[node].get(token)
        if found is not None:
            return found
        if self.free:
            made = self.free.pop()
            self.parent[made], self.token[made], self.stamp[made] = node, token, self.clock
            self.logprob[made] = float("nan")
        else:
            made = len(self.parent)
            self.parent.append(node)
            self.token.append(token)
            self.children.append({})
            self.ready.append(False)
            self.memoised.append(False)
            self.locks.append(0)
            self.stamp.append(self.clock)
            self.logprob.append(float("nan"))
        self.children[node][token] = made
        return made

    def walk(self, tokens: Sequence[int]) -> list[int]:
        """The nodes of `tokens` from the root, made where missing."""
        node, path = ROOT, []
        self.clock += 1
        for token in tokens:
            node = self.child(node, token)
            self.stamp[node] = self.clock
            path.append(node)
        return path

    def path(self, node: int) -> list[int]:
        """The nodes from the root (left out) down to `node`."""
        nodes = []
        while node != ROOT:
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
        """Make room for `count` new nodes, dropping the least recently used leaves; False when locks forbid it."""
        if self.room() >= count:
            return True
        # One sweep frees an extra tenth, so that sweeps stay rare.
        wanted = max(count, self.capacity // 10)
        while self.room() < wanted:
            leaves = [
                node
                for node in range(1, len(self.parent))
                if self.token[node] >= 0 and not self.children[node] and not self.locks[node]
            ]
            if not leaves:
                break
            leaves.sort(key=self.stamp.__getitem__)
            for node in leaves[: wanted - self.room()]:
                self._drop(node)
        return self.room() >= count

    def _drop(self, node: int) -> None:
        del self.children[self.parent[node]][self.token[node]]
        self.token[node] = -1
        self.ready[node] = self.memoised[node] = False
        self.free.append(node)

    def room(self) -> int:
        """How many nodes can be made without dropping any."""
        return self.capacity - len(self.parent) + len(self.free)

    def used(self) -> int:
        """How many nodes hold a token."""
        return len(self.parent) - 1 - len(self.free)

    def check(self) -> None:
        """Raise EngineError unless links, locks and the free list agree with each other (a test's tool)."""
        free = set(self.free)
        if len(free) != len(self.free):
            raise EngineError("prefix tree: a node is in the free list twice")
        seen = 1
        stack = [ROOT]
        while stack:
            node = stack.pop()
            for token, child in self.children[node].items():
                if child in free or self.parent[child] != node or self.token[child] != token:
                    raise EngineError(f"prefix tree: node {child} and its parent {node} disagree")
                if self.ready[child] and not self.ready[node]:
                    raise EngineError(f"prefix tree: node {child} is ready before its parent {node}")
                if self.locks[child] < 0:
                    raise EngineError(f"prefix tree: node {child} was unlocked too often")
                seen += 1
                stack.append(child)
        if seen + len(free) != len(self.parent) or len(self.parent) > self.capacity:
            raise EngineError("prefix tree: nodes were lost")
