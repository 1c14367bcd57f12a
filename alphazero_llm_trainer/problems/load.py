"""Tasks of any source by name."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..config.load import Config
from ..errors import ConfigError, DataError
from ..types import Task

SOURCES = ("embedded", "gsm8k", "math", "hotpotqa")
SPLITS = ("train", "validation", "arena", "test")


def load_tasks(
    source: str,
    split: str,
    count: int,
    *,
    levels: tuple[int, ...] | None = None,
    path: str | None = None,
    start: int = 0,
    hold_out: str = "questions",
) -> list[Task]:
    """At most `count` tasks of a split, from its number `start` on: fewer where the data set ends, never none.

    Args:
        source: "embedded" (generated, as many as asked for), "gsm8k", "math" or "hotpotqa".
        split: "train", "validation", "arena" or "test"; disjoint in every source.
        count: how many tasks, at least 1.
        levels: difficulty levels of the embedded problems; None takes their default mix.
        path: for the others, a folder that holds the rows (see their `load`).
        start: index of the first task, from 0.
        hold_out: "structures" (embedded alone): the splits share no structure either, see `embedded`.

    Raises:
        DataError: rows are missing or broken.
        ConfigError: an argument doesn't fit the source.
    """
    if split not in SPLITS:
        raise ConfigError(f"split is {split!r}: choose one of {', '.join(SPLITS)}")
    if count < 1 or start < 0:
        raise ConfigError(f"{count} tasks from number {start} on can't be loaded: ask for 1 or more, from 0 or later")
    if source == "embedded":
        from . import embedded

        structures = split if hold_out == "structures" else None
        tasks = embedded.load(split, count, levels or embedded.DEFAULT_LEVELS, start, structures)
    elif source in SOURCES:
        from . import gsm8k, hotpotqa, math

        title, load = {
            "gsm8k": ("GSM8K", gsm8k.load),
            "math": ("MATH-500", math.load),
            "hotpotqa": ("HotpotQA", hotpotqa.load),
        }[source]
        if hold_out != "questions":
            raise ConfigError(f"problems.hold_out is {hold_out}, which only source embedded has: use questions")
        if levels is not None:
            raise ConfigError(
                f"problems.levels is {levels}, but {title} has no levels to choose: leave it out or use source embedded"
            )
        tasks = load(split, count, path, start)
    else:
        raise ConfigError(f"problems.source is {source!r}: choose one of {', '.join(SOURCES)}")
    if not tasks:
        raise DataError(f"{source} {split} has no task number {start}: start earlier or use a larger data set")
    return tasks


def tasks_of(config: Config, split: str, count: int, start: int = 0) -> list[Task]:
    """`load_tasks` of the problems that the configuration names; an empty list where none are asked for."""
    problems, path = config.problems, config.dataset.path
    if not count:
        return []
    options: dict[str, Any] = {"levels": problems.levels, "path": path, "hold_out": problems.hold_out}
    return load_tasks(problems.source, split, count, start=start, **options)


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
