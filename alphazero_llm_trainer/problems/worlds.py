"""Worlds that a student acts in: one episode of turns and observations, and how a search goes on
from any of its states.

A search needs a state again for each sibling. `Episodes` takes the first way that a world offers:

1. `fork()` of the world itself, which is trusted;
2. a deep copy, where the world says that it `copies`. It is checked by a replay in a new episode
   whenever a tool is called for the first time, and the copied state must still answer the same;
3. a replay of the path's turns in a new episode. Every observation is compared.

What differs is refused by the tool's name. A world that dies, or is cut where nothing is known of
its state then, ends its tree: `Seen.failure` says why.
"""

from __future__ import annotations

import asyncio
import copy
import inspect
import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from threading import Thread
from typing import Any, NamedTuple, Protocol, get_type_hints

from pydantic import TypeAdapter
from pydantic.errors import PydanticUserError

from ..errors import AlphaZeroError, ConfigError, reason_of
from ..types import Facts, JsonObject, Said, ToolCall

NOT_TOOLS = {"reset", "reward", "get_reward", "fork", "close"}  # methods of a class that is a world
OPEN_EPISODES = 4  # replayed episodes that a search keeps open
LONGEST_TOKEN = 256  # characters

ERROR = "error"  # how an observation of an error begins
WireMessage = Facts


class Start(NamedTuple):
    """What an episode begins with: messages, and the tools as JSON schemas."""

    messages: tuple[WireMessage, ...]
    tools: tuple[Facts, ...] = ()


@dataclass(frozen=True, slots=True)
class Seen:
    """What a world answers to a turn.

    Attributes:
        messages: the observation, as messages of a chat.
        done: the episode is over.
        reward: from 0 to 1 where it is over, else None. No search may see it before its answer.
        calls: the tools that were called, in order.
        errors: those of `calls` that raised, were cut, or couldn't be read.
        cut: those of `errors` that took too long.
        failure: why the world can't go on, or None.
    """

    messages: tuple[WireMessage, ...] = ()
    done: bool = False
    reward: float | None = None
    calls: tuple[str, ...] = ()
    errors: tuple[str, ...] = ()
    cut: tuple[str, ...] = ()
    failure: str | None = None


class World(Protocol):
    """One episode. It may have `fork() -> World`, `copies = True` (a deep copy holds its state) and
    `async close()`.
    """

    async def open(self) -> Start:
        """Begin the episode, once."""
        ...

    async def act(self, turn: str) -> Seen:
        """What a student's turn leads to."""
        ...


class Tooling(NamedTuple):
    """How turns are read, and how much a tool may take.

    Attributes:
        read: a turn's text and calls (`chat.tool_calls`).
        seconds: of one call (`search.tool_seconds`).
        tokens: of one answer (`search.tool_tokens`), as `count` counts them.
        count: how long a text is; in characters by default.
    """

    read: Callable[[str], Said]
    seconds: float = 30.0
    tokens: int = 4096
    count: Callable[[str], int] = len


# -- a world of tools ------------------------------------------------------------------------------


class ToolWorld(ABC):
    """A world that answers calls of tools, one message each. It is over with a turn that calls
    none, or where `is_over` says so.
    """

    copies = False

    def __init__(self, tooling: Tooling) -> None:
        self.tooling = tooling

    @abstractmethod
    async def open(self) -> Start:
        """Begin the episode, once."""

    @abstractmethod
    async def run_tool(self, name: str, arguments: Facts) -> Any:
        """What a tool answers. Whatever it raises is the observation."""

    @abstractmethod
    async def final_reward(self) -> float:
        """The reward of the episode, from 0 to 1."""

    def is_over(self) -> bool:
        """Whether a tool ended the episode."""
        return False

    def record(self, turn: str, said: Said, messages: tuple[WireMessage, ...]) -> None:
        """Keep a turn and its observation, for rewards that read them."""
        return

    def snapshot(self) -> Any:
        """The state before a call, for `restore`; None where it can't be copied."""
        return None

    def restore(self, state: Any) -> None:
        """Go back to a state before a call that was cut."""
        return

    async def act(self, turn: str) -> Seen:
        """What a student's turn leads to."""
        said = self.tooling.read(turn)
        answers, errors, cut = list[WireMessage](), list[str](), list[str]()
        for call in said.calls:
            state = self.snapshot()
            try:
                async with asyncio.timeout(self.tooling.seconds) as limit:
                    content, failed = await self._answer(call)
            except TimeoutError:
                if not limit.expired():
                    raise
                text = f"`{call.name}` gave no answer within {self.tooling.seconds:g} s"
                cut.append(call.name)
                if state is None:
                    calls = tuple(call.name for call in said.calls)
                    return Seen((), True, None, calls, (*errors, *cut), tuple(cut), text)
                self.restore(state)
                content, failed = f"{ERROR}: {text}", True
            if failed:
                errors.append(call.name)
            content = cut_text(content, self.tooling)
            answers.append({"role": "tool", "name": call.name, "content": content})
        messages = tuple(answers)
        self.record(turn, said, messages)
        done = not said.calls or self.is_over()
        reward = await self.final_reward() if done else None
        names = tuple(call.name for call in said.calls)
        return Seen(messages, done, reward, names, tuple(errors), tuple(cut))

    async def _answer(self, call: ToolCall) -> tuple[str, bool]:
        """The text that answers a call, and whether it is an error."""
        if call.error is not None:
            return f"{ERROR}: {call.error}", True
        try:
            return str(await self.run_tool(call.name, call.arguments)), False
        except Exception as error:  # noqa: BLE001 - data of the episode
            return f"{ERROR}: {type(error).__name__}: {error}", True


