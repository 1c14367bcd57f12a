"""What a learner leaves and takes up again: checkpoints, and whole weights under FSDP."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from ..errors import StorageError, first_line
from .methods.base import Objective
from .ranks import Ranks

WEIGHTS_FILE = "model.safetensors"  # what is trained, in a checkpoint
# Torch's and safetensors' words for a full disk.
DISK_WORDS = ("PytorchStreamWriter", "unexpected pos", "I/O error")


class SavedLearner:
    """A learner's weights outside of an update. `learner.Learner` sets the fields."""

    accelerator: Accelerator
    whole: Any
    scorer: Any
    objective: Objective
    ranks: Ranks
    sharded: bool
    updates: int

    @torch.no_grad()
    def publish(self) -> None:
        """Under FSDP: put the shards' weights together in the model that this process searches
        with. All ranks must call it.
        """
        if not self.sharded:
            return
        own = dict(self.whole.named_parameters())
        part: Any
        for name, part in self.scorer.named_parameters():
            if part.requires_grad:
                own[name.removeprefix("model.")].copy_(part.full_tensor())

    def save(self, folder: Path) -> None:
        """What the next update depends on: trained weights, optimiser, schedule, random numbers.
        All ranks call it.
        """
        try:
            self.accelerator.save_state(str(folder))
        except (RuntimeError, SafetensorError) as error:
            if not any(word in str(error) for word in DISK_WORDS):
                raise
            raise StorageError(
                f"{folder} can't be written ({first_line(error)}): free some space, then go on"
            ) from error
        self.accelerator.wait_for_everyone()

    def restore(self, folder: Path, updates: int) -> None:
        """Go on from what `save` wrote after so many updates."""
        self.accelerator.load_state(str(folder))
        self.updates = updates
        self.publish()

    def checkpoint_tensors(self) -> dict[str, torch.nn.Parameter]:
        """What a checkpoint has, by name: what is trained of the policy, and the critic (which may
        be an adapter in it).
        """
        extra = self.objective.extra()
        critics = {id(p) for p in extra.values()}
        named = self.whole.named_parameters()
        policy = {name: p for name, p in named if p.requires_grad and id(p) not in critics}
        return policy | {f"critic.{name}": p for name, p in extra.items()}

    def save_trained(self, models: list[Any], weights: list[Any], folder: str) -> None:
        """accelerate would save all weights, a frozen base's too. FSDP's shards are saved by
        accelerate, before this.
        """
        weights.clear()
        if not self.sharded and self.ranks.first:
            # No copies.
            kept = {name: p.detach().contiguous() for name, p in self.checkpoint_tensors().items()}
            save_file(kept, Path(folder) / WEIGHTS_FILE)

    @torch.no_grad()
    def load_trained(self, models: list[Any], folder: str) -> None:
        models.clear()
        if not self.sharded:
            state = load_file(Path(folder) / WEIGHTS_FILE)
            for name, parameter in self.checkpoint_tensors().items():
                parameter.copy_(state[name])
