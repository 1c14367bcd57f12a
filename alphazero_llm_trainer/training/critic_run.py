"""Training a value network or a PRM: on some questions, stopped and calibrated on others, reported
on the rest.

Both are a `Critic` trained by transformers' trainer under one set of arguments. They differ in the
loss: a value's is the binary cross-entropy of the mean outcome below each token, a PRM's
Bradley-Terry on pairs of steps after one prefix, by TRL.
"""

from __future__ import annotations

import copy
import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence
from transformers import (
    AutoModelForSequenceClassification,
    PrinterCallback,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)
from trl import RewardConfig, RewardTrainer
from trl.trainer.reward_trainer import DataCollatorForPreference

from ..config.load import Config
from ..config.train import CriticConfig, Rates
from ..engine.device import text_config
from ..errors import ConfigError, DataError, TrainingError
from ..eval.critic_figures import CHANCE, auc, blend, pair_accuracy
from ..live import Progress
from ..policy.adapters import bind
from ..policy.critic import Kind
from ..policy.student import Student
from .critic import Critic
from .critic_data import (
    Example,
    Question,
    StateRow,
    columns,
    example_of,
    read_questions,
    split_by_question,
    state_rows,
    with_step_labels,
)
from .losses import cross_entropy
from .models import (
    MemoryOptions,
    check_full,
    checkpoint_layers,
    load_trained_state,
    trained_state,
)

Line = dict[str, float]
PARTS = ("training", "validation", "test")
EXTRA_LAYERS = 2  # of a critic that is trained whole
MOST_PAIRS = 16  # of a question that a PRM learns from; the widest margins
PATIENCE = 4  # measurements without a better held-out loss before training stops
RATES = Rates(large=2e-5)
ROWS = 16  # of a forward that is only measured


# -- losses and calibration ------------------------------------------------------------------------


def mean_cross_entropy(
    logits: torch.Tensor, targets: torch.Tensor, weights: torch.Tensor
) -> torch.Tensor:
    """`losses.cross_entropy` as a weighted mean; all three have one shape. No weight gives 0."""
    return cross_entropy(logits, targets, weights, weights.sum().clamp(min=1e-8))


def bradley_terry(better: torch.Tensor, worse: torch.Tensor) -> torch.Tensor:
    """The mean of `-log sigmoid(r_better - r_worse)` over pairs `[P]` (nats)."""
    # softplus(x) = log(1 + exp(x)) = -log sigmoid(-x), which a large difference does not overflow.
    return F.softplus(worse - better).mean()


