"""What a finished response earns in a search: `combined.combined`, or without gold and measure
whether it answers at all.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace

from ..config.sections import RewardConfig
from ..errors import RequestError
from ..grading.graders import Verdict
from ..problems.registry import is_gradable, source_of
from ..tree.arena import WHOLE
from ..types import Direction, Problem, RewardParts, Steps, Task, text_of
from .combined import combined, steps_of
from .custom import CustomReward
from .perplexity import Perplexity
from .turns import TurnPolicy


def make_evaluate(
    weights: RewardConfig,
    perplexity: Perplexity | None,
    tasks: Mapping[str, Task] | None,
    custom: CustomReward | None = None,
    turns: TurnPolicy | None = None,
) -> Callable[[Problem, Steps, Sequence[Direction], str], Awaitable[RewardParts]]:
    """The terminal reward of docs/design.md, section 5. `tasks` (by problem id, with their gold
    answers) are given in training alone, and so is the user's own reward, `custom`. In worlds,
    whose episodes are `turns`' own, the world's reward is the correctness.

    Of a response that a limit cut a marked answer alone counts (`Source.final_answer`); without one
    its HRE is 0.
    """

    async def evaluate(
        problem: Problem, steps: Steps, directions: Sequence[Direction], verdict: str
    ) -> RewardParts:
        right = sum(d is Direction.RIGHT for d in directions)
        wrong = sum(d is Direction.WRONG for d in directions)
        correct = own = None
        answered, response = True, text_of(steps)
        if tasks is None:
            answered = states_answer(problem, response, verdict)
        else:
            task = tasks[problem.id]
            grade = None if turns is None else turns.grade(problem, response)
            if grade is None and is_gradable(task):
                grade = await source_of(problem).grade_async(
                    response, task, strict=verdict not in WHOLE
                )
            if grade is not None:
                if grade.error is not None:
                    raise RequestError(grade.error)
                correct, answered = grade.score, grade.verdict is not Verdict.UNPARSED
            if custom is not None:
                own = await custom(problem, response, task)
        likely, cost = (None, None) if perplexity is None else await perplexity(problem, steps)
        reward = combined(
            correct,
            likely,
            own,
            steps=steps_of(response),
            right=right,
            wrong=wrong,
            weights=weights,
            answered=answered,
        )
        return reward if cost is None else replace(reward, cost=cost)

    return evaluate


async def finished_earns_one(
    problem: Problem, steps: Steps, directions: Sequence[Direction], verdict: str
) -> RewardParts:
    """Without gold and without a student to measure by, a whole response that states an answer
    earns 1: the vote counts.
    """
    whole = verdict in WHOLE and states_answer(problem, text_of(steps), verdict)
    return RewardParts(total=float(whole))


def states_answer(problem: Problem, response: str, verdict: str) -> bool:
    """Whether a response states an answer; of one that a limit cut, a marked one."""
    return source_of(problem).final_answer(response, verdict not in WHOLE) is not None
