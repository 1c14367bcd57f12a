"""Workers that search the questions of a queue, `collect` in this process or in Ray's: the trees are the same."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..config.load import Config
from ..errors import ConfigError, EngineError
from ..types import Task
from .questions import Queue
from .worker import FATAL, MakeCollector, Worker, WorkerStats, peak_bytes

Stop = Callable[[], bool]
POLL_SECONDS = 0.25
START_SECONDS = 300.0  # how long workers may take to load
LEAVE_SECONDS = 10.0  # how long they may take to unload adapters from a server
KNOCK_SECONDS = 10.0


class DiedError(Exception):
    """A worker's process died while it searched a question; nobody's fault in particular."""


@dataclass(slots=True)
class Flight:
    """A question under way: its search's handle is the key of `Pool.flying`."""

    worker: int
    key: str
    alone: bool
    began: float = field(default_factory=time.monotonic)


class Pool(ABC):
    """So many workers with one policy, `search.concurrent` trees alive in each."""

    policy: dict[str, Any]

    def __init__(self, config: Config, workers: int) -> None:
        self.config, self.workers = config, workers
        self.flying: dict[Any, Flight] = {}
        self.asleep: set[int] = set()  # workers that are being started

    def collect(
        self, queue: Queue, tasks: Mapping[str, Task], split: str, seed: int, stop: Stop
    ) -> Iterator[dict[str, Any]]:
        """Journal records of the queue's questions as they end, each once; ends early when `stop` says so.

        `split` is where the questions come from, for the records. A `FATAL` error of a search is raised.
        """
        while not stop() and (queue.waiting or self.flying):
            for worker, questions in self.due(queue):
                self.start(worker, [(key, alone, (key, tasks[key], split, seed)) for key, alone in questions])
            for flight, outcome in self.ended():
                if isinstance(outcome, FATAL):
                    raise outcome
                if isinstance(outcome, Exception):
                    queue.failed(flight.key, reason_of(outcome), flight.alone)
                elif outcome is not None:
                    queue.done(flight.key)
                    yield outcome

    def due(self, queue: Queue) -> list[tuple[int, list[tuple[str, bool]]]]:
        """(worker, its next questions as (key, runs alone)): what may start now."""
        flights = {worker: [f for f in self.flying.values() if f.worker == worker] for worker in range(self.workers)}
        room = {
            worker: 0 if any(flight.alone for flight in mine) else self.config.search.concurrent - len(mine)
            for worker, mine in flights.items()
            if worker not in self.asleep
        }
        given: dict[int, list[tuple[str, bool]]] = {worker: [] for worker in room}
        # The emptiest first, so that the workers end together.
        while room and room[worker := max(room, key=lambda w: room[w])] and (key := queue.fresh()) is not None:
            given[worker].append((key, False))
            room[worker] -= 1
        for worker, questions in given.items():
            if not questions and not flights[worker] and (key := queue.suspect()) is not None:
                questions.append((key, True))
        return [(worker, questions) for worker, questions in given.items() if questions]

    @abstractmethod
    def start(self, worker: int, questions: Sequence[tuple[str, bool, tuple[Any, ...]]]) -> None:
        """Start (key, runs alone, arguments of `Worker.search`) and note them in `flying`."""

    @abstractmethod
    def ended(self) -> list[tuple[Flight, dict[str, Any] | Exception | None]]:
        """Wait a moment for searches to end; take them from `flying` and return what each gave or raised."""

    @abstractmethod
    def stats(self) -> WorkerStats:
        """Sums over all workers."""

    @abstractmethod
    def close(self) -> None:
        """End what is under way, and all processes."""


