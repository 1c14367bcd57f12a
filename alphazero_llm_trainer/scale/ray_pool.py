"""The pool of many processes: the driver hands out questions one by one and takes records back.

A dead search actor loses the questions it had in flight, a dead engine those of its whole lane; `QuestionQueue` decides how
the lost ones run next. A lane that runs a group under suspicion runs nothing else.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ..config.load import Config
from ..errors import ConfigError
from ..types import Task
from .fleet import Fleet, Searcher, short
from .pool import HEAD_STAYS, MakeCollector, PoolStats, Stop, default_collector, reason_of
from .question_queue import QuestionQueue


class RayPool:
    """`Pool` over Ray actors.

    Args:
        config: decides the trees; `sample` sizes the pool and bounds waiting.
        student_path: a folder with the student's weights, or None. On a cluster every node must have it.
        workers: search actors.
        address: a running cluster, or None for one on this machine.
        make_collector: what searches; pickled into the search actors.
        say: told about deaths.

    Raises:
        ConfigError: Ray is missing, unreachable, or has no room for the actors.
        AlphaZeroError: the student can't be loaded.
    """

    def __init__(
        self,
        config: Config,
        student_path: Path | None,
        workers: int,
        address: str | None = None,
        make_collector: MakeCollector = default_collector,
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.config = config
        self.fleet = Fleet(config, student_path, workers, address, make_collector, say)
        self.policy = self.fleet.policy

    def collect(
        self, schedule: QuestionQueue, tasks: Mapping[str, Task], split: str, seed: int, stop: Stop
    ) -> Iterator[dict[str, Any]]:
        """See `Pool.collect`."""
        while not stop() and len(schedule):
            self._fill(schedule, tasks, split, seed)
            yield from self._ended(schedule)
            self.fleet.mend(schedule.lost)

    def _fill(self, schedule: QuestionQueue, tasks: Mapping[str, Task], split: str, seed: int) -> None:
        """Hand out what may start now."""
        for lane in self.fleet.lanes:
            if lane.card is None or lane.dead is not None or lane.swapping:
                continue
            if lane.version != self.fleet.version:
                if not lane.flying:
                    self.fleet.swap(lane)
                continue
            ready = [one for one in lane.searchers if one.client is not None and one.dead is None]
            if not ready or (lane.alone and lane.flying):
                continue
            lane.alone = False
            room = self.config.sample.worker_trees
            # The emptiest first, so that the actors end together.
            while (free := min(ready, key=lambda one: len(one.flying))) and len(free.flying) < room:
                key = schedule.fresh()
                if key is None:
                    break
                self._submit(free, key, tasks[key], split, seed)
            if not lane.flying and not any(one.lost for one in lane.searchers):
                group = schedule.group()
                for key in group or ():
                    lane.alone = True
                    self._submit(ready[0], key, tasks[key], split, seed)

    def _submit(self, searcher: Searcher, key: str, task: Task, split: str, seed: int) -> None:
        reference = searcher.handle.search.remote(key, task, split, seed, self.fleet.version)
        searcher.flying[reference] = key
        # The actor keeps the time itself; this is for one whose event loop hangs.
        searcher.deadlines[key] = time.monotonic() + 2 * self.config.sample.timeout_seconds + 5

    def _ended(self, schedule: QuestionQueue) -> Iterator[dict[str, Any]]:
        """The records of searches that have ended."""
        # All outcomes first: the consumer of a record may take its time, and deaths must be seen together.
        records = [self._outcome(searcher, reference, schedule) for searcher, reference in self.fleet.attend()]
        yield from (record for record in records if record is not None)

    def _outcome(self, searcher: Searcher, reference: Any, schedule: QuestionQueue) -> dict[str, Any] | None:
        """What came of a question: its record, or None and the schedule (or the dead actor's list) knows."""
        import ray
        from ray.exceptions import RayError, RayTaskError

        lane = searcher.lane
        key = searcher.flying.pop(reference)
        searcher.deadlines.pop(key, None)
        try:
            kind, value = ray.get(reference)
        except RayTaskError as error:
            kind, value = "failed", reason_of(error.cause if error.cause is not None else error)
        except RayError as error:
            searcher.dead = searcher.dead or short(error)
            searcher.lost.append(key)
            return None
        if kind == "tree":
            return value if value["ended_by"] != "stopped" and schedule.done(key) else None
        if kind == "fatal":
            raise value
        if kind == "engine":
            lane.dead = lane.dead or value
            lane.lost.append(key)
            return None
        alone = schedule.failed(key, value)
        if kind == "time-out" and alone:
            # Whatever it left running in the engine, and an engine that hangs, must not hurt the next one.
            lane.dead = lane.dead or "a question timed out alone"
        return None

    def push(self, weights: Mapping[str, Any], version: int) -> None:
        """See `Pool.push`. The weights go into the object store once; each lane swaps when its trees have ended."""
        if self.fleet.head:
            raise ConfigError(HEAD_STAYS)
        import ray

        self.fleet.weights = ray.put({name: tensor.detach().cpu() for name, tensor in weights.items()})
        self.fleet.version = version

    def stats(self) -> PoolStats:
        """See `Fleet.stats`."""
        return self.fleet.stats()

    def close(self) -> None:
        """End all actors, and Ray where we started it."""
        self.fleet.close()
