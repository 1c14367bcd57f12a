"""A run of several processes (`accelerate launch`, `torchrun`): each searches its share, all train
one set of weights.

All run the same loop. Rank 0 has the folder, the journal, the checkpoints, the evaluations and the
terminal: it gathers the trees and gives the others the rows with their credit; then every rank
trains on its part of each minibatch, and DDP or FSDP take the mean of the gradients.

FSDP is turned on by accelerate's own configuration (`accelerate launch --config_file
examples/accelerate_fsdp.yaml`), which reaches a process as environment variables. Parameters,
gradients and optimiser states are sharded (`fully_shard`, FSDP2). An engine needs whole weights, so
a copy of the model is sharded, and after each round its weights are put together again in the model
that is searched with.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import torch
from accelerate import PartialState
from accelerate.utils import DistributedType, broadcast_object_list, gather_object
from torch import distributed

from ..chat.teachers import is_remote
from ..config.load import Config, resolve_name
from ..config.refusals import refuse_conflicts
from ..config.sections import StudentModel
from ..errors import AlphaZeroError, EngineError
from .methods.base import Method
from .size import rank_and_size
from .train_row import TrainRow, TrainRows

# A rank waits as long as another one's searches and evaluations take.
RANK_PATIENCE = timedelta(days=7)
# FSDP's settings, whatever accelerate's configuration says.
FSDP = {
    "FSDP_VERSION": "2",
    "FSDP_RESHARD_AFTER_FORWARD": "true",  # a file of version 1 names a strategy there
    # shards would be folders, of one number of processes
    "FSDP_STATE_DICT_TYPE": "FULL_STATE_DICT",
    "FSDP_CPU_RAM_EFFICIENT_LOADING": "false",  # each process searches with weights of its own
    "FSDP_ACTIVATION_CHECKPOINTING_OFFLOAD": "false",
    # it renames layers; `train.gradient_checkpointing` does it
    "FSDP_ACTIVATION_CHECKPOINTING": "false",
}


@dataclass(frozen=True, slots=True)
class Ranks:
    """This process's number among `size` of one run.

    All processes must call `broadcast`, `gather`, `on_first` and `everywhere` together.
    """

    rank: int = 0
    size: int = 1

    @property
    def first(self) -> bool:
        """Whether this process has the folder, the journal and the terminal."""
        return self.rank == 0

    def broadcast(self, value: Any) -> Any:
        """Rank 0's value."""
        return broadcast_object_list([value])[0]

    def gather(self, value: Any) -> list[Any]:
        """Every rank's value, in their order."""
        return list(gather_object([value]))

    def share(self, keys: Sequence[str]) -> Sequence[str]:
        """This rank's part of the questions that are to be searched."""
        return keys[self.rank :: self.size]

    def on_first(self, work: Callable[[], Any]) -> Any:
        """What `work` returns on rank 0."""
        return self.broadcast(self.everywhere(work if self.first else lambda: None))

    def everywhere(self, work: Callable[[], Any]) -> Any:
        """What `work` returns on this rank. Where one fails all end: rank 0 with the error, the
        others without a word.
        """
        result, failed = None, None
        try:
            result = work()
        except Exception as error:  # noqa: BLE001 - the others get its text, then it is raised; a second Ctrl-C waits for nobody
            failed = error
        reasons = self.gather(None if failed is None else str(failed) or type(failed).__name__)
        if self.rank and any(reasons):
            if failed is not None and not isinstance(failed, AlphaZeroError):
                raise failed  # a bug: its traceback is wanted
            raise SystemExit(2)
        if failed is not None:
            raise failed
        for rank, reason in enumerate(reasons):
            if reason:
                raise EngineError(f"process {rank} of {self.size} failed: {reason}")
        return result

    def close(self) -> None:
        """Leave the group, once every rank is there."""
        if self.size > 1:
            distributed.barrier()
            distributed.destroy_process_group()


ONE_RANK = Ranks()


def open_ranks(config: Config, method: Method) -> Ranks:
    """The processes of this run. Nothing is loaded yet.

    Raises:
        ConfigError: on rank 0, where the processes can't share this configuration.
        SystemExit: on the others, for the same reason: rank 0 says it.
    """
    rank, size = rank_and_size()
    if size == 1:
        check_ranks(config, method, size)
        return ONE_RANK
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    if not distributed.is_initialized():
        # Objects go through gloo, and with GPUs gradients through NCCL.
        backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
        distributed.init_process_group(backend, timeout=RANK_PATIENCE)
    PartialState(cpu=not torch.cuda.is_available())  # whose collectives these are
    ranks = Ranks(rank, size)
    ranks.on_first(lambda: check_ranks(config, method, size))
    return ranks


# -- what can't be shared --------------------------------------------------------------------------


def check_ranks(config: Config, method: Method, size: int) -> None:
    """Raise ConfigError where a run of this configuration can't be shared by `size` processes."""
    rest, remote = config.train.optimizer.batch_size % size, is_remote(config)
    refuse_conflicts(config, "processes", method=method, size=size, rest=rest, remote=remote)
    if uses_fsdp():
        os.environ.update(FSDP)
        check_unpacked(config, config.models[resolve_name(config)])
        refuse_conflicts(config, "FSDP", method=method, size=size)


def check_unpacked(config: Config, spec: StudentModel) -> None:
    """Raise ConfigError for a student in 4 bits; the folder of an adapter may say so of its
    base.
    """
    refuse_conflicts(config, "FSDP student", name=resolve_name(config), spec=spec)


# -- FSDP ------------------------------------------------------------------------------------------


def uses_fsdp() -> bool:
    """Whether this process was launched for FSDP."""
    return os.environ.get("ACCELERATE_USE_FSDP", "").lower() == "true"  # as accelerate reads it


def shard_on_cpus() -> None:
    """Have accelerate shard on CPUs too, before an `Accelerator` is made.

    It takes FSDP's plugin where processes have GPUs. On CPUs it would train under DDP without a
    word, although torch can shard there, and tests run there.
    """
    on_cpu = not torch.cuda.is_available()
    if uses_fsdp() and PartialState(cpu=on_cpu).distributed_type == DistributedType.MULTI_CPU:
        PartialState._shared_state["distributed_type"] = DistributedType.MULTI_GPU


def shard_rows(rows: TrainRows, ranks: Ranks) -> list[TrainRow]:
    """This rank's rows of a minibatch: as many as any other's, and about as many tokens.

    The longest row goes to the first rank, and so on to the last and back again. Where they can't
    be shared evenly, ranks get the shortest one again, as padding that no loss sees.
    """
    spare = -len(rows) % ranks.size
    if spare:
        shortest = min(rows, key=lambda row: len(row.prompt_ids) + len(row.completion_ids))
        nothing: dict[str, Any] = dict.fromkeys(
            ("advantages", "weights", "pi", "draws", "value_weights"), ()
        )
        blank = replace(shortest, kind="padding", **nothing)
        rows = [*rows, *[blank] * spare]
    order = sorted(
        range(len(rows)), key=lambda i: -len(rows[i].prompt_ids) - len(rows[i].completion_ids)
    )
    turns = [order[i : i + ranks.size] for i in range(0, len(order), ranks.size)]
    picked = [turn[ranks.rank if i % 2 == 0 else -1 - ranks.rank] for i, turn in enumerate(turns)]
    return [rows[i] for i in sorted(picked)]