class ObjectWorld(ToolWorld):
    """An object whose public methods are the tools, as TRL's `environment_factory` makes them.

    `reset(**row)` begins an episode, and the text that it returns follows the question;
    `reward()` or `get_reward()` ends it. An attribute `done` that is true ends it early; `fork`
    copies the object. Methods may be async; the others run in threads.

    Args:
        thing: the object, new for this episode.
        row: the task's columns; those that `reset` takes are handed to it.
        messages: what stands before the first turn; the last one is the question.
    """

    copies = True

    def __init__(
        self,
        thing: Any,
        row: Facts,
        messages: tuple[WireMessage, ...],
        tooling: Tooling,
    ) -> None:
        super().__init__(tooling)
        self.thing, self.row, self.messages = thing, row, messages
        self.names = tool_names(type(thing))
        rewards = getattr(thing, "reward", None) or getattr(thing, "get_reward", None)
        if not callable(getattr(thing, "reset", None)) or not callable(rewards):
            raise ConfigError(
                f"{type(thing).__name__} is no world: give it a method `reset`, and `reward` or "
                "`get_reward`"
            )
        if hasattr(thing, "fork"):
            self.fork = self._fork
        if hasattr(thing, "close"):
            self.close = self._close

    def _fork(self) -> ObjectWorld:
        return ObjectWorld(self.thing.fork(), self.row, self.messages, self.tooling)

    async def _close(self) -> None:
        await run_apart(self.thing.close, {})

    def __deepcopy__(self, memo: dict[int, Any]) -> ObjectWorld:
        thing = copy.deepcopy(self.thing, memo)
        return ObjectWorld(thing, self.row, self.messages, self.tooling)

    async def open(self) -> Start:
        """Begin the episode, once."""
        taken = inspect.signature(self.thing.reset).parameters
        open_ended = any(one.kind is one.VAR_KEYWORD for one in taken.values())
        row = {key: value for key, value in self.row.items() if open_ended or key in taken}
        async with asyncio.timeout(self.tooling.seconds):
            text = await run_apart(self.thing.reset, row)
        messages = self.messages
        if text is not None:
            *before, last = messages
            messages = (*before, {**last, "content": f"{last['content']}{text}"})
        schemas = [tool_schema(getattr(self.thing, name)) for name in self.names]
        return Start(messages, tuple(schemas))

    async def run_tool(self, name: str, arguments: Facts) -> Any:
        """What a tool answers."""
        if name not in self.names:
            raise LookupError(f"there is no tool `{name}`: the tools are {', '.join(self.names)}")
        return await run_apart(getattr(self.thing, name), arguments)

    async def final_reward(self) -> float:
        """The reward of the episode, from 0 to 1."""
        method = getattr(self.thing, "reward", None) or self.thing.get_reward
        async with asyncio.timeout(self.tooling.seconds):
            return checked_reward(await run_apart(method, {}))

    def is_over(self) -> bool:
        """Whether a tool ended the episode."""
        return bool(getattr(self.thing, "done", False))

    def snapshot(self) -> Any:
        """The state before a call, for `restore`; None where it can't be copied."""
        return copy_deeply(self.thing)

    def restore(self, state: Any) -> None:
        """Go back to a state before a call that was cut. The call that was cut goes on with an
        object that is let go.
        """
        self.thing = state


