"""Training a process reward model: how good is a step after its prefix, from sibling pairs and step labels.

One scorer, three kinds. Its score of a step is `mix * log p(step | prefix) + weight . h + bias`: p is the scorer's own
language model, a copy of the policy, and h its hidden state (after the last norm) at the step's last token.

- *implicit*: the log-probability alone. It begins as the policy's own and is pulled apart by the pairs and the labels. An
  implicit PRM (Yuan et al. 2024, "Free Process Rewards without Process Labels") scores by the log-ratio to a reference
  model; this one has none and shares with it that a language model is the scorer.
- *bradley-terry*: the linear layer, with the log-probability as a feature, on pairs (`-log sigmoid(chosen - rejected)`).
- *classifier*: the same on step labels (binary cross-entropy; Lightman et al. 2023, Wang et al. 2023).

All steps of a question share one sequence, a trie as in `train.value`; so every token is computed once.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, cast

import torch
from torch.nn import functional as F
from transformers import PreTrainedModel, TrainerCallback
from transformers import TrainingArguments as Arguments

from ..config.sections import LoraConfig
from ..config.train import PrmConfig
from ..policy.adapters import PRM, bind
from ..policy.prm_verifier import FLOOR
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
from .rows import ValueRow, pack_values
from .scoring import token_logprobs
from .value import ValueCollator

Ids = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class LabelledStep:
    """A step `step_ids` after the response's tokens `prefix_ids`; `target` in [0, 1] says how good it is.

    `weight` 0 means that the label isn't learnt from: the step is there for its pairs.
    """

    prefix_ids: Ids
    step_ids: Ids
    target: float
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class StepPair:
    """Two steps after one prefix, of which one is better by `margin` in (0, 1]; `depth` counts the steps before them."""

    prefix_ids: Ids
    chosen_ids: Ids
    rejected_ids: Ids
    margin: float = 1.0
    depth: int = 0


@dataclass(frozen=True, slots=True)
class StepRow(ValueRow):
    """A question's steps as a trie; `states[s]` is where step s ends, `starts[s]` where its prefix does.

    `parents[i]` is the position that predicts token i. `labels` and `label_weights` belong to the steps `[S]`; `pairs`
    are (better step, worse step, weight).
    """

    starts: tuple[int, ...]
    parents: tuple[int, ...]
    labels: tuple[float, ...]
    label_weights: tuple[float, ...]
    pairs: tuple[tuple[int, int, float], ...]

    @property
    def teaches(self) -> bool:
        """Whether the question has a pair of steps."""
        return bool(self.pairs)


def balanced(pairs: Sequence[StepPair], most: int) -> list[StepPair]:
    """At most `most` pairs, all depths alike as far as they have any, within a depth those of the widest margin."""
    depths: dict[int, list[StepPair]] = {}
    for pair in sorted(pairs, key=lambda pair: -pair.margin):
        depths.setdefault(pair.depth, []).append(pair)
    kept: list[StepPair] = []
    turn = 0
    while len(kept) < min(most, len(pairs)):
        kept += [depths[depth][turn] for depth in sorted(depths) if turn < len(depths[depth])]
        turn += 1
    return kept[:most]


def pack_steps(
    question: str, prompt_ids: Sequence[int], steps: Iterable[LabelledStep], pairs: Sequence[StepPair]
) -> StepRow:
    """One question's steps and pairs as one row. The same step twice is one, with the weighted mean of its labels."""
    totals: dict[tuple[Ids, Ids], list[float]] = {}
    for step in steps:
        if not step.step_ids:
            continue
        total = totals.setdefault((step.prefix_ids, step.step_ids), [0.0, 0.0])
        total[0] += step.weight * step.target
        total[1] += step.weight
    for pair in pairs:
        for ids in (pair.chosen_ids, pair.rejected_ids):
            totals.setdefault((pair.prefix_ids, ids), [0.0, 0.0])
    place = {key: i for i, key in enumerate(totals)}
    ends = [(prefix + step, 0.0, 0.0) for prefix, step in totals]
    starts = [(prefix, 0.0, 0.0) for prefix, _ in totals]
    row = pack_values(question, prompt_ids, ends + starts)
    last: dict[int, int] = {-1: 0}
    parents = []
    for i, depth in enumerate(row.positions):
        parents.append(last[depth - 1])
        last[depth] = i
    return StepRow(
        question,
        row.token_ids,
        row.ends,
        row.positions,
        row.targets,
        row.weights,
        row.states[: len(place)],
        row.states[len(place) :],
        tuple(parents),
        tuple(total / weight if weight else 0.0 for total, weight in totals.values()),
        tuple(weight for _, weight in totals.values()),
        tuple(
            (place[p.prefix_ids, p.chosen_ids], place[p.prefix_ids, p.rejected_ids], p.margin)
            for p in pairs
            if p.chosen_ids != p.rejected_ids
        ),
    )


