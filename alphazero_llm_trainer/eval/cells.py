"""Cells of the comparison: one method with one budget over all problems of one benchmark."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import TypeVar

from ..engine.protocol import Limits
from ..errors import RequestError
from ..mcts.seeds import derive_seed
from ..mcts.waiting import together
from ..problems.grading import Grade
from ..problems.load import rows_hash
from ..problems.source import source_of
from ..rewards.custom import CustomReward
from ..types import Task
from .attempt import Answered, MethodContext, chain_of
from .methods import answered
from .metrics import repeats

SAMPLES = "samples"
NO_ANSWER, TOO_LONG = "no answer", "too long"  # nothing to grade: the method has none; the prompt doesn't fit

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Benchmark:
    """A named set of tasks."""

    name: str
    tasks: Sequence[Task]

    @property
    def data_hash(self) -> str:
        return rows_hash(self.tasks)


@dataclass(slots=True)
class Cell:
    """What a method did on a benchmark with a budget.

    `outcomes` has a 1 (correct) or 0 a problem; `verdicts` and `ended_by` count problems; `tokens` are sampled and
    scored ones of each problem, `groups` which problems repeat each other (`metrics.repeats`); the other figures are sums
    over problems, `f1` of HotpotQA's alone, `seconds` wall-clock. `unjudged` counts the answers of which the verifier could
    check no step. `rewards` are what the user's own reward gave each response (0 where there is none, None where it
    failed); empty without one. Without `gold` no problem has an answer to be compared with, and outcomes say nothing.

    The cell SAMPLES has instead `correct[i][j]` of the independent sample j of problem i, and its answer's key (None: none);
    its budget is their number.
    """

    benchmark: str
    method: str
    budget: int
    outcomes: str = ""
    verdicts: dict[str, int] = field(default_factory=dict)
    ended_by: dict[str, int] = field(default_factory=dict)
    tokens: list[int] = field(default_factory=list)
    sampled_tokens: int = 0
    scored_tokens: int = 0
    cached_tokens: int = 0
    calls: int = 0
    seconds: float = 0.0
    f1: float | None = None
    groups: list[int] = field(default_factory=list)
    rewards: list[float | None] = field(default_factory=list)
    gold: bool = True
    unjudged: int = 0
    correct: list[list[bool]] = field(default_factory=list)
    answers: list[list[str | None]] = field(default_factory=list)

    @property
    def distinct(self) -> int:
        """How many different problems there are."""
        return len(set(self.groups)) or len(self.outcomes)

    @property
    def right(self) -> list[float]:
        """1.0 or 0.0 a problem."""
        return [float(outcome) for outcome in self.outcomes]


async def run_cell(
    sampler: MethodContext,
    benchmark: Benchmark,
    method: str,
    budget: int,
    tell: Callable[[int], None],
    custom: CustomReward | None = None,
) -> Cell:
    """All problems of `benchmark` by `method`; `tell(sampled tokens)` after each. Raises RewardError where `custom`
    fails for every response.

    Every method sees the same seeds. The policy's cache is emptied first, so that no method lives on another one's.
    """
    sampler.student.engine.reset_prefix_cache()
    began = time.perf_counter()

    async def one(task: Task) -> Answered:
        seed = derive_seed(sampler.config.seed, task.problem.id)
        found = await answered(method, sampler, task.problem, seed, budget)
        tell(found.cost.sampled_tokens)
        return found

    found = await each(sampler, one, benchmark.tasks)
    cell = Cell(benchmark.name, method, budget, seconds=time.perf_counter() - began)
    grades = await graded([answer.response for answer in found], benchmark.tasks)
    verdicts = [
        TOO_LONG if answer.ended_by == TOO_LONG else NO_ANSWER if grade is None else str(grade.verdict)
        for answer, grade in zip(found, grades, strict=True)
    ]
    cell.outcomes = "".join("1" if grade is not None and grade.correct else "0" for grade in grades)
    cell.verdicts, cell.ended_by = dict(Counter(verdicts)), dict(Counter(answer.ended_by for answer in found))
    f1 = [grade.f1 for grade in grades if grade is not None and grade.f1 is not None]
    cell.f1 = sum(f1) if f1 else None
    cell.gold = any(task.gold.strip() or source_of(task.problem).gold_free for task in benchmark.tasks)
    cell.tokens, cell.groups = [answer.tokens for answer in found], repeats(benchmark.tasks)
    if custom is not None:
        cell.rewards = await custom.scores(benchmark.tasks, [answer.response for answer in found])
    for name in ("sampled_tokens", "scored_tokens", "cached_tokens", "calls"):
        setattr(cell, name, sum(getattr(answer.cost, name) for answer in found))
    cell.unjudged = sum(answer.unjudged for answer in found)
    return cell


async def run_samples(
    sampler: MethodContext,
    benchmark: Benchmark,
    samples: int,
    tell: Callable[[int], None],
) -> Cell:
    """`samples` whole responses at T = 1 to each problem, without a budget: for pass@k and maj@k."""
    sampler.student.engine.reset_prefix_cache()
    began = time.perf_counter()
    limits = Limits(sampler.settings.max_depth, sampler.settings.max_tokens)
    cell = Cell(benchmark.name, SAMPLES, samples)

    async def one(task: Task) -> list[str | None]:
        seed = derive_seed(sampler.config.seed, task.problem.id, "samples")
        try:
            found, cost = await sampler.policy.continuations(task.problem, [], samples, seed, limits)
        except RequestError:
            tell(0)
            return [None] * samples
        cell.sampled_tokens += cost.sampled_tokens
        tell(cost.sampled_tokens)
        chains = [chain_of(continuation.steps, continuation.ended, continuation.cut) for continuation in found]
        source = source_of(task.problem)
        return [
            chain.text if chain.whole or source.final_answer(chain.text, strict=True) is not None else None
            for chain in chains
        ]

    texts = await each(sampler, one, benchmark.tasks)
    repeated = [task for task in benchmark.tasks for _ in range(samples)]
    grades = iter(await graded([text for row in texts for text in row], repeated))
    for row, task in zip(texts, benchmark.tasks, strict=True):
        cell.correct.append([grade is not None and grade.correct for grade in islice(grades, samples)])
        keys = [None if text is None else source_of(task.problem).vote_key(text) for text in row]
        cell.answers.append([key or None for key in keys])
    cell.seconds = time.perf_counter() - began
    return cell


async def graded(responses: Sequence[str | None], tasks: Sequence[Task]) -> list[Grade | None]:
    """The grade of each task's response; None where there is none. The one place here that reads gold answers."""
    grades: list[Grade | None] = [None] * len(tasks)
    by_source: dict[str, list[int]] = {}
    for i, task in enumerate(tasks):
        if responses[i] is not None:
            by_source.setdefault(task.problem.source, []).append(i)
    for places in by_source.values():
        source = source_of(tasks[places[0]].problem)
        of_source = await source.grade_all([(responses[i] or "", tasks[i]) for i in places])
        for i, grade in zip(places, of_source, strict=True):
            grades[i] = grade
    return grades


async def each(sampler: MethodContext, work: Callable[[Task], Awaitable[T]], tasks: Sequence[Task]) -> list[T]:
    """`work` of all tasks in order, `search.concurrent` at once."""
    gate = asyncio.Semaphore(sampler.settings.concurrent)

    async def one(task: Task) -> T:
        async with gate:
            return await work(task)

    return await together(*(one(task) for task in tasks))
