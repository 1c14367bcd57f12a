"""Supervised fine-tuning with a weight per token: for the embedded student, the control arm and the legacy trainer.

A row is `{"input_ids": [T] ints, "weights": [T] floats}`: the prompt `question + "\\n"`, then `solution + eos`. The
loss is `sum(w * nll) / sum(w)` over all tokens of an optimiser step, whatever the accumulation.
"""

from __future__ import annotations

import hashlib
import json
import platform
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from math import cos, pi
from pathlib import Path
from typing import Any

import torch
import transformers
import trl
from datasets import Dataset
from torch.utils.data import Sampler
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PrinterCallback,
    TrainerCallback,
)
from trl import SFTConfig, SFTTrainer

from ..errors import DataError, TrainingError
from ..files import sync_all, write_json
from ..policy.student import Student
from ..types import Task
from .head import project_labels_only
from .models import Economy, bare, load_trained_state, quiet_arguments, trained_state

Row = dict[str, list[Any]]
Evaluate = Callable[[torch.nn.Module], float]


@dataclass(frozen=True, slots=True)
class StudentShape:
    """The shape of the embedded student; positions are tokens, the rest is the usual Llama."""

    hidden_size: int = 128
    layers: int = 3
    heads: int = 4
    intermediate_size: int = 384
    max_positions: int = 1024


@dataclass(frozen=True, slots=True)
class SftSettings:
    """How to train. Steps are optimiser steps; `max_seconds` counts training without evaluations, None for no limit.

    The learning rate warms up linearly over `warmup_steps`, then falls by a cosine to `final_lr_ratio` of itself over
    the steps or the seconds, whichever are used up first.
    """

    steps: int = 3000
    batch_size: int = 16
    learning_rate: float = 3e-3
    warmup_steps: int = 50
    final_lr_ratio: float = 0.02
    weight_decay: float = 0.01
    adam_beta2: float = 0.98
    max_grad_norm: float = 1.0
    question_weight: float = 0.1
    evaluate_every: int = 300
    max_seconds: float | None = None
    seed: int = 0
    shape: StudentShape = field(default_factory=StudentShape)


def sft_rows(tasks: Iterable[Task], student: Student, question_weight: float = 0.1) -> list[Row]:
    """Rows of worked solutions: question tokens weigh `question_weight`, answer tokens 1."""
    rows: list[Row] = []
    for task in tasks:
        if task.solution is None:
            raise DataError(f"task {task.problem.id!r} has no worked solution to train on; leave it out.")
        prompt, answer = student.worked(task)
        weights = [question_weight] * len(prompt) + [1.0] * len(answer)
        rows.append({"input_ids": [*prompt, *answer], "weights": weights})
    return rows


def new_student(tokenizer: PreTrainedTokenizerBase, shape: StudentShape, seed: int) -> LlamaForCausalLM:
    """A randomly initialised student in fp32 for a tokenizer; the seed alone decides its weights."""
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=shape.hidden_size,
        intermediate_size=shape.intermediate_size,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        max_position_embeddings=shape.max_positions,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return LlamaForCausalLM(config)


class WeightedCollator:
    """Pads rows on the right: `input_ids`, `attention_mask`, `labels` and `weights`, all `[B, T]`.

    Labels are -100 on padding and where the weight is 0.
    """

    def __init__(self, pad_token_id: int) -> None:
        self.pad_token_id = pad_token_id

    def __call__(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, torch.Tensor]:
        shape = (len(rows), max(len(row["input_ids"]) for row in rows))
        ids = torch.full(shape, self.pad_token_id)
        mask, weights = torch.zeros(shape, dtype=torch.long), torch.zeros(shape)
        for i, row in enumerate(rows):
            length = len(row["input_ids"])
            ids[i, :length] = torch.tensor(row["input_ids"])
            weights[i, :length] = torch.tensor(row["weights"])
            mask[i, :length] = 1
        # The last layer, which is wide, is computed where there is a label.
        labels = torch.where(weights > 0, ids, -100)
        return {"input_ids": ids, "attention_mask": mask, "labels": labels, "weights": weights}


