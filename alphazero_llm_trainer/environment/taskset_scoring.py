"""What a reply to a verifiers task earns: the task's own rewards, on the trace that a single-turn rollout leaves.

The trace is made as `verifiers.v1.rollout` makes one: the task, one model call, the prompt's messages and the reply; then
the task's `finalize`, its metrics, rewards and judges (`Task.score`) run on it, under the time limits and with the retries
that the taskset's environment declares. There is no runtime: a task that needs one is refused (`taskset_checks`). The
trace has no token counts and says that the model stopped by itself: both are unknown where text alone is graded.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import time
from collections.abc import AsyncIterator, Coroutine, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import verifiers.v1 as vf
from verifiers.v1.agent import resolve_rollout_timeouts
from verifiers.v1.errors import RolloutError, TaskError, boundary
from verifiers.v1.graph import prepare_turn
from verifiers.v1.state import state_cls
from verifiers.v1.types import AssistantMessage, Messages, Response, SystemMessage, UserMessage
from verifiers.v1.utils.decorators import invoke
from verifiers.v1.utils.retries import RetryState, backoff

CONCURRENT = 32  # replies that are scored at once
MODEL = "student"

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Range:
    """The least and the most that a taskset's rewards can sum up to."""

    low: float
    high: float

    def scaled(self, reward: float) -> float:
        """A reward in [0, 1]; beyond the range it is cut."""
        return min(1.0, max(0.0, (reward - self.low) / (self.high - self.low)))

    def holds(self, reward: float) -> bool:
        """Whether the range has the reward in it, but for rounding."""
        slack = 1e-9 * (self.high - self.low)
        return self.low - slack <= reward <= self.high + slack


def range_of(traces: Iterable[vf.Trace]) -> Range:
    """The range of rewards that scored traces tell of: each score in [0, 1] times its weight, and the sums that were seen."""
    ends = []
    for trace in traces:
        weights = [reward.weight for reward in trace.rewards.values() if reward is not None]
        ends += [sum(min(w, 0.0) for w in weights), sum(max(w, 0.0) for w in weights), trace.reward]
    return Range(min(ends, default=0.0), max(ends, default=0.0))


class Scorer:
    """Scores replies to the tasks of one environment's taskset; at most `CONCURRENT` at once in an event loop."""

    def __init__(self, config: vf.SingleAgentEnvConfig) -> None:
        agent = config.agent
        self.agent = agent.model_copy(update={"model": MODEL, "runtime": vf.SubprocessConfig()})
        # An agent's retries come first in a rollout, too; the environment's are the fallback.
        self.retries = agent.retries if RetryState(agent.retries).max_retries else config.retries
        self._gates: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = WeakKeyDictionary()

    async def __call__(self, task: vf.Task, reply: str) -> vf.Trace:
        """The scored trace. It is not `ok` where the task's code failed to the end (`errors`), or took too long
        (`is_timeout`)."""
        gate = self._gates.setdefault(asyncio.get_running_loop(), asyncio.Semaphore(CONCURRENT))
        state = RetryState(self.retries)
        for attempt in itertools.count():
            async with gate:
                trace = await self._attempt(task, reply)
            if trace.ok or attempt == state.max_retries or state.next_error(trace.errors) is None:
                break
            await asyncio.sleep(backoff(attempt))
        return trace

    async def _attempt(self, task: vf.Task, reply: str) -> vf.Trace:
        trace: vf.Trace = vf.Trace(
            task=vf.TraceTask(type=type(task).__name__, data=task.data, key=task.key, hash=task.hash),
            state=state_cls(type(task))(),
            agent=vf.AgentInfo(config=self.agent),
        )
        limits = resolve_rollout_timeouts(self.agent.timeout, task)
        available: dict[str | type, Any] = {"trace": trace, "runtime": None}
        try:
            async with stage(trace, "setup", limits.setup):
                await invoke(task.setup, available)
            turn(trace, task.data, reply)
            trace.stop("agent_completed")
            async with stage(trace, "finalize", limits.finalize):
                await invoke(task.finalize, available)
            async with stage(trace, "scoring", limits.scoring):
                await task.score(trace)
            trace.ok = True
        except RolloutError as error:
            trace.record_error(error)
        except TimeoutError:
            trace.is_timeout = True
        trace.is_completed = True
        return trace


@asynccontextmanager
async def stage(trace: vf.Trace, name: str, limit: float | None) -> AsyncIterator[None]:
    """One stage of a rollout: within `limit` seconds (None: no limit), with its times on the trace and its errors as
    verifiers'. Raises TimeoutError past the limit, RolloutError for whatever the task's code raises."""
    span = getattr(trace.timing, name)
    span.start = time.time()
    try:
        async with asyncio.timeout(limit), boundary(TaskError, f"task {name}"):
            yield
    except TimeoutError:
        trace.record_timeout(name)
        raise
    finally:
        span.end = time.time()


def turn(trace: vf.Trace, data: vf.TaskData, reply: str) -> None:
    """Add the one model call of a single-turn rollout: the prompt's messages and the reply."""
    began = time.time()
    trace.timing.agent.start = began
    message = AssistantMessage(content=reply)
    response = Response(id=trace.id, created=int(began), model=MODEL, message=message, finish_reason="stop")
    node = prepare_turn(trace, messages(data)).commit(response)
    call = vf.ModelCall(node=node, model=MODEL, endpoint="/chat/completions", finish_reason="stop")
    trace.calls.append(call)
    trace.timing.agent.end = call.time.start = call.time.end = began


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
