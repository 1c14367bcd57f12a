"""A sample run: questions in, exactly one journal record a question out, whatever dies in
between.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path

from ..config.objects import hash_code
from ..errors import DataError, reason_of
from ..files import Folder
from ..live import Progress, StopAsked
from ..types import Cost, JsonObject
from .sample_folder import SampleFolder
from .summary import Summary
from .worker import FATAL, SampleJob
from .workers import InProcess, OnRay

QUESTION_ATTEMPTS = 3  # failures of a question while it ran alone after which it is set aside


def job_identity(job: SampleJob) -> JsonObject:
    """What decides the trees. Pacing (how many at once, where they run) is left out: it may
    change.
    """
    sections = ("student", "problems", "search", "rewards", "teachers")
    config = job.config.model_dump(
        mode="json",
        # What the collector reads of `train`.
        include=dict.fromkeys(sections, True) | {"train": {"groups", "requeue_limit", "reward"}},
        exclude={
            "search": {"concurrent"},
            "teachers": {"budget", "timeout_seconds"},
        },
    )
    search, custom = job.config.search, job.config.rewards.custom
    return {
        **hash_code(search.select, search.value, custom, job.config.problems.source),
        "config": config,
        "split": job.split,
        "start": job.start,
        "seed": job.config.seed,
    }


def run_sample(
    job: SampleJob,
    out: Path,
    *,
    resume: bool = False,
    stop: StopAsked = lambda: False,
    progress: Progress | None = None,
) -> Summary:
    """Sample into the folder `out`; this process is its only writer.

    Questions run beside each other, `search.concurrent` a worker. One that failed, or whose worker
    died, may have been taken down by a neighbour: it runs again after the others, with nothing
    beside it on its worker, and is set aside after `QUESTION_ATTEMPTS` failures there. A `FATAL`
    error is raised.

    Args:
        job: what to sample.
        out: the output folder.
        resume: go on with the run that `out` holds.
        stop: True once the user wants to end; unfinished trees are left to a resumed run.
        progress: shows how far it is.

    Raises:
        ConfigError: `out` holds another run, or Ray is asked for and missing.
        RequestError: a server refuses the first questions.
        DataError: two questions have one id, or the folder is broken.
    """
    progress = progress if progress is not None else Progress(quiet=True)
    tasks = {task.problem.id: task for task in job.tasks}
    if len(tasks) < len(job.tasks):
        raise DataError("two questions have the same id: sample needs one id a question")
    with ExitStack() as held:
        held.enter_context(Folder(out).lock())
        folder = SampleFolder(out, job_identity(job), job.tasks, resume)
        workers = OnRay(job) if job.workers > 1 else InProcess(job, out)
        held.callback(workers.close)
        folder.begin(workers.open())
        left = folder.missing_keys(tasks)
        progress.start(len(tasks), len(tasks) - len(left), "tree")
        began, summary = time.perf_counter(), Summary(len(tasks))
        teachers: dict[str, dict[str, Cost]] = {}  # by process
        try:
            for width in (job.config.search.concurrent, *[1] * QUESTION_ATTEMPTS):
                failed = dict.fromkeys(left, "its worker died")
                searched = workers.search([tasks[key] for key in left], width, stop)
                for key, result, process, costs in searched:
                    teachers[process] = costs
                    if isinstance(result, FATAL):
                        raise result
                    if isinstance(result, Exception):
                        failed[key] = reason_of(result)
                        continue
                    del failed[key]
                    if result is not None:
                        progress.note("last tree", summary.add(result))
                        folder.write(result)
                        counts = f"{summary.solved_trees:,} of {summary.session_trees:,} questions"
                        progress.note("solved", counts)
                        progress.advance(tokens=result["cost"]["sampled_tokens"])
                left = list(failed)
            if not stop():
                for key, reason in failed.items():
                    folder.aside.append(
                        {"key": key, "reason": reason, "attempts": QUESTION_ATTEMPTS}
                    )
                    progress.say(f"set aside: {key} after {QUESTION_ATTEMPTS} attempts: {reason}")
            summary.status = "stopped" if folder.missing_keys(tasks) else "complete"
        finally:
            progress.stop()
            folder.end(summary.status)
        for costs in teachers.values():
            for name, cost in costs.items():
                summary.teachers.setdefault(name, Cost()).add(cost)
        summary.trees, summary.set_aside = len(folder.journal), list(folder.aside.values())
        summary.seconds = time.perf_counter() - began
        return summary
