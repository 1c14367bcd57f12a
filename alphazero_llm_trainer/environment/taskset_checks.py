"""What a verifiers taskset has to be for its tasks to be problems: one question, one reply, rewards that run in this process.

Everything is refused before anything starts, with one sentence.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import parse_qsl

import httpx
import verifiers.v1 as vf
from pydantic import ValidationError
from verifiers.v1.configs.client import resolve_api_key, resolve_headers
from verifiers.v1.configs.judge import JudgeConfig
from verifiers.v1.types import ImageUrlContentPart, SystemMessage, UserMessage
from verifiers.v1.utils.decorators import discover_decorated
from verifiers.v1.utils.loaders import taskset_class

from ..errors import AlphaZeroError, ConfigError

RANGE = "reward_range"  # in an address: what the rewards' sum can be
JUDGE_SECONDS = 5.0  # that a judge's endpoint may take to answer


@contextmanager
def own_code(address: str, doing: str) -> Iterator[None]:
    """Whatever a taskset's own code raises meanwhile is a ConfigError of one sentence."""
    try:
        yield
    except AlphaZeroError:
        raise
    except ValidationError as error:
        wrong = "; ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors())
        raise ConfigError(f"{address} can't be set up ({wrong}): mend what follows its question mark") from error
    except Exception as error:
        text = str(error).partition("\n")[0]
        raise ConfigError(f"{address}: {doing} failed ({type(error).__name__}: {text}): mend the taskset") from error


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
    match = re.fullmatch(r"(-?[\d.]+):(-?[\d.]+)", value)
    try:
        low, high = (float(match[1]), float(match[2])) if match else (0.0, 0.0)
    except ValueError:
        low = high = 0.0
    if low >= high:
        raise ConfigError(f"{address} has {RANGE}={value}: write LOW:HIGH, such as 0:1.5")
    return low, high


def load_environment(address: str, env_id: str, options: dict[str, Any]) -> tuple[type[vf.Env], vf.EnvConfig]:
    """The environment class of an id and its configuration. Raises ConfigError where it isn't installed or can't be set up."""
    module = env_id.rsplit("/", 1)[-1].partition("@")[0].replace("-", "_").lower()
    try:
        with own_code(address, "importing it"):
            taskset_class(env_id)
            return vf.environment_class(env_id), vf.resolve_env_config({"taskset": {**options, "id": env_id}})
    except ConfigError as error:
        missing = missing_module(error)
        if missing is None:
            raise
        if missing.rpartition(".")[2] == module:
            raise ConfigError(
                f"problems.source is {address!r} and no taskset {env_id} is installed: install its package with"
                f" `uv pip install {env_id}` (or `prime env install OWNER/{module.replace('_', '-')}`), or put the folder"
                f" that holds {module} on PYTHONPATH"
            ) from error
        raise ConfigError(f"{address} needs the package {missing}, which is missing: install it") from error


def missing_module(error: BaseException) -> str | None:
    """The innermost module that was looked for in vain on the way to `error`, or None."""
    name, cause = None, error.__cause__
    while cause is not None:
        if isinstance(cause, ModuleNotFoundError) and cause.name:
            name = cause.name
        cause = cause.__cause__
    return name


def check_environment(address: str, environment: type[vf.Env], taskset: vf.Taskset) -> None:
    """Raise ConfigError where the environment is more than one reply a task, or the taskset has tools for all."""
    reason = None
    single = vf.SingleAgentEnv
    if not issubclass(environment, single) or environment.run is not single.run:
        reason = f"its environment {environment.__name__} has several turns or several agents"
    elif environment.finalize is not single.finalize:
        reason = f"its environment {environment.__name__} judges whole episodes"
    elif tools := taskset.toolsets(taskset.config):
        reason = f"its tasks share tools ({names(tools)})"
    if reason is not None:
        raise ConfigError(f"{address} can't be searched: {reason}, and a problem here is one prompt with one reply")


