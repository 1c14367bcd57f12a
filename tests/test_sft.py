import copy
import json
from dataclasses import replace

import pytest
import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast
from trl import SFTConfig

from alphazero_llm_trainer.config.load import load_config
from alphazero_llm_trainer.errors import DataError, TrainingError
from alphazero_llm_trainer.policy.student import load_student
from alphazero_llm_trainer.problems import embedded
from alphazero_llm_trainer.problems.tokenizer import build_tokenizer
from alphazero_llm_trainer.training import warmup
from alphazero_llm_trainer.training.models import Economy
from alphazero_llm_trainer.training.sft import (
    SftSettings,
    StudentShape,
    TimedSFTTrainer,
    UpdatesByLength,
    WeightedCollator,
    WeightedSFTTrainer,
    _TimedWatch,
    _trainer_arguments,
    new_student,
    run_sft,
    sft_rows,
    train_student,
)
from alphazero_llm_trainer.training.warmup import settings_of

TINY = StudentShape(hidden_size=32, layers=1, heads=2, intermediate_size=64, max_positions=256)
SETTINGS = SftSettings(steps=6, batch_size=4, warmup_steps=2, evaluate_every=3, shape=TINY)


@pytest.fixture(scope="module")
def student():
    return load_student(load_config(), "embedded")


@pytest.fixture(scope="module")
def tokenizer(student):
    return student.tokenizer


@pytest.fixture(scope="module")
def rows(student):
    return sft_rows(embedded.load("train", 16), student)


def trainer_for(model, rows, tmp_path, **arguments):
    args = SFTConfig(
        output_dir=str(tmp_path),
        max_length=None,
        dataset_kwargs={"skip_prepare_dataset": True},
        remove_unused_columns=False,
        bf16=False,
        gradient_checkpointing=False,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        **arguments,
    )
    return WeightedSFTTrainer(
        model=model,
        args=args,
        train_dataset=Dataset.from_list(rows),
        data_collator=WeightedCollator(0),
        processing_class=build_tokenizer(),
    )


def hand_loss(model, rows):
    total, weight = 0.0, 0.0
    for row in rows:
        ids = torch.tensor([row["input_ids"]])
        logprobs = model(input_ids=ids).logits[0].log_softmax(-1)
        for t in range(1, ids.shape[1]):
            total = total - row["weights"][t] * logprobs[t - 1, ids[0, t]]
            weight += row["weights"][t]
    return total / weight


def test_of_equally_good_evaluations_the_earliest_weights_are_kept():
    model, accuracies = torch.nn.Linear(1, 1), iter([0.5, 0.5, 0.75, 0.75])
    watch = _TimedWatch(SETTINGS, lambda model: next(accuracies))
    kept = []
    for step in range(4):
        torch.nn.init.constant_(model.weight, step)
        watch._evaluate(model, step)
        kept.append(watch.best["weight"].item())
    assert kept == [0, 0, 2, 2]


def test_rows_weigh_question_and_answer_tokens(student, tokenizer):
    task = embedded.build("train", 0, 1)
    (row,) = sft_rows([task], student, question_weight=0.1)
    assert tokenizer.decode(row["input_ids"]) == f"{task.problem.question}\n{task.solution}<eos>"
    question = len(tokenizer(task.problem.question + "\n")["input_ids"])
    assert row["weights"] == [0.1] * question + [1.0] * (len(row["input_ids"]) - question)


def test_a_question_weighs_nothing_for_a_student_that_goes_on():
    config = load_config()
    assert settings_of(config).question_weight == 0.1 and settings_of(config, 100).question_weight == 0.0
    given = load_config(overrides=["train.sft.question_weight=0.3"])
    assert settings_of(given).question_weight == settings_of(given, 100).question_weight == 0.3


def test_a_row_without_a_solution_is_refused(student):
    task = replace(embedded.build("train", 0, 1), solution=None)
    with pytest.raises(DataError, match="embedded/train/1/0"):
        sft_rows([task], student)


def test_collator_pads_with_no_weight():
    batch = WeightedCollator(7)(
        [{"input_ids": [1, 2, 3], "weights": [0.0, 0.1, 1.0]}, {"input_ids": [4], "weights": [2.0]}]
    )
    assert batch["input_ids"].tolist() == [[1, 2, 3], [4, 7, 7]]
    assert batch["labels"].tolist() == [[-100, 2, 3], [4, -100, -100]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1], [1, 0, 0]]
    assert torch.allclose(batch["weights"], torch.tensor([[0.0, 0.1, 1.0], [2.0, 0.0, 0.0]]))


