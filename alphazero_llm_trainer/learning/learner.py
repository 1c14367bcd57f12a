"""What is trained, and an update of it: the model, its optimiser and its schedule, through
accelerate.

accelerate has the devices, DDP, FSDP2 and the saved states. A minibatch may be computed in parts,
and shared by processes: each objective is a sum over tokens by the whole minibatch's total, so that
the parts' gradients add up to one mean.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from accelerate.utils import DistributedDataParallelKwargs
from transformers import get_scheduler

from ..config.train import OptimizerConfig
from ..errors import TrainingError
from ..policy.backend import GAP_MEAN
from .losses import Figures, mask_of, pad_rows
from .methods.base import Objective
from .models import MemoryOptions, checkpoint_layers, make_optimizer, without_dropout
from .ranks import ONE_RANK, Ranks, shard_on_cpus, shard_rows, uses_fsdp
from .saved_learner import SavedLearner
from .scoring import Scorer, Scores, choose_packing, score_rows
from .train_row import Minibatches, TrainRows

FINAL_SHARE = 0.05  # of the learning rate, where its cosine ends


@dataclass(frozen=True, slots=True)
class RateSchedule:
    """A linear warm-up over `warmup` updates to `rate`, a cosine to `final` of it at `total`."""

    rate: float
    warmup: int
    total: int
    final: float = FINAL_SHARE


class Learner(SavedLearner):
    """A model under training.

    Args:
        model: made trainable (`make_trainable`), or the objective's critic, trained alone; under
            FSDP a copy is sharded, and `publish` brings its weights back.
        objective: what is minimised.
        memory: precision, rows of a forward, optimiser, recomputed activations.
        schedule: of the learning rate.
        settings: rows of a minibatch, weight decay, the largest norm of a gradient.
        ranks: the processes that share each minibatch.
    """

    def __init__(
        self,
        model: Any,
        objective: Objective,
        memory: MemoryOptions,
        schedule: RateSchedule,
        settings: OptimizerConfig,
        ranks: Ranks = ONE_RANK,
    ) -> None:
        shard_on_cpus()
        if AcceleratorState._shared_state and AcceleratorState().mixed_precision != "no":
            # Another trainer in this process left accelerate's global state in its own precision.
            AcceleratorState._reset_state()
        handlers = [DistributedDataParallelKwargs(broadcast_buffers=False)]  # they are constants
        self.accelerator = Accelerator(
            cpu=not torch.cuda.is_available(), mixed_precision="no", kwargs_handlers=handlers
        )
        self.device = self.accelerator.device
        self.whole, self.objective, self.memory, self.ranks = model, objective, memory, ranks
        self.max_grad_norm, self.planned = settings.max_grad_norm, schedule.total
        self.updates, self.first_update, self.began = 0, 0, 0.0
        self.gaps = list[float]()  # of the tokens of a round's first update, nats
        rows = settings.batch_size // ranks.size
        if memory.micro_batch is not None:
            rows = min(rows, memory.micro_batch)
        self.rows_of_a_forward = max(rows - rows % objective.unit, objective.unit)
        self.sharded = uses_fsdp()
        inner = copy.deepcopy(model) if self.sharded else model
        if self.sharded and memory.autocast:
            inner = inner.float()  # the optimiser's copy, in full precision
        self.alone = model is objective.critic  # a value network or a PRM
        self.layers: Sequence[torch.nn.Module] = ()  # that are computed again
        if memory.checkpointing:
            self.layers = checkpoint_layers(inner.backbone if self.alone else inner)
        for layer in self.layers if objective.importance else ():
            without_dropout(layer)
        # Under FSDP a forward is one of all ranks, and packed rows make other numbers of them.
        self.pack = choose_packing(model, "off" if self.sharded else objective.pack, self.device)
        scorer = inner if self.alone else Scorer(inner, objective.value)
        self.config, self.dtype = inner.config, next(inner.parameters()).dtype
        beside = objective.extra().values()
        optimizer = make_optimizer(
            inner, beside, schedule.rate, settings.weight_decay, memory.eight_bit
        )
        self.scorer, self.optimizer = self.accelerator.prepare(scorer, optimizer)
        self.scorer.eval()  # but for an update
        self.schedule = get_scheduler(
            "cosine_with_min_lr",
            optimizer,
            num_warmup_steps=schedule.warmup,
            num_training_steps=schedule.total,
            scheduler_specific_kwargs={"min_lr_rate": schedule.final},
        )
        self.accelerator.register_for_checkpointing(self.schedule)
        self.accelerator.register_save_state_pre_hook(self.save_trained)
        self.accelerator.register_load_state_pre_hook(self.load_trained)

    # -- rounds ------------------------------------------------------------------------------------

    def begin(self, number: int, minibatches: Minibatches) -> dict[str, float]:
        """Round `number` trains on these rows. Returns figures of them."""
        self.first_update, self.gaps, self.began = self.updates, [], time.perf_counter()
        return self.objective.begin(
            self, [row for rows in minibatches for row in shard_rows(rows, self.ranks)], number
        )

    def end(self, share: float) -> dict[str, float]:
        """Publish the round's weights; the learning rate then stands where `share`, of the run, has
        it.

        Returns the seconds since `begin`, and the largest and the mean difference between the
        engine's log-probability of a sampled token and the learner's, in nats. Raises TrainingError
        where the mean is more than rounding: such rows are another policy's.
        """
        # A round that has few rows makes fewer updates: the schedule goes by rounds, or by tokens.
        while self.updates < round(share * self.planned):
            self.schedule.step()
            self.updates += 1
        self.publish()
        figures = {"update_seconds": time.perf_counter() - self.began}
        gaps = [gap for some in self.ranks.gather(self.gaps) for gap in some]
        if gaps:
            mean = math.fsum(gaps) / len(gaps)
            if not mean <= GAP_MEAN:
                raise TrainingError(
                    "the engine's log-probabilities of the tokens that it drew differ from the "
                    f"learner's by {mean:.3g} nats in the mean ({GAP_MEAN} at most): set "
                    "engine.dtype=float32 and train.precision=float32, and go on from the last "
                    "checkpoint"
                )
            figures |= {"engine_logprob_gap": max(gaps), "engine_logprob_gap_mean": mean}
        return figures

    # -- updates -----------------------------------------------------------------------------------

    def update(self, minibatch: TrainRows) -> dict[str, float]:
        """One update by a minibatch that all ranks have whole: score, loss, backward, clip, step.
        Returns its figures.
        """
        self.compute(minibatch)
        figures = self.clip()
        self.step()
        return figures

    def compute(self, minibatch: TrainRows) -> None:
        """Add up the gradients of this process's rows of a minibatch, as many as a forward takes at
        a time.
        """
        totals = self.objective.totals(minibatch)
        self.totals = torch.tensor((max(totals[0], 1e-8), *totals[1:]), device=self.device)
        # A token's share of a mean is less than float16 can hold: there the sum's gradient is
        # taken, and divided afterwards.
        self.scale = float(self.totals[0]) if self.dtype == torch.float16 else 1.0
        self.tokens = max(sum(row.own_tokens for row in minibatch), 1)
        parts = self.parts_of(shard_rows(minibatch, self.ranks))
        self.count = len(parts)
        self.sums: dict[str, Any] = {}
        # The ratio is to what the engine computes, which has no dropout.
        self.scorer.train(not self.objective.importance)
        for layer in self.layers:
            layer.training = True
        for i, part in enumerate(parts):
            with nullcontext() if i == self.count - 1 else self.accelerator.no_sync(self.scorer):
                scores = self.score(part)  # log-probabilities and values, with gradients
                loss, figures = self.objective.loss(part, scores, self.totals)  # losses.py
                self.backward(loss, scores, figures)

    def parts_of(self, rows: TrainRows) -> list[TrainRows]:
        """Rows by forward."""
        size = self.rows_of_a_forward
        return [rows[start : start + size] for start in range(0, len(rows), size)]

    def autocast(self) -> Any:
        """Products in bfloat16, over weights as they are."""
        return (
            torch.autocast(self.device.type, torch.bfloat16)
            if self.memory.autocast
            else nullcontext()
        )

    def score(self, rows: TrainRows) -> Scores:
        """Log-probabilities and entropies `[B, T]` of rows' responses under the weights of now,
        with gradients.
        """
        with self.autocast():
            scores = self.score_under(self.scorer, rows)
            beside = self.objective.values(rows)
        if beside is not None:
            scores = replace(scores, values=beside)
        mask = mask_of(rows, scores.logprobs)
        if self.objective.importance and self.updates == self.first_update:
            # Nothing is learnt yet: the engine's numbers, which the ratio is to, should be this
            # forward's.
            old = pad_rows([row.old_logprobs for row in rows], scores.logprobs)
            self.gaps += (scores.logprobs.detach() - old).abs()[mask > 0].tolist()
        return replace(scores, entropy=scores.entropy * mask)

    def score_under(self, scorer: Any, rows: TrainRows) -> Scores:
        """The same under another model of this shape."""
        if self.alone:
            values = scorer(rows)
            nothing = torch.zeros_like(values)  # it predicts no tokens
            return Scores(nothing, nothing, values=values)
        return score_rows(scorer, self.config, rows, self.pack, self.dtype, self.device)

    def backward(self, loss: torch.Tensor, scores: Scores, figures: Figures) -> None:
        """Add a part's gradients and figures to the minibatch's."""
        # DDP and FSDP take the mean of the ranks' gradients, and this is a part of the minibatch's
        # mean already.
        self.accelerator.backward(loss * self.ranks.size * self.scale)
        packed = scores.packed / self.count / self.ranks.size
        more = {
            "loss": loss,
            "entropy": scores.entropy.sum() / self.tokens,
            "packed_tokens": torch.tensor(packed, device=loss.device),
        }
        for name, value in (figures | more).items():
            self.sums[name] = self.sums.get(name, 0.0) + value.detach().float()

    def clip(self) -> dict[str, float]:
        """Scale the minibatch's gradients down to `max_grad_norm`, the critic's by a norm of their
        own.

        Returns the update's figures. Raises TrainingError where loss or gradient are not finite;
        the weights are then as they were.
        """
        sums = self.accelerator.reduce(torch.stack([*self.sums.values()])).tolist()
        figures = dict(zip(self.sums, sums, strict=True))
        if self.scale != 1.0:
            for parameter in self.scorer.parameters():
                if parameter.grad is not None:
                    parameter.grad /= self.scale
        beside = list(self.objective.extra().values())
        if beside:
            torch.nn.utils.clip_grad_norm_(beside, self.max_grad_norm)
        known = {id(p) for p in beside}
        policy = [p for p in self.scorer.parameters() if p.requires_grad and id(p) not in known]
        norm: Any = self.accelerator.clip_grad_norm_(policy, self.max_grad_norm)
        figures["grad_norm"] = float(norm.full_tensor() if hasattr(norm, "full_tensor") else norm)
        for name in ("loss", "grad_norm"):
            if not math.isfinite(figures[name]):
                raise TrainingError(
                    f"{name} is {figures[name]} at update {self.updates + 1}: "
                    "start again with a lower train.optimizer.learning_rate"
                )
        return figures | {"learning_rate": self.schedule.get_last_lr()[0]}

    def step(self) -> None:
        """Move the weights by the clipped gradients."""
        self.optimizer.step()
        self.schedule.step()
        self.optimizer.zero_grad()
        self.updates += 1
        self.scorer.eval()
