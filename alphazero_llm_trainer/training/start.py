"""What a training begins with, and what keeps it from beginning: all that can be told before a model is loaded.

`train` and `train --dry-run` call `check_run` (rows, reward, folders, settings) and then `check_start` (device, token, keys,
libraries, memory, disk), so that what passes the one passes the other.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ..config.load import Config, given_layers, load_training, resolve_name
from ..config.sections import ModelShape, StudentModel
from ..config.shipped import shipped_section
from ..engine.device import device_memory
from ..engine.precision import uncovered
from ..errors import ConfigError, DataError
from ..files import check_space, read_object
from ..policy.folders import ADAPTER_CONFIG, PACKAGED, check_critic, check_folder, weights_of
from ..problems.load import asked, but_has, tasks_of
from ..problems.source import open_source
from ..rewards.custom import open_reward
from ..rollouts import check_collecting, scripted_teacher
from ..teachers.build import checker_model, is_remote, open_remote
from ..types import Task
from .checkpoint import sealed
from .hub import check_hub
from .memory import GIB, Forecast
from .size import RunSize, rank_and_size, replayed

log = logging.getLogger(__name__)

MB = 1e6
# What a run takes less memory with, the gentlest first.
LESS = (
    "train.micro_batch=1, train.gradient_checkpointing=on, engine.cache_bytes, engine.max_batch=8, train.adapter=lora and a"
    " smaller search.max_tokens make it less (--dry-run says how much); or use a smaller student"
)


@dataclass(frozen=True, slots=True)
class RunData:
    """A run's tasks: worked solutions that are replayed, questions, and the two held-out sets."""

    demonstrations: list[Task]
    questions: list[Task]
    test: list[Task]
    validation: list[Task]


def load_data(config: Config) -> RunData:
    """A run's tasks, disjoint by split. Raises DataError or ConfigError where rows, splits or gold answers are missing."""
    train, source = config.train, open_source(config)
    # Demonstrations are the first tasks of the train split; questions are the ones after them.
    replay = tasks_of(config, "train", train.demonstrations if replayed(config) else 0)
    start = len(replay) + train.first_question
    questions = tasks_of(config, "train", train.num_examples, start)
    if len(questions) < train.num_examples:
        raise ConfigError(
            f"train.num_examples is {train.num_examples:,} and source {config.problems.source} has {len(questions):,} training"
            f" questions from number {start:,} on: ask for --num {len(questions)} or fewer"
        )
    held_out = []
    for split, key in (("test", "eval_size"), ("validation", "validation_size")):
        count = getattr(train, key)
        if count and not asked(source, split, 1):
            raise DataError(
                f"{source.name} has no {split} problems, {but_has(source)}; --set train.{key}=0 asks for none"
            )
        held_out.append(tasks_of(config, split, count))
    return RunData(replay, questions, *held_out)


def check_run(config: Config) -> RunData:
    """What the run begins with. Raises AlphaZeroError, one sentence, where it can't begin: rows, reward, folders, settings."""
    train = config.train
    check_collecting(config, config.search.value is not None)
    tier = config.teacher_tiers[config.teachers.tier] if config.teachers.tier != "none" else None
    if tier is not None and tier.base_url is None:
        scripted_teacher(config)
    if config.teachers.terminal_checker:
        checker_model(config)
    check_method(config)
    if train.process and train.prm is None:
        raise ConfigError("train.credit is process and train.prm is null: name a process reward model's folder")
    rows = max(train.optimizer.batch_size // rank_and_size()[1], 1)
    if train.micro_batch is not None and rows % min(train.micro_batch, rows):
        raise ConfigError(
            f"train.micro_batch is {train.micro_batch} and train.optimizer.batch_size {rows}: give a divisor of {rows}"
        )
    for key, kind, folder in (("train.prm", "prm", train.prm), ("search.value", "value", config.search.value)):
        if folder is not None:
            check_critic(Path(folder), kind, f"{key} {folder}")
    if train.student is not None:
        check_folder(Path(train.student))
    if train.push_to_hub is not None:
        check_hub(train.push_to_hub)
    open_reward(config.rewards)
    return load_data(config)


# The methods that read a key of `train`; under every other one it would change nothing.
READERS = {
    "credit": ("grpo",),
    "importance": ("grpo",),
    "kl_coefficient": ("grpo", "ppo"),
    "reward": ("grpo", "ppo", "legacy"),
    "teacher_rows": ("grpo", "ppo"),
}


def check_method(config: Config) -> None:
    """Raise ConfigError where a key of `train` is set that the method, or the credit, doesn't read."""
    train, shipped = config.train, shipped_section("train")
    for name, methods in READERS.items():
        value = getattr(train, name)
        if value != shipped[name] and train.method not in methods:
            flags = " or ".join(f"--use-{method}" for method in methods)
            raise ConfigError(
                f"train.{name} is {value!r} and train.method {train.method}, which doesn't read it: add {flags}, or leave it"
                " out"
            )
    if train.prm is not None and not train.process:
        raise ConfigError(
            f"train.prm is {train.prm!r}, which train.credit {train.credit} doesn't ask: set train.credit=process with"
            " --use-grpo, or leave it out"
        )


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


def read_shape(given: dict[str, Any]) -> ModelShape | None:
    """The shape in what a model's config.json says; None where it says none: some families name its numbers otherwise."""
    try:
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
            plain=uncovered(given) is None,
        )
    except (ValueError, KeyError, TypeError, AttributeError, ZeroDivisionError):
        return None


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


