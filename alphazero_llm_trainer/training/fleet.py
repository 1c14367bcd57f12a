"""`train --workers`: a round's questions are searched by Ray actors, the fleet that `sample` uses, and trained on here.

Before each round the actors get the weights of now under the round's number, which is the policy version that their records
name. Trees depend on weights, question and seed alone, so they are those of a run in one process. An actor that dies is
started again with the same weights, and its questions are searched again.

With `train.lag` 1 nobody waits: while round k's updates are made, the actors search round k + 1 with the weights of before
them. Rows keep the log-probabilities of those weights, which is what GRPO's and PPO's ratio is taken against.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass
from pathlib import Path

from ..collect import GradedTree
from ..config.load import Config, resolve_name
from ..errors import ConfigError, EngineError
from ..scale.pool import Pool
from ..scale.question_queue import QuestionQueue
from ..scale.ray_pool import RayPool
from ..teachers.build import is_remote
from ..types import Task
from .size import rank_and_size
from .source import RoundSource, RoundStats


@dataclass(frozen=True, slots=True)
class Workers:
    """How many search actors, and the Ray cluster that they run on; None: one of this machine's own."""

    count: int
    address: str | None = None


def check_workers(config: Config, workers: Workers) -> None:
    """Raise ConfigError where a run of this configuration can't be searched by actors. Nothing is loaded yet."""
    asked, without = f"--workers is {workers.count}", "leave --workers out"
    if config.train.lag:
        asked = "train.lag is 1" if workers.count == 1 else asked
        without = "set train.lag=0" if workers.count == 1 else "leave --workers out and set train.lag=0"
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
            f" {without}"
        )
    adapter = config.train.adapter or config.models[resolve_name(config)].adapter
    if adapter != "full":
        raise ConfigError(
            f"{asked} and train.adapter is {adapter}, where actors would search with merged weights: set"
            f" train.adapter=full, or {without}"
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
    """Rounds whose missing questions are searched by `pool`; with `train.lag`, the next one's while one is trained on."""

    pool: Pool
    _early: tuple[int, Future[tuple[int, float]]] | None = None  # a round, and its search: trees, seconds
    _given_up = False

    def search(self, number: int) -> tuple[list[GradedTree], RoundStats]:
        """See `RoundSource.search`. A round that was searched early has that search's seconds."""
        searched, seconds = (0, 0.0) if self._early is None else self._early[1].result()
        self._early = None
        trees, stats = super().search(number)
        if searched:
            stats.reused_trees -= searched
            stats.search_seconds = stats.cost.seconds = seconds
            if not stats.reused_trees:
                stats.simulations_per_second = stats.simulations / max(seconds, 1e-9)
        if self.config.train.lag and number + 1 < self.size.rounds:
            missing = {key: task for key, task in self.tasks_of_round(number + 1).items() if key not in self.journal}
            if missing:
                self.pool.push(self.student.model.state_dict(), number)
                executor = ThreadPoolExecutor(1, "search of the next round")
                self._early = number + 1, executor.submit(self._search_early, missing, number + 1)
                executor.shutdown(wait=False)
        return trees, stats

    def settle(self) -> bool:
        """See `RoundSource.settle`. Raises EngineError where questions have no tree."""
        if self._early is None:
            return True
        number, early = self._early
        early.result()
        return all(key in self.journal for key in self.tasks_of_round(number))

    def close(self) -> None:
        """See `RoundSource.close`: what is searched early ends with the trees that are there."""
        self._given_up = True
        if self._early is not None:
            self._early[1].exception()
            self._early = None

    def search_missing(self, missing: list[tuple[str, Task]], number: int, found: dict[str, GradedTree]) -> None:
        """See `RoundSource.search_missing`. Raises EngineError where questions have no tree."""
        self.pool.push(self.student.model.state_dict(), number)
        self._collect(dict(missing), number, lambda tree: found.update({tree.key: tree}))

    def _search_early(self, missing: dict[str, Task], number: int) -> tuple[int, float]:
        """Search round `number` in a thread; its trees go into the journal, which nobody else writes meanwhile."""
        began, trees = time.perf_counter(), []
        self._collect(missing, number, lambda tree: trees.append(tree.key))
        return len(trees), time.perf_counter() - began

    def _collect(self, missing: dict[str, Task], number: int, take: Callable[[GradedTree], None]) -> None:
        """Have the actors search questions of round `number` with the weights that were pushed last.

        Raises EngineError where questions failed as often as `sample.attempts` allows: a round needs all of them.
        """
        queue = QuestionQueue(list(missing), self.config.sample.attempts)
        for record in self.pool.collect(
            queue, missing, "train", self.config.seed, lambda: self._given_up or self.stop()
        ):
            tree = GradedTree.from_record(record, missing[record["key"]])
            self.journal.append(tree.record(round=number, policy=tree.policy_version))
            take(tree)
            self.on_tree(tree)
        if queue.set_aside:
            key, (reason, attempts) = next(iter(queue.set_aside.items()))
            raise EngineError(
                f"{len(queue.set_aside):,} questions of round {number} have no tree ({key} failed {attempts} times: {reason}):"
                " mend that and go on with --resume"
            )
