"""The value: packed forwards against flat ones, metrics against enumeration, and a head and a network that learn."""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import math
from dataclasses import replace
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from support import EOS, VOCABULARY, tiny_engine, tiny_llama
from transformers import AutoModelForTokenClassification, LlamaConfig

from alphazero_llm_trainer import live
from alphazero_llm_trainer.cli import base as cli
from alphazero_llm_trainer.cli.judges import JudgeCommand
from alphazero_llm_trainer.cli.main import main
from alphazero_llm_trainer.config.load import load_config
from alphazero_llm_trainer.config.sections import StudentModel
from alphazero_llm_trainer.config.train import LARGE, CollectConfig, ValueConfig
from alphazero_llm_trainer.errors import CheckpointError, ConfigError, DataError
from alphazero_llm_trainer.eval import value_figures as metrics
from alphazero_llm_trainer.eval.metrics import Interval
from alphazero_llm_trainer.live import Progress
from alphazero_llm_trainer.mcts.journal import read
from alphazero_llm_trainer.mcts.targets import prefixes
from alphazero_llm_trainer.mcts.tree import ROOT, Tree
from alphazero_llm_trainer.policy.student import Student
from alphazero_llm_trainer.policy.value_function import FOLDER, load_value, policy_fingerprint
from alphazero_llm_trainer.problems.load import load_tasks
from alphazero_llm_trainer.training.judge import (
    LikeLengths,
    check,
    cross_entropy,
    judge_arguments,
    platt,
    questions_at_once,
)
from alphazero_llm_trainer.training.loop import Run
from alphazero_llm_trainer.training.models import make_trainable
from alphazero_llm_trainer.training.rows import ValueRow, pack_values
from alphazero_llm_trainer.training.size import used_questions
from alphazero_llm_trainer.training.value import (
    ValueCollator,
    hidden_states,
    network_logits,
    new_network,
    ranking_loss,
    ranking_shares,
    score_layer,
    train_head,
    train_network,
    weighted,
)
from alphazero_llm_trainer.training.value_run import (
    Question,
    collect_trees,
    held_out_states,
    read_questions,
    save_value,
    split_by_question,
    train_value,
    value_rows,
)
from alphazero_llm_trainer.types import RewardParts, Step

PROMPT = (7, 8, 9)


class FakeTokenizer:
    """Enough of a tokenizer to save a folder with."""

    def save_pretrained(self, folder: Path) -> None:
        (Path(folder) / "tokenizer.json").write_text("{}")


def a_student(seed: int = 0, adapter: str = "full", quantization: str = "none") -> Student:
    """A tiny Llama as a student whose prompts are numbers: question "q 3 4" is the tokens 3 4."""
    model = tiny_llama(seed)
    spec = StudentModel.model_validate({"path": "nowhere", "adapter": adapter, "quantization": quantization})

    class Numbers(Student):
        def prompt_ids(self, question: str) -> tuple[int, ...]:
            return tuple(int(word) for word in question.split()[1:])

    return Numbers("tiny", model, FakeTokenizer(), tiny_engine(model), spec)


def rows_of(seed: int, count: int) -> list[ValueRow]:
    """Questions whose responses are right when they begin with an even token."""
    rng = Random(seed)
    rows = []
    for _ in range(count):
        prompt = [rng.randrange(5, VOCABULARY) for _ in range(4)]
        targets = [((), 0.5, 4.0)]
        for token in rng.sample(range(5, 13), 4):
            targets += [((token,), 1.0 - token % 2, 1.0), ((token, rng.randrange(5, VOCABULARY)), 1.0 - token % 2, 1.0)]
        rows.append(pack_values(f"q {' '.join(map(str, prompt))}", prompt, targets))
    return rows


# -- packing -----------------------------------------------------------------------------------------------------------


def test_a_row_holds_each_token_of_the_trie_once() -> None:
    paths = [((), 0.5, 8), ((1, 2), 0.25, 4), ((1, 3), 0.75, 4), ((1, 2, 4), 1.0, 1), ((1, 2), 0.75, 4)]
    row = pack_values("q", PROMPT, paths)
    assert row.token_ids == (7, 8, 9, 1, 2, 4, 3)
    assert row.ends == (7, 7, 7, 7, 6, 6, 7)
    assert row.positions == (0, 1, 2, 3, 4, 5, 4)
    assert row.weights == (0, 0, 8, 0, 8, 1, 4)
    assert row.targets == (0, 0, 0.5, 0, 0.5, 1.0, 0.75)  # two nodes with the same tokens are one state
    assert row.states == (2, 4, 6, 5, 4)
    with pytest.raises(ValueError, match="prompt is empty"):
        pack_values("q", (), paths)


