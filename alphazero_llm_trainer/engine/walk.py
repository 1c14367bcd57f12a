"""Samples through the known part of the prefix tree, in C: each draws from node to node until it ends or needs a forward."""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Iterator

from .prefix_tree import WHOLE, PrefixTree
from .queue_rows import Rider

MASKS_KEPT = 64  # sets of tokens that may end a sample: an engine sees a few


class Walk:
    """Draws for many riders in one call. For a tree that keeps whole distributions in the CPU's memory."""

    def __init__(self, kernels: ctypes.CDLL, tree: PrefixTree) -> None:
        self.kernels, self.tree = kernels, tree
        self._work = array("d", bytes(8 * tree.vocabulary))
        self._masks: dict[frozenset[int], array[int]] = {}
        self._tokens, self._nodes, self._logprobs = array("i"), array("i"), array("f")

    def _mask(self, ends: frozenset[int]) -> int:
        """The address of one byte a token: 1 where the token is one of `ends`."""
        mask = self._masks.get(ends)
        if mask is None:
            mask = self._masks[ends] = array("B", bytes(self.tree.vocabulary))
            for token in ends:
                if 0 <= token < len(mask):
                    mask[token] = 1
        return mask.buffer_info()[0]

    def __call__(
        self, nodes: list[int], riders: list[Rider]
    ) -> Iterator[tuple[Rider, list[int], list[float], list[int], int]]:
        """What riders on known `nodes` draw: tokens, their log-probabilities, the nodes they were drawn at, each `[T]`,
        T >= 1, and the node that the last token leads to, 0 where it isn't there yet.

        Drawing stops at a node that isn't known, and after a token at which it has to be looked at whether the sample ends.
        """
        tree, count = self.tree, len(riders)
        if len(self._masks) > MASKS_KEPT:
            self._masks.clear()
        rooms = array("q", [len(rider.draws) - len(rider.tokens) for rider in riders])
        most = sum(rooms)
        if most > len(self._tokens):
            self._tokens, self._nodes = array("i", bytes(4 * most)), array("i", bytes(4 * most))
            self._logprobs = array("f", bytes(4 * most))
        starts, lengths, children = array("i", nodes), array("i", bytes(4 * count)), array("i", bytes(4 * count))
        uniforms = array("Q", [rider.draws.buffer_info()[0] + 8 * len(rider.tokens) for rider in riders])
        temperatures = array("d", [rider.call.request.temperature for rider in riders])
        ends = array("Q", [self._mask(rider.call.ends) for rider in riders])
        assert tree.next_logprobs is not None
        total = self.kernels.walk(
            ctypes.byref(tree.trie),
            tree.next_logprobs.data_ptr(),
            tree.vocabulary,
            WHOLE,
            tree.clock,
            count,
            *(
                column.buffer_info()[0]
                for column in (
                    *(starts, uniforms, temperatures, rooms, ends, self._work),
                    *(self._tokens, self._logprobs, self._nodes, lengths, children),
                )
            ),
        )
        tokens, logprobs = self._tokens[:total].tolist(), self._logprobs[:total].tolist()
        passed, begin = self._nodes[:total].tolist(), 0
        for rider, length, child in zip(riders, lengths, children, strict=True):
            end = begin + length
            yield rider, tokens[begin:end], logprobs[begin:end], passed[begin:end], child
            begin = end
