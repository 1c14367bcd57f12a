"""Training under FSDP: accelerate and torch cut up what is trained, and each process keeps a whole model to search with.

accelerate's own configuration turns it on (`accelerate launch --config_file examples/accelerate_fsdp.yaml`) and reaches this
process as environment variables. Parameters, gradients and optimiser states are sharded (`fully_shard`, FSDP2). An engine
needs whole weights, so the trainer shards a copy of the model, and after each round its weights are put together again in
the model that is searched with.
"""

from __future__ import annotations

import os

import torch
from accelerate import PartialState
from accelerate.utils import DistributedType

from ..config.load import Config, resolve_name
from ..config.sections import StudentModel
from ..errors import ConfigError

# What accelerate is told, whatever its configuration says.
SETTINGS = {
    "FSDP_VERSION": "2",
    "FSDP_STATE_DICT_TYPE": "FULL_STATE_DICT",  # shards would be folders, of one number of processes
    "FSDP_CPU_RAM_EFFICIENT_LOADING": "false",  # each process searches with weights of its own
    "FSDP_ACTIVATION_CHECKPOINTING_OFFLOAD": "false",
    "FSDP_ACTIVATION_CHECKPOINTING": "false",  # it renames layers; `train.gradient_checkpointing` does it
}


def uses_fsdp() -> bool:
    """Whether this process was launched for FSDP."""
    return os.environ.get("ACCELERATE_USE_FSDP", "").lower() == "true"  # as accelerate reads it


def check_fsdp(config: Config, size: int) -> None:
    """Settle what accelerate is told. Raises ConfigError where `size` processes can't train this configuration under FSDP."""
    os.environ.update(SETTINGS)
    if os.environ.get("FSDP_RESHARD_AFTER_FORWARD", "true").lower() not in ("true", "false"):
        os.environ["FSDP_RESHARD_AFTER_FORWARD"] = "true"  # a file of version 1 names a strategy there
    if size == 1:
        raise ConfigError(
            "FSDP cuts weights up between processes and there is one: start 2 or more, or launch without it"
        )
    check_unpacked(config, config.models[resolve_name(config)])
    if config.train.optimizer.name == "adamw_8bit":
        raise ConfigError("train.optimizer.name is adamw_8bit, which knows no sharded weights: set it to adamw")
    if config.train.method == "grpo" and config.train.pack == "on":
        # Ranks pack their rows into different numbers of forwards, and under FSDP each forward is one of all ranks.
        raise ConfigError("train.pack is on and FSDP wants equally many forwards of all processes: set it to auto")


def check_unpacked(config: Config, spec: StudentModel) -> None:
    """Raise ConfigError for a student in 4 bits; the folder of an adapter may say so of its base."""
    if spec.quantization != "none":
        raise ConfigError(
            f"models.{resolve_name(config)}.quantization is {spec.quantization}, whose packed weights FSDP was not tried"
            " with: set it to none, or launch with DDP"
        )


def on_cpus() -> None:
    """Have accelerate shard on CPUs too, before an `Accelerator` is made.

    It takes FSDP's plugin where processes have GPUs. On CPUs it would train under DDP without a word, although torch can shard
    there, and tests run there.
    """
    on_cpu = not torch.cuda.is_available()
    if uses_fsdp() and PartialState(cpu=on_cpu).distributed_type == DistributedType.MULTI_CPU:
        PartialState._shared_state["distributed_type"] = DistributedType.MULTI_GPU
