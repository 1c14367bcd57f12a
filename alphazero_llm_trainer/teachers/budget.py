"""The teachers' books: what each call may cost is reserved before it is sent, what it did cost is settled after it.

In a run's folder the books are a file of JSON lines, written before anything is sent and again after it, so that what a
killed process had under way counts at its worst and a resumed run goes on with what is left.
"""

from __future__ import annotations

import json
import logging
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO
from uuid import uuid4

from ..config.sections import BudgetConfig, SpendLimits
from ..engine.protocol import TeacherLedger
from ..errors import ConfigError
from ..files import parse_json
from ..types import Cost
from .answer import CallError, Failure

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Spent:
    """Dollars, tokens (prompt and completion) and calls (every attempt is one)."""

    dollars: float = 0.0
    tokens: int = 0
    calls: int = 0

    def add(self, other: Spent, sign: int = 1) -> None:
        self.dollars += sign * other.dollars
        self.tokens += sign * other.tokens
        self.calls += sign * other.calls

    def as_dict(self) -> dict[str, Any]:
        return {"dollars": self.dollars, "tokens": self.tokens, "calls": self.calls}


@dataclass(slots=True)
class _Account:
    """One scope's spending: `spent` is settled, `held` is reserved by calls under way."""

    spent: Spent = field(default_factory=Spent)
    held: Spent = field(default_factory=Spent)

    def lacks(self, more: Spent, limits: SpendLimits) -> str | None:
        """What `more` would take over the limits ("dollars: 0.99 of 1 are spent"), or None."""
        for name in ("dollars", "tokens", "calls"):
            limit = getattr(limits, name)
            taken = getattr(self.spent, name) + getattr(self.held, name)
            if limit is not None and taken + getattr(more, name) > limit:
                return f"{name}: {taken:g} of {limit:g} are spent"
        return None


@dataclass(slots=True)
class Reservation:
    """The most that one attempt can cost, held until it is settled."""

    id: str
    teacher: str
    question: str
    most: Spent
    open: bool = True


class Books:
    """What all teachers and the terminal checker of a run may spend and did.

    `ledgers` has one for each by name; `presumed` is what calls may have cost whose answers never came: it counts
    against the budget, and in no ledger. `refused` counts the attempts that the budget didn't allow; `session` has the
    cost of this process alone.
    """

    def __init__(self, limits: BudgetConfig | None = None) -> None:
        self.limits = BudgetConfig() if limits is None else limits
        self.ledgers: dict[str, TeacherLedger] = {}
        self.presumed, self.refused = Spent(), 0
        self.session: dict[str, Cost] = {}
        self._run = _Account()
        self._questions: dict[str, _Account] = {}
        # A model that takes more than its worst case (hidden thinking, an outdated price) is held at what it took.
        self._excess: dict[str, float] = {}
        self._session, self._number = uuid4().hex[:8], 0
        self._file: TextIO | None = None
        self._said = False

    @property
    def spent(self) -> Spent:
        """What counts against the run's budget, calls under way at their worst."""
        total = Spent()
        total.add(self._run.spent)
        total.add(self._run.held)
        return total

    def ledger(self, name: str) -> TeacherLedger:
        return self.ledgers.setdefault(name, TeacherLedger())

    # -- a call ------------------------------------------------------------------------------------------------------

    def reserve(self, teacher: str, question: str, most: Spent) -> Reservation:
        """Hold the most that one attempt for a question can cost.

        Raises:
            CallError: of kind "budget", where that doesn't fit; nothing is held then.
        """
        excess = self._excess.get(teacher, 1.0)
        most = Spent(most.dollars * excess, round(most.tokens * excess), most.calls)
        account = self._questions.setdefault(question, _Account())
        why = self._run.lacks(most, self.limits.run)
        if why is not None:
            self.refused += 1
            if not self._said:
                self._said = True
                log.warning("the teachers' budget of the run doesn't allow another call (%s): the student goes on", why)
            raise CallError(Failure.BUDGET, f"teachers.budget.run allows no further call of {teacher} ({why})")
        why = account.lacks(most, self.limits.question)
        if why is not None:
            self.refused += 1
            raise CallError(Failure.BUDGET, f"teachers.budget.question allows no further call of {teacher} ({why})")
        self._number += 1
        made = Reservation(f"{self._session}-{self._number}", teacher, question, most)
        self._run.held.add(most)
        account.held.add(most)
        # On the disk before anything is sent.
        self._write("reserve", id=made.id, teacher=teacher, question=question, most=most.as_dict())
        return made

    def settle(self, made: Reservation, cost: Cost, sure: bool) -> None:
        """The attempt took `cost`; where that is not `sure`, the budget is charged with the worst case instead."""
        if not made.open:
            return
        made.open = False
        if self._learn_excess(made.teacher, made.most, cost):
            log.warning(
                "%s took %d tokens and $%.6f where at most %d and $%.6f were expected: check its costs in"
                " teacher_models.yaml; %.2f times as much is reserved for its next calls",
                made.teacher, _tokens(cost), cost.dollars, made.most.tokens, made.most.dollars,
                self._excess[made.teacher],
            )  # fmt: skip
        self._run.held.add(made.most, -1)
        self._questions[made.question].held.add(made.most, -1)
        event = {"teacher": made.teacher, "question": made.question, "cost": cost.as_dict()}
        event["presumed"] = (Spent() if sure else _beyond(made.most, cost)).as_dict()
        self._apply_settled(event)
        self.session.setdefault(made.teacher, Cost()).add(cost)
        self._write("settle", id=made.id, **event)

    def note(self, teacher: str, what: str, kind: str = "", value: float = 0.0) -> None:
        """Count what became of an ask in the teacher's ledger (see `TeacherLedger.count`)."""
        self.ledger(teacher).count(what, kind, value)
        self._write("note", teacher=teacher, what=what, kind=kind, value=value)

    def _learn_excess(self, teacher: str, most: Spent, cost: Cost) -> bool:
        """Whether an attempt took more than its worst case; the teacher's next ones are reserved at that."""
        if cost.dollars <= most.dollars and _tokens(cost) <= most.tokens:
            return False
        ratios = [_tokens(cost) / max(most.tokens, 1)]
        if most.dollars > 0:
            ratios.append(cost.dollars / most.dollars)
        self._excess[teacher] = self._excess.get(teacher, 1.0) * max(ratios)
        return True

    def _apply_settled(self, event: dict[str, Any]) -> None:
        cost, presumed = Cost(**event["cost"]), Spent(**event["presumed"])
        self.ledger(event["teacher"]).cost.add(cost)
        self.presumed.add(presumed)
        for account in (self._run, self._questions.setdefault(event["question"], _Account())):
            account.spent.add(Spent(cost.dollars, _tokens(cost), cost.calls))
            account.spent.add(presumed)

    # -- the file ----------------------------------------------------------------------------------------------------

    def open(self, path: Path) -> list[dict[str, Any]]:
        """Keep the books in the file `path` from now on; what it holds already is taken in. Returns its notes."""
        notes, pending = [], {}
        for event in _events(path):
            if event["event"] == "reserve":
                pending[event["id"]] = event
            elif event["event"] == "settle":
                made = pending.pop(event["id"], None)
                self._apply_settled(event)
                if made is not None:
                    self._learn_excess(event["teacher"], Spent(**made["most"]), Cost(**event["cost"]))
            else:
                self.ledger(event["teacher"]).count(event["what"], event["kind"], event["value"])
                notes.append(event)
        for event in pending.values():
            # A process died while it waited for this answer.
            most = event["most"]
            self._apply_settled(
                {**event, "cost": Cost(calls=most["calls"]).as_dict(), "presumed": {**most, "calls": 0}}
            )
        try:
            self._file = path.open("a", encoding="utf-8", buffering=1)
        except OSError as error:
            raise ConfigError(
                f"the teachers' books {path} can't be written ({error.strerror}): free the path"
            ) from error
        return notes

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _write(self, event: str, **facts: Any) -> None:
        if self._file is not None:
            self._file.write(json.dumps({"event": event, **facts}) + "\n")

    def as_dict(self) -> dict[str, Any]:
        """For run.json: the run's limits, what counts against them, what of that is presumed, and what was refused."""
        return {
            "limits": self.limits.run.model_dump(mode="json"),
            "spent": self.spent.as_dict(),
            "presumed": self.presumed.as_dict(),
            "refused": self.refused,
        }


