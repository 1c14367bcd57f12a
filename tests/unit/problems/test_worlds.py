"""Worlds: the ladder of forks, bad worlds, and the two built-in sources with exact values."""

import asyncio
import itertools
import json
import subprocess
import sys
import threading
import time
from typing import ClassVar

import pytest
from scripted import call, walk, write_calls
from transformers.utils import get_json_schema

from alphazero_llm_trainer.chat.tool_calls import FORMS, read_calls
from alphazero_llm_trainer.errors import ConfigError
from alphazero_llm_trainer.problems import calc, hidden
from alphazero_llm_trainer.problems.worlds import (
    Episodes,
    ObjectWorld,
    Seen,
    Start,
    Tooling,
    tool_schema,
)

HERMES = FORMS["hermes"]
QUESTION = ({"role": "user", "content": "Reach 3."},)
TOOLING = Tooling(lambda turn: read_calls(turn, HERMES), seconds=5.0)


class Counter:
    """A world that keeps its state in itself."""

    def reset(self, goal=3, **row):
        self.count, self.goal, self.seen = 0, goal, row
        return f" Goal {goal}."

    def add(self, number: int, twice: bool = False) -> str:
        """Add to the count.

        Args:
            number: What is added.
            twice: Whether it is added twice.
        """
        self.count += number * (2 if twice else 1)
        return f"count {self.count}"

    def fail(self) -> str:
        """Raise."""
        raise KeyError("no such row")

    def leave(self) -> str:
        """Call `exit`."""
        sys.exit(3)

    def stop_iterating(self) -> str:
        """Raise StopIteration."""
        return next(iter(()))

    def hang(self) -> str:
        """Never answer."""
        self.count = -1
        threading.Event().wait()

    async def nap(self) -> str:
        """Wait for long, async."""
        await asyncio.sleep(3600)

    def shout(self, letters: int) -> str:
        """A huge answer."""
        return "é" * letters

    def _hidden(self):
        raise AssertionError("no tool")

    def get_reward(self):
        return float(self.count == self.goal)


class Clock(Counter):
    def clock(self) -> int:
        """The time."""
        return time.time_ns()


class Shared(Counter):
    """Its count is the process's, so a copy isn't apart."""

    counts = itertools.count()

    def take(self) -> int:
        """The next number."""
        return next(Shared.counts)


class Listed(Counter):
    """What a reset clears, copies share: a replay alone doesn't show it."""

    rows: ClassVar[list] = []

    def reset(self, **row):
        Listed.rows.clear()
        return super().reset(**row)

    def append(self) -> int:
        """One row more."""
        Listed.rows.append(1)
        return len(Listed.rows)


class Locked(Counter):
    """It can't be copied, so it is replayed."""

    def reset(self, **row):
        self.lock = threading.Lock()
        return super().reset(**row)


class LockedClock(Locked, Clock):
    pass


class Forked(Locked):
    def fork(self):
        copy = type(self)()
        copy.__dict__.update(self.__dict__)
        return copy

    def clock(self) -> int:
        """The time; a fork is trusted."""
        return time.time_ns()


