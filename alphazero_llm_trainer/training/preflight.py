"""A run's pre-flight: a few of its questions are answered before it begins, which says what to expect of it.

What is sampled is thrown away: the run's random streams, trees, journal and weights are those without it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass

from ..config.load import Config
from ..engine.protocol import Generated, GenerateRequest
from ..errors import RequestError, TrainingError
from ..live import Progress, duration
from ..mcts.driver import derive_seed
from ..policy.student import Student
from ..problems.source import source_of
from ..types import Task
from .size import RunSize, rounded

SAMPLES = 4  # responses to a question


@dataclass(frozen=True, slots=True)
class Preflight:
    """What the sampled responses to a few questions were.

    `right` counts each question's right responses, and is empty where nothing knows what is right; `unstated` counts
    the responses that state no answer as training reads them, `cut` those that `search.max_tokens` cut.
    """

    right: list[int]
    responses: int
    unstated: int
    cut: int
    tokens: int
    seconds: float

    def line(self, size: RunSize) -> str:
        """What was found, and what it says of a run of that size."""
        found = f"{sum(self.right)} of {self.responses} right, " if self.right else ""
        rate, each = self.tokens / self.seconds, self.tokens / self.responses
        # Jeffreys' estimates (k + 1/2) / (n + 1): a few samples make no question certain.
        shares = [(right + 0.5) / (SAMPLES + 1) for right in self.right]
        searched, evaluated = size.expected_tokens(each, shares), size.evaluated_answers * each
        return (
            f"pre-flight, {self.responses} responses: {found}{self.unstated} without an answer, {self.cut} cut at"
            f" {size.config.search.max_tokens} tokens, {each:,.0f} tokens each, {rate:,.0f} tokens a second\n"
            f"to expect: about {rounded(searched)} tokens sampled in search, {rounded(evaluated)} in evaluation:"
            f" {duration((searched + evaluated) / rate)} at that rate, and updates on top"
        )

    def check(self, config: Config) -> None:
        """Raise TrainingError where a run would learn nothing: no prompt fits, or nothing is right, and nothing states an
        answer or all is cut.

        A reward of the user's own may find more than that: such a run goes on.
        """
        if not self.responses:
            raise TrainingError(
                f"pre-flight: no prompt fits into engine.max_context, which is {config.engine.max_context}: raise it"
            )
        if any(self.right) or not self.right or config.rewards.own:
            return
        if self.cut == self.responses:
            why = f"all were cut at search.max_tokens, which is {config.search.max_tokens}: raise it"
        elif self.unstated == self.responses:
            why = (
                "none states an answer: say how to with problems.system_prompt, show worked solutions with problems.shots,"
                " or warm the student up with `sft`"
            )
        else:
            return
        raise TrainingError(
            f"pre-flight: of {self.responses} responses to {len(self.right)} questions none is right and {why};"
            " or go on all the same with train.preflight=0"
        )


def preflight(student: Student, config: Config, tasks: Sequence[Task], progress: Progress) -> Preflight:
    """Sample `SAMPLES` responses to each task as training does, and grade them by gold alone."""
    requests = [
        GenerateRequest(
            student.prompt_ids(task.problem.question),
            n=SAMPLES,
            max_new_tokens=config.search.max_tokens,
            temperature=config.search.temperature,
            seed=derive_seed(config.seed, "preflight", task.problem.id),
        )
        for task in tasks
    ]
    found: list[tuple[Task, str, Generated]] = []
    began = time.perf_counter()

    async def respond(task: Task, request: GenerateRequest) -> None:
        try:
            [generated] = await student.engine.generate([request])
        except RequestError:  # its prompt is too long, which the run records
            return
        found.extend((task, student.decode(one.token_ids), one) for one in generated)

    async def respond_to_all() -> list[bool]:
        await asyncio.gather(*map(respond, tasks, requests))
        grades = [
            await source_of(task.problem).grade_async(text, task, strict=one.finish == "length")
            for task, text, one in found
            if task.gold or source_of(task.problem).gold_free
        ]
        return [grade.correct for grade in grades]

    progress.wait(f"pre-flight, {len(tasks) * SAMPLES} responses")
    try:
        right = asyncio.run(respond_to_all())
    finally:
        progress.stop()
        student.engine.reset_prefix_cache()
        student.engine.sleep()
    seconds = max(time.perf_counter() - began, 1e-9)
    return Preflight(
        [sum(right[at : at + SAMPLES]) for at in range(0, len(right), SAMPLES)],
        len(found),
        sum(
            source_of(task.problem).final_answer(text, strict=one.finish == "length") is None
            for task, text, one in found
        ),
        sum(one.finish == "length" for _, _, one in found),
        sum(len(one.token_ids) for _, _, one in found),
        seconds,
    )
