"""Does an update fit into memory?"""

from __future__ import annotations

from contextlib import nullcontext

import torch

from ..config.train import LARGE
from ..engine.device import release_cache, within_memory
from .learner import Learner
from .train_row import TrainRows

LESS = (
    "set train.micro_batch=1, train.gradient_checkpointing=on or train.adapter=lora, lower "
    "search.max_tokens, or use a smaller student"
)


def try_update(learner: Learner, minibatch: TrainRows) -> None:
    """Compute the gradients of the last rows of a minibatch beside the optimiser's states, and
    leave everything as it was: what doesn't fit into memory shows before a run begins. On a CPU
    for large models alone.

    Raises ConfigError where it doesn't fit.
    """
    cuda = learner.device.type == "cuda"
    if not cuda and sum(p.numel() for p in learner.whole.parameters()) < LARGE:
        return
    rows = minibatch[-2 * learner.rows_of_a_forward * learner.ranks.size :]  # gradients add up
    trained = [p for group in learner.optimizer.param_groups for p in group["params"]]
    with (
        within_memory(f"an update of {learner.rows_of_a_forward} rows at once", LESS),
        torch.random.fork_rng([learner.device] if cuda else []),
        # DDP has no part in it; FSDP would keep gradients apart from the parameters.
        nullcontext() if learner.sharded else learner.accelerator.no_sync(learner.scorer),
    ):
        # AdamW's two moments; those in 8 bits are paged out.
        moments = [] if learner.memory.eight_bit else [torch.empty_like(p) for p in trained * 2]
        learner.compute(rows)
    del moments
    learner.optimizer.zero_grad()
    learner.scorer.eval()
    release_cache()
