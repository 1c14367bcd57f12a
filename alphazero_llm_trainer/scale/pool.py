"""What a pool is: something that searches the questions of a schedule and hands back journal records."""

from __future__ import annotations

import resource
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from ..collect import Collector, GradedTree, Perplexity
from ..config.load import Config
from ..engine.protocol import ValueFunction
from ..errors import CheckpointError, ConfigError
from ..types import Cost, Task
from .question_queue import QuestionQueue

if TYPE_CHECKING:
    from ..policy.student import Student

Stop = Callable[[], bool]
# Every question would fail of these, so they end the run and set none aside.
FATAL = (ConfigError, CheckpointError)
HEAD_STAYS = "search.value is a head, which belongs to the policy that it was trained on: use a network to push weights"
# Builds what searches questions. The default is `default_collector`; tests hand in one that fails on purpose.
MakeCollector = Callable[["Student", Config, Perplexity | None, ValueFunction | None], Collector]


def default_collector(
    student: Student, config: Config, perplexity: Perplexity | None, value: ValueFunction | None
) -> Collector:
    """The `Collector` of training, with gold."""
    return Collector(student, config, perplexity, value=value)


@dataclass(slots=True)
class PoolStats:
    """What a pool's processes did in this session.

    computed_tokens: tokens that went through the policy; peak_bytes: the processes' largest memory, added up;
    restarts: actors that were started again; teachers: cost by teacher.
    """

    computed_tokens: int = 0
    peak_bytes: int = 0
    restarts: int = 0
    teachers: dict[str, Cost] = field(default_factory=dict)


class Pool(Protocol):
    """Searches questions with one policy. `push` may be called between two records."""

    policy: dict[str, Any]

    def collect(
        self, schedule: QuestionQueue, tasks: Mapping[str, Task], split: str, seed: int, stop: Stop
    ) -> Iterator[dict[str, Any]]:
        """Journal records of the schedule's questions as they end, each once; ends early when `stop` says so.

        `split` is where the questions come from, for the records. A `FATAL` error of a search is raised.
        """
        ...

    def push(self, weights: Mapping[str, Any], version: int) -> None:
        """Search what starts from now on with the state dict `weights`; records name `version`.

        Raises ConfigError when the value is a head of the policy.
        """
        ...

    def stats(self) -> PoolStats: ...

    def close(self) -> None: ...


async def search_one(collector: Collector, key: str, task: Task, seed: int) -> GradedTree:
    """The tree of one question."""
    async for tree in collector.collect([(key, task)], seed):
        return tree
    raise RuntimeError(f"the collector gave no tree for {key}")


def reason_of(error: BaseException) -> str:
    """An exception as one short line."""
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0][:200]}" if text else type(error).__name__


def teacher_costs(collector: Collector) -> dict[str, Cost]:
    """What each teacher and the terminal checker took so far in this process."""
    spent = {} if collector.teachers is None else {n: one.cost for n, one in collector.teachers.ledgers.items()}
    if collector.checker is not None:
        spent[collector.checker.name] = collector.checker.ledger.cost
    if collector.remote is None:
        return spent
    # The ledgers of a resumed run have its earlier processes' costs in them.
    return {name: collector.remote.books.session.get(name, Cost()) for name in spent}


def peak_bytes() -> int:
    """The most memory this process has held: resident, and on its CUDA device where it uses one."""
    unit = 1 if sys.platform == "darwin" else 1024
    held = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    torch = sys.modules.get("torch")
    on_device = torch is not None and torch.cuda.is_initialized()
    return held + (torch.cuda.max_memory_allocated() if torch is not None and on_device else 0)
