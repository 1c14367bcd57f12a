"""`train --workers`: a round's questions are searched by Ray actors, the fleet that `sample` uses, and trained on here.

Before each round the actors get the weights of now under the round's number, which is the policy version that their records
name. Trees depend on weights, question and seed alone, so they are those of a run in one process. An actor that dies is
started again with the same weights, and its questions are searched again.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass
from pathlib import Path

from ..collect import GradedTree
from ..config.load import Config
from ..errors import ConfigError, EngineError
from ..policy.folders import resolve_name
from ..scale.pool import Pool
from ..scale.question_queue import QuestionQueue
from ..scale.ray_pool import RayPool
from ..teachers.build import is_remote
from ..types import Task
from .ranks import rank_and_size
from .source import RoundSource


@dataclass(frozen=True, slots=True)
class Workers:
    """How many search actors, and the Ray cluster that they run on; None: one of this machine's own."""

    count: int
    address: str | None = None


def check_workers(config: Config, workers: Workers) -> None:
    """Raise ConfigError where a run of this configuration can't be searched by actors. Nothing is loaded yet."""
    asked = f"--workers is {workers.count}"
    if rank_and_size()[1] > 1:
        raise ConfigError(f"{asked} and {rank_and_size()[1]} processes train, which search by themselves: choose one")
    if config.engine.backend != "inprocess":
        raise ConfigError(
            f"{asked} and engine.backend is {config.engine.backend}, which takes weights from one process: set it to"
            " inprocess"
        )
    if is_remote(config):
        raise ConfigError(
            f"{asked} and teachers are remote, of which each actor would keep books of its own: set teachers.tier=none, or"
            " leave --workers out"
        )
    adapter = config.train.adapter or config.models[resolve_name(config)].adapter
    if adapter != "full":
        raise ConfigError(
            f"{asked} and train.adapter is {adapter}, where actors would search with merged weights: set"
            " train.adapter=full, or leave --workers out"
        )


def open_pool(
    config: Config, workers: Workers | None, say: Callable[[str], None]
) -> AbstractContextManager[Pool | None]:
    """The actors with the student that the run starts from, ended with the context; None where there are none.

    Raises ConfigError where Ray is missing, unreachable, or has no room for them.
    """
    if workers is None:
        return nullcontext()
    student = None if config.train.student is None else Path(config.train.student)
    return closing(RayPool(config, student, workers.count, workers.address, say=say))


class FleetSource(RoundSource):
    """Rounds whose missing questions are searched by `pool`."""

    pool: Pool

    def search_missing(self, missing: list[tuple[str, Task]], number: int, found: dict[str, GradedTree]) -> None:
        """See `RoundSource.search_missing`.

        Raises EngineError where questions failed as often as `sample.attempts` allows: a round needs all of them.
        """
        tasks = dict(missing)
        self.pool.push(self.student.model.state_dict(), number)
        queue = QuestionQueue(list(tasks), self.config.sample.attempts)
        for record in self.pool.collect(queue, tasks, "train", self.config.seed, self.stop):
            tree = GradedTree.from_record(record, tasks[record["key"]])
            self.journal.append(tree.record(round=number, policy=tree.policy_version))
            found[tree.key] = tree
            self.on_tree(tree)
        if queue.set_aside:
            key, (reason, attempts) = next(iter(queue.set_aside.items()))
            raise EngineError(
                f"{len(queue.set_aside):,} questions of round {number} have no tree ({key} failed {attempts} times: {reason}):"
                " mend that and go on with --resume"
            )
