"""The embedded problems as a source (`embedded` is their generator), and its teacher, who runs
offline by the same rules.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from random import Random

from ..engine.protocol import TeacherLedger, TeacherProposal
from ..errors import DataError, TeacherError
from ..types import Direction, Problem
from . import embedded
from .prompts import SYSTEM_PROMPT
from .source import GeneratedSource

OPERATORS = "+-*/"
_EMBEDDED_STEP = re.compile(r"(\d+) ([-+*/]) (\d+) = (\d+)")
_Parsed = tuple[int, str, int, int]  # a, operator, b, result


class Embedded(GeneratedSource):
    """The generator as a source."""

    name = embedded.SOURCE
    prompt_tokens = 96
    system_prompt = SYSTEM_PROMPT
    strict_steps = True
    build = staticmethod(embedded.build_task)

    def scripted_teacher(self, error_rate: float) -> ScriptedTeacher:
        """A teacher that runs offline by the source's own rules and slips at a rate of
        `error_rate`, or None.
        """
        return ScriptedTeacher(error_rate)

    def vocabulary_texts(self) -> Iterator[str]:
        """Texts with every word of the source, where a small vocabulary covers it; () where none
        does.
        """
        return embedded.vocabulary_texts()


class ScriptedTeacher:
    """Proposes right and wrong next steps of embedded problems.

    It is privileged: it regenerates a problem's worked solution from its id. So it takes part in
    training searches only, never in evaluation. The same problem, steps, direction and seed always
    give the same proposal.

    Asked for a right step, it gives the next one of the worked solution, or with probability
    `error_rate` a wrong one (still labelled right, as a real teacher's mistake would be). Asked for
    a wrong step, it gives one with a wrong operation, a wrong number or wrong arithmetic. Steps
    that have left the worked solution are followed through: the next step is the solution's next
    operation, on the results that were really written, so a wrong start leads on to a wrong answer
    and is never silently repaired. It says nothing (None) after a final answer, after a step that
    it can't read, beyond the solution's length, or where the operation has no result among whole
    numbers above 0.
    """

    name = "scripted"

    def __init__(self, error_rate: float) -> None:
        self.error_rate = error_rate
        self.ledger = TeacherLedger()

    async def propose(
        self, problem: Problem, steps: Sequence[str], direction: Direction, seed: int
    ) -> TeacherProposal | None:
        """The next step (see the class). Raises TeacherError for a problem that the generator
        didn't make.
        """
        if problem.source != embedded.SOURCE:
            raise TeacherError(
                "the scripted teacher knows embedded problems only, "
                f"not {problem.id!r}: use another tier"
            )
        self.ledger.calls += 1
        following = follow_through(_solution_steps(problem.id), steps)
        if following is None:
            return None
        rng = Random(f"{self.name}/{seed}/{problem.id}/{len(steps)}/{direction}")
        wrong = direction is Direction.WRONG or rng.random() < self.error_rate
        text = (
            rng.choice(rng.choice(_list_slips(following, problem.question))) if wrong else following
        )
        return TeacherProposal(text, f"teacher:{self.name}", direction)


def follow_through(solution: Sequence[str], steps: Sequence[str]) -> str | None:
    """The step after `steps` by the plan of `solution`, with the results of `steps` in place of the
    solution's own.
    """
    if len(steps) >= len(solution):
        return None
    written = [_parse_step(step) for step in steps]
    planned = [_parse_step(step) for step in solution[: len(steps)]]
    results: dict[int, int] = {}
    for own, theirs in zip(planned, written, strict=True):
        if own is None or theirs is None:
            return None
        results[own[3]] = theirs[3]
    following = _parse_step(solution[len(steps)])
    if following is None:
        return f"#### {written[-1][3]}" if written and written[-1] else None
    a, op, b, _ = following
    return _step_line(results.get(a, a), op, results.get(b, b))


def _list_slips(step: str, question: str) -> list[list[str]]:
    """Wrong steps in place of `step` by kind: another operation, another number, wrong arithmetic.
    None is empty.
    """
    parsed = _parse_step(step)
    if parsed is None:
        answer = int(step.removeprefix("#### "))
        return [[f"#### {n}" for n in _near_numbers(answer)]]
    a, op, b, result = parsed
    numbers = {int(n) for n in re.findall(r"\d+", question)} | {b + 1, b + 2}
    others: tuple[list[str | None], ...] = (
        [_step_line(a, other, b) for other in OPERATORS if other != op],
        [_step_line(a, op, n) for n in sorted(numbers - {b, 0})],
        [f"{a} {op} {b} = {n}" for n in _near_numbers(result)],
    )
    kinds = [
        [line for line in lines if line and not line.endswith(f"= {result}")] for lines in others
    ]
    return [lines for lines in kinds if lines]


def _near_numbers(n: int) -> list[int]:
    """Numbers above 0 that a slip would give instead of `n`."""
    return [m for m in (n - 10, n - 2, n - 1, n + 1, n + 2, n + 10) if m > 0]


def _step_line(a: int, op: str, b: int) -> str | None:
    result = embedded.apply_operation(a, op, b)
    return f"{a} {op} {b} = {result}" if result > 0 else None


def _parse_step(step: str) -> _Parsed | None:
    match = _EMBEDDED_STEP.fullmatch(step.strip())
    return None if match is None else (int(match[1]), match[2], int(match[3]), int(match[4]))


@lru_cache(maxsize=4096)
def _solution_steps(problem_id: str) -> tuple[str, ...]:
    try:
        task = embedded.from_id(problem_id)
    except DataError as error:
        raise TeacherError(
            f"the scripted teacher can't rebuild problem {problem_id!r}: use another tier"
        ) from error
    return tuple((task.solution or "").split("\n"))
