"""A world over a verifiers task with toolsets.

A toolset runs in this process, on an event loop in a thread of its own, so that one that hangs
holds up nothing else; one with a `url` is called over HTTP. The task's `State` is handed to each
call as JSON and read back after it, as verifiers' own servers do. A deep copy of the state is a
fork where all toolsets run here; it is checked by a replay (`problems.worlds`), since a toolset's
own attributes aren't in it. Servers over HTTP are replayed alone.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future
from contextlib import AsyncExitStack
from contextvars import ContextVar
from threading import Thread
from typing import Any

import verifiers.v1 as vf
from mcp.client import Client
from mcp.server.mcpserver import MCPServer
from verifiers.v1.state import State
from verifiers.v1.types import AssistantMessage, Messages, ToolCall, ToolMessage, content_text

from ..errors import ConfigError
from ..problems.worlds import Start, Tooling, ToolWorld, WireMessage, checked_reward
from ..types import Facts, JsonObject, Said
from .taskset_rules import (
    new_trace,
    of_class,
    of_data,
    prompt_messages,
    score_reply,
    set_up,
    why_unscored,
)

REWARD_DIGITS = 9  # of a scaled reward: 1 but for rounding is 1
CLOSING = 5.0  # seconds that servers have to end

_calling: ContextVar[VerifiersWorld] = ContextVar("world of a call")


class VerifiersWorld(ToolWorld):
    """One episode of a task; `close` ends its servers with the last of its copies.

    Args:
        task: the task.
        shared: new toolsets of its taskset, for one episode.
        agent: the configuration that its rewards run under.
        reward_range: what its rewards can sum up to, scaled to 0 to 1.

    Raises:
        ConfigError: the task asks for what isn't here (a container, a runtime).
    """

    def __init__(
        self,
        task: vf.Task,
        tooling: Tooling,
        agent: vf.AgentConfig,
        shared: Sequence[vf.Toolset] = (),
        reward_range: tuple[float, float] = (0.0, 1.0),
    ) -> None:
        super().__init__(tooling)
        reason = of_data(task.data) or of_class(task)
        if reason is not None:
            raise ConfigError(f"task {task.data.idx} can't be searched: {reason}")
        self.task, self.agent, self.range = task, agent, reward_range
        own = task.toolsets(task.config)
        self.copies = not any(toolset.config.url for toolset in (*shared, *own))
        self.servers = Servers(task, shared, own)
        self.trace = new_trace(agent, task)
        self.state: State = self.trace.state
        self.said: tuple[Any, ...] = ()

    def __deepcopy__(self, memo: dict[int, Any]) -> VerifiersWorld:
        world = object.__new__(type(self))
        world.__dict__.update(self.__dict__)
        world.state = self.snapshot()
        self.servers.users += 1
        return world

    async def open(self) -> Start:
        """Begin the episode, once."""
        await set_up(self.agent, self.task, self.trace)
        self.state = self.trace.state
        async with asyncio.timeout(self.tooling.seconds):
            tools = await self.servers.start()
        shown = [
            {"role": message.role, "content": content_text(message.content)}
            for message in prompt_messages(self.task.data)
        ]
        return Start(tuple(shown), tuple(tools))

    async def run_tool(self, name: str, arguments: Facts) -> Any:
        """What a tool answers."""
        if name not in self.servers.tools:
            names = ", ".join(self.servers.tools)
            raise LookupError(f"there is no tool `{name}`: the tools are {names}")
        call, raw = self.servers.tools[name]

        async def run() -> str:
            _calling.set(self)
            result = await call(raw, dict(arguments))
            text = "\n".join(getattr(block, "text", str(block)) for block in result.content)
            if result.is_error:
                raise RuntimeError(text)
            return text

        return await self.servers.run(run())

    def snapshot(self) -> State | None:
        """The state before a call, for `restore`; None where it can't be copied."""
        return self.state.model_copy(deep=True) if self.copies else None

    def restore(self, state: State) -> None:
        """Go back to a state before a call that was cut."""
        self.state = state

    def record(self, turn: str, said: Said, messages: tuple[WireMessage, ...]) -> None:
        """Keep a turn and its observation, for rewards that read them."""
        self.said += ((said, messages),)

    async def final_reward(self) -> float:
        """The reward of the episode, from 0 to 1. The task's own rewards on the trace of the
        turns."""
        trace = self.trace.model_copy(deep=True, update={"state": self.state})
        trace = await score_reply(self.agent, self.task, self.wire_messages(), trace)
        reason = why_unscored(trace)
        if reason is not None:
            raise RuntimeError(reason)
        low, high = self.range
        return checked_reward(round((trace.reward - low) / (high - low), REWARD_DIGITS))

    def wire_messages(self) -> Messages:
        """The turns and observations as verifiers' messages."""
        sent: Messages = []
        for number, (said, answers) in enumerate(self.said):
            calls = [
                ToolCall(
                    id=f"{number}-{at}", name=call.name, arguments=json.dumps(dict(call.arguments))
                )
                for at, call in enumerate(said.calls)
            ]
            sent.append(AssistantMessage(content=said.text, tool_calls=calls or None))
            sent += [
                ToolMessage(tool_call_id=call.id, content=answer["content"])
                for call, answer in zip(calls, answers, strict=True)
            ]
        return sent

    async def close(self) -> None:
        """End the servers where no copy uses them."""
        self.servers.users -= 1
        if self.servers.users == 0:
            await self.servers.stop()


