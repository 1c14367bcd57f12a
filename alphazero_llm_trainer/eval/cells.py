"""Cells of the comparison: one method with one budget over all problems of one benchmark."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from ..errors import RequestError
from ..grading.graders import Grade, Verdict
from ..live import Progress
from ..mcts.seeds import derive_seed
from ..mcts.waiting import gather_all
from ..problems.load import rows_hash
from ..problems.registry import is_gradable, source_of
from ..rewards.custom import CustomReward
from ..rewards.turns import Ending
from ..types import JsonObject, Task
from .attempt import Answered, Attempt, MethodContext
from .methods import REFUSED, TOO_LONG, run_method
from .metrics import repeats

SAMPLES_METHOD = "samples"
COSTS = ("sampled_tokens", "scored_tokens", "cached_tokens", "calls")  # of a cell
NO_ANSWER = "no answer"  # why there is nothing to grade: the method has none

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Benchmark:
    """A named set of tasks of one source."""

    name: str
    tasks: Sequence[Task]

    @property
    def data_hash(self) -> str:
        return rows_hash(self.tasks)


@dataclass(slots=True)
class Cell:
    """What a method did on a benchmark with a budget.

    `outcomes` has a 1 (correct) or 0 a problem, `unanswered` a 1 where no answer was stated;
    `verdicts` and `ended_by` count problems; `tokens` are sampled and scored ones of each problem,
    `groups` which problems repeat each other
    (`metrics.repeats`); the other figures are sums over problems, `f1` of HotpotQA's alone,
    `seconds` wall-clock. `unjudged` counts the answers of which the verifier could check no step.
    `rewards` are what the user's own reward gave each response (0 where there is none, None where
    it failed); empty without one. Without `gold` no problem has an answer to be compared with, and
    outcomes say nothing. `silent` counts unanswered problems by why (`tree.extract.SHORT`), and
    `refused` has the reasons of those that the server doesn't take, by their ids. `answers` has
    each problem's question, gold answer, response (None: no answer), verdict, why it ended or what
    was in place of an answer, and tokens. `turns`, `tool_calls` and `tool_errors` are of the
    answers' episodes in worlds, `given_tokens` of all that were played.

    The cell SAMPLES has instead `correct[i][j]` of the independent sample j of problem i; its
    budget is their number.
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
    given_tokens: int = 0
    turns: int = 0
    tool_calls: int = 0
    tool_errors: int = 0
    seconds: float = 0.0
    f1: float | None = None
    groups: list[int] = field(default_factory=list)
    rewards: list[float | None] = field(default_factory=list)
    gold: bool = True
    unjudged: int = 0
    correct: list[list[bool]] = field(default_factory=list)
    unanswered: str = ""
    silent: dict[str, int] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    answers: list[JsonObject] = field(default_factory=list)

    @property
    def key(self) -> dict[str, str | int]:
        """What it is of, as rows name it."""
        return {"benchmark": self.benchmark, "budget": self.budget, "method": self.method}

    @property
    def distinct(self) -> int:
        """How many different problems there are."""
        return len(set(self.groups)) or len(self.outcomes)

    @property
    def cut(self) -> bool:
        """Whether most of its answers were cut before they stated one."""
        return 2 * self.verdicts.get(NO_ANSWER, 0) > len(self.outcomes)

    @property
    def right(self) -> list[float]:
        """1.0 or 0.0 a problem."""
        return [float(outcome) for outcome in self.outcomes]

    @property
    def values(self) -> list[float]:
        """What a problem is judged by: `right`, or the user's own reward where no problem has a
        gold answer; 0 where it failed.
        """
        if self.gold or not self.rewards:
            return self.right
        return [0.0 if reward is None else reward for reward in self.rewards]


