"""Losses and gradients: TRL's on the same rows, hand-written sums, and the same in parts, packed or flat."""

from __future__ import annotations

import ast
import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from support import grpo_config, tiny_llama, update
from trl import GRPOConfig, GRPOTrainer, SFTConfig, SFTTrainer

import alphazero_llm_trainer
from alphazero_llm_trainer.errors import TrainingError
from alphazero_llm_trainer.policy.student import Student, load_student
from alphazero_llm_trainer.training.learner import Learner, Schedule, mask_of, padded
from alphazero_llm_trainer.training.losses import kl_estimate, value_loss
from alphazero_llm_trainer.training.models import MemoryOptions, make_trainable, trained_state
from alphazero_llm_trainer.training.objectives import Grpo, Likelihood, Ppo
from alphazero_llm_trainer.training.ppo_critic import Critic
from alphazero_llm_trainer.training.rows import TrainRow
from alphazero_llm_trainer.training.scoring import LabelLogProbs, Scorer, score

QUESTIONS = ["Ana has 3 pens. She buys 4 more pens.", "Ben sees 12 birds."]
RESPONSES = ["3 + 4 = 7\n#### 7", "12\n#### 12", "3 + 5 = 8\n4 + 4 = 8\n#### 8", "#### 5"]


def student_of(*overrides: str) -> tuple[Student, Any]:
    config = grpo_config(["student=embedded", *overrides])
    return load_student(config), config


def rows_of(student: Student, count: int = 12, shift: float = 0.1) -> list[TrainRow]:
    """Rows of different lengths with advantages of both signs. The policy that sampled them was a little another one."""
    rows = []
    for i in range(count):
        prompt = student.prompt_ids(QUESTIONS[i % 2])
        ids = (*student.encode(RESPONSES[i % 4]), student.engine.eos_id)
        with torch.no_grad():
            logits = student.model(torch.tensor([[*prompt, *ids]])).logits[0].log_softmax(-1)[len(prompt) - 1 : -1]
        old = logits.gather(1, torch.tensor(ids)[:, None])[:, 0] - shift * ((-1) ** i)
        kind = "demonstration" if i == 5 else "policy"
        credit, reward = (0.1 * (i - 5),) * len(ids), float(i % 3 == 0)
        rows.append(TrainRow(prompt, ids, tuple(old.tolist()), credit, kind, reward, index=i))
    return rows


def learner_of(model: Any, objective: Any, memory: MemoryOptions = MemoryOptions(), batch: int = 12) -> Learner:  # noqa: B008
    settings = grpo_config([
        f"train.optimizer.batch_size={batch}", "train.optimizer.weight_decay=0", "train.optimizer.max_grad_norm=1e9",
    ]).train.optimizer  # fmt: skip
    return Learner(model, objective, memory, Schedule(1e-9, 0, 10), settings)


def gradients(
    model: Any, objective: Any, rows: list[TrainRow], memory: MemoryOptions | None = None
) -> dict[str, torch.Tensor]:
    """Of one update on all rows, the critic's among them."""
    learner, found = learner_of(model, objective, memory or MemoryOptions(), len(rows)), {}
    objective.begin(learner, rows, 1)
    plain = learner.clip

    def clip() -> dict[str, float]:
        figures = plain()  # which leaves gradients of this size as they are
        named = dict(model.named_parameters()) | {f"critic {k}": p for k, p in objective.extra().items()}
        found.update({name: p.grad.clone() for name, p in named.items() if p.grad is not None})
        return figures

    learner.clip = clip  # type: ignore[method-assign]
    found["loss"] = torch.tensor(update(learner, rows)["loss"])
    return found


def close(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor], tolerance: float = 1e-5) -> None:
    assert found.keys() == expected.keys() and len(found) > 5
    for name, value in expected.items():
        torch.testing.assert_close(
            found[name], value, atol=tolerance, rtol=1e-4, msg=lambda text, name=name: f"{name}: {text}"
        )


