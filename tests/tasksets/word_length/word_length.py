"""How many letters has a word? A single-turn verifiers taskset whose weighted rewards are not all 0
or 1.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Literal

import verifiers.v1 as vf

WORDS = "apple river stone cloud window pencil garden bridge yellow planet rocket silver"
SYSTEM_PROMPT = "Answer with one number."


class WordLengthConfig(vf.TasksetConfig):
    size: int = 120
    needs: Literal["", "tools", "runtime", "turns", "image", "user", "no rewards", "crash"] = ""
    """What makes its tasks more than one prompt with one reply."""
    messages: bool = False
    """Prompts as messages instead of text."""
    two_prompts: bool = False
    """Every other task has another system prompt."""


class WordLengthData(vf.TaskData):
    word: str
    answer: str


class WordLengthState(vf.State):
    finished: bool = False


class WordLengthTask(vf.Task[WordLengthData, WordLengthState, vf.TaskConfig]):
    async def finalize(self, trace: vf.Trace) -> None:
        trace.state.finished = True

    @vf.reward(weight=0.5)
    async def close(self, task: WordLengthData, trace: vf.Trace) -> float:
        """1 over 1 plus how far off the number is: 1, 1/2, 1/3, ..."""
        await asyncio.sleep(0.001)
        return 1.0 / (1.0 + abs(int(task.answer) - number(trace.last_reply)))

    @vf.reward(weight=1.5)
    async def right(self, trace: vf.Trace) -> float:
        """1.0 for the right number, in a conversation of a system prompt, a question and a
        reply.
        """
        assert trace.state.finished and [message.role for message in trace.messages] == [
            "system",
            "user",
            "assistant",
        ]
        return float(number(trace.last_reply) == len(self.data.word))

    @vf.reward(weight=-0.25, priority=1)
    async def shouting(self, trace: vf.Trace) -> float:
        """1.0 for an exclamation mark. Waits on "slow" and fails on "broken"."""
        reply = trace.last_reply
        if "slow" in reply:
            await asyncio.sleep(60)
        if "broken" in reply:
            raise RuntimeError("the grader is out of order")
        return float("!" in reply)

    @vf.metric
    async def length(self, trace: vf.Trace) -> float:
        return float(len(trace.last_reply))


class InRuntime(WordLengthTask):
    @vf.reward
    async def tests_pass(self, runtime: vf.Runtime) -> float:
        return 0.0


class ManyTurns(WordLengthTask):
    @vf.stop
    async def said_enough(self, trace: vf.Trace) -> bool:
        return trace.num_turns > 3


class Dictionary(vf.Toolset):
    @vf.tool
    async def look_up(self, word: str) -> str:
        """The word."""
        return word


class WithTools(WordLengthTask):
    @classmethod
    def toolsets(cls, config: vf.TaskConfig) -> list[vf.Toolset]:
        return [Dictionary(vf.ToolsetConfig())]


class Bare(vf.Task[WordLengthData, vf.State, vf.TaskConfig]):
    """No rewards."""


KINDS = {
    "tools": WithTools,
    "runtime": InRuntime,
    "turns": ManyTurns,
    "no rewards": Bare,
}


class WordLengthTaskset(vf.Taskset[WordLengthTask, WordLengthConfig]):
    def load(self) -> Iterator[vf.Task]:
        config, words = self.config, WORDS.split()
        if config.needs == "crash":
            raise OSError("no such table")
        for i in range(config.size):
            word = words[i % len(words)] + "s" * (i // len(words))
            question = f"How many letters has {word}?"
            system = "Be brief." if config.two_prompts and i % 2 else SYSTEM_PROMPT
            prompt: str | list[vf.Message] | None = question
            if config.messages:
                prompt = [vf.SystemMessage(content=system), vf.UserMessage(content=question)]
            if config.needs == "user":
                prompt = None
            yield KINDS.get(config.needs, WordLengthTask)(
                WordLengthData(
                    prompt=prompt,
                    system_prompt=None if config.messages else system,
                    image="python:3.11" if config.needs == "image" else None,
                    timeout=vf.TaskTimeout(scoring=0.3),
                    word=word,
                    answer=str(len(word)),
                )
            )


def number(reply: str) -> int:
    """The last word as a number; -1 where it is none."""
    last = reply.rpartition(" ")[2].strip(".!")
    return int(last) if last.isdigit() else -1


__all__ = ["WordLengthTaskset"]
