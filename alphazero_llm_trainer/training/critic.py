"""What the trainings of a value network and of a PRM share: the network, its forwards, stopping, calibration.

Both are a token classifier with one label that starts as the policy: its number at a token is the logit of a state's
value, or of a step. States of one question share one sequence, a trie (`packing.ValueRow`), in which each token attends to
its own ancestors alone; so every token is computed once.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import send_to_device
from torch.nn import functional as F
from transformers import AutoModelForTokenClassification, PreTrainedModel, PrinterCallback, TrainerCallback

from ..config.load import Config
from ..engine.device import text_config
from ..errors import ConfigError, TrainingError
from ..policy.adapters import bind
from ..policy.critic import NAMES, Kind
from ..policy.student import Student
from .memory import EXTRA_LAYERS, rows_of_a_forward
from .models import (
    MemoryOptions,
    attach,
    check_full,
    checkpoint_layers,
    deepen,
    load_trained_state,
    make_trainable,
    quiet_arguments,
    trained_state,
)
from .packing import ValueRow, collate
from .scoring import check_packs

Line = dict[str, float]
PATIENCE = 4  # evaluations without a better held-out loss before training stops


# -- the network -------------------------------------------------------------------------------------------------------


class Score(torch.nn.Linear):
    """A last layer in fp32 over hidden states of any precision: small updates are lost in bf16."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:  # the base class's name for it
        with torch.autocast(input.device.type, enabled=False):
            return super().forward(input.to(self.weight.dtype))


def new_network(student: Student, config: Config, kind: Kind) -> tuple[Any, bool]:
    """A token classifier that starts as the policy, its score layer as 0; and whether it is an adapter of the policy's.

    Where the student trains adapters (LoRA, 4 bits) it is one more of them over the policy's own layers. Else it is a copy
    with layers on top, each an identity at first (its output projections are 0). A policy knows what it expects of a token
    in its last layer, at the position before: only layers above can hold that against the token that came.
    """
    policy, spec = student.model, student.spec
    check_packs(policy, f"a {NAMES[kind]}", "use another student")
    trained = config.train.adapter or spec.adapter
    check_full(policy, spec, trained)
    if trained == "lora":
        attach(policy, spec.lora, kind)
        network = headed(policy, copy.deepcopy(policy.config), policy.base_model)
        bind(network, policy, kind)
    else:
        shape, backbone = copy.deepcopy(policy.config), copy.deepcopy(policy.base_model)
        deepen(backbone, shape, EXTRA_LAYERS)
        network = make_trainable(headed(policy, shape, backbone), spec, trained)
    if MemoryOptions.of(config, spec, policy).checkpointing:
        checkpoint_layers(network)
    return network, trained == "lora"


def headed(policy: PreTrainedModel, shape: Any, backbone: Any) -> Any:
    """A token classifier with one label over a backbone of configuration `shape`; its score layer is 0."""
    score = Score(shape.hidden_size, 1)
    torch.nn.init.zeros_(score.weight)
    torch.nn.init.zeros_(score.bias)
    weight: Any = policy.get_input_embeddings().weight
    return classifier(AutoModelForTokenClassification, shape, backbone, score.to(weight.device))


def classifier(family: Any, shape: Any, backbone: Any, score: torch.nn.Module) -> Any:
    """One of transformers' classifiers with one label, over layers that exist already; it has no weights of its own."""
    shape.num_labels, shape.classifier_dropout, shape.architectures = 1, 0.0, None
    try:
        with torch.device("meta"):
            network = family.from_config(shape)
    except ValueError as error:
        raise ConfigError(
            f"transformers has no token classifier of {shape.model_type} models: use another student for a critic"
        ) from error
    setattr(network, network.base_model_prefix, backbone)
    network.score = score
    return network


# -- forwards ----------------------------------------------------------------------------------------------------------


@torch.inference_mode()
def state_logits(network: Any, rows: Sequence[ValueRow], size: int, bfloat16: bool = False) -> list[torch.Tensor]:
    """A network's logits at each row's states: `[S]` a row (fp32, CPU). Rows of like length are computed together."""
    training = network.training
    network.eval()
    parameter = next(network.parameters())
    found: list[Any] = [None] * len(rows)
    order = sorted(range(len(rows)), key=lambda i: len(rows[i].token_ids))
    for indices in (order[i : i + size] for i in range(0, len(order), size)):
        inputs = collate([rows[i] for i in indices], parameter.dtype, network.config)
        given = {name: inputs[name] for name in ("input_ids", "position_ids", "attention_mask")}
        given = send_to_device(given, parameter.device)
        with torch.autocast(parameter.device.type, torch.bfloat16, enabled=bfloat16):
            logits = network(**given).logits[..., 0]
        for at, i in enumerate(indices):
            found[i] = logits[at, list(rows[i].states)].float().cpu()
    network.train(training)
    return found


def forward_size(config: Config, model: Any, longest: int, squares: int = 0) -> int:
    """Rows of one forward: `train.micro_batch`, or a divisor of the batch size that keeps the activations small.

    `longest` is tokens of the longest row, `squares` the bytes of each pair of them.
    """
    batch, shape = config.train.optimizer.batch_size, text_config(model)
    if config.train.micro_batch is not None:
        return math.gcd(config.train.micro_batch, batch)
    inner = getattr(shape, "intermediate_size", None) or 4 * shape.hidden_size
    return rows_of_a_forward(batch, longest, shape.num_hidden_layers, shape.hidden_size, inner, 0, squares)