def test_a_packed_forward_equals_flat_ones() -> None:
    policy = tiny_llama()
    network = new_network(policy)
    torch.nn.init.normal_(network.score.weight)
    torch.nn.init.constant_(network.score.bias, 0.3)
    paths = [(5, 6, 7), (5, 6, 8, 9), (10,), (), (5, 6), (11, 12, 13, 14)]
    short = pack_values("s", (20, 21), [((30,), 1.0, 1)])
    row = pack_values("q", PROMPT, [(path, 0.5, 1) for path in paths])
    logits, _ = network_logits(network, [row, short])
    states, _ = hidden_states(policy, [row, short])
    for path, logit, state in zip(paths, logits, states, strict=True):
        ids = torch.tensor([[*PROMPT, *path]])
        with torch.no_grad():
            assert logit == pytest.approx(float(network(input_ids=ids).logits[0, -1, 0]), abs=1e-5)
            torch.testing.assert_close(state, policy.model(input_ids=ids).last_hidden_state[0, -1])


def test_the_packed_gradient_equals_the_flat_one() -> None:
    paths = [((5, 6, 7), 1.0, 2.0), ((5, 6, 8), 0.0, 1.0), ((5, 9), 0.25, 3.0)]

    def gradient(batches: list[list[ValueRow]]) -> torch.Tensor:
        network = new_network(tiny_llama())
        torch.nn.init.normal_(network.score.weight, generator=torch.Generator().manual_seed(0))
        loss: Any = 0.0
        for rows in batches:
            inputs = ValueCollator()(rows)
            targets, weights = inputs.pop("targets"), inputs.pop("weights")
            part = cross_entropy(network(**inputs).logits[..., 0], targets, weights)
            loss = loss + part * weights.sum() / 6.0
        loss.backward()
        return torch.cat([p.grad.flatten() for p in network.parameters() if p.grad is not None])

    whole = gradient([[pack_values("q", PROMPT, paths)]])
    flat = gradient([[pack_values("q", PROMPT, [path])] for path in paths])
    torch.testing.assert_close(whole, flat, atol=1e-6, rtol=1e-4)


def test_an_epoch_has_every_row_once_and_like_lengths_together() -> None:
    rows = [pack_values(str(i), range(1, 2 + i % 37), []) for i in range(203)]
    sampler = LikeLengths(rows, 8, 0)
    first, second = list(sampler), list(sampler)
    assert sorted(first) == sorted(second) == list(range(203)) and first != second
    spread = [
        np.ptp([len(rows[i].token_ids) for i in order[at : at + 8]]) for order in (first, second) for at in range(0, 200, 8)
    ]  # fmt: skip
    assert np.mean(spread) < 6


# -- losses and calibration --------------------------------------------------------------------------------------------


def test_cross_entropy_with_soft_targets_is_the_hand_written_sum() -> None:
    logits, targets, weights = torch.tensor([0.3, -1.0, 9.0]), torch.tensor([0.25, 1.0, 0.0]), torch.tensor([2.0, 1, 0])
    p = [1 / (1 + math.exp(-x)) for x in (0.3, -1.0)]
    expected = (2 * -(0.25 * math.log(p[0]) + 0.75 * math.log(1 - p[0])) - math.log(p[1])) / 3
    assert float(cross_entropy(logits, targets, weights)) == pytest.approx(expected, abs=1e-6)
    assert float(cross_entropy(logits, targets, weights * 0)) == 0.0


def test_weights_of_a_question_sum_to_one() -> None:
    [row] = weighted([pack_values("q", PROMPT, [((), 0.5, 9), ((1,), 0.0, 4)])], 0.5)
    assert [row.weights[i] for i in row.states] == pytest.approx([0.6, 0.4])


def test_platt_finds_the_scale_and_shift_that_made_the_outcomes() -> None:
    logits = torch.linspace(-3, 3, 400)
    scale, shift = platt(logits, torch.sigmoid(0.5 * logits - 0.7), torch.ones(400))
    assert (scale, shift) == (pytest.approx(0.5, abs=1e-3), pytest.approx(-0.7, abs=1e-3))
    assert platt(logits, torch.sigmoid(-logits), torch.ones(400)) == (1.0, 0.0)  # never turns the order round


def test_training_and_held_out_share_no_question() -> None:
    rows = rows_of(0, 4)
    with pytest.raises(DataError, match="1 questions are both"):
        check(rows[:2], rows[1:])
    with pytest.raises(DataError, match="no held-out question"):
        check(rows, [])


# -- learning ----------------------------------------------------------------------------------------------------------


