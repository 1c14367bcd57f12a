"""Accuracy of one response a problem: greedy by default, sampled where a temperature is given."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass

from ..engine.protocol import GenerateRequest
from ..errors import RequestError
from ..policy.student import Student
from ..problems.grading import grade_async
from ..search.driver import derive_seed
from ..types import Task

BATCH = 256  # problems put to the engine together


@dataclass(slots=True)
class Answers:
    """`correct[i][j]` says whether sample j of problem i is right; `responses` are their texts.

    `skipped` counts problems whose prompt doesn't fit into the context: they count as wrong.
    """

    correct: list[list[bool]]
    responses: list[list[str]]
    tokens: int
    seconds: float
    skipped: int

    @property
    def first(self) -> list[bool]:
        """Each problem's first sample."""
        return [row[0] for row in self.correct]


def answer(
    student: Student, tasks: Sequence[Task], *, max_tokens: int, n: int = 1, temperature: float = 0.0, seed: int = 0
) -> Answers:
    """Answer `tasks` with `n` responses each and grade them against gold. Runs its own event loop."""
    began = time.perf_counter()
    answers = asyncio.run(_answer(student, tasks, max_tokens, n, temperature, seed))
    answers.seconds = time.perf_counter() - began
    return answers


async def _answer(
    student: Student, tasks: Sequence[Task], max_tokens: int, n: int, temperature: float, seed: int
) -> Answers:
    answers = Answers([], [], 0, 0.0, 0)
    for start in range(0, len(tasks), BATCH):
        for texts, tokens in await asyncio.gather(
            *(_respond(student, task, max_tokens, n, temperature, seed) for task in tasks[start : start + BATCH])
        ):
            task = tasks[len(answers.responses)]
            answers.skipped += not texts
            answers.responses.append(texts)
            grades = [await grade_async(task.problem.source, text, task.gold) for text in texts]
            answers.correct.append([grade.correct for grade in grades] or [False] * n)
            answers.tokens += tokens
    return answers


async def _respond(
    student: Student, task: Task, max_tokens: int, n: int, temperature: float, seed: int
) -> tuple[list[str], int]:
    request = GenerateRequest(
        student.prompt_ids(task.problem.question),
        n=n,
        max_new_tokens=max_tokens,
        temperature=temperature,
        seed=derive_seed(seed, task.problem.id),
    )
    try:
        [generated] = await student.engine.generate([request])
    except RequestError:
        return [], 0
    return [student.decode(one.token_ids) for one in generated], sum(len(one.token_ids) for one in generated)
