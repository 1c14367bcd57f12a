"""PPO: the critic reads the states that it should, the losses are the written-out ones, and a run has what it needs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from support import tiny_llama

from alphazero_llm_trainer.config.load import load_config
from alphazero_llm_trainer.policy.student import Student, load_student
from alphazero_llm_trainer.training.ppo import CRITIC, Critic, SearchPPOTrainer, make_ppo_trainer
from alphazero_llm_trainer.training.rows import TrainRow

PROMPTS, COMPLETIONS = (
    ["Ana has 3 pens.", "Ben sees 12 birds."],
    ["3 + 4 = 7\n#### 7", "12\n#### 12", "3 + 5 = 8\n#### 8"],
)
SETTINGS = ["train.ppo.batch_size=6", "train.ppo.epochs=2", "train.ppo.warmup_rounds=0", "train.ppo.gae_lambda=0.9"]


pytestmark = pytest.mark.filterwarnings("ignore:You are using 'rollout_func'")


@pytest.fixture(scope="module")
def student() -> Student:
    return load_student(load_config(overrides=["student=embedded"]))


def rows_of(student: Student) -> list[TrainRow]:
    """Two questions with responses, right and wrong ones, one of them sampled twice, and a demonstration."""
    rows = []
    for i, (question, response, reward) in enumerate(
        [(0, 0, 1.0), (0, 2, 0.0), (0, 2, 0.0), (1, 1, 1.0), (1, 0, 0.0), (1, 1, 0.5)]
    ):
        prompt = student.prompt_ids(PROMPTS[question])
        ids = (*student.encode(COMPLETIONS[response]), student.engine.eos_id)
        kind = "demonstration" if i == 5 else "policy"
        with torch.no_grad():
            logits = student.model(torch.tensor([[*prompt, *ids]])).logits[0].log_softmax(-1)[len(prompt) - 1 : -1]
        old = tuple(logits.gather(1, torch.tensor(ids)[:, None])[:, 0].tolist())
        advantages = (0.5 if kind == "demonstration" else 0.0,) * len(ids)
        rows.append(TrainRow(prompt, ids, old, advantages, kind=kind, reward=reward))
    return rows


def trainer_of(folder: Path, *overrides: str) -> tuple[SearchPPOTrainer, list[TrainRow]]:
    config = load_config(overrides=["student=embedded", *SETTINGS, *overrides])
    student = load_student(config)
    rows = rows_of(student)
    student.model.requires_grad_(True)
    trainer = make_ppo_trainer(
        student.model,
        student.tokenizer,
        config.train.ppo,
        policy=student.model,
        rows_per_round=len(rows),
        rounds=2,
        rows_of_round=lambda number: rows,
        output_dir=folder,
        save_every_rounds=1,
        seed=3,
        max_completion=64,
    )
    return trainer, rows


def test_the_critic_reads_the_state_before_each_token() -> None:
    policy = tiny_llama(4)
    critic = Critic(policy)
    assert float(critic.score.weight.detach().abs().max()) == 0.0
    torch.nn.init.normal_(critic.score.weight)
    prompts, completions = [[5, 6, 7], [9]], [[11, 12, 13], [14, 15]]
    ids, mask = torch.zeros(2, 6, dtype=torch.long), torch.zeros(2, 6, dtype=torch.long)
    for i, (p, c) in enumerate(zip(prompts, completions, strict=True)):
        ids[i, 3 - len(p) : 3], mask[i, 3 - len(p) : 3] = torch.tensor(p), 1
        ids[i, 3 : 3 + len(c)], mask[i, 3 : 3 + len(c)] = torch.tensor(c), 1
    found = critic(ids, mask, 3)
    for i, (p, c) in enumerate(zip(prompts, completions, strict=True)):
        hidden = policy.base_model(torch.tensor([p + c])).last_hidden_state[0]
        expected = critic.score(hidden)[len(p) - 1 : -1, 0]
        assert torch.allclose(found[i, : len(c)], expected, atol=1e-5)
        assert not found[i, len(c) :].any()


def test_extra_layers_are_identities_at_first_and_train() -> None:
    policy = tiny_llama(4)
    plain, deep = Critic(policy), Critic(policy, extra_layers=2)
    deep.score.load_state_dict(plain.score.state_dict())
    for critic in (plain, deep):
        torch.nn.init.ones_(critic.score.weight)
    ids = torch.tensor([[5, 6, 7, 11, 12]])
    found = [critic(ids, torch.ones_like(ids), 2) for critic in (plain, deep)]
    assert torch.allclose(found[0], found[1], atol=1e-5)
    found[1].sum().backward()
    assert float(deep.backbone.layers[-1].mlp.down_proj.weight.grad.abs().max()) > 0
    assert policy.config.num_hidden_layers == 2


def test_the_critic_is_a_copy_that_trains_alone() -> None:
    policy = tiny_llama(4)
    critic = Critic(policy)
    own = {id(p) for p in policy.parameters()}
    assert not own & {id(p) for p in critic.parameters()}


def prepared(trainer: SearchPPOTrainer, rows: list[TrainRow]) -> dict[str, torch.Tensor]:
    trainer.model.train()
    trainer.current_gradient_accumulation_steps = 1
    trainer.create_optimizer_and_scheduler(4)
    return trainer._generate_and_score_completions([{"prompt": "0"} for _ in rows])


def test_advantages_are_whitened_gae_and_demonstrations_keep_theirs(tmp_path: Path) -> None:
    trainer, rows = trainer_of(tmp_path, "train.ppo.critic_rounds=0")
    torch.nn.init.normal_(trainer.critic.score.weight, std=0.05)
    out = prepared(trainer, rows)
    values, mask = out["old_values"], out["completion_mask"].bool()
    raw = []
    for i, row in enumerate(rows[:5]):
        count, following, found = len(row.completion_ids), 0.0, []
        for t in reversed(range(count)):
            after = values[i, t + 1].item() if t + 1 < count else 0.0
            earned = row.reward if t + 1 == count else 0.0
            following = earned + after - values[i, t].item() + 0.9 * following
            found.insert(0, following)
        raw.append(torch.tensor(found))
        assert torch.allclose(out["returns"][i, :count], raw[-1] + values[i, :count], atol=1e-5)
    every = torch.cat(raw)
    for i, one in enumerate(raw):
        expected = (one - every.mean()) / every.std(correction=0)
        assert torch.allclose(out["advantages"][i, : len(one)], expected, atol=1e-4)
    assert (out["advantages"][5][mask[5]] == 0.5).all()
    assert not out["advantages"][~mask].any()


def test_the_first_rounds_leave_the_policy_to_the_demonstrations(tmp_path: Path) -> None:
    trainer, rows = trainer_of(tmp_path, "train.ppo.critic_rounds=1")
    out = prepared(trainer, rows)
    assert not out["advantages"][:5].any() and out["advantages"][5].any()
    assert out["returns"][0].any()


def test_the_value_loss_is_the_clipped_one(tmp_path: Path) -> None:
    trainer, rows = trainer_of(tmp_path, "train.ppo.critic_rounds=0", "train.ppo.value_clip=0.1")
    out = prepared(trainer, rows)
    trainer.ppo = trainer.ppo.model_copy(update={"value_coefficient": 0.0})
    policy_loss = trainer._compute_loss(trainer.model, out).item()
    trainer.ppo = trainer.ppo.model_copy(update={"value_coefficient": 2.0})
    torch.nn.init.constant_(trainer.critic.score.bias, 0.8)  # 0.3 from the values at sampling, which were 0.5
    loss = trainer._compute_loss(trainer.model, out).item()
    terms = [
        max((0.8 - target) ** 2, (0.6 - target) ** 2)
        for i, row in enumerate(rows[:5])
        for target in out["returns"][i, : len(row.completion_ids)].tolist()
    ]
    assert loss - policy_loss == pytest.approx(2.0 * 0.5 * sum(terms) / len(terms), abs=1e-5)


def test_the_kl_penalty_is_in_the_reward_and_not_in_the_loss(tmp_path: Path) -> None:
    trainer, rows = trainer_of(tmp_path, "train.ppo.critic_rounds=0", "train.ppo.kl_coefficient=0.5")
    with torch.no_grad():  # the policy has moved away from the reference since
        trainer.model.model.embed_tokens.weight.mul_(1.01)
    out = prepared(trainer, rows)
    gap = out["old_per_token_logps"] - out["ref_per_token_logps"]
    assert gap.abs().max() < 1e-3  # the snapshot was made before it moved
    out["ref_per_token_logps"] += 100.0
    first = trainer._compute_loss(trainer.model, out).item()
    out["ref_per_token_logps"] -= 200.0
    assert trainer._compute_loss(trainer.model, out).item() == pytest.approx(first, abs=1e-6)
    assert trainer.beta == 0.5


def test_the_kl_penalty_lowers_what_a_token_earns_where_the_policy_likes_it_more_than_the_reference(
    tmp_path: Path,
) -> None:
    trainer, rows = trainer_of(
        tmp_path, "train.ppo.critic_rounds=0", "train.ppo.kl_coefficient=0.5", "train.ppo.gae_lambda=1.0"
    )
    # As if the policy that sampled had held each token likelier than the reference does, by 0.2 nats; the last row less.
    for i, row in enumerate(rows):
        shift = -0.3 if i == 4 else 0.2
        rows[i] = replace(row, old_logprobs=tuple(value + shift for value in row.old_logprobs))
    out = prepared(trainer, rows)
    for i, row in enumerate(rows[:5]):
        count = len(row.completion_ids)
        gap = -0.3 if i == 4 else 0.2
        # lambda 1: a token's return is what is earned from it on, each token's penalty and the outcome at the end.
        expected = [row.reward - 0.5 * gap * (count - t) for t in range(count)]
        assert out["returns"][i, :count].tolist() == pytest.approx(expected, abs=1e-3)
    [mean] = trainer._metrics["train"]["kl"]
    counts = [len(row.completion_ids) for row in rows[:5]]
    assert mean == pytest.approx((0.2 * sum(counts[:4]) - 0.3 * counts[4]) / sum(counts), abs=1e-3)


def test_critic_and_optimiser_are_in_the_checkpoint(tmp_path: Path) -> None:
    trainer, _ = trainer_of(tmp_path)
    trainer.train()
    assert trainer.state.global_step == 4
    saved = load_file(tmp_path / "checkpoint-2" / CRITIC)
    final = dict(trainer.critic.named_parameters())
    assert saved.keys() == final.keys()
    assert any((saved[name] - final[name]).abs().max() > 1e-5 for name in saved)
    optimiser = torch.load(tmp_path / "checkpoint-2" / "optimizer.pt", weights_only=True)
    assert len(optimiser["state"]) == len(list(trainer.model.parameters())) + len(final)
    again, _ = trainer_of(tmp_path)
    again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    for name, parameter in again.critic.named_parameters():
        assert torch.equal(parameter, final[name]), name
    for one, other in zip(again.model.parameters(), trainer.model.parameters(), strict=True):
        assert torch.equal(one, other)
    logged = {key for line in trainer.state.log_history for key in line}
    wanted = {"critic_loss", "explained_variance", "value_clip_fraction", "entropy", "grad_norm", "critic_grad_norm"}
    assert wanted | {"clip_ratio/region_mean", "advantage_mean", "advantage_std"} <= logged
