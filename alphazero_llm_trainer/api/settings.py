"""Arguments of the Python functions as a configuration, and calls that work inside a running event
loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from ..config.load import Config, load_config, nest_key, read_problems
from ..engine.step_ends import step_ends
from ..errors import ConfigError
from ..live import Progress
from ..policy.folders import with_model
from ..problems.registry import from_tasks, hold_source
from ..problems.source import Source
from ..rewards.custom import Function, name_reward
from ..types import Task

if TYPE_CHECKING:
    from ..policy.student import Student

# An address, a source, or tasks: question and answer will do.
Problems = str | Source | Sequence[Task | tuple[str, str]]
# An address, a function, or no reward but correctness and perplexity.
Reward = str | Function | None
# The live line on standard error, nothing, or a function that gets each line.
Display = bool | Callable[[str], None]

T = TypeVar("T")


def configure_call(
    model: str | Path | Student,
    config: Mapping[str, Any] | None,
    arguments: Mapping[str, Any],
    load: Callable[..., Config] = load_config,
    key: str | None = None,
) -> tuple[Config, Path | None]:
    """The configuration of a call, and the folder that `model` names, if it does.

    Args:
        model: a name of models.yaml, a folder, a hub id, or a loaded student.
        config: keys of training.yaml, nested or dotted (`{"train.credit": "step"}`).
        arguments: keys that the call's own arguments set; they win over `config`, and None sets
            nothing.
        load: what resolves them.
        key: the key that such a folder goes to as well.
    """
    layers = [nest_key(name, value) for name, value in (config or {}).items()]
    layers += [nest_key(name, value) for name, value in arguments.items() if value is not None]
    if isinstance(model, str | Path):
        return with_model(str(model), layers, lambda overrides: load(overrides=overrides), key)
    from ..policy.student import Student

    if not isinstance(model, Student):
        raise ConfigError(
            f"model is a {type(model).__name__}: "
            "give a name, a folder, a hub id or a loaded student"
        )
    spec = {model.name: model.spec.model_dump(mode="json")}
    resolved = load(overrides=[*layers, {"student": model.name, "models": spec}])
    own = model.engine.step_ends
    if "search.step" in resolved.own:
        asked = step_ends(model.tokenizer, resolved.search.step)
        if (asked.tokens, asked.goes_on) != (own.tokens, own.goes_on):
            other = "and the student was loaded with another: give it to `load`"
            resolved.refuse({"search.step": other})
    return resolved, None


def address_of(problems: Problems) -> str:
    """What `problems.source` has to say for these problems; a source or tasks in memory are held
    under their name.
    """
    if isinstance(problems, str):
        return problems
    if isinstance(problems, Source):
        return hold_source(problems)
    source = from_tasks(problems, read_problems(source="tasks"))
    source.reads = ()  # it was read before any configuration
    return hold_source(source)


def reward_address(reward: Reward) -> str | None:
    """What `rewards.custom` has to say for this reward."""
    if isinstance(reward, list | tuple):
        raise ConfigError(
            "reward is a list: give one function, fn(problem, response, task), that adds them up"
        )
    return name_reward(reward) if callable(reward) else reward


def outside_loops(call: Callable[[], T]) -> T:
    """`call()`, which may run event loops; where one runs already, as a notebook's does, it stands
    still meanwhile.

    The call stays in its thread: in the main one Ctrl-C ends it, and rewards may use signals
    (math-verify's time limit).
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


def progress_of(display: Display) -> Progress:
    """The progress line that a `progress` argument asks for."""
    return Progress(tell=display) if callable(display) else Progress(quiet=not display)