class StepCollator:
    """Pads rows: the trie's inputs as `ValueCollator` makes them, and what belongs to steps and pairs.

    `parents` `[B, T]`; `starts`, `stops`, `labels` and `label_weights` `[B, S]`; `better` and `worse` `[P]` index the
    flattened steps, `pair_weights` `[P]`. The weights of a question's steps, and of its pairs, sum to 1.
    """

    inputs = (*ValueCollator.inputs, "parents", "starts", "stops")

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        self.values = ValueCollator(dtype)

    def __call__(self, rows: Sequence[StepRow]) -> dict[str, torch.Tensor]:
        inputs = self.values(rows)
        del inputs["targets"], inputs["weights"]
        count, width = len(rows), max(len(row.states) for row in rows)
        parents = torch.zeros_like(inputs["input_ids"])
        starts, stops = torch.zeros(count, width, dtype=torch.long), torch.zeros(count, width, dtype=torch.long)
        labels, weights = torch.zeros(count, width), torch.zeros(count, width)
        better, worse, pair_weights = [], [], []
        for i, row in enumerate(rows):
            size = len(row.states)
            parents[i, : len(row.parents)] = torch.tensor(row.parents)
            starts[i, :size], stops[i, :size] = torch.tensor(row.starts), torch.tensor(row.states)
            labels[i, :size], weights[i, :size] = torch.tensor(row.labels), torch.tensor(row.label_weights)
            total = sum(weight for _, _, weight in row.pairs)
            for good, bad, weight in row.pairs:
                better.append(i * width + good)
                worse.append(i * width + bad)
                pair_weights.append(weight / total)
        return inputs | {
            "parents": parents,
            "starts": starts,
            "stops": stops,
            "labels": labels,
            "label_weights": weights / weights.sum(1, keepdim=True).clamp(min=1e-8),
            "better": torch.tensor(better, dtype=torch.long),
            "worse": torch.tensor(worse, dtype=torch.long),
            "pair_weights": torch.tensor(pair_weights),
        }


