"""Tokens out of tables of next-token log-probabilities: draws and the k likeliest, on the host (in
C where the kernels are built) or on the device that has the tables.
"""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch

from ..types import TokenPairs
from .without import Taken, place_of, temper_logprob

UNIT = 2.0**40  # of whole numbers, the chance of a row's likeliest token
# Chances that a device computes at a time: what it needs of them is about 200 MB.
CHANCES_TILE = 2**23


class Special(NamedTuple):
    """A draw that leaves the tail or sequences out, or tells its log-probability at a temperature
    too: see `GenerateRequest`.
    """

    top_p: float = 1.0
    taken: Taken | None = None
    tempered: float | None = None


class Draws(NamedTuple):
    """Tokens, their log-probabilities at temperature 1, and by draw those at `Special.tempered`."""

    tokens: list[int]
    logprobs: list[float]
    tempered: dict[int, float]


class Sampler:
    """Reads rows of tables `[*, V]` (fp32, nats, contiguous) in the CPU's memory. `kernels` None:
    numpy does it.
    """

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
        self,
        table: torch.Tensor,
        rows: list[int],
        temperatures: list[float],
        uniforms: list[float],
        special: Mapping[int, Special],
    ) -> Draws:
        """A token for each (row, temperature, uniform number), and its log-probability.

        Temperature 0 takes the likeliest token (of equal ones the first). Otherwise the token is
        where the uniform number falls in the cumulated exp(log-probability / temperature), of the
        draws in `special` in what they leave of it. Draws of one row should be neighbours.
        """
        host = table.numpy()
        tokens, logprobs = self._draw(table, rows, temperatures, uniforms)
        drawn = Draws(tokens, logprobs, {})
        for i, (top_p, taken, warm) in special.items():
            after, token = host[rows[i]], tokens[i]
            if taken is not None:
                left = taken.draw(after, temperatures[i], uniforms[i])
                token = token if left is None else left
            elif top_p < 1:
                token = draw_nucleus(after, temperatures[i], top_p, uniforms[i])
            tokens[i], logprobs[i] = token, float(after[token])
            if warm is not None:
                drawn.tempered[i] = temper_logprob(after, warm, token)
        return drawn

    def _draw(
        self, table: torch.Tensor, rows: list[int], temperatures: list[float], uniforms: list[float]
    ) -> tuple[list[int], list[float]]:
        """Tokens of whole distributions, and their log-probabilities."""
        if self.kernels is None:
            return _draw_tokens(table.numpy(), rows, temperatures, uniforms)
        count, vocabulary = len(rows), table.shape[1]
        index, warm, at = array("q", rows), array("d", temperatures), array("d", uniforms)
        tokens = np.empty(count, np.int32)
        logprobs = np.empty(count, np.float32)
        work = np.empty(vocabulary)
        self.kernels.draw(
            table.data_ptr(),
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

    def top(self, table: torch.Tensor, rows: Sequence[int], k: int) -> list[TokenPairs]:
        """The k likeliest (token, log-probability) pairs of each row, likeliest first, of equal
        ones the first.
        """
        k = min(k, table.shape[1])
        if self.kernels is None:
            chosen = table.numpy()[np.asarray(rows, dtype=np.int64)]
            ids = np.argsort(-chosen, axis=1, kind="stable")[:, :k]
            values = np.take_along_axis(chosen, ids, axis=1)
        else:
            index = array("q", rows)
            ids, values = np.empty((len(rows), k), np.int32), np.empty((len(rows), k), np.float32)
            self.kernels.top(
                table.data_ptr(),
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


class DeviceSampler(Sampler):
    """The same tokens from tables on any device: only they and their log-probabilities come to the
    host.

    Chances are added up as whole numbers, whose sums don't depend on their order: a draw is the
    same in any batch, and on any device but for what `exp` rounds.
    """

    @torch.inference_mode()
    def draw(
        self,
        table: torch.Tensor,
        rows: list[int],
        temperatures: list[float],
        uniforms: list[float],
        special: Mapping[int, Special],
    ) -> Draws:
        """A token for each (row, temperature, uniform number), and its log-probability."""
        numbers = torch.tensor([temperatures, uniforms], dtype=torch.float64).to(table.device)
        index = torch.tensor(rows).to(table.device)
        size = max(1, CHANCES_TILE // table.shape[1])
        if not special and not any(temperatures):
            best = [table[part].max(1) for part in index.split(size)]
            tokens = [token for part in best for token in part.indices.tolist()]
            return Draws(tokens, [value for part in best for value in part.values.tolist()], {})
        parts = [
            _draw_on_device(
                table[index[start : start + size]],
                numbers[0, start : start + size],
                numbers[1, start : start + size],
                {i - start: cut for i, cut in special.items() if start <= i < start + size},
            )
            for start in range(0, len(rows), size)
        ]
        tokens, logprobs, warm = torch.cat(parts, dim=1).tolist()
        told = {i: warm[i] for i, cut in special.items() if cut.tempered is not None}
        return Draws([int(token) for token in tokens], logprobs, told)

    @torch.inference_mode()
    def top(self, table: torch.Tensor, rows: Sequence[int], k: int) -> list[TokenPairs]:
        """The k likeliest (token, log-probability) pairs of each row, likeliest first, of equal
        ones the first.
        """
        words = table.shape[1]
        found: list[TokenPairs] = []
        for part in torch.tensor(rows).split(max(1, CHANCES_TILE // words)):
            chosen = table[part.to(table.device)]  # [n, V], none above 0
            # A number's bits without its sign grow as it falls; of equal ones the first is least.
            order = chosen.abs().view(torch.int32).long() * words
            order += torch.arange(words, device=table.device)
            ids = order.topk(min(k, words), largest=False).indices  # [n, k]
            pairs = torch.stack((ids.double(), chosen.gather(1, ids).double()), dim=2)
            found += [tuple((int(token), value) for token, value in row) for row in pairs.tolist()]
        return found


def _draw_on_device(
    after: torch.Tensor,
    temperatures: torch.Tensor,
    uniforms: torch.Tensor,
    special: Mapping[int, Special],
) -> torch.Tensor:
    """Tokens, log-probabilities and those at `Special.tempered` `[3, n]` of draws `[n]` from
    `after` `[n, V]`.
    """
    device = after.device

    def on(numbers: Sequence[float], dtype: torch.dtype = torch.long) -> torch.Tensor:
        return torch.tensor(numbers, dtype=dtype).to(device)

    shares = [
        (i, token, child.share)
        for i, each in special.items()
        if each.taken is not None
        for token, child in each.taken.after.items()
    ]
    nuclei = {i: each.top_p for i, each in special.items() if each.top_p < 1 and not each.taken}
    warm = {i: each.tempered for i, each in special.items() if each.tempered is not None}
    chances = _relative_chances(after, temperatures)
    if shares:  # q(a) is proportional to p_T(a) (1 - share(s a))
        i, token, share = zip(*shares, strict=True)
        taken, left = (on(i), on(token)), after.clone()
        weights = 1 - on(share, torch.float32)
        # What is taken wholly goes before the maximum: beside it little of the others would be
        # left.
        left[taken] = left[taken].where(weights > 0, -torch.inf)
        left = _relative_chances(left, temperatures)
        left[taken] *= weights
        most = left.amax(1, keepdim=True)  # [n, 1]
        chances = (left / most).where(most > 0, chances)
    masses = chances.mul_(UNIT).long()
    sums = masses.cumsum(1)  # [n, V]
    limits = sums[:, -1:].clone()
    if nuclei:
        own = on([*nuclei])
        order = after[own].argsort(dim=1, descending=True, stable=True)  # [p, V]
        sums[own] = masses[own].gather(1, order).cumsum(1)
        least = on([*nuclei.values()], torch.float64)[:, None]
        # The fewest likeliest tokens whose chances add up to top_p or more.
        last = torch.searchsorted(sums[own], (least * limits[own]).ceil().long())
        limits[own] = sums[own].gather(1, last)
    places = torch.minimum((uniforms[:, None] * limits).long(), limits - 1)
    tokens = torch.searchsorted(sums, places, right=True).clamp(max=after.shape[1] - 1)
    if nuclei:
        tokens[own] = order.gather(1, tokens[own])
    tokens = tokens.where(temperatures[:, None] > 0, after.argmax(1, keepdim=True))
    made = torch.zeros(3, len(after), dtype=torch.float64, device=device)
    made[0], made[1] = tokens[:, 0], after.gather(1, tokens)[:, 0]
    if warm:
        own = on([*warm])
        scaled = after[own].double() / on([*warm.values()], torch.float64)[:, None]
        made[2, own] = (scaled.gather(1, tokens[own]) - scaled.logsumexp(1, keepdim=True))[:, 0]
    return made


def _relative_chances(logprobs: torch.Tensor, temperatures: torch.Tensor) -> torch.Tensor:
    """p_T(a) / p_T(likeliest) = exp((l_a - l_likeliest) / T) of `[n, V]`; 0 where nothing is
    possible.
    """
    most = logprobs.amax(1, keepdim=True).clamp(min=torch.finfo(torch.float32).min)
    scale = temperatures.where(temperatures > 0, 1.0).float()[:, None]
    return (logprobs - most).div_(scale).exp_()


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
    return int(order[place_of(uniform, sums[:size])])


def _draw_tokens(
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
            # p_T(a) = exp(l_a / T) / Z
            sums = np.exp((after - after.max()).astype(np.float64) / temperature).cumsum()
        tokens.append(place_of(uniform, sums))
    return tokens, table[rows, tokens].tolist()
