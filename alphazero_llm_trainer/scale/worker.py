"""What searches: a policy, and many trees at once on its engine. In this process, or as an actor in each of Ray's."""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..config.load import Config
from ..engine.background import freeze_loaded
from ..errors import CheckpointError, ConfigError
from ..rewards.perplexity import Perplexity
from ..rollouts import Collector, GradedTree
from ..types import Cost, Task

# Every question would fail of these, so they end the run and set none aside.
FATAL = (ConfigError, CheckpointError)


class Worker:
    """Searches questions one by one or many at once; loads its policy with the first of them, or with `load`.

    Args:
        config: decides the trees; `sample.timeout_seconds` bounds each.
        student_path: a folder with the student's weights, or None for the configured ones.
        make_collector: what searches: `Collector`, or a test's that fails on purpose.
    """

    def __init__(self, config: Config, student_path: Path | None, make_collector: Callable[..., Collector]) -> None:
        self.config, self.student_path, self.make_collector = config, student_path, make_collector
        self.policy: dict[str, Any] = {}
        self.life = uuid.uuid4().hex  # another one where Ray has started the process again
        self._loading = threading.Lock()

    def load(self) -> dict[str, Any]:
        """Load the policy. Returns its name, version and fingerprint, and the hashes of the value network's weights.

        Raises AlphaZeroError where it can't be loaded.
        """
        with self._loading:
            if not self.policy:
                self._load()
        return self.policy

    def _load(self) -> None:
        from ..policy.adapters import fingerprint
        from ..policy.critic import load_value
        from ..policy.student import frozen_student, load_student
        from ..problems.load import opening

        config = self.config
        student = load_student(
            config, path=self.student_path, opening=opening(config), inference=config.search.value is None
        )
        perplexity = None
        if config.rewards.use_student_model and config.rewards.pre_weight > 0:
            frozen = frozen_student(student, config, shared=student.spec.quantization != "none")
            perplexity = Perplexity(frozen, config.search.max_tokens)
        value = None if config.search.value is None else load_value(Path(config.search.value), student, config)
        freeze_loaded()
        self.student, self.collector = student, self.make_collector(student, config, perplexity, value=value)
        self.policy = {
            "name": student.name,
            "version": student.engine.version,
            "fingerprint": fingerprint(student.model),
            "value": None if value is None else value.card["files"],
        }

    async def ready(self) -> tuple[str, dict[str, Any]]:
        """This process's life, and `load`, in a thread of its own: what is loaded may ask an event loop for its numerics."""
        return self.life, await asyncio.to_thread(self.load)

    async def search(
        self, key: str, task: Task, split: str, seed: int
    ) -> tuple[dict[str, Any] | None, dict[str, Cost]]:
        """The question's journal record, or None where a budget stopped it; and `teachers` so far.

        Raises TimeoutError after `sample.timeout_seconds`, and what the search raises.
        """
        await self.ready()
        seconds = self.config.sample.timeout_seconds
        try:
            tree = await asyncio.wait_for(self._tree(key, task, seed), seconds)
        except TimeoutError:
            raise TimeoutError(f"no tree within {seconds:g} s") from None
        return None if tree.ended_by == "stopped" else tree.record(seed=seed, split=split), self.teachers()

    async def _tree(self, key: str, task: Task, seed: int) -> GradedTree:
        async for tree in self.collector.collect([(key, task)], seed):
            return tree
        raise RuntimeError(f"the collector gave no tree for {key}")

    def teachers(self) -> dict[str, Cost]:
        """What each teacher and the terminal checker took so far in this process."""
        collector = self.collector
        spent = {} if collector.teachers is None else {n: one.cost for n, one in collector.teachers.ledgers.items()}
        if collector.checker is not None:
            spent[collector.checker.name] = collector.checker.ledger.cost
        if collector.remote is None:
            return spent
        # The ledgers of a resumed run have its earlier processes' costs in them.
        return {name: collector.remote.books.session.get(name, Cost()) for name in spent}

    async def close(self) -> None:
        """Let go of what a server keeps for the engine; no call may follow."""
        self.student.engine.close()
