"""What the training of a value and of a process reward model share: forwards over tries, losses, the loop.

Both judge the steps of a question, all of them in one sequence (`rows.ValueRow`), on Hugging Face's trainer.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any, TypeVar, cast

import torch
from torch.nn import functional as F
from transformers import PrinterCallback, Trainer, TrainerCallback

from ..config.train import JudgeConfig
from ..errors import DataError, TrainingError
from ..policy.logistic import fit_logistic
from .memory import rows_of_a_forward, square_bytes
from .models import bare, learning_rate, load_trained_state, quiet_arguments, trained_state
from .rows import ValueRow

Watcher = Callable[[dict[str, float]], None]
Row = TypeVar("Row", bound=ValueRow)
POOL = 16  # batches whose rows are sorted by length together


def check(train: Sequence[Row], held_out: Sequence[Row]) -> None:
    """Raise DataError unless both sets have questions that teach something and share none."""
    for name, rows in (("training", train), ("held-out", held_out)):
        if not any(row.teaches for row in rows):
            raise DataError(
                f"no {name} question has anything to learn from: collect more trees, or for a PRM lower train.prm.margin"
            )
    both = {row.question for row in train} & {row.question for row in held_out}
    if both:
        raise DataError(f"{len(both)} questions are both in training and held out: split by question")


def questions_at_once(settings: JudgeConfig, model: Any, longest: int, logits: bool = False) -> int:
    """Questions of one forward of a judge over `model`: `train.SECTION.micro_batch`, or a divisor of the batch size for which
    what a forward keeps of rows of `longest` tokens, with `logits` their log-probabilities too, stays small."""
    batch, shape = settings.batch_size, bare(model).config
    if settings.micro_batch is not None:
        return min(settings.micro_batch, batch)
    inner = getattr(shape, "intermediate_size", None) or 4 * shape.hidden_size
    sizes = (shape.num_hidden_layers, shape.hidden_size, inner, shape.vocab_size if logits else 0)
    return rows_of_a_forward(batch, longest, *sizes, square_bytes(settings))


def longest(*sets: Sequence[ValueRow]) -> int:
    """Tokens of the longest row of all sets."""
    return max(len(row.token_ids) for rows in sets for row in rows)


def batches(rows: Sequence[Row], size: int) -> Iterator[list[int]]:
    """Indices of rows, rows of like length together."""
    order = sorted(range(len(rows)), key=lambda i: len(rows[i].token_ids))
    return (order[i : i + size] for i in range(0, len(order), size))


@torch.inference_mode()
def forward_rows(
    model: Any,
    rows: Sequence[Row],
    size: int,
    collate: Any,
    pick: Callable[[Any, int, Row], torch.Tensor],
    bfloat16: bool = False,
) -> list[torch.Tensor]:
    """For each row, what `pick` reads from the outputs of its batch (fp32, CPU); `collate.inputs` are the model's.

    `bfloat16`: products are computed in it, as in a training with `Economy.autocast`.
    """
    training = model.training
    model.eval()
    device = next(model.parameters()).device
    found: list[Any] = [None] * len(rows)
    for indices in batches(rows, size):
        inputs = collate([rows[i] for i in indices])
        with torch.autocast(device.type, torch.bfloat16, enabled=bfloat16):
            outputs = model(**{name: inputs[name].to(device) for name in collate.inputs})
        for at, i in enumerate(indices):
            found[i] = pick(outputs, at, rows[i]).float().cpu()
    model.train(training)
    return found


def over(total: torch.Tensor | None, weights: torch.Tensor) -> torch.Tensor:
    """What a weighted sum is divided by: all weights of an update, or these alone."""
    return (weights.sum() if total is None else total).clamp(min=1e-8)


def cross_entropy(
    logits: torch.Tensor, targets: torch.Tensor, weights: torch.Tensor, total: torch.Tensor | None = None
) -> torch.Tensor:
    """Binary cross-entropy (nats) with soft targets, weighted; all three have one shape. No weight at all gives 0.

    `total` is the sum of the weights of an update of which these are a part.
    """
    loss = F.binary_cross_entropy_with_logits(logits.float(), targets, reduction="none")
    return (loss * weights).sum() / over(total, weights)


def platt(logits: torch.Tensor, targets: torch.Tensor, weights: torch.Tensor) -> tuple[float, float]:
    """Scale and shift with the least cross-entropy of sigmoid(scale*logit + shift) (Platt 1999).

    Gives (1, 0) where that would turn the order of the states round.
    """
    x, y, w = (t.double().numpy() for t in (logits, targets, weights))
    scale, shift = fit_logistic(x[:, None], y, w).plain
    return (scale, shift) if scale >= 0 else (1.0, 0.0)


class Score(torch.nn.Linear):
    """A last layer in fp32 over hidden states of any precision: small updates are lost in bf16."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:  # the base class's name for it
        with torch.autocast(input.device.type, enabled=False):
            return super().forward(input.to(self.weight.dtype))