class LocalPool(Pool):
    """One worker in this process, on this thread. `on_start` is told (key, runs alone) before a question runs."""

    def __init__(
        self,
        config: Config,
        student_path: Path | None,
        make_collector: MakeCollector,
        on_start: Callable[[str, bool], None] = lambda key, alone: None,
    ) -> None:
        super().__init__(config, 1)
        self.on_start = on_start
        self.worker = Worker(config, student_path, make_collector)
        self.policy = self.worker.load()
        self._runner = asyncio.Runner()

    def start(self, worker: int, questions: Sequence[tuple[str, bool, tuple[Any, ...]]]) -> None:
        async def begin() -> None:
            for key, alone, arguments in questions:
                self.on_start(key, alone)
                self.flying[asyncio.ensure_future(self.worker.search(*arguments))] = Flight(0, key, alone)

        self._runner.run(begin())

    def ended(self) -> list[tuple[Flight, dict[str, Any] | Exception | None]]:
        async def wait() -> Any:
            return await asyncio.wait(self.flying, timeout=POLL_SECONDS, return_when=asyncio.FIRST_COMPLETED)

        done, _ = self._runner.run(wait())
        found: list[tuple[Flight, dict[str, Any] | Exception | None]] = []
        for task in done:
            error = task.exception()
            if error is not None and not isinstance(error, Exception):
                raise error
            found.append((self.flying.pop(task), task.result()[0] if error is None else error))
        return found

    def stats(self) -> WorkerStats:
        return self.worker.stats()

    def close(self) -> None:
        self._runner.close()  # cancels what is under way
        self.flying.clear()


