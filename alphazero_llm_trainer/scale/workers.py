"""The workers of a run: one in this process, or many as Ray actors. The trees are the same."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..config.load import Config
from ..errors import ConfigError, EngineError
from ..rollouts import Collector
from ..types import Cost, Task
from .worker import FATAL, Worker

START_SECONDS = 300.0  # how long workers may take to load
LEAVE_SECONDS = 10.0  # how long they may take to unload adapters from a server
KNOCK_SECONDS = 10.0


class GoneError(ConfigError):
    """A worker that can't load, or never comes back. The others go on without it; where it was the last one, the run ends."""


class InProcess:
    """One worker on this thread; its teachers' books are kept in `folder`."""

    count, restarts = 1, 0

    def __init__(
        self, config: Config, student_path: Path | None, make_collector: Callable[..., Collector], folder: Path
    ) -> None:
        self.worker = Worker(config, student_path, make_collector)
        self.policy = self.worker.load()
        self.worker.collector.keep_books(folder)

    async def search(self, worker: int, key: str, task: Task, split: str, seed: int) -> dict[str, Any] | None:
        """The question's journal record, or None where a budget stopped it. Raises what the search raises."""
        return (await self.worker.search(key, task, split, seed))[0]

    def teachers(self) -> list[dict[str, Cost]]:
        """What teachers took so far: one a process."""
        return [self.worker.teachers()]

    def close(self) -> None:
        """Nothing to end."""


class SilentError(EngineError):
    """A worker that neither answered nor died."""


class OnRay:
    """Workers as Ray actors. Ray starts those that die again; their questions fail, and are the caller's to ask again.

    Args:
        config, student_path, make_collector: see `Worker`. On a cluster every node must have the folder.
        count: how many.
        address: a running cluster ("auto" finds one on this machine), or None for one that ends with the workers.
        say: told about deaths.

    Raises ConfigError where Ray is missing, unreachable, or has no room for the workers, and what `Worker.load` raises.
    """

    def __init__(
        self,
        config: Config,
        student_path: Path | None,
        make_collector: Callable[..., Collector],
        count: int,
        address: str | None,
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.config, self.count, self.say, self.restarts = config, count, say, 0
        self.policy: dict[str, Any] = {}
        self.ours = connect(address, count)
        import ray

        # Each keeps books of its own, of its share of the teachers' budget; one that is started again begins anew.
        teachers = config.teachers.model_copy(update={"budget": config.teachers.budget.share(count)})
        gpus = min(ray.cluster_resources().get("GPU", 0) / count, 1)
        # A search is not retried by itself: it must run alone the next time. To load is.
        actor = ray.remote(num_cpus=1, num_gpus=gpus, max_restarts=-1, max_task_retries=0)(Worker)
        mine = config.model_copy(update={"teachers": teachers})
        self.actors: list[Any] = [actor.remote(mine, student_path, make_collector) for _ in range(count)]
        self._lives = [""] * count
        self._teachers: dict[str, dict[str, Cost]] = {}  # by a worker's life
        try:
            asyncio.run(self._start())
        except BaseException:
            self.close()
            raise

    async def _start(self) -> None:
        await asyncio.gather(*(self._ready(worker, START_SECONDS) for worker in range(self.count)))

    async def _ready(self, worker: int, seconds: float) -> None:
        """Wait until a worker has loaded, which may be once more. Raises what it raised, and ConfigError where it has another
        student than the others, or none in time."""
        loading = self.actors[worker].ready.options(max_task_retries=-1).remote()
        try:
            life, policy = await answer(loading, seconds)
        except SilentError as error:
            raise GoneError(
                f"worker {worker} was not ready after {seconds:g} s: the cluster needs a core for each of {self.count}"
            ) from error
        except FATAL:
            raise
        except Exception as error:
            raise GoneError(f"worker {worker} can't load ({type(error).__name__}: {str(error)[:200]})") from error
        if self._lives[worker] not in ("", life):
            self.restarts += 1
            self.say(f"worker {worker} is started again: what it had in flight is searched again")
        self._lives[worker] = life
        self.policy = self.policy or policy
        differ = [name for name, known in self.policy.items() if policy[name] != known]
        if differ:
            raise ConfigError(
                f"worker {worker} has another student or value than the others (different {', '.join(differ)}): give every"
                " node the same files and the same settings"
            )

    async def search(self, worker: int, key: str, task: Task, split: str, seed: int) -> dict[str, Any] | None:
        import ray

        limit = 2 * self.config.sample.timeout_seconds + 5
        await self._ready(worker, START_SECONDS + limit)
        try:
            found = await answer(self.actors[worker].search.remote(key, task, split, seed), limit)
        except SilentError:  # its event loop hangs
            ray.kill(self.actors[worker], no_restart=False)
            raise
        record, self._teachers[self._lives[worker]] = found
        return record

    def teachers(self) -> list[dict[str, Cost]]:
        return [*self._teachers.values()]

    def close(self) -> None:
        import ray

        if self.config.engine.backend == "vllm-server" and self.policy:
            # A killed process can't unload its adapter.
            leaving = [actor.close.remote() for actor in self.actors]
            ray.wait(leaving, num_returns=len(leaving), timeout=LEAVE_SECONDS)
        for actor in self.actors:
            with suppress(ray.exceptions.RayError):
                ray.kill(actor)
        if self.ours:
            ray.shutdown()


async def answer(reference: Any, seconds: float) -> Any:
    """What a call of an actor returned. Raises what it raised there, EngineError where its process died, and SilentError."""
    from ray.exceptions import RayActorError, RayTaskError

    try:
        return await asyncio.wait_for(reference, seconds)
    except RayTaskError as error:
        raise error.cause if isinstance(error.cause, Exception) else error from error
    except TimeoutError as error:
        raise SilentError(f"no word from its worker for {seconds:g} s") from error
    except RayActorError as error:
        raise EngineError(f"its process died ({str(error).strip().splitlines()[0][:120]})") from error


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
