"""Supervised training on worked solutions: what weighs, what is kept, what is written."""

import json

import pytest
import torch
from safetensors.torch import load_file
from tables import read_json

from alphazero_llm_trainer.config.load import load_config
from alphazero_llm_trainer.config.sections import ModelShape
from alphazero_llm_trainer.errors import ConfigError, TrainingError
from alphazero_llm_trainer.learning.methods.expert_iteration import Likelihood
from alphazero_llm_trainer.learning.models import MemoryOptions, trained_state
from alphazero_llm_trainer.live import Progress
from alphazero_llm_trainer.policy.student import load_student
from alphazero_llm_trainer.problems import embedded
from alphazero_llm_trainer.problems.load import load_tasks
from alphazero_llm_trainer.runs import fit as fitting
from alphazero_llm_trainer.runs.fit import Kept, fit, minibatches, planned
from alphazero_llm_trainer.runs.folder import RunFolder
from alphazero_llm_trainer.runs.sft import (
    RATE,
    new_student,
    sft_rows,
    student_from_scratch,
    supervise,
)

TINY = ModelShape(layers=1, hidden=32, heads=2, kv_heads=2, head_dim=16, intermediate=64)


def settings(steps=6, **given):
    """Those of a student from scratch, in few updates; `given` are keys of the optimiser."""
    few = {
        "sft_steps": steps,
        "evaluate_every": 3,
        "optimizer": {"batch_size": 4, "warmup": 2} | given,
    }
    config = load_config(overrides=[{"train": few}], recipe="sft_scratch.yaml")
    return planned(config.train, 16, RATE)


def train_student(model, rows, *more, **named):
    """`fit` on these rows."""
    return fit(model, Likelihood(), [[row] for row in rows], *more, **named)


def measured(evaluate):
    """What `fit` measures by, where `evaluate` gives an accuracy."""
    return lambda course: {"step": len(course.losses), "accuracy": evaluate()}


@pytest.fixture(scope="module")
def student():
    return load_student(load_config(overrides=["student=embedded"]))


@pytest.fixture(scope="module")
def rows(student):
    return sft_rows(load_tasks("embedded", "train", 16), student, 0.1)


def tiny(student, seed=1):
    return new_student(student.tokenizer, seed, TINY)


def test_rows_weigh_question_and_answer_tokens(student):
    task = embedded.build("train", 0, 1)
    [row], [bare] = sft_rows([task], student, question_weight=0.1), sft_rows([task], student)
    prompt, worked = student.worked(task)
    assert (
        (*row.prompt_ids, *row.completion_ids)
        == (*bare.prompt_ids, *bare.completion_ids)
        == (*prompt, *worked)
    )
    assert (
        student.tokenizer.decode([*prompt, *worked])
        == f"{task.problem.question}\n{task.solution}<eos>"
    )
    # The first token is never predicted.
    assert row.advantages == (0.1,) * (len(prompt) - 1) + (1.0,) * len(worked)
    assert bare.prompt_ids == tuple(prompt) and bare.advantages == (1.0,) * len(worked)


def test_each_pass_takes_every_row_once_and_minibatches_are_sorted_by_length(
    rows,
):
    alone = [[row] for row in rows]
    drawn = minibatches(alone, 4, seed=3)
    for _ in range(2):
        epoch = [next(drawn) for _ in range(4)]
        assert sorted(id(row) for batch in epoch for row in batch) == sorted(map(id, rows))
        assert all([*map(length, batch)] == sorted(map(length, batch)) for batch in epoch)
    assert [length(row) for row in next(minibatches(alone, 8, 1))] != [
        length(row) for row in next(minibatches(alone, 8, 2))
    ]


def length(row):
    return len(row.prompt_ids) + len(row.completion_ids)


def test_the_seed_decides_the_weights_and_parts_of_a_minibatch_do_not(student, rows):
    def trained(seed, memory=MemoryOptions()):  # noqa: B008
        model = tiny(student, seed)
        train_student(model, rows, settings(), seed, memory)
        return trained_state(model)

    first, same, other, parts = (
        trained(1),
        trained(1),
        trained(2),
        trained(1, MemoryOptions(micro_batch=1)),
    )
    assert all(torch.equal(first[name], same[name]) for name in first)
    assert any(not torch.equal(first[name], other[name]) for name in first)
    assert all(torch.allclose(first[name], parts[name], atol=2e-3) for name in first)


