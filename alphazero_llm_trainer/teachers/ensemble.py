"""Several teachers as one: who is asked, what became of it, and who is left out."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from random import Random

from ..config.sections import TeachersConfig
from ..engine.protocol import Teacher, TeacherLedger, TeacherProposal
from ..errors import TeacherError
from ..types import Cost, Direction, Problem
from .answer import CallError, Failure
from .breaker import make_breaker
from .budget import Books

log = logging.getLogger(__name__)


class TeacherEnsemble:
    """Several teachers asked at once. A failing one costs its proposals, never the search.

    Args:
        teachers: who may be asked.
        settings: how many proposals a call asks for, when, and of whom.
        seed: with whom it begins.
        books: where what became of each ask is noted.
        strengths: of each teacher by name; one that names a direction is asked first for it.
        clock: tells seconds, for the teachers' breaks.
    """

    def __init__(
        self,
        teachers: Sequence[Teacher],
        settings: TeachersConfig | None = None,
        seed: int = 0,
        *,
        books: Books | None = None,
        strengths: Mapping[str, Iterable[str]] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        settings = TeachersConfig() if settings is None else settings
        self.teachers, self.settings = tuple(teachers), settings
        self.books = Books() if books is None else books
        for teacher in self.teachers:
            self.books.ledgers[teacher.name] = teacher.ledger
        self.strengths = strengths or {}
        self._asks = (Direction.RIGHT,) * settings.right + (Direction.WRONG,) * settings.wrong
        self._seed = seed
        self.breakers = [make_breaker(f"teacher {teacher.name}", settings, clock) for teacher in self.teachers]
        self._alone = False

    @property
    def active(self) -> list[Teacher]:
        """The teachers that would be asked now."""
        return [t for t, breaker in zip(self.teachers, self.breakers, strict=True) if breaker.available]

    @property
    def ledgers(self) -> dict[str, TeacherLedger]:
        """What each teacher did, by name."""
        return {teacher.name: teacher.ledger for teacher in self.teachers}

    @property
    def cost(self) -> Cost:
        """What all teachers cost together."""
        total = Cost()
        for teacher in self.teachers:
            total.add(teacher.ledger.cost)
        return total

    def asks(self, agreement: float, best: float) -> bool:
        """Whether `teachers.ask` has the teachers asked where the student's continuations came out like this.

        Args:
            agreement: share of their most frequent final answer.
            best: their best grade.
        """
        settings = self.settings
        if settings.ask == "uncertain":
            return agreement < settings.uncertain_below
        return settings.ask == "always" or best < settings.failing_below

    async def propose(self, problem: Problem, steps: Sequence[str], seed: int) -> list[TeacherProposal]:
        """Next steps after `steps`: at most `right` + `wrong`, fewer where teachers fail or have nothing to say.

        Who gets which request depends on the seeds, the teachers' strengths and on who is left out. With nobody left the
        list is empty and the search goes on with the student.
        """
        if any(breaker.closed for breaker in self.breakers):
            self._alone = False
        elif not any(breaker.available for breaker in self.breakers):
            if not self._alone:
                self._alone = True
                log.warning("no teacher is left for now: the search goes on with the student alone")
            return []
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
        """The proposal of the first teacher that may be asked and that the budget allows."""
        for index in self._order(number, direction, seed):
            teacher, breaker = self.teachers[index], self.breakers[index]
            ticket = breaker.enter()
            if ticket is None:
                continue
            error, told, proposal = None, False, None
            try:
                proposal = await teacher.propose(problem, steps, direction, seed + number)
                told = True
            except TeacherError as caught:
                error = caught
                told = _kind(error) is not Failure.BUDGET
            finally:
                breaker.leave(ticket, error, told=told)
            if not told:
                continue  # a cheaper one may still fit
            if error is not None:
                self.books.note(teacher.name, "failure", _kind(error))
            return proposal
        return None

    def _order(self, number: int, direction: Direction, seed: int) -> list[int]:
        """Indices of the teachers that may be asked: in turn, those first whose strengths name the direction."""
        active = [i for i, breaker in enumerate(self.breakers) if breaker.available]
        first = Random(f"{self._seed}/{seed}").randrange(len(active)) + number if active else 0
        turn = [active[(first + i) % len(active)] for i in range(len(active))]
        return sorted(turn, key=lambda i: direction not in self.strengths.get(self.teachers[i].name, ()))

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


def _kind(error: TeacherError) -> Failure:
    return error.kind if isinstance(error, CallError) else Failure.OTHER