class WeightedSFTTrainer(SFTTrainer):
    """TRL's SFT trainer with a weight per token, for rows collated by `WeightedCollator`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        project_labels_only(bare(self.model))

    def create_model_card(self, *args: Any, **kwargs: Any) -> None:
        """None of TRL's: the student's folder gets the run's own (`train.model_card`)."""

    def _get_num_items_in_batch(self, batch_samples: list, device: torch.device) -> torch.Tensor:
        # The sum of weights takes the place of the token count, so that accumulation and ranks divide by one total. A
        # row's first token is never predicted.
        total = torch.stack([batch["weights"][:, 1:].sum() for batch in batch_samples]).sum().to(device)
        return self.accelerator.gather(total).sum() if self.args.world_size > 1 else total

    def compute_loss(
        self,
        model: torch.nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: torch.Tensor | int | None = None,
    ) -> Any:
        """The weighted loss of a batch; `num_items_in_batch` is the sum of weights over the whole optimiser step."""
        weights = inputs["weights"][:, 1:]
        outputs = model(**{k: v for k, v in inputs.items() if k != "weights"}, use_cache=False, fused_lm_head=True)
        total = weights.sum() if num_items_in_batch is None else torch.as_tensor(num_items_in_batch)
        # A batch in which every weight is 0 gives a finite zero.
        loss = -(weights * outputs.log_probs).sum() / total.clamp(min=1e-8)
        if num_items_in_batch is not None:
            loss = loss * self.accelerator.num_processes  # DDP averages the gradients over the ranks
        self._record_metrics(inputs, outputs, "train" if model.training else "eval")
        return (loss, outputs) if return_outputs else loss

    def _record_metrics(self, inputs: dict[str, Any], outputs: Any, mode: str) -> None:
        metrics = self._metrics[mode]
        sums = torch.stack([outputs.label_mask.sum(), outputs.entropy.detach().sum(), outputs.is_top1.sum()])
        tokens, entropy, right = self.accelerator.gather_for_metrics(sums[None]).sum(0).tolist()
        metrics["entropy"].append(entropy / max(tokens, 1))
        metrics["mean_token_accuracy"].append(right / max(tokens, 1))
        if mode == "train":
            self._total_train_tokens += self.accelerator.gather_for_metrics(inputs["attention_mask"].sum()).sum().item()
        metrics["num_tokens"] = [self._total_train_tokens]


class UpdatesByLength(Sampler[int]):
    """Rows in a random order, each update's own sorted by length, so that rows of a forward need little padding.

    An update's loss is one sum over its rows, so which of them share a forward doesn't matter.
    """

    def __init__(self, lengths: Sequence[int], batch_size: int, seed: int) -> None:
        self.lengths, self.batch_size, self.seed, self.epoch = lengths, batch_size, seed, 0

    def __len__(self) -> int:
        return len(self.lengths)

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        generator = torch.Generator().manual_seed(self.seed + self.epoch)
        order = torch.randperm(len(self.lengths), generator=generator)
        for update in order.split(self.batch_size):
            yield from sorted(update.tolist(), key=self.lengths.__getitem__)


class TimedSFTTrainer(WeightedSFTTrainer):
    """Adds the settings' learning-rate schedule, which also follows the clock, and the stop at `max_seconds`."""

    def __init__(
        self,
        settings: SftSettings,
        evaluate: Evaluate | None = None,
        callbacks: Sequence[TrainerCallback] = (),
        **kwargs: Any,
    ) -> None:
        self.settings = settings
        self.watch = _TimedWatch(settings, evaluate)
        super().__init__(**kwargs, callbacks=[self.watch, *callbacks])
        self.remove_callback(PrinterCallback)  # the caller has the losses; a library doesn't print

    def _get_train_sampler(self, train_dataset: Any = None) -> Any:
        if self.args.gradient_accumulation_steps == 1:
            return super()._get_train_sampler(train_dataset)
        rows: Any = self.train_dataset if train_dataset is None else train_dataset
        return UpdatesByLength(list(map(len, rows["input_ids"])), self.settings.batch_size, self.settings.seed)

    def create_scheduler(self, num_training_steps: int, optimizer: torch.optim.Optimizer | None = None) -> Any:
        settings, watch = self.settings, self.watch

        def factor(step: int) -> float:
            if step < settings.warmup_steps:
                return (step + 1) / settings.warmup_steps
            done = step / max(num_training_steps, 1)
            if settings.max_seconds is not None:
                done = max(done, watch.trained_seconds() / settings.max_seconds)
            low = settings.final_lr_ratio
            return low + (1 - low) * 0.5 * (1 + cos(pi * min(done, 1.0)))

        chosen: Any = self.optimizer if optimizer is None else optimizer
        self.lr_scheduler = torch.optim.lr_scheduler.LambdaLR(chosen, factor)
        return self.lr_scheduler


class _TimedWatch(TrainerCallback):
    """Keeps the training clock, stops at the limit, evaluates now and then and keeps the best weights."""

    def __init__(self, settings: SftSettings, evaluate: Evaluate | None) -> None:
        self.settings, self.evaluate = settings, evaluate
        self.started: float | None = None
        self.paused = 0.0
        self.history: list[dict[str, float]] = []
        self.best: dict[str, torch.Tensor] | None = None

    def trained_seconds(self) -> float:
        return 0.0 if self.started is None else time.monotonic() - self.started - self.paused

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.started = time.monotonic()

    def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        limit = self.settings.max_seconds
        if limit is not None and self.trained_seconds() >= limit:
            control.should_training_stop = True
        last = state.global_step >= state.max_steps or control.should_training_stop
        if self.evaluate is not None and (last or state.global_step % self.settings.evaluate_every == 0):
            self._evaluate(model, state.global_step)

    def _evaluate(self, model: Any, step: int) -> None:
        trained, began = self.trained_seconds(), time.monotonic()
        model.eval()
        accuracy = self.evaluate(model)  # type: ignore[misc]
        model.train()
        if not self.history or accuracy > max(h["accuracy"] for h in self.history):
            self.best = trained_state(model)
        self.history.append({"step": step, "seconds": round(trained, 1), "accuracy": accuracy})
        self.paused += time.monotonic() - began

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        loss = (logs or {}).get("loss")
        if loss is not None and not torch.isfinite(torch.tensor(float(loss))):
            raise TrainingError(f"the loss is {loss} at step {state.global_step}; lower the learning rate.")