def test_a_float16_students_gradients_are_its_float32_twins() -> None:
    """Even where a token's share of the mean is less than float16 can hold."""
    found = []
    for dtype in ("float32", "float16"):
        student, _ = student_of("train.adapter=lora", f"models.embedded.dtype={dtype}")
        assert student.model.dtype == getattr(torch, dtype)
        torch.manual_seed(0)
        model = make_trainable(student.model, student.spec, "lora")
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.requires_grad:
                    parameter.copy_(0.1 * torch.randn_like(parameter))
        objective = Likelihood()
        totals = objective.totals
        objective.totals = lambda rows, totals=totals: (1e6 * totals(rows)[0],)  # type: ignore[method-assign]
        rows = [replace(row, advantages=(1.0,) * len(row.completion_ids)) for row in rows_of(student)]
        found.append(gradients(model, objective, rows))
    exact, ours = found
    assert exact.keys() == ours.keys() and len(ours) > 5
    for name, value in exact.items():
        assert (ours[name] - value).norm() <= 0.02 * value.norm(), name


# -- TRL's -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kl", [0.0, 0.3])
def test_the_loss_and_gradient_of_grpo_are_trls(kl: float, tmp_path: Path) -> None:
    student, config = student_of(f"train.kl_coefficient={kl}")
    rows, settings = rows_of(student), config.train
    theirs = copy.deepcopy(student.model)
    objective = Grpo(settings.model_copy(update={"pack": "off"}), student.model)
    reference = [[value - 0.05 * (i % 3) for value in row.old_logprobs] for i, row in enumerate(rows)]
    plain = objective.begin

    def begin(*args: Any) -> dict[str, float]:
        figures = plain(*args)
        if kl:
            objective.reference = dict(enumerate(reference))
        return figures

    objective.begin = begin  # type: ignore[method-assign]
    found = gradients(student.model, objective, rows)
    trainer = GRPOTrainer(
        model=theirs,
        reward_funcs=lambda completions, **_: [0.0] * len(completions),
        args=GRPOConfig(
            output_dir=str(tmp_path), beta=kl, use_bias_correction_kl=True, epsilon=settings.clip_low,
            epsilon_high=settings.clip_high, loss_type="bnpo", per_device_train_batch_size=2, num_generations=2,
            bf16=False, use_cpu=True, report_to="none", gradient_checkpointing=False,
        ),
        train_dataset=Dataset.from_dict({"prompt": ["0"]}),
        processing_class=student.tokenizer,
    )  # fmt: skip
    trainer.current_gradient_accumulation_steps = 1
    longest = max(len(row.prompt_ids) for row in rows)
    like = torch.zeros(len(rows), max(len(row.completion_ids) for row in rows))
    prompts, seen = torch.zeros(len(rows), longest, dtype=torch.long), torch.zeros(len(rows), longest, dtype=torch.long)
    for i, row in enumerate(rows):
        prompts[i, longest - len(row.prompt_ids) :], seen[i, longest - len(row.prompt_ids) :] = (
            torch.tensor(row.prompt_ids),
            1,
        )
    inputs = {
        "prompt_ids": prompts, "prompt_mask": seen, "completion_ids": padded([r.completion_ids for r in rows], like).long(),
        "completion_mask": mask_of(rows, like).long(), "advantages": padded([r.advantages for r in rows], like),
        "old_per_token_logps": padded([r.old_logprobs for r in rows], like), "ref_per_token_logps": padded(reference, like),
    }  # fmt: skip
    trainer.model.train()
    loss = trainer._compute_loss(trainer.model, inputs)
    loss.backward()
    expected = {name: p.grad for name, p in trainer.model.named_parameters() if p.grad is not None}
    close(found, expected | {"loss": loss.detach()})


def test_the_loss_and_gradient_of_supervised_training_are_trls(tmp_path: Path) -> None:
    student, _ = student_of()
    rows = [
        TrainRow(row.prompt_ids, row.completion_ids, (), (1.0,) * len(row.completion_ids)) for row in rows_of(student)
    ]
    theirs = copy.deepcopy(student.model)
    found = gradients(student.model, Likelihood(), rows)
    data = [{"prompt_ids": list(r.prompt_ids), "completion_ids": list(r.completion_ids)} for r in rows]
    ids = [[*row["prompt_ids"], *row["completion_ids"]] for row in data]
    width = max(map(len, ids))
    inputs = {
        "input_ids": torch.tensor([one + [0] * (width - len(one)) for one in ids]),
        "attention_mask": torch.tensor([[1] * len(one) + [0] * (width - len(one)) for one in ids]),
        "labels": torch.tensor(
            [
                [-100] * len(r["prompt_ids"]) + r["completion_ids"] + [-100] * (width - len(i))
                for r, i in zip(data, ids, strict=True)
            ]
        ),
    }
    arguments = SFTConfig(
        output_dir=str(tmp_path), bf16=False, use_cpu=True, report_to="none", gradient_checkpointing=False
    )
    trainer = SFTTrainer(
        model=theirs,
        args=arguments,
        train_dataset=Dataset.from_dict({"input_ids": ids}),
        processing_class=student.tokenizer,
    )
    trainer.model.train()
    loss = trainer.compute_loss(trainer.model, inputs)
    loss.backward()
    expected = {name: p.grad for name, p in trainer.model.named_parameters() if p.grad is not None}
    close(found, expected | {"loss": loss.detach()})


