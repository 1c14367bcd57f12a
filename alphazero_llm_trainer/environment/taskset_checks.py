"""What a verifiers taskset has to be for its tasks to be problems: one question, one reply, rewards that run in this process.

Everything is refused before anything starts, with one sentence.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import parse_qsl

import verifiers.v1 as vf
from verifiers.v1.types import SystemMessage, UserMessage
from verifiers.v1.utils.decorators import discover_decorated

from ..errors import AlphaZeroError, ConfigError

RANGE = "reward_range"  # in an address: what the rewards' sum can be


@contextmanager
def own_code(address: str, doing: str) -> Iterator[None]:
    """Whatever a taskset's own code raises meanwhile is a ConfigError of one sentence."""
    try:
        yield
    except AlphaZeroError:
        raise
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"{address}: {doing} failed ({error}): install its package, or put the folder that holds it on PYTHONPATH"
        ) from error
    except Exception as error:
        text = " ".join(str(error).split())
        raise ConfigError(f"{address}: {doing} failed ({type(error).__name__}: {text})") from error


def options_of(address: str, query: str) -> tuple[dict[str, Any], tuple[float, float] | None]:
    """The taskset's options and the declared range of an address's `KEY=VALUE&KEY=VALUE`; a dot goes down a section."""
    options: dict[str, Any] = {}
    declared = None
    for key, value in parse_qsl(query, keep_blank_values=True):
        if key == RANGE:
            declared = declared_range(address, value)
            continue
        *sections, name = key.split(".")
        section = options
        for part in sections:
            section = section.setdefault(part, {})
        try:
            section[name] = json.loads(value)
        except json.JSONDecodeError:
            section[name] = value
    return options, declared


def declared_range(address: str, value: str) -> tuple[float, float]:
    """`LOW:HIGH` as two numbers."""
    try:
        low, high = map(float, value.split(":"))
    except ValueError:
        low = high = 0.0
    if low >= high:
        raise ConfigError(f"{address} has {RANGE}={value}: write LOW:HIGH, such as 0:1.5")
    return low, high


def load_environment(address: str, env_id: str, options: dict[str, Any]) -> vf.SingleAgentEnvConfig:
    """The configuration of an id's environment. Raises ConfigError where it can't be set up, or has several turns."""
    with own_code(address, "setting it up"):
        environment = vf.environment_class(env_id)
        config = vf.resolve_env_config({"taskset": {**options, "id": env_id}})
    single = vf.SingleAgentEnv
    changed = not issubclass(environment, single) or environment.run is not single.run
    if changed or environment.finalize is not single.finalize:
        raise ConfigError(
            f"{address} can't be searched: its environment {environment.__name__} has several turns or several agents,"
            " and a problem here is one prompt with one reply"
        )
    assert isinstance(config, vf.SingleAgentEnvConfig)
    return config


def of_class(task: vf.Task) -> str | None:
    """What a task's class and configuration ask for that isn't here, or None."""
    if task.toolsets(task.config):
        return "it needs tools, and a problem here is one prompt with one reply"
    if task.hooks("stop") or discover_decorated(task, "intercept"):
        return "it watches or rewrites a conversation's turns, and a problem here is one prompt with one reply"
    hooks = [fn for fn in (task.setup, task.finalize) if overridden(task, fn.__name__)]
    scoring = [*task.hooks("reward"), *(judge.score for judge in task.plugged_judges())]
    if type(task).NEEDS_CONTAINER or any(needs_runtime(function) for function in (*hooks, *scoring)):
        return "it needs a container or a runtime to run commands in, and rewards run in this process"
    return None if scoring or overridden(task, "score") else "it has no rewards"


def of_data(data: vf.TaskData) -> str | None:
    """What a task's row asks for that isn't here, or None."""
    for name in ("image", "workdir", "agent_user", "skills", "artifacts"):
        if getattr(data, name):
            return f"it has {name}, which needs a container, and rewards run in this process"
    if isinstance(data.prompt, str):
        return None if data.prompt.strip() else "its prompt is empty"
    asked = [message for message in data.prompt or [] if not isinstance(message, SystemMessage)]
    if [type(message) for message in asked] != [UserMessage] or not isinstance(asked[0].content, str):
        return "its prompt isn't one question in text"
    return None


def overridden(task: vf.Task, name: str) -> bool:
    """Whether a task's class has a method of its own."""
    return getattr(type(task), name) is not getattr(vf.Task, name)


def needs_runtime(function: Callable[..., Any]) -> bool:
    """As verifiers decides it: there is a parameter `runtime` without a default."""
    parameter = inspect.signature(function).parameters.get("runtime")
    return parameter is not None and parameter.default is inspect.Parameter.empty
