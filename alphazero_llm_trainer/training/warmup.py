"""The `sft` command: supervised training on worked solutions, selected on validation, reported on test.

Students without a folder that are small (embedded, small) are trained from scratch, with the words of their problems as
vocabulary; a named folder, and every other student, goes on from its weights.
"""

from __future__ import annotations

import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

from transformers import set_seed

from ..config.load import Config
from ..errors import DataError
from ..eval.greedy import answer
from ..eval.metrics import paired_bootstrap, pass_at_k, wilson
from ..live import Progress
from ..policy.folders import trained_with, write_facts
from ..policy.student import hush_transformers, limit_threads, load_student, make_student
from ..problems.load import opening, tasks_of
from ..problems.source import Source, open_source
from ..problems.tokenizer import build_tokenizer
from ..types import Opening, Task
from .models import Economy, make_trainable, merged, save_adapter
from .progress import StepProgress
from .sft import SftSettings, new_student, run_sft, sft_rows

SAMPLES = 8
# Where train.sft leaves them open: updates from scratch, passes for a student that goes on, and both learning rates.
STEPS, PASSES, RATE, GENTLE_RATE = 6000, 3, 3e-3, 2e-4
QUESTION_WEIGHT = 0.1  # from scratch alone: a student that goes on knows how questions are written


def settings_of(config: Config, rows: int | None = None) -> SftSettings:
    """`train.sft` as the trainer's settings: from scratch, or for a student that goes on with `rows` demonstrations."""
    sft = config.train.sft
    steps, rate = (STEPS, RATE) if rows is None else (math.ceil(PASSES * rows / sft.batch_size), GENTLE_RATE)
    weight = QUESTION_WEIGHT if rows is None else 0.0
    shared = sft.model_dump(exclude={"steps", "learning_rate", "validation_size", "question_weight"})
    return SftSettings(
        steps=steps if sft.steps is None else sft.steps,
        learning_rate=rate if sft.learning_rate is None else sft.learning_rate,
        question_weight=weight if sft.question_weight is None else sft.question_weight,
        seed=config.library_seed,
        **shared,
    )


def supervise(
    config: Config, path: Path | None, out: Path, eval_size: int, scratch: bool, progress: Progress | None = None
) -> dict[str, Any]:
    """Train on worked solutions of `problems.source`, write the student's folder and return its manifest.

    From scratch it is the embedded or the small student. Else the one in `path` (None: the configured one) goes on: its
    adapter or all of it is trained (`train.adapter`), `out` is a plain folder with `adapter/` in it where there is one, and
    the manifest has the test accuracy before. The test split is read once otherwise, at the end.
    """
    limit, progress = config.search.max_tokens, progress if progress is not None else Progress(quiet=True)
    source = open_source(config)
    tokenizer = build_tokenizer(source) if scratch else None
    demonstrations = worked_solutions(config, source)
    validation = tasks_of(config, "validation", config.train.sft.validation_size)
    test = tasks_of(config, "test", eval_size)
    facts: dict[str, Any] = {"demonstrations": f"{source.name} train 0..{len(demonstrations) - 1}"}

    def answers(tasks: list[Task], **shown: Any) -> list[bool]:
        student.model.eval()
        student.engine.set_policy(None, student.engine.version + 1)
        right = answer(student, tasks, max_tokens=limit, **shown).first
        student.engine.rest()  # updates come next, and they need the memory
        return right

    def accuracy(model: Any) -> float:
        right = answers(validation)
        progress.say(f"validation accuracy {sum(right) / len(right):.3f} after {progress.done:,} steps")
        return sum(right) / len(right)

    def measure(model: Any) -> dict[str, Any]:
        student.engine.set_policy(None, student.engine.version + 1)
        found, right = measure_test(student, test, limit, config.seed, progress)
        return found if scratch else found | {"gain": asdict(paired_bootstrap(right, before))}

    def save(model: Any, folder: Path) -> None:
        if adapter == "lora":
            save_adapter(student.model, student.spec.lora, folder / "adapter")
            write_facts(folder / "adapter", student.name, trained_with(student, source.name), adapter=True)
            merged(student.model, config.train.merge_dtype).save_pretrained(folder)
        else:
            student.model.save_pretrained(folder)
        write_facts(folder, student.name, trained_with(student, source.name))

    trainable: Any
    if tokenizer is not None:
        limit_threads()
        hush_transformers()
        settings, adapter = settings_of(config), "full"
        trainable = new_student(tokenizer, settings.shape, settings.seed)
        name = "embedded" if config.student == "auto" else config.student
        student = make_student(name, trainable, tokenizer, config.models[name], config, Opening())
        facts["student"] = name
        facts["levels"] = sorted({task.problem.level for task in demonstrations})
        facts["hold_out"] = config.problems.hold_out
    else:
        student = load_student(config, path=path, opening=opening(config, source))
        settings, adapter = settings_of(config, len(demonstrations)), config.train.adapter or student.spec.adapter
        set_seed(config.library_seed)
        trainable = make_trainable(student.model, student.spec, adapter)
        before = answers(test, progress=progress, doing="test problems before training")
        facts |= {
            "student": student.name,
            "started_from": None if path is None else str(path),
            "adapter": adapter,
            "test_before": {"problems": len(test), **asdict(wilson(sum(before), len(before)))},
        }
    return run_sft(
        settings,
        out,
        rows=sft_rows(demonstrations, student, settings.question_weight),
        tokenizer=student.tokenizer,
        evaluate=accuracy,
        measure=measure,
        model=trainable,
        facts=facts,
        economy=Economy.of(config, student.spec, student.model),
        save=save,
        callbacks=[StepProgress(progress)],
    )


def worked_solutions(config: Config, source: Source) -> list[Task]:
    """The demonstrations. Raises DataError where a task has no worked solution."""
    demonstrations = tasks_of(config, "train", max(config.train.demonstrations, 1))
    without = next((task.problem.id for task in demonstrations if not task.solution), None)
    if without is not None:
        raise DataError(
            f"source {source.name} has no worked solution for {without!r} and sft learns from them: give every training"
            " task one, or name another source"
        )
    return demonstrations


def measure_test(
    student: Any, test: list[Task], limit: int, seed: int, progress: Progress
) -> tuple[dict[str, Any], list[bool]]:
    """Greedy accuracy and pass@8 at temperature 1 with 95% intervals; and which greedy answers are right."""
    shown: dict[str, Any] = {"max_tokens": limit, "progress": progress}
    greedy = answer(student, test, doing="test problems, greedy", **shown).first
    sampling: dict[str, Any] = {
        "n": SAMPLES,
        "temperature": 1.0,
        "seed": seed,
        "doing": f"test problems, {SAMPLES} samples each",
    }
    sampled = answer(student, test, **shown, **sampling).correct
    interval = wilson(sum(greedy), len(greedy))
    solved = sum(any(row) for row in sampled)
    passed = wilson(solved, len(sampled))
    mean = sum(pass_at_k(SAMPLES, sum(row), 1) for row in sampled) / len(sampled)
    facts = {
        "test_greedy": {"problems": len(test), **asdict(interval)},
        "test_pass_at_8": {"problems": len(test), **asdict(passed)},
        "test_mean_at_temperature_1": mean,
    }
    return facts, greedy
