"""The losses, over log-probabilities (nats) of the responses' tokens: what a policy and its critic
are trained by.

Tensors are `[B, T]`, B rows of T response tokens, but for `total` and the losses, which are
numbers; `mask` tells which tokens are there. Advantages are `credit.py`'s. A loss is a sum over a
part of a minibatch over `total`, what the whole minibatch's mean is taken over, so that parts of it
and processes add up to one mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch.nn import functional as F

from .train_row import TrainRows

Figures = dict[str, torch.Tensor]
Loss = tuple[torch.Tensor, Figures]  # with what it is made of
TokenFigures = Sequence[Sequence[float]]  # of rows' tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Streams:
    """What rows' tokens feed into each term of a loss, row by row; a term without numbers is off.

    Args:
        likelihood: weights of the tokens' likelihoods.
        advantages: the policy gradient's, of tokens whose log-probabilities were `old`.
        kl: the reference policy's log-probabilities.
        returns: what PPO's critic is fitted to, whose estimates were `estimates`.
        targets: outcomes in [0, 1] of the states before the tokens, which count `value_weights`.
    """

    likelihood: TokenFigures = ()
    advantages: TokenFigures = ()
    old: TokenFigures = ()
    kl: TokenFigures = ()
    returns: TokenFigures = ()
    estimates: TokenFigures = ()
    targets: TokenFigures = ()
    value_weights: TokenFigures = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Coefficients:
    """Of a loss's terms: bounds of the policy gradient's and the value's ratios, and weights of the
    KL and of the value beside the policy.
    """

    clip_low: float = 0.0
    clip_high: float = 0.0
    kl: float = 0.0
    value: float = 1.0
    value_clip: float = 0.0


def objective_loss(
    streams: Streams,
    rows: TrainRows,
    logprobs: torch.Tensor,
    values: torch.Tensor | None,
    totals: torch.Tensor,
    by: Coefficients,
) -> Loss:
    """The sum of the terms whose streams have numbers, over the rows' own tokens alone, and its
    figures.

    Args:
        logprobs: of the rows' tokens, `[B, T]`.
        values: of the states before them, where a stream is a value's.
        totals: what the policy's mean and the value's are taken over.
    """
    mask = mask_of(rows, logprobs)
    # A token that a tool gave may be next to impossible: its ratio must not overflow.
    logprobs = logprobs.masked_fill(mask == 0, 0.0)

    def tensor(numbers: TokenFigures) -> torch.Tensor:
        return pad_rows(numbers, mask) * mask

    terms: list[torch.Tensor] = []
    figures: Figures = {}
    if streams.likelihood:
        terms.append(weighted_likelihood(logprobs, tensor(streams.likelihood), totals[0]))
    if streams.advantages:
        loss, figures = grpo_loss(
            logprobs,
            tensor(streams.old),
            tensor(streams.advantages),
            mask,
            totals[0],
            clip_low=by.clip_low,
            clip_high=by.clip_high,
            kl_coefficient=by.kl,
            reference=tensor(streams.kl) if streams.kl else None,
        )
        terms.append(loss)
    if values is not None and streams.returns:
        fitted = mask_of(rows, mask, "policy")
        estimates, returns = tensor(streams.estimates), tensor(streams.returns)
        value, more = value_loss(values, estimates, returns, fitted, totals[-1], by.value_clip)
        figures |= more | {"critic_loss": value}
        terms.append(by.value * value)
    if values is not None and streams.targets:
        weights = tensor(streams.value_weights)
        value = cross_entropy(values, tensor(streams.targets), weights, totals[-1])
        figures |= {"policy_loss": terms[0], "value_loss": value} if terms else {}
        terms.append(by.value * value)
    return sum(terms[1:], terms[0]), figures


def mask_of(rows: TrainRows, like: torch.Tensor, kind: str | None = None) -> torch.Tensor:
    """1 at the tokens `[B, T]` that are the policy's own, 0 at others and beyond a row's end; 0 too
    in padding, and in rows of another kind than `kind`.
    """
    kinds = ("policy", "demonstration") if kind is None else (kind,)
    own = [row.mask or (1.0,) * len(row.completion_ids) for row in rows]
    return pad_rows(
        [mask if row.kind in kinds else () for row, mask in zip(rows, own, strict=True)], like
    )


def pad_rows(values: TokenFigures, like: torch.Tensor) -> torch.Tensor:
    """Numbers of each row's tokens as a tensor in the shape of `like [B, T]`, 0 beyond a row's
    end.
    """
    tensor = torch.zeros(like.shape)
    for i, row in enumerate(values):
        tensor[i, : len(row)] = torch.tensor(row)
    return tensor.to(like.device)


def weighted_likelihood(
    logprobs: torch.Tensor, weights: torch.Tensor, total: torch.Tensor
) -> torch.Tensor:
    """`-sum(w * log p) / total`: supervised training where all weights are 1 and `total` is their
    sum.

    With the right responses of one's own it is rejection-sampling fine-tuning (Yuan et al. 2023)
    and expert iteration (Anthony et al. 2017), weighted by reward it is reward-weighted regression
    (Peters & Schaal 2007).
    """
    return -(weights * logprobs).sum() / total


def grpo_loss(
    logprobs: torch.Tensor,
    old: torch.Tensor,
    advantages: torch.Tensor,
    mask: torch.Tensor,
    total: torch.Tensor,
    *,
    clip_low: float,
    clip_high: float,
    kl_coefficient: float = 0.0,
    reference: torch.Tensor | None = None,
) -> Loss:
    """`sum(mask * (-min(rho*A, clip(rho)*A) + beta * rho * k3)) / total`, `[B, T]` inside, a number
    outside; `rho = p / p_old`, held from `1 - clip_low` to `1 + clip_high`.

    GRPO (Shao et al. 2024, equation 3; the minimum is Schulman et al. 2017, equation 7) as a mean
    over tokens and not over rows (DAPO, Yu et al. 2025, equation 8, whose clip-higher is a
    `clip_high` above `clip_low`). k3 (Schulman 2020), `p_ref/p - log(p_ref/p) - 1`, is an estimate
    of KL(p || p_ref) at each token that is never negative. It is multiplied by the ratio: then its
    mean, the figure `kl`, is the reverse KL, and so is its gradient (DeepSeek-V3.2). `total` is how
    many tokens the minibatch has.

    Returns the loss and figures, each a part of the minibatch's mean.
    """
    ratio = (logprobs - old).exp()
    free, bound = ratio * advantages, ratio.clamp(1.0 - clip_low, 1.0 + clip_high) * advantages
    loss = -torch.min(free, bound)
    figures = {"clip_fraction": ((bound < free) * mask).sum() / total}
    if reference is not None:
        gap = reference - logprobs
        kl = gap.exp() - gap - 1.0
        figures["kl"] = ((kl * ratio * mask).sum() / total).detach()
        loss = loss + kl_coefficient * kl * ratio
    return (loss * mask).sum() / total, figures


def cross_entropy(
    logits: torch.Tensor, targets: torch.Tensor, weights: torch.Tensor, total: torch.Tensor
) -> torch.Tensor:
    """`sum(w * -(z log V + (1 - z) log(1 - V))) / total` (nats), V = sigmoid(logit): the loss of a
    value in [0, 1] whose targets z may lie between.
    """
    loss = F.binary_cross_entropy_with_logits(logits.float(), targets, reduction="none")
    return (loss * weights).sum() / total


def bradley_terry(
    better: torch.Tensor, worse: torch.Tensor, total: torch.Tensor | float
) -> torch.Tensor:
    """`sum(-log sigmoid(r_better - r_worse)) / total` over pairs `[P]` (nats)."""
    # softplus(x) = log(1 + exp(x)) = -log sigmoid(-x), which a large difference does not overflow.
    return F.softplus(worse - better).sum() / total


def value_loss(
    values: torch.Tensor,
    old: torch.Tensor,
    returns: torch.Tensor,
    mask: torch.Tensor,
    total: torch.Tensor,
    clip: float,
) -> Loss:
    """Half the squared error of PPO's critic, the larger one of V and of V held within `clip` of
    its old estimate.

    The value clip of common implementations (Engstrom et al. 2020). `total` is how many of the
    minibatch's tokens the policy sampled.
    """
    held = old + (values - old).clamp(-clip, clip)
    free, bound = (values - returns) ** 2, (held - returns) ** 2
    figures = {"value_clip_fraction": ((bound > free) * mask).sum() / total}
    return 0.5 * (torch.max(free, bound) * mask).sum() / total, figures