def test_a_head_finds_the_direction_that_made_the_targets() -> None:
    policy = tiny_llama()
    truth = torch.randn(32, generator=torch.Generator().manual_seed(0))

    def labelled(rows: list[ValueRow]) -> list[ValueRow]:
        found = []
        for row, states in zip(rows, hidden_states(policy, rows), strict=True):
            targets = dict(zip(row.states, torch.sigmoid(states @ truth).tolist(), strict=True))
            found.append(replace(row, targets=tuple(targets.get(i, 0.0) for i in range(len(row.token_ids)))))
        return found

    train, held_out = labelled(rows_of(1, 150)), labelled(rows_of(2, 50))
    fitted = train_head(policy, train, held_out, ValueConfig())
    value = torch.cat([torch.sigmoid(h @ fitted.weight + fitted.bias) for h in hidden_states(policy, held_out)])
    wanted = torch.tensor([row.targets[i] for row in held_out for i in row.states])
    assert wanted.std() > 0.2 and float((value - wanted).abs().mean()) < 0.01
    assert fitted.best["held_out_loss"] == min(line["held_out_loss"] for line in fitted.curve)
    assert {"train_loss", "held_out_loss", "strength"} <= fitted.curve[0].keys()


def test_extra_layers_change_nothing_until_they_are_trained() -> None:
    policy, row = tiny_llama(), rows_of(0, 1)[0]
    plain, deeper = new_network(policy), new_network(policy, 2)
    assert deeper.config.num_hidden_layers == 4 and policy.config.num_hidden_layers == 2
    for network in (plain, deeper):
        torch.nn.init.ones_(network.score.weight)
    torch.testing.assert_close(network_logits(deeper, [row])[0], network_logits(plain, [row])[0])


def test_a_bf16_policy_gets_a_last_layer_in_fp32(tmp_path: Path) -> None:
    network = new_network(tiny_llama().to(torch.bfloat16))  # type: ignore[arg-type]
    settings = ValueConfig(epochs=1, evaluate_every=100, warmup_steps=0)
    fitted = train_network(network, rows_of(1, 20), rows_of(2, 5), settings, out_dir=tmp_path, seed=0)
    assert score_layer(network).weight.dtype == fitted.weight.dtype == torch.float32
    assert math.isfinite(fitted.best["held_out_loss"]) and fitted.weight.abs().max() > 0


def test_the_ranking_loss_compares_alternatives_only() -> None:
    # 9 -> (1 -> 2), 3: the two paths are alternatives, 1 and 2 are not, and 9 is above all of them.
    row = pack_values("q", (9,), [((1,), 1.0, 2.0), ((1, 2), 0.5, 1.0), ((3,), 0.0, 3.0), ((), 0.25, 5.0)])
    logits = torch.tensor([[0.1, 0.7, -0.2, 0.4]])
    loss = ranking_loss(logits, ranking_shares(ValueCollator()([row])))
    pairs = [(2 * 3 * 1.0, 0.7 - 0.4), (1 * 3 * 0.5, -0.2 - 0.4)]
    expected = sum(w * math.log1p(math.exp(-d)) for w, d in pairs) / sum(w for w, _ in pairs)
    assert float(loss) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(("adapter", "bfloat16"), [("full", False), ("full", True), ("lora", False)])
def test_a_network_learns_and_ends_with_its_best_weights(adapter: str, bfloat16: bool, tmp_path: Path) -> None:
    policy = tiny_llama()
    before = policy_fingerprint(policy)
    spec = StudentModel.model_validate({"path": "nowhere", "adapter": adapter})
    network = make_trainable(new_network(policy), spec, adapter, task="TOKEN_CLS")
    settings = ValueConfig(
        epochs=6, evaluate_every=10, learning_rate=5e-3, warmup_steps=5, patience=100, batch_size=16, rank_weight=0.0
    )
    train, held_out = rows_of(1, 150), rows_of(2, 40)
    dtypes: set[torch.dtype] = set()
    projection = next(module for name, module in network.named_modules() if name.endswith("gate_proj"))
    projection.register_forward_hook(lambda module, given, found: dtypes.add(found.dtype))
    fitted = train_network(network, train, held_out, settings, out_dir=tmp_path, seed=0, bfloat16=bfloat16)
    assert dtypes == {torch.bfloat16 if bfloat16 else torch.float32}  # of updates and of measurements
    assert fitted.best["held_out_brier"] < 0.2
    assert policy_fingerprint(policy) == before  # the policy itself is left alone
    logits = torch.cat(network_logits(network, held_out, bfloat16=bfloat16))
    states = torch.cat([torch.tensor([row.targets[i] for i in row.states]) for row in held_out])
    assert float(((logits.sigmoid() - states) ** 2).mean()) < 0.2
    assert torch.equal(score_layer(network).weight[0].detach(), fitted.weight)
    assert not list(tmp_path.iterdir())  # no stray checkpoints


