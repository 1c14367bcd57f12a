"""GRPO's loss on given rows: what the importance ratio does to a response that its policy held unlikely."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from alphazero_llm_trainer.config.load import load_config
from alphazero_llm_trainer.policy.student import load_student
from alphazero_llm_trainer.train.grpo import make_grpo_trainer
from alphazero_llm_trainer.train.rows import TrainRow


@pytest.mark.parametrize("importance", [True, False])
def test_a_ratio_beyond_the_clip_silences_a_right_response_unless_it_is_taken_as_1(
    importance: bool, tmp_path: Path
) -> None:
    student = load_student(load_config(overrides=["student=embedded"]))
    settings = load_config(
        overrides=[f"train.grpo.importance={importance}", "train.grpo.batch_size=4", "train.grpo.epochs=1"]
    ).train.grpo
    prompt = student.prompt_ids("Ana has 4 apples. How many apples does Ana have now?")
    ids = (*student.encode("#### 4"), student.engine.eos_id)
    # As if the policy that sampled it had found every token next to impossible: the ratio is far over 1 + clip_high.
    row = TrainRow(prompt, ids, (-50.0,) * len(ids), (1.0,) * len(ids))

    def rows(number: int) -> Sequence[TrainRow]:
        return [row] * 4

    before = {name: parameter.detach().clone() for name, parameter in student.model.named_parameters()}
    make_grpo_trainer(
        student.model, student.tokenizer, settings, rounds=1, rows_per_round=4, rows_of_round=rows,
        output_dir=tmp_path, save_every_rounds=1, seed=0, max_completion=16,
    ).train()  # fmt: skip
    moved = any(not torch.equal(before[name], parameter) for name, parameter in student.model.named_parameters())
    assert moved != importance
