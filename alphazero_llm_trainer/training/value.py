"""Training a value network: binary cross-entropy on the mean outcome of the responses below each token."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from transformers import Trainer
from transformers import TrainingArguments as Arguments

from ..config.load import Config
from ..mcts.extract import value_targets
from ..policy.student import Student
from .critic import arguments, cross_entropy, forward_size
from .critic_data import Question
from .memory import MASK_BYTES
from .packing import ValueRow, collate, pack_values


def value_rows(questions: Iterable[Question], student: Student) -> list[ValueRow]:
    """One row a question: every token of its trees' responses, with the mean outcome of those that begin so.

    A question's weights sum to 1, so that each weighs the same.
    """
    rows = []
    for question in questions:
        targets = [
            (state.token_ids, state.target, float(state.weight))
            for tree in question.trees()
            for state in value_targets(tree, every_token=True)
        ]
        rows.append(pack_values(student.prompt_ids(question.text), targets))
    return rows


class ValueTrainer(Trainer):
    """The soft targets' cross-entropy, a mean over the questions of a forward."""

    def compute_loss(
        self, model: Any, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        targets, weights = inputs.pop("targets"), inputs.pop("weights")
        outputs = model(**inputs)
        loss = cross_entropy(outputs.logits[..., 0], targets, weights)
        return (loss, outputs) if return_outputs else loss


def value_trainer(
    network: Any, adapter: bool, rows: Sequence[ValueRow], config: Config, out: Path, bfloat16: bool = False
) -> ValueTrainer:
    """A trainer of `network` on rows of `value_rows`."""
    size = forward_size(config, network, max(len(row.token_ids) for row in rows), MASK_BYTES)
    return ValueTrainer(
        model=network,
        args=Arguments(
            **arguments(config, network, adapter, len(rows), size, out, bfloat16), remove_unused_columns=False
        ),
        train_dataset=list(rows),
        data_collator=partial(collate, dtype=next(network.parameters()).dtype, config=network.config),
    )
