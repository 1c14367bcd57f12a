"""How vLLM is started inside this process for a student: its engine arguments, and what can't be done on this machine."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import torch

from ..config.sections import MOST_ROWS, EngineConfig, StudentModel
from ..errors import ConfigError
from .device import device_memory
from .vllm_weights import RANKS

CPU_BLOCK = 32  # tokens of a cache block: the CPU attention kernel wants a multiple of 32
CPU_PREFILL = 4096  # tokens of a step


@dataclass(frozen=True, slots=True)
class Launch:
    """How vLLM is started.

    `lora` is the adapters' rank, 0 where training changes all weights; `targets` are the modules that adapters change.
    `sleeps` keeps weights where they can be put away; `cache_bytes` is a CPU's cache.
    """

    source: str
    dtype: str
    quantised: bool
    context: int
    lora: int
    targets: tuple[str, ...]
    sleeps: bool
    settings: EngineConfig
    cache_bytes: int

    def arguments(self, source: str) -> dict[str, Any]:
        """vLLM's engine arguments, for the model in `source`."""
        given: dict[str, Any] = {
            "model": source,
            "skip_tokenizer_init": True,
            "dtype": self.dtype,
            # One more than is asked for: a sequence that fills the context can be scored.
            "max_model_len": self.context + 1,
            "max_num_seqs": MOST_ROWS if self.settings.max_batch is None else self.settings.max_batch,
            "generation_config": "vllm",
            "logprobs_mode": "raw_logprobs",
            "max_logprobs": -1,
            "seed": 0,
            "enable_prefix_caching": True,
            "disable_log_stats": True,
            "use_tqdm_on_load": False,
        }
        if self.lora:
            given |= {"enable_lora": True, "max_loras": 1, "max_lora_rank": self.lora}
            # Else its output layer takes adapters too, and then vLLM can't score prompts on a CPU.
            given["lora_target_modules"] = list(self.targets)
        if self.quantised:
            given["quantization"] = "bitsandbytes"
        if torch.cuda.is_available():
            given |= {"gpu_memory_utilization": self.settings.vllm.gpu_memory, "enable_sleep_mode": self.sleeps}
        else:
            given |= {"enforce_eager": True, "block_size": CPU_BLOCK, "kv_cache_memory_bytes": self.cache_bytes}
            # Its seeded requests can't be prefilled in chunks: torch's CPU generator doesn't rewind.
            given |= {"enable_chunked_prefill": False, "max_num_batched_tokens": max(CPU_PREFILL, self.context + 1)}
        return given


def launch_for(model: Any, source: str, spec: StudentModel, adapter: str, settings: EngineConfig) -> Launch:
    """How vLLM is started for a student whose trained weights are `adapter` ("full" or "lora").

    Raises ConfigError for what vLLM can't do on this machine.
    """
    cuda = torch.cuda.is_available()
    if spec.quantization == "nf4" and not cuda:
        raise ConfigError(
            "engine.backend is vllm and the student is 4-bit: vLLM loads bitsandbytes weights on CUDA alone; set"
            " engine.backend=inprocess, or the model's quantization to none"
        )
    if adapter == "lora" and spec.lora.rank > RANKS[-1]:
        raise ConfigError(f"lora.rank is {spec.lora.rank}: vLLM serves adapters up to rank {RANKS[-1]}")
    shape = model.config
    context = min(settings.max_context, shape.max_position_embeddings - 1)
    heads = getattr(shape, "num_key_value_heads", None) or shape.num_attention_heads
    size = getattr(shape, "head_dim", None) or shape.hidden_size // shape.num_attention_heads
    token_bytes = 2 * shape.num_hidden_layers * heads * size * getattr(torch, spec.dtype).itemsize
    return Launch(
        source,
        spec.dtype,
        spec.quantization == "nf4",
        context,
        next(rank for rank in RANKS if rank >= spec.lora.rank) if adapter == "lora" else 0,
        spec.lora.targets,
        cuda,
        settings,
        min(settings.cache(device_memory()[2]), max(settings.cache_tokens, 4 * context) * token_bytes),
    )


def quiet() -> None:
    """vLLM's notices stay out of the user's terminal, its errors don't; what the user has set stays as it is."""
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    if not torch.cuda.is_available():
        # Else its worker would pin itself to cores that the trainer uses too.
        os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
