"""The trees of answers: the newest ones in memory, bounded by number, size and age; on disk only where that is asked for."""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..collect import GradedTree
from ..errors import ConfigError
from ..mcts.journal import Journal
from ..types import Problem, Task
from .outcomes import Outcome

log = logging.getLogger(__name__)

NODE_BYTES, TOKEN_BYTES, ENTRY_BYTES = 900, 60, 150  # of a node's columns, of a token in them, of the history's entries


@dataclass(frozen=True, slots=True)
class Trace:
    """An answer with its tree, and what its record says beside that. It becomes JSON when somebody asks for it."""

    name: str
    question: str
    prompt_ids: tuple[int, ...]
    outcome: Outcome
    method: str
    policy_version: int

    @property
    def size(self) -> int:
        """About so many bytes of memory."""
        tree = self.outcome.tree
        assert tree is not None
        tokens = sum(map(len, tree.token_ids)) + sum(len(rollout.token_ids) for rollout in tree.rollouts)
        entries = len(tree) * NODE_BYTES + (len(tree.backups) + len(tree.simulations)) * ENTRY_BYTES
        return entries + tokens * TOKEN_BYTES + len(tree.rollouts) * NODE_BYTES + 8 * len(self.prompt_ids)

    def record(self) -> dict[str, Any]:
        """The journal line, as `collect` writes those of training: nobody knows the gold answer here."""
        outcome = self.outcome
        assert outcome.tree is not None
        ungraded = GradedTree(
            self.name,
            Task(Problem(self.name, self.question, "user"), ""),
            outcome.tree,
            outcome.cost,
            outcome.ended_by,
            flat_at_first=True,
            extensions=0,
            prompt_ids=self.prompt_ids,
            policy_version=self.policy_version,
            saved=outcome.saved,
        )
        served = {
            "method": self.method,
            "response": outcome.text,
            "answer": outcome.answer,
            "node": outcome.node,
            "why": outcome.why,
            "deadline_hit": outcome.deadline_hit,
            "seed": outcome.seed,
        }
        # Its own split, so that nothing learns from it by mistake: the question may be anybody's, a benchmark's too.
        return ungraded.record(split="served", served=served)


class TraceStore:
    """Traces by name, the least recently used ones dropped first.

    Args:
        count, size, seconds: how many, about how many bytes of memory, and how long each is kept.
        clock: seconds, for tests.
    """

    def __init__(self, count: int, size: int, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.count, self.size, self.seconds, self.clock = count, size, seconds, clock
        self.bytes = 0
        self._kept: OrderedDict[str, tuple[Trace, int]] = OrderedDict()  # with its size, the least recently used first
        self._ages: OrderedDict[str, float] = OrderedDict()  # when each came, the oldest first

    def __len__(self) -> int:
        self._forget_old()
        return len(self._kept)

    def put(self, trace: Trace) -> None:
        """Keep a trace, and drop what is too old or too much; one that is too large alone isn't kept."""
        self._forget_old()
        size, now = trace.size, self.clock()
        if size > self.size or not self.count:
            return
        self._kept[trace.name] = trace, size
        self._ages[trace.name] = now
        self.bytes += size
        while len(self._kept) > self.count or self.bytes > self.size:
            self._remove(next(iter(self._kept)))

    def get(self, name: str) -> Trace | None:
        """A trace that is still there."""
        self._forget_old()
        if name not in self._kept:
            return None
        self._kept.move_to_end(name)
        return self._kept[name][0]

    def newest(self) -> list[tuple[Trace, float]]:
        """All traces with their ages in seconds, the newest first. Looking at the list uses none of them."""
        self._forget_old()
        now = self.clock()
        return [(self._kept[name][0], now - came) for name, came in reversed(self._ages.items())]

    def _remove(self, name: str) -> None:
        self.bytes -= self._kept.pop(name)[1]
        del self._ages[name]

    def _forget_old(self) -> None:
        oldest = self.clock() - self.seconds
        while self._ages and self._ages[name := next(iter(self._ages))] < oldest:
            self._remove(name)


class KeptJournal:
    """The opt-in journal of served trees, `journal.jsonl` in a folder, as `export` and `view` read it."""

    def __init__(self, folder: Path) -> None:
        try:
            self._journal = Journal(folder / "journal.jsonl")
        except OSError as error:
            raise ConfigError(
                f"--keep-traces is {folder}, where nothing can be written ({error.strerror}): name another folder"
            ) from error
        self._journal.forget()  # served ids never come twice, and a server runs for long
        self._failed = False

    def append(self, record: dict[str, Any]) -> None:
        """Keep a tree. A disk that is full costs the trees from then on, and no answer."""
        if self._failed:
            return
        try:
            self._journal.append(record)
        except OSError as error:
            self._failed = True  # a line after half a line would make the journal unreadable
            log.warning("served trees can't be kept any more (%s): free the disk and start again", error.strerror)
        self._journal.forget()

    def close(self) -> None:
        with suppress(OSError) if self._failed else nullcontext():
            self._journal.close()