def find_config(config: Config, spec: StudentModel) -> dict[str, Any]:
    """What the config.json of the student's folder or of the hub's cache says; {} where there is none to be read."""
    source = start_of(config, spec)
    for path in ((PACKAGED if source == "package" else Path(source)) / "config.json", cached(source)):
        with suppress(OSError, ValueError):
            if path is not None:
                return read_object(path)
    return {}


def find_shape(config: Config, spec: StudentModel) -> ModelShape | None:
    """The student's shape, of its folder, the hub's cache or models.yaml; None where none of them says it."""
    return read_shape(find_config(config, spec)) or spec.shape


# -- memory and disk ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Fit:
    """A forecast for this device, and the bytes that are free on it."""

    forecast: Forecast
    device: str
    free: int

    def check(self, name: str) -> None:
        """Warn on standard error where a training of student `name` will outgrow its memory. Raises ConfigError where the
        weights alone do."""
        peak, weights = (size / GIB for size in (self.forecast.peak, self.forecast.policy_bytes))
        free = self.free / GIB
        if weights > free:
            raise ConfigError(
                f"student {name} has {weights:.1f} GiB of weights and {self.device} {free:.1f} GiB free: use a smaller student,"
                " or free memory"
            )
        if peak > free:
            log.warning(
                "warning: this run may need %.1f GiB and %s has %.1f GiB free: %s", peak, self.device, free, LESS
            )


def fit_of(config: Config, sft: bool = False, path: Path | None = None) -> Fit | None:
    """How `train` (or `sft`) fits this device; None where the student's shape isn't known. `path` is the student's folder
    where it is not `train.student`."""
    if path is not None:
        config = config.model_copy(update={"train": config.train.model_copy(update={"student": str(path)})})
    spec = config.models[resolve_name(config)]
    shape = find_shape(config, spec)
    if shape is None:
        return None
    device, free, total = device_memory()
    prompt = open_source(config).prompt_tokens * (1 + config.problems.shots)
    return Fit(Forecast(config, spec, shape, device == "cuda", sft=sft, prompt=prompt, memory=total), device, free)


def written(config: Config, forecast: Forecast, folder: Path | None) -> tuple[int, str]:
    """Bytes that a run has still to write at most, trees and figures on top, and what they are, in words.

    A checkpoint is what is trained and both moments of AdamW (in 8 bits they take less). `folder` is a run's to go on with.
    """
    weights, critic = (count * forecast.trained_width for count in forecast.trained)
    count = max(RunSize(config).checkpoints - (0 if folder is None else len(sealed(folder))), 0)
    each = 3 * (weights + critic)
    student = forecast.counts.whole * forecast.width + (weights if forecast.lora else 0)
    words = f"{count} checkpoint{'s' * (count != 1)} of {each / MB:,.0f} MB, the best weights {weights / MB:,.0f}"
    return int(count * each + weights + student), f"{words}, student/ {student / MB:,.0f}"


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
    fit = fit_of(config)
    if fit is not None:
        size, words = written(config, fit.forecast, folder)
        check_space(
            Path(config.train.checkpoint_dir) if folder is None else folder, size, f"what this run writes ({words})"
        )
        fit.check(name)


def check_libraries(config: Config) -> None:
    """Raise ConfigError for a teachers' key or a library that is missing: all that can be told without torch."""
    from .tracking import check_tracker

    if is_remote(config):
        open_remote(config)
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
