"""The embedded problems as a source (`embedded` is their generator)."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from ..config.sections import ProblemsConfig
from ..types import Problem, Task
from . import embedded
from .prompts import SYSTEM_PROMPT
from .scripted_teacher import ScriptedTeacher, spoiled
from .source import Source


class Embedded(Source):
    """The generator as a source: as many problems as are asked for, in `levels` by turns."""

    name = embedded.SOURCE
    endless = True
    levels = tuple(embedded.LEVELS)
    hold_outs = ("questions", "structures")
    demonstration_share = 0.2
    prompt_tokens = 96
    system_prompt = SYSTEM_PROMPT

    def __init__(self, levels: tuple[int, ...] = embedded.DEFAULT_LEVELS, hold_out: str = "questions") -> None:
        self.chosen, self.hold_out = levels, hold_out

    @classmethod
    def open(cls, rest: str, problems: ProblemsConfig, path: str | None) -> Source:
        """See `Source.open`."""
        return cls(problems.levels or embedded.DEFAULT_LEVELS, problems.hold_out)

    def load(self, split: str, count: int, start: int = 0) -> list[Task]:
        """See `Source.load`."""
        structures = split if self.hold_out == "structures" else None
        return embedded.load(split, count, self.chosen, start, structures)

    def scripted_teacher(self, error_rate: float) -> ScriptedTeacher:
        """See `Source.scripted_teacher`."""
        return ScriptedTeacher(error_rate)

    def spoiled(self, step: str, problem: Problem, rng: Random, count: int) -> list[str]:
        """See `Source.spoiled`."""
        return spoiled(step, problem.question, rng, count)

    def vocabulary_texts(self) -> Iterator[str]:
        """See `Source.vocabulary_texts`."""
        return embedded.vocabulary_texts()
