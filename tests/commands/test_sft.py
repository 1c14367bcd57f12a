"""Supervised training on worked solutions: what weighs, what is kept, what is written."""

import itertools
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file
from tables import read_json

from alphazero_llm_trainer.cli.main import main
from alphazero_llm_trainer.config.load import load_config
from alphazero_llm_trainer.config.sections import ModelShape
from alphazero_llm_trainer.errors import ConfigError, DataError, TrainingError
from alphazero_llm_trainer.learning.methods.expert_iteration import Likelihood
from alphazero_llm_trainer.learning.models import MemoryOptions, trained_state
from alphazero_llm_trainer.live import Progress
from alphazero_llm_trainer.policy.student import load_student
from alphazero_llm_trainer.problems import embedded
from alphazero_llm_trainer.problems.load import load_tasks
from alphazero_llm_trainer.runs import fit as fitting
from alphazero_llm_trainer.runs.fit import Kept, draw_minibatches, fit, plan_updates
from alphazero_llm_trainer.runs.folder import RunFolder
from alphazero_llm_trainer.runs.sft import (
    RATE,
    learnable_rows,
    new_student,
    sft_rows,
    student_from_scratch,
    supervise_student,
)

TINY = ModelShape(layers=1, hidden=32, heads=2, kv_heads=2, head_dim=16, intermediate=64)


def settings(steps=6, **given):
    """Those of a student from scratch, in few updates; `given` are keys of the optimiser."""
    few = {
        "sft_steps": steps,
        "evaluate_every": 3,
        "optimizer": {"batch_size": 4, "warmup": 1} | given,
    }
    config = load_config(overrides=[{"train": few}], recipe="sft_scratch.yaml")
    return plan_updates(config, 16, RATE)


def train_student(model, rows, *more, **named):
    """`fit` on these rows."""
    return fit(model, Likelihood(), [[row] for row in rows], *more, **named)


def measured(evaluate):
    """What `fit` measures by, where `evaluate` gives an accuracy."""
    return lambda course: {"step": len(course.losses), "accuracy": evaluate()}


@pytest.fixture(scope="module")
def rows(student):
    return sft_rows(load_tasks("embedded", "train", 16), student, 0.1)


def tiny(student, seed=1):
    return new_student(student.tokenizer, seed, TINY)


@pytest.fixture
def often(monkeypatch):
    """Every update is kept."""
    monkeypatch.setattr(fitting, "KEPT_EVERY", 0.0)
    monkeypatch.setattr(fitting, "KEPT_SHARE", float("inf"))


def equal(one, other, **near):
    torch.testing.assert_close(one, other, **({"rtol": 0, "atol": 0} | near))


def test_rows_weigh_question_and_answer_tokens(student):
    task = embedded.build_task("train", 0, 1)
    [row], [bare] = sft_rows([task], student, question_weight=0.1), sft_rows([task], student)
    prompt, worked = student.solution_ids(task)
    for one in (row, bare):
        assert (*one.prompt_ids, *one.completion_ids) == (*prompt, *worked)
    text = student.tokenizer.decode([*prompt, *worked])
    assert text == f"{task.problem.question}\n{task.solution}<eos>"
    # The first token is never predicted.
    assert row.weights == (0.1,) * (len(prompt) - 1) + (1.0,) * len(worked)
    assert bare.prompt_ids == tuple(prompt) and bare.weights == (1.0,) * len(worked)


@pytest.mark.parametrize("field", ["question", "solution"])
def test_a_text_that_the_vocabulary_lacks_is_named_before_training(student, field):
    task = embedded.build_task("train", 0, 1)
    if field == "question":
        odd = replace(
            task, problem=replace(task.problem, question=f"{task.problem.question} Brötchen")
        )
    else:
        odd = replace(task, solution=f"{task.solution}\nBrötchen")
    with pytest.raises(DataError, match=r"Brötchen.*vocabulary_texts"):
        learnable_rows([task, odd], student, 0.0, Progress(quiet=True))
    assert len(learnable_rows([task], student, 0.0, Progress(quiet=True))) == 1