class RayPool(Pool):
    """Workers as Ray actors. Ray starts those that die again; their questions are searched again.

    Args:
        config, student_path, make_collector: see `Worker`. On a cluster every node must have the folder.
        workers: how many.
        address: a running cluster ("auto" finds one on this machine), or None for one that ends with the pool.
        say: told about deaths.

    Raises ConfigError where Ray is missing, unreachable, or has no room for the workers, and what `Worker.load` raises.
    """

    def __init__(
        self,
        config: Config,
        student_path: Path | None,
        workers: int,
        address: str | None,
        make_collector: MakeCollector,
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        super().__init__(config, workers)
        self.say, self.policy, self.restarts = say, {}, 0
        self.ours = connect(address, workers)
        import ray

        # Each keeps books of its own, of its share of the teachers' budget; one that is started again begins anew.
        teachers = config.teachers.model_copy(update={"budget": config.teachers.budget.share(workers)})
        gpus = min(ray.cluster_resources().get("GPU", 0) / workers, 1)
        # Ray restarts a worker without limit, and retries no search: it must run alone the next time.
        actor = ray.remote(num_cpus=1, num_gpus=gpus, max_restarts=-1, max_task_retries=0)(Worker)
        mine = config.model_copy(update={"teachers": teachers})
        self.actors: list[Any] = [actor.remote(mine, student_path, make_collector) for _ in range(workers)]
        self._waking: dict[Any, tuple[int, float]] = {}  # reference of `ready` -> worker, when it was asked
        self._stats: dict[tuple[int, int], WorkerStats] = {}  # by worker and life
        self._lives = [0] * workers
        with ExitStack() as undo:
            undo.callback(self.close)
            for worker in range(workers):
                self._wake(worker)
            while not self.policy:
                self.ended()
            undo.pop_all()

    def _wake(self, worker: int) -> None:
        """Ask a worker to load; it gets no questions before it has."""
        self.asleep.add(worker)
        reference = self.actors[worker].ready.options(max_task_retries=-1).remote()
        self._waking[reference] = worker, time.monotonic()

    def start(self, worker: int, questions: Sequence[tuple[str, bool, tuple[Any, ...]]]) -> None:
        for key, alone, arguments in questions:
            self.flying[self.actors[worker].search.remote(*arguments)] = Flight(worker, key, alone)

    def ended(self) -> list[tuple[Flight, dict[str, Any] | Exception | None]]:
        import ray

        references = [*self._waking, *self.flying]
        done, _ = ray.wait(references, num_returns=1, timeout=POLL_SECONDS)
        if done:
            done, _ = ray.wait(references, num_returns=len(references), timeout=0)
        found = []
        for reference in done:
            if reference in self._waking:
                self._woken(reference)
            else:
                flight = self.flying.pop(reference)
                found.append((flight, self._outcome(flight, reference)))
        self._end_hanging()
        return found

    def _woken(self, reference: Any) -> None:
        """A worker has loaded. Raises what it raised, and ConfigError where it has another student than the others."""
        import ray
        from ray.exceptions import RayActorError, RayTaskError

        worker, _ = self._waking.pop(reference)
        try:
            policy = ray.get(reference)
        except RayTaskError as error:
            raise error.cause from error
        except RayActorError as error:
            raise EngineError(f"a worker can't start ({short(error)}): is the same code on every node?") from error
        self.asleep.discard(worker)
        self.policy = self.policy or policy
        differ = [name for name, known in self.policy.items() if policy[name] != known]
        if differ:
            raise ConfigError(
                f"worker {worker} has another student or value than the others (different {', '.join(differ)}): give every"
                " node the same files and the same settings"
            )

    def _outcome(self, flight: Flight, reference: Any) -> dict[str, Any] | Exception | None:
        import ray
        from ray.exceptions import RayActorError, RayTaskError

        worker = flight.worker
        try:
            record, self._stats[worker, self._lives[worker]] = ray.get(reference)
        except RayTaskError as error:
            return error.cause if isinstance(error.cause, Exception) else error
        except RayActorError as error:
            if worker not in self.asleep:
                self.restarts += 1
                self._lives[worker] += 1
                lost = sum(other.worker == worker for other in self.flying.values()) + 1
                self.say(f"worker {worker} is started again ({short(error)}); {lost} questions were in flight")
                self._wake(worker)
            return DiedError("its process died")
        return record

    def _end_hanging(self) -> None:
        """Kill a worker of which a question is far over its time: its event loop hangs. Raises ConfigError where none loads."""
        import ray

        now, limit = time.monotonic(), 2 * self.config.sample.timeout_seconds + 5
        for worker in {flight.worker for flight in self.flying.values() if now - flight.began > limit} - self.asleep:
            ray.kill(self.actors[worker], no_restart=False)
        if len(self.asleep) == self.workers and all(now - asked > START_SECONDS for _, asked in self._waking.values()):
            raise ConfigError(
                f"no worker was ready after {START_SECONDS:g} s: the cluster needs a core for each of {self.workers}"
            )

    def stats(self) -> WorkerStats:
        total = WorkerStats(peak_bytes=peak_bytes(), restarts=self.restarts)
        for part in self._stats.values():
            total.add(part)
        return total

    def close(self) -> None:
        import ray
        from ray.exceptions import RayError

        if self.config.engine.backend == "vllm-server" and self.policy:
            # A killed process can't unload its adapter.
            leaving = [actor.close.remote() for actor in self.actors]
            ray.wait(leaving, num_returns=len(leaving), timeout=LEAVE_SECONDS)
        for actor in self.actors:
            try:
                ray.kill(actor)
            except RayError:
                continue
        if self.ours:
            ray.shutdown()


def connect(address: str | None, cpus: int) -> bool:
    """Connect to Ray, or start it here on so many logical cores; returns whether the connection is ours to end.

    Raises ConfigError when Ray is not installed or nothing answers at the address.
    """
    if address is None:
        # Without it a local cluster writes a token into the home folder and warns about it.
        os.environ.setdefault("RAY_AUTH_MODE", "disabled")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # A CPU-only actor on a GPU machine keeps its view of the devices without a warning.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        import ray
    except ImportError as error:
        raise ConfigError("Ray is not installed: install alphazero-llm-trainer[scale], or use --workers 1") from error
    if ray.is_initialized():
        return False
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    try:
        if address is None:
            ray.init(num_cpus=cpus, include_dashboard=False, **quiet)
        else:
            knock(address)
            ray.init(address=address, **quiet)
    except (OSError, ValueError, RuntimeError, ray.exceptions.RayError) as error:
        where = "on this machine" if address is None else f"at {address}"
        raise ConfigError(f"Ray can't be reached {where} ({str(error).splitlines()[0]}): check --address") from error
    return True


def knock(address: str) -> None:
    """Raise OSError where nothing listens at HOST:PORT: Ray itself tries for minutes."""
    host, _, port = address.rpartition("://")[2].rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host, int(port)), timeout=KNOCK_SECONDS).close()


def reason_of(error: BaseException) -> str:
    """An exception as one short line."""
    if isinstance(error, (TimeoutError, DiedError)):
        return str(error)
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0][:200]}" if text else type(error).__name__


def short(error: BaseException) -> str:
    """A Ray error's first words: the whole text is a page."""
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0][:120]}"
