"""What a training run begins with, and what keeps it from beginning: all that can be told without torch.

`train` and `train --dry-run` call `check_run` first, so that what passes the one passes the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..config.load import Config, given_layers, load_training
from ..errors import ConfigError, DataError
from ..policy.folders import check_critic, check_folder
from ..problems.load import asked, but_has, tasks_of
from ..problems.source import open_source
from ..rewards.custom import open_reward
from ..rollouts import check_collecting, scripted_teacher
from ..teachers.build import checker_model
from ..types import Task
from .hub import check_hub
from .size import rank_and_size, replayed


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
    if train.method == "grpo" and train.grpo.credit == "process" and train.grpo.prm is None:
        raise ConfigError(
            "train.grpo.credit is process and train.grpo.prm is null: name a process reward model's folder"
        )
    rows = max(train.settings.batch_size // rank_and_size()[1], 1)
    if train.micro_batch is not None and rows % min(train.micro_batch, rows):
        raise ConfigError(
            f"train.micro_batch is {train.micro_batch} and train.{train.method}.batch_size {rows}: give a divisor of {rows}"
        )
    critics = (("train.grpo.prm", "prm", train.grpo.prm), ("search.value", "value", config.search.value))
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
