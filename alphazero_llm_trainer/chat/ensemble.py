"""Several teachers as one: when they are asked, who is, and what became of it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from random import Random

from ..config.sections import TeachersConfig
from ..engine.protocol import Teacher, TeacherProposal
from ..types import Direction, Problem
from .answer import CallError
from .budget import Ledgers

# `ask: uncertain`: where the share of the student's most frequent final answer is below this
UNCERTAIN_BELOW = 0.75
FAILING_BELOW = (
    0.5  # `ask: failing`: where the best grade of the student's continuations is below this
)


class TeacherEnsemble:
    """Several teachers asked at once. Where one fails the next is asked; with none left the search
    goes on alone.

    Args:
        teachers: who may be asked.
        settings: how many proposals a call asks for, and when.
        seed: with whom it begins.
        ledgers: where what became of each ask is noted.
    """

    def __init__(
        self,
        teachers: Sequence[Teacher],
        settings: TeachersConfig,
        seed: int = 0,
        ledgers: Ledgers | None = None,
    ) -> None:
        self.teachers, self.settings = tuple(teachers), settings
        self.ledgers = Ledgers(settings.budget) if ledgers is None else ledgers
        for teacher in self.teachers:
            self.ledgers.by_name[teacher.name] = teacher.ledger
        self._asks = (Direction.RIGHT,) * settings.right + (Direction.WRONG,) * settings.wrong
        self._seed = seed

    def asks(self, agreement: float, best: float) -> bool:
        """Whether `teachers.ask` has the teachers asked where the student's continuations came out
        like this.

        Args:
            agreement: share of their most frequent final answer.
            best: their best grade.
        """
        if self.settings.ask == "uncertain":
            return agreement < UNCERTAIN_BELOW
        return self.settings.ask == "always" or best < FAILING_BELOW

    async def propose(
        self, problem: Problem, steps: Sequence[str], seed: int
    ) -> list[TeacherProposal]:
        """Next steps after `steps`: at most `right` + `wrong`, fewer where teachers fail or have
        nothing to say.
        """
        asked = [
            self._ask(i, problem, steps, direction, seed) for i, direction in enumerate(self._asks)
        ]
        distinct: dict[tuple[str, Direction], TeacherProposal] = {}
        for proposal in await asyncio.gather(*asked):
            if proposal is not None:
                distinct.setdefault((proposal.text, proposal.direction), proposal)
        return list(distinct.values())

    async def _ask(
        self, number: int, problem: Problem, steps: Sequence[str], direction: Direction, seed: int
    ) -> TeacherProposal | None:
        """What the first teacher says that can be asked; where one can't, the next is."""
        first = Random(f"{self._seed}/{seed}").randrange(len(self.teachers)) + number
        for i in range(len(self.teachers)):
            teacher = self.teachers[(first + i) % len(self.teachers)]
            try:
                return await teacher.propose(problem, steps, direction, seed + number)
            except CallError as error:
                self.ledgers.count_failure(teacher.name, error)
        return None

    def learn(self, proposal: TeacherProposal, value: float, student: float) -> None:
        """A proposal's rollout earned `value` where the student's own earned `student` on average.

        Its gain, in [0, 1], is their difference; a likely-wrong step gains by earning less.
        """
        gain = student - value if proposal.direction is Direction.WRONG else value - student
        name = proposal.source.removeprefix("teacher:")
        self.ledgers.count_use(name, (max(-1.0, min(1.0, gain)) + 1.0) / 2.0)