def train_student(
    model: PreTrainedModel,
    rows: Sequence[Row],
    tokenizer: PreTrainedTokenizerBase,
    settings: SftSettings,
    *,
    out_dir: Path,
    evaluate: Evaluate | None = None,
    economy: Economy = Economy(),  # noqa: B008
    callbacks: Sequence[TrainerCallback] = (),
) -> dict[str, Any]:
    """Train `model` in place on `rows`; with `evaluate` (higher is better) it ends with its best evaluated weights.

    Returns steps, seconds (training alone), the loss history (every 50 steps) and the evaluations.
    """
    if not rows:
        raise DataError("the list of demonstrations is empty; give at least one row.")
    forward, use_cache = model.__dict__.get("forward"), model.config.use_cache
    trainer = TimedSFTTrainer(
        settings,
        evaluate,
        callbacks,
        model=model,
        args=_trainer_arguments(settings, out_dir, economy),
        train_dataset=Dataset.from_list(list(rows)),
        processing_class=tokenizer,
        data_collator=WeightedCollator(tokenizer.pad_token_id),
    )
    trainer.train()
    # TRL patches `forward` on the instance and switches the cache off; undone, the model can be copied, saved and
    # trained again as it came.
    model.config.use_cache = use_cache
    if forward is None:
        model.__dict__.pop("forward", None)
    else:
        model.__dict__["forward"] = forward
    if trainer.watch.best is not None:
        load_trained_state(model, trainer.watch.best)
    model.eval()
    return {
        "steps": trainer.state.global_step,
        "seconds": round(trainer.watch.trained_seconds(), 1),
        "losses": [[h["step"], h["loss"]] for h in trainer.state.log_history if "loss" in h],
        "evaluations": trainer.watch.history,
    }


def run_sft(
    settings: SftSettings,
    out_dir: Path,
    *,
    rows: Sequence[Row],
    tokenizer: PreTrainedTokenizerBase,
    evaluate: Evaluate | None = None,
    measure: Callable[[torch.nn.Module], Mapping[str, Any]] | None = None,
    model: PreTrainedModel,
    facts: Mapping[str, Any] | None = None,
    economy: Economy = Economy(),  # noqa: B008
    save: Callable[[Any, Path], None] = lambda model, folder: model.save_pretrained(folder),
    callbacks: Sequence[TrainerCallback] = (),
) -> dict[str, Any]:
    """Train a student and write weights, tokenizer and `manifest.json` to `out_dir`.

    `measure` is called once, on the finished model, for the test figures; `facts` are added as they are (say, which
    tasks the rows are); `save` writes the weights. Returns the manifest.
    """
    result = train_student(
        model, rows, tokenizer, settings, out_dir=out_dir, evaluate=evaluate, economy=economy, callbacks=callbacks
    )
    evaluations = result.pop("evaluations")
    manifest = {
        "command": " ".join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        "seed": settings.seed,
        "settings": asdict(settings),
        "rows": len(rows),
        "data_sha256": hashlib.sha256(json.dumps(list(rows), sort_keys=True).encode()).hexdigest(),
        "parameters": sum(p.numel() for p in model.parameters()),
        "steps": result["steps"],
        "seconds": result["seconds"],
        "loss": result["losses"][-1][1] if result["losses"] else None,
        "validation_accuracy": max((e["accuracy"] for e in evaluations), default=None),
        "evaluations": evaluations,
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "trl": trl.__version__,
        },
        **(facts or {}),
        **(measure(model) if measure is not None else {}),
    }
    out_dir.mkdir(parents=True, exist_ok=True)
    save(model, out_dir)
    tokenizer.save_pretrained(out_dir)
    sync_all(out_dir)
    write_json(out_dir / "manifest.json", manifest)
    return manifest


def _trainer_arguments(settings: SftSettings, out_dir: Path, economy: Economy) -> SFTConfig:
    size, parts = economy.split(settings.batch_size, "train.sft.batch_size")
    return SFTConfig(
        output_dir=str(out_dir),
        max_steps=settings.steps,
        per_device_train_batch_size=size,
        gradient_accumulation_steps=parts,
        learning_rate=settings.learning_rate,
        weight_decay=settings.weight_decay,
        adam_beta2=settings.adam_beta2,
        max_grad_norm=settings.max_grad_norm,
        seed=settings.seed,
        max_length=None,
        dataset_kwargs={"skip_prepare_dataset": True},
        remove_unused_columns=False,
        # TRL's defaults suit large models: fp32 is faster on a CPU, and there is nothing to checkpoint in a small one.
        **economy.arguments(),
        save_strategy="no",
        logging_steps=50,
        **quiet_arguments(),
    )
