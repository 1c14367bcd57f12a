"""Which question runs next, alone or beside others, and when one is set aside. Pure: no clock, no engine, no Ray."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence


class QuestionQueue:
    """Questions by key, each to be finished once or set aside.

    Fresh questions run beside each other. When something dies with several in flight, nobody knows the culprit: they
    become groups that run with nothing beside them, and a group that dies again is halved. Only a failure of a question
    that ran alone counts against it, so a question that merely stood near a crash is never set aside.

    Args:
        keys: what is to be searched, in order.
        attempts: failures alone after which a question is set aside.
        failures: such failures of earlier sessions.
        suspects: keys that earlier sessions left under suspicion; each runs alone.
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
        self.attempts, self.on_failure = attempts, on_failure
        self.failures = dict(failures or {})
        self.left = dict.fromkeys(keys)
        self.set_aside: dict[str, tuple[str, int]] = {}
        suspected = [key for key in dict.fromkeys(suspects) if key in self.left]
        for key in [key for key in self.left if self.failures.get(key, 0) >= attempts]:
            self._put_aside(key, "failed in earlier sessions")
        self._alone: set[str] = set()  # handed out with nothing beside it
        self._groups: deque[tuple[str, ...]] = deque((key,) for key in suspected if key in self.left)
        self._fresh = deque(key for key in self.left if key not in set(suspected))

    def __len__(self) -> int:
        """Questions that are neither finished nor set aside."""
        return len(self.left)

    def fresh(self) -> str | None:
        """The next question that may run beside others, or None."""
        return self._fresh.popleft() if self._fresh else None

    def group(self) -> tuple[str, ...] | None:
        """The next questions that must run with no others beside them, or None."""
        if not self._groups:
            return None
        group = self._groups.popleft()
        if len(group) == 1:
            self._alone.add(group[0])
        return group

    def done(self, key: str) -> bool:
        """Call once a question's tree is there; False where it was finished or set aside before."""
        if key not in self.left:
            return False
        del self.left[key]
        self._alone.discard(key)
        return True

    def lost(self, keys: Sequence[str], reason: str) -> None:
        """Something died while exactly these questions were in flight on it."""
        keys = [key for key in keys if key in self.left]
        if len(keys) == 1:
            self.failed(keys[0], reason)
            return
        half = (len(keys) + 1) // 2
        for part in (keys[:half], keys[half:]):
            if part:
                self._groups.append(tuple(part))
        for key in keys:
            self.on_failure(key, reason, False, self.failures.get(key, 0))

    def failed(self, key: str, reason: str) -> bool:
        """This question raised, timed out or was lost by itself; it runs again, alone, or is set aside.

        Returns whether it had run alone this time.
        """
        alone = key in self._alone
        self._alone.discard(key)
        if key not in self.left:
            return alone
        self.failures[key] = self.failures.get(key, 0) + alone
        count = self.failures[key]
        self.on_failure(key, reason, alone, count)
        if count >= self.attempts:
            self._put_aside(key, reason)
        else:
            self._groups.append((key,))
        return alone

    def _put_aside(self, key: str, reason: str) -> None:
        del self.left[key]
        self.set_aside[key] = (reason, self.failures[key])
