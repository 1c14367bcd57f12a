"""Gradient accumulation: a minibatch in parts has the gradients of the whole, whatever the method and the packing."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import TrainerCallback

from alphazero_llm_trainer.config.load import load_config
from alphazero_llm_trainer.errors import ConfigError
from alphazero_llm_trainer.policy.student import load_student
from alphazero_llm_trainer.training.expert import make_expert_trainer
from alphazero_llm_trainer.training.grpo import make_grpo_trainer
from alphazero_llm_trainer.training.models import Economy, make_trainable
from alphazero_llm_trainer.training.ppo import make_ppo_trainer
from alphazero_llm_trainer.training.rows import TrainRow

pytestmark = pytest.mark.filterwarnings("ignore:You are using 'rollout_func'")
QUESTIONS = ["Ana has 3 pens. She buys 4 more pens.", "Ben sees 12 birds."]
RESPONSES = ["3 + 4 = 7\n#### 7", "12\n#### 12", "3 + 5 = 8\n4 + 4 = 8\n#### 8", "#### 5"]


class Gradients(TrainerCallback):
    """Copies of the gradients of every update."""

    def __init__(self) -> None:
        self.found: list[dict[str, torch.Tensor]] = []
        self.more: Any = None

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        named = dict(model.named_parameters())
        if self.more is not None:
            named |= {f"critic {name}": p for name, p in self.more.trained().items()}
        self.found.append({name: p.grad.clone() for name, p in named.items() if p.grad is not None})


def gradients(method: str, economy: Economy, folder: Path, pack: str = "off", adapter: str = "full") -> Any:
    """Of the first two updates on one round of 12 rows of different lengths, minibatches of 6."""
    four_bits = {"quantization": "nf4", "lora": {"dropout": 0.0}} if adapter == "lora" else {}
    overrides: list[Any] = [
        "student=embedded", {"models": {"embedded": {"adapter": adapter, **four_bits}}}, f"train.grpo.pack={pack}",
        "train.grpo.kl_coefficient=0.05" if adapter == "lora" else "seed=7",
        "train.grpo.batch_size=6", "train.ppo.batch_size=6", "train.legacy.batch_size=6", "train.ppo.critic_rounds=0",
        *[f"train.{name}.{key}" for name in ("grpo", "ppo", "legacy") for key in ("max_grad_norm=1e9", "learning_rate=1e-9")],
        "train.grpo.epochs=1", "train.ppo.epochs=1", "train.legacy.updates_per_round=2", "train.ppo.value_coefficient=0.7",
    ]  # fmt: skip
    config = load_config(overrides=overrides)
    student = load_student(config)
    torch.manual_seed(0)
    model = make_trainable(student.model, student.spec, adapter)
    if adapter == "lora":
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.data = 0.05 * torch.randn(parameter.shape)
    rows = []
    for i in range(12):
        prompt = student.prompt_ids(QUESTIONS[i % 2])
        ids = (*student.encode(RESPONSES[i % 4]), student.engine.eos_id)
        advantage = 0.1 * (i - 5)
        rows.append(
            TrainRow(prompt, ids, (-0.5,) * len(ids), (advantage,) * len(ids), weight=0.5 + i, reward=float(i % 3 == 0))
        )
    watch = Gradients()
    common: dict[str, Any] = {
        "rounds": 1, "rows_of_round": lambda number: rows, "output_dir": folder, "save_every_rounds": 1, "seed": 3,
        "callbacks": [watch], "economy": economy,
    }  # fmt: skip
    trainer: Any
    if method == "legacy":
        trainer = make_expert_trainer(model, student.tokenizer, config.train.legacy, **common)
    else:
        common |= {"rows_per_round": 12, "max_completion": 64}
        if method == "grpo":
            trainer = make_grpo_trainer(model, student.tokenizer, config.train.grpo, **common)
        else:
            lora = student.spec.lora if adapter == "lora" else None
            trainer = make_ppo_trainer(
                model, student.tokenizer, config.train.ppo, policy=student.model, lora=lora, **common
            )
            torch.nn.init.constant_(trainer.critic.score.weight, 0.01)
            watch.more = trainer.critic
    trainer.train()
    assert len(watch.found) == 2
    return watch.found


@pytest.mark.parametrize(
    ("method", "pack", "adapter"),
    [
        ("grpo", "off", "full"),
        ("grpo", "on", "full"),
        ("grpo", "on", "lora"),
        ("ppo", "off", "full"),
        ("ppo", "off", "lora"),
        ("legacy", "off", "full"),
        ("legacy", "off", "lora"),
    ],
)
def test_parts_of_a_minibatch_add_up_to_its_gradients(method: str, pack: str, adapter: str, tmp_path: Path) -> None:
    whole = gradients(method, Economy(), tmp_path / "whole", pack, adapter)
    parts = gradients(
        method, Economy(micro_batch=2, checkpointing=adapter == "lora"), tmp_path / "parts", pack, adapter
    )
    for one, other in zip(whole, parts, strict=True):
        assert one.keys() == other.keys()
        assert max(gradient.abs().max() for gradient in one.values()) > 1e-4
        if method == "ppo":
            assert any(name.startswith("critic") and gradient.abs().max() > 1e-4 for name, gradient in one.items())
        for name, gradient in one.items():
            torch.testing.assert_close(other[name], gradient, rtol=1e-4, atol=1e-6, msg=name)


class Weights(TrainerCallback):
    """The sum of the weights' sizes after every step of the schedule, and the log."""

    def __init__(self) -> None:
        self.found: list[float] = []
        self.logs: list[dict[str, float]] = []

    def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        self.found.append(sum(p.detach().double().abs().sum().item() for p in model.parameters()))

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        self.logs += [logs] if "loss" in logs else []


@pytest.mark.parametrize("micro_batch", [None, 2])
def test_steps_after_a_rounds_last_row_change_nothing(micro_batch: int | None, tmp_path: Path) -> None:
    """Two updates, none and three, of rounds of three: momentum and weight decay rest where there are no rows."""
    config = load_config(overrides=["student=embedded", "train.rft.updates_per_round=3", "train.rft.batch_size=4",
                                    "train.rft.weight_decay=0.1", "train.rft.warmup_rounds=0"])  # fmt: skip
    student = load_student(config)
    row = TrainRow(student.prompt_ids(QUESTIONS[0]), tuple(student.encode(RESPONSES[0])), (), ())
    given, watch = [2, 0, 3], Weights()
    trainer = make_expert_trainer(
        make_trainable(student.model, student.spec, "full"), student.tokenizer, config.train.rft,
        rounds=3, rows_of_round=lambda number: [row] * 4 * given[number], output_dir=tmp_path, save_every_rounds=3,
        seed=3, callbacks=[watch], economy=Economy(micro_batch=micro_batch),
    )  # fmt: skip
    trainer.train()
    assert [a != b for a, b in pairwise(watch.found)] == [True, False, False, False, False, True, True, True]
    losses, norms = ([log[name] for log in watch.logs] for name in ("loss", "grad_norm"))
    assert losses[0] > losses[2] > 0 and losses[1] == 0 and norms[0] > 0 and norms[1] == 0


def test_a_part_that_does_not_divide_the_minibatch_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"train\.micro_batch is 4 and train\.grpo\.batch_size 6"):
        Economy(micro_batch=4).split(6, "train.grpo.batch_size")
    assert Economy(micro_batch=8).split(6, "train.grpo.batch_size") == (6, 1)
