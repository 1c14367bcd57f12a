"""GRPO's loss on given rows: what the importance ratio does to a response that its policy held unlikely."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from alphazero_llm_trainer.config.load import load_config
from alphazero_llm_trainer.policy.student import load_student
from alphazero_llm_trainer.training.grpo import make_grpo_trainer
from alphazero_llm_trainer.training.rows import TrainRow


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


@pytest.mark.parametrize("unbiased", [True, False])
def test_the_kl_penalty_is_the_one_that_the_configuration_names(unbiased: bool, tmp_path: Path) -> None:
    student = load_student(load_config(overrides=["student=embedded"]))
    settings = load_config(
        overrides=["train.grpo.kl_coefficient=0.5", "train.grpo.batch_size=4", "train.grpo.epochs=1"]
        + ["train.grpo.kl_unbiased=false"] * (not unbiased)  # true is the default
    ).train.grpo
    prompt = student.prompt_ids("Ana has 4 apples. How many apples does Ana have now?")
    ids = (*student.encode("#### 4"), student.engine.eos_id)
    # No advantage: the loss is the penalty alone. The policy that sampled it was another one, so the ratio isn't 1.
    row = TrainRow(prompt, ids, (-0.3,) * len(ids), (0.0,) * len(ids))
    trainer = make_grpo_trainer(
        student.model, student.tokenizer, settings, rounds=1, rows_per_round=4, rows_of_round=lambda number: [row] * 4,
        output_dir=tmp_path, save_every_rounds=1, seed=0, max_completion=16,
    )  # fmt: skip
    trainer.model.train()
    trainer.current_gradient_accumulation_steps = 1
    inputs = trainer._generate_and_score_completions([{"prompt": "0"}] * 4)
    inputs["ref_per_token_logps"] = torch.full_like(inputs["old_per_token_logps"], -0.7)
    loss = trainer._compute_loss(trainer.model, inputs).item()
    with torch.no_grad():
        logits = student.model(torch.tensor([[*prompt, *ids]])).logits[0].log_softmax(-1)[len(prompt) - 1 : -1]
    now = logits.gather(1, torch.tensor(ids)[:, None])[:, 0]
    estimate = torch.exp(-0.7 - now) - (-0.7 - now) - 1
    weighed = estimate * torch.exp(now + 0.3) if unbiased else estimate
    assert loss == pytest.approx(0.5 * weighed.mean().item(), rel=1e-4)
    assert weighed.mean() != pytest.approx(estimate.mean().item(), rel=1e-3) or not unbiased
