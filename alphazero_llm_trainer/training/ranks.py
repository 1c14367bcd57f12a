"""A run of several processes (`accelerate launch`, `torchrun`): each searches its share, all train one set of weights.

Rank 0 is the run: it has the folder, the journal, the checkpoints, the evaluations and the terminal. The others follow it. In
a round each rank searches its share of the questions with an engine of its own; rank 0 gathers the trees, writes them down,
gives credit and deals the rows out; then every rank trains on its rows of each minibatch under DDP, which averages the
gradients. What rank 0 wants is told by broadcasts, so that no rank has to guess what comes next. Where vLLM servers sample,
rank 0 alone asks them, for all questions, and gives them each round's adapter.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
from torch import distributed
from transformers import TrainerCallback

from ..collect import GradedTree
from ..config.load import Config, resolve_name
from ..errors import AlphaZeroError, ConfigError
from ..teachers.build import is_remote
from ..types import Task
from .fsdp import check_fsdp, uses_fsdp
from .rows import RowsOfRound, TrainRow
from .size import rank_and_size
from .source import RoundSource

PATIENCE = timedelta(days=7)  # a rank waits as long as another one's searches and evaluations take
SEARCH, ROWS, STOP = "search", "rows", "stop"


@dataclass
class Ranks:
    """This process's number among `size` of one run; `stopped` once any of them was asked to end.

    `searches` is False where vLLM servers sample, which rank 0 alone asks. `listening` says, on rank 0, that the others
    wait for what it tells outside of the rounds.
    """

    rank: int
    size: int
    searches: bool = True
    stopped: bool = False
    listening: bool = False

    def tell(self, value: Any = None) -> Any:
        """Rank 0's value, on every rank; all of them must call it."""
        box = [value]
        distributed.broadcast_object_list(box, src=0)
        return box[0]

    def gather(self, value: Any) -> list[Any]:
        """Every rank's value, in their order; all of them must call it."""
        found: list[Any] = [None] * self.size
        distributed.all_gather_object(found, value)
        return found

    def together(self, load: Callable[[], None]) -> None:
        """Call `load` on every rank. Where one fails all end: rank 0 with the error, the others without a word."""
        failed = None
        try:
            load()
        except AlphaZeroError as error:
            failed = error
        said = self.gather(None if failed is None else str(failed))
        if self.rank and any(said):
            raise SystemExit(2)
        if failed is not None:
            raise failed
        for rank, why in enumerate(said):
            if why is not None:
                raise ConfigError(f"process {rank} of {self.size} can't start: {why}")
        self.listening = True

    def over(self) -> None:
        """Rank 0 has failed: the others end without a word where they listen. In the middle of a round they can't."""
        if self.listening:
            self.tell()

    def close(self) -> None:
        """Leave the group, once every rank is there."""
        distributed.barrier()
        distributed.destroy_process_group()


def check_ranks(config: Config, size: int) -> None:
    """Raise ConfigError where a run of this configuration can't be shared by `size` processes."""
    train, batch = config.train, config.train.settings.batch_size
    if batch % size:
        raise ConfigError(
            f"train.{train.method}.batch_size is {batch} and {size} processes share it: give a multiple of {size}, or start"
            " a number of processes that divides it"
        )
    if train.method == "ppo":
        raise ConfigError(f"train.method is ppo, which trains in one process: start 1 and not {size}")
    if config.engine.backend == "vllm":
        raise ConfigError(
            f"engine.backend is vllm and {size} processes would each start one: set it to inprocess or vllm-server"
        )
    if (
        config.engine.backend == "vllm-server"
        and (train.adapter or config.models[resolve_name(config)].adapter) != "lora"
    ):
        raise ConfigError("engine.backend is vllm-server, whose server takes adapters alone: set train.adapter=lora")
    if is_remote(config):
        raise ConfigError(
            f"teachers are remote and {size} processes would keep {size} budgets: set teachers.tier=none, or start 1 process"
        )
    if uses_fsdp():
        check_fsdp(config, size)


def open_ranks(config: Config) -> Ranks | None:
    """The other processes of this run, or None where it has one. Nothing is loaded yet.

    Raises:
        ConfigError: on rank 0, where the processes differ in their configuration or version, or can't share this one.
        SystemExit: on the others, for the same reason: rank 0 says it.
    """
    rank, size = rank_and_size()
    if size == 1:
        if uses_fsdp():
            check_fsdp(config, size)
        return None
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    if not distributed.is_initialized():
        distributed.init_process_group(backend_of(), timeout=PATIENCE)
    ranks = Ranks(rank, size, not rank or config.engine.backend == "inprocess")
    found = ranks.gather((config.model_dump(mode="json"), torch.__version__))
    differ = next((other for other, facts in enumerate(found) if facts != found[0]), None)
    try:
        if differ is not None:
            raise ConfigError(
                f"process {differ} of {size} has {difference(found[0], found[differ])} than process 0: start all with the same"
                " command and versions"
            )
        check_ranks(config, size)
    except ConfigError:
        if rank:
            raise SystemExit(2) from None
        raise
    return ranks


