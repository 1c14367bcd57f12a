"""Tokens out of tables of next-token log-probabilities: draws and the k likeliest, in C where the
kernels are built.
"""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Sequence

import numpy as np

from .prefix_tree import Pairs


class Sampler:
    """Reads rows of tables `[*, V]` (fp32, nats, C-contiguous). `kernels` None: numpy does it."""

    def __init__(self, kernels: ctypes.CDLL | None) -> None:
        self.kernels = kernels

    def uniforms(self, seed: int, index: int, count: int) -> array[float]:
        """`count` uniform numbers in [0, 1): the same for one seed and index whatever else is
        drawn.
        """
        if self.kernels is None or not 0 <= seed < 2**63:
            return array(
                "d",
                np.random.Generator(np.random.Philox(key=[seed, index])).random(count).tobytes(),
            )
        numbers = array("d", bytes(8 * count))
        self.kernels.uniforms(seed, index, count, numbers.buffer_info()[0])
        return numbers

    def draw(
        self, table: np.ndarray, rows: list[int], temperatures: list[float], uniforms: list[float]
    ) -> tuple[list[int], list[float]]:
        """A token for each (row, temperature, uniform number), and its log-probability at
        temperature 1.

        Temperature 0 takes the likeliest token (of equal ones the first). Otherwise the token is
        where the uniform number falls in the cumulated exp(log-probability / temperature). Draws of
        one row should be neighbours.
        """
        if self.kernels is None:
            return _draw(table, rows, temperatures, uniforms)
        count, vocabulary = len(rows), table.shape[1]
        index, warm, at = array("q", rows), array("d", temperatures), array("d", uniforms)
        tokens, logprobs, work = (
            np.empty(count, np.int32),
            np.empty(count, np.float32),
            np.empty(vocabulary),
        )
        self.kernels.draw(
            table.ctypes.data,
            vocabulary,
            count,
            index.buffer_info()[0],
            warm.buffer_info()[0],
            at.buffer_info()[0],
            work.ctypes.data,
            tokens.ctypes.data,
            logprobs.ctypes.data,
        )
        return tokens.tolist(), logprobs.tolist()

    def top(self, table: np.ndarray, rows: Sequence[int], k: int) -> list[Pairs]:
        """The k likeliest (token, log-probability) pairs of each row, likeliest first, of equal
        ones the first.
        """
        k = min(k, table.shape[1])
        if self.kernels is None:
            chosen = table[np.asarray(rows, dtype=np.int64)]
            ids = np.argsort(-chosen, axis=1, kind="stable")[:, :k]
            values = np.take_along_axis(chosen, ids, axis=1)
        else:
            index = array("q", rows)
            ids, values = np.empty((len(rows), k), np.int32), np.empty((len(rows), k), np.float32)
            self.kernels.top(
                table.ctypes.data,
                table.shape[1],
                len(rows),
                index.buffer_info()[0],
                k,
                ids.ctypes.data,
                values.ctypes.data,
            )
        return [
            tuple(zip(*pair, strict=True))
            for pair in zip(ids.tolist(), values.tolist(), strict=True)
        ]


def draw_nucleus(logprobs: np.ndarray, temperature: float, top_p: float, uniform: float) -> int:
    """The token where `uniform` falls in the nucleus of `logprobs` `[V]` (nats, temperature 1) at
    `temperature`: the fewest likeliest tokens whose probabilities add up to `top_p` or more
    (Holtzman et al. 2020); of equal ones the first. Temperature 0 takes the likeliest.
    """
    if temperature == 0:
        return int(logprobs.argmax())
    order = np.argsort(-logprobs, kind="stable")
    scaled = logprobs[order].astype(np.float64) / temperature
    sums = np.exp(scaled - scaled[0]).cumsum()
    size = int(sums.searchsorted(top_p * sums[-1])) + 1
    place = int(sums.searchsorted(uniform * sums[size - 1], side="right"))
    return int(order[min(place, size - 1)])


def _draw(
    table: np.ndarray, rows: list[int], temperatures: list[float], uniforms: list[float]
) -> tuple[list[int], list[float]]:
    """`Sampler.draw` in numpy."""
    tokens: list[int] = []
    row, temperature, sums = -1, 0.0, np.empty(0)
    for i, uniform in enumerate(uniforms):
        after = table[rows[i]]
        if temperatures[i] == 0:
            tokens.append(int(after.argmax()))
            continue
        if (rows[i], temperatures[i]) != (row, temperature):
            row, temperature = rows[i], temperatures[i]
            # Inverse transform: the first token whose cumulated p_T(a) = exp(l_a / T) / Z exceeds
            # the uniform number.
            sums = np.exp((after - after.max()).astype(np.float64) / temperature).cumsum()
        # Rounding may put the last sum at the number drawn: the last token is then the one.
        tokens.append(min(int(sums.searchsorted(uniform * sums[-1], side="right")), len(sums) - 1))
    return tokens, table[rows, tokens].tolist()
