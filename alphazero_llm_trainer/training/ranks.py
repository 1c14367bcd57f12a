"""A run of several processes (`accelerate launch`, `torchrun`): each searches its share, all train one set of weights.

All run the same loop. Rank 0 has the folder, the journal, the checkpoints, the evaluations and the terminal: it gathers the
trees, gives credit and tells the others the rows; then every rank trains on its part of each minibatch, and DDP or FSDP take
the mean of the gradients. Where vLLM servers sample, rank 0 alone asks them, for all questions.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
from accelerate import PartialState
from accelerate.utils import broadcast_object_list, gather_object
from torch import distributed

from ..config.load import Config, flat, resolve_name
from ..errors import AlphaZeroError, ConfigError, EngineError
from ..teachers.build import is_remote
from .fsdp import check_fsdp, uses_fsdp
from .size import rank_and_size

PATIENCE = timedelta(days=7)  # a rank waits as long as another one's searches and evaluations take


@dataclass
class Ranks:
    """This process's number among `size` of one run. `spread` is False where vLLM servers
    sample, which rank 0 alone asks."""

    rank: int = 0
    size: int = 1
    spread: bool = True

    @property
    def searches(self) -> bool:
        """Whether this process searches."""
        return self.spread or self.first

    @property
    def first(self) -> bool:
        """Whether this process has the folder, the journal and the terminal."""
        return self.rank == 0

    def broadcast(self, value: Any) -> Any:
        """Rank 0's value, on every rank; all of them must call it."""
        return value if self.size == 1 else broadcast_object_list([value])[0]

    def on_first(self, work: Callable[[], Any]) -> Any:
        """What `work` returns on rank 0, on every rank. Where it fails there, the others end without a word."""
        result, failed = None, True
        try:
            result = work() if self.first else None
            failed = False
        finally:
            failed, result = self.broadcast((failed, result))
        if failed:
            raise SystemExit(2)
        return result

    def gather(self, value: Any) -> list[Any]:
        """Every rank's value, in their order; all of them must call it."""
        return [value] if self.size == 1 else list(gather_object([value]))

    def share(self, keys: Sequence[str]) -> Sequence[str]:
        """This rank's part of the questions that are to be searched."""
        return keys[self.rank :: self.size] if self.spread else keys if self.first else []

    def everywhere(self, work: Callable[[], None]) -> None:
        """Call `work` on every rank. Where one fails all end: rank 0 with the error, the others without a word."""
        failed: Exception | None = None
        try:
            work()
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

    def wait(self) -> None:
        """Wait until every rank is here."""
        if self.size > 1:
            distributed.barrier()

    def close(self) -> None:
        """Leave the group, once every rank is there."""
        if self.size > 1:
            distributed.barrier()
            distributed.destroy_process_group()


ALONE = Ranks()


def check_ranks(config: Config, size: int) -> None:
    """Raise ConfigError where a run of this configuration can't be shared by `size` processes."""
    train, backend, batch = config.train, config.engine.backend, config.train.optimizer.batch_size
    if batch % size:
        raise ConfigError(
            f"train.optimizer.batch_size is {batch} and {size} processes share it: give a multiple of {size}, or start"
            " a number of processes that divides it"
        )
    if train.method == "ppo":
        raise ConfigError(f"train.method is ppo, which trains in one process: start 1 and not {size}")
    if backend == "vllm":
        raise ConfigError(f"engine.backend is vllm and {size} processes would each start one: set it to vllm-server")
    if backend == "vllm-server" and (train.adapter or config.models[resolve_name(config)].adapter) != "lora":
        raise ConfigError("engine.backend is vllm-server, whose server takes adapters alone: set train.adapter=lora")
    if is_remote(config):
        raise ConfigError(
            f"teachers are remote and {size} processes would keep {size} budgets: set teachers.tier=none, or start 1 process"
        )
    if not uses_fsdp():
        return
    check_fsdp(config, size)
    if backend == "vllm-server" and train.method == "grpo" and train.kl_coefficient:
        raise ConfigError(
            "train.kl_coefficient is on, and beside a vLLM server FSDP leaves no process a whole reference policy:"
            " set it to 0, or launch with DDP"
        )


def check_same(found: Sequence[Mapping[str, Any]]) -> None:
    """Raise ConfigError where a process has another configuration or version than the first."""
    first = found[0]
    for rank, facts in enumerate(found):
        for name in sorted(first.keys() | facts.keys()):
            mine, theirs = first.get(name), facts.get(name)
            if mine != theirs:
                raise ConfigError(
                    f"process {rank} of {len(found)} has another {name} ({theirs!r}, not {mine!r}) than process 0: start all"
                    " with the same command and versions"
                )


def open_ranks(config: Config) -> Ranks:
    """The processes of this run. Nothing is loaded yet.

    Raises:
        ConfigError: on rank 0, where the processes differ in their configuration or version, or can't share this one.
        SystemExit: on the others, for the same reason: rank 0 says it.
    """
    rank, size = rank_and_size()
    if size == 1:
        if uses_fsdp():
            check_fsdp(config, size)
        return ALONE
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    if not distributed.is_initialized():
        # Objects go through gloo, and with GPUs gradients through NCCL.
        backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
        distributed.init_process_group(backend, timeout=PATIENCE)
    PartialState(cpu=not torch.cuda.is_available())  # whose collectives these are
    ranks = Ranks(rank, size, config.engine.backend == "inprocess")
    found = ranks.gather(dict(flat({"torch": torch.__version__, **config.model_dump(mode="json")})))
    try:
        check_same(found)
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
