"""The losses, over log-probabilities (nats) of the responses' tokens: what a policy and its critic
are trained by.

Tensors are `[B, T]`, B rows of T response tokens, but for `total` and the losses, which are
numbers; `mask` tells which tokens are there. Advantages are `credit.py`'s. A loss is a sum over a
part of a minibatch over `total`, what the whole minibatch's mean is taken over, so that parts of it
and processes add up to one mean.
"""

from __future__ import annotations

import torch
from torch.nn import functional as F

Figures = dict[str, torch.Tensor]


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


def clipped_policy_loss(
    logprobs: torch.Tensor, old: torch.Tensor, advantages: torch.Tensor, low: float, high: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """`-min(rho * A, clip(rho, 1 - low, 1 + high) * A)` of each token, and the ratio `rho = p /
    p_old`: `[B, T]` both.

    Schulman et al. 2017, equation 7; `high` above `low` is DAPO's clip-higher (Yu et al. 2025).
    """
    ratio = (logprobs - old).exp()
    bounded = ratio.clamp(1.0 - low, 1.0 + high)
    return -torch.min(ratio * advantages, bounded * advantages), ratio


def kl_estimate(logprobs: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    """k3 (Schulman 2020): `p_ref/p - log(p_ref/p) - 1`, an estimate of KL(p || p_ref) at each token
    that is never negative.
    """
    gap = reference - logprobs
    return gap.exp() - gap - 1.0


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
) -> tuple[torch.Tensor, Figures]:
    """`sum(mask * (-min(rho*A, clip(rho)*A) + beta * rho * k3)) / total`, `[B, T]` inside, a number
    outside.

    GRPO (Shao et al. 2024, equation 3) as a mean over tokens and not over rows (DAPO, Yu et al.
    2025, equation 8). The KL of a token is multiplied by its ratio: then its mean, the figure
    `kl`, is the reverse KL, and so is its gradient (DeepSeek-V3.2). `total` is how many tokens the
    minibatch has.

    Returns the loss and figures, each a part of the minibatch's mean.
    """
    loss, ratio = clipped_policy_loss(logprobs, old, advantages, clip_low, clip_high)
    clipped = ((ratio < 1.0 - clip_low) & (advantages < 0)) | (
        (ratio > 1.0 + clip_high) & (advantages > 0)
    )
    figures = {"clip_fraction": (clipped * mask).sum() / total}
    if reference is not None:
        kl = kl_estimate(logprobs, reference)
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
) -> tuple[torch.Tensor, Figures]:
    """Half the squared error of PPO's critic, the larger one of V and of V held within `clip` of
    its old estimate.

    The value clip of common implementations (Engstrom et al. 2020). `total` is how many of the
    minibatch's tokens the policy sampled.
    """
    held = old + (values - old).clamp(-clip, clip)
    free, bound = (values - returns) ** 2, (held - returns) ** 2
    figures = {"value_clip_fraction": ((bound > free) * mask).sum() / total}
    return 0.5 * (torch.max(free, bound) * mask).sum() / total, figures
