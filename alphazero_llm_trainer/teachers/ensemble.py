"""Several teachers as one: when they are asked, who is, and what became of it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from random import Random

from ..config.sections import TeachersConfig
from ..engine.protocol import Teacher, TeacherLedger, TeacherProposal
from ..types import Direction, Problem
from .answer import CallError
from .budget import Books

UNCERTAIN_BELOW = 0.75  # `ask: uncertain`: where the share of the student's most frequent final answer is below this
FAILING_BELOW = 0.5  # `ask: failing`: where the best grade of the student's continuations is below this


class TeacherEnsemble:
    """Several teachers asked at once. Where one fails the next is asked; with none left the search goes on alone.

    Args:
        teachers: who may be asked.
        settings: how many proposals a call asks for, and when.
        seed: with whom it begins.
        books: where what became of each ask is noted.
        strengths: of each teacher by name; one that names a direction is asked first for it.
    """

    def __init__(
        self,
        teachers: Sequence[Teacher],
        settings: TeachersConfig,
        seed: int = 0,
        books: Books | None = None,
        strengths: Mapping[str, Iterable[str]] | None = None,
    ) -> None:
        self.teachers, self.settings = tuple(teachers), settings
        self.books = Books(settings.budget) if books is None else books
        for teacher in self.teachers:
            self.books.ledgers[teacher.name] = teacher.ledger
        self.strengths = strengths or {}
        self._asks = (Direction.RIGHT,) * settings.right + (Direction.WRONG,) * settings.wrong
        self._seed = seed

    @property
    def ledgers(self) -> dict[str, TeacherLedger]:
        """What each teacher did, by name."""
        return {teacher.name: teacher.ledger for teacher in self.teachers}

    def asks(self, agreement: float, best: float) -> bool:
        """Whether `teachers.ask` has the teachers asked where the student's continuations came out like this.

        Args:
            agreement: share of their most frequent final answer.
            best: their best grade.
        """
        if self.settings.ask == "uncertain":
            return agreement < UNCERTAIN_BELOW
        return self.settings.ask == "always" or best < FAILING_BELOW

    async def propose(self, problem: Problem, steps: Sequence[str], seed: int) -> list[TeacherProposal]:
        """Next steps after `steps`: at most `right` + `wrong`, fewer where teachers fail or have nothing to say."""
        found = await asyncio.gather(
            *(self._ask(i, problem, steps, direction, seed) for i, direction in enumerate(self._asks))
        )
        distinct: dict[tuple[str, Direction], TeacherProposal] = {}
        for proposal in found:
            if proposal is not None:
                distinct.setdefault((proposal.text, proposal.direction), proposal)
        return list(distinct.values())

    async def _ask(
        self, number: int, problem: Problem, steps: Sequence[str], direction: Direction, seed: int
    ) -> TeacherProposal | None:
        """What the first teacher says that can be asked: another one may be there, or still fit into the budget."""
        for teacher in self._order(number, direction, seed):
            try:
                return await teacher.propose(problem, steps, direction, seed + number)
            except CallError as error:
                self.books.failed(teacher.name, error)
        return None

    def _order(self, number: int, direction: Direction, seed: int) -> list[Teacher]:
        """The teachers in turn, those first whose strengths name the direction."""
        first = Random(f"{self._seed}/{seed}").randrange(len(self.teachers)) + number
        turn = [self.teachers[(first + i) % len(self.teachers)] for i in range(len(self.teachers))]
        return sorted(turn, key=lambda teacher: direction not in self.strengths.get(teacher.name, ()))

    def learn(self, proposal: TeacherProposal, value: float, student: float) -> None:
        """A proposal's rollout earned `value` where the student's own continuations earned `student` on average."""
        name = proposal.source.removeprefix("teacher:")
        self.books.note(name, "used", proposal.direction, realised(value, student, proposal.direction))


def realised(value: float, student: float, direction: Direction) -> float:
    """What a teacher's step gained, in [0, 1]: its rollout's reward against the student's own mean reward beside it.

    A likely-wrong step gains by being worth less.
    """
    gain = student - value if direction is Direction.WRONG else value - student
    return (max(-1.0, min(1.0, gain)) + 1.0) / 2.0
