"""Tasks of a source, checked; and whether a journal's trees may be learnt from."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..config.sections import ProblemsConfig
from ..errors import ConfigError, DataError
from ..types import Task
from .source import SPLITS, Source, open_problems


def load_tasks(
    source: Source | str,
    split: str,
    count: int,
    *,
    levels: tuple[int, ...] | None = None,
    path: str | None = None,
    start: int = 0,
) -> list[Task]:
    """At most `count` tasks of a split, from its number `start` on: fewer where the data set ends, never none.

    Args:
        source: a source, or the address of one that needs no more configuration than `levels` and `path`.
        split: "train", "validation", "arena" or "test"; disjoint in every source.
        count: how many tasks, at least 1.
        levels: difficulty levels of a named source that has some; None takes its default mix.
        path: of a named source, a folder that holds its rows.
        start: index of the first task, from 0.

    Raises:
        DataError: there is no such task, or rows are missing or broken.
        ConfigError: an argument doesn't fit the source.
    """
    if split not in SPLITS:
        raise ConfigError(f"split is {split!r}: choose one of {', '.join(SPLITS)}")
    if count < 1 or start < 0:
        raise ConfigError(f"{count} tasks from number {start} on can't be loaded: ask for 1 or more, from 0 or later")
    if isinstance(source, str):
        source = open_problems(ProblemsConfig(source=source, levels=levels), path)
    tasks = source.load(split, count, start)
    if not tasks:
        raise DataError(f"{source.name} {split} has no task number {start}: start earlier or use a larger data set")
    return tasks


def check_train_split(record: Mapping[str, Any], path: Path, otherwise: str = "") -> None:
    """Raise DataError when a tree record of the journal `path` names another split than train.

    Gold answers graded its tree, so nothing may learn from it. A record without a split is of training. `otherwise` ends
    the sentence with another way out.
    """
    split = record.get("split", "train")
    if split != "train":
        raise DataError(
            f"journal {path} has trees of the {split} split, which are not to train on: sample --split train{otherwise}"
        )
