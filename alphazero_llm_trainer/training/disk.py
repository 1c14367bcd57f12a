"""How much a training run writes, from the sizes of its weights and the configuration: plain arithmetic, no torch."""

from __future__ import annotations

from dataclasses import dataclass

from ..config.train import TrainConfig

MB = 1e6


@dataclass(frozen=True, slots=True)
class DiskPlan:
    """What a run has still to write, in bytes: `checkpoints` of `checkpoint` each, the best weights, the student at its end.

    Journal and metrics come on top: `files.SPARE_BYTES` are left free for them.
    """

    checkpoints: int
    checkpoint: float
    best: float
    student: float

    @property
    def total(self) -> int:
        return int(self.checkpoints * self.checkpoint + self.best + self.student)

    @property
    def next(self) -> int:
        """The next checkpoint alone, with new best weights."""
        return int(self.checkpoint + self.best)

    def __str__(self) -> str:
        count = f"{self.checkpoints} checkpoint{'s' * (self.checkpoints != 1)} of {self.checkpoint / MB:,.0f} MB"
        return f"{self.total / MB:,.0f} MB: {count}, the best weights {self.best / MB:,.0f}, student/ {self.student / MB:,.0f}"


def disk_plan(
    train: TrainConfig,
    checkpoints: int,
    *,
    trained: float,
    student: float,
    layers: int,
    lora: bool,
    shards: float | None = None,
) -> DiskPlan:
    """What `checkpoints` take at most: what is trained and both moments of AdamW (in 8 bits they take less).

    Args:
        train: the configuration; PPO's critic is trained and kept, too.
        checkpoints: how many are still to come.
        trained: bytes of the policy's trained weights.
        student: bytes of the whole model as it is saved at the end.
        layers: of the model.
        lora: adapters are trained; they are saved beside the student at the end.
        shards: bytes of the trained weights of all ranks under FSDP, whose checkpoints have them twice; None without it.
    """
    critic = 0.0
    if train.method == "ppo":
        extra = (0 if lora else 1) if train.ppo.extra_layers is None else train.ppo.extra_layers
        critic = trained * (layers + extra) / layers
    checkpoint = 3 * (trained + critic) if shards is None else 4 * shards
    return DiskPlan(checkpoints, checkpoint, trained, student + (trained if lora else 0))
