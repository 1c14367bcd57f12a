"""How far a judge agrees with gold answers: what tells whether it may be trusted where there are
none.
"""

from __future__ import annotations

from ..engine.step_ends import split_steps
from ..mcts.waiting import gather_all
from ..problems.registry import is_gradable
from ..rewards.custom import JUDGE
from ..types import JsonObject, Opening, Step, Task
from .attempt import MethodContext
from .cells import Benchmark, grade_responses
from .methods import run_method
from .metrics import wilson
from .results import interval_triple

AGREED = 100  # problems whose answers are compared
RIGHT = 0.5  # score from which on the judge calls an answer right


async def measure_agreement(
    context: MethodContext, benchmark: Benchmark, opening: Opening
) -> JsonObject | None:
    """On how many greedy answers judge and gold say the same, with the interval, and how many gold
    calls right; None without a judge or without gold.
    """
    parts = getattr(context.verifier, "parts", [context.verifier])
    judge = next((part for part in parts if part is not None and part.name == JUDGE), None)
    tasks = [task for task in benchmark.tasks[:AGREED] if is_gradable(task)]
    if judge is None or not tasks:
        return None
    context.student.opening = opening
    longest, rule = context.settings.max_tokens, context.settings.step

    async def judge_task(task: Task) -> tuple[str | None, float | None]:
        answer = await run_method("greedy", context, task.problem, context.config.seed, longest)
        if answer.response is None:
            return None, None
        steps = [Step((), (), text) for text in split_steps(answer.response, rule)]
        said = await judge(task.problem, (), steps)
        return answer.response, said.total if said.sure else None

    answers = await gather_all(*map(judge_task, tasks))
    grades = await grade_responses([response for response, _ in answers], tasks)
    both = [
        (score >= RIGHT, grade.correct)
        for (_, score), grade in zip(answers, grades, strict=True)
        if score is not None and grade is not None
    ]
    same = wilson(sum(says == gold for says, gold in both), len(both))
    return {
        "problems": len(tasks),
        "judged": len(both),
        "agreement": interval_triple(same),
        "right": sum(gold for _, gold in both),
        "called_right": sum(says for says, _ in both),
    }