def test_epochs_are_passes_over_the_demonstrations():
    for overrides, steps in (([], 6), (["train.optimizer.epochs=1"], 2)):
        config = load_config(overrides=overrides, recipe="sft.yaml")
        assert planned(config.train, 32, RATE).sft_steps == steps


@pytest.mark.parametrize("keep_best", [True, False])
def test_of_equally_good_evaluations_the_earliest_weights_are_kept(student, rows, keep_best):
    model, seen = tiny(student), []

    def evaluate():
        seen.append(trained_state(model))
        return [0.25, 0.5, 0.5][len(seen) - 1]

    train = settings(steps=8).changed(keep_best=keep_best)
    course = train_student(model, rows, train, 0, measure=measured(evaluate))
    assert [line["step"] for line in course.lines] == [3, 6, 8]
    assert course.line is course.lines[1 if keep_best else 2]
    kept = seen[1 if keep_best else 2]
    assert all(
        torch.equal(parameter, kept[name]) for name, parameter in trained_state(model).items()
    )


def test_a_stopped_training_goes_on_to_the_same_weights(student, rows, tmp_path, monkeypatch):
    monkeypatch.setattr(fitting, "KEPT_EVERY", 0.0)
    monkeypatch.setattr(fitting, "KEPT_SHARE", float("inf"))
    accuracies = [0.75, 0.5, 0.25]  # the best one comes before the interruption

    def trained(folder, stop, identity="a"):
        """A training whose evaluation number `stop` is interrupted."""
        model, calls = tiny(student), 0

        def evaluate():
            nonlocal calls
            calls += 1
            if calls == stop:
                raise KeyboardInterrupt
            return accuracies[evaluated.pop(0)]

        kept = Kept(folder, identity, pytest.fail)
        evaluated = list(range(len(kept.state["told"][1]) if kept.state else 0, 3))
        measure = measured(evaluate)
        return model, train_student(model, rows, settings(steps=8), 0, measure=measure, kept=kept)

    whole, right = trained(tmp_path / "whole", 0)
    for stop in (2, 1):
        with pytest.raises(KeyboardInterrupt):
            trained(tmp_path / "parts", stop)
    assert len(Kept(tmp_path / "parts", "a", pytest.fail).state["told"][0]) == 5
    model, found = trained(tmp_path / "parts", 0)
    assert found.losses == right.losses and found.lines == right.lines
    assert [line["step"] for line in found.lines] == [3, 6, 8]
    for name, parameter in trained_state(whole).items():
        assert torch.equal(parameter, trained_state(model)[name])
    with pytest.raises(ConfigError, match="has a training under way with other data or settings"):
        trained(tmp_path / "parts", 0, "b")
    assert len(list((tmp_path / "parts").glob("checkpoint-*"))) == 1


def test_it_learns_and_a_loss_that_is_not_finite_is_one_sentence(student):
    rows = sft_rows(load_tasks("embedded", "train", 200), student, 0.1)
    usual = settings(steps=60, batch_size=16, warmup=50)
    losses = train_student(
        student_from_scratch(load_config(), student.tokenizer).model, rows, usual, 0
    ).losses
    assert len(losses) == 60 and sum(losses[-5:]) < 0.6 * sum(losses[:5])
    with pytest.raises(TrainingError, match=r"lower train\.optimizer\.learning_rate"):
        train_student(
            tiny(student), rows, settings(steps=60, learning_rate=1e30, max_grad_norm=1e30), 0
        )


