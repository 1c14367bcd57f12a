"""Rejection-sampling fine-tuning (Yuan et al. 2023): likelihood of right responses, sampled
ones."""

from __future__ import annotations

from dataclasses import replace

from .expert_iteration import EXPERT_ITERATION

RFT = replace(
    EXPERT_ITERATION,
    name="rft",
    flagged=True,
    ruled=False,
)
