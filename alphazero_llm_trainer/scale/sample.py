"""A sample run: questions in, exactly one journal record a question out, whatever dies in between."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..config.load import Config
from ..errors import DataError
from ..live import Progress
from ..types import Task
from .pool import LocalPool, Pool, RayPool
from .sample_folder import SampleFolder
from .totals import Summary, Totals, tell_tree
from .worker import MakeCollector, default_collector


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
        make_collector: what searches; `default_collector` unless a test says otherwise.
    """

    config: Config
    tasks: Sequence[Task]
    split: str = "train"
    start: int = 0
    student_path: Path | None = None
    workers: int = 1
    address: str | None = None
    make_collector: MakeCollector = default_collector


def identity(job: SampleJob) -> dict[str, Any]:
    """What decides the trees. Pacing (how many at once, where they run, shard sizes) is left out: it may change."""
    config = job.config
    kept = config.model_dump(
        mode="json", include={"student", "problems", "dataset", "search", "rewards", "teachers", "train"}
    )
    kept["problems"] = {key: kept["problems"][key] for key in ("source", "levels")}
    if config.problems.hold_out != "questions":  # earlier manifests have no such key
        kept["problems"]["hold_out"] = config.problems.hold_out
    kept["search"].pop("concurrent")
    kept["train"] = {key: kept["train"][key] for key in TREE_KEYS}
    for key in ("budget", "timeout_seconds", "max_retries", "max_concurrent"):
        kept["teachers"].pop(key)
    return {
        "config": kept,
        "source": config.problems.source,
        "split": job.split,
        "start": job.start,
        "seed": config.seed,
        "mode": kept["search"].get("mode", "step"),
    }


# The keys of `train` that the collector reads.
TREE_KEYS = ("groups", "requeue_limit", "reward")


def open_pool(job: SampleJob, folder: SampleFolder, progress: Progress) -> Pool:
    """The workers that `job` asks for, with their policy loaded."""
    if job.workers > 1 or job.address is not None:
        return RayPool(job.config, job.student_path, job.workers, job.address, job.make_collector, progress.say)

    def on_start(key: str, alone: bool) -> None:
        # The log is there once `begin` has run, which needs the policy first.
        folder.attempts.start(key, alone)

    pool = LocalPool(job.config, job.student_path, job.make_collector, on_start)
    pool.worker.collector.keep_books(folder.path)
    return pool


def run_sample(
    job: SampleJob,
    out: Path,
    *,
    resume: bool = False,
    stop: Callable[[], bool] = lambda: False,
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
    folder = SampleFolder(out, identity(job), len(tasks), job.config.sample.shard_trees, resume)
    try:
        with closing(open_pool(job, folder, progress)) as pool:
            folder.begin(pool.policy)
            return _sample(job, tasks, folder, pool, stop, progress, on_record, began)
    finally:
        folder.release()


def _sample(
    job: SampleJob,
    tasks: dict[str, Task],
    folder: SampleFolder,
    pool: Pool,
    stop: Callable[[], bool],
    progress: Progress,
    on_record: Callable[[dict[str, Any]], None],
    began: float,
) -> Summary:
    session = Totals()
    schedule = folder.schedule(list(tasks), job.config.sample.attempts)
    if folder.shards.dropped_bytes:
        progress.say(f"dropped {folder.shards.dropped_bytes:,} bytes of a half-written tree: it is searched again")
    progress.start(len(tasks), len(tasks) - len(schedule), "tree")
    searching, reported = time.perf_counter(), 0.0

    def put_aside() -> None:
        for key, (reason, attempts) in schedule.set_aside.items():
            if key not in folder.put_aside:
                folder.set_aside(key, reason, attempts)
                progress.say(f"set aside: {key} after {attempts} attempts: {reason}")

    status = "stopped"
    try:
        put_aside()
        for record in pool.collect(schedule, tasks, job.split, job.config.seed, stop):
            folder.write(record)
            session.add(record)
            if time.perf_counter() - reported > 1.0:
                stats, reported = pool.stats(), time.perf_counter()
            dollars = session.cost.dollars + sum(cost.dollars for cost in stats.teachers.values())
            tell_tree(progress, session, dollars, record)
            put_aside()
            on_record(record)
        put_aside()
        status = "complete" if not len(schedule) else "stopped"
    finally:
        progress.stop()
        folder.end(status)
    return Summary(
        status,
        len(tasks),
        folder.totals,
        session,
        pool.stats(),
        time.perf_counter() - searching,
        searching - began,
        [(r["key"], r["reason"], r["attempts"]) for r in folder.put_aside.values()],
    )
