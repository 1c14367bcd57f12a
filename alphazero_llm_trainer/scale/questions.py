"""Which question runs next, alone or beside others, and when one is set aside. Pure: no clock, no engine, no Ray."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence


class Queue:
    """Questions by key, each to be finished once or set aside.

    Fresh questions run beside each other. One that failed, or that was in flight when its process died, runs again with
    nothing beside it. Only a failure alone counts, so a question that merely stood near a crash is never set aside.

    Args:
        keys: what is to be searched, in order.
        attempts: failures alone after which a question is set aside.
        failures: such failures of earlier sessions.
        suspects: keys that earlier sessions left under suspicion.
        on_failure: told (key, reason, ran alone, failures alone so far).
    """

    def __init__(
        self,
        keys: Sequence[str],
        attempts: int,
        failures: Mapping[str, int] | None = None,
        suspects: Iterable[str] = (),
        on_failure: Callable[[str, str, bool, int], None] = lambda *_: None,
    ) -> None:
        self.attempts, self.on_failure, self.failures = attempts, on_failure, dict(failures or {})
        self.left = dict.fromkeys(keys)
        self.set_aside: dict[str, tuple[str, int]] = {}
        for key in [key for key in self.left if self.failures.get(key, 0) >= attempts]:
            self._put_aside(key, "failed in earlier sessions")
        suspected = dict.fromkeys(key for key in suspects if key in self.left)
        self._suspects = deque(suspected)
        self._fresh = deque(key for key in self.left if key not in suspected)

    def __len__(self) -> int:
        """Questions that are neither finished nor set aside."""
        return len(self.left)

    @property
    def waiting(self) -> bool:
        """Whether there is something to hand out."""
        return bool(self._fresh or self._suspects)

    def fresh(self) -> str | None:
        """The next question that may run beside others, or None."""
        return self._fresh.popleft() if self._fresh else None

    def suspect(self) -> str | None:
        """The next question that must run alone, or None."""
        return self._suspects.popleft() if self._suspects else None

    def done(self, key: str) -> None:
        """Call once a question's tree is there."""
        del self.left[key]

    def failed(self, key: str, reason: str, alone: bool) -> None:
        """This question raised, timed out or was in flight at a death: it runs again, alone, or is set aside."""
        count = self.failures[key] = self.failures.get(key, 0) + alone
        self.on_failure(key, reason, alone, count)
        if count >= self.attempts:
            self._put_aside(key, reason)
        else:
            self._suspects.append(key)

    def _put_aside(self, key: str, reason: str) -> None:
        del self.left[key]
        self.set_aside[key] = (reason, self.failures[key])
