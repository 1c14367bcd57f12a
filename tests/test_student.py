"""The shipped student is what its manifest says."""

from __future__ import annotations

import hashlib
import json

import torch

from alphazero_llm_trainer.config import load_config
from alphazero_llm_trainer.eval.greedy import answer
from alphazero_llm_trainer.policy.student import PACKAGED, load_student, resolve_name
from alphazero_llm_trainer.problems.embedded import DEFAULT_LEVELS
from alphazero_llm_trainer.problems.load import load_tasks
from alphazero_llm_trainer.problems.tokenizer import build_tokenizer
from alphazero_llm_trainer.train.sft import sft_rows

MANIFEST = json.loads((PACKAGED / "manifest.json").read_text())


def test_it_is_small_and_an_ordinary_folder():
    assert (PACKAGED / "model.safetensors").stat().st_size <= 5_000_000
    assert MANIFEST["parameters"] < 2_000_000
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        assert (PACKAGED / name).is_file()


def test_it_was_trained_on_the_demonstrations_that_the_configuration_names():
    config = load_config()
    tasks = load_tasks("embedded", "train", config.train.demonstrations)
    rows = sft_rows(tasks, build_tokenizer(), config.train.sft.question_weight)
    digest = hashlib.sha256(json.dumps(rows, sort_keys=True).encode()).hexdigest()
    assert digest == MANIFEST["data_sha256"]
    assert MANIFEST["rows"] == len(rows)
    assert MANIFEST["levels"] == list(DEFAULT_LEVELS)


def test_it_reproduces_its_recorded_accuracy():
    student = load_student(load_config(overrides=["student=embedded"]))
    recorded = MANIFEST["test_greedy"]
    answers = answer(student, load_tasks("embedded", "test", recorded["problems"]), max_tokens=160)
    accuracy = sum(answers.first) / len(answers.first)
    # Greedy answers are exact; only a tie within rounding error can fall otherwise on another processor.
    assert abs(accuracy - recorded["value"]) <= 0.005
    assert 0.50 <= accuracy <= 0.65
    assert recorded["low"] < accuracy < recorded["high"]


def test_there_is_room_to_learn():
    student = load_student(load_config(overrides=["student=embedded"]))
    tasks = load_tasks("embedded", "test", 500)
    greedy = answer(student, tasks, max_tokens=160).first
    sampled = answer(student, tasks, max_tokens=160, n=8, temperature=1.0, seed=7).correct
    assert sum(map(any, sampled)) / 500 > sum(greedy) / 500 + 0.08


def test_its_tokenizer_is_the_generators_own():
    student = load_student(load_config(overrides=["student=embedded"]))
    assert student.tokenizer.get_vocab() == build_tokenizer().get_vocab()
    question = load_tasks("embedded", "test", 1)[0].problem.question
    assert student.decode(student.prompt_ids(question)) == question + "\n"


def test_auto_is_the_embedded_student_without_cuda():
    assert resolve_name(load_config()) == ("llama-3.2-3b" if torch.cuda.is_available() else "embedded")