class StepScorer(torch.nn.Module):
    """Scores steps (see the module) with a causal language model `lm`; peft's wrapping of one will do.

    Args:
        head: have the linear layer; it begins as 0.
        logprob: have the log-probability.

    `adapter` names the adapter of `lm` that it computes with, where that is shared.
    """

    adapter: str | None = None

    def __init__(self, lm: Any, head: bool, logprob: bool) -> None:
        super().__init__()
        self.lm = lm
        device = lm.get_input_embeddings().weight.device
        self.head = Score(lm.config.hidden_size, 1, bias=False).to(device) if head else None
        if self.head is not None:
            torch.nn.init.zeros_(self.head.weight)
        self.mix = torch.nn.Parameter(torch.tensor(float(logprob), device=device), requires_grad=logprob)
        self.bias = torch.nn.Parameter(torch.zeros((), device=device))
        self.logprob = logprob

    @property
    def bare(self) -> PreTrainedModel:
        """The language model without peft's wrapping."""
        return bare(self.lm)

    @property
    def dtype(self) -> torch.dtype:
        """Of the hidden states."""
        return cast(torch.Tensor, self.bare.get_input_embeddings().weight).dtype

    def forward(
        self,
        input_ids: torch.Tensor,
        position_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        parents: torch.Tensor,
        starts: torch.Tensor,
        stops: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Scores and log-probabilities (nats; 0 without them) of the steps, both `[B, S]`."""
        bare = self.bare
        hidden = bare.base_model(
            input_ids=input_ids, position_ids=position_ids, attention_mask=attention_mask
        ).last_hidden_state
        batch = torch.arange(len(hidden), device=hidden.device)[:, None]
        score = self.bias.expand(stops.shape)
        logprob = torch.zeros_like(score)
        if self.head is not None:
            score = score + self.head(hidden[batch, stops])[..., 0]
        if self.logprob:
            seen = attention_mask[:, 0] == 0
            own = seen[batch, stops] & ~seen[batch, starts]
            wanted = own.any(1)
            of_tokens = token_logprobs(bare, hidden[batch, parents][wanted], input_ids[wanted])
            tokens = of_tokens.new_zeros(wanted.shape).masked_scatter(wanted, of_tokens)
            with torch.autocast(hidden.device.type, enabled=False):
                logprob = (own.to(tokens.dtype) @ tokens[..., None])[..., 0]
            score = score + self.mix * logprob.clamp(min=FLOOR)
        return score, logprob


def adapter_scorer(policy: PreTrainedModel, kind: str, settings: PrmConfig, lora: LoraConfig) -> StepScorer:
    """As `new_scorer`, but over the policy's own layers: what is trained is an adapter of its own and the last numbers."""
    name = f"{PRM}-{kind}"
    attach(policy, lora, name)
    implicit = kind == "implicit"
    scorer = StepScorer(policy, head=not implicit, logprob=implicit or settings.logprob)
    scorer.adapter = name
    bind(scorer, policy, name)
    return scorer


def new_scorer(policy: PreTrainedModel, kind: str, settings: PrmConfig, extra_layers: int) -> StepScorer:
    """A scorer of `kind` over a copy of the policy. Extra layers are for the linear layer: an implicit one has none."""
    lm = copy.deepcopy(policy)
    implicit = kind == "implicit"
    deepen(lm.base_model, lm.config, 0 if implicit else extra_layers)
    lm.requires_grad_(True)
    return StepScorer(lm, head=not implicit, logprob=implicit or settings.logprob)


def pair_loss(
    scores: torch.Tensor,
    better: torch.Tensor,
    worse: torch.Tensor,
    weights: torch.Tensor,
    total: torch.Tensor | None = None,
) -> torch.Tensor:
    """Bradley-Terry (nats): the weighted mean of `-log sigmoid(better - worse)`; no pair gives 0.

    `total` is the sum of the weights of an update of which these are a part.
    """
    flat = scores.reshape(-1)
    return (weights * F.softplus(flat[worse] - flat[better])).sum() / over(total, weights)


def step_scores(scorer: StepScorer, rows: Sequence[StepRow], size: int, bfloat16: bool = False) -> list[torch.Tensor]:
    """Score and log-probability of each row's steps: `[S, 2]` a row (CPU, fp32)."""

    def pick(output: Any, at: int, row: StepRow) -> torch.Tensor:
        return torch.stack([figure[at, : len(row.states)] for figure in output], -1)

    return forward_rows(scorer, rows, size, StepCollator(scorer.dtype), pick, bfloat16)


def pair_accuracy(scores: Sequence[torch.Tensor], rows: Sequence[StepRow]) -> float:
    """The share of all pairs that scores `[S]` a row put in the right order; ties count half, NaN without a pair."""
    right = total = 0.0
    for score, row in zip(scores, rows, strict=True):
        for better, worse, _ in row.pairs:
            difference = float(score[better] - score[worse])
            right += 1.0 if difference > 0 else 0.5 if difference == 0 else 0.0
            total += 1
    return right / total if total else float("nan")


def label_data(rows: Sequence[StepRow]) -> tuple[torch.Tensor, torch.Tensor]:
    """Labels and weights of all rows' steps, row after row `[N]`; each question's weights sum to 1."""
    labels = torch.tensor([label for row in rows for label in row.labels])
    weights = [w / max(math.fsum(row.label_weights), 1e-8) for row in rows for w in row.label_weights]
    return labels, torch.tensor(weights)


class PrmTrainer(JudgeTrainer):
    """The pairs' loss, the labels' and the language model's on good steps."""

    settings: PrmConfig
    kind: str

    def compute_loss(
        self, model: Any, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        all_labels, all_pairs, all_good = self.weights_of(inputs) if num_items_in_batch is None else num_items_in_batch
        labels, weights = inputs.pop("labels"), inputs.pop("label_weights")
        better, worse, pair_weights = inputs.pop("better"), inputs.pop("worse"), inputs.pop("pair_weights")
        scores, logprobs = model(**inputs)
        loss = scores.sum() * 0.0
        if self.kind != "classifier" and len(better):
            loss = loss + self.settings.rank_weight * pair_loss(scores, better, worse, pair_weights, all_pairs)
        if self.kind != "bradley-terry":
            share = 1.0 if self.kind == "classifier" else self.settings.label_weight
            loss = loss + share * cross_entropy(scores, labels, weights, all_labels)
        if model.logprob and self.settings.sft_weight:
            good = weights * labels
            loss = loss - self.settings.sft_weight * (good * logprobs.clamp(min=FLOOR)).sum() / over(all_good, good)
        return (loss, scores) if return_outputs else loss

    def weights_of(self, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Of labelled steps, of pairs, and of good steps."""
        weights = batch["label_weights"]
        return torch.stack([weights.sum(), batch["pair_weights"].sum(), (weights * batch["labels"]).sum()])


@dataclass(slots=True)
class FittedPrm:
    """A trained scorer, its curve (one entry an evaluation, `best` was kept) and the seconds of its training."""

    scorer: StepScorer
    kind: str
    curve: list[dict[str, float]] = field(default_factory=list)
    best: dict[str, float] = field(default_factory=dict)
    seconds: float = 0.0


def train_scorer(
    scorer: StepScorer,
    kind: str,
    train: Sequence[StepRow],
    held_out: Sequence[StepRow],
    settings: PrmConfig,
    *,
    out_dir: Path,
    seed: int,
    watch: Watcher = lambda line: None,
    callbacks: Sequence[TrainerCallback] = (),
    bfloat16: bool = False,
) -> FittedPrm:
    """Train in place; the scorer ends with its best weights by held-out pair accuracy, the untrained ones included.

    Between equals the labels' loss decides. `bfloat16` as in `train_network`.

    Raises DataError for data without pairs, or where both parts share a question.
    """
    check(train, held_out)
    size = questions_at_once(settings, scorer.lm, longest(train, held_out), scorer.logprob)
    if scorer.logprob:
        chosen = Random(seed).sample(range(len(train)), min(len(train), 200))
        rows = [train[i] for i in chosen]
        logprobs = torch.cat([both[:, 1] for both in step_scores(scorer, rows, size, bfloat16)])
        mix, bias = platt(logprobs.clamp(min=FLOOR), *label_data(rows))
        with torch.no_grad():
            scorer.mix.fill_(mix)
            scorer.bias.fill_(bias)

    def measure(loss: float) -> dict[str, float]:
        scores = [both[:, 0] for both in step_scores(scorer, held_out, size, bfloat16)]
        labels_loss = float(cross_entropy(torch.cat(scores), *label_data(held_out)))
        return {"loss": loss, "held_out_pairs": pair_accuracy(scores, held_out), "held_out_loss": labels_loss}

    trainer = PrmTrainer(
        model=scorer,
        args=Arguments(
            **judge_arguments(settings, scorer.lm, len(train), out_dir, seed, size, bfloat16),
            remove_unused_columns=False,
            label_names=[],
        ),
        train_dataset=list(train),
        data_collator=StepCollator(scorer.dtype),
        callbacks=list(callbacks),
    )
    trainer.settings, trainer.kind = settings, kind
    # Few pairs give few different accuracies.
    held = HeldOutWatch(
        scorer,
        settings,
        measure,
        lambda line: (line["held_out_pairs"], -line["held_out_loss"]),
        watch,
        untrained=True,
    )
    seconds = trainer.fit(held)
    return FittedPrm(scorer, kind, held.curve, held.best, seconds)
