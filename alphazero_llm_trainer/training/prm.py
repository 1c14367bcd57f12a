"""Training a process reward model: Bradley-Terry on pairs of steps after one prefix, by TRL's reward trainer.

`-log sigmoid(r_better - r_worse)`, r being the score at a step's last token.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from datasets import Dataset
from transformers import AutoModelForSequenceClassification
from trl import RewardConfig, RewardTrainer

from ..config.load import Config
from ..policy.adapters import bind
from ..policy.student import Student
from .critic import arguments, classifier, forward_size
from .critic_data import Example

MOST_PAIRS = 16  # of a question that are learnt from; the widest margins


def pair_rows(example: Example, most: int) -> list[dict[str, list[int]]]:
    """At most `most` of a question's pairs, those of the widest margins, as TRL takes token ids: from the prompt on.

    Its text path would put an end token after every step.
    """
    widest = sorted(example.pairs, key=lambda pair: -example.pairs[pair])[:most]
    return [
        {"chosen_ids": [*example.prompt_ids, *better], "rejected_ids": [*example.prompt_ids, *worse]}
        for better, worse in widest
    ]


def prm_trainer(
    network: Any,
    adapter: bool,
    examples: Sequence[Example],
    student: Student,
    config: Config,
    out: Path,
    bfloat16: bool = False,
) -> RewardTrainer:
    """TRL's reward trainer over `network`'s own layers."""
    rows = [row for one in examples for row in pair_rows(one, MOST_PAIRS)]
    # A pair is two sequences.
    size = forward_size(config, network, max(len(row["chosen_ids"]) + len(row["rejected_ids"]) for row in rows))
    given = arguments(config, network, adapter, len(rows), size, out, bfloat16)
    return RewardTrainer(
        model=sequence_classifier(network, student, adapter),
        args=RewardConfig(**given, max_length=None),
        train_dataset=Dataset.from_list(rows),
        processing_class=student.tokenizer,
    )


def sequence_classifier(network: Any, student: Student, adapter: bool) -> Any:
    """TRL's view of a critic: the score of a whole sequence is that of its last token. It shares all of `network`'s weights."""
    shape = copy.deepcopy(network.config)
    shape.pad_token_id = student.tokenizer.pad_token_id
    model = classifier(AutoModelForSequenceClassification, shape, network.base_model, network.score)
    if adapter:
        bind(model, student.model, "prm")
    return model
