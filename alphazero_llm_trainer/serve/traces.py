"""The trees of answers: the newest ones in memory, on disk only where that is asked for."""

from __future__ import annotations

import logging
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import ConfigError
from ..mcts.journal import Journal
from ..rollouts import GradedTree
from ..types import Problem, Task
from .failures import ApiError
from .outcomes import DEADLINE, Outcome
from .requests import Wanted

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Trace:
    """An answer with its tree. It becomes JSON when somebody asks for it."""

    name: str
    wanted: Wanted
    outcome: Outcome
    policy_version: int

    def record(self) -> dict[str, Any]:
        """The journal line, as `collect` writes those of training: nobody knows the gold answer here."""
        outcome, wanted = self.outcome, self.wanted
        assert outcome.tree is not None
        ungraded = GradedTree(
            self.name,
            Task(Problem(self.name, wanted.question, "user"), ""),
            outcome.tree,
            outcome.cost,
            outcome.ended_by,
            flat_at_first=True,
            extensions=0,
            prompt_ids=wanted.prompt,
            policy_version=self.policy_version,
        )
        served = {"method": wanted.method.label, "response": outcome.text, "deadline_hit": outcome.ended_by == DEADLINE}
        served |= {name: getattr(outcome, name) for name in ("answer", "node", "why", "seed")}
        # Its own split, so that nothing learns from it by mistake: the question may be anybody's, a benchmark's too.
        return ungraded.record(split="served", served=served)


class Traces:
    """The `count` newest traces by name, and the journal of all of them in `folder` (None: none is written), as `export`
    and `view` read it. Raises ConfigError where nothing can be written there."""

    def __init__(self, count: int, folder: Path | None = None) -> None:
        self.count = count
        self.kept: OrderedDict[str, Trace] = OrderedDict()
        self.journal: Journal | None = None
        if folder is not None:
            try:
                self.journal = Journal(folder / "journal.jsonl")
            except OSError as error:
                reason = f"--keep-traces is {folder}, where nothing can be written ({error.strerror})"
                raise ConfigError(f"{reason}: name another folder") from error

    def put(self, trace: Trace) -> None:
        """Keep a trace, and drop the oldest one beyond `count`."""
        self.kept[trace.name] = trace
        while len(self.kept) > self.count:
            self.kept.popitem(last=False)
        if self.journal is None:
            return
        try:
            self.journal.append(trace.record())
            self.journal.forget()  # served ids never come twice, and a server runs for long
        except OSError as error:  # a disk that is full costs the trees from then on, and no answer
            log.warning("served trees can't be kept any more (%s): free the disk and start again", error.strerror)
            self.journal = None

    def get(self, name: str) -> Trace:
        """A trace by its id. Raises ApiError where it isn't there, or no more."""
        if name not in self.kept:
            raise ApiError("there is no such trace, or no more: the newest ones alone are kept", 404, code="not_found")
        return self.kept[name]
