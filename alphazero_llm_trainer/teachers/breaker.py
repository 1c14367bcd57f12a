"""A circuit breaker (Nygard 2007, "Release It!"): who fails again and again is left alone for a while."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from ..config.sections import TeachersConfig
from ..errors import TeacherError
from .answer import CallError, Failure

log = logging.getLogger(__name__)

PERMANENT = (Failure.NOT_FOUND, Failure.REFUSED_KEY)  # no later call will fare better


@dataclass(slots=True)
class Breaker:
    """Closed: everybody may call. Open, after `limit` failures in a row: nobody, for `cool_down` seconds. Then half-open:
    one probe; its success closes the breaker, its failure opens it for twice as long, at most `longest`.

    A vanished model or a refused key opens it for good. `clock` tells seconds. Each transition is logged once.
    """

    name: str
    limit: int = 3
    cool_down: float = 30.0
    longest: float = 600.0
    clock: Callable[[], float] = field(default=time.monotonic, repr=False)
    in_a_row: int = 0
    opened: int = 0  # how often it opened
    gone: bool = False
    _until: float | None = None
    _wait: float = 0.0
    _probe: int | None = None
    _ticket: int = 0

    @property
    def closed(self) -> bool:
        return not self.gone and self._until is None

    @property
    def available(self) -> bool:
        """Whether a call would be let through now."""
        if self.gone:
            return False
        return self._until is None or (self._probe is None and self.clock() >= self._until)

    def enter(self) -> int | None:
        """A ticket for one call, to be handed back to `leave`; None when the breaker is open."""
        if not self.available:
            return None
        self._ticket += 1
        if self._until is not None:
            self._probe = self._ticket
            log.info("%s is tried again", self.name)
        return self._ticket

    def leave(self, ticket: int, error: TeacherError | None = None, *, told: bool = True) -> None:
        """The call of `ticket` succeeded, or failed with `error`; `told` is False when it ended with neither."""
        probe = ticket == self._probe
        if probe:
            self._probe = None
        if self.gone or not told:
            return
        if isinstance(error, CallError) and error.kind in PERMANENT:
            self.gone = True
            log.warning("%s is left out for the rest of the run: %s", self.name, error)
            return
        if self._until is not None and not probe:
            return  # it was sent before the breaker opened, and says nothing new
        if error is None:
            if probe:
                log.warning("%s answers again", self.name)
            self.in_a_row, self._until, self._wait = 0, None, 0.0
            return
        self.in_a_row += 1
        if probe or self.in_a_row >= self.limit:
            self._open(error)

    def _open(self, error: TeacherError) -> None:
        asked = error.wait if isinstance(error, CallError) and error.wait is not None else 0.0
        self._wait = min(max(2 * self._wait or self.cool_down, asked), self.longest)
        self._until = self.clock() + self._wait
        self.opened += 1
        log.warning(
            "%s failed %d times in a row and is left out for %g s: %s", self.name, self.in_a_row, self._wait, error
        )


def make_breaker(name: str, settings: TeachersConfig, clock: Callable[[], float]) -> Breaker:
    """The breaker that a configuration wants."""
    return Breaker(
        name, settings.failures_in_a_row, settings.cool_down_seconds, settings.longest_cool_down_seconds, clock
    )