def platt(
    logits: torch.Tensor, targets: torch.Tensor, weights: torch.Tensor
) -> tuple[float, float]:
    """Scale and shift with the least cross-entropy of sigmoid(scale*logit + shift) over states
    `[N]` (Platt 1999).

    Gives (1, 0) where that would turn the order of the states round.
    """
    x, y, w = logits.double(), targets.double(), weights.double()
    line = torch.tensor([1.0, 0.0], dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.LBFGS(
        [line], max_iter=200, tolerance_grad=1e-9, line_search_fn="strong_wolfe"
    )

    def closure() -> torch.Tensor:
        optimiser.zero_grad()
        # A little ridge: states that are told apart without a mistake would take an endless scale.
        loss = mean_cross_entropy(line[0] * x + line[1], y, w) + 1e-6 * line.square().sum()
        loss.backward()
        return loss

    optimiser.step(closure)
    scale, shift = line.tolist()
    return (scale, shift) if scale >= 0 else (1.0, 0.0)


# -- trainers --------------------------------------------------------------------------------------


class ValueTrainer(Trainer):
    """The soft targets' cross-entropy, a mean over the questions of a forward."""

    def compute_loss(
        self,
        model: Any,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Any = None,
    ) -> Any:
        logits = model(inputs["rows"])  # [B, T]
        targets, weights = (
            pad_sequence(
                [torch.tensor(getattr(row, name)) for row in inputs["rows"]], batch_first=True
            )
            for name in ("targets", "weights")
        )
        loss = mean_cross_entropy(logits, targets.to(logits.device), weights.to(logits.device))
        return (loss, logits) if return_outputs else loss


def value_trainer(
    critic: Critic, questions: Sequence[list[StateRow]], arguments: dict[str, Any]
) -> Trainer:
    """A trainer on questions, each the rows of its states."""
    args = TrainingArguments(**arguments, remove_unused_columns=False)
    args._n_gpu = 1  # one process, one card: DataParallel would give each card all of the rows
    return ValueTrainer(
        model=critic,
        args=args,
        train_dataset=questions,
        data_collator=lambda batch: {"rows": [row for rows in batch for row in rows]},
    )


def pair_rows(example: Example) -> list[dict[str, list[int]]]:
    """`MOST_PAIRS` of a question's pairs at most, as TRL takes token ids: from the prompt on.

    Its text path would put an end token after every step.
    """
    widest = sorted(example.pairs, key=lambda pair: -example.pairs[pair])[:MOST_PAIRS]
    return [
        {
            "chosen_ids": [*example.prompt_ids, *better],
            "rejected_ids": [*example.prompt_ids, *worse],
        }
        for better, worse in widest
    ]


def prm_trainer(
    critic: Critic, student: Student, rows: list[dict[str, list[int]]], arguments: dict[str, Any]
) -> RewardTrainer:
    """TRL's reward trainer over the critic's own layers, on rows of `pair_rows`."""
    model = sequence_classifier(critic)
    if critic.shared:
        bind(model, student.model, critic.name)
    # A sequence's score is that of its last token that isn't padding: padding is a token that ends
    # no step.
    ends = {ids[-1] for row in rows for ids in row.values()}
    padding = next(token for token in range(len(ends) + 1) if token not in ends)
    trainer = RewardTrainer(
        model=model,
        args=RewardConfig(**arguments, max_length=None),
        train_dataset=Dataset.from_list(rows),
        processing_class=student.tokenizer,
        data_collator=DataCollatorForPreference(padding),
    )
    text_config(model).pad_token_id = padding
    return trainer


def sequence_classifier(critic: Critic) -> Any:
    """One of transformers' sequence classifiers over the critic's own layers; it has no weights
    beside them.
    """
    shape = copy.deepcopy(critic.config)
    shape.num_labels, shape.architectures = 1, None
    try:
        with torch.device("meta"):
            model: Any = AutoModelForSequenceClassification.from_config(shape)
    except ValueError as error:
        raise ConfigError(
            f"transformers has no sequence classifier of {shape.model_type} models: use another "
            "student for a PRM"
        ) from error
    setattr(model, model.base_model_prefix, critic.backbone)
    model.score = critic.score
    return model


def arguments_of(
    config: Config, critic: Critic, memory: MemoryOptions, count: int, tokens: int, out: Path
) -> dict[str, Any]:
    """The training arguments of transformers: `count` examples an epoch, of which the longest has
    so many tokens.
    """
    settings, cuda = config.train.optimizer, torch.cuda.is_available()
    batch, parameters = settings.batch_size, sum(p.numel() for p in critic.parameters())
    rows = memory.rows(batch, tokens)
    rows = max(size for size in range(1, rows + 1) if batch % size == 0)
    updates = settings.epochs * math.ceil(count / batch)
    return {
        "output_dir": str(out),
        "num_train_epochs": settings.epochs,
        "per_device_train_batch_size": rows,
        "gradient_accumulation_steps": batch // rows,
        "learning_rate": settings.rate(RATES, parameters, "lora" if critic.shared else "full"),
        "lr_scheduler_type": "cosine",
        "warmup_steps": min(settings.warmup, updates // 4),
        "bf16": memory.autocast,
        "fp16": cuda and critic.backbone.dtype == torch.float16,
        "use_cpu": not cuda,  # transformers refuses bf16 without a GPU that isn't declined
        "weight_decay": settings.weight_decay,
        "max_grad_norm": settings.max_grad_norm,
        **({"optim": "paged_adamw_8bit"} if memory.eight_bit else {}),
        "seed": config.seed,
        "save_strategy": "no",
        "logging_steps": config.train.evaluate_every,
        "logging_nan_inf_filter": False,
        "report_to": "none",
        "disable_tqdm": True,
        "gradient_checkpointing": False,  # TRL turns it on; `new_critic` has seen to it
    }


# -- held-out questions ----------------------------------------------------------------------------


class HeldOut:
    """One part of the questions, on which a critic is measured."""

    def __init__(self, examples: Sequence[Example], critic: Critic, autocast: bool) -> None:
        self.critic, self.autocast = critic, autocast
        self.states, self.pairs = columns(examples)
        self.rows: list[StateRow] = []
        self.places: list[tuple[int, int]] = []  # of each state: its row, and its place there
        for example in examples:
            rows, places = state_rows(example)
            self.places += [
                (len(self.rows) + places[ids][0], places[ids][1]) for ids in example.states
            ]
            self.rows += rows
        self.targets = torch.tensor(self.states.target, dtype=torch.float32)
        self.weights = torch.tensor([self.rows[row].weights[at] for row, at in self.places])

    @torch.inference_mode()
    def logits(self) -> torch.Tensor:
        """The critic's, of all states `[N]` (fp32, CPU)."""
        device = self.critic.score.weight.device
        self.critic.eval()
        by_row: list[torch.Tensor] = []
        for start in range(0, len(self.rows), ROWS):
            with torch.autocast(device.type, torch.bfloat16, enabled=self.autocast):
                by_row += self.critic(self.rows[start : start + ROWS]).float().cpu()
        return torch.stack([by_row[row][at] for row, at in self.places])

    def line(self, kind: Kind) -> Line:
        """The held-out loss (a value's cross-entropy, a PRM's pairs') and AUC."""
        logits = self.logits()
        if kind == "value":
            loss = mean_cross_entropy(logits, self.targets, self.weights)
        else:
            loss = bradley_terry(logits[self.pairs.better], logits[self.pairs.worse])
        return {
            "held_out_loss": float(loss),
            "held_out_auc": auc(logits.numpy(), self.states, draws=0).value,
        }


class Watch(TrainerCallback):
    """Measures validation questions now and then, keeps the weights with the least loss there, and
    ends a training whose patience is used up, or that the user asked to stop.

    Args:
        critic: what is trained.
        measure: the validation questions' figures, `held_out_loss` among them.
        show: takes each line of the curve.
        progress: shows the updates.
        stop: whether the user asked to stop.
    """

    def __init__(
        self,
        critic: torch.nn.Module,
        measure: Callable[[], Line],
        show: Callable[[Line], None],
        progress: Progress,
        stop: Callable[[], bool],
    ) -> None:
        self.critic, self.measure, self.show = critic, measure, show
        self.progress, self.stop = progress, stop
        self.best: Line = {}
        self.kept: dict[str, torch.Tensor] = {}
        self.worse = 0

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.progress.start(
            state.max_steps, unit="step", doing="training", held="after the step in hand"
        )

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.progress.at(state.global_step)
        control.should_log |= state.global_step >= state.max_steps
        control.should_training_stop |= self.stop()

    def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        loss = (kwargs.get("logs") or {}).get("loss")
        if loss is None or self.stop():  # every `evaluate_every` updates, and after the last one
            return
        line = {"step": float(state.global_step), "loss": float(loss), **self.measure()}
        if not math.isfinite(line["loss"] + line["held_out_loss"]):
            raise TrainingError(f"the loss is {loss}: lower train.optimizer.learning_rate")
        self.show(line)
        if not self.best or line["held_out_loss"] < self.best["held_out_loss"]:
            self.best, self.worse, self.kept = line, 0, trained_state(self.critic)
        else:
            self.worse += 1
            control.should_training_stop |= self.worse >= PATIENCE


# -- training --------------------------------------------------------------------------------------


def new_critic(student: Student, config: Config, kind: Kind) -> Critic:
    """A critic that starts as the policy and says 0 everywhere: one more adapter where the student
    trains adapters.
    """
    spec = student.spec
    trained = config.train.adapter or spec.adapter
    check_full(student.model, spec, trained)
    critic = Critic(
        student.model, spec.lora if trained == "lora" else None, kind, EXTRA_LAYERS, 0.0
    )
    if MemoryOptions.of(config, spec, student.model).checkpointing:
        checkpoint_layers(critic.backbone)
    return critic


def train_critic(
    kind: Kind,
    student: Student,
    config: Config,
    data: Sequence[Path],
    out: Path,
    progress: Progress,
    stop: Callable[[], bool] = lambda: False,
) -> tuple[Critic, dict[str, Any]]:
    """Train a critic on the trees of `data`; see the module. Returns the calibrated network and
    what its card says of it; `out` gets metrics.jsonl.

    Raises:
        DataError: the data are none for this kind, or too few.
        KeyboardInterrupt: the user asked to stop.
    """
    began, settings = time.perf_counter(), config.train.critic
    questions = read_questions(data, text_config(student.model).vocab_size)
    if kind == "value" and any(question.preferences for question in questions):
        raise DataError(
            "--data has step preferences, and a value learns from outcomes: "
            "name trees, or train a prm"
        )
    parts = dict(zip(PARTS, split_by_question(questions), strict=True))
    counts = {name: len(part) for name, part in parts.items()}
    sizes = ", ".join(f"{count:,} {name}" for name, count in counts.items())
    progress.say(f"{kind} over student {student.title}: {sizes} questions")
    progress.wait("rows for training")
    student.engine.sleep()  # nothing is searched from here on
    memory = MemoryOptions.of(config, student.spec, student.model)
    examples = {name: examples_of(parts[name], kind, student, settings) for name in PARTS[1:]}
    critic = new_critic(student, config, kind)
    validation, test = (HeldOut(examples[name], critic, memory.autocast) for name in PARTS[1:])
    out.mkdir(parents=True, exist_ok=True)
    metrics = out / "metrics.jsonl"
    metrics.unlink(missing_ok=True)

    def show(line: Line) -> None:
        with metrics.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        progress.say(
            f"step {line['step']:.0f}: loss {line['loss']:.4f}, held out "
            f"{line['held_out_loss']:.4f}, AUC {line['held_out_auc']:.3f}"
        )

    trainer = trainer_of(kind, critic, student, config, parts["training"], examples, out)
    watch = Watch(critic, lambda: validation.line(kind), show, progress, stop)
    trainer.add_callback(watch)
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    if stop():
        raise KeyboardInterrupt
    load_trained_state(critic, watch.kept)
    best = watch.best
    progress.wait("measuring")
    scale, shift = platt(validation.logits(), validation.targets, validation.weights)
    with torch.no_grad():
        critic.score.weight.mul_(scale)
        critic.score.bias.mul_(scale).add_(shift)
    card = {
        "kind": kind,
        **figures_of(kind, validation, test, config.seed),
        "best": best,
        "calibration": {"scale": scale, "shift": shift},
        "questions": counts,
        "pairs": {"validation": len(validation.pairs.better), "test": len(test.pairs.better)},
        "settings": config.train.model_dump(mode="json", include={"critic", "optimizer"}),
        "seconds": round(time.perf_counter() - began, 1),
    }
    return critic, card


def trainer_of(
    kind: Kind,
    critic: Critic,
    student: Student,
    config: Config,
    questions: Sequence[Question],
    held_out: Mapping[str, Sequence[Example]],
    out: Path,
) -> Trainer:
    """The trainer of a kind of critic on these questions. Raises DataError where a PRM has no pairs
    in some part.
    """
    settings, memory = config.train.critic, MemoryOptions.of(config, student.spec, student.model)

    def arguments(count: int, tokens: int) -> dict[str, Any]:
        return arguments_of(config, critic, memory, count, tokens, out)

    if kind == "value":
        searched = (
            example_of(question, student, settings, every_token=True) for question in questions
        )
        rows = [state_rows(example)[0] for example in searched]
        tokens = max(sum(len(row.completion_ids) for row in group) for group in rows)
        return value_trainer(critic, rows, arguments(len(rows), tokens))
    training = examples_of(questions, kind, student, settings)
    for name, some in {**held_out, "training": training}.items():
        if not any(example.pairs for example in some):
            raise DataError(
                f"no {name} question has a pair of steps: "
                "collect more trees, or lower train.critic.margin"
            )
    pairs = [row for example in training for row in pair_rows(example)]
    tokens = max(sum(map(len, row.values())) for row in pairs)
    return prm_trainer(critic, student, pairs, arguments(len(pairs), tokens))


def examples_of(
    part: Sequence[Question], kind: Kind, student: Student, settings: CriticConfig
) -> list[Example]:
    """The states of a part's questions: with their outcomes for a value, with steps' labels for a
    PRM.
    """
    examples = [example_of(question, student, settings) for question in part]
    if kind == "prm":
        examples = [with_step_labels(example, settings.least_outcomes) for example in examples]
    return examples


def figures_of(kind: Kind, validation: HeldOut, test: HeldOut, seed: int) -> dict[str, Any]:
    """A calibrated critic's verdict and weight by the validation questions, and its figures on the
    test questions.
    """
    value = validation.logits().double().sigmoid().numpy()
    ranked = auc(value, validation.states, seed)
    earned = ranked.low > CHANCE
    weight = blend(value, validation.states) if earned and kind == "value" else 1.0
    value = test.logits().double().sigmoid().numpy()
    figures = {"AUC": auc(value, test.states, seed)} | pair_accuracy(
        value, test.states, test.pairs, seed
    )
    return {
        "rollout_weight": 1.0 if math.isnan(weight) else weight,
        "earned": earned,
        "why": (
            f"AUC {ranked} over the states of {len(set(validation.states.question)):,} questions "
            f"{'beats' if earned else 'does not beat'} chance ({CHANCE})"
        ),
        "test": {name: list(astuple(figure)) for name, figure in figures.items()},
    }