def _tokens(cost: Cost) -> int:
    return cost.prompt_tokens + cost.cached_tokens + cost.sampled_tokens


def _beyond(most: Spent, cost: Cost) -> Spent:
    return Spent(max(most.dollars - cost.dollars, 0.0), max(most.tokens - _tokens(cost), 0), 0)


def _events(path: Path) -> Iterator[dict[str, Any]]:
    """The whole lines of the books; one that a crash cut is dropped, others that can't be read are named and skipped."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return
    except OSError as error:
        raise ConfigError(
            f"the teachers' books {path} can't be read ({error.strerror}): mend or remove them"
        ) from error
    whole = data[: data.rfind(b"\n") + 1]
    if len(whole) < len(data):
        try:
            os.truncate(path, len(whole))
        except OSError as error:
            raise ConfigError(
                f"the teachers' books {path} can't be mended ({error.strerror}): free the path"
            ) from error
    for number, line in enumerate(whole.splitlines(), 1):
        try:
            event = parse_json(line)
            _check(event)
        except (ValueError, KeyError, TypeError):
            log.warning("line %d of the teachers' books %s can't be read and is left out", number, path)
            continue
        yield event


def _check(event: dict[str, Any]) -> None:
    """Raise ValueError, KeyError or TypeError where a line isn't what `Books` writes."""
    texts = {"reserve": ("id", "teacher", "question"), "settle": ("id", "teacher", "question")}
    if not all(isinstance(event[name], str) for name in texts.get(event["event"], ("teacher", "what", "kind"))):
        raise TypeError("a name that is no text")
    amounts: list[Any] = [event["value"]] if event["event"] not in texts else []
    if event["event"] == "reserve":
        amounts += Spent(**event["most"]).as_dict().values()
    elif event["event"] == "settle":
        amounts += [*Spent(**event["presumed"]).as_dict().values(), *Cost(**event["cost"]).as_dict().values()]
    # No limit would hold after a NaN or a negative amount.
    if not all(isinstance(amount, int | float) and math.isfinite(amount) and amount >= 0 for amount in amounts):
        raise ValueError("an amount that is none")
