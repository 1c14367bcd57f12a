"""Tasks of a source, checked; and whether a journal's trees may be learnt from."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ..config.load import Config, read_problems, resolve_name
from ..config.sections import RewardConfig
from ..errors import ConfigError, DataError
from ..types import Facts, Opening, Task
from .registry import is_gradable, open_problems, open_source
from .source import SPLITS, Source
from .task_list import QUESTION_SHOWN, check_tasks, guess_tokens, rename_task

ALL = "all"  # the splits of a data set together


def load_tasks(
    source: Source | str,
    split: str,
    count: int,
    *,
    start: int = 0,
    rewards: RewardConfig | None = None,
    **options: Any,
) -> list[Task]:
    """At most `count` tasks of a split, from its number `start` on: fewer where the data set ends,
    never none.

    Args:
        source: a source, or the address of one, which is opened with `options` (keys of the section
            `problems`).
        split: "train", "validation", "arena" or "test"; disjoint in every source. "all" is these
            together, of a source that ends.
        count: how many tasks, at least 1.
        start: index of the first task, from 0.
        rewards: what the tasks are for may need no gold answers; None: they are needed.

    Raises:
        DataError: there is no such task, or rows are missing or broken.
        ConfigError: an argument doesn't fit the source, or the rewards don't.
    """
    if split not in (*SPLITS, ALL):
        raise ConfigError(f"split is {split!r}: choose one of {', '.join((*SPLITS, ALL))}")
    if count < 1 or start < 0:
        raise ConfigError(
            f"{count} tasks from number {start} on can't be loaded: "
            "ask for 1 or more, from 0 or later"
        )
    if isinstance(source, str):
        source = open_problems(read_problems(source=source, **options))
    tasks = asked(source, split, count, start)
    if not tasks:
        first = f" from number {start} on: start earlier, " if start else ": "
        raise DataError(
            f"source {source.name} has no {split} problems{first}name another split ({ALL!r} is "
            "all together) or a source with more, or give the rows a column `split`"
        )
    check_gold(tasks, rewards)
    return tasks


def asked(source: Source, split: str, count: int, start: int = 0) -> list[Task]:
    """What `source.load` returns, under its name. Raises DataError where that isn't tasks,
    ConfigError where all of a source without an end is asked for.
    """
    if split != ALL:
        return checked(source, source.load(split, count, start))
    if source.endless:
        raise ConfigError(
            f"split is {ALL!r} and source {source.name} makes as many problems as are asked for: "
            f"choose one of {', '.join(SPLITS)}"
        )
    tasks = [task for name in SPLITS for task in source.load(name, start + count)]
    return checked(source, tasks[start : start + count])


def checked(source: Source, tasks: Iterable[Task]) -> list[Task]:
    """The tasks that a source gives, under its name. Raises DataError where they are none."""
    tasks = [*tasks]
    for task in tasks:
        if not isinstance(task, Task):
            raise DataError(
                f"source {source.name} loads {repr(task)[:QUESTION_SHOWN]}, which is no Task: "
                "return a list of tasks"
            )
    tasks = [rename_task(task, source.name) for task in tasks]
    check_tasks(tasks, source.name)
    return tasks


def tasks_of(config: Config, split: str, count: int, start: int = 0) -> list[Task]:
    """`load_tasks` of the problems that the configuration names; an empty list where none are asked
    for.
    """
    return (
        load_tasks(open_source(config), split, count, start=start, rewards=config.rewards)
        if count
        else []
    )


def demonstrations_of(config: Config, count: int) -> list[Task]:
    """The first `count` demonstrations of the problems that the configuration names."""
    source = open_source(config)
    tasks = checked(source, source.demonstrations(count)) if count else []
    check_gold(tasks, config.rewards)
    return tasks


def opening(config: Config, source: Source | None = None, name: str | None = None) -> Opening:
    """What a chat says before a question of `source` (None: the configured one) to the student
    `name` (None: likewise).

    The system prompt is `problems.system_prompt`, else that of the student's entry in models.yaml,
    else the one that its folder was trained with on this source, else the source's; an empty one is
    none. Raises DataError where the source has no worked solutions and `problems.shots` wants some.
    """
    source = open_source(config) if source is None else source
    spec, problems = config.models[resolve_name(config, name)], config.problems
    prompts = (
        problems.system_prompt,
        spec.system_prompt,
        spec.prompts.get(source.name),
        source.system_prompt,
    )
    prompt = next((text for text in prompts if text is not None), None) or None
    if not problems.shots:
        return Opening(prompt)
    # One more: a question is never shown its own solution.
    tasks = asked(source, "train", problems.shots + 1)
    shots = tuple((task.problem.question, task.solution) for task in tasks if task.solution)
    if len(shots) < max(len(tasks), problems.shots):
        raise DataError(
            f"problems.shots is {problems.shots} and source {source.name} has worked solutions of"
            f" {len(shots)} of its first {len(tasks)} training problems: set problems.shots=0"
        )
    return Opening(prompt, shots, problems.shots)


def with_context(config: Config, *sources: Source, question: str = "") -> Config:
    """`config` with `engine.max_context`, where it is null: long prompts of these sources (none:
    the configured one), this `question`, and a response fit into it.
    """
    if config.engine.max_context is not None or config.engine.backend == "openai":
        return config
    sources = sources or (open_source(config),)
    prompts = [source.prompt_tokens for source in sources] + [guess_tokens(question)]
    tokens = max(prompts) * (1 + config.problems.shots) + config.search.max_tokens
    return config.with_values(engine={"max_context": max(tokens, config.engine.context)})


def rows_hash(tasks: Iterable[Task]) -> str:
    """SHA-256 over ids, questions and gold answers, in order: what a run that goes on needs
    unchanged.
    """
    digest = hashlib.sha256()
    for task in tasks:
        known = (task.problem.id, task.problem.question, task.gold, *task.others)
        digest.update(repr(known).encode())
    return digest.hexdigest()


def check_gold(tasks: Iterable[Task], rewards: RewardConfig | None) -> None:
    """Raise for a task without gold where something needs it: DataError, or ConfigError where it is
    `rewards` that does."""
    missing = next((task.problem for task in tasks if not is_gradable(task)), None)
    if missing is None:
        return
    if rewards is None or rewards.custom is None:
        raise DataError(
            f"source {missing.source} has no gold answer for task {missing.id!r}: write it, drop "
            "the task, or name a reward that needs none (--reward)"
        )
    if rewards.hre_weight > 0:
        raise ConfigError(
            f"rewards.hre_weight is {rewards.hre_weight}, a reward that needs gold, and task "
            f"{missing.id!r} of source {missing.source} has none: "
            "set rewards.hre_weight=0 or write the answer"
        )


# What a record says of trees whose token ids are numbers of the search's own (`chat.remote`).
SERVER_TOKENS = {"tokens": "server"}


def check_tokens(record: Facts, path: Path) -> None:
    """Raise DataError for a tree record of a journal `path` with token ids of no tokenizer."""
    if record.get("tokens") == SERVER_TOKENS["tokens"]:
        raise DataError(
            f"journal {path} has trees of a model behind --base-url, whose token ids are no "
            "tokenizer's: export --kind sft has their texts"
        )


def check_train_split(record: Facts, path: Path, otherwise: str = "") -> None:
    """Raise DataError when a tree record of the journal `path` names another split than train.

    Gold answers graded its tree, so nothing may learn from it. A record without a split is of
    training. `otherwise` ends the sentence with another way out.
    """
    split = record.get("split", "train")
    if split != "train":
        raise DataError(
            f"journal {path} has trees of the {split} split, "
            f"which are not to train on: sample --split train{otherwise}"
        )
