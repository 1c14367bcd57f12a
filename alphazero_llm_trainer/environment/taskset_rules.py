"""A verifiers taskset's tasks as problems: what they have to be, and what a reply earns.

A problem is one question with one reply, or an episode with tools (`toolset_worlds`), whose rewards
run in this process; anything else is refused with one sentence before anything starts.

A reply earns the task's own rewards on the trace that a single-turn rollout leaves, made as
`verifiers.v1.rollout` makes one: the task, one model call, the prompt's messages and the reply;
then the task's `finalize`, its metrics, rewards and judges (`Task.score`) run on it, under its time
limits. There is no runtime. The trace has no token counts and says that the model stopped by
itself: both are unknown where text alone is graded.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import math
import time
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any, Literal, TypeVar
from urllib.parse import parse_qsl

import verifiers.v1 as vf
from verifiers.v1.agent import resolve_rollout_timeouts
from verifiers.v1.errors import RolloutError, TaskError, boundary
from verifiers.v1.graph import prepare_turn
from verifiers.v1.state import state_cls
from verifiers.v1.types import AssistantMessage, Messages, Response, SystemMessage, UserMessage
from verifiers.v1.utils.decorators import discover_decorated, invoke

from ..config.load import nest_key
from ..config.shipped import merge_mappings
from ..errors import AlphaZeroError, ConfigError

RANGE = "reward_range"  # in an address: what the rewards' sum can be
MODEL = "student"

T = TypeVar("T")


@contextmanager
def own_code(address: str, doing: str) -> Iterator[None]:
    """Whatever a taskset's own code raises meanwhile is a ConfigError of one sentence."""
    try:
        yield
    except AlphaZeroError:
        raise
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"{address}: {doing} failed ({error}): install its package, or put the folder that "
            "holds it on PYTHONPATH"
        ) from error
    except Exception as error:
        text = " ".join(str(error).split())
        raise ConfigError(f"{address}: {doing} failed ({type(error).__name__}: {text})") from error


def options_of(address: str, query: str) -> tuple[dict[str, Any], tuple[float, float]]:
    """The taskset's options and the rewards' range in an address's `KEY=VALUE&KEY=VALUE`; a dot
    goes down a section.
    """
    options: dict[str, Any] = {}
    declared = (0.0, 1.0)
    for key, value in parse_qsl(query, keep_blank_values=True):
        setting: Any = value
        with suppress(json.JSONDecodeError):
            setting = json.loads(value)
        if key == RANGE:
            declared = declared_range(address, value)
        else:
            options = merge_mappings(options, nest_key(key, setting))
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
    """The configuration of an id's environment. Raises ConfigError where it can't be set up, or has
    several turns.
    """
    with own_code(address, "setting it up"):
        environment = vf.environment_class(env_id)
        config = vf.resolve_env_config({"taskset": {**options, "id": env_id}})
    single = vf.SingleAgentEnv
    changed = not issubclass(environment, single) or environment.run is not single.run
    if changed or environment.finalize is not single.finalize:
        raise ConfigError(
            f"{address} can't be searched: its environment {environment.__name__} has several "
            "turns or several agents, and a problem here is one prompt with one reply"
        )
    assert isinstance(config, vf.SingleAgentEnvConfig)
    return config


def of_class(task: vf.Task) -> str | None:
    """What a task's class and configuration ask for that isn't here, or None."""
    if task.hooks("stop") or discover_decorated(task, "intercept"):
        return "it watches or rewrites turns, and a problem here is one prompt with one reply"
    hooks = [fn for fn in (task.setup, task.finalize) if has_own_method(task, fn.__name__)]
    scoring = [*task.hooks("reward"), *(judge.score for judge in task.plugged_judges())]
    if type(task).NEEDS_CONTAINER or any(map(needs_runtime, (*hooks, *scoring))):
        return (
            "it needs a container or a runtime to run commands in, and rewards run in this process"
        )
    return None if scoring or has_own_method(task, "score") else "it has no rewards"


def of_data(data: vf.TaskData) -> str | None:
    """What a task's row asks for that isn't here, or None."""
    for name in ("image", "workdir", "agent_user", "skills", "artifacts"):
        if getattr(data, name):
            return f"it has {name}, which needs a container, and rewards run in this process"
    asked = [message for message in prompt_messages(data) if not isinstance(message, SystemMessage)]
    texts = [message.content for message in asked if isinstance(message, UserMessage)]
    if len(asked) == len(texts) == 1 and isinstance(texts[0], str) and texts[0].strip():
        return None
    return "its prompt isn't one question in text"