def test_these_are_the_names_of_trl_that_the_package_uses() -> None:
    used = set()
    for path in Path(alphazero_llm_trainer.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "trl":
                assert node.module == "trl", f"{path}: public names alone"
                used |= {alias.name for alias in node.names}
    assert used <= {"RewardConfig", "RewardTrainer"}


# -- hand-written sums -------------------------------------------------------------------------------------------------


def test_weights_of_tokens_are_shares_of_the_mean() -> None:
    student, _ = student_of()
    rows = rows_of(student, 4)
    weighted = [
        TrainRow(r.prompt_ids, r.completion_ids, (), (0.5 + i,) * len(r.completion_ids)) for i, r in enumerate(rows)
    ]
    total = torch.tensor(0.0)
    for i, row in enumerate(weighted):
        logits = student.model(torch.tensor([[*row.prompt_ids, *row.completion_ids]])).logits[0].log_softmax(-1)
        own = logits[len(row.prompt_ids) - 1 : -1].gather(1, torch.tensor(row.completion_ids)[:, None])
        total = total - (0.5 + i) * own.sum()
    expected = total / sum((0.5 + i) * len(row.completion_ids) for i, row in enumerate(weighted))
    assert gradients(student.model, Likelihood(), weighted)["loss"] == pytest.approx(expected.item(), abs=1e-6)


def test_k3_is_0_where_the_policies_agree_and_never_negative() -> None:
    assert kl_estimate(torch.tensor([-0.5]), torch.tensor([-0.5])).item() == 0.0
    found = kl_estimate(torch.tensor([-0.5, -2.0]), torch.tensor([-1.0, -1.0]))
    expected = [torch.tensor(gap).exp().item() - gap - 1 for gap in (-0.5, 1.0)]
    assert found.tolist() == pytest.approx(expected) and (found > 0).all()


def test_the_value_loss_is_the_larger_of_the_free_and_the_held_one() -> None:
    values, old, returns = torch.full((1, 3), 0.8), torch.full((1, 3), 0.5), torch.tensor([[1.0, 0.0, 0.7]])
    loss, figures = value_loss(values, old, returns, torch.tensor([[1.0, 1.0, 0.0]]), torch.tensor(2.0), clip=0.1)
    assert loss.item() == pytest.approx(0.5 * (max(0.2**2, 0.4**2) + max(0.8**2, 0.6**2)) / 2)
    assert figures["value_clip_fraction"].item() == 0.5


@pytest.mark.parametrize("importance", [True, False])
def test_a_ratio_beyond_the_clip_silences_a_right_response_unless_it_is_taken_as_1(importance: bool) -> None:
    student, config = student_of(f"train.importance={importance}", "train.pack=off")
    prompt, ids = student.prompt_ids(QUESTIONS[0]), (*student.encode("#### 7"), student.engine.eos_id)
    # As if the policy that sampled it had found every token next to impossible: the ratio is far over 1 + clip_high.
    row = TrainRow(prompt, ids, (-50.0,) * len(ids), (1.0,) * len(ids))
    objective = Grpo(config.train, student.model)
    found = gradients(student.model, objective, [row] * 4)
    assert any(grad.any() for name, grad in found.items() if name != "loss") != importance


@pytest.mark.parametrize("pack", ["on", "off"])
@pytest.mark.parametrize("method", ["grpo", "ppo", "likelihood"])
def test_parts_and_packing_have_the_gradient_of_the_whole(method: str, pack: str) -> None:
    found = []
    for memory, packed in ((MemoryOptions(), "off"), (MemoryOptions(micro_batch=3, checkpointing=True), pack)):
        student, config = student_of("train.kl_coefficient=0.05", "train.critic_rounds=0")
        torch.manual_seed(0)
        rows, objective = rows_of(student), objective_of(method, student, config, packed)
        found.append(gradients(student.model, objective, rows, memory))
    close(found[1], found[0], 3e-5)


def objective_of(method: str, student: Student, config: Any, pack: str) -> Any:
    if method == "likelihood":
        return Likelihood(pack)
    settings = config.train.model_copy(update={"pack": pack})
    if method == "grpo":
        return Grpo(settings, student.model)
    critic = Critic(student.model, None)
    torch.nn.init.normal_(critic.score.weight, std=0.05)
    return Ppo(settings, student.model, critic)


def test_a_loss_that_is_not_finite_changes_nothing() -> None:
    student, _ = student_of()
    row = TrainRow((1, 2), (3, 4), (), (float("nan"), 1.0))
    before = trained_state(student.model)
    with pytest.raises(TrainingError, match=r"loss is nan at update 1: .* train\.optimizer\.learning_rate"):
        update(learner_of(student.model, Likelihood(), batch=1), [row])
    assert all(torch.equal(before[name], p) for name, p in student.model.named_parameters())


# -- the head ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bias", [False, True])
def test_the_head_at_labels_alone_has_the_whole_forwards_numbers(bias: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_llama(4)
    if bias:  # more than a product: the model's own forward is asked
        head = model.get_output_embeddings()
        head.bias = torch.nn.Parameter(torch.linspace(-2, 2, len(head.weight)))
    counted, plain = [], LabelLogProbs.apply
    monkeypatch.setattr(
        LabelLogProbs, "apply", lambda hidden, *rest: counted.append(len(hidden)) or plain(hidden, *rest)
    )
    rows = [TrainRow((5, 6, 7), (11, 12, 13), (), (1.0,) * 3), TrainRow((9,), (14, 15), (), (1.0,) * 2)]
    found = score(Scorer(model), model.config, rows, "off", torch.float32, "cpu")
    assert counted == ([] if bias else [5])
    for i, row in enumerate(rows):
        logits = model(torch.tensor([[*row.prompt_ids, *row.completion_ids]])).logits[0, len(row.prompt_ids) - 1 : -1]
        every = logits.log_softmax(-1)
        own = every.gather(1, torch.tensor(row.completion_ids)[:, None])[:, 0]
        torch.testing.assert_close(found.logprobs[i, : len(own)], own, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(found.entropy[i, : len(own)], -(every.exp() * every).sum(-1), atol=1e-5, rtol=1e-5)
    assert not found.logprobs[1, 2:].any()


def test_a_probability_of_zero_has_no_entropy() -> None:
    hidden, weight = torch.tensor([[1.0]], requires_grad=True), torch.tensor([[0.0], [float("-inf")]])
    logprobs, entropy = LabelLogProbs.apply(hidden, weight, torch.tensor([0]))
    assert (logprobs.item(), entropy.item()) == (0.0, 0.0)


# -- PPO ---------------------------------------------------------------------------------------------------------------


def test_the_critic_reads_the_state_before_each_token_and_begins_at_a_half() -> None:
    policy = tiny_llama(4)
    critic = Critic(policy)
    rows = [TrainRow((5, 6, 7), (11, 12, 13), (), ()), TrainRow((9,), (14, 15), (), ())]
    assert (critic(rows)[0] == 0.5).all()
    torch.nn.init.normal_(critic.score.weight)
    found = critic(rows)
    for i, row in enumerate(rows):
        hidden = policy.base_model(torch.tensor([[*row.prompt_ids, *row.completion_ids]])).last_hidden_state[0]
        expected = critic.score(hidden)[len(row.prompt_ids) - 1 : -1, 0]
        torch.testing.assert_close(found[i, : len(expected)], expected, atol=1e-5, rtol=1e-5)
        assert not found[i, len(expected) :].any()
    # Its extra layer was an identity, and trains; the policy's own weights are no part of it.
    found.sum().backward()
    assert critic.backbone.layers[-1].mlp.down_proj.weight.grad.any()
    assert (policy.config.num_hidden_layers, critic.config.num_hidden_layers) == (2, 3)
    assert not {id(p) for p in policy.parameters()} & {id(p) for p in critic.parameters()}


def test_advantages_are_whitened_gae_and_demonstrations_keep_theirs() -> None:
    student, config = student_of("train.critic_rounds=1", "train.gae_lambda=0.9")
    rows, objective = rows_of(student, 6), objective_of("ppo", student, config, "off")
    learner = learner_of(student.model, objective, batch=6)
    objective.begin(learner, rows, 0)
    like = torch.zeros(6, max(len(row.completion_ids) for row in rows))
    first = padded(objective.advantages(rows), like)
    assert not first[:5].any() and first[5].any() == any(rows[5].advantages), "at first the critic learns alone"
    objective.begin(learner, rows, 1)
    found, raw = padded(objective.advantages(rows), like), []
    for row in rows[:5]:
        returns, values = objective.returns[row.index], objective.values[row.index]
        count, following, own = len(row.completion_ids), 0.0, []
        for t in reversed(range(count)):
            after = values[t + 1] if t + 1 < count else 0.0
            following = (row.reward if t + 1 == count else 0.0) + after - values[t] + 0.9 * following
            own.insert(0, following)
        raw.append(torch.tensor(own))
        assert returns == pytest.approx([a + v for a, v in zip(own, values, strict=True)], abs=1e-5)
    every = torch.cat(raw)
    for i, one in enumerate(raw):
        torch.testing.assert_close(
            found[i, : len(one)], (one - every.mean()) / every.std(correction=0), atol=1e-4, rtol=1e-4
        )
    assert found[5, : len(rows[5].advantages)].tolist() == pytest.approx(rows[5].advantages)


def test_the_kl_penalty_of_ppo_is_in_the_reward_alone() -> None:
    student, config = student_of("train.critic_rounds=0", "train.kl_coefficient=0.5", "train.gae_lambda=1.0")
    # As if the policy that sampled had held each token likelier than the reference does, by 0.2 nats, and less likely in turn.
    rows, objective = rows_of(student, 4, shift=0.2), objective_of("ppo", student, config, "off")
    objective.begin(learner_of(student.model, objective, batch=4), rows, 0)
    for i, row in enumerate(rows):
        count, gap = len(row.completion_ids), -0.2 * (-1) ** i
        # lambda 1: a token's return is what is earned from it on, each token's penalty and the outcome at the end.
        expected = [row.reward - 0.5 * gap * (count - t) for t in range(count)]
        assert objective.returns[row.index] == pytest.approx(expected, abs=1e-3)
    _, figures = objective.loss(rows, score(Scorer(student.model), student.model.config, rows, "off", torch.float32, "cpu"),
                                torch.tensor(objective.totals(rows)))  # fmt: skip
    assert "kl" not in figures and "critic_loss" in figures


def test_a_minibatch_without_the_policys_rows_has_no_critics_figures() -> None:
    student, config = student_of("train.critic_rounds=0")
    rows, objective = rows_of(student, 6), objective_of("ppo", student, config, "off")
    learner = learner_of(student.model, objective, batch=1)
    objective.begin(learner, rows, 0)
    assert "critic_loss" in update(learner, rows[:1]) and "critic_loss" not in update(learner, rows[5:])


# -- checkpoints -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("adapter", ["full", "lora"])
def test_a_restored_learner_makes_the_same_updates_to_the_bit(adapter: str, tmp_path: Path) -> None:
    def made() -> tuple[Learner, list[TrainRow], Any]:
        student, config = student_of("train.critic_rounds=0", f"train.adapter={adapter}")
        torch.manual_seed(0)
        model = make_trainable(student.model, student.spec, adapter)
        lora = student.spec.lora if adapter == "lora" else None
        settings = config.train.model_copy(update={"pack": "off"})
        objective = Ppo(settings, model, Critic(student.model, lora))
        optimizer = settings.optimizer.model_copy(update={"batch_size": 6, "weight_decay": 0.01, "max_grad_norm": 1.0})
        learner = Learner(model, objective, MemoryOptions(), Schedule(1e-3, 1, 8), optimizer)
        return learner, rows_of(student, 6), objective

    ends = []
    for resumed in (False, True):
        learner, rows, objective = made()
        for number in range(2 if resumed else 0, 4):
            if resumed and number == 2:
                learner.restore(tmp_path / "checkpoint", 2)
            objective.begin(learner, rows, number)
            update(learner, rows)
            if number == 1:
                learner.save(tmp_path / "checkpoint")
        ends.append(
            trained_state(learner.whole) | {f"critic {k}": p.detach().clone() for k, p in objective.extra().items()}
        )
    assert ends[0].keys() == ends[1].keys()
    differ = {
        n: (ends[0][n] - ends[1][n]).abs().max().item() for n in ends[0] if not torch.equal(ends[0][n], ends[1][n])
    }
    assert not differ
    names = {path.name for path in (tmp_path / "checkpoint").iterdir()}
    assert "model.safetensors" in names and "optimizer.bin" in names
