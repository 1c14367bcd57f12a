"""The embedded problems as a source (`embedded` is their generator)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random

from ..config.sections import ProblemsConfig
from ..errors import DataError
from ..types import Problem, Task
from . import embedded
from .calculator import consistent
from .prompts import SYSTEM_PROMPT
from .scripted_teacher import spoiled
from .source import Source, check_alone


class Embedded(Source):
    """The generator as a source: as many problems as are asked for, in `levels` by turns."""

    name = embedded.SOURCE
    endless = True
    levels = tuple(embedded.LEVELS)
    demonstration_share = 0.2
    prompt_tokens = 96
    answered_by_steps = True
    system_prompt = SYSTEM_PROMPT

    def __init__(self, levels: tuple[int, ...] = embedded.DEFAULT_LEVELS) -> None:
        self.chosen = levels

    @classmethod
    def open(cls, rest: str, problems: ProblemsConfig, path: str | None) -> Source:
        """See `Source.open`."""
        check_alone(cls.name, rest, problems)
        return cls(problems.levels or embedded.DEFAULT_LEVELS)

    def load(self, split: str, count: int, start: int = 0) -> list[Task]:
        """See `Source.load`."""
        return embedded.load(split, count, self.chosen, start)

    def check_step(self, problem: Problem, steps: Sequence[str]) -> bool:
        """See `Source.check_step`: the equations of the step are true."""
        return consistent(steps[-1])

    def spoiled(self, step: str, problem: Problem, rng: Random, count: int) -> list[str]:
        """See `Source.spoiled`."""
        return spoiled(step, problem.question, rng, count)

    def vocabulary_texts(self) -> Iterator[str]:
        """See `Source.vocabulary_texts`."""
        return embedded.vocabulary_texts()

    def split_of(self, task_id: str, question: str, solution: str | None) -> str | None:
        """See `Source.split_of`. Raises DataError where the id's problem has another question."""
        task = embedded.from_id(task_id)
        if task.problem.question != question:
            raise DataError(f"another question than {task_id} is, {question!r}")
        return embedded.split_of(solution or task.solution or "")