@pytest.mark.parametrize("scratch", [True, False])
def test_the_command_writes_a_student_and_its_manifest(scratch, tmp_path):
    config = load_config(
        overrides=[
            "student=embedded",
            "train.demonstrations=20",
            "train.sft_steps=4",
            "train.evaluate_every=2",
            "train.validation_size=8",
            "train.eval_size=8",
            f"train.keep_best={json.dumps(scratch)}",
        ]
    )
    manifest = supervise(config, None, tmp_path, scratch)
    scores = [line["accuracy"] for line in manifest["evaluations"]]
    assert len(scores) == 2
    assert manifest["validation_accuracy"] == (max(scores) if scratch else scores[-1])
    assert manifest == read_json(tmp_path / "manifest.json")
    assert manifest["steps"] == 4 and manifest["rows"] == 20 and len(manifest["data_sha256"]) == 64
    assert manifest["test_greedy"]["problems"] == 8 and (("gain" in manifest) != scratch)
    loaded = load_student(config, path=tmp_path)
    assert sum(p.numel() for p in loaded.model.parameters()) == manifest["parameters"]
    assert load_file(tmp_path / "model.safetensors")
    with pytest.raises(ConfigError, match=r"holds config\.json"):
        supervise(config, None, tmp_path, scratch)


class Interrupted(Progress):
    """The user's Ctrl-C after three updates."""

    def at(self, done):
        if done == 3:
            raise KeyboardInterrupt


class Ended(Progress):
    """The user's Ctrl-C when the test problems are measured at the end."""

    def wait(self, doing):
        if doing == "measuring":
            raise KeyboardInterrupt


class Began(Progress):
    """Notes what is counted from where."""

    def start(self, total, done=0, unit="question", *more, **kw):
        self.starts = [*getattr(self, "starts", []), (total, done, unit)]
        super().start(total, done, unit, *more, **kw)


def test_the_same_command_goes_on_and_another_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(fitting, "KEPT_EVERY", 0.0)
    monkeypatch.setattr(fitting, "KEPT_SHARE", float("inf"))
    given = ["train.demonstrations=20", "train.sft_steps=4", "train.validation_size=8"]
    given += ["student=embedded", "train.adapter=lora", "train.eval_size=8"]
    config = load_config(overrides=given)
    with pytest.raises(KeyboardInterrupt):
        supervise(config, None, tmp_path, False, Interrupted(quiet=True))
    kept = RunFolder(tmp_path / "under-way")
    told = kept.newest_checkpoint(pytest.fail)[1]["told"][0]
    assert len(told) == 2
    for other in ("models.embedded.lora.alpha=64", "seed=8", "search.max_tokens=50"):
        with pytest.raises(ConfigError, match="has a training under way"):
            supervise(load_config(overrides=[*given, other]), None, tmp_path, False)
    assert kept.newest_checkpoint(pytest.fail)[1]["told"][0] == told
    monkeypatch.setattr(fitting, "KEPT_EVERY", 60.0)
    began = Began(quiet=True)
    manifest = supervise(config, None, tmp_path, False, began)
    assert (4, 2, "step") in began.starts  # the rate and the time left are of what is left
    assert manifest["steps"] == 4 and not kept.path.exists()
    whole = supervise(config, None, tmp_path / "whole", False)
    assert whole["loss"] == manifest["loss"] and whole["test_greedy"] == manifest["test_greedy"]


def test_a_command_that_was_killed_while_it_measured_has_lost_no_training(tmp_path):
    given = ["train.demonstrations=20", "train.sft_steps=4", "train.validation_size=8"]
    config = load_config(overrides=["student=embedded", "train.eval_size=8", *given])
    with pytest.raises(KeyboardInterrupt):
        supervise(config, None, tmp_path, False, Ended(quiet=True))
    written = read_json(tmp_path / "manifest.json")
    trained = load_file(tmp_path / "model.safetensors")
    assert written["steps"] == 4 and "test_greedy" not in written
    began = Began(quiet=True)
    manifest = supervise(config, None, tmp_path, False, began)
    assert (4, 4, "step") in began.starts and manifest["test_greedy"]["problems"] == 8
    assert manifest.items() >= {**written, "seconds": manifest["seconds"]}.items()
    for name, weights in load_file(tmp_path / "model.safetensors").items():
        assert torch.equal(weights, trained[name])
    with pytest.raises(ConfigError, match=r"holds config\.json"):
        supervise(config, None, tmp_path, False)
