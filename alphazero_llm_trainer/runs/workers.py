"""The workers of a run: one in this process, or many as Ray actors. The trees are the same."""

from __future__ import annotations

import asyncio
import logging
import os
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..errors import ConfigError, reason_of
from ..live import StopAsked
from ..types import JsonObject, Task
from .worker import SampleJob, SearchOutcome, Worker

START_SECONDS = 300.0  # how long workers may take to load
POLL_SECONDS = 0.25  # between two looks at `stop`

log = logging.getLogger(__name__)


class InProcess:
    """One worker on this thread; its teachers' ledgers are kept in `folder`."""

    def __init__(self, job: SampleJob, folder: Path) -> None:
        self.worker, self.folder, self.runner = Worker(job), folder, asyncio.Runner()

    def open(self) -> JsonObject:
        """Load the policy; see `Worker.open`."""
        self.policy = self.worker.open()
        self.worker.collector.keep_ledgers(self.folder)
        return self.policy

    def search(self, tasks: Sequence[Task], width: int, stop: StopAsked) -> Iterator[SearchOutcome]:
        """The outcomes of `tasks` as they end, `width` of them beside each other, until `stop` is
        true.
        """
        loop, waiting = self.runner.get_loop(), deque(tasks)
        running: set[asyncio.Task[Any]] = set()
        while (waiting or running) and not stop():
            while waiting and len(running) < width:
                running.add(loop.create_task(self.worker.search(self.policy, waiting.popleft())))
            ended, running = self.runner.run(
                asyncio.wait(running, timeout=POLL_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            )
            for task in ended:
                yield task.result()

    def close(self) -> None:
        """Cancel what is under way, and say what a server was found to do."""
        word = getattr(getattr(self.worker, "student", None), "word", None)
        if word is not None:
            log.warning(word)
        self.runner.close()


class OnRay:
    """Workers as Ray actors in an `ActorPool`. Ray starts a process again that died, and tries its
    calls once more.

    On a cluster every node must have the same files.

    Raises ConfigError where Ray is missing or unreachable.
    """

    def __init__(self, job: SampleJob) -> None:
        connect_ray(job.address, job.workers)
        import ray

        # Each keeps ledgers of its own, of its share of the teachers' budget; a new process begins
        # anew.
        budget = job.config.teachers.budget.share(job.workers)
        config = job.config.with_values(teachers={"budget": budget})
        gpus = min(ray.cluster_resources().get("GPU", 0) / job.workers, 1)
        actor = ray.remote(num_cpus=1, num_gpus=gpus, max_restarts=-1, max_task_retries=1)(Worker)
        job = replace(job, config=config, tasks=())
        self.actors: list[Any] = [actor.remote(job) for _ in range(job.workers)]

    def open(self) -> JsonObject:
        """As `InProcess.open`. Raises ConfigError where the cluster has no room for the workers."""
        import ray

        try:
            loading = [actor.load.remote() for actor in self.actors]
            self.policy = ray.get(loading, timeout=START_SECONDS)[0]
        except ray.exceptions.RayTaskError as error:
            raise error.cause from error
        except ray.exceptions.RayError as error:
            raise ConfigError(
                f"{len(loading)} workers have not loaded in {START_SECONDS:g} s "
                f"({reason_of(error)}): the cluster needs a core for each"
            ) from error
        return self.policy

    def search(self, tasks: Sequence[Task], width: int, stop: StopAsked) -> Iterator[SearchOutcome]:
        """As `InProcess.search`, `width` on each worker. A task whose process died twice has no
        outcome.
        """
        from ray.exceptions import RayError
        from ray.util import ActorPool

        pool = ActorPool(self.actors * width)
        for task in tasks:
            pool.submit(lambda actor, task: actor.search.remote(self.policy, task), task)
        while pool.has_next() and not stop():
            with suppress(TimeoutError, RayError):
                yield pool.get_next_unordered(timeout=POLL_SECONDS)

    def close(self) -> None:
        """End the workers, and Ray where it was started here."""
        import ray

        ray.shutdown()


def connect_ray(address: str | None, cpus: int) -> None:
    """Connect to Ray, or start it here on so many logical cores.

    Raises ConfigError when Ray is not installed or nothing answers at the address.
    """
    if address is None:
        # Without it a local cluster writes a token into the home folder and warns about it.
        os.environ.setdefault("RAY_AUTH_MODE", "disabled")
        # Under `uv run` Ray would start workers in a copy of the folder, with an environment of
        # its own.
        os.environ.setdefault("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError as error:
        raise ConfigError(
            "Ray is not installed: install alphazero-llm-trainer[scale], or use --workers 1"
        ) from error
    here: dict[str, Any] = {"num_cpus": cpus, "include_dashboard": False} if address is None else {}
    try:
        ray.init(
            address,
            ignore_reinit_error=True,
            log_to_driver=False,
            logging_level=logging.ERROR,
            **here,
        )
    except (OSError, ValueError, RuntimeError) as error:
        raise ConfigError(
            f"Ray can't be reached at {address or 'this machine'} ({reason_of(error)}): check "
            "--address"
        ) from error
