"""Losses and gradients: TRL's on the same rows, hand-written sums, and the same in parts, packed or
flat.
"""

import copy
import math
from dataclasses import replace

import pytest
import torch
from datasets import Dataset
from support import grpo_config, tiny_llama
from trl import GRPOConfig, GRPOTrainer, SFTConfig, SFTTrainer

from alphazero_llm_trainer.config.load import load_training
from alphazero_llm_trainer.errors import ConfigError, TrainingError
from alphazero_llm_trainer.learning.critic_network import CriticNetwork
from alphazero_llm_trainer.learning.learner import Learner, RateSchedule
from alphazero_llm_trainer.learning.losses import (
    Coefficients,
    Streams,
    grpo_loss,
    mask_of,
    objective_loss,
    pad_rows,
    value_loss,
)
from alphazero_llm_trainer.learning.methods.by_name import method_of
from alphazero_llm_trainer.learning.methods.expert_iteration import Likelihood
from alphazero_llm_trainer.learning.methods.grpo import Grpo
from alphazero_llm_trainer.learning.methods.ppo import Ppo
from alphazero_llm_trainer.learning.models import MemoryOptions, make_trainable, trained_state
from alphazero_llm_trainer.learning.scoring import LabelLogProbs, Scorer, score_rows
from alphazero_llm_trainer.learning.train_row import TrainRow
from alphazero_llm_trainer.policy.student import load_student
from alphazero_llm_trainer.runs.start import check_method

QUESTIONS = ["Ana has 3 pens. She buys 4 more pens.", "Ben sees 12 birds."]
RESPONSES = ["3 + 4 = 7\n#### 7", "12\n#### 12", "3 + 5 = 8\n4 + 4 = 8\n#### 8", "#### 5"]
WHOLE = MemoryOptions()
QUIET = {"bf16": False, "use_cpu": True, "report_to": "none", "gradient_checkpointing": False}


def student_of(*overrides):
    config = grpo_config(["student=embedded", *overrides])
    return load_student(config), config


def library_logprobs(model, row):
    """`[T, V]`, by the model's own forward of the row alone."""
    logits = model(torch.tensor([[*row.prompt_ids, *row.completion_ids]])).logits[0]
    return logits[len(row.prompt_ids) - 1 : -1].log_softmax(-1)


def own_tokens(every, row):
    return every.gather(1, torch.tensor(row.completion_ids)[:, None])[:, 0]


def rows_of(student, count=12, shift=0.1):
    """Rows of different lengths with advantages of both signs. The policy that sampled them was a
    little another one.
    """
    rows = []
    for i in range(count):
        ids = (*student.encode(RESPONSES[i % 4]), student.engine.eos_id)
        kind = "demonstration" if i == 5 else "policy"
        prompt = student.prompt_ids(QUESTIONS[i % 2])
        credit = (0.1 * (i - 5),) * len(ids)
        reward = float(i % 3 == 0)
        row = TrainRow(prompt, ids, (), credit, kind, reward, index=i)
        with torch.no_grad():
            old = own_tokens(library_logprobs(student.model, row), row) - shift * ((-1) ** i)
        rows.append(replace(row, old_logprobs=tuple(old.tolist())))
    return rows


def weighed(row, weight=1.0):
    return replace(row, old_logprobs=(), weights=(weight,) * len(row.completion_ids))


def learner_of(model, objective, memory=WHOLE, batch=12, **more):
    given = {"batch_size": batch, "weight_decay": 0.0, "max_grad_norm": 1e9}
    settings = grpo_config().train.optimizer.with_values(**(given | more))
    return Learner(
        model, objective, memory, RateSchedule(1e-9 if not more else 1e-3, 0, 10), settings
    )


def gradients(model, objective, rows, memory=WHOLE):
    """Of one update on all rows, the critic's among them."""
    learner, found = learner_of(model, objective, memory, len(rows)), {}
    objective.begin(learner, rows, 2)
    plain = learner.clip

    def clip():
        figures = plain()  # which leaves gradients of this size as they are
        named = dict(model.named_parameters()) | {
            f"critic {k}": p for k, p in objective.extra().items()
        }
        found.update({name: p.grad.clone() for name, p in named.items() if p.grad is not None})
        return figures

    learner.clip = clip
    found["loss"] = torch.tensor(learner.update(rows)["loss"])
    return found


