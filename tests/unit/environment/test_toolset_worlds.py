"""A world over a verifiers task with toolsets: real MCP servers, in this process and over HTTP."""

import asyncio
import socket
import threading
import time
from contextlib import contextmanager

import pytest
import uvicorn
import verifiers.v1 as vf
from mcp.server.mcpserver import MCPServer
from pydantic import Field
from scripted import call, walk

from alphazero_llm_trainer.chat.tool_calls import FORMS, read_calls
from alphazero_llm_trainer.environment.toolset_worlds import VerifiersWorld
from alphazero_llm_trainer.errors import ConfigError
from alphazero_llm_trainer.problems.worlds import Episodes, Tooling

HERMES = FORMS["hermes"]
TOOLING = Tooling(lambda turn: read_calls(turn, HERMES), seconds=20.0)


class LedgerState(vf.State):
    entries: list[int] = Field(default_factory=list)
    ready: bool = False


class Ledger(vf.Toolset[vf.ToolsetConfig, LedgerState]):
    running = 0

    async def setup(self):
        self.mine = 0
        Ledger.running += 1
        self._exit_stack.callback(self.end)

    def end(self):
        Ledger.running -= 1

    async def setup_task(self, task):
        self.name = task.data.name

    @vf.tool
    def enter(self, number: int) -> str:
        """Enter a number."""
        self.state.entries = [*self.state.entries, number]
        return f"{self.name}: {self.state.entries}"

    @vf.tool
    async def remember(self) -> str:
        """Count in the server itself: no state holds it."""
        self.mine += 1
        return str(self.mine)

    @vf.tool
    def clock(self) -> int:
        """The time."""
        return time.time_ns()

    @vf.tool
    def fail(self) -> str:
        """Raise."""
        raise ValueError("no such account")

    @vf.tool
    def hang(self) -> str:
        """Never answer."""
        time.sleep(2)
        return "late"


class Config(vf.TaskConfig):
    url: str | None = None


class LedgerTask(vf.Task[vf.TaskData, LedgerState, Config]):
    @classmethod
    def toolsets(cls, config):
        return [Ledger(vf.ToolsetConfig(url=config.url))]

    async def setup(self, trace: vf.Trace) -> None:
        trace.state.ready = True

    @vf.reward
    async def three(self, trace: vf.Trace) -> float:
        """Whether 3 was entered, by turns that verifiers' own trace shows."""
        assert trace.state.ready
        roles = [message.role for message in trace.messages]
        assert roles[:2] == ["system", "user"] and roles[-1] == "assistant"
        assert roles.count("tool") + 1 == roles.count("assistant") == len(trace.calls)
        return float(trace.state.entries == [1, 2])


def world_of(url=None, tooling=TOOLING):
    data = vf.TaskData(idx=0, name="ledger", prompt="Reach 3.", system_prompt="Enter numbers.")
    return VerifiersWorld(LedgerTask(data, Config(url=url)), tooling, vf.AgentConfig())


def play(*turns, **options):
    return walk(lambda: world_of(**options), turns)[0]


@pytest.fixture(autouse=True)
def nothing_is_left():
    threads = threading.active_count()
    yield
    assert Ledger.running == 0
    deadline = time.monotonic() + 10
    while threading.active_count() > threads and time.monotonic() < deadline:
        time.sleep(0.05)
    assert threading.active_count() <= threads


def test_a_state_is_forked_and_its_reward_is_the_tasks_own():
    async def run():
        async with Episodes(world_of) as episodes:
            root = await episodes.open()
            one = await episodes.act(root, call("ledger_enter", number=1))
            ends = []
            for number in (2, 5):
                child = await episodes.act(one, call("ledger_enter", number=number))
                ends.append(await episodes.act(child, "Done."))
            assert Ledger.running == 1
            return root, ends, episodes.replays

    root, ends, replays = asyncio.run(run())
    assert [message["content"] for message in root.start.messages] == ["Enter numbers.", "Reach 3."]
    names = [tool["function"]["name"] for tool in root.start.tools]
    assert sorted(names) == [f"ledger_{name}" for name in "clock enter fail hang remember".split()]
    answers = [end.path[1][1].messages[0]["content"] for end in ends]
    assert answers == ["ledger: [1, 2]", "ledger: [1, 5]"]
    assert [end.path[-1][1].reward for end in ends] == [1.0, 0.0]
    assert replays == 2  # the tool's, and a turn's without one


@pytest.mark.parametrize("tool", ["ledger_remember", "ledger_clock"])
def test_what_the_state_does_not_hold_is_refused_by_name(tool):
    with pytest.raises(ConfigError, match=f"tool `{tool}` answers differently"):
        play(call("ledger_enter", number=1), call(tool))


def test_bad_calls_are_observations():
    place = play(call("ledger_fail"), call("ledger_enter", number="x"), call("enter"))
    seen = [seen for _, seen in place.path]
    assert all(len(one.errors) == 1 and not one.done for one in seen)
    texts = [one.messages[0]["content"] for one in seen]
    assert "no such account" in texts[0] and "number" in texts[1]
    assert texts[2].startswith(
        "error: LookupError: there is no tool `enter`: the tools are ledger_"
    )


def test_a_tool_that_hangs_is_cut():
    place = play(call("ledger_hang"), tooling=TOOLING._replace(seconds=0.5))
    assert place.path[0][1].cut == ("ledger_hang",)


@contextmanager
def served(kind=MCPServer):
    """A real MCP server over HTTP, whose count is its own."""
    server, counts = kind("counter"), []

    @server.tool()
    def square(number: int) -> int:
        """Square a number."""
        return number * number

    @server.tool()
    def count() -> int:
        """How often this was called."""
        counts.append(1)
        return len(counts)

    app = server.streamable_http_app(json_response=True, stateless_http=True)
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()  # before its server runs: who connects early waits
        running = uvicorn.Server(uvicorn.Config(app, log_level="critical"))
        thread = threading.Thread(target=running.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}/mcp"
        finally:
            running.should_exit = True
            thread.join(20)


def test_a_server_over_http_is_replayed_and_compared():
    async def run(url, tool, **arguments):
        async with Episodes(lambda: world_of(url)) as episodes:
            one = await episodes.act(await episodes.open(), call(tool, **arguments))
            places = [await episodes.act(one, call(tool, **arguments)) for _ in range(2)]
            return [place.path[-1][1].messages[0]["content"] for place in places], episodes.replays

    with served() as url:
        assert asyncio.run(run(url, "ledger_square", number=7)) == (["49", "49"], 1)
        with pytest.raises(ConfigError, match="tool `ledger_count` answers differently"):
            asyncio.run(run(url, "ledger_count"))


class Contained(LedgerTask):
    NEEDS_CONTAINER = True


def test_a_task_that_needs_a_container_is_refused():
    with pytest.raises(ConfigError, match="task 0 can't be searched: it needs a container"):
        VerifiersWorld(Contained(vf.TaskData(idx=0, prompt="?")), TOOLING, vf.AgentConfig())
