"""A reward of the user's own, beside correctness and perplexity or in their place.

`fn(problem, response, task) -> float` in [0, 1], sync or async: the problem as search sees it, the
response's text and the task with its gold answer. `rewards.custom` names it as `file.py:NAME`;
`name_reward` gives a function in memory such a name.
"""

from __future__ import annotations

import asyncio
import inspect
import math
import traceback
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from ..chat.judge import open_judge
from ..config.objects import own_object
from ..config.sections import RewardConfig, TeachersConfig
from ..errors import ConfigError, RewardError
from ..live import UNCARRIED, in_thread, printing_aside
from ..types import Problem, Task

REWARD_KEY = "rewards.custom"
JUDGE = "judge"  # of `rewards.judge`
ROUNDING = 1e-6  # that a reward may be outside of [0, 1]: it is cut off
ERROR_SHOWN = 300  # letters of an exception's text in a message
SCORES_AT_ONCE = 8  # calls of `CustomReward.scores` under way at once

Function = Callable[[Problem, str, Task], float | Awaitable[float]]

_in_memory: dict[str, Function] = {}


@dataclass(frozen=True, slots=True)
class CustomReward:
    """The user's function (see the module), and what messages call it."""

    function: Function
    name: str

    async def __call__(self, problem: Problem, response: str, task: Task) -> float:
        """The reward of a response, in [0, 1]. A sync function runs in a thread.

        Raises RewardError where the function raises or gives something else.
        """
        asked = (problem, response.strip(), task)
        try:
            with printing_aside():
                waits = inspect.iscoroutinefunction(self.function)
                call = self.function if waits else partial(in_thread, self.function)
                value: Any = call(*asked)
                while inspect.isawaitable(value):
                    value = await value
        except RewardError:
            raise
        except (Exception, SystemExit) as error:  # the user's own code may raise anything
            raised = error.__cause__ if isinstance(error.__cause__, UNCARRIED) else error
            text = " ".join(str(raised)[: 2 * ERROR_SHOWN].split())
            said = text if len(text) <= ERROR_SHOWN else text[:ERROR_SHOWN] + "..."
            shown = f"{type(raised).__name__} ({said})" if said else type(raised).__name__
            what = f"raised {shown}{self.place(raised)}"
            raise RewardError(
                f"{REWARD_KEY} is {self.name!r} and {what} for problem {problem.id}: mend it"
            ) from error
        try:
            number, shown = float(value), f"{float(value)}"
        # RuntimeError is a tensor's, OverflowError a huge number's.
        except (TypeError, ValueError, RuntimeError, OverflowError):
            number, shown = math.nan, "nothing" if value is None else f"a {type(value).__name__}"
        if not -ROUNDING <= number <= 1.0 + ROUNDING:
            what = f"gave {shown} for problem {problem.id}: return one number from 0 to 1"
            raise RewardError(f"{REWARD_KEY} is {self.name!r} and {what}")
        return min(1.0, max(0.0, number))

    def place(self, error: BaseException) -> str:
        """The last line of the function's own file that an error came through, in words; nothing
        where there is none.
        """
        own = getattr(getattr(inspect.unwrap(self.function), "__code__", None), "co_filename", None)
        lines = [
            frame.lineno
            for frame in traceback.extract_tb(error.__traceback__)
            if frame.filename == own
        ]
        return f" in {Path(str(own)).name}, line {lines[-1]}," if lines else ""

    async def scores(
        self, tasks: Sequence[Task], responses: Sequence[str | None]
    ) -> list[float | None]:
        """The reward of each task's response; None where it failed, 0 where there is no response.

        Raises RewardError where every response failed.
        """
        failed: list[RewardError] = []
        gate = asyncio.Semaphore(SCORES_AT_ONCE)

        async def score(task: Task, response: str | None) -> float | None:
            if response is None:
                return 0.0
            async with gate:
                try:
                    return await self(task.problem, response, task)
                except RewardError as error:
                    failed.append(error)
                    return None

        rewards = await asyncio.gather(*map(score, tasks, responses))
        if failed and len(failed) == sum(response is not None for response in responses):
            raise RewardError(
                f"every one of {len(failed):,} responses failed; the first one: {failed[0]}"
            )
        return list(rewards)


def name_reward(function: Function) -> str:
    """An address for a function in memory, for `rewards.custom` in this process."""
    inner = getattr(function, "__qualname__", type(function).__qualname__)
    address = f"{getattr(function, '__module__', type(function).__module__)}:{inner}"
    _in_memory[address] = function
    return address


def in_memory(address: str) -> bool:
    """Whether `name_reward` gave this address to a function of this process."""
    return address in _in_memory


def open_reward(
    rewards: RewardConfig, limits: TeachersConfig | None = None, greet: bool = False
) -> CustomReward | None:
    """The reward that `rewards.custom` names; None where it is null. `limits` are those of a judge.
    Raises ConfigError where it can't be loaded, or (`greet`) where the judge's server doesn't
    answer.
    """
    address = rewards.custom
    if address == JUDGE:
        if limits is None:
            raise ConfigError(
                f"{REWARD_KEY} is {address!r}, which `train` and `eval` have: name file.py:FN"
            )
        judge = open_judge(rewards.judge, limits, REWARD_KEY)
        if greet:
            judge.greet()
        return CustomReward(judge.reward, address)
    if address is None:
        return None
    with printing_aside():
        function = _in_memory[address] if address in _in_memory else own_object(address, REWARD_KEY)
    if not callable(function):
        raise ConfigError(
            f"{REWARD_KEY} is {address!r}, a {type(function).__name__}: name a function"
        )
    try:
        inspect.signature(function).bind(None, "", None)
    except TypeError as error:
        raise ConfigError(
            f"{REWARD_KEY} is {address!r}, which takes other arguments ({error}): "
            "write it as fn(problem, response, task)"
        ) from None
    except ValueError:
        pass  # written in C: it shows when it is called
    return CustomReward(function, address)