class TaskCheck:
    """Says why a task can't be a problem. What its class and configuration decide is looked at once."""

    def __init__(self) -> None:
        self._classes: dict[tuple[type, int], tuple[vf.TaskConfig, str | None]] = {}

    def __call__(self, address: str, task: vf.Task) -> None:
        """Raise ConfigError with the reason, where there is one."""
        key = (type(task), id(task.config))
        if key not in self._classes:
            self._classes[key] = (task.config, of_class(task))  # the configuration is kept, or its id could come again
        reason = self._classes[key][1] or of_data(task.data)
        if reason is not None:
            raise ConfigError(f"{address} can't be searched, task {task.data.idx}: {reason}")


def of_class(task: vf.Task) -> str | None:
    """What a task's class and configuration ask for that isn't here, or None."""
    if tools := task.toolsets(task.config):
        return f"it needs tools ({names(tools)}), and a problem here is one prompt with one reply"
    if type(task).NEEDS_CONTAINER:
        return "it needs a container, and rewards run in this process"
    if stops := task.hooks("stop"):
        return (
            f"it says when a conversation stops ({stops[0].__name__}), and a problem here is one prompt with one reply"
        )
    if rewritten := discover_decorated(task, "intercept"):
        return (
            f"it rewrites what a model reads or says ({rewritten[0].__name__}), and search samples tokens as they are"
        )
    judges = task.plugged_judges()
    parts = [(fn.__name__, fn) for fn in (task.setup, task.finalize) if overridden(task, fn.__name__)]
    parts += [(f"reward {fn.__name__}", fn) for fn in task.hooks("reward")]
    parts += [(f"judge {judge.reward_name}", judge.score) for judge in judges]
    for name, function in parts:
        if needs_runtime(function):
            return f"its {name} needs a runtime to run commands in, and rewards run in this process"
    if not task.hooks("reward") and not judges and not overridden(task, "score"):
        return "it has no rewards"
    return next((reason for config in judge_configs(task) if (reason := unreachable(config)) is not None), None)


def of_data(data: vf.TaskData) -> str | None:
    """What a task's row asks for that isn't here, or None."""
    if data.prompt is None:
        return "it has no prompt: a simulated user opens its conversation"
    for name in ("image", "workdir", "agent_user", "skills", "artifacts"):
        if getattr(data, name):
            return f"it has {name}, which needs a container, and rewards run in this process"
    asked = [] if isinstance(data.prompt, str) else [m for m in data.prompt if not isinstance(m, SystemMessage)]
    if not isinstance(data.prompt, str) and [type(message) for message in asked] != [UserMessage]:
        return f"its prompt has {len(asked)} messages beside the system prompt, and a problem is one question"
    parts = [] if isinstance(data.prompt, str) else [part for m in data.prompt for part in m.content or []]
    if any(isinstance(part, ImageUrlContentPart) for part in parts):
        return "its prompt has images, which no student here reads"
    return None if data.prompt_text.strip() else "its prompt is empty"


def overridden(task: vf.Task, name: str) -> bool:
    """Whether a task's class has a method of its own."""
    return getattr(type(task), name) is not getattr(vf.Task, name)


def needs_runtime(function: Callable[..., Any]) -> bool:
    """As verifiers decides it: there is a parameter `runtime` without a default."""
    parameter = inspect.signature(function).parameters.get("runtime")
    return parameter is not None and parameter.default is inspect.Parameter.empty


def judge_configs(task: vf.Task) -> Iterator[JudgeConfig]:
    """The judges that a task's configuration names: plugged ones, and those that its rewards call."""
    yield from task.config.judges
    yield from (value for _, value in task.config if isinstance(value, JudgeConfig))


def unreachable(config: JudgeConfig) -> str | None:
    """Why a judge can't be asked, or None where its endpoint answers."""
    judge = f"its judge {config.model} at {config.base_url}"
    headers = {"Authorization": f"Bearer {resolve_api_key(config)}", **resolve_headers(config)}
    try:
        answer = httpx.get(f"{config.base_url.rstrip('/')}/models", headers=headers, timeout=JUDGE_SECONDS)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        return f"{judge} isn't reachable ({type(error).__name__}): start it, or give its address"
    if answer.status_code in (401, 403):
        return f"{judge} refuses the key: set {config.api_key_var}"
    return None


def names(tools: Any) -> str:
    return ", ".join(type(tool).__name__ for tool in tools)
