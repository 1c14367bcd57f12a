"""From trees to a critic's folder: train on one part of the questions, stop and calibrate on the second, report the third."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from ..config.load import Config
from ..engine.device import text_config
from ..errors import DataError
from ..eval.critic_figures import CHANCE, blend, in_order, pair_accuracy, reliability
from ..files import sync_all, write_json
from ..live import Progress
from ..policy.adapters import fingerprint
from ..policy.critic import ADAPTER, CARD, NUMBERS, Kind, file_hash
from ..policy.student import Student
from .critic import HeldOut, Line, bradley_terry, cross_entropy, fit, forward_size, new_network, platt, state_logits
from .critic_data import Example, Question, columns, spoiled_examples, tree_example, with_step_labels
from .memory import MASK_BYTES
from .models import MemoryOptions, save_adapter
from .prm import prm_trainer
from .progress import StepProgress
from .value import value_rows, value_trainer

Parts = tuple[Sequence[Question], Sequence[Question], Sequence[Question]]
PARTS = ("training", "validation", "test")


@dataclass(slots=True)
class TrainedCritic:
    """A calibrated network (an adapter over the policy's layers where `adapter`), and what its card says of it."""

    kind: Kind
    network: Any
    adapter: bool
    card: dict[str, Any]


class Measured:
    """One part of the questions: their states in rows, and a network's logits of them."""

    def __init__(self, examples: Sequence[Example], config: Config, network: Any, bfloat16: bool) -> None:
        self.states, self.pairs = columns(examples)
        self.rows = [one.row() for one in examples]  # each question weighs the same in what is fitted
        self.weights = torch.tensor([row.weights[i] for row in self.rows for i in row.states])
        self.targets = torch.tensor(self.states.target, dtype=torch.float32)
        self.network, self.bfloat16 = network, bfloat16
        longest = max(len(row.token_ids) for row in self.rows)
        self.size = forward_size(config, network, longest, MASK_BYTES)

    def logits(self) -> torch.Tensor:
        """Of all states `[N]`."""
        return torch.cat(state_logits(self.network, self.rows, self.size, self.bfloat16))

    def loss(self, kind: Kind) -> Line:
        """The held-out loss (a value's cross-entropy, a PRM's pairs') and the share of pairs in the right order."""
        logits = self.logits()
        better, worse = logits[self.pairs.better], logits[self.pairs.worse]
        own = cross_entropy(logits, self.targets, self.weights) if kind == "value" else bradley_terry(better, worse)
        return {"held_out_loss": float(own), "held_out_pairs": float(in_order(logits.numpy(), self.pairs).mean())}


def train_critic(
    kind: Kind,
    student: Student,
    config: Config,
    parts: Parts,
    out: Path,
    *,
    watch: Callable[[Line], None] = lambda line: None,
    progress: Progress | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> TrainedCritic:
    """Train a critic on the first part; see the module.

    Raises:
        DataError: no question of one of a PRM's parts has a pair of steps.
        KeyboardInterrupt: the user asked to stop.
    """
    progress = progress if progress is not None else Progress(quiet=True)
    student.engine.sleep()  # nothing is searched from here on
    bfloat16 = MemoryOptions.of(config, student.spec, student.model).autocast
    held = [examples_of(part, kind, student, config) for part in parts[1:]]
    network, adapter = new_network(student, config, kind)
    if kind == "value":
        trainer: Any = value_trainer(network, adapter, value_rows(parts[0], student), config, out, bfloat16)
    else:
        learnt = examples_of(parts[0], kind, student, config)
        learnt += spoiled_examples(student, config, {one.text for part in parts for one in part})
        for name, part in zip(PARTS, (learnt, *held), strict=True):
            if not any(one.pairs for one in part):
                raise DataError(
                    f"no {name} question has a pair of steps: collect more trees, or lower train.critic.margin"
                )
        trainer = prm_trainer(network, adapter, learnt, student, config, out, bfloat16)
    validation, test = (Measured(part, config, network, bfloat16) for part in held)
    trainer.add_callback(StepProgress(progress, kind))
    held_out = HeldOut(network, lambda: validation.loss(kind), watch, stop)
    seconds = fit(trainer, held_out)

    scale, shift = platt(validation.logits(), validation.targets, validation.weights)
    with torch.no_grad():
        network.score.weight.mul_(scale)
        network.score.bias.mul_(scale).add_(shift)
    card = {
        **figures_of(kind, validation, test, config.seed),
        "best": held_out.best,
        "calibration": {"scale": scale, "shift": shift},
        "questions": dict(zip(PARTS, map(len, parts), strict=True)),
        "pairs": {name: len(part.pairs.question) for name, part in (("validation", validation), ("test", test))},
        "training_seconds": seconds,
        "settings": config.train.critic.model_dump(mode="json") | config.train.optimizer.model_dump(mode="json"),
    }
    return TrainedCritic(kind, network, adapter, card)


def examples_of(part: Sequence[Question], kind: Kind, student: Student, config: Config) -> list[Example]:
    """The states of a part's questions: with their outcomes for a value, with steps' labels for a PRM."""
    settings = config.train.critic
    found = [tree_example(one, student, settings) for one in part]
    return found if kind == "value" else [with_step_labels(one, settings.least_outcomes) for one in found]


def figures_of(kind: Kind, validation: Measured, test: Measured, seed: int) -> dict[str, Any]:
    """What a calibrated critic is worth: its verdict and weight by the validation questions, its figures on the test's."""
    value = validation.logits().double().sigmoid().numpy()
    accuracy = pair_accuracy(value, validation.states, validation.pairs, seed)["pair accuracy"]
    earned = accuracy.low > CHANCE
    weight = blend(value, validation.states) if earned and kind == "value" else 1.0
    value = test.logits().double().sigmoid().numpy()
    figures = pair_accuracy(value, test.states, test.pairs, seed)
    return {
        "rollout_weight": 1.0 if math.isnan(weight) else weight,
        "earned": earned,
        "why": f"pair accuracy {accuracy} {'beats' if earned else 'does not beat'} chance ({CHANCE})",
        "test": {name: list(astuple(figure)) for name, figure in figures.items()},
        "reliability": [list(point) for point in reliability(value, test.states)],
    }


def save_critic(
    folder: Path, trained: TrainedCritic, student: Student, config: Config, facts: Mapping[str, Any]
) -> dict[str, Any]:
    """Write a critic's folder (see `policy.critic`), the card last, with `facts` of the command; returns the card."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / CARD).unlink(missing_ok=True)
    score = trained.network.score
    save_file(
        {"weight": score.weight.detach()[0].float().cpu(), "bias": score.bias.detach().float().cpu()}, folder / NUMBERS
    )
    files = [NUMBERS]
    if trained.adapter:
        saved = save_adapter(student.model, folder / ADAPTER, trained.kind)
        files += [f"{ADAPTER}/{name}" for name in saved]
    else:
        # transformers takes a copy of a student that began as an adapter for one that has it still.
        trained.network._hf_peft_config_loaded = False
        # The format that an adapter was loaded from is no model's.
        trained.network.save_pretrained(folder, save_original_format=False)
        student.tokenizer.save_pretrained(folder)
        files += ["config.json", "model.safetensors"]
    card = {
        "kind": trained.kind,
        "base": fingerprint(student.model, None),
        "student": student.name,
        "vocabulary": text_config(student.model).vocab_size,
        "seed": config.seed,
        **trained.card,
        **facts,
        "files": {name: file_hash(folder / name) for name in files},
    }
    sync_all(folder)
    write_json(folder / CARD, card)
    return card
