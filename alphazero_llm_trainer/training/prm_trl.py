"""The Bradley-Terry kind by TRL's own reward trainer: each pair as two whole sequences, nothing shared.

For files of plain pairs, or to check the packed trainer: a step costs its prompt and prefix again, twice a pair.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import AutoModelForSequenceClassification, PreTrainedTokenizerBase, PrinterCallback, TrainerCallback
from trl import RewardConfig, RewardTrainer

from ..config.train import PrmConfig
from ..errors import DataError
from ..policy.adapters import bind
from .judge import Watcher, check, judge_arguments, longest, questions_at_once
from .prm import FittedPrm, StepPair, StepRow, StepScorer, pair_accuracy, step_scores

TrlRow = dict[str, Any]


def pair_rows(prompt_ids: Sequence[int], pairs: Sequence[StepPair]) -> list[TrlRow]:
    """Pre-tokenised pairs as TRL takes them: `chosen_ids` and `rejected_ids`, from the prompt on, and `margin`.

    The text path would put an end token after every step.
    """
    return [
        {
            "chosen_ids": [*prompt_ids, *pair.prefix_ids, *pair.chosen_ids],
            "rejected_ids": [*prompt_ids, *pair.prefix_ids, *pair.rejected_ids],
            "margin": pair.margin,
        }
        for pair in pairs
    ]


def train_reward(
    scorer: StepScorer,
    rows: Sequence[TrlRow],
    train: Sequence[StepRow],
    held_out: Sequence[StepRow],
    tokenizer: PreTrainedTokenizerBase,
    settings: PrmConfig,
    *,
    out_dir: Path,
    seed: int,
    watch: Watcher = lambda line: None,
    callbacks: Sequence[TrainerCallback] = (),
) -> FittedPrm:
    """Train a scorer's backbone and linear layer in place on `rows`, for all epochs; `held_out` is only measured on."""
    check(train, held_out)
    if scorer.logprob or scorer.head is None:
        raise DataError("TRL's reward trainer reads the linear layer alone: set train.prm.logprob to false")
    size = questions_at_once(settings, scorer.lm, longest(held_out))
    # A pair is two whole sequences.
    pairs = questions_at_once(settings, scorer.lm, max(len(r["chosen_ids"]) + len(r["rejected_ids"]) for r in rows))
    curve: list[dict[str, float]] = []

    def evaluate(step: int, loss: float) -> None:
        scores = [both[:, 0] for both in step_scores(scorer, held_out, size)]
        line = {"step": float(step), "loss": loss, "held_out_pairs": pair_accuracy(scores, held_out)}
        curve.append(line | {"held_out_loss": float("nan")})
        watch(curve[-1])

    evaluate(0, float("nan"))
    trainer = RewardTrainer(
        model=sequence_model(scorer, tokenizer.pad_token_id),
        args=RewardConfig(
            **judge_arguments(settings, scorer.lm, len(rows), out_dir, seed, pairs),
            max_length=None,
            # TRL's defaults suit large models; the scorer keeps its own precision.
            gradient_checkpointing=False,
        ),
        train_dataset=Dataset.from_list(list(rows)),
        processing_class=tokenizer,
        callbacks=list(callbacks),
    )
    trainer.remove_callback(PrinterCallback)
    began = time.perf_counter()
    result = trainer.train()
    seconds = time.perf_counter() - began
    scorer.eval()
    evaluate(trainer.state.global_step, result.training_loss)
    return FittedPrm(scorer, "bradley-terry", curve, curve[-1], round(seconds, 1))


def sequence_model(scorer: StepScorer, pad_token_id: int | None) -> Any:
    """A sequence classifier of one label over the scorer's own backbone and linear layer: they are trained in place."""
    bare = scorer.bare
    shape = copy.deepcopy(bare.config)
    shape.num_labels, shape.pad_token_id, shape.architectures = 1, pad_token_id, None
    with torch.device("meta"):
        model: Any = AutoModelForSequenceClassification.from_config(shape)
    setattr(model, model.base_model_prefix, bare.base_model)
    model.score = scorer.head
    if scorer.adapter is not None:
        bind(model, bare, scorer.adapter)
    return model
