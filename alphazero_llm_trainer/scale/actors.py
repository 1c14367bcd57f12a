"""What lives in Ray's processes: an engine actor and a search actor. Plain classes; `ray_pool` makes actors of them.

A search actor holds no model, and what it imports is kept light: torch and the model code take seconds to load.
"""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError

from ..collect import Perplexity
from ..config.load import Config
from ..errors import AlphaZeroError
from ..policy.chat import RemoteStudent
from ..types import Cost, Task
from .pool import FATAL, MakeCollector, PoolStats, peak_bytes, reason_of, search_one, teacher_costs
from .remote import EngineCard, EngineLostError, Letter, Link, PostOffice, RemoteEngine, RemoteValue, Reply


class EngineHost:
    """Hosts the policy, its frozen copy and the value network, and serves search actors."""

    def __init__(self, config: Config, student_path: Path | None) -> None:
        self.config, self.student_path = config, student_path

    async def begin(self, weights: Any, version: int) -> dict[str, Any] | AlphaZeroError:
        """Load the policy, with the state dict `weights` where one was pushed. Returns what others must know of it.

        An error that the user can fix is returned: raised, it would arrive as another class.
        """
        from .host import load_host

        try:
            # Ray gives an actor of one core OMP_NUM_THREADS=1, so torch computes on one thread. In a thread: what is loaded
            # may be asked for its numerics, by an event loop of its own.
            self.host = await asyncio.to_thread(load_host, self.config, self.student_path)
        except AlphaZeroError as error:
            return error
        policy = self.host.describe()
        host, engine = self.host, self.host.student.engine
        if weights is not None:
            engine.set_policy(weights, version)
        engines: dict[str, Any] = {"policy": engine}
        if host.frozen is not None:
            engines["frozen"] = host.frozen.engine
        if host.value is not None:
            engines["value"] = host.value
        self.office = PostOffice(engines)
        student = host.student
        return {
            "policy": policy,
            "engine": EngineCard(engine.version, engine.eos_id, engine.eos_ids, engine.step_ends, engine.capabilities),
            "student": (student.name, student.tokenizer, student.opening),
            "engines": list(engines),
            "head": host.value is not None and not host.value.own,
            "value": None if host.value is None else (host.value.rollout_weight, host.value.computes),
        }

    async def leave(self) -> None:
        """Let go of what a server keeps for the engine; no call may follow."""
        self.host.student.engine.close()

    async def put(self, client: str, letters: Sequence[Letter]) -> None:
        """See `PostOffice.put`."""
        self.office.put(client, letters)

    async def take(self, client: str) -> list[Reply]:
        """See `PostOffice.take`."""
        return await self.office.take(client)

    async def cancel(self, client: str, number: int) -> None:
        """See `PostOffice.cancel`."""
        self.office.cancel(client, number)

    async def drop(self, client: str) -> None:
        """See `PostOffice.drop`."""
        self.office.drop(client)

    async def set_policy(self, weights: Any, version: int) -> None:
        """Swap the weights; the driver sees to it that no tree is under way."""
        self.host.student.engine.set_policy(weights, version)

    async def stats(self) -> PoolStats:
        """This process's part."""
        return PoolStats(self.host.student.engine.stats.computed_tokens, peak_bytes())

    async def alive(self) -> None:
        """Never returns; fails when the process dies."""
        await asyncio.Event().wait()


class SearchHost:
    """Searches questions over an engine actor; one process, many trees at once."""

    def __init__(self, config: Config, make_collector: MakeCollector) -> None:
        self.config, self.make_collector = config, make_collector
        self._connections = itertools.count()
        self._costs: list[dict[str, Cost]] = []  # of every connection: its teachers' ledgers begin at 0

    async def connect(self, engine: Any, card: dict[str, Any]) -> str | AlphaZeroError:
        """Search with this engine actor from now on; returns the name that the engine knows this actor by.

        A `FATAL` error is returned: raised, it would arrive as another class.
        """
        client = f"{os.getpid()}/{next(self._connections)}"

        def send(letters: list[Letter]) -> None:
            engine.put.remote(client, letters)

        async def take() -> list[Reply]:
            try:
                return await engine.take.remote(client)
            except RayError as error:
                raise EngineLostError("the engine died") from error

        link = Link(send, take, lambda number: engine.cancel.remote(client, number))
        name, tokenizer, opening = card["student"]

        def student(engine_name: str) -> Any:
            return RemoteStudent(name, tokenizer, RemoteEngine(link, engine_name, card["engine"]), opening)

        perplexity = (
            Perplexity(student("frozen"), self.config.search.max_tokens) if "frozen" in card["engines"] else None
        )
        self.student = student("policy")
        value = RemoteValue(link, *card["value"]) if "value" in card["engines"] else None
        try:
            self.collector = self.make_collector(self.student, self.config, perplexity, value)
        except FATAL as error:
            return error
        self._costs.append(teacher_costs(self.collector))
        return client

    async def search(self, key: str, task: Task, split: str, seed: int, version: int) -> tuple[str, Any]:
        """One question: ("tree", record), ("failed", reason), ("time-out", reason), ("engine", reason), ("fatal", error)."""
        self.student.engine.version = version
        seconds = self.config.sample.timeout_seconds
        try:
            tree = await asyncio.wait_for(search_one(self.collector, key, task, seed), seconds)
        except TimeoutError:
            return "time-out", f"no tree within {seconds:g} s"
        except EngineLostError as error:
            return "engine", str(error)
        except FATAL as error:
            return "fatal", error
        except Exception as error:  # noqa: BLE001 - one question's failure is recorded as data
            return "failed", reason_of(error)
        return "tree", tree.record(seed=seed, split=split)

    async def stats(self) -> PoolStats:
        """This process's part."""
        total: dict[str, Cost] = {}
        for costs in self._costs:
            for teacher, cost in costs.items():
                total.setdefault(teacher, Cost()).add(cost)
        return PoolStats(0, peak_bytes(), 0, total)

    async def alive(self) -> None:
        """Never returns; fails when the process dies."""
        await asyncio.Event().wait()


# No restarts by Ray itself: the driver must know of every death, because questions were in flight.
OPTIONS: dict[str, Any] = {"max_restarts": 0, "max_task_retries": 0}


def start_engine(config: Config, student_path: Path | None, gpus: float) -> Any:
    """A new engine actor on one core and `gpus` GPUs (a fraction shares one)."""
    return ray.remote(EngineHost).options(num_cpus=1, num_gpus=gpus, **OPTIONS).remote(config, student_path)


def start_search(config: Config, make_collector: MakeCollector) -> Any:
    """A new search actor on one core."""
    return ray.remote(SearchHost).options(num_cpus=1, **OPTIONS).remote(config, make_collector)
