"""Supervised fine-tuning on the student's own good responses, in rounds (expert iteration, Anthony et al. 2017).

`rft` takes the right responses as they are: rejection-sampling fine-tuning (Yuan et al. 2023). `legacy` weighs the best
response of each question by its reward (reward-weighted regression, Peters & Schaal 2007). Question tokens weigh nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from trl import SFTConfig

from ..config.train import ExpertConfig
from .fsdp import FsdpTrainer
from .models import Economy, keep_precision, restore_adapter, round_arguments, trained_state
from .rows import RowsOfRound, TrainRow
from .sft import WeightedCollator, WeightedSFTTrainer

NO_ROW = {"input_ids": [0], "weights": [0.0]}  # what the loader counts, and what an idle step holds


class RoundSFTTrainer(FsdpTrainer, WeightedSFTTrainer):
    """Weighted SFT whose batches come from rounds: round k's rows are asked for at its first update, not earlier.

    A data loader fetches ahead, which would search with weights that are one update old, so the loader only counts and
    the batches are put in here.

    A round takes `updates_per_round` steps of the schedule, whose places are those of its checkpoints. Where its rows are
    fewer, the steps after them are idle: no forward, no gradient, so that the optimiser changes nothing. They repeat the
    round's mean loss and its last gradient norm, for the log.
    """

    def __init__(self, *, updates_per_round: int, rows_of_round: RowsOfRound, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.updates_per_round, self.rows_of_round = updates_per_round, rows_of_round
        self._rows: list[dict[str, Any]] = []
        self._losses: list[torch.Tensor] = []  # of the round's forwards
        self._idle, self._norm = False, torch.zeros(())

    def get_batch_samples(self, epoch_iterator: Any, num_batches: int, device: torch.device) -> Any:
        super().get_batch_samples(epoch_iterator, num_batches, device)
        round_number, update = divmod(self.state.global_step, self.updates_per_round)
        if update == 0:
            self._rows = [weighted_row(row) for row in self.rows_of_round(round_number)]
            self._losses, self._norm = [], torch.zeros(())
        size = self.args.per_device_train_batch_size
        first = update * num_batches
        parts = [self._rows[i * size : (i + 1) * size] for i in range(first, first + num_batches)]
        self._idle = not parts[0]
        if self._idle:
            parts = [[NO_ROW]] * num_batches
        batches = [self.data_collator(part) for part in parts]
        return batches, self._get_num_items_in_batch(batches, device)

    def training_step(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        if self._idle:
            return torch.stack(self._losses).mean() if self._losses else torch.zeros((), device=self.args.device)
        self._losses.append(super().training_step(*args, **kwargs).detach())
        return self._losses[-1]

    def _clip_grad_norm(self, model: Any) -> Any:
        if not self._idle:
            self._norm = super()._clip_grad_norm(model)
        return self._norm

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        if hasattr(self.model, "peft_config") and not self.is_fsdp_enabled:
            restore_adapter(self.model, Path(resume_from_checkpoint))
        else:
            super()._load_from_checkpoint(resume_from_checkpoint, model)


def weighted_row(row: TrainRow) -> dict[str, Any]:
    """A row in the form that `WeightedCollator` takes."""
    weights = [0.0] * len(row.prompt_ids) + [row.weight] * len(row.completion_ids)
    return {"input_ids": [*row.prompt_ids, *row.completion_ids], "weights": weights}


def make_expert_trainer(
    model: torch.nn.Module,
    tokenizer: Any,
    settings: ExpertConfig,
    *,
    rounds: int,
    rows_of_round: RowsOfRound,
    output_dir: Path,
    save_every_rounds: int,
    seed: int,
    callbacks: Sequence[Any] = (),
    economy: Economy = Economy(),  # noqa: B008
    ranks: int = 1,
) -> RoundSFTTrainer:
    """A trainer whose round k trains on `rows_of_round(k)`: `batch_size` rows an update, in order, for `updates_per_round`
    updates at most; or on this process's part of each minibatch where `ranks` share it."""
    updates = settings.updates_per_round
    size, parts = economy.split(settings.batch_size // ranks, "the method's batch_size")
    before = trained_state(model) if hasattr(model, "peft_config") else {}
    count = rounds * updates * settings.batch_size
    arguments = SFTConfig(
        output_dir=str(output_dir),
        per_device_train_batch_size=size,
        gradient_accumulation_steps=parts,
        max_length=None,
        dataset_kwargs={"skip_prepare_dataset": True},
        # The loader only counts: a resumed run has nothing to skip.
        ignore_data_skip=True,
        **economy.arguments(),
        **round_arguments(settings, model, rounds, updates, save_every_rounds, seed),
    )
    trainer = RoundSFTTrainer(
        updates_per_round=updates,
        rows_of_round=rows_of_round,
        model=model,
        args=arguments,
        train_dataset=Dataset.from_dict({name: [value] * count for name, value in NO_ROW.items()}),
        processing_class=tokenizer,
        data_collator=WeightedCollator(tokenizer.pad_token_id),
        callbacks=list(callbacks),
    )
    keep_precision(model, before)
    return trainer