def close(found, expected, tolerance=1e-5):
    assert found.keys() == expected.keys() and len(found) > 5
    for name, value in expected.items():
        assert torch.allclose(found[name], value, atol=tolerance, rtol=1e-4), name


def test_a_float16_students_gradients_are_its_float32_twins():
    """Even where a token's share of the mean is less than float16 can hold."""
    found = []
    for dtype in ("float32", "float16"):
        student, _ = student_of("train.adapter=lora", f"models.embedded.dtype={dtype}")
        torch.manual_seed(0)
        model = make_trainable(student.model, student.spec, "lora")
        with torch.no_grad():
            for parameter in (p for p in model.parameters() if p.requires_grad):
                parameter.copy_(0.1 * torch.randn_like(parameter))
        objective = Likelihood()
        totals = objective.totals
        objective.totals = lambda rows, totals=totals: (1e6 * totals(rows)[0],)
        found.append(gradients(model, objective, [weighed(row) for row in rows_of(student)]))
    exact, ours = found
    assert exact.keys() == ours.keys() and len(ours) > 5
    for name, value in exact.items():
        assert (ours[name] - value).norm() <= 0.02 * value.norm(), name


# -- TRL's -----------------------------------------------------------------------------------------


def loss_and_gradients(trainer, inputs):
    """A trainer's of TRL."""
    trainer.model.train()
    loss = trainer.compute_loss(trainer.model, inputs)
    loss.backward()
    named = {name: p.grad for name, p in trainer.model.named_parameters() if p.grad is not None}
    return named | {"loss": loss.detach()}


@pytest.mark.parametrize("kl", [0.0, 0.3])
def test_the_loss_and_gradient_of_grpo_are_trls(kl, tmp_path):
    student, config = student_of(f"train.kl_coefficient={kl}")
    rows, settings, theirs = rows_of(student), config.train, copy.deepcopy(student.model)
    objective = Grpo(settings.with_values(pack="off"), student.model)
    reference = [
        [value - 0.05 * (i % 3) for value in row.old_logprobs] for i, row in enumerate(rows)
    ]

    def begin(*args):
        objective.reference = dict(enumerate(reference)) if kl else {}
        return {}

    objective.begin = begin
    found = gradients(student.model, objective, rows)
    trainer = GRPOTrainer(
        model=theirs,
        reward_funcs=lambda completions, **_: [0.0] * len(completions),
        args=GRPOConfig(
            output_dir=str(tmp_path), beta=kl, use_bias_correction_kl=True,
            epsilon=settings.clip_low, epsilon_high=settings.clip_high, loss_type="bnpo",
            per_device_train_batch_size=2, num_generations=2, **QUIET,
        ),
        train_dataset=Dataset.from_dict({"prompt": ["0"]}),
        processing_class=student.tokenizer,
    )  # fmt: skip
    trainer.current_gradient_accumulation_steps = 1
    like = torch.zeros(len(rows), max(len(row.completion_ids) for row in rows))
    left = [torch.tensor(row.prompt_ids).flip(0) for row in rows]  # prompts are padded on the left
    ones = [torch.ones_like(one) for one in left]
    prompts, seen = (
        torch.nn.utils.rnn.pad_sequence(some, batch_first=True).flip(1) for some in (left, ones)
    )
    inputs = {
        "prompt_ids": prompts, "prompt_mask": seen,
        "completion_ids": pad_rows([r.completion_ids for r in rows], like).long(),
        "completion_mask": mask_of(rows, like).long(),
        "advantages": pad_rows([r.advantages for r in rows], like),
        "old_per_token_logps": pad_rows([r.old_logprobs for r in rows], like),
        "ref_per_token_logps": pad_rows(reference, like),
    }  # fmt: skip
    close(found, loss_and_gradients(trainer, inputs))


def test_the_loss_and_gradient_of_supervised_training_are_trls(tmp_path):
    student, _ = student_of()
    rows, theirs = [weighed(row) for row in rows_of(student)], copy.deepcopy(student.model)
    found = gradients(student.model, Likelihood(), rows)
    ids = [torch.tensor([*row.prompt_ids, *row.completion_ids]) for row in rows]
    labels = [torch.tensor([*[-100] * len(row.prompt_ids), *row.completion_ids]) for row in rows]
    stacked = torch.nn.utils.rnn.pad_sequence
    trainer = SFTTrainer(
        model=theirs,
        args=SFTConfig(output_dir=str(tmp_path), **QUIET),
        train_dataset=Dataset.from_dict({"input_ids": [one.tolist() for one in ids]}),
        processing_class=student.tokenizer,
    )
    inputs = {
        "input_ids": stacked(ids, batch_first=True),
        "attention_mask": stacked([torch.ones_like(one) for one in ids], batch_first=True),
        "labels": stacked(labels, batch_first=True, padding_value=-100),
    }
    close(found, loss_and_gradients(trainer, inputs))