async def run_cell(
    context: MethodContext,
    benchmark: Benchmark,
    method: str,
    budget: int,
    progress: Progress,
    custom: CustomReward | None = None,
) -> Cell:
    """All problems of `benchmark` by `method`, counted on `progress`. Raises RewardError where
    `custom` fails for every response, RequestError where every problem is refused.

    Every method sees the same seeds. The policy's cache is emptied first, so that no method lives
    on another one's.
    """
    tasks, began = benchmark.tasks, time.perf_counter()

    async def attempt_task(task: Task) -> Answered:
        seed = derive_seed(context.config.seed, task.problem.id)
        answer = await run_method(method, context, task.problem, seed, budget)
        progress.advance(tokens=answer.cost.sampled_tokens)
        return answer

    answers = await map_tasks(context, attempt_task, tasks)
    refused = refusal_reasons(tasks, answers)
    seconds = time.perf_counter() - began
    responses = [answer.response for answer in answers]
    endings = [answer.ending for answer in answers]
    grades = await grade_responses(responses, tasks, endings)
    unanswered = str(Verdict.WRONG) if source_of(tasks[0].problem).plays else NO_ANSWER
    verdicts = [
        answer.ended_by
        if answer.ended_by in (TOO_LONG, REFUSED)
        else unanswered
        if grade is None
        else str(grade.verdict)
        for answer, grade in zip(answers, grades, strict=True)
    ]
    costs: dict[str, Any] = {
        name: sum(getattr(answer.cost, name) for answer in answers) for name in COSTS
    }
    f1 = [grade.f1 for grade in grades if grade is not None and grade.f1 is not None]
    return Cell(
        benchmark.name,
        method,
        budget,
        "".join("1" if grade is not None and grade.correct else "0" for grade in grades),
        dict(Counter(verdicts)),
        dict(Counter(answer.ended_by for answer in answers)),
        [answer.tokens for answer in answers],
        **costs,
        given_tokens=sum(answer.cost.given_tokens for answer in answers),
        turns=sum(ending.turns for ending in endings if ending),
        tool_calls=sum(ending.calls for ending in endings if ending),
        tool_errors=sum(ending.errors for ending in endings if ending),
        seconds=seconds,
        f1=sum(f1) if f1 else None,
        groups=repeats(tasks),
        rewards=[] if custom is None else await custom.scores(tasks, responses),
        gold=any(map(is_gradable, tasks)),
        unjudged=sum(answer.unjudged for answer in answers),
        unanswered="".join(str(int(response is None)) for response in responses),
        silent=dict(Counter(answer.why for answer in answers if answer.why is not None)),
        refused=refused,
        answers=[
            {
                "id": task.problem.id,
                "question": task.problem.question,
                "gold": task.gold,
                "response": answer.response,
                "verdict": verdict,
                "why": answer.refusal or answer.why or answer.ended_by,
                "tokens": answer.tokens,
            }
            for task, answer, verdict in zip(tasks, answers, verdicts, strict=True)
        ],
    )


def refusal_reasons(tasks: Sequence[Task], answers: Sequence[Answered]) -> dict[str, str]:
    """Why questions are refused, by their ids. Raises RequestError where all are."""
    refused = {
        task.problem.id: answer.refusal
        for task, answer in zip(tasks, answers, strict=False)
        if answer.refusal is not None
    }
    if len(refused) == len(answers):
        raise RequestError(next(iter(refused.values())))
    return refused


async def run_samples(
    context: MethodContext, benchmark: Benchmark, samples: int, progress: Progress
) -> Cell:
    """`samples` whole responses at `search.temperature` to each problem, without a budget: for
    pass@k.
    """
    cell, began = Cell(benchmark.name, SAMPLES_METHOD, samples), time.perf_counter()

    async def draw_task(task: Task) -> list[tuple[str | None, Ending | None]]:
        seed = derive_seed(context.config.seed, task.problem.id, "samples")
        made = list[tuple[str | None, Ending | None]]()
        try:
            async with context.policy.episode(task.problem):
                limit = samples * context.settings.max_tokens
                attempt = Attempt(context, task.problem, seed, limit)
                for chain in await attempt.draw_many(samples, judged=False):
                    text = chain.text if attempt.usable(chain) else None
                    made.append((text, context.ending(task.problem, text)))
            cell.sampled_tokens += attempt.cost.sampled_tokens
            cell.given_tokens += attempt.cost.given_tokens
            progress.advance(tokens=attempt.cost.sampled_tokens)
        except RequestError as error:
            cell.refused[task.problem.id] = str(error)
        return made or [(None, None)] * samples  # none are drawn where the prompt doesn't fit

    made = [one for row in await map_tasks(context, draw_task, benchmark.tasks) for one in row]
    repeated = [task for task in benchmark.tasks for _ in range(samples)]
    texts, endings = zip(*made, strict=True)
    grades = await grade_responses(texts, repeated, endings)
    right = [grade is not None and grade.correct for grade in grades]
    cell.correct = [right[at : at + samples] for at in range(0, len(right), samples)]
    cell.seconds = time.perf_counter() - began
    cell.gold = any(map(is_gradable, benchmark.tasks))
    return cell


async def grade_responses(
    responses: Sequence[str | None], tasks: Sequence[Task], endings: Sequence[Ending | None] = ()
) -> list[Grade | None]:
    """The grade of each task's response; None where there is none: the reward of its episode, in a
    world. The one place here that reads gold answers.
    """
    if source_of(tasks[0].problem).worlds:
        return [None if ending is None else ending.grade() for ending in endings]
    pairs = [
        (response, task)
        for response, task in zip(responses, tasks, strict=True)
        if response is not None
    ]
    grades = iter(await source_of(tasks[0].problem).grade_all(pairs) if pairs else ())
    return [None if response is None else next(grades) for response in responses]


async def map_tasks(
    context: MethodContext, work: Callable[[Task], Awaitable[T]], tasks: Sequence[Task]
) -> list[T]:
    """`work` of all tasks in order, `search.concurrent` at once, from an empty cache on."""
    context.student.engine.reset_prefix_cache()
    gate = asyncio.Semaphore(context.settings.concurrent)

    async def pass_gate(task: Task) -> T:
        async with gate:
            return await work(task)

    return await gather_all(*map(pass_gate, tasks))
