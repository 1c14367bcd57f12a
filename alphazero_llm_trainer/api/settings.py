"""Arguments of the Python functions as a configuration, and calls that work inside a running event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from ..config.load import Config, load_config, nested, resolve_name
from ..errors import ConfigError
from ..live import Progress
from ..policy.folders import check_folder, find_model
from ..problems.source import Source, TaskList, as_tasks, hold
from ..rewards.custom import Function, name_reward
from ..types import Task

if TYPE_CHECKING:
    from ..policy.student import Student

Problems = (
    str | Source | Sequence[Task | tuple[str, str]]
)  # an address, a source, or tasks: question and answer will do
Reward = str | Function | None  # an address, a function, or no reward but correctness and perplexity
Told = bool | Callable[[str], None]  # the live line on standard error, nothing, or a function that gets each line

T = TypeVar("T")


def configured(
    model: str | Path | Student,
    overrides: Sequence[Mapping[str, Any]],
    config: Mapping[str, Any] | Config | None,
    load: Callable[..., Config] = load_config,
) -> tuple[Config, Path | None]:
    """The configuration of a call, and the folder that `model` names, if it does.

    Args:
        model: a name of models.yaml, a folder, a hub id, or a loaded student.
        overrides: nested keys; they win over `config`.
        config: keys of training.yaml, nested or dotted (`{"train.grpo.credit": "step"}`), or a whole configuration.
        load: what resolves them.
    """
    if isinstance(config, Config):
        given: list[Any] = [without_limits(config)]
    else:
        given = [nested(key, value) for key, value in (config or {}).items()]
    given += overrides
    if not isinstance(model, str | Path):
        student_of(model)
        spec = {model.name: model.spec.model_dump(mode="json")}
        return load(overrides=[*given, {"student": model.name, "models": spec}]), None
    named, folder = find_model(str(model), load(overrides=given))
    if folder is not None:
        check_folder(folder)
    return load(overrides=[*given, named]), folder


def without_limits(config: Config) -> dict[str, Any]:
    """A configuration's keys, with the limits of a response that its student's entry gave it left to the next student's."""
    given = config.model_dump(mode="json")
    entry = config.models[resolve_name(config)]
    for key in ("max_tokens", "max_depth"):
        if given["search"][key] == getattr(entry, key):
            given["search"][key] = None
    return given


def address_of(problems: Problems) -> str:
    """What `problems.source` has to say for these problems; a source or tasks in memory are held under their name."""
    if isinstance(problems, str):
        return problems
    return hold(problems if isinstance(problems, Source) else TaskList(as_tasks(problems, "tasks"), "tasks"))


def reward_address(reward: Reward) -> str | None:
    """What `rewards.custom` has to say for this reward."""
    if reward is not None and not callable(reward) and not isinstance(reward, str):
        raise ConfigError(f"reward is a {type(reward).__name__}: give a function or its address")
    return name_reward(reward) if callable(reward) else reward


def student_of(model: str | Path | Student) -> Student | None:
    """The student where a `model` argument is one already."""
    if isinstance(model, str | Path):
        return None
    from ..policy.student import Student

    if not isinstance(model, Student):
        raise ConfigError(f"model is a {type(model).__name__}: give a name, a folder, a hub id or a loaded student")
    return model


def present(**keys: Any) -> list[dict[str, Any]]:
    """Nested overrides of the keys (`train__seed` for `train.seed`) that are not None."""
    return [nested(key.replace("__", "."), value) for key, value in keys.items() if value is not None]


def outside_loops(call: Callable[[], T]) -> T:
    """`call()`, which may run event loops; where one runs already, as a notebook's does, it stands still meanwhile.

    The call stays in its thread: in the main one Ctrl-C ends it, and rewards may use signals (math-verify's time limit).
    """
    try:
        running = asyncio.get_running_loop()
    except RuntimeError:
        return call()
    asyncio._set_running_loop(None)
    try:
        return call()
    finally:
        asyncio._set_running_loop(running)
        asyncio.set_event_loop(running)  # `asyncio.run` leaves none behind


def progress_of(told: Told) -> Progress:
    """The progress line that a `progress` argument asks for."""
    return Progress(tell=told) if callable(told) else Progress(quiet=not told)