# -- hand-written sums -----------------------------------------------------------------------------


def test_weights_of_tokens_are_shares_of_the_mean():
    student, _ = student_of()
    rows = [weighed(row, 0.5 + i) for i, row in enumerate(rows_of(student, 4))]
    sums = [
        (0.5 + i) * own_tokens(library_logprobs(student.model, row), row).sum()
        for i, row in enumerate(rows)
    ]
    expected = -sum(sums) / sum(sum(row.weights) for row in rows)
    assert gradients(student.model, Likelihood(), rows)["loss"] == pytest.approx(
        expected.item(), abs=1e-6
    )


def test_the_value_loss_is_the_larger_of_the_free_and_the_held_one():
    values = torch.tensor([0.8, 0.8, 0.1, 0.7])
    old = torch.full((4,), 0.5)
    returns = torch.tensor([1.0, 0.0, 0.0, 0.7])
    loss, figures = value_loss(
        values, old, returns, torch.tensor([1.0, 1.0, 1.0, 0.0]), torch.tensor(3.0), clip=0.1
    )
    # Held: .6, .6 and .4. Free and held squares: .04 and .16; .64 and .36; .01 and .16.
    assert loss.item() == pytest.approx(0.5 * (0.16 + 0.64 + 0.16) / 3)
    assert figures["value_clip_fraction"].item() == pytest.approx(2 / 3)


def test_figures_of_grpo_are_the_clipped_share_and_k3():
    ratios = [0.5, 0.5, 0.5, 2.0, 2.0, 2.0, 1.0, 2.0]
    advantages = [-1.0, 0.0, 1.0, -1.0, 0.0, 1.0, 1.0, 1.0]
    logprobs, mask = torch.tensor(ratios).log(), torch.tensor([1.0] * 7 + [0.0])
    same = torch.zeros(8)  # the policies that sampled and that the run started from
    _, figures = grpo_loss(
        logprobs,
        same,
        torch.tensor(advantages),
        mask,
        mask.sum(),
        clip_low=0.2,
        clip_high=0.2,
        reference=same,
    )
    # A wrong one below, a right one above.
    assert figures["clip_fraction"].item() == pytest.approx(2 / 7)
    k3 = [1 / ratio + math.log(ratio) - 1 for ratio in ratios[:7]]
    weighed = [ratio * kl for ratio, kl in zip(ratios[:7], k3, strict=True)]
    assert figures["kl"].item() == pytest.approx(sum(weighed) / 7)


def test_a_ratio_beyond_the_clip_silences_a_right_response():
    student, config = student_of("train.pack=off")
    # As if the policy that sampled it had found every token next to impossible: the ratio is far
    # over 1 + clip_high.
    row = rows_of(student, 1)[0]
    ones = (1.0,) * len(row.completion_ids)
    row = replace(row, old_logprobs=(-50.0,) * len(ones), advantages=ones)
    found = gradients(student.model, Grpo(config.train, student.model), [row] * 4)
    assert not any(grad.any() for name, grad in found.items() if name != "loss")


@pytest.mark.parametrize("pack", ["on", "off"])
@pytest.mark.parametrize("method", ["grpo", "ppo", "likelihood"])
def test_parts_and_packing_have_the_gradient_of_the_whole(method, pack):
    found = []
    for memory, packed in (
        (WHOLE, "off"),
        (MemoryOptions(micro_batch=5, checkpointing=True), pack),
    ):
        student, config = student_of("train.kl_coefficient=0.05")
        torch.manual_seed(0)
        rows, objective = rows_of(student), objective_of(method, student, config, packed)
        found.append(gradients(student.model, objective, rows, memory))
    close(found[1], found[0], 3e-5)


