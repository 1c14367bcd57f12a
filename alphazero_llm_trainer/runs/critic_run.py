"""Training a value network or a PRM: on some questions, stopped and calibrated on others, reported
on the rest.

Both are a `CriticNetwork` trained by `fit`. They differ in the loss: a value's is the binary
cross-entropy of the mean outcome below each token, a PRM's Bradley-Terry on pairs of steps after
one prefix.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import astuple
from pathlib import Path
from statistics import fmean
from typing import Any, ClassVar

import torch
from transformers import set_seed

from ..config.load import Config
from ..config.train import CriticConfig, Rates
from ..engine.device import text_config
from ..errors import DataError, TrainingError
from ..eval.critic_figures import CHANCE, auc, fit_blend, pair_accuracy
from ..files import append_line
from ..learning.critic_network import CriticNetwork
from ..learning.losses import Loss, bradley_terry, cross_entropy
from ..learning.methods.base import Objective, Totals
from ..learning.models import MemoryOptions, check_full
from ..learning.train_row import TrainRow, TrainRows, sum_own
from ..live import Progress, StopAsked
from ..policy.critic import CriticKind
from ..policy.student import Student
from ..types import JsonObject
from .critic_data import (
    Example,
    Question,
    example_of,
    pair_rows,
    read_questions,
    split_by_question,
    stack_examples,
    state_rows,
    with_step_labels,
)
from .fit import Course, FiguresLine, fit, plan_updates

DATA_PARTS = ("training", "validation", "test")
EXTRA_LAYERS = 2  # of a critic that is trained whole
MOST_PAIRS = 16  # of a question that a PRM learns from
LOSS_PATIENCE = 4  # measurements without a better held-out loss before training stops
RATES = Rates(large=2e-5)
ROWS = 16  # of a forward that is only measured


# -- losses and calibration ------------------------------------------------------------------------


class Outcomes(Objective):
    """A value's: the cross-entropy of the outcomes below each state. Each question counts the
    same.
    """

    columns: ClassVar = {"targets": "targets", "value_weights": "value_weights"}

    def __init__(self, critic: CriticNetwork) -> None:
        self.critic = critic

    def totals(self, rows: TrainRows) -> Totals:
        """The sum of the states' weights."""
        return (sum_own(rows, "value_weights"),)


class PairOutcomes(Outcomes):
    """A PRM's: Bradley-Terry on rows that are a better state and a worse one in turn."""

    unit = 2

    def totals(self, rows: TrainRows) -> Totals:
        """How many pairs there are."""
        return (len(rows) / 2,)

    def loss(self, rows: TrainRows, scores: Any, totals: torch.Tensor) -> Loss:
        """`sum(-log sigmoid(r_better - r_worse)) / total` over pairs `[P]` (nats)."""
        ends = torch.tensor([len(row.completion_ids) - 1 for row in rows])[:, None]
        numbers = scores.values.gather(1, ends.to(scores.values.device))[:, 0]
        return bradley_terry(numbers[::2], numbers[1::2], totals[0]), {}


def mean_cross_entropy(
    logits: torch.Tensor, targets: torch.Tensor, weights: torch.Tensor
) -> torch.Tensor:
    """`losses.cross_entropy` as a weighted mean; all three have one shape. No weight gives 0."""
    return cross_entropy(logits, targets, weights, weights.sum().clamp(min=1e-8))