class LikeLengths(torch.utils.data.Sampler):
    """Each epoch a new order in which rows of like length meet in a batch, and batches come in random order.

    The library's own sampler goes from long to short: a drift that a short training doesn't recover from.
    """

    def __init__(self, rows: Sequence[ValueRow], size: int, seed: int) -> None:
        self.lengths, self.size = [len(row.token_ids) for row in rows], size
        self.rng = Random(seed)

    def __len__(self) -> int:
        return len(self.lengths)

    def __iter__(self) -> Iterator[int]:
        order = self.rng.sample(range(len(self.lengths)), len(self.lengths))
        pool = POOL * self.size
        pools = [sorted(order[i : i + pool], key=self.lengths.__getitem__) for i in range(0, len(order), pool)]
        made = [part[i : i + self.size] for part in pools for i in range(0, len(part), self.size)]
        # A short batch must stay last: the loader cuts the order into batches again.
        last = [made.pop(made.index(min(made, key=len)))]
        self.rng.shuffle(made)
        return (index for batch in made + last for index in batch)


class JudgeTrainer(Trainer):
    """Hugging Face's trainer over rows of like length. An update of several forwards is the update of one: each term of the
    loss is divided by its weights in all of them."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.model_accepts_loss_kwargs = True  # the losses are divided here

    def weights_of(self, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """The sum of weights of each of the loss's terms in one forward."""
        raise NotImplementedError

    def _get_num_items_in_batch(self, batch_samples: list, device: torch.device) -> torch.Tensor:
        return torch.stack([self.weights_of(batch) for batch in batch_samples]).sum(0).to(device)

    def _get_train_sampler(self, train_dataset: Any = None) -> Any:
        update = self.args.train_batch_size * self.args.gradient_accumulation_steps
        return LikeLengths(cast(Sequence[ValueRow], self.train_dataset), update, self.args.seed)

    def fit(self, watch: HeldOutWatch) -> float:
        """Train; the model ends with its best held-out weights. Returns the seconds of training alone."""
        self.add_callback(watch)
        self.remove_callback(PrinterCallback)
        began = time.perf_counter()
        self.train()
        seconds = time.perf_counter() - began - watch.paused
        load_trained_state(watch.model, watch.kept)
        watch.model.eval()
        return round(seconds, 1)


class HeldOutWatch(TrainerCallback):
    """Measures held-out questions now and then, keeps the best weights, stops when patience is used up.

    Args:
        model: what is trained.
        settings: `train.value` or `train.prm`.
        measure: gives a line of the curve from the last logged training loss.
        score: of a line, a figure and what decides where it is the same; higher is better.
        watch: told of each line.
        untrained: whether the weights as they came are measured, and may be the best ones.

    `paused` counts the seconds of measuring.
    """

    def __init__(
        self,
        model: Any,
        settings: JudgeConfig,
        measure: Callable[[float], dict[str, float]],
        score: Callable[[dict[str, float]], tuple[float, ...]],
        watch: Watcher,
        untrained: bool = False,
    ) -> None:
        self.model, self.settings, self.measure, self.score = model, settings, measure, score
        self.watch, self.untrained = watch, untrained
        self.curve: list[dict[str, float]] = []
        self.best: dict[str, float] = {}
        self.kept: dict[str, torch.Tensor] = {}
        self.worse, self.loss, self.paused = 0, float("nan"), 0.0

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.untrained:
            self.evaluate(0, control)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        control.should_log |= state.global_step >= state.max_steps

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        if "loss" in (logs or {}):  # every `evaluate_every` updates, and after the last one
            self.loss = self.finite("loss", float(logs["loss"]))
            self.evaluate(state.global_step, control)

    def evaluate(self, step: int, control: Any) -> None:
        began = time.perf_counter()
        line = {"step": float(step), **self.measure(self.loss)}
        self.finite("held-out loss", line["held_out_loss"])
        self.curve.append(line)
        self.watch(line)
        if not self.best or self.score(line) > self.score(self.best):
            self.best, self.worse, self.kept = line, 0, trained_state(self.model)
        else:
            self.worse += 1
            control.should_training_stop |= self.worse >= self.settings.patience
        self.paused += time.perf_counter() - began

    def finite(self, name: str, value: float) -> float:
        if not math.isfinite(value):
            raise TrainingError(f"the {name} is {value}: lower train.{self.settings.section}.learning_rate")
        return value


def judge_arguments(
    settings: JudgeConfig,
    model: torch.nn.Module,
    rows: int,
    out_dir: Path,
    seed: int,
    size: int,
    bfloat16: bool = False,
) -> dict[str, Any]:
    """The training arguments of transformers for a judge: `model` on so many `rows`, of which `size` make a forward."""
    updates = settings.epochs * math.ceil(rows / settings.batch_size)
    return quiet_arguments() | {
        "output_dir": str(out_dir),
        "num_train_epochs": settings.epochs,
        "per_device_train_batch_size": size,
        "gradient_accumulation_steps": settings.batch_size // size,
        "learning_rate": learning_rate(settings, model),
        "lr_scheduler_type": "cosine",
        "warmup_steps": min(settings.warmup_steps, updates // 4),
        "bf16": bfloat16,
        "use_cpu": not torch.cuda.is_available(),  # transformers refuses bf16 without a GPU that isn't declined
        "weight_decay": settings.weight_decay,
        "max_grad_norm": settings.max_grad_norm,
        "seed": seed,
        "save_strategy": "no",
        "logging_steps": settings.evaluate_every,
    }
