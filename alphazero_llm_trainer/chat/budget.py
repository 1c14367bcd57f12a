"""What all teachers of a run did, and whether their budget allows a further call."""

from __future__ import annotations

import logging
from dataclasses import asdict, fields
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from ..config.sections import BudgetConfig
from ..engine.protocol import TeacherLedger
from ..errors import DataError
from ..files import write_json
from ..types import Cost, JsonObject
from .answer import BUDGET_SPENT, RESTS, CallError

log = logging.getLogger(__name__)

_STORED = TypeAdapter(dict[str, TeacherLedger])


class Ledgers:
    """A ledger for each teacher and the terminal checker by name, and the budget that they share.

    In a run's folder it is a file, so that a resumed run goes on with what is left. Calls count
    when they begin. Tokens and dollars are those of the answers' `usage`: calls under way when a
    limit is reached still end, and what a lost answer cost isn't known. `refused` counts calls that
    the budget didn't allow; `session` has the costs of this process alone.
    """

    def __init__(self, limits: BudgetConfig) -> None:
        self.limits = limits
        self.by_name: dict[str, TeacherLedger] = {}
        self.session: dict[str, Cost] = {}
        self.refused = 0
        self._path: Path | None = None

    def of(self, name: str) -> TeacherLedger:
        """The ledger of the teacher `name`."""
        return self.by_name.setdefault(name, TeacherLedger())

    def sum_spending(self) -> dict[str, float]:
        """What counts against the budget: dollars, tokens (prompt and completion) and calls."""
        costs = [ledger.cost for ledger in self.by_name.values()]
        return {
            "dollars": sum(cost.dollars for cost in costs),
            "tokens": sum(c.prompt_tokens + c.cached_tokens + c.sampled_tokens for c in costs),
            "calls": sum(ledger.calls for ledger in self.by_name.values()),
        }

    def begin(self, name: str) -> None:
        """Count a call that is about to be sent. Raises CallError where the budget is spent."""
        for unit, taken in self.sum_spending().items():
            limit = getattr(self.limits, unit)
            if limit is not None and taken >= limit:
                why = f"teachers.budget.{unit} is spent: {taken:g} of {limit:g}"
                if not self.refused:
                    log.warning("%s: the student goes on without teachers", why)
                self.refused += 1
                raise CallError(BUDGET_SPENT, why)
        self.of(name).calls += 1
        self._save()

    def add(self, name: str, cost: Cost) -> None:
        """Add what a call took."""
        self.of(name).cost.add(cost)
        self.session.setdefault(name, Cost()).add(cost)
        self._save()

    def count_use(self, name: str, gain: float) -> None:
        """Count a proposal that the search took in, with its gain in [0, 1]."""
        self.of(name).used += 1
        self.of(name).value += gain
        self._save()

    def count_failure(self, name: str, error: CallError) -> None:
        """Count a failure of a call that was sent, and log the first of each kind."""
        if error.kind in (BUDGET_SPENT, RESTS):
            return
        failures = self.of(name).failures
        if error.kind not in failures:
            log.warning("a call of %s failed: %s", name, error)
        failures[error.kind] = failures.get(error.kind, 0) + 1
        self._save()

    def open(self, path: Path) -> None:
        """Keep the ledgers in the file `path` from now on; what it holds already counts."""
        self._path = path
        if path.exists():
            try:
                for name, stored in _STORED.validate_json(path.read_bytes()).items():
                    for entry in fields(stored):  # a teacher may hold its own
                        setattr(self.of(name), entry.name, getattr(stored, entry.name))
            except ValidationError as error:
                why = error.errors()[0]["msg"]
                raise DataError(f"{path} has no teachers' ledgers ({why}): remove it") from error

    def as_dict(self) -> JsonObject:
        """For run.json: the limits, what counts against them, and how many calls were refused."""
        limits = self.limits.model_dump(mode="json")
        return {"limits": limits, "spent": self.sum_spending(), "refused": self.refused}

    def _save(self) -> None:
        if self._path is not None:
            write_json(self._path, {name: asdict(entry) for name, entry in self.by_name.items()})