class Servers:
    """The toolsets of one episode, on an event loop in a thread."""

    def __init__(
        self, task: vf.Task, shared: Sequence[vf.Toolset], own: Sequence[vf.Toolset]
    ) -> None:
        self.task, self.shared, self.own = task, shared, own
        self.users = 1
        self.tools: dict[str, tuple[Callable[..., Awaitable[Any]], str]] = {}
        self.loop: asyncio.AbstractEventLoop | None = None

    async def start(self) -> list[JsonObject]:
        """Start the servers; returns their tools as JSON schemas."""
        ready: Future[list[JsonObject]] = Future()
        self.ended: Future[None] = Future()
        ready.set_running_or_notify_cancel()
        self.ended.set_running_or_notify_cancel()

        def run() -> None:
            try:
                asyncio.run(self._serve(ready))
            except BaseException as error:  # noqa: BLE001 - raised where it is awaited
                if not ready.done():
                    ready.set_exception(error)
            self.ended.set_result(None)

        Thread(target=run, daemon=True).start()
        return await asyncio.wrap_future(ready)

    async def _serve(self, ready: Future[list[JsonObject]]) -> None:
        self._stopping = asyncio.Event()
        schemas: list[JsonObject] = []
        async with AsyncExitStack() as stack:
            for toolset in (*self.shared, *self.own):
                server = await self._enter(toolset, stack)
                listed = await server.list_tools()
                for tool in getattr(listed, "tools", listed):
                    prefix = toolset.server_name
                    name = f"{prefix}_{tool.name}" if prefix else tool.name
                    if name in self.tools:
                        raise ConfigError(
                            f"two toolsets have a tool `{name}`: give one a TOOL_PREFIX"
                        )
                    self.tools[name] = (server.call_tool, tool.name)
                    function = {
                        "name": name,
                        "description": tool.description or "",
                        "parameters": tool.input_schema,
                    }
                    schemas.append({"type": "function", "function": function})
            self.loop = asyncio.get_running_loop()
            ready.set_result(schemas)
            await self._stopping.wait()

    async def _enter(self, toolset: vf.Toolset, stack: AsyncExitStack) -> Any:
        """A toolset's tools: over HTTP by its `url`, or in this process."""
        if toolset.config.url:
            return await stack.enter_async_context(Client(toolset.config.url))
        if toolset.config.runtime.type != "subprocess":
            raise ConfigError(
                f"toolset {type(toolset).__name__} wants a {toolset.config.runtime.type} runtime: "
                "give it a `url`, or run it in this process"
            )

        async def pull() -> State:
            return toolset._state_adapter.validate_json(_calling.get().state.model_dump_json())

        async def push(before: bytes) -> None:
            world = _calling.get()
            world.state = type(world.state).model_validate_json(toolset.state.model_dump_json())

        toolset._pull_state, toolset._push_state = pull, push
        await stack.enter_async_context(toolset._exit_stack)
        await toolset.setup()
        if toolset not in self.shared:
            await toolset.setup_task(self.task)
        server = MCPServer(toolset.server_name or type(toolset).__name__)
        toolset.register(server)
        return server

    async def run(self, work: Any) -> Any:
        """The result of a coroutine on the servers' loop."""
        assert self.loop is not None
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self.loop))

    async def stop(self) -> None:
        """End the servers. One that hangs is left to the process's end."""
        if self.loop is not None:
            self.loop.call_soon_threadsafe(self._stopping.set)
            await asyncio.wait((asyncio.wrap_future(self.ended),), timeout=CLOSING)
