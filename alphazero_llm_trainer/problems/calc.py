"""The embedded problems with a calculator as a tool.

A turn calls `calculate`, or states the answer after `####`, which ends the episode. The share of
turns that call the tool is a metric of the caller's (`Seen.calls`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import replace

from ..types import Problem, Said, StepCheck, Task, ToolCall
from . import embedded
from .calculator import evaluate_expression
from .prompts import CALC_PROMPT
from .source import GeneratedSource
from .worlds import ERROR, ObjectWorld, Tooling

TURNS = 12  # of one episode
RESULT_DIGITS = 6  # of a result that isn't whole


class Calc(GeneratedSource):
    """Generated problems; each has a world."""

    name = "calc"
    worlds = True
    prompt_tokens = 160
    system_prompt = CALC_PROMPT

    def build(self, split: str, index: int, level: int) -> Task:
        """The task number `index` (from 0) of a split and level: the same on every call."""
        task = embedded.build_task(split, index, level)
        name = task.problem.id.replace(embedded.SOURCE, self.name, 1)
        return replace(task, problem=replace(task.problem, id=name, source=self.name))

    def world(self, task: Task, tooling: Tooling) -> CalcWorld:
        """The episode of a task."""
        messages = (
            {"role": "system", "content": self.system_prompt},
            {"role": "user", "content": task.problem.question},
        )
        world = CalcWorld(CalculatorTools(), {}, messages, tooling)
        world.source, world.task = self, task
        return world

    def turns(self, task: Task) -> list[Said]:
        """The student's turns of a demonstration: a call for each step of the worked solution, and
        the answer.
        """
        return [
            Said("", (ToolCall("calculate", {"expression": step.partition(" = ")[0]}),))
            if "=" in step
            else Said(step)
            for step in (task.solution or "").splitlines()
        ]

    def check_step(self, problem: Problem, steps: Sequence[str]) -> StepCheck:
        """Whether the last of `steps` is right as far as a rule can say without gold: None where it
        states something that the rule can't check, `StepCheck.NOTHING` where it states nothing. A
        call is checked by what it answers, and nothing else is.
        """
        return StepCheck.NOTHING

    def vocabulary_texts(self) -> Iterator[str]:
        """Texts with every word of the source, where a small vocabulary covers it; () where none
        does.
        """
        yield from embedded.vocabulary_texts()
        yield f"calculate: 1 + 2\n{ERROR}\n"


class CalculatorTools:
    """The tool."""

    def reset(self) -> None:
        """Begin: nothing was calculated."""

    def calculate(self, expression: str) -> str:
        """Compute an arithmetic expression exactly.

        Args:
            expression: numbers with + - * / and brackets, such as `(12 - 3) * 4`.
        """
        value = evaluate_expression(expression)
        if value is None:
            raise ValueError(f"{expression!r} is no arithmetic expression")
        if value.denominator == 1:
            return str(value)
        return f"{float(value):.{RESULT_DIGITS}f}".rstrip("0")

    def reward(self) -> float:
        """Nothing: the world grades the last turn."""
        return 0.0


class CalcWorld(ObjectWorld):
    """One episode: the last turn's answer is graded as the embedded problems grade it."""

    source: Calc
    task: Task
    said: tuple[str, ...] = ()

    def fork(self) -> CalcWorld:
        """The same episode, apart from this one: the tool has no state."""
        return copy(self)

    def record(self, turn: str, said: Said, messages: Sequence[object]) -> None:
        """Keep a turn and its observation, for rewards that read them."""
        self.said += (turn,)

    def is_over(self) -> bool:
        """Whether a tool ended the episode."""
        return len(self.said) >= TURNS

    async def final_reward(self) -> float:
        """The reward of the episode, from 0 to 1."""
        text = self.tooling.read(self.said[-1]).text
        return float(self.source.grade(text, self.task, strict=True).correct)
