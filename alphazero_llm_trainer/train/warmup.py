"""The `sft` command: the embedded student from scratch on few demonstrations, selected on validation, reported on test."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from ..config import Config
from ..eval.greedy import answer
from ..eval.metrics import pass_at_k, wilson
from ..policy.student import limit_threads, make_student
from ..problems.embedded import DEFAULT_LEVELS
from ..problems.load import load_tasks
from ..problems.tokenizer import build_tokenizer
from .models import Economy
from .sft import SftSettings, run_sft, sft_rows

SAMPLES = 8


def settings_of(config: Config) -> SftSettings:
    """`train.sft` as the trainer's settings."""
    sft = config.train.sft
    return SftSettings(
        steps=sft.steps,
        batch_size=sft.batch_size,
        learning_rate=sft.learning_rate,
        warmup_steps=sft.warmup_steps,
        weight_decay=sft.weight_decay,
        max_grad_norm=sft.max_grad_norm,
        question_weight=sft.question_weight,
        evaluate_every=sft.evaluate_every,
        seed=config.seed,
    )


def warm_up(config: Config, out: Path, eval_size: int) -> dict[str, Any]:
    """Train, write the student's folder and return its manifest. The test split is read once, at the end."""
    limit_threads()
    levels = config.problems.levels
    tokenizer = build_tokenizer()
    demonstrations = load_tasks("embedded", "train", max(config.train.demonstrations, 1), levels=levels)
    validation = load_tasks("embedded", "validation", config.train.sft.validation_size, levels=levels)
    test = load_tasks("embedded", "test", eval_size, levels=levels)
    limit = config.search.max_tokens

    def accuracy(model: Any) -> float:
        student = make_student("embedded", model, tokenizer, config.models["embedded"], config, None)
        correct = answer(student, validation, max_tokens=limit).first
        sys.stderr.write(f"validation accuracy {sum(correct) / len(correct):.3f}\n")
        return sum(correct) / len(correct)

    def measure(model: Any) -> dict[str, Any]:
        student = make_student("embedded", model, tokenizer, config.models["embedded"], config, None)
        return measure_test(student, test, limit, config.seed)

    return run_sft(
        settings_of(config),
        out,
        rows=sft_rows(demonstrations, tokenizer, config.train.sft.question_weight),
        tokenizer=tokenizer,
        evaluate=accuracy,
        measure=measure,
        economy=Economy.of(config.train, config.models["embedded"]),
        facts={
            "demonstrations": f"embedded train 0..{len(demonstrations) - 1}",
            "levels": list(DEFAULT_LEVELS if levels is None else levels),
        },
    )


def measure_test(student: Any, test: Any, limit: int, seed: int) -> dict[str, Any]:
    """Greedy accuracy and pass@8 at temperature 1, with 95% intervals."""
    greedy = answer(student, test, max_tokens=limit).first
    sampled = answer(student, test, max_tokens=limit, n=SAMPLES, temperature=1.0, seed=seed).correct
    interval = wilson(sum(greedy), len(greedy))
    solved = sum(any(row) for row in sampled)
    passed = wilson(solved, len(sampled))
    mean = sum(pass_at_k(SAMPLES, sum(row), 1) for row in sampled) / len(sampled)
    return {
        "test_greedy": {"problems": len(test), "value": interval.value, "low": interval.low, "high": interval.high},
        "test_pass_at_8": {"problems": len(test), "value": passed.value, "low": passed.low, "high": passed.high},
        "test_mean_at_temperature_1": mean,
    }