def config_of_rank(config: Config, rank: int) -> Config:
    """What a rank is loaded with: rank 0 alone talks to vLLM servers."""
    if not rank or config.engine.backend == "inprocess":
        return config
    return config.model_copy(update={"engine": config.engine.model_copy(update={"backend": "inprocess"})})


def backend_of() -> str:
    """What the processes talk through: objects through gloo, and with GPUs gradients through NCCL."""
    return "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"


def difference(mine: tuple[dict[str, Any], str], theirs: tuple[dict[str, Any], str]) -> str:
    """The first thing that differs, in words."""
    if mine[1] != theirs[1]:
        return f"another torch ({theirs[1]}, not {mine[1]})"
    ours, others = flat(mine[0]), flat(theirs[0])
    name = next(key for key in sorted({*ours, *others}) if ours.get(key) != others.get(key))
    return f"another {name} ({others.get(name)!r}, not {ours.get(name)!r})"


def flat(raw: dict[str, Any], above: str = "") -> dict[str, Any]:
    """A nested mapping with dotted keys."""
    found: dict[str, Any] = {}
    for key, value in raw.items():
        found |= flat(value, f"{above}{key}.") if isinstance(value, dict) else {f"{above}{key}": value}
    return found


def dealt(rows: Sequence[TrainRow], ranks: Ranks, batch: int) -> list[TrainRow]:
    """This rank's rows: of every minibatch as many as any other's, and about as many tokens.

    The longest row goes to the first rank, and so on to the last and back again.
    """
    mine: list[TrainRow] = []
    for start in range(0, len(rows), batch):
        part = rows[start : start + batch]
        order = sorted(range(len(part)), key=lambda i: -len(part[i].prompt_ids) - len(part[i].completion_ids))
        turns = [order[i : i + ranks.size] for i in range(0, len(order), ranks.size)]
        picked = [turn[ranks.rank if i % 2 == 0 else -1 - ranks.rank] for i, turn in enumerate(turns)]
        mine += [part[i] for i in sorted(picked)]
    return mine


class SharedSource(RoundSource):
    """Rank 0's rounds: the questions that are missing are searched on all ranks, and the trees gathered."""

    ranks: Ranks

    async def _search(self, missing: list[tuple[str, Task]], number: int, found: dict[str, GradedTree]) -> None:
        searching = self.ranks.size if self.config.engine.backend == "inprocess" else 1
        shares = [missing[rank::searching] if rank < searching else [] for rank in range(self.ranks.size)]
        self.ranks.tell((SEARCH, number, [[key for key, _ in share] for share in shares]))
        with ExitStack() as failed:
            # The others wait there for rank 0, which tells them next that it is over.
            failed.callback(self.ranks.gather, ([], True))
            await super()._search(shares[0], number, found)
            failed.pop_all()
        tasks = dict(missing)
        for records, stopped in self.ranks.gather(([], self.stop()))[1:]:
            self.ranks.stopped |= stopped
            for record in records:
                tree = GradedTree.from_record(record, tasks[record["key"]])
                self.journal.append(record)
                found[tree.key] = tree
                self.on_tree(tree)


def leading(rows_of_round: RowsOfRound, ranks: Ranks, batch: int) -> RowsOfRound:
    """Rank 0's rows of a round; the others are told theirs, or that there will be none."""

    def rows(number: int) -> list[TrainRow]:
        found: Sequence[TrainRow] | None = None
        try:
            found = rows_of_round(number)
        finally:
            ranks.tell((STOP,) if found is None else (ROWS, found))
            ranks.listening = found is None
        return dealt(found, ranks, batch)

    return rows


class Saved(TrainerCallback):
    """Rank 0 seals a checkpoint when all ranks' parts are there: comes before what seals it."""

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        distributed.barrier()


class InStep(TrainerCallback):
    """All ranks save and end at the same update: comes after what decides that."""

    def __init__(self, ranks: Ranks) -> None:
        self.ranks = ranks

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        asked = (control.should_training_stop, control.should_save)
        control.should_training_stop, control.should_save = self.ranks.tell(asked)