def objective_of(method, student, config, pack="off"):
    if method == "likelihood":
        return Likelihood()
    settings = config.train.with_values(pack=pack)
    if method == "grpo":
        return Grpo(settings, student.model)
    critic = CriticNetwork(student.model, None)
    torch.nn.init.normal_(critic.score.weight, std=0.05)
    return Ppo(settings, student.model, critic)


def test_a_loss_that_is_not_finite_changes_nothing():
    student, _ = student_of()
    row = TrainRow((1, 2), (3, 4), weights=(float("nan"), 1.0))
    before = trained_state(student.model)
    with pytest.raises(TrainingError, match=r"train\.optimizer\.learning_rate"):
        learner_of(student.model, Likelihood(), batch=1).update([row])
    assert all(torch.equal(before[name], p) for name, p in student.model.named_parameters())


# -- the head --------------------------------------------------------------------------------------


@pytest.mark.parametrize("bias", [False, True])
def test_the_head_at_labels_alone_has_the_whole_forwards_numbers(bias, monkeypatch):
    model = tiny_llama(4)
    if bias:  # more than a product: the model's own forward is asked
        head = model.get_output_embeddings()
        head.bias = torch.nn.Parameter(torch.linspace(-2, 2, len(head.weight)))
    counted, plain = [], LabelLogProbs.apply

    def apply(hidden, *rest):
        counted.append(len(hidden))
        return plain(hidden, *rest)

    monkeypatch.setattr(LabelLogProbs, "apply", apply)
    rows = [TrainRow((5, 6, 7), (11, 12, 13), (), ()), TrainRow((9,), (14, 15), (), ())]
    found = score_rows(Scorer(model), model.config, rows, "off", torch.float32, "cpu")
    assert counted == ([] if bias else [5])
    close = {"atol": 1e-5, "rtol": 1e-5}
    for i, row in enumerate(rows):
        every, count = library_logprobs(model, row), len(row.completion_ids)
        entropy = -(every.exp() * every).sum(-1)
        torch.testing.assert_close(found.logprobs[i, :count], own_tokens(every, row), **close)
        torch.testing.assert_close(found.entropy[i, :count], entropy, **close)
    assert not found.logprobs[1, 2:].any()


def test_a_probability_of_zero_has_no_entropy():
    hidden = torch.tensor([[1.0]], requires_grad=True)
    weight = torch.tensor([[0.0], [float("-inf")]])
    logprobs, entropy = LabelLogProbs.apply(hidden, weight, torch.tensor([0]))
    assert (logprobs.item(), entropy.item()) == (0.0, 0.0)