class Process(Counter):
    """A tool in a process of its own, which ends with the world."""

    started: ClassVar[list] = []

    def reset(self, **row):
        self.process = subprocess.Popen(
            [sys.executable, "-uc", "n = 0\nwhile 1: n += int(input()); print(n)"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        Process.started.append(self.process)
        return super().reset(**row)

    def ask(self, number: int) -> str:
        """Add in the process."""
        self.process.stdin.write(f"{number}\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()

    def close(self):
        self.process.kill()
        self.process.communicate()


def world_of(kind, tooling=TOOLING, **row):
    return ObjectWorld(kind(), row, QUESTION, tooling)


def play(kind, *turns, tooling=TOOLING, **row):
    """The place after turns in one line of acts."""
    return walk(lambda: world_of(kind, tooling, **row), turns)


def texts(place):
    return [message["content"] for _, seen in place.path for message in seen.messages]


@pytest.mark.parametrize(
    ("kind", "replayed"), [(Counter, 1), (Locked, 1), (Forked, 0), (Process, 1)]
)
def test_siblings_start_from_one_state(kind, replayed):
    """However a world is forked, what one child did doesn't show in the other."""
    tool = "ask" if kind is Process else "add"

    async def run():
        async with Episodes(lambda: world_of(kind)) as episodes:
            root = await episodes.open()
            one = await episodes.act(root, call(tool, number=1))
            children = [await episodes.act(one, call(tool, number=n)) for n in (2, 5)]
            again = await episodes.act(children[0], call(tool, number=4))
            return children, again, episodes

    children, again, episodes = asyncio.run(run())
    answer = "{}" if kind is Process else "count {}"
    assert [texts(child)[-1] for child in children] == [answer.format(n) for n in (3, 6)]
    assert texts(again) == [answer.format(n) for n in (1, 3, 7)]
    assert episodes.replays == replayed
    assert all(process.poll() is not None for process in Process.started)


@pytest.mark.parametrize(("kind", "tool"), [(Clock, "clock"), (Shared, "take"), (Listed, "append")])
def test_a_copy_that_answers_differently_is_refused_by_its_tool(kind, tool):
    with pytest.raises(ConfigError, match=f"^tool `{tool}` answers differently: search needs a wo"):
        play(kind, call("add", number=1), call(tool))


def test_a_replay_that_answers_differently_is_refused_by_its_tool():
    async def run():
        async with Episodes(lambda: world_of(LockedClock)) as episodes:
            one = await episodes.act(await episodes.open(), call("clock"))
            await episodes.act(one, "done")  # the world that stands there needs no replay
            await episodes.act(one, call("add", number=1))

    with pytest.raises(ConfigError, match=r"^tool `clock` answers differently"):
        asyncio.run(run())


def test_a_fork_of_the_worlds_own_is_trusted():
    place, episodes = play(Forked, call("clock"), call("clock"), call("add", number=3), "done")
    assert episodes.replays == 0 and place.path[-1][1].reward == 1.0


def test_a_tool_is_checked_once_in_a_run():
    checked = set()

    async def run():
        for _ in range(3):
            async with Episodes(lambda: world_of(Counter), checked) as episodes:
                place = await episodes.open()
                for number in (1, 2):
                    place = await episodes.act(place, call("add", number=number))
            yield episodes.replays

    async def replays():
        return [count async for count in run()]

    assert asyncio.run(replays()) == [1, 0, 0] and checked == {"add"}


def test_an_episode_as_trl_has_it():
    """The text of `reset` follows the question, a turn without a call ends the episode, and
    `get_reward` says what it is worth.
    """
    turn = "I add.\n" + call("add", number=1, twice=True) + "\n" + call("add", number=1)
    place, _ = play(Counter, turn, "It is 3.", goal=3, colour="red")
    assert place.start.messages == ({"role": "user", "content": "Reach 3. Goal 3."},)
    (_, first), (_, last) = place.path
    assert first == Seen(
        (
            {"role": "tool", "name": "add", "content": "count 2"},
            {"role": "tool", "name": "add", "content": "count 3"},
        ),
        calls=("add", "add"),
    )
    assert last == Seen((), True, 1.0)


def test_schemas_are_those_of_transformers():
    theirs = get_json_schema(Counter().add)
    assert theirs["function"].pop("return") == {"type": "string"}  # no part of a server's schema
    assert tool_schema(Counter().add) == theirs
    place, _ = play(Counter)
    names = [tool["function"]["name"] for tool in place.start.tools]
    assert names == ["add", "fail", "hang", "leave", "nap", "shout", "stop_iterating"]


@pytest.mark.parametrize(
    ("turn", "content"),
    [
        (call("fail"), "error: KeyError: 'no such row'"),
        (call("leave"), "error: RuntimeError: SystemExit: 3"),
        (call("stop_iterating"), "error: RuntimeError: StopIteration: "),
        (call("hang"), "error: `hang` gave no answer within 1 s"),
        (call("nap"), "error: `nap` gave no answer within 1 s"),
        (call("_hidden"), "error: LookupError: there is no tool `_hidden`: the tools are add, "),
        (call("reset"), "error: LookupError: there is no tool `reset`"),
        (call("add"), "error: TypeError: "),
        ("<tool_call>{add}</tool_call>", "error: the call is no JSON ("),
        ('<tool_call>{"name": "add"', "error: the call has no </tool_call>"),
    ],
)
def test_bad_calls_are_observations_and_counted(turn, content):
    tooling = TOOLING._replace(seconds=1.0)
    place, _ = play(Counter, call("add", number=1), turn, call("add", number=2), tooling=tooling)
    bad = place.path[1][1]
    assert bad.messages[0]["content"].startswith(content)
    assert len(bad.errors) == 1 and not bad.done
    assert bool(bad.cut) == ("no answer within" in content)
    assert texts(place)[-1] == "count 3"  # a cut call left no trace


def test_a_cut_call_ends_a_world_whose_state_is_unknown_then():
    place, _ = play(Locked, call("hang"), tooling=TOOLING._replace(seconds=0.2))
    seen = place.path[-1][1]
    assert seen.done and seen.reward is None and seen.cut == ("hang",)
    assert seen.failure == "`hang` gave no answer within 0.2 s"


@pytest.mark.parametrize(
    ("count", "kept"), [(len, 10), (lambda text: len(text.encode()), 5), (lambda text: 0, 2560)]
)
def test_a_huge_answer_is_cut_with_a_mark(count, kept):
    tooling = TOOLING._replace(tokens=10, count=count)
    place, _ = play(Counter, call("shout", letters=1_000_000), tooling=tooling)
    assert texts(place) == ["é" * kept + f"\n[cut: {1_000_000 - kept:,} more characters]"]


class Dying:
    """A world of its own protocol that dies, at a turn or on its way back."""

    opened = 0

    def __init__(self, last):
        self.last = last

    async def open(self):
        Dying.opened += 1
        if Dying.opened > self.last:
            raise ConnectionError("the server is gone")
        return Start(QUESTION)

    async def act(self, turn):
        if turn == "die":
            raise ConnectionError("the server is gone")
        if turn == "hang":
            await asyncio.sleep(3600)
        return Seen(({"role": "user", "content": turn},))


@pytest.mark.parametrize(
    ("turn", "why"), [("die", "ConnectionError: the server is gone"), ("hang", "TimeoutError")]
)
def test_a_world_that_dies_is_a_recorded_failure(turn, why):
    async def run():
        async with Episodes(lambda: Dying(99), seconds=0.2) as episodes:
            place = await episodes.act(await episodes.open(), "live")
            return await episodes.act(place, turn)

    seen = asyncio.run(run()).path[-1][1]
    assert seen.done and seen.reward is None and seen.failure == f"the world died ({why})"


def test_a_world_that_does_not_open_again_is_a_recorded_failure():
    Dying.opened = 0

    async def run():
        async with Episodes(lambda: Dying(1)) as episodes:
            root = await episodes.open()
            return [await episodes.act(root, "live") for _ in range(2)]

    alive, dead = asyncio.run(run())
    assert alive.path[-1][1].failure is None
    assert dead.path[-1][1].failure == "the world didn't open again (the server is gone)"


class Bad(Counter):
    def get_reward(self):
        return 3.0


def test_a_reward_beyond_its_range_and_a_class_that_is_no_world():
    place, _ = play(Bad, "done")
    assert "its reward is 3.0: rewards are from 0 to 1" in place.path[-1][1].failure
    with pytest.raises(ConfigError, match="dict is no world: give it a method `reset`"):
        world_of(dict)


# -- built-in sources ------------------------------------------------------------------------------


def episode(source, task, turns):
    return walk(lambda: source.world(task, TOOLING), turns)[0]


@pytest.mark.parametrize("source", [hidden.Hidden((1, 2)), calc.Calc((1, 4))])
def test_demonstrations_earn_their_reward(source):
    for task in source.demonstrations(20):
        turns = [write_calls(said, HERMES) for said in source.turns(task)]
        place = episode(source, task, turns)
        *before, last = [seen for _, seen in place.path]
        assert last.done and last.reward == 1.0
        assert not any(seen.done or seen.errors for seen in before)
        assert source.world(task, TOOLING)
    assert source.load("train", 5) == source.load("train", 5)


def test_hidden_ends_with_its_last_flip():
    source = hidden.Hidden((1,))
    [task] = source.load("train", 1)
    row, flips = hidden.read_row(task.problem.question)
    place = episode(source, task, ["x", *["2"] * (flips - 1)])
    assert place.path[0][1].errors == ("flip",) and place.path[-1][1].reward == 0.0
    assert place.path[1][1].messages[0]["content"] == row[1] + row[0] + row[2:]


def test_hidden_grades_and_checks_moves():
    source = hidden.Hidden((1,))
    [task] = source.demonstrations(1)
    moves = task.solution.split("\n")
    assert source.grade(task.solution, task).correct
    assert not source.grade(f"{task.solution}\n2", task).correct
    assert not source.grade("", task).correct
    assert all(source.check_step(task.problem, moves[: n + 1]) for n in range(len(moves)))
    assert not source.check_step(task.problem, [*moves, "2"])
    assert not source.check_step(task.problem, ["9"])
    row, goal = hidden.read_row(task.problem.question)[0], "12345"
    for stated, answer in ((goal, goal), (f"{goal}\n", goal), (row, None), ("1", None), ("", None)):
        assert source.final_answer(stated) == answer


@pytest.mark.parametrize(
    ("expression", "answer"),
    [("(12 - 3) * 4", "36"), ("7 / 2", "3.5"), ("5", "5"), ("1 / 3", "0.333333")],
)
def test_the_calculator(expression, answer):
    assert calc.CalculatorTools().calculate(expression) == answer


def test_the_calculator_refuses_what_is_no_arithmetic():
    source = calc.Calc((1,))
    [task] = source.load("train", 1)
    for expression in ("__import__('os')", "1 / 0", "2 ** 9 ** 9", "x + 1"):
        place = episode(source, task, [call("calculate", expression=expression)])
        assert "is no arithmetic expression" in texts(place)[0]
        assert place.path[0][1].errors == ("calculate",)


def test_the_calculator_is_a_function_of_json():
    source = calc.Calc((2,))
    [task] = source.load("train", 1)
    assert json.loads(json.dumps(episode(source, task, []).start.tools[0]))["type"] == "function"