def test_an_update_in_several_forwards_is_the_update_in_one(tmp_path: Path) -> None:
    # Clear pairs, near ties, questions without a pair; and a last update of 5 rows.
    rows = rows_of(1, 25)
    rows += [pack_values(f"t{i}", (i, 9), [((5,), 0.52, 1.0), ((6,), 0.48, 1.0)]) for i in range(20, 26)]
    rows += [pack_values(f"n{i}", (i, 9), [((5,), 1.0, 1.0)]) for i in range(30, 36)]

    def trained(micro_batch: int | None) -> dict[str, torch.Tensor]:
        network = new_network(tiny_llama())
        settings = ValueConfig(epochs=1, evaluate_every=100, warmup_steps=0, batch_size=16, micro_batch=micro_batch)
        train_network(network, rows, rows_of(2, 5), settings, out_dir=tmp_path, seed=0)
        return network.state_dict()

    whole, parts = trained(None), trained(4)
    assert not torch.equal(whole["score.weight"], new_network(tiny_llama()).state_dict()["score.weight"])
    for name, expected in whole.items():
        torch.testing.assert_close(parts[name], expected, atol=2e-5, rtol=1e-3)


def test_a_judges_learning_rate_and_rise_suit_the_model_and_the_data(tmp_path: Path) -> None:
    large = torch.nn.Module()
    large.weight = torch.nn.Parameter(torch.empty(LARGE, device="meta"))
    settings = ValueConfig()

    def given(settings: ValueConfig, model: torch.nn.Module, rows: int) -> tuple[float, int]:
        found = judge_arguments(settings, model, rows, tmp_path, 0, 32)
        return found["learning_rate"], found["warmup_steps"]

    assert given(settings, tiny_llama(), 2000) == (1e-3, 50)
    assert given(settings, large, 90) == (2e-5, 6)  # a quarter of 3 updates in each of 8 epochs
    assert given(ValueConfig(learning_rate=3e-4), large, 2000) == (3e-4, 50)
    large.peft_config = {}  # an adapter
    assert given(settings, large, 2000)[0] == 1e-3


def test_a_judges_forward_takes_what_fits_or_what_is_asked_for() -> None:
    shape = LlamaConfig(vocab_size=500_000)  # else Llama 7B's
    small, large = tiny_llama(), SimpleNamespace(config=shape)
    plain = ValueConfig(rank_weight=0.0)
    assert questions_at_once(plain, small, 40) == 32
    assert questions_at_once(plain, large, 12) == 16 and questions_at_once(plain, large, 12, logits=True) == 8
    assert questions_at_once(plain, large, 4000) == 1
    # Pairs of tokens count: the mask, and the ranking loss.
    assert questions_at_once(plain, small, 3000) > questions_at_once(ValueConfig(), small, 3000)
    assert questions_at_once(ValueConfig(micro_batch=8), large, 12) == 8
    assert questions_at_once(ValueConfig(micro_batch=64), large, 12) == 32
    with pytest.raises(ConfigError, match=r"train.value.micro_batch is 5: give a divisor of batch_size, which is 32"):
        load_config(overrides=["train.value.micro_batch=5"])


def test_training_stops_when_held_out_questions_gain_nothing(tmp_path: Path) -> None:
    rng = Random(0)
    noise = [
        pack_values(str(i), [5, i % 50 + 5], [((rng.randrange(5, 60),), float(rng.random() < 0.5), 1.0)])
        for i in range(60)
    ]
    settings = ValueConfig(epochs=50, evaluate_every=2, learning_rate=1e-2, warmup_steps=0, patience=3, calibrate=False)
    fitted = train_network(new_network(tiny_llama()), noise[:40], noise[40:], settings, out_dir=tmp_path, seed=0)
    assert len(fitted.curve) < 50 * 3 / 2
    losses = [line["held_out_loss"] for line in fitted.curve]
    assert losses[-4] == min(losses) and fitted.best["held_out_loss"] == min(losses)


# -- metrics -----------------------------------------------------------------------------------------------------------


def states_of(entries: list[tuple[int, int, float, int]], **columns: Any) -> metrics.States:
    """States from (question, group, target, count)."""
    question, group, target, count = (np.asarray(column) for column in zip(*entries, strict=True))
    size = len(entries)
    rest = {
        "depth": np.zeros(size), "length": np.zeros(size), "logprob": np.zeros(size), "final": np.zeros(size, bool)
    }  # fmt: skip
    return metrics.States(question, group, target.astype(float), count, **{**rest, **columns})


