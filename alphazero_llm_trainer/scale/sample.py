"""A sample run: questions in, exactly one journal record a question out, whatever dies in between."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..config.load import Config
from ..errors import DataError
from ..live import Progress
from ..rollouts import Collector
from ..types import Task
from .folder import SampleFolder
from .totals import Summary, Totals, tell_tree
from .worker import FATAL
from .workers import GoneError, InProcess, OnRay

Stop = Callable[[], bool]
POLL_SECONDS = 0.25  # between two looks at `stop`
ATTEMPTS = 3  # failures of a question while it ran alone after which it is set aside


@dataclass(frozen=True, slots=True)
class SampleJob:
    """What to sample and with what.

    Args:
        config: the resolved configuration.
        tasks: the questions, ids unique.
        split: where they come from, for the manifest and the records.
        start: number of the first of them within the split.
        student_path: a folder with the student's weights, or None for the configured ones.
        workers: 1 searches in this process; more start Ray with so many workers.
        address: an existing Ray cluster, or None for one on this machine.
        make_collector: what searches; `Collector` unless a test says otherwise.
    """

    config: Config
    tasks: Sequence[Task]
    split: str = "train"
    start: int = 0
    student_path: Path | None = None
    workers: int = 1
    address: str | None = None
    make_collector: Callable[..., Collector] = Collector

    def open_workers(self, folder: Path, progress: Progress) -> InProcess | OnRay:
        """The workers that are asked for, with their policy loaded."""
        parts = self.config, self.student_path, self.make_collector
        if self.workers > 1 or self.address is not None:
            return OnRay(*parts, self.workers, self.address, progress.say)
        return InProcess(*parts, folder)


def identity(job: SampleJob) -> dict[str, Any]:
    """What decides the trees. Pacing (how many at once, where they run) is left out: it may change."""
    decides = job.config.model_dump(
        mode="json",
        include={
            "student": True,
            "problems": {"source", "levels", "hold_out"},
            "dataset": True,
            "search": True,
            "rewards": True,
            "teachers": True,
            "train": {"groups", "requeue_limit", "reward"},  # what the collector reads
        },
        exclude={
            "search": {"concurrent"},
            "teachers": {"budget", "timeout_seconds", "max_retries", "max_concurrent"},
        },
    )
    return {"config": decides, "split": job.split, "start": job.start, "seed": job.config.seed}


def run_sample(
    job: SampleJob,
    out: Path,
    *,
    resume: bool = False,
    stop: Stop = lambda: False,
    progress: Progress | None = None,
    on_record: Callable[[dict[str, Any]], None] = lambda record: None,
) -> Summary:
    """Sample into the folder `out`; this process is its only writer.

    Args:
        job: what to sample.
        out: the output folder.
        resume: go on with the run that `out` holds.
        stop: True once the user wants to end; unfinished trees are left to a resumed run.
        progress: told what goes on.
        on_record: called after each record is on the disk.

    Raises:
        ConfigError: `out` holds another run, or Ray is asked for and missing.
        DataError: two questions have one id, or the folder is broken.
    """
    progress = progress if progress is not None else Progress(quiet=True)
    tasks = {task.problem.id: task for task in job.tasks}
    if len(tasks) < len(job.tasks):
        raise DataError("two questions have the same id: sample needs one id a question")
    began = time.perf_counter()
    folder = SampleFolder(out, identity(job), job.tasks, resume)
    try:
        with closing(job.open_workers(folder.path, progress)) as workers:
            folder.begin(workers.policy)
            run = Run(job, tasks, folder, workers, stop, progress, on_record)
            return asyncio.run(run.sample(time.perf_counter() - began))
    finally:
        folder.release()


@dataclass(slots=True)
class Run:
    """One session of a sample run; see `run_sample`."""

    job: SampleJob
    tasks: Mapping[str, Task]
    folder: SampleFolder
    workers: InProcess | OnRay
    stop: Stop
    progress: Progress
    on_record: Callable[[dict[str, Any]], None]

    async def sample(self, start_seconds: float) -> Summary:
        """Search what is left of the questions into the folder."""
        folder, progress, session = self.folder, self.progress, Totals()
        left = folder.left(self.tasks)
        if folder.journal.dropped_bytes:
            progress.say(f"dropped {folder.journal.dropped_bytes:,} bytes of a half-written tree: it is searched again")
        progress.start(len(self.tasks), len(self.tasks) - len(left), "tree")
        searching, status = time.perf_counter(), "stopped"

        def summary() -> Summary:
            counts = len(self.tasks), len(folder.journal), [*folder.aside.values()]
            workers, seconds = self.workers, time.perf_counter() - searching
            return Summary(status, *counts, session, workers.teachers(), workers.restarts, seconds, start_seconds)

        try:
            async with aclosing(self.collect(left)) as records:
                async for record in records:
                    folder.write(record)
                    one = Totals.of(record)
                    session.add(one)
                    tell_tree(progress, session, summary().dollars, record, one)
                    self.on_record(record)
            status = "stopped" if folder.left(self.tasks) else "complete"
        finally:
            progress.stop()
            folder.end(status)
        return summary()

    async def collect(self, keys: Sequence[str]) -> AsyncGenerator[dict[str, Any], None]:
        """Journal records of the questions as they end.

        Questions run beside each other, `search.concurrent` a worker. One that failed, or whose worker died, may have been
        taken down by a neighbour: it runs again after the others, with nothing beside it on its worker. Only such failures
        count, and after `ATTEMPTS` of them it is set aside. A `FATAL` error is raised.
        """
        for width in (self.job.config.search.concurrent, *[1] * ATTEMPTS):
            slots = [worker for _ in range(width) for worker in range(self.workers.count)]
            failed: dict[str, Exception] = {}
            async with aclosing(self.beside(keys, slots)) as outcomes:
                async for key, outcome in outcomes:
                    if isinstance(outcome, FATAL):
                        raise outcome
                    if isinstance(outcome, Exception):
                        failed[key] = outcome
                    elif outcome is not None:
                        yield outcome
            keys = [*failed]
        if not self.stop():
            for key, error in failed.items():
                self.folder.set_aside(key, reason_of(error), ATTEMPTS)
                self.progress.say(f"set aside: {key} after {ATTEMPTS} attempts: {reason_of(error)}")

    async def beside(
        self, keys: Iterable[str], slots: Iterable[int]
    ) -> AsyncGenerator[tuple[str, dict[str, Any] | Exception | None], None]:
        """What each question gave or raised, with at most one in each slot of a worker at a time; less once `stop` says so."""
        waiting, free = deque(keys), deque(slots)
        flying: dict[asyncio.Future[Any], tuple[int, str]] = {}
        try:
            while (waiting or flying) and not self.stop():
                while waiting and free:
                    worker, key = free.popleft(), waiting.popleft()
                    search = self.workers.search(worker, key, self.tasks[key], self.job.split, self.job.config.seed)
                    flying[asyncio.ensure_future(search)] = worker, key
                done, _ = await asyncio.wait(flying, timeout=POLL_SECONDS, return_when=asyncio.FIRST_COMPLETED)
                for one in done:
                    worker, key = flying.pop(one)
                    error = one.exception()
                    if isinstance(error, GoneError) and (free or flying):
                        waiting.append(key)  # another worker's; this slot stays away
                        continue
                    free.append(worker)
                    if error is not None and not isinstance(error, Exception):
                        raise error
                    yield key, one.result() if error is None else error
        finally:
            for one in flying:
                one.cancel()
            await asyncio.gather(*flying, return_exceptions=True)


def reason_of(error: Exception) -> str:
    """An exception as one short line."""
    name, text = type(error).__name__, str(error).strip().splitlines()
    if not text:
        return name
    return text[0] if isinstance(error, TimeoutError) else f"{name}: {text[0][:200]}"