def tool_names(kind: type) -> list[str]:
    """The public methods of a class, but those that begin and end an episode."""
    methods = (name for name, _ in inspect.getmembers(kind, inspect.isfunction))
    return [name for name in methods if not name.startswith("_") and name not in NOT_TOOLS]


def tool_schema(method: Callable[..., Any]) -> JsonObject:
    """The JSON schema of a method, from its signature and its docstring: the first paragraph, and a
    line `name: text` of each parameter under `Args:`.
    """
    about, _, rest = (inspect.getdoc(method) or "").partition("\n\n")
    lines = (line.strip().partition(":") for line in rest.split("\n"))
    texts = {name.partition(" (")[0]: text.strip() for name, colon, text in lines if colon}
    hints, properties, required = get_type_hints(method), {}, []
    for name, parameter in inspect.signature(method).parameters.items():
        try:
            properties[name] = TypeAdapter(hints.get(name, Any)).json_schema()
        except PydanticUserError as error:
            raise ConfigError(
                f"tool `{method.__name__}` takes `{name}: {hints[name]}`, which JSON has no type "
                "for: use int, float, str, bool, list or dict"
            ) from error
        if texts.get(name):
            properties[name]["description"] = texts[name]
        if parameter.default is parameter.empty:
            required.append(name)
    parameters = {"type": "object", "properties": properties, "required": required}
    function = {"name": method.__name__, "description": about, "parameters": parameters}
    return {"type": "function", "function": function}


async def run_apart(method: Callable[..., Any], arguments: Facts) -> Any:
    """What a method gives. One that isn't async runs in a thread of its own, which ends with the
    process at the latest: nothing waits for one that hangs.
    """
    if inspect.iscoroutinefunction(method):
        return await method(**arguments)
    future: Future[tuple[Any, BaseException | None]] = Future()
    future.set_running_or_notify_cancel()

    def run() -> None:
        try:
            future.set_result((method(**arguments), None))
        except BaseException as error:  # noqa: BLE001 - `exit()` in a tool, too
            future.set_result((None, error))

    Thread(target=run, daemon=True).start()
    result, error = await asyncio.wrap_future(future)
    if isinstance(error, Exception) and not isinstance(error, StopIteration):
        raise error
    if error is not None:
        raise RuntimeError(f"{type(error).__name__}: {error}")
    return result


def cut_text(text: str, tooling: Tooling) -> str:
    """A tool's answer, or the most of its beginning that `tooling.tokens` holds, with a mark."""
    kept = text[: tooling.tokens * LONGEST_TOKEN]
    if kept == text and tooling.count(text) <= tooling.tokens:
        return text
    low, high = 0, len(kept)
    while low < high:
        middle = (low + high + 1) // 2
        if tooling.count(kept[:middle]) <= tooling.tokens:
            low = middle
        else:
            high = middle - 1
    return f"{text[:low]}\n[cut: {len(text) - low:,} more characters]"


def checked_reward(reward: Any) -> float:
    """A reward as a number. Raises ValueError for one that isn't from 0 to 1."""
    number = float(reward)
    if not math.isfinite(number) or not 0 <= number <= 1:
        raise ValueError(f"its reward is {number}: rewards are from 0 to 1")
    return number


def copy_deeply(thing: Any) -> Any:
    """A deep copy, or None where there is none (a thread, an open file)."""
    try:
        return copy.deepcopy(thing)
    except Exception:  # noqa: BLE001 - whatever an object's own copying raises
        return None


# -- the ladder of forks ---------------------------------------------------------------------------


@dataclass(eq=False, slots=True)
class Place:
    """A state of an episode: the turns that lead there with what the world answered, and the world
    that stands there; None where only a replay brings it back.
    """

    start: Start
    path: tuple[tuple[str, Seen], ...]
    world: World | None = field(default=None, repr=False)