# -- losses and calibration --------------------------------------------------------------------------------------------


def cross_entropy(logits: torch.Tensor, targets: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Binary cross-entropy (nats) with soft targets, a weighted mean; all three have one shape. No weight gives 0.

    `-(target * log p + (1 - target) * log(1 - p))`, p = sigmoid(logit).
    """
    loss = F.binary_cross_entropy_with_logits(logits.float(), targets, reduction="none")
    return (loss * weights).sum() / weights.sum().clamp(min=1e-8)


def bradley_terry(better: torch.Tensor, worse: torch.Tensor) -> torch.Tensor:
    """The mean of `-log sigmoid(r_better - r_worse)` over pairs `[P]` (nats)."""
    # softplus(x) = log(1 + exp(x)) = -log sigmoid(-x), which a large difference does not overflow.
    return F.softplus(worse - better).mean()


def platt(logits: torch.Tensor, targets: torch.Tensor, weights: torch.Tensor) -> tuple[float, float]:
    """Scale and shift with the least cross-entropy of sigmoid(scale*logit + shift) (Platt 1999).

    Gives (1, 0) where that would turn the order of the states round.
    """
    x, y, w = logits.double(), targets.double(), weights.double()
    line = torch.tensor([1.0, 0.0], dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.LBFGS([line], max_iter=200, tolerance_grad=1e-9, line_search_fn="strong_wolfe")

    def closure() -> torch.Tensor:
        optimiser.zero_grad()
        at = line[0] * x + line[1]
        # A little ridge: states that are told apart without a mistake would take an endless scale.
        loss = ((F.softplus(at) - y * at) * w).sum() / w.sum() + 1e-6 * line.square().sum()
        loss.backward()
        return loss

    optimiser.step(closure)
    scale, shift = line.tolist()
    return (scale, shift) if scale >= 0 else (1.0, 0.0)


# -- training ----------------------------------------------------------------------------------------------------------


def arguments(
    config: Config, network: Any, adapter: bool, rows: int, size: int, out: Path, bfloat16: bool
) -> dict[str, Any]:
    """The training arguments of transformers for a critic: `rows` an epoch, of which `size` make a forward."""
    settings = config.train.optimizer
    updates = settings.epochs * math.ceil(rows / settings.batch_size)
    parameters = sum(p.numel() for p in network.parameters())
    return quiet_arguments() | {
        "output_dir": str(out),
        "num_train_epochs": settings.epochs,
        "per_device_train_batch_size": size,
        "gradient_accumulation_steps": settings.batch_size // size,
        "learning_rate": settings.rate("critic", parameters, "lora" if adapter else "full"),
        "lr_scheduler_type": "cosine",
        "warmup_steps": min(settings.warmup, updates // 4),
        "bf16": bfloat16,
        "fp16": torch.cuda.is_available() and next(network.parameters()).dtype == torch.float16,
        "use_cpu": not torch.cuda.is_available(),  # transformers refuses bf16 without a GPU that isn't declined
        "weight_decay": settings.weight_decay,
        "max_grad_norm": settings.max_grad_norm,
        "seed": config.library_seed,
        "save_strategy": "no",
        "logging_steps": config.train.evaluate_every,
        "gradient_checkpointing": False,  # `new_network` has seen to it
    }


class HeldOut(TrainerCallback):
    """Measures validation questions now and then, keeps the weights with the least loss there, and ends a training whose
    patience is used up, or that the user asked to stop.

    Args:
        network: what is trained.
        measure: the validation questions' figures, `held_out_loss` among them.
        watch: told of each line of the curve.
        stop: whether the user asked to stop.
    """

    def __init__(
        self,
        network: Any,
        measure: Callable[[], Line],
        watch: Callable[[Line], None],
        stop: Callable[[], bool],
    ) -> None:
        self.network, self.measure, self.watch, self.stop = network, measure, watch, stop
        self.best: Line = {}
        self.kept: dict[str, torch.Tensor] = {}
        self.worse = 0

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        control.should_log |= state.global_step >= state.max_steps
        control.should_training_stop |= self.stop()

    def on_log(self, args: Any, state: Any, control: Any, logs: Mapping[str, float] | None = None, **rest: Any) -> None:
        if logs is None or "loss" not in logs or self.stop():  # every `evaluate_every` updates, and after the last one
            return
        line = {"step": float(state.global_step), "loss": float(logs["loss"]), **self.measure()}
        if not math.isfinite(line["loss"] + line["held_out_loss"]):
            raise TrainingError(f"the loss is {line['loss']}: lower train.optimizer.learning_rate")
        self.watch(line)
        if not self.best or line["held_out_loss"] < self.best["held_out_loss"]:
            self.best, self.worse, self.kept = line, 0, trained_state(self.network)
        else:
            self.worse += 1
            control.should_training_stop |= self.worse >= PATIENCE


def fit(trainer: Any, held_out: HeldOut) -> float:
    """Train; the network ends with its best held-out weights. Returns the seconds.

    Raises KeyboardInterrupt where the user asked to stop.
    """
    trainer.add_callback(held_out)
    trainer.remove_callback(PrinterCallback)
    began = time.perf_counter()
    trainer.train()
    if held_out.stop():
        raise KeyboardInterrupt
    load_trained_state(held_out.network, held_out.kept)
    held_out.network.eval()
    return round(time.perf_counter() - began, 1)