# -- masks -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", ["likelihood", "policy_gradient", "critic", "outcomes"])
def test_a_masked_middle_is_in_no_stream(stream):
    """Against a loop over the row's own tokens in float64, where what a tool gave is next to
    impossible.
    """
    own, places = (True, True, False, False, True), (0, 1, 4)
    row = TrainRow((1,), (2, 3, 4, 5, 6), mask=own)
    numbers = torch.Generator().manual_seed(3)
    columns = torch.rand(6, 5, generator=numbers, dtype=torch.float64)
    logprobs = -columns[0]
    logprobs[2] = -900.0
    leaf = (columns[1] if stream in ("critic", "outcomes") else logprobs)[None].float()
    leaf.requires_grad_(True)
    a, old, reference, weights = (
        column.tolist() for column in (columns[2] - 0.5, *-columns[3:5], columns[5])
    )
    by, total = Coefficients(clip_low=0.2, clip_high=0.3, kl=0.1, value=0.5, value_clip=0.1), 3.0
    fed = {
        "likelihood": Streams(likelihood=[weights]),
        "policy_gradient": Streams(advantages=[a], old=[old], kl=[reference]),
        "critic": Streams(returns=[a], estimates=[weights]),
        "outcomes": Streams(targets=[weights], value_weights=[reference]),
    }[stream]
    of_values = stream in ("critic", "outcomes")
    logits = leaf if of_values else None
    found, _ = objective_loss(
        fed, [row], logprobs[None].float() if of_values else leaf, logits, torch.tensor([total]), by
    )
    found.backward()
    exact = leaf.detach().double()[0].requires_grad_(True)
    expected = torch.tensor(0.0, dtype=torch.float64)
    for t in places:
        x = exact[t]
        if stream == "likelihood":
            term = -weights[t] * x
        elif stream == "policy_gradient":
            ratio, gap = (x - old[t]).exp(), reference[t] - x
            term = -torch.min(ratio * a[t], ratio.clamp(0.8, 1.3) * a[t])
            term = term + 0.1 * (gap.exp() - gap - 1) * ratio
        elif stream == "critic":
            held = weights[t] + (x - weights[t]).clamp(-0.1, 0.1)
            term = 0.25 * torch.max((x - a[t]) ** 2, (held - a[t]) ** 2)
        else:
            z, p = weights[t], x.sigmoid()
            term = -0.5 * reference[t] * (z * p.log() + (1 - z) * (1 - p).log())
        expected = expected + term / total
    expected.backward()
    torch.testing.assert_close(found.double(), expected, atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(leaf.grad[0].double(), exact.grad, atol=1e-6, rtol=1e-6)
    assert not leaf.grad[0, 2:4].any() and leaf.grad[0, [0, 1, 4]].any()


def test_a_masked_middle_is_in_no_divisor_and_in_no_return():
    student, config = student_of("train.kl_coefficient=0.0")
    row = rows_of(student, 1)[0]
    mask = tuple(t not in (1, 2) for t in range(len(row.completion_ids)))
    ones = (1.0,) * len(mask)
    masked = replace(row, mask=mask, weights=ones, pi=ones, draws=ones, reward=1.0)
    assert Likelihood().totals([masked]) == (sum(mask),)
    objective = objective_of("ppo", student, config)
    assert objective.totals([masked]) == (sum(mask), sum(mask))
    learner = learner_of(student.model, objective, batch=1)
    objective.begin(learner, [masked], 1)
    values = masked.own(objective.estimates[row.index])
    expected, following, after = [], 0.0, 0.0
    for t in reversed(range(len(values))):
        following = (
            (t == len(values) - 1) * 1.0 + after - values[t] + config.train.gae_lambda * following
        )
        after = values[t]
        expected.insert(0, following + values[t])
    returns = objective.returns[row.index]
    assert masked.own(returns) == pytest.approx(expected) and returns[1:3] == [0.0, 0.0]


# -- PPO -------------------------------------------------------------------------------------------


def test_a_critic_begins_at_a_half_and_its_extra_layer_is_an_identity_that_trains():
    policy = tiny_llama(4)
    critic, plain = CriticNetwork(policy), CriticNetwork(policy, extra_layers=0, start=0.5)
    rows = [TrainRow((5, 6, 7), (11, 12, 13), (), ()), TrainRow((9,), (14, 15), (), ())]
    assert (critic(rows)[0] == 0.5).all()
    for network in (critic, plain):
        torch.nn.init.ones_(network.score.weight)
    found = critic(rows)
    torch.testing.assert_close(found, plain(rows), atol=1e-5, rtol=1e-5)
    assert not found[1, 2:].any()
    found.sum().backward()
    assert critic.backbone.layers[-1].mlp.down_proj.weight.grad.any()
    assert (policy.config.num_hidden_layers, critic.config.num_hidden_layers) == (2, 3)
    assert not {id(p) for p in policy.parameters()} & {id(p) for p in critic.parameters()}


def test_advantages_are_whitened_gae_and_demonstrations_keep_theirs():
    student, config = student_of("train.gae_lambda=0.9")
    rows, objective = rows_of(student, 6), objective_of("ppo", student, config)
    learner, raw = learner_of(student.model, objective, batch=6), []
    objective.begin(learner, rows, 0)
    *first, demonstration = objective.advantages(rows)  # at first the critic learns alone
    assert not any(map(any, first)) and demonstration == rows[5].advantages
    objective.begin(learner, rows, 2)
    *found, demonstration = objective.advantages(rows)
    for row in rows[:5]:
        values, following, own = [*objective.estimates[row.index], 0.0], row.reward, []
        for t in reversed(range(len(row.completion_ids))):
            following = values[t + 1] - values[t] + (0.9 if own else 1.0) * following
            own.insert(0, following)
        raw += own
        returns = [a + v for a, v in zip(own, values[:-1], strict=True)]
        assert objective.returns[row.index] == pytest.approx(returns, abs=1e-5)
    raw = torch.tensor(raw)
    white = (raw - raw.mean()) / raw.std(correction=0)
    assert [a for row in found for a in row] == pytest.approx(white.tolist(), abs=1e-4)
    assert demonstration == rows[5].advantages


def test_the_kl_penalty_of_ppo_is_in_the_reward_alone():
    student, config = student_of("train.kl_coefficient=0.5", "train.gae_lambda=1.0")
    # As if the policy that sampled had held each token likelier than the reference does, by 0.2
    # nats, and less likely in turn.
    rows, objective = rows_of(student, 6, shift=0.2), objective_of("ppo", student, config)
    learner = learner_of(student.model, objective, batch=6)
    objective.begin(learner, rows, 0)
    for i, row in enumerate(rows[:5]):
        count, gap = len(row.completion_ids), -0.2 * (-1) ** i
        # lambda 1: a token's return is what is earned from it on, each token's penalty and the
        # outcome at the end.
        expected = [row.reward - 0.5 * gap * (count - t) for t in range(count)]
        assert objective.returns[row.index] == pytest.approx(expected, abs=1e-3)
    figures = learner.update(rows)
    assert "kl" not in figures and "critic_loss" in figures
    # A demonstration is no data for the critic.
    assert "critic_loss" not in learner.update(rows[5:])


# -- checkpoints -----------------------------------------------------------------------------------


@pytest.mark.parametrize("adapter", ["full", "lora"])
def test_a_restored_learner_makes_the_same_updates_to_the_bit(adapter, tmp_path):
    ends, folder = [], tmp_path / "checkpoint"
    asked = "train.pack=off", f"train.adapter={adapter}"
    for start in (0, 2):
        student, config = student_of(*asked)
        torch.manual_seed(0)
        model = make_trainable(student.model, student.spec, adapter)
        critic = CriticNetwork(model, student.spec.lora if adapter == "lora" else None)
        objective, rows = Ppo(config.train, model, critic), rows_of(student, 6)
        learner = learner_of(model, objective, batch=6, weight_decay=0.01, max_grad_norm=1.0)
        if start:
            learner.restore(folder, start)
        for number in range(start, 4):
            objective.begin(learner, rows, number)
            learner.update(rows)
            if number == 1:
                learner.save(folder)
        ends.append({name: p.detach().clone() for name, p in learner.checkpoint_tensors().items()})
    assert ends[0].keys() == ends[1].keys()
    assert not [name for name, value in ends[0].items() if not torch.equal(value, ends[1][name])]


OWN = """
from dataclasses import replace
from alphazero_llm_trainer.learning.losses import Streams, pad_rows
from alphazero_llm_trainer.learning.methods.grpo import GRPO, Grpo

class Streamed(Grpo):
    def streams(self, rows):
        return Streams(likelihood=self.advantages(rows))

class Reinforce(Grpo):
    def loss(self, rows, scores, totals):
        advantages = pad_rows(self.advantages(rows), scores.logprobs)
        return -(advantages * scores.logprobs).sum() / totals[0], {}

MINE = replace(GRPO, objective=lambda train, model, lora: Reinforce(train, model))
STREAMED = replace(GRPO, objective=lambda train, model, lora: Streamed(train, model))
NO_METHOD, UNKNOWN = Reinforce, replace(GRPO, name="mine")
"""


@pytest.mark.parametrize("name", ["MINE", "STREAMED"])
def test_a_loss_of_ones_own_is_trained(name, tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(OWN)
    config = load_training(overrides=["student=embedded", f"train.method={file}:{name}"])
    assert config.train.optimizer == load_training(overrides=["train.method=grpo"]).train.optimizer
    check_method(config)
    student = load_student(config)
    rows = rows_of(student)
    objective = method_of(config.train.method).objective(config.train, student.model, None)
    objective.start = None  # the recipe's KL penalty isn't this loss's
    found = gradients(student.model, objective, rows)
    tokens = sum(len(row.completion_ids) for row in rows)
    student.model.zero_grad()
    loss = (
        -sum(
            (own_tokens(library_logprobs(student.model, row), row) * row.advantages[0]).sum()
            for row in rows
        )
        / tokens
    )
    loss.backward()
    named = student.model.named_parameters()
    expected = {name: p.grad for name, p in named if p.grad is not None} | {"loss": loss.detach()}
    close(found, expected)
    with pytest.raises(ConfigError, match=r"train\.method"):
        method_of(f"{file}:NO_METHOD")
    for wrong in (f"{file}:UNKNOWN", "reinforce", "critic", f"{tmp_path}/none.py:MINE"):
        with pytest.raises(ConfigError, match=r"train\.method"):
            load_training(overrides=["student=embedded", f"train.method={wrong}"])
