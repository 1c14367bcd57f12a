"""GRPO through TRL's trainer, fed by search trees: rounds of rows with their own advantages and log-probabilities."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

from ..config import GrpoConfig
from .rows import RowsOfRound


class SearchGRPOTrainer(GRPOTrainer):
    """TRL's GRPO with per-token advantages and the student-snapshot log-probabilities of each row.

    TRL computes advantages from rewards of equal-sized groups and ignores given log-probabilities where vLLM doesn't
    generate; rows from trees bring both. The loss is TRL's own (clipped ratio, KL to the reference).
    """

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        out = super()._generate_and_score_completions(inputs)
        snapshot = out.pop("sampling_per_token_logps")
        mask = out["completion_mask"]
        advantages = torch.zeros_like(snapshot)
        for i, row in enumerate(inputs):
            advantages[i, : len(row["token_advantages"])] = torch.tensor(row["token_advantages"])
        out["advantages"] = advantages
        recomputed = out.get("old_per_token_logps")
        if recomputed is not None:
            # The engine's numbers against the trainer's own forward, on tokens that count.
            gap = ((recomputed - snapshot).abs() * mask).max()
            self._metrics["train"]["engine_logprob_gap"].append(gap.item())
        out["old_per_token_logps"] = snapshot
        return out


def make_grpo_trainer(
    model: Any,
    tokenizer: Any,
    settings: GrpoConfig,
    *,
    rounds: int,
    rows_per_round: int,
    rows_of_round: RowsOfRound,
    output_dir: Path,
    save_every_rounds: int,
    seed: int,
    max_completion: int,
    callbacks: Sequence[Any] = (),
) -> SearchGRPOTrainer:
    """A trainer whose generation step k asks `rows_of_round(k)` for exactly `rows_per_round` rows.

    `rows_per_round` must be a multiple of the batch size. One round is `epochs * rows_per_round / batch_size` updates.
    """
    updates = settings.epochs * rows_per_round // settings.batch_size

    def rollout(prompts: list[str], trainer: Any) -> dict[str, list[Any]]:
        # Every prompt of a generation batch is its round's number, so a resumed run asks for the right round.
        rows = rows_of_round(int(prompts[0]))
        return {
            "prompt_ids": [list(row.prompt_ids) for row in rows],
            "completion_ids": [list(row.completion_ids) for row in rows],
            "logprobs": [list(row.old_logprobs) for row in rows],
            "token_advantages": [list(row.advantages) for row in rows],
            "row_reward": [max(row.advantages, key=abs) for row in rows],
        }

    def row_reward(prompts: Any, completions: Any, row_reward: list[float], **kwargs: Any) -> list[float | None]:
        # TRL insists on a reward function; the advantages that count are the rows' own.
        return list(row_reward)

    arguments = GRPOConfig(
        output_dir=str(output_dir),
        max_steps=rounds * updates,
        per_device_train_batch_size=settings.batch_size,
        gradient_accumulation_steps=1,
        steps_per_generation=rows_per_round // settings.batch_size,
        num_iterations=settings.epochs,
        num_generations=rows_per_round,
        max_completion_length=max_completion,
        shuffle_dataset=False,
        temperature=1.0,
        beta=settings.kl_coefficient,
        epsilon=settings.clip_low,
        epsilon_high=settings.clip_high,
        loss_type="bnpo",
        scale_rewards="none",
        learning_rate=settings.learning_rate,
        lr_scheduler_type="cosine_with_min_lr",
        lr_scheduler_kwargs={"min_lr_rate": 0.05},
        warmup_steps=min(settings.warmup_rounds, max(rounds // 4, 0)) * updates,
        adam_beta2=0.98,
        weight_decay=settings.weight_decay,
        max_grad_norm=settings.max_grad_norm,
        seed=seed,
        data_seed=seed,
        bf16=False,
        gradient_checkpointing=False,
        remove_unused_columns=False,
        dataloader_pin_memory=torch.cuda.is_available(),
        save_strategy="steps",
        save_steps=save_every_rounds * updates,
        logging_strategy="steps",
        logging_steps=updates,
        logging_nan_inf_filter=False,
        report_to="none",
        disable_tqdm=True,
    )
    return SearchGRPOTrainer(
        model=model,
        reward_funcs=row_reward,
        args=arguments,
        train_dataset=Dataset.from_dict({"prompt": [str(k) for k in range(rounds)]}),
        processing_class=tokenizer,
        rollout_func=rollout,
        callbacks=list(callbacks),
    )