class Episodes:
    """The episodes of one task, as a search needs them; `async with` closes every world.

    Args:
        begin: a new world of the task.
        checked: tools whose copied answers were checked already, kept for a whole run.
        seconds: of one turn; None has no limit beside the tools' own.
    """

    def __init__(
        self,
        begin: Callable[[], World],
        checked: set[str] | None = None,
        seconds: float | None = None,
    ) -> None:
        self.begin, self.seconds = begin, seconds
        self.checked = set[str]() if checked is None else checked
        self.replays = 0
        self._replay_only = False
        self._open: list[Any] = []  # worlds that want to be closed
        self._standing: list[Place] = []  # of worlds that a replay alone brings back

    async def __aenter__(self) -> Episodes:
        return self

    async def __aexit__(self, *_: object) -> None:
        while self._open:
            await self._close(self._open[-1])

    async def open(self) -> Place:
        """The beginning. Raises what the world raises."""
        world, start = await self._begin()
        self._replay_only = self._fork(world) is None
        return self._keep(Place(start, (), world))

    async def act(self, place: Place, turn: str) -> Place:
        """The state after a turn; `place` stays as it is, and can be gone on from again.

        Raises ConfigError where the world answers differently, ValueError where it is over.
        """
        if place.path and place.path[-1][1].done:
            raise ValueError("the episode is over: no turn follows")
        world = self._fork(place.world)
        by_copy = world is not None and not hasattr(world, "fork")
        if world is None and place.world is not None:  # the first turn from here needs no copy
            world, place.world = place.world, None
            self._standing = [other for other in self._standing if other is not place]
        try:
            if world is None:
                world = await self._replay(place)
            seen = await self._act(world, turn)
            if by_copy and seen.failure is None:
                await self._check(place, turn, seen)
        except _DeadError as error:
            seen = Seen((), True, None, failure=str(error))
        after = Place(place.start, (*place.path, (turn, seen)), world)
        if seen.failure is None and not seen.done:
            return self._keep(after)
        if world is not None:
            await self._close(world)
        after.world = None
        return after

    def _keep(self, place: Place) -> Place:
        """Remember a world that can't be copied, to use it once."""
        if self._replay_only:
            self._standing.append(place)
        return place

    def _fork(self, world: Any) -> Any:
        """A copy of a world by the first way that it has; None where it has none."""
        if hasattr(world, "fork"):
            return self._register(world.fork())
        return self._register(copy_deeply(world)) if getattr(world, "copies", False) else None

    def _register(self, world: Any) -> Any:
        if hasattr(world, "close"):
            self._open.append(world)
        return world

    async def _begin(self) -> tuple[World, Start]:
        while len(self._standing) >= OPEN_EPISODES:
            oldest = self._standing.pop(0)
            if oldest.world is not None:
                await self._close(oldest.world)
            oldest.world = None
        world = self._register(self.begin())
        return world, await world.open()

    async def _act(self, world: World, turn: str) -> Seen:
        """What a world answers; a failure where it dies."""
        try:
            async with asyncio.timeout(self.seconds):
                return await world.act(turn)
        except AlphaZeroError:
            raise
        except Exception as error:  # noqa: BLE001 - a rollout's failure is data
            return Seen((), True, None, failure=f"the world died ({reason_of(error)})")

    async def _replay(self, place: Place, *more: tuple[str, Seen]) -> World:
        """A new episode after the turns of a path. Raises ConfigError where an answer differs."""
        self.replays += 1
        try:
            world, start = await self._begin()
        except AlphaZeroError:
            raise
        except Exception as error:
            raise _DeadError(f"the world didn't open again ({error})") from error
        if start != place.start:
            raise ConfigError(
                "the world begins differently: search needs a world that can be forked or replayed"
            )
        for turn, held in (*place.path, *more):
            compare_answers(held, await self._act(world, turn))
        return world

    async def _check(self, place: Place, turn: str, seen: Seen) -> None:
        """Check copies by a replay where a tool is called for the first time; and that what was
        copied is untouched by what its copy did.
        """
        new = {*(seen.calls or ("",))} - self.checked
        if not new:
            return
        await self._close(await self._replay(place, (turn, seen)))
        again = self._fork(place.world)
        if again is not None:
            compare_answers(seen, await self._act(again, turn))
            await self._close(again)
        self.checked |= new

    async def _close(self, world: Any) -> None:
        """Close a world, once."""
        if world in self._open:
            self._open.remove(world)
            await world.close()


class _DeadError(Exception):
    """A world ended on the way to a state."""


def compare_answers(held: Seen, seen: Seen) -> None:
    """Raise ConfigError where a world answers a turn differently, by the tool's name; _DeadError
    where it died, or a time limit decided.
    """
    if held == seen:
        return
    if seen.failure is not None:
        raise _DeadError(seen.failure)
    if held.cut != seen.cut:
        raise _DeadError(f"`{(held.cut or seen.cut)[0]}` is sometimes too slow to answer")
    who = "the world"
    for before, now in zip(held.messages, seen.messages, strict=False):
        if before != now:
            who = f"tool `{now['name']}`" if "name" in now else who
            break
    raise ConfigError(
        f"{who} answers differently: search needs a world that can be forked or replayed"
    )
