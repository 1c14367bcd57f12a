"""What a reply to a verifiers task earns: the task's own rewards, on the trace that a single-turn rollout leaves.

The trace is made as `verifiers.v1.rollout` makes one: the task, one model call, the prompt's messages and the reply; then
the task's `finalize`, its metrics, rewards and judges (`Task.score`) run on it, under its time limits. There is no runtime:
a task that needs one is refused (`taskset_checks`). The trace has no token counts and says that the model stopped by
itself: both are unknown where text alone is graded.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import verifiers.v1 as vf
from verifiers.v1.agent import resolve_rollout_timeouts
from verifiers.v1.errors import RolloutError, TaskError, boundary
from verifiers.v1.graph import prepare_turn
from verifiers.v1.state import state_cls
from verifiers.v1.types import AssistantMessage, Messages, Response, SystemMessage, UserMessage
from verifiers.v1.utils.decorators import invoke

MODEL = "student"

T = TypeVar("T")


async def scored(agent: vf.AgentConfig, task: vf.Task, reply: str) -> vf.Trace:
    """The scored trace. It is not `ok` where the task's code failed (`errors`) or took too long (`is_timeout`)."""
    trace: vf.Trace = vf.Trace(
        task=vf.TraceTask(type=type(task).__name__, data=task.data, key=task.key, hash=task.hash),
        state=state_cls(type(task))(),
        agent=vf.AgentInfo(config=agent.model_copy(update={"model": MODEL, "runtime": vf.SubprocessConfig()})),
    )
    limits = resolve_rollout_timeouts(agent.timeout, task)
    available: dict[str | type, Any] = {"trace": trace, "runtime": None}
    try:
        async with asyncio.timeout(limits.setup), boundary(TaskError, "task setup"):
            await invoke(task.setup, available)
        turn(trace, task.data, reply)
        trace.stop("agent_completed")
        async with asyncio.timeout(limits.finalize), boundary(TaskError, "task finalize"):
            await invoke(task.finalize, available)
        async with asyncio.timeout(limits.scoring):
            await task.score(trace)
        trace.ok = True
    except RolloutError as error:
        trace.record_error(error)
    except TimeoutError:
        trace.is_timeout = True
    trace.is_completed = True
    return trace


def turn(trace: vf.Trace, data: vf.TaskData, reply: str) -> None:
    """Add the one model call of a single-turn rollout: the prompt's messages and the reply."""
    message = AssistantMessage(content=reply)
    response = Response(id=trace.id, created=int(time.time()), model=MODEL, message=message, finish_reason="stop")
    node = prepare_turn(trace, messages(data)).commit(response)
    trace.calls.append(vf.ModelCall(node=node, model=MODEL, endpoint="/chat/completions", finish_reason="stop"))


def messages(data: vf.TaskData) -> Messages:
    """A task's prompt as a harness sends it: the system prompt, then the prompt."""
    system: Messages = [] if data.system_prompt is None else [SystemMessage(content=data.system_prompt)]
    prompt = [UserMessage(content=data.prompt)] if isinstance(data.prompt, str) else list(data.prompt or [])
    return [*system, *prompt]


def failure(trace: vf.Trace) -> str | None:
    """Why a scored trace has no reward, or None where it has one."""
    if trace.is_timeout:
        return "its rewards took too long"
    if not trace.ok:
        return str(trace.last_error.message).partition("\n")[0] if trace.last_error else "its rewards failed"
    return None if math.isfinite(trace.reward) else f"its reward is {trace.reward}"


def run_now(work: Coroutine[Any, Any, T]) -> T:
    """`work`'s result, for callers that don't await. It runs in this thread, as rewards may need (math-verify's time limits
    are signals, which only the main thread gets), or in another one where an event loop is running here."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, work).result()
