"""A reward of the user's own, beside correctness and perplexity or in their place.

`fn(problem, response, task) -> float` in [0, 1], sync or async: the problem as search sees it, the response's text and the
task with its gold answer. `rewards.custom` names it as `file.py:NAME` or `package.module:NAME`; `name_reward` gives a
function in memory such a name.
"""

from __future__ import annotations

import asyncio
import inspect
import math
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future
from functools import lru_cache
from typing import Any

from ..config.objects import load_object
from ..config.sections import RewardConfig
from ..errors import ConfigError, RewardError
from ..types import Problem, Task

KEY = "rewards.custom"
SHOWN = 300  # letters of a value or an error in a message
QUICK = 0.01  # seconds of a sync call: after one that took less, the next is made without a thread, which costs more

Function = Callable[[Problem, str, Task], float | Awaitable[float]]

_in_memory: dict[str, Function] = {}

CONCURRENT = 8  # calls under way at once


class CustomReward:
    """The user's function with its checks.

    Args:
        function: see the module.
        name: what messages call it.
        concurrent: calls under way at once.
        timeout: seconds of one call.

    Raises ConfigError for what isn't callable with a problem, a response and a task.
    """

    def __init__(self, function: Function, name: str, concurrent: int = 8, timeout: float = 60.0) -> None:
        self.function, self.name, self.concurrent, self.timeout = function, name, concurrent, timeout
        if not callable(function):
            raise ConfigError(f"{KEY} is {name!r}, a {type(function).__name__}: name a function")
        try:
            inspect.signature(function).bind(None, "", None)
        except TypeError as error:
            raise ConfigError(
                f"{KEY} is {name!r} and can't be called ({error}): take problem, response and task"
            ) from error
        except ValueError:
            pass  # some functions in C tell nothing about themselves
        self.waits = inspect.iscoroutinefunction(function)
        self.seconds = math.inf  # of the last sync call
        self._gate: tuple[asyncio.AbstractEventLoop, asyncio.Semaphore] | None = None

    async def __call__(self, problem: Problem, response: str, task: Task) -> float:
        """The reward of a response, in [0, 1].

        Raises RewardError where the function raises, takes too long or gives something else.
        """
        asked = (problem, response.strip(), task)
        async with self._slot():
            limit = asyncio.timeout(self.timeout)
            try:
                async with limit:
                    value: Any = self.function(*asked) if self.waits else await self._called(*asked)
                    if inspect.isawaitable(value):
                        value = await value
            except (Exception, SystemExit) as error:  # the user's own code may raise anything
                if limit.expired():
                    what = f"took longer than {self.timeout:g} s"
                    raise self._failed(problem, what, "raise rewards.custom_timeout_seconds") from error
                said = str(error).strip().splitlines() or ["no message"]
                what = f"raised {type(error).__name__} ({said[0][:SHOWN]})"
                raise self._failed(problem, what, "mend it") from error
        try:
            number = math.nan if isinstance(value, str | bytes) else float(value)
        except (TypeError, ValueError):
            number = math.nan
        if not 0.0 <= number <= 1.0:
            raise self._failed(problem, f"gave {repr(value)[:SHOWN]}", "return a number from 0 to 1")
        return number

    async def _called(self, *asked: Any) -> Any:
        """What the sync function returns or raises: in a thread, unless its last call was quick."""

        def timed() -> Any:
            began = time.perf_counter()
            try:
                return self.function(*asked)
            finally:
                self.seconds = time.perf_counter() - began

        return timed() if self.seconds < QUICK else await in_thread(timed)

    async def scores(self, tasks: Sequence[Task], responses: Sequence[str | None]) -> list[float | None]:
        """The reward of each task's response; None where it failed, 0 where there is no response.

        Raises RewardError where every response failed.
        """
        failed: list[RewardError] = []

        async def score(task: Task, response: str | None) -> float | None:
            if response is None:
                return 0.0
            try:
                return await self(task.problem, response, task)
            except RewardError as error:
                failed.append(error)
                return None

        found = await asyncio.gather(*map(score, tasks, responses))
        if failed and len(failed) == sum(response is not None for response in responses):
            raise RewardError(f"every one of {len(failed):,} responses failed; the first one: {failed[0]}")
        return list(found)

    def _failed(self, problem: Problem, what: str, fix: str) -> RewardError:
        return RewardError(f"{KEY} is {self.name!r} and {what} for problem {problem.id}: {fix}")

    def _slot(self) -> asyncio.Semaphore:
        """The running event loop's semaphore: a run has one loop after the other."""
        loop = asyncio.get_running_loop()
        if self._gate is None or self._gate[0] is not loop:
            self._gate = loop, asyncio.Semaphore(self.concurrent)
        return self._gate[1]


async def in_thread(function: Callable[[], Any]) -> Any:
    """What a sync function returns or raises. Its thread is a daemon: one that never returns holds up no process's end."""
    done: Future[Any] = Future()

    def work() -> None:
        try:
            done.set_result(function())
        except (Exception, SystemExit) as error:  # noqa: BLE001 - handed to the caller in the event loop
            done.set_exception(error)

    done.set_running_or_notify_cancel()  # what runs can't be cancelled
    threading.Thread(target=work, name=KEY, daemon=True).start()
    return await asyncio.wrap_future(done)


def name_reward(function: Function) -> str:
    """An address for a function in memory, for `rewards.custom` in this process."""
    inner = getattr(function, "__qualname__", type(function).__qualname__)
    address = f"{getattr(function, '__module__', type(function).__module__)}:{inner}"
    _in_memory[address] = function
    return address


def open_reward(rewards: RewardConfig) -> CustomReward | None:
    """The reward that `rewards.custom` names; None where it is null. Raises ConfigError where it can't be loaded."""
    address = rewards.custom
    if address is None:
        return None
    function = _in_memory[address] if address in _in_memory else loaded(address)
    return CustomReward(function, address, CONCURRENT, rewards.custom_timeout_seconds)


@lru_cache(maxsize=16)
def loaded(address: str) -> Function:
    """The function at an address: a run asks for it in several places, and its file runs once."""
    place, _, name = address.rpartition(":")
    if not place or not name:
        raise ConfigError(f"{KEY} is {address!r}: write file.py:NAME or package.module:NAME")
    return load_object(place, name, KEY)