def has_own_method(task: vf.Task, name: str) -> bool:
    """Whether a task's class has a method of its own."""
    return getattr(type(task), name) is not getattr(vf.Task, name)


def needs_runtime(function: Callable[..., Any]) -> bool:
    """As verifiers decides it: there is a parameter `runtime` without a default."""
    parameter = inspect.signature(function).parameters.get("runtime")
    return parameter is not None and parameter.default is inspect.Parameter.empty


# -- scoring ---------------------------------------------------------------------------------------


async def score_reply(
    agent: vf.AgentConfig, task: vf.Task, reply: str | Messages, trace: vf.Trace | None = None
) -> vf.Trace:
    """The scored trace. It is not `ok` where the task's code failed (`errors`) or took too long
    (`is_timeout`).

    Args:
        reply: the model's one turn; or all messages after the prompt, of several turns.
        trace: one that `set_up` began; None begins one.
    """
    limits = resolve_rollout_timeouts(agent.timeout, task)
    ready = trace is not None
    if trace is None:
        trace = new_trace(agent, task)
    try:
        if not ready:
            await set_up(agent, task, trace)
        turns(
            trace, task.data, [AssistantMessage(content=reply)] if isinstance(reply, str) else reply
        )
        trace.stop("agent_completed")
        async with asyncio.timeout(limits.finalize), boundary(TaskError, "task finalize"):
            await invoke(task.finalize, {"trace": trace, "runtime": None})
        async with asyncio.timeout(limits.scoring):
            await task.score(trace)
        trace.ok = True
    except RolloutError as error:
        trace.record_error(error)
    except TimeoutError:
        trace.is_timeout = True
    trace.is_completed = True
    return trace


def new_trace(agent: vf.AgentConfig, task: vf.Task) -> vf.Trace:
    """A trace of a task without a turn."""
    return vf.Trace(
        task=vf.TraceTask(type=type(task).__name__, data=task.data, key=task.key, hash=task.hash),
        state=state_cls(type(task))(),
        agent=vf.AgentInfo(
            config=agent.model_copy(update={"model": MODEL, "runtime": vf.SubprocessConfig()})
        ),
    )


async def set_up(agent: vf.AgentConfig, task: vf.Task, trace: vf.Trace) -> None:
    """Run a task's own setup on its trace. Raises RolloutError or TimeoutError."""
    limits = resolve_rollout_timeouts(agent.timeout, task)
    async with asyncio.timeout(limits.setup), boundary(TaskError, "task setup"):
        await invoke(task.setup, {"trace": trace, "runtime": None})


def turns(trace: vf.Trace, data: vf.TaskData, said: Messages) -> None:
    """Add a model call for each of the model's turns in `said`, the messages after the prompt."""
    before = prompt_messages(data)
    for message in said:
        if isinstance(message, AssistantMessage):
            finish: Literal["tool_calls", "stop"] = "tool_calls" if message.tool_calls else "stop"
            response = Response(
                id=trace.id,
                created=int(time.time()),
                model=MODEL,
                message=message,
                finish_reason=finish,
            )
            node = prepare_turn(trace, before).commit(response)
            trace.calls.append(
                vf.ModelCall(
                    node=node, model=MODEL, endpoint="/chat/completions", finish_reason=finish
                )
            )
        before = [*before, message]


def prompt_messages(data: vf.TaskData) -> Messages:
    """A task's prompt as a harness sends it: the system prompt, then the prompt."""
    sent: Messages = []
    if data.system_prompt is not None:
        sent.append(SystemMessage(content=data.system_prompt))
    if isinstance(data.prompt, str):
        return [*sent, UserMessage(content=data.prompt)]
    return [*sent, *(data.prompt or ())]


def why_unscored(trace: vf.Trace) -> str | None:
    """Why a scored trace has no reward, or None where it has one."""
    if trace.is_timeout:
        return "its rewards took too long"
    if not trace.ok and trace.last_error:
        return str(trace.last_error.message).partition("\n")[0]
    if not trace.ok:
        return "its rewards failed"
    return None if math.isfinite(trace.reward) else f"its reward is {trace.reward}"


def run_now(work: Coroutine[Any, Any, T]) -> T:
    """`work`'s result, for callers that don't await. It runs in this thread, as rewards may need
    (math-verify's time limits are signals, which only the main thread gets), or in another one
    where an event loop is running here.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, work).result()
