"""Training the value: one forward over a question's trie of responses gives V at every state of its tree.

Two kinds. A *head* is a linear probe of the policy's own hidden states: search gets V from the forward that it does
anyway, and one head fits one policy only. A *network* is a token-classification model of its own with one label,
initialised from the policy. Both are fitted to soft targets (mean outcomes, weighted by visits) with binary
cross-entropy, stopped on held-out questions, and calibrated there.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any, cast

import numpy as np
import torch
from torch.nn import functional as F
from transformers import AutoModelForTokenClassification, PreTrainedModel, TrainerCallback
from transformers import TrainingArguments as Arguments

from ..config.sections import LoraConfig
from ..config.train import ValueConfig
from ..policy.adapters import VALUE, bind
from .judge import (
    HeldOutWatch,
    JudgeTrainer,
    Score,
    Watcher,
    check,
    cross_entropy,
    forward_rows,
    judge_arguments,
    longest,
    over,
    platt,
    questions_at_once,
)
from .models import attach, bare, deepen
from .packing import ancestor_mask
from .rows import ValueRow

HEAD_ITERATIONS = 40  # of L-BFGS, for each strength of regularisation
STRENGTHS = (1e1, 1.0, 1e-1, 1e-2, 1e-3, 1e-4)  # L2 on the standardised features' weights
HEAD_FITS = len(STRENGTHS) * HEAD_ITERATIONS // 10  # lines of the curve


@dataclass(slots=True)
class Fitted:
    """A trained value: `weight` `[D]` and `bias` of its last layer, the network's backbone (None for a head), its curve.

    `curve` has one entry an evaluation: step, and train and held-out loss (nats) and Brier score. `best` is the entry
    that was kept; `scale` and `shift` are the calibration that is folded into weight and bias.
    """

    weight: torch.Tensor
    bias: float
    network: Any = None
    curve: list[dict[str, float]] = field(default_factory=list)
    best: dict[str, float] = field(default_factory=dict)
    scale: float = 1.0
    shift: float = 0.0

    def calibrate(self, scale: float, shift: float) -> None:
        """Make V = sigmoid(scale * logit + shift)."""
        self.weight, self.bias = self.weight * scale, self.bias * scale + shift
        self.scale, self.shift = scale, shift
        if self.network is not None:
            score = score_layer(self.network)
            with torch.no_grad():
                score.weight.copy_(self.weight[None])
                score.bias.fill_(self.bias)


class ValueCollator:
    """Pads rows on the right: `input_ids`, `position_ids`, `targets`, `weights` `[B, T]` and a mask `[B, 1, T, T]`.

    The mask is additive: a token sees itself and its ancestors in the trie, nothing beside it.
    """

    inputs = ("input_ids", "position_ids", "attention_mask")

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        self.dtype = dtype

    def __call__(self, rows: Sequence[ValueRow]) -> dict[str, torch.Tensor]:
        count, width = len(rows), max(len(row.token_ids) for row in rows)
        ids, positions, ends = (np.zeros((count, width), dtype=np.int64) for _ in range(3))
        targets, weights = (np.zeros((count, width), dtype=np.float32) for _ in range(2))
        ends[:] = np.arange(1, width + 1)  # padding sees itself alone, so that no row of the mask is empty
        for i, row in enumerate(rows):
            end = len(row.token_ids)
            ids[i, :end], positions[i, :end], ends[i, :end] = row.token_ids, row.positions, row.ends
            targets[i, :end], weights[i, :end] = row.targets, row.weights
        return {
            "input_ids": torch.from_numpy(ids),
            "position_ids": torch.from_numpy(positions),
            "attention_mask": ancestor_mask(torch.from_numpy(ends), self.dtype),
            "targets": torch.from_numpy(targets),
            "weights": torch.from_numpy(weights),
        }


def ranking_loss(logits: torch.Tensor, shares: torch.Tensor, total: torch.Tensor | None = None) -> torch.Tensor:
    """Bradley-Terry between the states of one question (logits `[B, T]`): `-log sigmoid(better - worse)`, weighted by
    `ranking_shares`, which sum to `total` over the update."""
    loss = F.softplus(logits[:, None, :].float() - logits[:, :, None].float())
    return (loss * shares).sum() / over(total, shares)


def ranking_shares(inputs: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """The weight of each pair of states `[B, T, T]`: the product of their weights times how much better the first one is.

    `inputs` are the collator's. A token and its ancestor are no alternatives: they weigh nothing.
    """
    targets, weights, seen = inputs["targets"], inputs["weights"], inputs["attention_mask"][:, 0] == 0
    ahead = targets[:, :, None] - targets[:, None, :]
    return weights[:, :, None] * weights[:, None, :] * ahead.clamp(min=0.0) * ~(seen | seen.transpose(1, 2))


def hidden_states(
    model: PreTrainedModel, rows: Sequence[ValueRow], size: int = 32, bfloat16: bool = False
) -> list[torch.Tensor]:
    """The policy's final hidden states (after the last norm) at each row's states: `[S, D]` a row."""

    def pick(output: Any, at: int, row: ValueRow) -> torch.Tensor:
        return cast(torch.Tensor, output.last_hidden_state[at, list(row.states)])

    return forward_rows(model.base_model, rows, size, ValueCollator(model.dtype), pick, bfloat16)


def network_logits(
    network: Any, rows: Sequence[ValueRow], size: int = 32, bfloat16: bool = False
) -> list[torch.Tensor]:
    """A network's logits at each row's states: `[S]` a row."""

    def pick(output: Any, at: int, row: ValueRow) -> torch.Tensor:
        return cast(torch.Tensor, output.logits[at, list(row.states), 0])

    return forward_rows(network, rows, size, ValueCollator(next(network.parameters()).dtype), pick, bfloat16)


def state_data(rows: Sequence[ValueRow]) -> tuple[torch.Tensor, torch.Tensor]:
    """Targets and weights of all rows' states, row after row `[N]`."""
    targets = [row.targets[i] for row in rows for i in row.states]
    weights = [row.weights[i] for row in rows for i in row.states]
    return torch.tensor(targets), torch.tensor(weights)


