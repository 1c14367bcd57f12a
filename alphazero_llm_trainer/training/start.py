"""What a training begins with, and what keeps it from beginning: all that can be told before a model is loaded.

`train` and `train --dry-run` call `check_run` (rows, reward, folders, settings) and then `check_start` (device, token, keys,
libraries, memory, disk), so that what passes the one passes the other.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ..config.load import Config, given_layers, load_training, merge, parse_override, resolve_name, validate
from ..config.sections import ModelShape, StudentModel
from ..engine.device import device_memory
from ..errors import ConfigError, DataError
from ..files import check_space, read_object
from ..policy.folders import ADAPTER_CONFIG, PACKAGED, check_critic, check_folder, weights_of
from ..problems.load import asked, but_has, tasks_of
from ..problems.source import open_source
from ..rewards.custom import open_reward
from ..rollouts import check_collecting, scripted_teacher
from ..teachers.build import checker_model
from ..types import Task
from .checkpoint import sealed
from .hub import check_hub
from .memory import GIB, Forecast, Stage
from .size import DiskPlan, RunSize, disk_plan, rank_and_size, replayed

log = logging.getLogger(__name__)

# What config.json calls the numbers that no shape is without; families that name them otherwise have no forecast.
NAMED = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size")
WORTH_IT = 0.01  # a change that saves less of the peak is no advice


@dataclass(frozen=True, slots=True)
class RunData:
    """A run's tasks: worked solutions that are replayed, questions, and the two held-out sets."""

    demonstrations: list[Task]
    questions: list[Task]
    test: list[Task]
    validation: list[Task]


def demonstrations(config: Config) -> list[Task]:
    """The worked solutions that a run replays: the first tasks of the train split."""
    return tasks_of(config, "train", config.train.demonstrations if replayed(config) else 0)


def questions(config: Config, start: int) -> list[Task]:
    """What is trained on, from number `start` of the train split on. Raises ConfigError where there are too few."""
    wanted = config.train.num_examples
    tasks = tasks_of(config, "train", wanted, start)
    if len(tasks) < wanted:
        raise ConfigError(
            f"train.num_examples is {wanted:,} and source {config.problems.source} has {len(tasks):,} training questions"
            f" from number {start:,} on: ask for --num {len(tasks)} or fewer"
        )
    return tasks


def held_out(config: Config) -> tuple[list[Task], list[Task]]:
    """Test and validation problems, as many as there are. Raises DataError where one has none, naming what asks for it."""
    train, source = config.train, open_source(config)
    wanted = {"test": ("eval_size", train.eval_size), "validation": ("validation_size", train.validation_size)}
    lacking = [split for split, (_, count) in wanted.items() if count and not asked(source, split, 1)]
    if lacking:
        none = " ".join(f"--set train.{wanted[split][0]}=0" for split in lacking)
        raise DataError(
            f"{source.name} has no {' and no '.join(lacking)} problems, {but_has(source)}; {none} asks for none"
        )
    return tasks_of(config, "test", train.eval_size), tasks_of(config, "validation", train.validation_size)


def load_data(config: Config, given: list[Task] | None = None) -> RunData:
    """A run's tasks, disjoint by split; `given` are its questions where they are known.

    Raises DataError or ConfigError where rows, splits or gold answers are missing.
    """
    train = config.train
    # Demonstrations are the first tasks of the train split; questions are the ones after them.
    replay = demonstrations(config)
    return RunData(
        replay,
        questions(config, len(replay) + train.first_question) if given is None else given,
        *held_out(config),
    )