def random_states(seed: int) -> tuple[np.ndarray, metrics.States]:
    rng = Random(seed)
    entries = []
    for _ in range(40):
        count = rng.randrange(1, 5)
        entries.append((rng.randrange(8), rng.randrange(-1, 9), rng.randrange(count + 1) / count, count))
    return np.asarray([rng.randrange(6) / 6 + 0.05 for _ in entries]), states_of(entries)


def outcomes_of(states: metrics.States) -> list[tuple[int, float]]:
    """(state, outcome) of every single response."""
    found = []
    for i, (target, count) in enumerate(zip(states.target, states.count, strict=True)):
        right = round(target * count)
        found += [(i, 1.0)] * right + [(i, 0.0)] * (count - right)
    return found


@pytest.mark.parametrize("seed", range(3))
def test_brier_auc_and_calibration_agree_with_enumeration(seed: int) -> None:
    value, states = random_states(seed)
    single = outcomes_of(states)
    assert metrics.brier(value, states).value == pytest.approx(np.mean([(value[i] - o) ** 2 for i, o in single]))
    base = 0.4
    always = np.mean([(base - o) ** 2 for _, o in single])
    skill = 1 - np.mean([(value[i] - o) ** 2 for i, o in single]) / always
    assert metrics.brier_skill(value, states, base).value == pytest.approx(skill)
    pairs = [(value[i], value[j]) for i, o in single for j, p in single if o > p]
    area = np.mean([1.0 if a > b else 0.5 if a == b else 0.0 for a, b in pairs])
    assert metrics.auc(value, states).value == pytest.approx(area)
    gaps: dict[int, float] = {}
    for i, o in single:
        gaps[int(value[i] * 10)] = gaps.get(int(value[i] * 10), 0.0) + value[i] - o
    error = sum(abs(gap) for gap in gaps.values()) / len(single)
    assert metrics.calibration_error(value, states).value == pytest.approx(error)
    points = metrics.reliability(value, states)
    assert sum(share for _, _, share in points) == pytest.approx(1.0)
    assert sum(abs(v - o) * share for v, o, share in points) == pytest.approx(error)


def test_siblings_are_ranked_pair_by_pair() -> None:
    entries = [(0, 5, 1.0, 4), (0, 5, 0.5, 4), (0, 5, 0.0, 1), (0, 5, 0.5, 2), (1, 6, 1.0, 3), (1, 7, 0.0, 3)]
    states = states_of([*entries, (1, -1, 0.2, 9), (1, -1, 0.9, 9)])
    pairs = metrics.sibling_pairs(states)
    assert sorted(zip(pairs.better.tolist(), pairs.worse.tolist(), strict=True)) == [
        (0, 1),
        (0, 2),
        (0, 3),
        (1, 2),
        (3, 2),
    ]
    assert metrics.sibling_pairs(states, least=2).better.size == 2
    assert metrics.sibling_pairs(states, margin=0.6).better.tolist() == [0]
    score = np.array([0.9, 0.2, 0.2, 0.95, 0, 0, 0, 0])
    assert metrics.ranking(score, pairs).value == pytest.approx((1 + 1 + 0 + 0.5 + 1) / 5)