def figures(logits: torch.Tensor, targets: torch.Tensor, weights: torch.Tensor) -> tuple[float, float]:
    """Loss (nats) and Brier score of logits `[N]` against single outcomes, weighted."""
    error = (logits.sigmoid() - targets) ** 2 + targets * (1 - targets)
    return float(cross_entropy(logits, targets, weights)), float((weights * error).sum() / weights.sum())


def weighted(rows: Sequence[ValueRow], power: float) -> list[ValueRow]:
    """The rows with each weight raised to `power`, so that every question's weights sum to 1."""
    scaled = []
    for row in rows:
        raised = [w**power if w else 0.0 for w in row.weights]
        total = math.fsum(raised)
        scaled.append(replace(row, weights=tuple(w / total for w in raised)))
    return scaled


# -- the head ----------------------------------------------------------------------------------------------------------


def train_head(
    policy: PreTrainedModel,
    train: Sequence[ValueRow],
    held_out: Sequence[ValueRow],
    settings: ValueConfig,
    watch: Watcher = lambda line: None,
    bfloat16: bool = False,
) -> Fitted:
    """Logistic regression on the policy's hidden states; regularisation and iteration are picked on `held_out`."""
    check(train, held_out)
    data = []
    for rows in (weighted(train, settings.weight_power), weighted(held_out, settings.weight_power)):
        size = questions_at_once(settings, policy, longest(rows))
        data.append((torch.cat(hidden_states(policy, rows, size, bfloat16)), *state_data(rows)))
    (x, y, w), (xh, yh, wh) = data
    centre, spread = x.mean(0), x.std(0).clamp(min=1e-6)
    x, xh, w = (x - centre) / spread, (xh - centre) / spread, w / w.sum()
    best: dict[str, float] = {}
    kept = torch.zeros(x.shape[1] + 1)
    curve: list[dict[str, float]] = []
    solution = torch.zeros(x.shape[1] + 1, requires_grad=True)
    for strength in STRENGTHS:  # from strong to weak, each from where the last one ended: one regularisation path
        optimiser = torch.optim.LBFGS([solution], max_iter=10, history_size=20, line_search_fn="strong_wolfe")

        def closure(optimiser: Any = optimiser, strength: float = strength) -> torch.Tensor:
            optimiser.zero_grad()
            loss = cross_entropy(x @ solution[:-1] + solution[-1], y, w) + 0.5 * strength * solution[:-1].square().sum()
            loss.backward()
            return loss

        for _ in range(HEAD_FITS // len(STRENGTHS)):
            optimiser.step(closure)
            with torch.no_grad():
                line = evaluation(len(curve) + 1, x @ solution[:-1] + solution[-1], y, w)
                line |= held_out_part(xh @ solution[:-1] + solution[-1], yh, wh)
            line["strength"] = strength
            curve.append(line)
            watch(line)
            if not best or line["held_out_loss"] < best["held_out_loss"]:
                best, kept = line, solution.detach().clone()
    weight = kept[:-1] / spread
    fitted = Fitted(weight, float(kept[-1] - weight @ centre), None, curve, best)
    if settings.calibrate:
        fitted.calibrate(*platt(xh @ kept[:-1] + kept[-1], yh, wh))
    return fitted


def evaluation(step: int, logits: torch.Tensor, targets: torch.Tensor, weights: torch.Tensor) -> dict[str, float]:
    loss, brier = figures(logits, targets, weights)
    return {"step": step, "train_loss": loss, "train_brier": brier}


def held_out_part(logits: torch.Tensor, targets: torch.Tensor, weights: torch.Tensor) -> dict[str, float]:
    loss, brier = figures(logits, targets, weights)
    return {"held_out_loss": loss, "held_out_brier": brier}


# -- the network -------------------------------------------------------------------------------------------------------


def adapter_network(policy: PreTrainedModel, lora: LoraConfig) -> Any:
    """As `new_network`, but over the policy's own layers: what is trained is an adapter of its own and the score layer."""
    attach(policy, lora, VALUE)
    network = headed(policy, copy.deepcopy(policy.config), policy.base_model)
    bind(network, policy, VALUE)
    return network


def new_network(policy: PreTrainedModel, extra_layers: int = 0) -> Any:
    """A token-classification model with one label over a copy of the policy's backbone; its score layer starts at 0.

    `extra_layers` more layers go on top, each an identity at first (its output projections are 0). A policy knows what
    it expects of a token in its last layer, at the position before: only layers above can hold that against the token
    that came, which is most of what tells a good step from a bad one (log-probabilities do the same).

    Raises ConfigError for extra layers over a quantised policy, or one whose layers are of different kinds.
    """
    shape = copy.deepcopy(policy.config)
    backbone: Any = copy.deepcopy(policy.base_model)
    deepen(backbone, shape, extra_layers)
    return headed(policy, shape, backbone).requires_grad_(True)


def headed(policy: PreTrainedModel, shape: Any, backbone: Any) -> Any:
    """A token-classification model with one label over a backbone of configuration `shape`; its score layer is 0."""
    shape.num_labels, shape.classifier_dropout = 1, 0.0
    shape.architectures = None
    with torch.device("meta"):
        network: Any = AutoModelForTokenClassification.from_config(shape)
    setattr(network, network.base_model_prefix, backbone)
    score = Score(shape.hidden_size, 1)
    torch.nn.init.zeros_(score.weight)
    torch.nn.init.zeros_(score.bias)
    weight: Any = policy.get_input_embeddings().weight
    network.score = score.to(weight.device)
    return network


def score_layer(network: Any) -> torch.nn.Linear:
    """The last layer, under peft too."""
    score: Any = bare(network).score
    return score.modules_to_save[score.active_adapters[0]] if hasattr(score, "modules_to_save") else score


class ValueTrainer(JudgeTrainer):
    """The masked soft-target loss at the rows' states; `rank_weight` times the ranking loss between a question's is added."""

    rank_weight = 0.0

    def compute_loss(
        self, model: Any, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        outputs = model(**{k: v for k, v in inputs.items() if k not in ("targets", "weights")})
        logits = outputs.logits[..., 0]
        states, pairs = self.weights_of(inputs) if num_items_in_batch is None else num_items_in_batch
        loss = cross_entropy(logits, inputs["targets"], inputs["weights"], states)
        if self.rank_weight:
            loss = loss + self.rank_weight * ranking_loss(logits, ranking_shares(inputs), pairs)
        return (loss, outputs) if return_outputs else loss

    def weights_of(self, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Of the states, and of pairs of them."""
        states = batch["weights"].sum()
        return torch.stack([states, ranking_shares(batch).sum() if self.rank_weight else torch.zeros_like(states)])


def train_network(
    network: Any,
    train: Sequence[ValueRow],
    held_out: Sequence[ValueRow],
    settings: ValueConfig,
    *,
    out_dir: Path,
    seed: int,
    watch: Watcher = lambda line: None,
    callbacks: Sequence[TrainerCallback] = (),
    bfloat16: bool = False,
) -> Fitted:
    """Train `network` (of `new_network`, perhaps under LoRA) in place; it ends with its best held-out weights.

    `bfloat16`: its products are computed in it, over weights and an optimiser as they are (`Economy.autocast`).
    """
    check(train, held_out)
    train, held_out = weighted(train, settings.weight_power), weighted(held_out, settings.weight_power)
    # As many training questions as held-out ones: the same figure on both, for the curve of overfitting. They come from
    # all over the list, because journals begin with the questions that were searched fastest: the easy ones.
    chosen = Random(0).sample(range(len(train)), min(len(train), len(held_out)))
    size = questions_at_once(settings, network, longest(train, held_out))
    sets = {"train": [train[i] for i in chosen], "held_out": held_out}

    def measure(loss: float) -> dict[str, float]:
        line = {}
        for name, rows in sets.items():
            logits = torch.cat(network_logits(network, rows, size, bfloat16))
            line[f"{name}_loss"], line[f"{name}_brier"] = figures(logits, *state_data(rows))
        return line

    trainer = ValueTrainer(
        model=network,
        args=Arguments(
            **judge_arguments(settings, network, len(train), out_dir, seed, size, bfloat16), remove_unused_columns=False
        ),
        train_dataset=list(train),
        data_collator=ValueCollator(next(network.parameters()).dtype),
        callbacks=list(callbacks),
    )
    trainer.rank_weight = settings.rank_weight
    held = HeldOutWatch(network, settings, measure, lambda line: (-line["held_out_loss"],), watch)
    trainer.fit(held)
    score = score_layer(network)
    fitted = Fitted(
        score.weight.detach()[0].float().cpu().clone(),
        float(score.bias.detach()),
        network,
        held.curve,
        held.best,
    )
    if settings.calibrate:
        logits = torch.cat(network_logits(network, held_out, size, bfloat16))
        fitted.calibrate(*platt(logits, *state_data(held_out)))
    return fitted