def fit_platt(
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


# -- held-out questions ----------------------------------------------------------------------------


class HeldOut:
    """One part of the questions, on which a critic is measured."""

    def __init__(self, examples: Sequence[Example], critic: CriticNetwork, autocast: bool) -> None:
        self.critic, self.autocast = critic, autocast
        self.states, self.pairs = stack_examples(examples)
        self.rows: list[TrainRow] = []
        self.places: list[tuple[int, int]] = []  # of each state: its row, and its place there
        for example in examples:
            rows, places = state_rows(example)
            self.places += [
                (len(self.rows) + places[ids][0], places[ids][1]) for ids in example.states
            ]
            self.rows += rows
        self.targets = torch.tensor(self.states.target, dtype=torch.float32)
        self.weights = torch.tensor([self.rows[row].value_weights[at] for row, at in self.places])

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

    def line(self, kind: CriticKind) -> FiguresLine:
        """The held-out loss (a value's cross-entropy, a PRM's pairs') and AUC."""
        logits = self.logits()
        if kind == "value":
            loss = mean_cross_entropy(logits, self.targets, self.weights)
        else:
            better, worse = logits[self.pairs.better], logits[self.pairs.worse]
            loss = bradley_terry(better, worse, len(better))
        return {
            "held_out_loss": float(loss),
            "held_out_auc": auc(logits.numpy(), self.states, draws=0).value,
        }


# -- training --------------------------------------------------------------------------------------


def new_critic(student: Student, config: Config, kind: CriticKind) -> CriticNetwork:
    """A critic that starts as the policy and says 0 everywhere: one more adapter where the student
    trains adapters.
    """
    spec = student.spec
    trained = config.train.adapter or spec.adapter
    check_full(student.model, spec, trained)
    return CriticNetwork(
        student.model, spec.lora if trained == "lora" else None, kind, EXTRA_LAYERS, 0.0
    )


def train_critic(
    kind: CriticKind,
    student: Student,
    config: Config,
    data: Sequence[Path],
    out: Path,
    progress: Progress,
    stop: StopAsked = lambda: False,
) -> tuple[CriticNetwork, JsonObject]:
    """Train a critic on the trees of `data`; see the module. Returns the calibrated network and
    what its card says of it; `out` gets metrics.jsonl.

    Raises:
        DataError: the data are none for this kind, or too few.
        StoppedError: the user asked to stop.
    """
    began, settings = time.perf_counter(), config.train.critic
    questions = read_questions(data, text_config(student.model).vocab_size)
    if kind == "value" and any(question.preferences for question in questions):
        raise DataError(
            "--data has step preferences, and a value learns from outcomes: "
            "name trees, or train a prm"
        )
    parts = dict(zip(DATA_PARTS, split_by_question(questions), strict=True))
    counts = {name: len(part) for name, part in parts.items()}
    sizes = ", ".join(f"{count:,} {name}" for name, count in counts.items())
    progress.say(f"{kind} over student {student.title}: {sizes} questions")
    progress.wait("rows for training")
    student.engine.sleep()  # nothing is searched from here on
    set_seed(config.seed)
    memory = MemoryOptions.of(config, student)
    examples = {name: examples_of(parts[name], kind, student, settings) for name in DATA_PARTS[1:]}
    critic = new_critic(student, config, kind)
    validation, test = (HeldOut(examples[name], critic, memory.autocast) for name in DATA_PARTS[1:])
    out.mkdir(parents=True, exist_ok=True)
    metrics = out / "metrics.jsonl"
    metrics.unlink(missing_ok=True)

    def measure(course: Course) -> FiguresLine:
        step, before = len(course.losses), course.lines[-1]["step"] if course.lines else 0
        loss = fmean(course.losses[int(before) :])
        line = {"step": float(step), "loss": loss, **validation.line(kind)}
        lost = line["held_out_loss"]
        if not math.isfinite(lost):
            raise TrainingError(
                f"the held-out loss is {lost}: start again with a lower "
                "train.optimizer.learning_rate"
            )
        append_line(metrics, line)
        progress.say(
            f"step {step}: loss {loss:.4f}, held out {lost:.4f}, AUC {line['held_out_auc']:.3f}"
        )
        return line

    if kind == "value":
        objective, groups = Outcomes(critic), value_groups(parts["training"], student, settings)
    else:
        examples["training"] = examples_of(parts["training"], kind, student, settings)
        objective, groups = PairOutcomes(critic), pair_groups(examples)
    parameters = sum(p.numel() for p in critic.parameters())
    rate = config.train.optimizer.rate(RATES, parameters, "lora" if critic.shared else "full")
    course = fit(
        critic,
        objective,
        groups,
        plan_updates(config, len(groups), rate),
        config.seed,
        memory,
        measure=measure,
        goal=lambda line: -line["held_out_loss"],
        patience=LOSS_PATIENCE,
        progress=progress,
        stop=stop,
    )
    progress.wait("measuring")
    scale, shift = fit_platt(validation.logits(), validation.targets, validation.weights)
    with torch.no_grad():
        critic.score.weight.mul_(scale)
        critic.score.bias.mul_(scale).add_(shift)
    card = {
        "kind": kind,
        **figures_of(kind, validation, test, config.seed),
        "best": course.line,
        "calibration": {"scale": scale, "shift": shift},
        "questions": counts,
        "pairs": {"validation": len(validation.pairs.better), "test": len(test.pairs.better)},
        "settings": config.train.model_dump(mode="json", include={"critic", "optimizer"}),
        "seconds": round(time.perf_counter() - began, 1),
    }
    return critic, card


def value_groups(
    questions: Sequence[Question], student: Student, settings: CriticConfig
) -> list[list[TrainRow]]:
    """Each question's rows, of the states at every token."""
    return [
        state_rows(example_of(question, student, settings, every_token=True))[0]
        for question in questions
    ]


def pair_groups(examples: Mapping[str, Sequence[Example]]) -> list[list[TrainRow]]:
    """The training questions' pairs, two rows each. Raises DataError where some part has no
    pairs.
    """
    for name, part in examples.items():
        if not any(example.pairs for example in part):
            raise DataError(
                f"no {name} question has a pair of steps: "
                "collect more trees, or lower train.critic.margin"
            )
    return [pair for example in examples["training"] for pair in pair_rows(example, MOST_PAIRS)]


def examples_of(
    part: Sequence[Question], kind: CriticKind, student: Student, settings: CriticConfig
) -> list[Example]:
    """The states of a part's questions: with their outcomes for a value, with steps' labels for a
    PRM.
    """
    examples = [example_of(question, student, settings) for question in part]
    if kind == "prm":
        examples = [with_step_labels(example) for example in examples]
    return examples


def figures_of(kind: CriticKind, validation: HeldOut, test: HeldOut, seed: int) -> JsonObject:
    """A calibrated critic's verdict and weight by the validation questions, and its figures on the
    test questions.
    """
    value = validation.logits().double().sigmoid().numpy()
    ranked = auc(value, validation.states, seed)
    earned = ranked.low > CHANCE
    weight = fit_blend(value, validation.states) if earned and kind == "value" else 1.0
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
