"""The `sft` command: supervised training on worked solutions, selected on validation, reported on
test.

Students without a folder that are small (embedded, small) are trained from scratch, with the words
of their problems as vocabulary; a named folder, and every other student, goes on from its weights.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerBase, set_seed

from ..chat.tool_calls import write_line
from ..config.load import Config
from ..config.refusals import refuse_conflicts
from ..config.sections import ModelShape, SearchConfig
from ..engine.device import text_config
from ..errors import ConfigError, DataError
from ..eval.greedy import answer_tasks
from ..eval.metrics import paired_bootstrap, wilson
from ..files import CARDS, Folder, command_line, write_json
from ..learning.methods.expert_iteration import Likelihood
from ..learning.models import MemoryOptions, make_trainable
from ..learning.train_row import TrainRow
from ..live import Progress
from ..policy.student import hush_transformers, limit_threads, load_student, make_student
from ..problems.load import demonstrations_of, opening, tasks_of, with_context
from ..problems.registry import open_source, source_of
from ..problems.source import Source
from ..problems.tokenizer import build_tokenizer
from ..rewards.demonstrations import work_out
from ..types import JsonObject, Opening, Task
from .fit import Course, FiguresLine, Kept, fit, plan_updates
from .saving import save_student

if TYPE_CHECKING:
    from ..policy.student import Student

SFT_SAMPLES = 8
RATE = 2e-4  # of a student that goes on, where the configuration leaves it open
QUESTION_WEIGHT = 0.1  # from scratch alone: a student that goes on knows how questions are written
WORD = 60  # letters of a text in a message
KEPT = "under-way"
CONTEXT = 1024  # tokens, of a student from scratch


def supervise_student(
    config: Config,
    path: Path | None,
    out: Path,
    scratch: bool,
    progress: Progress | None = None,
) -> JsonObject:
    """Train on worked solutions of `problems.source`, write the student's folder and return its
    manifest.

    From scratch it is the embedded or the small student. Else the one in `path` (None: the
    configured one) goes on: its adapter or all of it is trained (`train.adapter`), `out` is a plain
    folder with `adapter/` in it where there is one, and the manifest has the test accuracy before.
    The test split is read once otherwise, at the end. What was stopped goes on by the same
    arguments.
    """
    if not (out / KEPT).is_dir():
        for card in ("config.json", *CARDS):
            Folder(out, card).check_free(fix="remove it")
    progress = progress if progress is not None else Progress(quiet=True)
    source = open_source(config)
    # A source whose words don't fit one says so first.
    vocabulary = build_tokenizer(source) if scratch else None
    demonstrations = worked_solutions(config, source)
    validation = tasks_of(config, "validation", config.train.validation_size)
    test = tasks_of(config, "test", config.train.eval_size)
    facts: JsonObject = {"demonstrations": f"{source.name} train 0..{len(demonstrations) - 1}"}

    def measure(tasks: list[Task], doing: str, **sampling: Any) -> list[list[bool]]:
        limit = config.search.max_tokens
        return answer_tasks(
            student,
            tasks,
            max_tokens=limit,
            settings=config.search,
            progress=progress,
            doing=doing,
            **sampling,
        ).correct

    def accuracy(course: Course) -> FiguresLine:
        right = sum(map(all, measure(validation, "validation"))) / len(validation)
        steps = len(course.losses)
        progress.say(f"validation accuracy {right:.3f} after {steps:,} steps")
        return {"step": steps, "seconds": round(course.seconds, 1), "accuracy": right}

    before: list[list[bool]] = []
    if vocabulary is not None:
        student, adapter = student_from_scratch(config, vocabulary), "full"
        trainable: Any = student.model
        facts["levels"] = sorted({task.problem.level for task in demonstrations})
    else:
        student = load_student(
            with_context(config, source), path=path, opening=opening(config, source)
        )
        adapter = config.train.adapter or student.spec.adapter
        set_seed(config.seed)
        trainable = make_trainable(student.model, student.spec, adapter)
        facts |= {"started_from": None if path is None else str(path), "adapter": adapter}
    rows = learnable_rows(
        demonstrations, student, QUESTION_WEIGHT * scratch, progress, config.search
    )
    settings = plan_updates(config, len(rows), RATE)
    memory = MemoryOptions.of(config, student)
    data = json_digest([[*row.prompt_ids, *row.completion_ids] for row in rows])
    asked = (each.model_dump(mode="json") for each in (settings, student.spec, config.search))
    same = [data, student.weights, config.seed, *asked]
    kept = Kept(out / KEPT, json_digest(same), progress.say)
    if not scratch:
        before = measure(test, "test problems before training")
        facts["test_before"] = right_share(before)
    course = fit(
        trainable,
        Likelihood(),
        [[row] for row in rows],
        settings,
        config.seed,
        memory,
        measure=accuracy if validation else None,
        progress=progress,
        kept=kept,
    )
    last = course.losses[-50:]
    manifest = {
        "command": command_line(),
        "seed": config.seed,
        "settings": settings.optimizer.model_dump(),
        "rows": len(rows),
        "data_sha256": data,
        "parameters": sum(p.numel() for p in trainable.parameters()),
        "loss": sum(last) / len(last),
        "validation_accuracy": course.line.get("accuracy"),
        "steps": len(course.losses),
        "seconds": round(course.seconds, 1),
        "evaluations": course.lines,
        "student": student.name,
        **facts,
    }
    save_student(student, adapter, source.name, out, out / "adapter")
    write_json(out / "manifest.json", manifest)  # before it is measured, which may take long
    progress.wait("measuring")
    greedy = measure(test, "test problems, greedy")
    samples = measure(
        test,
        f"test problems, {SFT_SAMPLES} samples each",
        n=SFT_SAMPLES,
        temperature=1.0,
        seed=config.seed,
    )
    manifest |= {"test_greedy": right_share(greedy), "test_pass_at_8": right_share(samples)}
    if before:
        manifest["gain"] = asdict(paired_bootstrap([*map(any, greedy)], [*map(any, before)]))
    write_json(out / "manifest.json", manifest)
    kept.remove()
    return manifest


def json_digest(value: Any) -> str:
    """SHA-256 of a value's JSON."""
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()


