"""GRPO through TRL's trainer, fed by search trees: rounds of rows with their own advantages and log-probabilities."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

from ..config.train import GrpoConfig
from .attention import NAME
from .fsdp import FsdpTrainer
from .head import project_labels_only
from .models import Economy, bare, keep_precision, restore_adapter, round_arguments, trained_state
from .packing import PackingPlan, Work, plan, spread, tensors, together
from .rows import RowsOfRound

PACKS_FROM = 0.9  # share of the flat batch's work that packing must come down to, under `pack: auto`
Trainer = TypeVar("Trainer", bound="SearchGRPOTrainer")
MASKS_IN_4D = ("sdpa", "eager", NAME)  # attention implementations that take an additive mask of our own


class SearchGRPOTrainer(FsdpTrainer, GRPOTrainer):
    """TRL's GRPO with per-token advantages and the student-snapshot log-probabilities of each row.

    TRL computes advantages from rewards of equal-sized groups and ignores given log-probabilities where vLLM doesn't
    generate; rows from trees bring both. The loss is TRL's own (clipped ratio, KL to the reference); its
    log-probabilities come from packed sequences where rows share their beginnings.

    `pack` is "auto", "on" or "off"; the logged `packed_tokens` is the share of a flat batch's tokens that was computed.
    """

    pack = "off"
    together = False
    importance = True  # the ratio to the log-probabilities at sampling; False: a ratio of 1

    def create_model_card(self, *args: Any, **kwargs: Any) -> None:
        """None of TRL's: the student's folder gets the run's own (`train.model_card`)."""

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> torch.Tensor:
        """TRL's mean over the tokens of a forward, made one over the tokens of the whole minibatch, all ranks' rows."""
        loss = super()._compute_loss(model, inputs)
        parts, ranks = self.minibatch(inputs), self.accelerator.num_processes
        if len(parts) == 1 and ranks == 1:
            return loss
        here, total = counted(inputs), sum((counted(part) for part in parts), torch.zeros_like(counted(inputs)))
        total = self.accelerator.gather(total).sum() / ranks  # DDP takes the mean of the ranks' gradients
        return loss * (here * len(parts) / total.clamp(min=1.0))

    def minibatch(self, inputs: dict[str, Any]) -> list[dict[str, Any]]:
        """The forwards of the minibatch under way, of which `inputs` is one."""
        arguments: Any = self.args
        parts: int = arguments.gradient_accumulation_steps
        buffered: Any = self._buffered_inputs
        if parts == 1:
            return [inputs]
        first = self._step % arguments.steps_per_generation // parts * parts
        return buffered[first : first + parts]

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        if hasattr(self.model, "peft_config") and not self.is_fsdp_enabled:
            restore_adapter(self.model, Path(resume_from_checkpoint))
        else:
            super()._load_from_checkpoint(resume_from_checkpoint, model)

    def _get_per_token_logps_and_entropies(
        self,
        model: Any,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        logits_to_keep: int,
        batch_size: int | None = None,
        compute_entropy: bool = False,
        compute_aux_loss: bool = False,
        **more: Any,
    ) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
        """TRL's, with one forward over each question's trie of responses. Images and router losses go the flat way."""
        flat = super()._get_per_token_logps_and_entropies
        if self.pack == "off" or compute_aux_loss or any(value is not None for value in more.values()):
            return flat(
                model, input_ids, attention_mask, logits_to_keep, batch_size, compute_entropy, compute_aux_loss, **more
            )
        found = []
        size = batch_size or len(input_ids)
        for ids, mask in zip(input_ids.split(size), attention_mask.split(size), strict=True):
            made = self.plan(model, ids, mask, logits_to_keep)
            if made is None:
                found.append(flat(model, ids, mask, logits_to_keep, None, compute_entropy)[:2])
                continue
            outputs = []
            for batch in made.batches:
                given = tensors(batch, self.accelerator.unwrap_model(model).dtype, ids.device)
                with self.accelerator.autocast():
                    outputs.append(model(**given, fused_lm_head=True))
            entropies = spread([one.entropy for one in outputs], made.where) if compute_entropy else None
            found.append((spread([one.log_probs for one in outputs], made.where), entropies))
        entropies = torch.cat([one for _, one in found if one is not None]) if compute_entropy else None
        return torch.cat([logps for logps, _ in found]), entropies, None

    def plan(self, model: Any, input_ids: torch.Tensor, attention_mask: torch.Tensor, keep: int) -> PackingPlan | None:
        """How to pack these rows `[B, P + T]`, or None where the flat batch is cheaper."""
        config = self.accelerator.unwrap_model(model).config
        if config._attn_implementation not in MASKS_IN_4D:
            return None
        made = plan_padded(input_ids, attention_mask, keep, Work.of(config))
        chosen = self.pack == "on" or made.work < PACKS_FROM * made.flat_work
        if torch.is_grad_enabled():
            self._metrics["train"]["packed_tokens"].append(made.tokens / made.flat_tokens if chosen else 1.0)
        return made if chosen else None

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        out = super()._generate_and_score_completions(inputs)
        snapshot = out.pop("sampling_per_token_logps")
        mask = out["completion_mask"]
        advantages = torch.zeros_like(snapshot)
        for i, row in enumerate(inputs):
            advantages[i, : len(row["token_advantages"])] = torch.tensor(row["token_advantages"])
        out["advantages"] = advantages
        out["group"] = torch.tensor([row["group"] for row in inputs], device=mask.device)
        recomputed = out.get("old_per_token_logps")
        if recomputed is not None:
            # The engine's numbers against the trainer's own forward, on tokens that count.
            gap = ((recomputed - snapshot).abs() * mask).max()
            self._metrics["train"]["engine_logprob_gap"].append(gap.item())
        if self.importance:
            out["old_per_token_logps"] = snapshot
        else:
            out.pop("old_per_token_logps", None)  # TRL takes the log-probabilities of the moment then
        of_policy = torch.tensor([row["kind"] == "policy" for row in inputs], device=mask.device)[:, None]
        counted = advantages[(mask.bool() & of_policy) & (advantages != 0)]
        if len(counted) > 1:
            self._metrics["train"]["advantage_mean"].append(counted.mean().item())
            self._metrics["train"]["advantage_std"].append(counted.std().item())
        out["of_policy"] = of_policy
        return out

    def _prepare_inputs(self, generation_batch: Any) -> Any:
        """TRL's, with each question's rows in one minibatch where packing gains by that (TRL deals them out)."""
        before = self._buffered_inputs
        inputs = super()._prepare_inputs(generation_batch)
        fresh = self._buffered_inputs
        if not self.together or fresh is before or fresh is None or self.pack == "off":
            return inputs
        steps = len(fresh)
        minibatches = steps // self.args.gradient_accumulation_steps
        joined = {
            key: torch.cat([part[key] for part in fresh]) if torch.is_tensor(value) and value.ndim else value
            for key, value in fresh[0].items()
        }
        order = torch.tensor(together(joined["group"].tolist(), minibatches), device=joined["group"].device)
        self._buffered_inputs = [
            {key: value[rows] if torch.is_tensor(value) and value.ndim else value for key, value in joined.items()}
            for rows in order.chunk(steps)
        ]
        return self._buffered_inputs[self._step % steps]


