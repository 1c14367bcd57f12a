"""The teachers' books: what a call may cost at most is taken from the budget before it is sent, and what it did cost is
settled after it. In a run's folder they are a file of JSON lines, so that a resumed run goes on with what is left, and
what a killed process had under way counts at its most."""

from __future__ import annotations

import json
import logging
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TextIO

from ..config.sections import BudgetConfig
from ..engine.protocol import TeacherLedger
from ..errors import DataError
from ..types import Cost
from .answer import BUDGET, CallError

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Spent:
    """Dollars, tokens (prompt and completion) and calls."""

    dollars: float = 0.0
    tokens: int = 0
    calls: int = 0

    def add(self, other: Spent, sign: int = 1) -> None:
        self.dollars += sign * other.dollars
        self.tokens += sign * other.tokens
        self.calls += sign * other.calls


class Books:
    """What all teachers and the terminal checker of a run did, and may spend.

    `ledgers` has one for each by name; `spent` is what counts against the budget: settled calls at what they took, those
    under way and those whose answer never came at the most that they can. `refused` counts the calls that the budget
    didn't allow; `session` has the cost of this process alone.
    """

    def __init__(self, limits: BudgetConfig) -> None:
        self.limits = limits
        self.ledgers: dict[str, TeacherLedger] = {}
        self.spent, self.refused = Spent(), 0
        self.session: dict[str, Cost] = {}
        self._file: TextIO | None = None

    def ledger(self, name: str) -> TeacherLedger:
        return self.ledgers.setdefault(name, TeacherLedger())

    def reserve(self, teacher: str, most: Spent) -> None:
        """Take the most that a call can cost from the budget. Raises CallError, of kind "budget", where that doesn't fit."""
        for name, taken in asdict(self.spent).items():
            limit = getattr(self.limits, name)
            if limit is not None and taken + getattr(most, name) > limit:
                why = f"teachers.budget.{name} allows no further call of {teacher} ({taken:g} of {limit:g} are spent)"
                if not self.refused:
                    log.warning("%s: the student goes on without it", why)
                self.refused += 1
                raise CallError(BUDGET, why)
        self._record(teacher, spent=asdict(most), what="call")  # written before anything is sent

    def settle(self, teacher: str, most: Spent, cost: Cost, sure: bool) -> None:
        """A call took `cost`; where that is not `sure`, the budget pays the most that it can have taken."""
        taken = Spent(cost.dollars, cost.prompt_tokens + cost.cached_tokens + cost.sampled_tokens, 1)
        if not sure:
            taken = Spent(max(taken.dollars, most.dollars), max(taken.tokens, most.tokens), 1)
        taken.add(most, -1)
        self.session.setdefault(teacher, Cost()).add(cost)
        self._record(teacher, spent=asdict(taken), cost=cost.as_dict())

    def note(self, teacher: str, what: str, kind: str = "", value: float = 0.0) -> None:
        """Count what became of an ask in the teacher's ledger (see `TeacherLedger.count`)."""
        self._record(teacher, what=what, kind=kind, value=value)

    def failed(self, teacher: str, error: CallError) -> None:
        """Count a failure; the first of each kind is said. (What the budget refused is counted and said there.)"""
        if error.kind == BUDGET:
            return
        if error.kind not in self.ledger(teacher).failures:
            log.warning("a call of %s failed: %s", teacher, error)
        self.note(teacher, "failure", error.kind)

    def open(self, path: Path) -> None:
        """Keep the books in the file `path` from now on; what it holds already is taken in."""
        if path.exists():
            data = path.read_bytes()
            whole = data[: data.rfind(b"\n") + 1]
            os.truncate(path, len(whole))  # a crash may have cut the last line
            for number, line in enumerate(whole.splitlines(), 1):
                try:
                    self._apply(json.loads(line))
                except (ValueError, KeyError, TypeError) as error:
                    raise DataError(f"{path} line {number} is no event of the books ({error}): remove it") from error
        self._file = path.open("a", encoding="utf-8", buffering=1)

    def as_dict(self) -> dict[str, Any]:
        """For run.json: the limits, what counts against them, and how many calls were refused."""
        return {
            "limits": self.limits.model_dump(mode="json"),
            "spent": asdict(self.spent),
            "refused": self.refused,
        }

    def _record(self, teacher: str, **facts: Any) -> None:
        event = {"teacher": teacher, **facts}
        self._apply(event)
        if self._file is not None:
            self._file.write(json.dumps(event) + "\n")

    def _apply(self, event: dict[str, Any]) -> None:
        ledger = self.ledger(event["teacher"])
        self.spent.add(Spent(**event.get("spent", {})))
        ledger.cost.add(Cost(**event.get("cost", {})))
        if "what" in event:
            ledger.count(event["what"], event.get("kind", ""), event.get("value", 0.0))
