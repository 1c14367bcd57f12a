"""The pool of one process: one engine batches all trees, on this thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ..collect import GradedTree, Perplexity
from ..config.load import Config
from ..errors import ConfigError
from ..types import Task
from .host import Host
from .pool import (
    FATAL,
    HEAD_STAYS,
    MakeCollector,
    PoolStats,
    Stop,
    default_collector,
    peak_bytes,
    reason_of,
    search_one,
    teacher_costs,
)
from .question_queue import QuestionQueue

POLL_SECONDS = 0.25


class LocalPool:
    """`Pool` over an engine in this process: `search.concurrent` trees at once.

    Args:
        host: the loaded policy.
        config: decides the trees; `sample.timeout_seconds` bounds each.
        on_start: told (key, runs alone) before a question runs.
        make_collector: what searches; `default_collector` unless a test says otherwise.
    """

    def __init__(
        self,
        host: Host,
        config: Config,
        on_start: Callable[[str, bool], None] = lambda key, alone: None,
        make_collector: MakeCollector = default_collector,
    ) -> None:
        self.host, self.config, self.on_start = host, config, on_start
        self.policy = host.describe()
        perplexity = None if host.frozen is None else Perplexity(host.frozen, config.search.max_tokens)
        self.collector = make_collector(host.student, config, perplexity, host.value)
        self._pushed: tuple[Mapping[str, Any], int] | None = None
        self._running: dict[asyncio.Task[GradedTree], str] = {}
        self._alone: list[str] = []

    def collect(
        self, schedule: QuestionQueue, tasks: Mapping[str, Task], split: str, seed: int, stop: Stop
    ) -> Iterator[dict[str, Any]]:
        """See `Pool.collect`."""
        with asyncio.Runner() as runner:
            try:
                while not stop():
                    if not runner.run(self._fill(schedule, tasks, seed)):
                        break
                    for key, ended in runner.run(self._ended(stop)):
                        record = self._outcome(schedule, key, ended, split, seed)
                        if record is not None:
                            yield record
            finally:
                runner.run(self._abandon())
                if self.collector.perplexity is not None:
                    self.collector.perplexity.forget()

    async def _fill(self, schedule: QuestionQueue, tasks: Mapping[str, Task], seed: int) -> bool:
        """Start what may start; False when nothing runs any more."""
        if self._pushed is not None:
            if self._running:
                return True
            weights, version = self._pushed
            self.host.student.engine.set_policy(weights, version)
            self._pushed = None
        if not self._alone:
            while len(self._running) < self.config.search.concurrent and (key := schedule.fresh()) is not None:
                self._start(key, tasks[key], seed, alone=False)
        if not self._running:
            if not self._alone:
                self._alone = list(schedule.group() or ())
            if self._alone:
                key = self._alone.pop()
                self._start(key, tasks[key], seed, alone=True)
        return bool(self._running)

    def _start(self, key: str, task: Task, seed: int, alone: bool) -> None:
        self.on_start(key, alone)
        whole = asyncio.wait_for(search_one(self.collector, key, task, seed), self.config.sample.timeout_seconds)
        self._running[asyncio.ensure_future(whole)] = key

    async def _ended(self, stop: Stop) -> list[tuple[str, GradedTree | BaseException]]:
        """What the searches that have ended gave or raised: at least one unless the user wants to stop."""
        done: set[asyncio.Task[GradedTree]] = set()
        while not done and not stop():
            done, _ = await asyncio.wait(self._running, timeout=POLL_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        return [(self._running.pop(task), task.exception() or task.result()) for task in done]

    def _outcome(
        self, schedule: QuestionQueue, key: str, ended: GradedTree | BaseException, split: str, seed: int
    ) -> dict[str, Any] | None:
        """The ended search's record, or None when it failed: then the schedule knows."""
        if isinstance(ended, TimeoutError):
            schedule.failed(key, f"no tree within {self.config.sample.timeout_seconds:g} s")
        elif isinstance(ended, BaseException):
            if not isinstance(ended, Exception) or isinstance(ended, FATAL):
                raise ended
            schedule.failed(key, reason_of(ended))
        elif ended.ended_by != "stopped" and schedule.done(key):
            return ended.record(seed=seed, split=split)
        return None

    async def _abandon(self) -> None:
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
        self._running.clear()

    def push(self, weights: Mapping[str, Any], version: int) -> None:
        """See `Pool.push`; trees that are under way end with the weights they began with."""
        if self.host.value is not None and not self.host.value.own:
            raise ConfigError(HEAD_STAYS)
        self._pushed = (weights, version)

    def stats(self) -> PoolStats:
        """See `PoolStats`."""
        computed = self.host.student.engine.stats.computed_tokens
        return PoolStats(computed, peak_bytes(), 0, teacher_costs(self.collector))

    def close(self) -> None:
        """Nothing to end: the engine lives and dies with this process."""