def counted(inputs: dict[str, Any]) -> torch.Tensor:
    """How many tokens the loss of a batch is over."""
    return inputs["completion_mask"].sum().float()


def plan_padded(input_ids: torch.Tensor, attention_mask: torch.Tensor, keep: int, work: Work) -> PackingPlan:
    """The plan of a flat batch `[B, P + T]` as TRL pads it: prompts on the left, the last `keep` columns completions."""
    ids, mask = input_ids.cpu().numpy(), attention_mask.cpu().numpy().astype(bool)
    prompts = [row[seen] for row, seen in zip(ids[:, :-keep], mask[:, :-keep], strict=True)]
    completions = [row[seen] for row, seen in zip(ids[:, -keep:], mask[:, -keep:], strict=True)]
    return plan(prompts, completions, keep, work)


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
    trainer_class: type[Trainer] = SearchGRPOTrainer,  # type: ignore[assignment]
    economy: Economy = Economy(),  # noqa: B008
    ranks: int = 1,
) -> Trainer:
    """A trainer whose generation step k asks `rows_of_round(k)` for exactly `rows_per_round` rows.

    `rows_per_round` must be a multiple of the batch size, which must be one of `ranks`: so many processes share a minibatch,
    and `rows_of_round` gives each its part. One round is `epochs * rows_per_round / batch_size` updates.
    """
    updates = settings.epochs * rows_per_round // settings.batch_size
    size, parts = economy.split(settings.batch_size // ranks, "the method's batch_size")

    def rollout(prompts: list[str], trainer: Any) -> dict[str, list[Any]]:
        # Every prompt of a generation batch is its round's number, so a resumed run asks for the right round.
        rows = rows_of_round(int(prompts[0]))
        prompts_of: dict[tuple[int, ...], int] = {}
        return {
            "prompt_ids": [list(row.prompt_ids) for row in rows],
            "completion_ids": [list(row.completion_ids) for row in rows],
            "logprobs": [list(row.old_logprobs) for row in rows],
            "token_advantages": [list(row.advantages) for row in rows],
            "row_reward": [max(row.advantages, key=abs) for row in rows],
            "kind": [row.kind for row in rows],
            "outcome": [row.reward for row in rows],
            "group": [prompts_of.setdefault(row.prompt_ids, len(prompts_of)) for row in rows],
        }

    def row_reward(prompts: Any, completions: Any, row_reward: list[float], **kwargs: Any) -> list[float | None]:
        # TRL insists on a reward function; the advantages that count are the rows' own.
        return list(row_reward)

    arguments = GRPOConfig(
        output_dir=str(output_dir),
        per_device_train_batch_size=size,
        gradient_accumulation_steps=parts,
        steps_per_generation=rows_per_round // (size * ranks),
        num_iterations=settings.epochs,
        num_generations=rows_per_round,
        max_completion_length=max_completion,
        shuffle_dataset=False,
        temperature=1.0,
        beta=settings.kl_coefficient,
        use_bias_correction_kl=settings.kl_unbiased,
        epsilon=settings.clip_low,
        epsilon_high=settings.clip_high,
        loss_type="bnpo",
        scale_rewards="none",
        **economy.arguments(),
        **round_arguments(settings, model, rounds, updates, save_every_rounds, seed),
    )
    before = trained_state(model) if hasattr(model, "peft_config") else {}
    trainer = trainer_class(
        model=model,
        reward_funcs=row_reward,
        args=arguments,
        train_dataset=Dataset.from_dict({"prompt": [str(k) for k in range(rounds)]}),
        processing_class=tokenizer,
        rollout_func=rollout,
        callbacks=list(callbacks),
    )
    keep_precision(model, before)
    for scored in (trainer.model, trainer.ref_model):
        if scored is not None:
            project_labels_only(bare(scored), trainer.temperature)
    # Under FSDP a forward is one of all ranks, and packed rows make other numbers of them.
    trainer.pack, trainer.together = "off" if trainer.is_fsdp_enabled else settings.pack, settings.together
    trainer.importance = settings.importance
    return trainer