def test_weighted_loss_and_gradient_equal_a_hand_loop(tokenizer, rows, tmp_path):
    model = new_student(tokenizer, TINY, seed=1)
    by_hand = copy.deepcopy(model)
    trainer = trainer_for(model, rows, tmp_path)
    mixed = [dict(row, weights=[w * (1 + i) for w in row["weights"]]) for i, row in enumerate(rows[:5])]
    loss = trainer.compute_loss(trainer.model, WeightedCollator(0)(mixed))
    expected = hand_loss(by_hand, mixed)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    loss.backward()
    expected.backward()
    for p, q in zip(trainer.model.parameters(), by_hand.parameters(), strict=True):
        assert torch.allclose(p.grad, q.grad, atol=1e-6)


def test_row_weights_scale(tokenizer, rows, tmp_path):
    trainer = trainer_for(new_student(tokenizer, TINY, seed=1), rows, tmp_path)
    collate = WeightedCollator(0)

    def loss_of(weights):
        batch = [dict(r, weights=[x * w for x in r["weights"]]) for r, w in zip(rows[:2], weights, strict=True)]
        return trainer.compute_loss(trainer.model, collate(batch)).item()

    first, second = loss_of([1, 0]), loss_of([0, 1])
    assert first == pytest.approx(hand_loss(trainer.model, rows[:1]).item(), rel=1e-5)
    assert loss_of([3, 3]) == pytest.approx(loss_of([1, 1]), rel=1e-5)
    sums = [sum(r["weights"][1:]) for r in rows[:2]]
    mean = (3 * sums[0] * first + sums[1] * second) / (3 * sums[0] + sums[1])
    assert loss_of([3, 1]) == pytest.approx(mean, rel=1e-5)
    assert loss_of([0, 0]) == 0.0


def test_accumulation_gives_the_same_weights_as_one_large_batch(tokenizer, rows, tmp_path):
    ends = []
    for batch, accumulation in ((8, 1), (2, 4)):
        trainer = trainer_for(
            new_student(tokenizer, TINY, seed=1),
            rows,
            tmp_path,
            per_device_train_batch_size=batch,
            gradient_accumulation_steps=accumulation,
            max_steps=3,
            learning_rate=1e-2,
            optim="sgd",
            max_grad_norm=0.0,
        )
        trainer.train()
        ends.append(trainer.model.state_dict())
    for name, tensor in ends[0].items():
        assert torch.allclose(tensor, ends[1][name], atol=1e-6), name


def test_training_keeps_the_best_weights_and_leaves_the_model_as_it_came(tokenizer, rows, tmp_path):
    model = new_student(tokenizer, TINY, seed=1)
    scores, snapshots = iter([0.2, 0.9, 0.5]), []

    def evaluate(current):
        assert not current.training
        snapshots.append({k: v.clone() for k, v in current.state_dict().items()})
        return next(scores)

    settings = replace(SETTINGS, steps=9)
    result = train_student(model, rows, tokenizer, settings, out_dir=tmp_path, evaluate=evaluate)
    assert result["steps"] == 9 and [e["step"] for e in result["evaluations"]] == [3, 6, 9]
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, snapshots[1][name])
    assert "forward" not in model.__dict__ and not model.training and model.config.use_cache


def test_the_seed_decides_the_result(tokenizer, rows, tmp_path):
    ends = []
    for seed in (3, 3, 4):
        model = new_student(tokenizer, TINY, seed=seed)
        train_student(model, rows, tokenizer, replace(SETTINGS, seed=seed), out_dir=tmp_path)
        ends.append(torch.cat([p.flatten() for p in model.parameters()]))
    assert torch.equal(ends[0], ends[1]) and not torch.equal(ends[0], ends[2])


def test_the_clock_stops_training(tokenizer, rows, tmp_path):
    model = new_student(tokenizer, TINY, seed=1)
    settings = replace(SETTINGS, steps=100_000, max_seconds=0.5)
    result = train_student(model, rows, tokenizer, settings, out_dir=tmp_path)
    assert 0 < result["steps"] < 5_000 and 0.4 < result["seconds"] < 10


def test_a_loss_that_is_not_finite_is_an_error(tokenizer, rows, tmp_path):
    model = new_student(tokenizer, TINY, seed=1)
    with torch.no_grad():
        model.get_input_embeddings().weight.fill_(float("nan"))
    with pytest.raises(TrainingError, match="learning rate"):
        train_student(model, rows, tokenizer, replace(SETTINGS, steps=60), out_dir=tmp_path)