def test_rows_beyond_the_models_positions_are_left_out_or_refused(student, monkeypatch, capsys):
    tasks = [embedded.build_task("train", i, 1) for i in range(8)]
    rows = sft_rows(tasks, student)
    lengths = sorted(len(row.prompt_ids) + len(row.completion_ids) for row in rows)
    assert lengths[0] < lengths[-2] < lengths[-1]
    monkeypatch.setattr(student.model.config, "max_position_embeddings", lengths[-2])
    kept = learnable_rows(tasks, student, 0.0, Progress())
    assert len(kept) == len([n for n in lengths if n <= lengths[-2]]) < len(rows)
    assert f"reads {lengths[-2]} tokens" in capsys.readouterr().err
    monkeypatch.setattr(student.model.config, "max_position_embeddings", lengths[0] - 1)
    with pytest.raises(ConfigError, match="worked solutions don't fit the model"):
        learnable_rows(tasks, student, 0.0, Progress(quiet=True))


def test_each_pass_takes_every_row_once_and_minibatches_are_sorted_by_length(rows):
    def lengths(batch):
        return [len(row.prompt_ids) + len(row.completion_ids) for row in batch]

    alone = [[row] for row in rows]
    drawn = draw_minibatches(alone, 4, seed=3)
    for _ in range(2):
        epoch = [next(drawn) for _ in range(4)]
        assert sorted(id(row) for batch in epoch for row in batch) == sorted(map(id, rows))
        assert all(lengths(batch) == sorted(lengths(batch)) for batch in epoch)
    one, other = (lengths(next(draw_minibatches(alone, 8, seed))) for seed in (1, 2))
    assert one != other
    for overrides, steps in (([], 6), (["train.optimizer.epochs=1"], 2)):
        config = load_config(overrides=overrides, recipe="sft.yaml")
        assert plan_updates(config, 32, RATE).sft_steps == steps


def test_the_seed_decides_the_weights_and_parts_of_a_minibatch_do_not(student, rows):
    def trained(seed, **memory):
        model = tiny(student, seed)
        train_student(model, rows, settings(), seed, MemoryOptions(**memory))
        return trained_state(model)

    first, other = trained(1), trained(2)
    equal(first, trained(1))
    equal(first, trained(1, micro_batch=1), atol=2e-3)
    assert any(not torch.equal(first[name], other[name]) for name in first)


@pytest.mark.parametrize("keep_best", [True, False])
def test_of_equally_good_evaluations_the_earliest_weights_are_kept(student, rows, keep_best):
    model, seen = tiny(student), []

    def evaluate():
        seen.append({name: tensor.clone() for name, tensor in trained_state(model).items()})
        return [0.25, 0.5, 0.5][len(seen) - 1]

    train = settings(steps=8).with_values(keep_best=keep_best)
    course = train_student(model, rows, train, 0, measure=measured(evaluate))
    assert [line["step"] for line in course.lines] == [3, 6, 8]
    kept = 1 if keep_best else 2
    assert course.line is course.lines[kept]
    equal(trained_state(model), seen[kept])


def test_a_stopped_training_goes_on_to_the_same_weights(student, rows, tmp_path, often):
    accuracies = [0.75, 0.5, 0.25]  # the best one comes before the interruption

    def trained(name, stop, identity="a"):
        """A training whose evaluation number `stop` is interrupted."""
        model, kept = tiny(student), Kept(tmp_path / name, identity, pytest.fail)
        done = len(kept.state["told"][1]) if kept.state else 0
        left = iter(accuracies[done:])
        calls = itertools.count(1)

        def evaluate():
            if next(calls) == stop:
                raise KeyboardInterrupt
            return next(left)

        measure = measured(evaluate)
        course = train_student(model, rows, settings(steps=8), 0, measure=measure, kept=kept)
        return trained_state(model), course

    whole, right = trained("whole", 0)
    for stop in (2, 1):
        with pytest.raises(KeyboardInterrupt):
            trained("parts", stop)
    assert len(Kept(tmp_path / "parts", "a", pytest.fail).state["told"][0]) == 5
    state, found = trained("parts", 0)
    assert found.losses == right.losses and found.lines == right.lines
    assert [line["step"] for line in found.lines] == [3, 6, 8]
    equal(whole, state)
    with pytest.raises(ConfigError, match="has a training under way with other data or settings"):
        trained("parts", 0, "b")
    assert len([*(tmp_path / "parts").glob("checkpoint-*")]) == 1


def test_it_learns_and_a_loss_that_is_not_finite_is_one_sentence(student):
    rows = sft_rows(load_tasks("embedded", "train", 200), student, 0.1)
    usual = settings(steps=60, batch_size=16, warmup=15)
    model = student_from_scratch(load_config(), student.tokenizer).model
    losses = train_student(model, rows, usual, 0).losses
    assert len(losses) == 60 and sum(losses[-5:]) < 0.6 * sum(losses[:5])
    wild = settings(steps=60, learning_rate=1e30, max_grad_norm=1e30)
    with pytest.raises(TrainingError, match=r"lower train\.optimizer\.learning_rate"):
        train_student(tiny(student), rows, wild, 0)