def student_from_scratch(config: Config, tokenizer: Any) -> Student:
    """A student with random weights, whose vocabulary is the tokenizer's."""
    limit_threads()
    hush_transformers()
    # Where it will be trained: an engine keeps its cache where the weights are when it is made.
    device: Any = "cuda" if torch.cuda.is_available() else "cpu"
    name = "embedded" if config.student == "auto" else config.student
    spec = config.models[name]
    refuse_conflicts((), "scratch", name=name, spec=spec)
    assert spec.shape is not None
    model = new_student(tokenizer, config.seed, spec.shape).to(device)
    return make_student(name, model, tokenizer, spec, config, Opening())


def worked_solutions(config: Config, source: Source) -> list[Task]:
    """The demonstrations. Raises DataError where a task has no worked solution."""
    demonstrations = demonstrations_of(config, config.train.demonstrations)
    without = next(
        (
            task.problem.id
            for task in demonstrations
            if not (source.turns(task) if source.worlds else task.solution)
        ),
        None,
    )
    if without is not None:
        raise DataError(
            f"source {source.name} has no worked solution for {without!r} and sft learns from "
            "them: give every training task one, or name another source"
        )
    return demonstrations


def right_share(correct: Sequence[list[bool]]) -> JsonObject:
    """How many problems there are, and the share with a right answer, with its interval."""
    return {"problems": len(correct), **asdict(wilson(sum(map(any, correct)), len(correct)))}


def sft_rows(
    tasks: Sequence[Task],
    student: Student,
    question_weight: float = 0.0,
    settings: SearchConfig | None = None,
) -> list[TrainRow]:
    """Rows of worked solutions: answer tokens weigh 1, question tokens `question_weight` (its first
    one is never predicted), and what a world answered nothing.
    `settings` are those of turns in worlds.
    """
    rows: list[TrainRow] = []
    for shown in work_out(student, settings, tasks):
        prompt, completion, mask = shown
        weights = (1.0,) * len(completion)
        if question_weight:  # the question is a part of what is predicted then
            prompt, completion = prompt[:1], (*prompt[1:], *completion)
            before = len(completion) - len(weights)
            weights = (question_weight,) * before + weights
            mask = (True,) * before + mask if mask else ()
        rows.append(
            TrainRow(
                tuple(prompt), tuple(completion), weights=weights, kind="demonstration", mask=mask
            )
        )
    return rows


def check_known(tasks: Iterable[Task], student: Student) -> None:
    """Raise DataError for a question or worked solution with a text that the student's vocabulary
    has no token for: it would learn to say that it doesn't know the word.
    """
    unknown, ends = student.tokenizer.unk_token_id, student.engine.eos_ids
    if unknown is None or unknown in ends:  # a tokenizer of bytes, which knows all
        return
    for task in tasks:
        for text in (task.problem.question, *solution_texts(task)):
            if unknown not in student.encode(text):
                continue
            words = re.finditer(r"\S+\s*", text)
            word = next(word[0] for word in words if unknown in student.encode(text[: word.end()]))
            raise DataError(
                f"source {task.problem.source}: {task.problem.id!r} has {word.strip()[:WORD]!r}, "
                f"which the vocabulary of student {student.title} lacks: add it to the source's "
                "vocabulary_texts, or take a student that knows it"
            )


def solution_texts(task: Task) -> list[str]:
    """What a student of a small vocabulary writes in a worked solution."""
    source = source_of(task.problem)
    return [*map(write_line, source.turns(task))] if source.worlds else [task.solution or ""]


def learnable_rows(
    tasks: Sequence[Task],
    student: Student,
    question_weight: float,
    progress: Progress,
    settings: SearchConfig | None = None,
) -> list[TrainRow]:
    """`sft_rows` of the tasks that the model has positions for; `progress` gets a line about the
    others.

    Raises DataError for a text that the vocabulary lacks, ConfigError where more than half of the
    rows are too long.
    """
    check_known(tasks, student)
    rows = sft_rows(tasks, student, question_weight, settings)
    most = getattr(text_config(student.model), "max_position_embeddings", None) or math.inf
    lengths = [len(row.prompt_ids) + len(row.completion_ids) for row in rows]
    kept = [row for row, length in zip(rows, lengths, strict=True) if length <= most]
    if len(kept) < len(rows):
        said = (
            f"{len(rows) - len(kept):,} of {len(rows):,} worked solutions don't fit the model, "
            f"which reads {most:,} tokens: the longest has {max(lengths):,}, its question included"
        )
        if 2 * len(kept) < len(rows):
            raise ConfigError(f"{said}; take another model, or source")
        progress.say(f"{said}; they are left out")
    return kept


def new_student(
    tokenizer: PreTrainedTokenizerBase, seed: int, shape: ModelShape
) -> LlamaForCausalLM:
    """A randomly initialised Llama in fp32 for a tokenizer, in a shape of models.yaml; the seed
    alone decides its weights.
    """
    config = LlamaConfig(
        hidden_size=shape.hidden,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        intermediate_size=shape.intermediate,
        max_position_embeddings=CONTEXT,
        vocab_size=len(tokenizer),
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return LlamaForCausalLM(config)