def test_no_rows_are_an_error(tokenizer, tmp_path):
    with pytest.raises(DataError, match="empty"):
        train_student(new_student(tokenizer, TINY, 0), [], tokenizer, SETTINGS, out_dir=tmp_path)


def test_run_sft_writes_a_model_and_its_manifest(tokenizer, rows, tmp_path):
    out = tmp_path / "student"
    manifest = run_sft(
        SETTINGS,
        out,
        rows=rows,
        tokenizer=tokenizer,
        evaluate=lambda model: 0.25,
        measure=lambda model: {"test_accuracy": 0.125},
        model=new_student(tokenizer, TINY, SETTINGS.seed),
        facts={"demonstrations": "embedded/train/0-15"},
    )
    assert json.loads((out / "manifest.json").read_text()) == manifest
    assert manifest["seed"] == 0 and manifest["steps"] == 6 and manifest["rows"] == 16
    assert manifest["validation_accuracy"] == 0.25 and manifest["test_accuracy"] == 0.125
    assert manifest["demonstrations"] == "embedded/train/0-15" and len(manifest["data_sha256"]) == 64
    loaded = AutoModelForCausalLM.from_pretrained(out)
    assert sum(p.numel() for p in loaded.parameters()) == manifest["parameters"]
    assert loaded.config.eos_token_id == tokenizer.eos_token_id
    again = PreTrainedTokenizerFast.from_pretrained(out)
    assert again("Mia has 12 apples.")["input_ids"] == tokenizer("Mia has 12 apples.")["input_ids"]
    # The control arm goes on from an existing model.
    more = run_sft(SETTINGS, tmp_path / "more", rows=rows, tokenizer=tokenizer, model=loaded)
    assert more["data_sha256"] == manifest["data_sha256"] and more["validation_accuracy"] is None


@pytest.mark.slow
def test_a_short_training_of_the_student_makes_the_loss_fall(student, tokenizer, tmp_path):
    rows = sft_rows(embedded.load("train", 500), student)
    settings = SftSettings(steps=300)
    model = new_student(tokenizer, settings.shape, settings.seed)
    losses = [loss for _, loss in train_student(model, rows, tokenizer, settings, out_dir=tmp_path)["losses"]]
    assert losses[-1] < 0.5 * losses[0]


def test_an_updates_rows_are_sorted_by_length_and_the_updates_are_random():
    lengths = [(7 * i) % 23 for i in range(30)]
    sampler = UpdatesByLength(lengths, 8, seed=3)
    order = list(sampler)
    assert sorted(order) == list(range(30)) and order == list(sampler)
    for start in range(0, 30, 8):
        update = [lengths[i] for i in order[start : start + 8]]
        assert update == sorted(update)
    assert sorted(order[:8]) != list(range(8))
    sampler.set_epoch(1)
    assert list(sampler) != order


def test_updates_are_by_length_where_they_take_several_forwards(student, tmp_path):
    def sampler(economy: Economy) -> object:
        trainer = TimedSFTTrainer(
            SETTINGS,
            model=new_student(student.tokenizer, TINY, 0),
            args=_trainer_arguments(SETTINGS, tmp_path, economy),
            train_dataset=Dataset.from_list([{"input_ids": [1] * n, "weights": [1.0] * n} for n in (5, 2, 4, 3)]),
            processing_class=student.tokenizer,
            data_collator=WeightedCollator(0),
        )
        return trainer._get_train_sampler()

    assert isinstance(sampler(Economy(micro_batch=2)), UpdatesByLength)
    assert not isinstance(sampler(Economy()), UpdatesByLength)


def test_the_engine_holds_no_cache_while_updates_are_made(tmp_path, monkeypatch) -> None:
    loaded, load = [], warmup.load_student

    def kept(*args, **more):
        loaded.append(load(*args, **more))
        return loaded[-1]

    class Begun(Exception):
        pass

    def updates(*args, **more):
        raise Begun

    monkeypatch.setattr(warmup, "load_student", kept)
    monkeypatch.setattr(warmup, "run_sft", updates)
    config = load_config(overrides=["student=embedded", "train.demonstrations=4", "train.sft.validation_size=2"])
    with pytest.raises(Begun):
        warmup.supervise(config, None, tmp_path, 3, scratch=False)
    [student] = loaded
    assert student.engine.cost.sampled_tokens > 0 and student.engine.tree._states is None
