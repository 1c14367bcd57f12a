"""Accuracy of one response a problem: greedy by default, sampled where a temperature is given."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from ..config.sections import SearchConfig
from ..engine.protocol import GenerateRequest, Limits
from ..errors import RequestError
from ..grading.graders import Grade
from ..live import Progress, StopAsked, run_until
from ..mcts.seeds import derive_seed
from ..policy.student import Student
from ..problems.registry import source_of
from ..rewards.custom import CustomReward
from ..rewards.turns import TurnPolicy, steps_for_tasks
from ..types import Task, drawn_mask, text_of

BATCH = 256  # problems put to the engine together


@dataclass(slots=True)
class Answers:
    """`correct[i][j]` says whether sample j of problem i is right; `responses` are their texts.

    `skipped` counts problems whose prompt doesn't fit into the context: they count as wrong.
    `grades` are each problem's first sample's in [0, 1], and `rewards` what the user's own reward
    gave it: None where that failed, empty without one. `partial`: the source grades with partial
    credit.
    """

    correct: list[list[bool]]
    responses: list[list[str]]
    tokens: int
    seconds: float
    skipped: int
    grades: list[float] = field(default_factory=list)
    rewards: list[float | None] = field(default_factory=list)
    partial: bool = False

    @property
    def first(self) -> list[bool]:
        """Each problem's first sample."""
        return [row[0] for row in self.correct]


@dataclass(frozen=True, slots=True)
class GreedyResponse:
    """A response's text, its drawn tokens, whether a limit cut it, and in a world its grade."""

    text: str
    tokens: int
    cut: bool
    grade: Grade | None = None


def answer_tasks(
    student: Student,
    tasks: Sequence[Task],
    *,
    max_tokens: int,
    n: int = 1,
    temperature: float = 0.0,
    seed: int = 0,
    progress: Progress | None = None,
    doing: str = "answering",
    custom: CustomReward | None = None,
    stop: StopAsked | None = None,
    settings: SearchConfig | None = None,
) -> Answers:
    """Answer `tasks` with `n` responses each by the student's weights as they are now, and grade
    them against gold, and by `custom`: the one way in which training measures a student. Runs its
    own event loop, and leaves the engine asleep.

    Of a response that was cut at `max_tokens` only a `####` line is read. In worlds the student
    plays episodes under `settings`, and a response is right that earns 1.

    Where a `progress` is given, the problems are counted there as what it is `doing`. Without
    `stop` nothing ends it.

    Raises RewardError where `custom` fails for every response, StoppedError where `stop` says so.
    """
    progress = progress if progress is not None else Progress(quiet=True)
    lead, engine = student.lead(), student.engine
    student.model.eval()
    engine.set_policy(None, engine.version)
    if tasks:
        from ..policy.backend import check_update

        check_update(engine, student.model, student.prompt_ids(tasks[0].problem.question))
    answers, began = Answers([], [], 0, 0.0, 0), time.perf_counter()

    settings = SearchConfig() if settings is None else settings
    policy = steps_for_tasks(student, settings, tasks)
    turns = policy if isinstance(policy, TurnPolicy) else None

    async def play(turns: TurnPolicy, task: Task, seed: int) -> list[GreedyResponse]:
        problem, limits = task.problem, Limits(settings.max_depth, max_tokens)
        async with turns.episode(problem):
            made, _ = await turns.continuations(problem, (), n, seed, limits, temperature)
            texts = [text_of(one.steps) for one in made]
            return [
                GreedyResponse(
                    text, sum(drawn_mask(one.steps)), one.cut, turns.grade(problem, text)
                )
                for text, one in zip(texts, made, strict=True)
            ]

    async def generate(task: Task, seed: int) -> list[GreedyResponse]:
        request = GenerateRequest(
            student.prompt_ids(task.problem.question),
            n=n,
            max_new_tokens=max_tokens,
            temperature=temperature,
            seed=seed,
        )
        [generated] = await engine.generate([request])
        return [
            GreedyResponse(
                lead + student.decode(one.token_ids), len(one.token_ids), one.finish == "length"
            )
            for one in generated
        ]

    async def respond(task: Task) -> list[GreedyResponse]:
        own = derive_seed(seed, task.problem.id)
        try:
            made = await (generate(task, own) if turns is None else play(turns, task, own))
        except RequestError:
            made = []
        progress.advance(tokens=sum(response.tokens for response in made))
        return made

    async def respond_to_all() -> None:
        for start in range(0, len(tasks), BATCH):
            batch = tasks[start : start + BATCH]
            responses = await asyncio.gather(*map(respond, batch))
            for task, made in zip(batch, responses, strict=True):
                texts = [response.text for response in made]
                answers.skipped += not texts
                answers.responses.append(texts)
                # A response that was cut off has no answer unless it marked one: its last number is
                # an accident.
                grades = [
                    response.grade
                    or await source_of(task.problem).grade_async(
                        response.text, task, strict=response.cut
                    )
                    for response in made
                ]
                answers.correct.append([grade.correct for grade in grades] or [False] * n)
                answers.grades.append(grades[0].score if grades else 0.0)
                answers.partial |= any(grade.partial is not None for grade in grades)
                answers.tokens += sum(response.tokens for response in made)
        if custom is not None:
            answers.rewards = await custom.scores(
                tasks, [texts[0] if texts else None for texts in answers.responses]
            )

    held = "after these problems" if stop is None else ""
    if tasks:
        with progress.within(len(tasks), "problem", doing, held):
            run_until(stop or (lambda: False), respond_to_all())
    answers.seconds = time.perf_counter() - began
    engine.reset_prefix_cache()
    engine.sleep()  # what comes next may need the memory
    return answers
