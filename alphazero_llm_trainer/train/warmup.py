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
from ..policy.student import limit_threads, load_student, make_student
from ..problems.embedded import DEFAULT_LEVELS
from ..problems.load import tasks_of
from ..problems.prompts import system_prompt
from ..problems.tokenizer import build_tokenizer
from ..types import Task
from .models import Economy, make_trainable, merged, save_adapter
from .sft import SftSettings, new_student, run_sft, sft_rows

SAMPLES = 8
# Where train.sft leaves them open: updates from scratch, passes for a student that goes on, and both learning rates.
STEPS, PASSES, RATE, GENTLE_RATE = 6000, 3, 3e-3, 2e-4


def settings_of(config: Config, rows: int | None = None) -> SftSettings:
    """`train.sft` as the trainer's settings: from scratch, or for a student that goes on with `rows` demonstrations."""
    sft = config.train.sft
    steps, rate = (STEPS, RATE) if rows is None else (math.ceil(PASSES * rows / sft.batch_size), GENTLE_RATE)
    shared = sft.model_dump(exclude={"steps", "learning_rate", "validation_size"})
    return SftSettings(
        steps=steps if sft.steps is None else sft.steps,
        learning_rate=rate if sft.learning_rate is None else sft.learning_rate,
        seed=config.seed,
        **shared,
    )


def supervise(config: Config, path: Path | None, out: Path, eval_size: int, scratch: bool) -> dict[str, Any]:
    """Train on worked solutions of `problems.source`, write the student's folder and return its manifest.

    From scratch it is the embedded student. Else the one in `path` (None: the configured one) goes on: its adapter or all
    of it is trained (`train.adapter`), `out` is a plain folder with `adapter/` in it where there is one, and the manifest
    has the test accuracy before. The test split is read once otherwise, at the end.
    """
    limit = config.search.max_tokens
    demonstrations = tasks_of(config, "train", max(config.train.demonstrations, 1))
    validation = tasks_of(config, "validation", config.train.sft.validation_size)
    test = tasks_of(config, "test", eval_size)
    facts: dict[str, Any] = {"demonstrations": f"{config.problems.source} train 0..{len(demonstrations) - 1}"}

    def answers(tasks: list[Task]) -> list[bool]:
        student.model.eval()
        student.engine.set_policy(None, student.engine.version + 1)
        return answer(student, tasks, max_tokens=limit).first

    def accuracy(model: Any) -> float:
        right = answers(validation)
        sys.stderr.write(f"validation accuracy {sum(right) / len(right):.3f}\n")
        return sum(right) / len(right)

    def measure(model: Any) -> dict[str, Any]:
        student.engine.set_policy(None, student.engine.version + 1)
        found = measure_test(student, test, limit, config.seed)
        return found if scratch else found | {"gain": asdict(paired_bootstrap(answers(test), before))}

    def save(model: Any, folder: Path) -> None:
        if adapter == "lora":
            save_adapter(student.model, student.spec.lora, folder / "adapter")
            merged(student.model, config.train.merge_dtype).save_pretrained(folder)
        else:
            student.model.save_pretrained(folder)

    trainable: Any
    if scratch:
        limit_threads()
        settings, tokenizer, adapter = settings_of(config), build_tokenizer(), "full"
        trainable = new_student(tokenizer, settings.shape, settings.seed)
        student = make_student("embedded", trainable, tokenizer, config.models["embedded"], config, None)
        facts["levels"] = list(DEFAULT_LEVELS if config.problems.levels is None else config.problems.levels)
        facts["hold_out"] = config.problems.hold_out
    else:
        student = load_student(config, path=path, system_prompt=system_prompt(config.problems.source))
        settings, adapter = settings_of(config, len(demonstrations)), config.train.adapter or student.spec.adapter
        set_seed(config.seed)
        trainable = make_trainable(student.model, student.spec, adapter)
        before = answers(test)
        facts |= {
            "student": student.name,
            "started_from": None if path is None else str(path),
            "adapter": adapter,
            "test_before": {"problems": len(test), **asdict(wilson(sum(before), len(before)))},
        }
    return run_sft(
        settings,
        out,
        rows=sft_rows(demonstrations, student, config.train.sft.question_weight),
        tokenizer=student.tokenizer,
        evaluate=accuracy,
        measure=measure,
        model=trainable,
        facts=facts,
        economy=Economy.of(config.train, student.spec),
        save=save,
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
        "test_greedy": {"problems": len(test), **asdict(interval)},
        "test_pass_at_8": {"problems": len(test), **asdict(passed)},
        "test_mean_at_temperature_1": mean,
    }
