"""The prefix tree under random operations, against a model made of plain dictionaries."""

from __future__ import annotations

import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from support import check_tree

from alphazero_llm_trainer.engine.prefix_tree import ROOT, PrefixTree


def make(capacity: int = 40, memo_bytes: int = 1 << 20) -> PrefixTree:
    cpu = torch.device("cpu")
    return PrefixTree(capacity, 1, 1, 2, 8, memo_bytes=memo_bytes, dtype=torch.float32, device=cpu)


class Machine(RuleBasedStateMachine):
    """walk, lock, unlock, reserve and clear in any order; `locked` is the model: locked sequences
    are never lost.
    """

    @initialize(capacity=st.integers(8, 40))
    def start(self, capacity: int) -> None:
        self.tree = make(capacity)
        self.locked: list[tuple[int, tuple[int, ...]]] = []  # (node, its tokens from the root)

    @rule(tokens=st.lists(st.integers(0, 3), min_size=1, max_size=7))
    def walk(self, tokens: list[int]) -> None:
        known = self.tree.used()
        if not self.tree.reserve(len(tokens)):
            return
        path = self.tree.walk(tokens)
        assert [self.tree.token[node] for node in path] == tokens
        assert self.tree.path(path[-1]) == path
        assert self.tree.walk(tokens) == path  # a second walk makes nothing
        assert self.tree.find(tokens) == path[-1]
        assert self.tree.used() <= known + len(tokens)

    @rule(tokens=st.lists(st.integers(0, 3), min_size=1, max_size=7), ready=st.booleans())
    def walk_and_lock(self, tokens: list[int], ready: bool) -> None:
        if not self.tree.reserve(len(tokens)):
            return
        path = self.tree.walk(tokens)
        self.tree.lock(path[-1])
        self.locked.append((path[-1], tuple(tokens)))
        if ready:
            for node in path:
                self.tree.ready[node] = True
                self.tree.value[node] = self.tree.logprob[node] = float(node)

    @rule(which=st.integers(0, 100))
    def unlock(self, which: int) -> None:
        if self.locked:
            node, _ = self.locked.pop(which % len(self.locked))
            self.tree.unlock(node)

    @rule(count=st.integers(0, 45))
    def reserve(self, count: int) -> None:
        evictable = (
            self.tree.capacity
            - 1
            - len({n for node, _ in self.locked for n in self.tree.path(node)})
        )
        assert self.tree.reserve(count) == (count <= evictable)
        if count <= evictable:
            assert self.tree.room() >= count

    @rule()
    def clear(self) -> None:
        if not self.locked:
            self.tree.clear()
            assert self.tree.used() == 0

    @invariant()
    def sound(self) -> None:
        if not hasattr(self, "tree"):
            return
        check_tree(self.tree)
        assert self.tree.ready[ROOT]
        assert sum(self.tree.locks) == len(self.locked)
        for (
            node,
            tokens,
        ) in self.locked:  # whatever was evicted, a locked node still spells its tokens
            assert tuple(self.tree.token[n] for n in self.tree.path(node)) == tokens
            assert self.tree.find(tokens) == node
        for node in range(
            1, len(self.tree.children)
        ):  # a node that isn't computed knows nothing of its number's past
            if self.tree.token[node] >= 0 and not self.tree.ready[node]:
                assert self.tree.value[node] != self.tree.value[node]
                assert self.tree.logprob[node] != self.tree.logprob[node]
                assert not self.tree.memoised[node]


TestMachine = Machine.TestCase
TestMachine.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)


def test_the_least_recently_used_goes_first() -> None:
    tree = make(capacity=21)
    for token in range(4):
        tree.walk([token] * 5)  # 20 nodes: full
    tree.walk([0] * 5)  # 0 is used again: 1 is the oldest now
    assert tree.room() == 0
    assert tree.reserve(1)
    assert [_depth(tree, token) for token in range(4)] == [
        5,
        4,
        4,
        5,
    ]  # the two oldest leaves; a sweep frees a tenth
    check_tree(tree)


def _depth(tree: PrefixTree, token: int) -> int:
    node, depth = ROOT, 0
    while token in tree.children[node]:
        node, depth = tree.children[node][token], depth + 1
    return depth


def test_finding_makes_nothing() -> None:
    tree = make()
    path = tree.walk([1, 2, 3])
    assert [tree.find(tokens) for tokens in ([], [1], [1, 2, 3], [1, 2, 3, 4], [2])] == [
        ROOT,
        path[0],
        path[2],
        None,
        None,
    ]
    assert tree.used() == 3