def check_run(config: Config) -> RunData:
    """What the run begins with. Raises AlphaZeroError, one sentence, where it can't begin: rows, reward, folders, settings."""
    train = config.train
    check_collecting(config, config.search.value is not None)
    tier = config.teacher_tiers[config.teachers.tier] if config.teachers.tier != "none" else None
    if tier is not None and tier.base_url is None:
        scripted_teacher(config)
    if config.teachers.terminal_checker:
        checker_model(config)
    if train.process and train.prm is None:
        raise ConfigError("train.credit is process and train.prm is null: name a process reward model's folder")
    rows = max(train.optimizer.batch_size // rank_and_size()[1], 1)
    if train.micro_batch is not None and rows % min(train.micro_batch, rows):
        raise ConfigError(
            f"train.micro_batch is {train.micro_batch} and train.optimizer.batch_size {rows}: give a divisor of {rows}"
        )
    critics = (("train.prm", "prm", train.prm), ("search.value", "value", config.search.value))
    for key, kind, folder in critics:
        if folder is not None:
            check_critic(Path(folder), kind, f"{key} {folder}")
    if train.student is not None:
        check_folder(Path(train.student))
    if train.push_to_hub is not None:
        check_hub(train.push_to_hub)
    open_reward(config.rewards)
    return load_data(config)


def load_run(path: str | Path | None = None, overrides: Iterable[str | Mapping[str, Any]] = ()) -> Config:
    """`load_training`; where nothing that is given says `train.num_examples`, it is no more than the questions there are."""
    overrides = [*overrides]
    config = load_training(path, overrides)
    if any("num_examples" in layer.get("train", {}) for layer in given_layers(path, overrides)):
        return config
    source, train = open_source(config), config.train
    if source.endless:
        return config
    first = (train.demonstrations if replayed(config) else 0) + train.first_question
    there = len(asked(source, "train", train.num_examples, first))
    if not there:  # which `check_run` explains
        return config
    return config.model_copy(update={"train": train.model_copy(update={"num_examples": there})})


# -- the student's shape -----------------------------------------------------------------------------------------------


def read_shape(path: Path) -> ModelShape | None:
    """The shape in a model's config.json, or None where it says none."""
    try:
        given = read_object(path)
    except (OSError, ValueError):
        return None
    if any(not isinstance(given.get(name), int) or given[name] < 1 for name in NAMED):
        return None
    heads = given["num_attention_heads"]
    return ModelShape(
        layers=given["num_hidden_layers"],
        hidden=given["hidden_size"],
        heads=heads,
        kv_heads=given.get("num_key_value_heads") or heads,
        head_dim=given.get("head_dim") or given["hidden_size"] // heads,
        intermediate=given["intermediate_size"],
        vocabulary=given["vocab_size"],
        tied=given.get("tie_word_embeddings", False),
        plain=given.get("model_type") == "llama" and not given.get("attention_bias", False),
    )


def cached(repository: str) -> Path | None:
    """The config.json of a hub model that is in the local cache."""
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        found = try_to_load_from_cache(repository, "config.json")
    except HFValidationError:
        return None
    return Path(found) if isinstance(found, str) else None


def start_of(config: Config, spec: StudentModel) -> str:
    """Where a run reads the base's weights: `train.student`, or the student's own path, also below an adapter.

    Raises CheckpointError where `train.student` is no student's folder.
    """
    if config.train.student is None:
        return weights_of(spec)
    started = Path(config.train.student)
    if (started / ADAPTER_CONFIG).is_file():
        return weights_of(spec)
    check_folder(started)
    return str(started)


def find_shape(config: Config, spec: StudentModel) -> ModelShape | None:
    """The student's shape, of its folder, the hub's cache or models.yaml; None where none of them says it."""
    source = start_of(config, spec)
    shape = read_shape((PACKAGED if source == "package" else Path(source)) / "config.json")
    if shape is None and (kept := cached(source)) is not None:
        shape = read_shape(kept)
    return spec.shape if shape is None else shape


# -- memory and disk ---------------------------------------------------------------------------------------------------


def forecast_of(config: Config, stage: Stage = "train") -> tuple[Forecast, str, int] | None:
    """The forecast for this device, the device and its free bytes; None where the student's shape isn't known."""
    spec = config.models[resolve_name(config)]
    shape = find_shape(config, spec)
    if shape is None:
        return None
    device, free, total = device_memory()
    prompt = open_source(config).prompt_tokens * (1 + config.problems.shots)
    return Forecast(config, spec, shape, device == "cuda", stage, prompt, total), device, free


def advice(forecast: Forecast, free: int) -> str:
    """The settings that make it fit, the gentlest first, and what it takes with them; or what is left to do."""
    candidates = [
        "train.micro_batch=1",
        "train.gradient_checkpointing=on",
        f"engine.cache_bytes={GIB // 2}",
        "engine.max_batch=8",
        "train.optimizer.name=adamw_8bit",
        "rewards.use_student_model=false",
        *([] if forecast.lora else ["train.adapter=lora"]),
        f"search.max_tokens={max(forecast.config.search.max_tokens // 2, 1)}",
    ]
    chosen: list[str] = []
    best = forecast
    for text in candidates:
        if best.peak <= free:
            break
        other = replace(best, config=validate(merge(best.config.model_dump(), parse_override(text))))
        if best.peak - other.peak > WORTH_IT * best.peak:
            chosen.append(f"--set {text}")
            best = other
    if best.peak > free:
        return "use a smaller student, or free memory"
    return f"{' '.join(chosen)} makes it {best.peak / GIB:.1f} GiB"


def check_memory(config: Config, stage: Stage = "train", path: Path | None = None) -> None:
    """Warn on standard error where a training will outgrow its memory. Raises ConfigError where the weights alone do.

    `path` is a folder with the student's weights, where the command has a flag of its own for it.
    """
    if path is not None:
        config = config.model_copy(update={"train": config.train.model_copy(update={"student": str(path)})})
    made = forecast_of(config, stage)
    if made is None or made[0].peak <= made[2]:
        return
    forecast, device, free = made
    weights = forecast.weights()[0].size
    if weights > free:
        raise ConfigError(
            f"student {resolve_name(config)} has {weights / GIB:.1f} GiB of weights and {device} {free / GIB:.1f} GiB"
            " free: use a smaller student, or free memory"
        )
    log.warning(
        "warning: this run may need %.1f GiB and %s has %.1f GiB free: %s",
        forecast.peak / GIB,
        device,
        free / GIB,
        advice(forecast, free),
    )


def space(config: Config, folder: Path | None) -> tuple[DiskPlan, Path] | None:
    """What a run writes, and where; None where the student's shape isn't known. `folder` is that of a run to go on with."""
    train, spec = config.train, config.models[resolve_name(config)]
    shape = find_shape(config, spec)
    if shape is None:
        return None
    there = 0 if folder is None else len(sealed(folder))
    forecast = Forecast(config, spec, shape, cuda=False)
    plan = disk_plan(
        train,
        max(RunSize.of(config).checkpoints_from(0) - there, 0),
        trained=forecast.trained[0] * forecast.trained_width,
        student=forecast.counts.whole * forecast.width,
        layers=shape.layers,
        lora=forecast.lora,
    )
    return plan, Path(train.checkpoint_dir) if folder is None else folder


# -- the machine -------------------------------------------------------------------------------------------------------


def check_start(config: Config, folder: Path | None = None) -> None:
    """Raise ConfigError where `train` can't start: no device for the student, no token for a gated model, no key of the
    teachers, a library that isn't there, no memory for the weights alone; and StorageError where what it writes has no room.
    A run that will outgrow its memory is warned of on standard error. `folder` is that of a run to go on with."""
    check_libraries(config)
    from ..policy.student import check_device

    name = resolve_name(config)
    spec = config.models[name]
    source = start_of(config, spec)
    check_device(name, source, spec)
    if gated(spec) and source == spec.path and cached(spec.path) is None and not token_set():
        mirror = "" if spec.mirror is None else f", or use its mirror with --set models.{name}.path={spec.mirror}"
        raise ConfigError(
            f"student {name} ({spec.path}) is gated and HF_TOKEN is not set: accept its licence at"
            f" https://huggingface.co/{spec.path} and set it{mirror}"
        )
    written = space(config, folder)
    if written is not None:
        check_space(written[1], written[0].total, f"what this run writes ({written[0]})")
    check_memory(config)


def check_libraries(config: Config) -> None:
    """Raise ConfigError for a teachers' key or a library that is missing: all that can be told without torch."""
    from ..teachers.client import open_endpoint
    from .tracking import check_tracker

    tier = config.teacher_tiers[config.teachers.tier] if config.teachers.tier != "none" else None
    if tier is not None and tier.base_url is not None:
        open_endpoint(config.teachers.tier, tier, config.teachers)
    if config.engine.backend == "vllm" and find_spec("vllm") is None:
        raise ConfigError("engine.backend is vllm, which is not installed: install alphazero-llm-trainer[gpu]")
    check_tracker(config.train.track)


def gated(spec: StudentModel) -> bool:
    """True where the hub asks for a licence; a mirror, or a folder, does not."""
    return spec.gated and spec.path != spec.mirror and not Path(spec.path).is_dir()


def token_set() -> bool:
    """True where the hub's token is in the environment, or in its login's file."""
    from huggingface_hub import get_token

    return get_token() is not None
