"""What searches: a policy, and many trees at once on its engine. In this process, or as an actor in
each of Ray's.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

from ..answering.students import answering_student
from ..config.load import Config
from ..config.refusals import refuse_conflicts
from ..engine.background import freeze_loaded
from ..errors import CheckpointError, ConfigError
from ..learning.collector import Collector
from ..learning.methods.by_name import method_of
from ..policy.chat import check_prompts
from ..problems.load import SERVER_TOKENS, opening, with_context
from ..rewards.perplexity import Perplexity
from ..types import Cost, JsonObject, Task

log = logging.getLogger(__name__)

# Every question would fail of these, so they end the run and set none aside.
FATAL = (ConfigError, CheckpointError)
# Of a question: its key; its journal record, None where it was stopped, or what it raised; a name
# of the process, and what teachers took there so far.
SearchOutcome = tuple[str, dict[str, Any] | Exception | None, str, dict[str, Cost]]


@dataclass(frozen=True, slots=True)
class SampleJob:
    """What to sample and with what.

    Args:
        config: the resolved configuration.
        tasks: the questions, ids unique.
        split: where they come from, for the manifest and the records.
        start: number of the first of them within the split.
        student_path: a folder with the student's weights, or None for the configured ones.
        student: one that is loaded already, for one worker.
        workers: 1 searches in this process; more start Ray with so many workers.
        address: an existing Ray cluster, or None for one on this machine.
        seconds: wall-clock of one tree, shared with the trees beside it.
        make_collector: what searches; `Collector` unless a test says otherwise.
    """

    config: Config
    tasks: Sequence[Task]
    split: str = "train"
    start: int = 0
    student_path: Path | None = None
    workers: int = 1
    address: str | None = None
    seconds: float = 3_600.0
    make_collector: Callable[..., Collector] = Collector
    student: Any = None


class Worker:
    """Searches the questions of `job`; loads its policy with the first of them, or with `load`."""

    def __init__(self, job: SampleJob) -> None:
        self.job, self.config, self.process = job, job.config, uuid4().hex
        self.policy: JsonObject = {}
        self._loading = asyncio.Lock()

    async def load(self) -> JsonObject:
        """`open` where that wasn't done, in a thread: what is loaded may start an event loop of its
        own.
        """
        async with self._loading:
            return self.policy or await asyncio.to_thread(self.open)

    def open(self) -> JsonObject:
        """Load the policy. Returns its name, version and fingerprint, and the hashes of the value
        network's weights.

        Raises AlphaZeroError where it can't be loaded.
        """
        config = with_context(self.config)
        student = self.job.student or answering_student(
            config,
            self.job.student_path,
            opening(config),
            config.search.value is None,
        )
        if config.engine.backend == "openai":
            asyncio.run(student.engine.server.greet())
        questions = [task.problem.question for task in self.job.tasks]
        said = check_prompts(student, questions)
        if said is not None:
            log.warning(said)
        perplexity = None
        refuse_conflicts(config, "worker")
        if config.rewards.measures:
            from ..policy.student import frozen_student

            shared = student.spec.quantization != "none"
            frozen = frozen_student(student, config, shared=shared)
            perplexity = Perplexity(frozen, config.search.max_tokens)
        method = method_of(config.train.method)
        self.student = student
        self.collector = self.job.make_collector(student, config, method, perplexity)
        value: Any = self.collector.value
        freeze_loaded()
        self.policy = {
            "name": student.name,
            "version": student.engine.version,
            "fingerprint": student.weights,
            "value": None if value is None else value.card["files"],
        }
        return self.policy

    async def search(self, policy: JsonObject, task: Task) -> SearchOutcome:
        """The question's outcome. A student other than the run's `policy` is a failure, and so is
        no tree after `job.seconds`.
        """
        key, seed = task.problem.id, self.config.seed
        result: JsonObject | Exception | None = None
        try:
            if await self.load() != policy:
                raise ConfigError(
                    f"a worker has another student or value network than the run ({self.policy}"
                    f" instead of {policy}): give every node the same files and settings"
                )
            trees = self.collector.collect([(key, task)], seed)
            tree = await asyncio.wait_for(anext(trees), self.job.seconds)
            if tree.ended_by != "stopped":
                server = self.config.engine.backend == "openai"
                tokens = SERVER_TOKENS if server else {}
                result = tree.record(seed=seed, split=self.job.split, **tokens)
        except TimeoutError:
            result = TimeoutError(f"no tree within {self.job.seconds:g} s")
        except Exception as error:  # noqa: BLE001 - a rollout's failure is data
            result = error
        return key, result, self.process, self.collector.session_costs() if self.policy else {}