def few(*overrides):
    """Settings of a short command."""
    sizes = "demonstrations=20 sft_steps=4 validation_size=8 eval_size=8".split()
    asked = ["student=embedded", *(f"train.{one}" for one in sizes), *overrides]
    return load_config(overrides=asked)


@pytest.mark.parametrize("scratch", [True, False])
def test_the_command_writes_a_student_and_its_manifest(scratch, tmp_path):
    config = few("train.evaluate_every=2", f"train.keep_best={scratch}")
    manifest = supervise_student(config, None, tmp_path, scratch)
    scores = [line["accuracy"] for line in manifest["evaluations"]]
    assert len(scores) == 2
    assert manifest["validation_accuracy"] == (max(scores) if scratch else scores[-1])
    assert manifest == read_json(tmp_path / "manifest.json")
    assert manifest["steps"] == 4 and manifest["rows"] == 20 and len(manifest["data_sha256"]) == 64
    assert manifest["test_greedy"]["problems"] == 8 and (("gain" in manifest) != scratch)
    loaded = load_student(config, path=tmp_path).model
    assert sum(p.numel() for p in loaded.parameters()) == manifest["parameters"]
    with pytest.raises(ConfigError, match=r"holds config\.json"):
        supervise_student(config, None, tmp_path, scratch)


class Watched(Progress):
    """Notes what is counted from where, and is the user's Ctrl-C after three updates or when the
    test problems are measured at the end.
    """

    def __init__(self, interrupt=None):
        super().__init__(quiet=True)
        self.interrupt, self.starts = interrupt, []

    def start(self, total, done=0, unit="question", *more, **kw):
        self.starts.append((total, done, unit))
        super().start(total, done, unit, *more, **kw)

    def at(self, done):
        if done == self.interrupt:
            raise KeyboardInterrupt

    wait = at


def test_the_same_command_goes_on_and_another_is_refused(tmp_path, often):
    adapter = "train.adapter=lora"
    with pytest.raises(KeyboardInterrupt):
        supervise_student(few(adapter), None, tmp_path, False, Watched(3))
    kept = RunFolder(tmp_path / "under-way")

    def told():
        return kept.newest_checkpoint(pytest.fail)[1]["told"][0]

    before = told()
    assert len(before) == 2
    for other in ("models.embedded.lora.alpha=64", "seed=8", "search.max_tokens=50"):
        with pytest.raises(ConfigError, match="has a training under way"):
            supervise_student(few(adapter, other), None, tmp_path, False)
    assert told() == before
    watched = Watched()
    manifest = supervise_student(few(adapter), None, tmp_path, False, watched)
    assert (4, 2, "step") in watched.starts  # the rate and the time left are of what is left
    assert manifest["steps"] == 4 and not kept.path.exists()
    whole = supervise_student(few(adapter), None, tmp_path / "whole", False)
    assert whole["loss"] == manifest["loss"] and whole["test_greedy"] == manifest["test_greedy"]


def test_a_command_that_was_killed_while_it_measured_has_lost_no_training(tmp_path):
    def files():
        return read_json(tmp_path / "manifest.json"), load_file(tmp_path / "model.safetensors")

    with pytest.raises(KeyboardInterrupt):
        supervise_student(few(), None, tmp_path, False, Watched("measuring"))
    written, trained = files()
    assert written["steps"] == 4 and "test_greedy" not in written
    watched = Watched()
    manifest = supervise_student(few(), None, tmp_path, False, watched)
    assert (4, 4, "step") in watched.starts and manifest["test_greedy"]["problems"] == 8
    assert manifest.items() >= {**written, "seconds": manifest["seconds"]}.items()
    equal(files()[1], trained)
    with pytest.raises(ConfigError, match=r"holds config\.json"):
        supervise_student(few(), None, tmp_path, False)


@pytest.mark.parametrize("card", ["run.json", "results.json", "critic.json", "manifest.json"])
def test_the_folder_of_another_command_is_refused(tmp_path, capsys, card):
    (tmp_path / card).write_text("{}")
    assert main(["sft", "--out", str(tmp_path)]) == 2
    assert f"holds {card} already" in capsys.readouterr().err
    assert [*tmp_path.iterdir()] == [tmp_path / card]