def test_intervals_come_from_questions_not_from_states() -> None:
    # 4 questions of 500 equal states: the interval must be that of 4 coin flips, not of 2,000.
    states = states_of([(i // 500, -1, float(i // 500 % 2), 1) for i in range(2000)])
    interval = metrics.brier(np.zeros(2000), states)
    assert interval.value == 0.5 and interval.low <= 0.01 and interval.high >= 0.99


def test_the_blend_minimises_the_error_against_another_outcome() -> None:
    value, states = random_states(7)

    def error(weight: float) -> float:
        total = 0.0
        for i in range(value.size):
            singles = [o for j, o in outcomes_of(states) if j == i]
            pairs = list(itertools.permutations(singles, 2))
            if pairs:
                error = np.mean([((1 - weight) * value[i] + weight * o - p) ** 2 for o, p in pairs])
                total += len(singles) * float(error)
        return total

    best = metrics.blend(value, states)
    grid = [error(weight) for weight in np.linspace(0, 1, 101)]
    assert 0 < best < 1 and error(best) <= min(grid) + 1e-9
    truth = states_of([(i, -1, float(i % 2), 5) for i in range(20)])
    assert metrics.blend(truth.target, truth) == 0.0  # V is the outcome: a rollout adds nothing
    assert metrics.blend(np.full(20, 0.5), truth) == 1.0  # V knows nothing, one rollout everything
    assert math.isnan(metrics.blend(np.zeros(1), states_of([(0, -1, 1.0, 1)])))


def test_a_value_that_does_not_beat_chance_gets_no_weight() -> None:
    good, level = Interval(0.7, 0.6, 0.8), Interval(0.55, 0.5, 0.6)
    assert metrics.verdict(good, good, 0.3).rollout_weight == 0.3
    for ranked, separated in ((level, good), (good, level)):
        judged = metrics.verdict(ranked, separated, 0.3)
        assert (judged.earned, judged.rollout_weight) == (False, 1.0)
    assert metrics.verdict(good, good, float("nan")).rollout_weight == 1.0
    nothing = Interval(float("nan"), float("nan"), float("nan"))
    assert not metrics.verdict(nothing, good, 0.3).earned


# -- questions, folders and search -------------------------------------------------------------------------------------


def a_question(number: int, rng: Random) -> Question:
    """A tree of four one-token steps, of which the even ones are right, each with a second step."""
    tree = Tree()
    for token in rng.sample(range(5, VOCABULARY), 4):
        first = tree.attach(ROOT, Step((token,), (-1.0,), f"{token}\n"))
        for last in rng.sample(range(5, VOCABULARY), 2):
            leaf = tree.attach(first, Step((last, EOS), (-0.5, -0.1), f"{last}."))
            tree.finish(leaf, "answer", RewardParts(0.5, 1.0 - token % 2))
            tree.backup(leaf, 1.0 - token % 2)
    return Question(f"q {number % 50 + 5} {number // 50 + 5}", [tree])


def some_questions(count: int) -> list[Question]:
    rng = Random(1)
    return [a_question(number, rng) for number in range(count)]


def test_the_split_goes_by_question_and_never_moves() -> None:
    questions = some_questions(400)
    train, validation, test = split_by_question(questions, 0.2, 0.1)
    assert 50 < len(validation) < 110 and 20 < len(test) < 60
    assert not {q.text for q in train} & {q.text for q in [*validation, *test]}
    fewer = split_by_question(questions[:200], 0.2, 0.1)[1]
    assert [q.text for q in fewer] == [q.text for q in validation if q in questions[:200]]
    with pytest.raises(DataError, match="none is left"):
        split_by_question(questions[:1], 0.2, 0.1)


def test_states_and_rows_are_in_one_order() -> None:
    student, questions = a_student(), some_questions(3)
    states, rows = held_out_states(questions, student)
    flat = [row.targets[i] for row in rows for i in row.states]
    assert states.target.tolist() == flat and len(flat) == 3 * 13
    assert states.depth.tolist()[:3] == [0, 1, 2] and states.length.tolist()[:3] == [0, 1, 3]
    assert states.logprob[2] == pytest.approx(-1.6) and states.final[:3].tolist() == [False, False, True]
    assert metrics.sibling_pairs(states).better.size > 3


def test_journals_are_read_by_question(tmp_path: Path) -> None:
    first, second = some_questions(2)
    with (tmp_path / "journal.jsonl").open("w") as file:
        for key, question in (("a", first), ("b", second), ("c", first)):
            problem, tree = {"question": question.text}, question.trees[0].to_dict()
            file.write(json.dumps({"key": key, "problem": problem, "tree": tree}) + "\n")
        file.write(json.dumps({"key": "d", "problem": {"question": "q"}, "tree": Tree().to_dict()}) + "\n")
    found = read_questions([tmp_path / "journal.jsonl"])
    assert [(q.text, len(q.trees)) for q in found] == [(first.text, 2), (second.text, 1)]
    for question in (first, second):  # read again, when they are asked for
        [same] = [q for q in found if q.text == question.text]
        assert [tree.to_dict() for tree in same.trees] == [question.trees[0].to_dict()] * len(same.trees)
    (tmp_path / "bad.jsonl").write_text('{"key": "x"}\n')
    with pytest.raises(DataError, match="holds no graded trees"):
        read_questions([tmp_path / "bad.jsonl"])


def test_trees_of_other_splits_are_not_learned_from(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    [question], journal = some_questions(1), tmp_path / "journal.jsonl"
    record = {"key": "a", "problem": {"question": question.text}, "tree": question.trees[0].to_dict()}
    journal.write_text(json.dumps({**record, "split": "train"}) + "\n")
    assert len(read_questions([journal])) == 1
    with journal.open("a") as file:
        file.write(json.dumps({**record, "key": "b", "split": "validation"}) + "\n")
    assert main(["value", "--student", "embedded", "--data", str(journal), "--out", str(tmp_path / "v")]) == 2
    [line] = capsys.readouterr().err.strip().splitlines()
    assert str(journal) in line and "validation split" in line and "--split train" in line


def test_a_journal_of_another_policy_is_not_gone_on_with(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    path.write_text('{"key":"x","policy":"another"}\n')
    with pytest.raises(DataError, match="searched by another policy"):
        collect_trees(a_student(), load_config(), CollectConfig(), [], path, lambda: False, Progress(quiet=True))


@pytest.mark.parametrize(
    ("kind", "adapter", "quantization"),
    [("head", "full", "none"), ("network", "full", "none"), ("network", "lora", "none"), ("network", "lora", "nf4")],
)
def test_a_saved_value_gives_search_what_training_saw(
    kind: str, adapter: str, quantization: str, tmp_path: Path
) -> None:
    # A base that calls itself quantised gets an adapter beside it instead of a merge; the numbers here are fp32.
    student = a_student(adapter=adapter, quantization=quantization)
    value = {"kind": kind, "epochs": 3, "evaluate_every": 5, "learning_rate": 3e-3, "warmup_steps": 2}
    config = load_config(overrides=[{"train": {"value": value}, "engine": {"max_context": 64, "cache_tokens": 2000}}])
    parts = split_by_question(some_questions(120), 0.2, 0.2)
    valued = train_value(student, config, parts, tmp_path)
    save_value(tmp_path, valued, student, config, {"command": "test"})
    card = json.loads((tmp_path / "value.json").read_text())
    assert card["kind"] == kind and card["questions"]["training"] == len(parts[0])
    assert card["test"]["brier"] == pytest.approx(
        [valued.figures["brier"].value, valued.figures["brier"].low, valued.figures["brier"].high]
    )
    function = load_value(tmp_path, student, config)
    assert (function.rollout_weight, function.own) == (valued.verdict.rollout_weight, kind == "network")
    rows = value_rows(parts[2][:3], student, every_token=False)
    if kind == "network":
        logits = network_logits(valued.fitted.network, rows)
    else:
        logits = [h @ valued.fitted.weight + valued.fitted.bias for h in hidden_states(student.model, rows)]
    prompts = [student.prompt_ids(q.text) for q in parts[2][:3]]

    async def ask() -> None:
        for question, prompt, expected in zip(parts[2][:3], prompts, logits, strict=True):
            states, _ = held_out_states([question], student)
            asked = [prompt + path for path in prefixes(question.trees[0])]
            found = await asyncio.gather(*(function(ids) for ids in asked))
            assert found == pytest.approx(expected.sigmoid().tolist(), abs=2e-5)
            assert len(found) == states.target.size

    asyncio.run(ask())
    if kind == "network" and quantization == "none":
        loaded = AutoModelForTokenClassification.from_pretrained(tmp_path).eval()
        torch.testing.assert_close(torch.cat(network_logits(loaded, rows)), torch.cat(logits), atol=1e-5, rtol=1e-4)
        assert load_value(tmp_path, a_student(seed=5), config).own  # a whole network serves other policies too
    if quantization == "nf4":
        with pytest.raises(CheckpointError, match="trained on other weights"):
            load_value(tmp_path, a_student(5, adapter, quantization), config)


def test_a_head_belongs_to_one_policy_and_damage_is_noticed(tmp_path: Path) -> None:
    student = a_student()
    config = load_config(overrides=[{"train": {"value": {"kind": "head"}}}])
    valued = train_value(student, config, split_by_question(some_questions(60), 0.2, 0.2), tmp_path)
    with pytest.raises(CheckpointError, match=r"has no value\.json"):
        load_value(tmp_path, student, config)
    save_value(tmp_path, valued, student, config, {})
    with pytest.raises(CheckpointError, match="trained on other weights"):
        load_value(tmp_path, a_student(seed=3), config)
    file = tmp_path / "value.safetensors"
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    with pytest.raises(CheckpointError, match=r"truncated or changed value\.safetensors"):
        load_value(tmp_path, student, config)


def test_the_fingerprint_is_of_the_weights() -> None:
    model = tiny_llama()
    before = policy_fingerprint(model)
    assert before == policy_fingerprint(tiny_llama()) != policy_fingerprint(tiny_llama(1))
    with torch.no_grad():
        model.model.norm.weight[0] += 1e-6
    assert policy_fingerprint(model) != before


# -- the command -------------------------------------------------------------------------------------------------------


def test_the_command_collects_trains_and_reports(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "value"
    small = ["--kind", "head", "--set", "train.value.iterations=2", "--set", "train.value.samples=4"]
    command = ["value", "--student", "embedded", "--questions", "40", "--out", str(out), *small]
    assert main(command) == 0
    printed = capsys.readouterr()
    assert printed.out.startswith(
        ("Not better than chance: don't use it", "Better than log-probability at ranking steps")
    )
    for name in ("brier", "calibration error", "AUC", "sibling ranking", "lambda"):
        assert name in printed.out
    assert "searching: 40/40 questions" in printed.err and "held out 0." in printed.err
    files = {file.name for file in out.iterdir()}
    assert files == {
        "journal.jsonl",
        "metrics.jsonl",
        "report.html",
        "trees.html",
        "value.json",
        "value.safetensors",
    }
    assert {"train_loss", "held_out_loss"} <= json.loads((out / "metrics.jsonl").read_text().splitlines()[0]).keys()
    assert list(tmp_path.iterdir()) == [out]  # nothing outside the out folder
    assert main(command) == 2
    assert "holds a finished value" in capsys.readouterr().err
    # The journal alone gives the same value again, bit for bit.
    again = tmp_path / "again"
    assert main(["value", "--student", "embedded", "--kind", "head", "--data", str(out), "--out", str(again)]) == 0
    assert (again / "value.safetensors").read_bytes() == (out / "value.safetensors").read_bytes()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--data", "nowhere"], "--data nowhere is not there"),
        (["--data", "nowhere", "--questions", "20"], "give one of them"),
        (["--questions", "3"], "train.value.collect.questions is 3"),
        (["--kind", "tree"], "invalid choice"),
    ],
)
def test_a_wrong_argument_is_one_sentence(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        code = main(["value", "--student", "embedded", "--out", str(tmp_path / "v"), *arguments])
    except SystemExit as error:
        code = int(error.code or 0)
    assert code == 2
    [line] = capsys.readouterr().err.strip().splitlines()
    assert message in line


def test_a_stopped_collection_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "value"
    asked = iter([False] * 30)
    monkeypatch.setattr(live.Stop, "__call__", lambda self: next(asked, True))
    small = ["--set", "train.value.iterations=1", "--set", "train.value.samples=2", "--set", "search.concurrent=4"]
    command = ["value", "--student", "embedded", "--questions", "40", "--out", str(out), *small]
    assert main(command) == cli.EXIT_STOPPED
    assert "the same command goes on" in capsys.readouterr().err
    searched = len((out / "journal.jsonl").read_text().splitlines())
    assert 0 < searched < 40
    monkeypatch.undo()
    assert main(command) == 0
    assert len((out / "journal.jsonl").read_text().splitlines()) == 40


# -- which questions ---------------------------------------------------------------------------------------------------


def judged(folder: Path, *overrides: str) -> JudgeCommand:
    config = load_config(overrides=["student=embedded", *overrides])
    args = argparse.Namespace(data=None, questions=None, out=folder / "value", path=None, json=False, quiet=True)
    return JudgeCommand(args, config, config.train.value, FOLDER, live.Progress(quiet=True))


def test_a_judge_learns_from_questions_that_training_never_took(tmp_path: Path) -> None:
    rows = [
        json.dumps({"question": task.problem.question, "answer": task.solution})
        for task in load_tasks("embedded", "train", 100)
    ]
    for split in ("train", "test"):
        (tmp_path / f"{split}.jsonl").write_text("\n".join(rows), encoding="utf-8")
    problems = ["problems.source=gsm8k", f"dataset.path={tmp_path}", "train.demonstrations=0"]
    collect = ["train.value.collect.questions=12", "train.value.collect.iterations=1", "train.value.collect.samples=2"]
    command = judged(tmp_path, *problems, *collect, "train.num_examples=60", "train.first_question=5")
    assert command.paths() == [tmp_path / "value"]
    keys = {record["key"] for record in read(tmp_path / "value" / "journal.jsonl")}
    assert keys == {f"gsm8k/train/{i}" for i in range(65, 77)}
    run = Run(command.config)
    run.load_data()
    assert len(run.tasks) == 60 and not keys & {task.problem.id for task in run.tasks}
    # 80 rows are the train split: 15 are left.
    with pytest.raises(ConfigError, match="is 16 and gsm8k has 15 training questions beyond the 65 that warm-up"):
        judged(tmp_path, *problems, "train.value.collect.questions=16", *collect[1:], "train.num_examples=60",
               "train.first_question=5").fresh()  # fmt: skip
    with pytest.raises(ConfigError, match="has 0 training questions beyond the 5,760"):
        judged(tmp_path, *problems, *collect).fresh()


@pytest.mark.parametrize(
    ("overrides", "used"),
    [
        ([], 1350 + 5760),  # warm-up's demonstrations, then the run's questions
        (["train.demonstration_share=0"], 5760),
        (["problems.source=gsm8k"], 5760),
        (["problems.source=gsm8k", "train.num_examples=100"], 1350),  # `sft` may have taken the first 1,350
        (["problems.source=gsm8k", "train.demonstration_share=0.1", "train.first_question=7"], 1350 + 7 + 5760),
    ],
)
def test_what_training_takes(overrides: list[str], used: int) -> None:
    assert used_questions(load_config(overrides=overrides)) == used
