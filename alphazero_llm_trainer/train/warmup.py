"""The `sft` command: supervised training on worked solutions, selected on validation, reported on test.

The embedded student is trained from scratch; a named folder, and every other student, goes on from its weights.
"""

from __future__ import annotations

import math
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from transformers import set_seed

from ..config.load import Config
from ..eval.greedy import answer
from ..eval.metrics import paired_bootstrap, pass_at_k, wilson
from ..policy.student import Student, limit_threads, load_student, make_student
from ..problems.embedded import DEFAULT_LEVELS
from ..problems.load import load_tasks
from ..problems.prompts import system_prompt
from ..problems.tokenizer import build_tokenizer
from ..types import Task
from .models import Economy, make_trainable, merged, save_adapter
from .sft import Row, SftSettings, run_sft, sft_rows

SAMPLES = 8
# Where train.sft leaves them open: updates from scratch, passes for a student that goes on, and both learning rates.
STEPS, PASSES, RATE, GENTLE_RATE = 6000, 3, 3e-3, 2e-4


def settings_of(config: Config, rows: int | None = None) -> SftSettings:
    """`train.sft` as the trainer's settings: from scratch, or for a student that goes on with `rows` demonstrations."""
    sft = config.train.sft
    steps, rate = (STEPS, RATE) if rows is None else (math.ceil(PASSES * rows / sft.batch_size), GENTLE_RATE)
    return SftSettings(
        steps=steps if sft.steps is None else sft.steps,
        batch_size=sft.batch_size,
        learning_rate=rate if sft.learning_rate is None else sft.learning_rate,
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


def go_on(config: Config, path: Path | None, out: Path, eval_size: int) -> dict[str, Any]:
    """Train the student in `path` (None: the configured one) on worked solutions of `problems.source`, as `warm_up` does.

    What is trained is its adapter or all of it (`train.adapter`); `out` is a plain folder, with `adapter/` in it where
    there is one. Returns the manifest, with the test accuracy before.
    """
    source, limit = config.problems.source, config.search.max_tokens
    options: dict[str, Any] = {"levels": config.problems.levels, "path": config.dataset.path}
    demonstrations = load_tasks(source, "train", max(config.train.demonstrations, 1), **options)
    validation = load_tasks(source, "validation", config.train.sft.validation_size, **options)
    test = load_tasks(source, "test", eval_size, **options)
    student = load_student(config, path=path, system_prompt=system_prompt(source))
    adapter = config.train.adapter or student.spec.adapter
    set_seed(config.seed)
    trainable = make_trainable(student.model, student.spec, adapter)
    rows: list[Row] = []
    for task in demonstrations:
        prompt, solution = worked(student, task)
        weights = [config.train.sft.question_weight] * len(prompt) + [1.0] * len(solution)
        rows.append({"input_ids": [*prompt, *solution], "weights": weights})

    def accuracy(model: Any) -> float:
        right = answers(validation)
        sys.stderr.write(f"validation accuracy {sum(right) / len(right):.3f}\n")
        return sum(right) / len(right)

    def answers(tasks: list[Task]) -> list[bool]:
        student.model.eval()
        student.engine.set_policy(None, student.engine.version + 1)
        return answer(student, tasks, max_tokens=limit).first

    def measure(model: Any) -> dict[str, Any]:
        student.engine.set_policy(None, student.engine.version + 1)
        found = measure_test(student, test, limit, config.seed)
        gain = paired_bootstrap(answers(test), before)
        return found | {"gain": asdict(gain)}

    def save(model: Any, folder: Path) -> None:
        if adapter == "lora":
            save_adapter(student.model, student.spec.lora, folder / "adapter")
            merged(student.model, config.train.merge_dtype).save_pretrained(folder)
        else:
            student.model.save_pretrained(folder)

    before = answers(test)
    interval = wilson(sum(before), len(before))
    return run_sft(
        settings_of(config, len(rows)),
        out,
        rows=rows,
        tokenizer=student.tokenizer,
        evaluate=accuracy,
        measure=measure,
        model=trainable,  # type: ignore[arg-type]
        facts={
            "student": student.name,
            "started_from": None if path is None else str(path),
            "adapter": adapter,
            "demonstrations": f"{source} train 0..{len(demonstrations) - 1}",
            "test_before": {"problems": len(test), **asdict(interval)},
        },
        economy=Economy.of(config.train, student.spec),
        save=save,
    )


def worked(student: Student, task: Task) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """A demonstration as the student's own chat: its prompt and the solution with the end token."""
    solution = (*student.encode(task.solution or ""), student.engine.eos_id)
    return student.prompt_ids(task.problem.question), solution


def measure_test(student: Any, test: Any, limit: int, seed: int) -> dict[str, Any]:
    """Greedy accuracy and pass@8 at temperature 1, with 95% intervals."""
    greedy = answer(student, test, max_tokens=limit).first
    sampled = answer(student, test, max_tokens=limit, n=SAMPLES, temperature=1.0, seed=seed).correct
    interval = wilson(sum(greedy), len(greedy))
    solved = sum(any(row) for row in sampled)
    passed = wilson(solved, len(sampled))
    mean = sum(pass_at_k(SAMPLES, sum(row), 1) for row in sampled) / len(sampled)
    return {
        "test_greedy": {"problems": len(test), **asdict(interval)},
        "test_pass_at_8": {"problems": len(test), **asdict(passed)},
        "test_mean_at_temperature_1": mean,
    }
