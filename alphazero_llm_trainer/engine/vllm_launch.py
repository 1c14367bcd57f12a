"""How vLLM is started inside this process for a student: its engine arguments, and what can't be
done on this machine.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import torch

from ..config.sections import MOST_ROWS, EngineConfig, StudentModel
from ..errors import ConfigError
from .device import context_of, device_memory, text_config, token_bytes
from .vllm_weights import RANKS

CPU_BLOCK = 32  # tokens of a cache block: the CPU attention kernel wants a multiple of 32
CPU_PREFILL = 4096  # tokens of a step


@dataclass(frozen=True, slots=True)
class Launch:
    """How vLLM is started.

    `arguments` are its engine's, the model's folder or hub id among them. `lora` says whether
    training changes an adapter, `reloads` whether it changes weights that vLLM takes anew; `sleeps`
    whether they can be put away.
    """

    arguments: dict[str, Any]
    context: int
    lora: bool
    reloads: bool
    sleeps: bool


def launch_for(
    model: Any, source: str, spec: StudentModel, adapter: str, settings: EngineConfig
) -> Launch:
    """How vLLM is started for a student whose trained weights are `adapter` ("full" or "lora").

    Raises ConfigError for what vLLM can't do on this machine.
    """
    cuda, lora, quantised = torch.cuda.is_available(), adapter == "lora", spec.quantization == "nf4"
    if quantised and not cuda:
        raise ConfigError(
            "engine.backend is vllm and the student is 4-bit: vLLM loads bitsandbytes weights on "
            "CUDA alone; set engine.backend=inprocess, or the model's quantization to none"
        )
    if lora and spec.lora.rank > RANKS[-1]:
        raise ConfigError(
            f"lora.rank is {spec.lora.rank}: vLLM serves adapters up to rank {RANKS[-1]}"
        )
    context = context_of(text_config(model), settings.context + 1) - 1
    arguments: dict[str, Any] = {
        "model": source,
        "skip_tokenizer_init": True,
        "dtype": spec.dtype,
        # One more than is asked for: a sequence that fills the context can be scored.
        "max_model_len": context + 1,
        "max_num_seqs": MOST_ROWS if settings.max_batch is None else settings.max_batch,
        "generation_config": "vllm",
        "logprobs_mode": "raw_logprobs",
        "max_logprobs": -1,
        "seed": 0,
        "enable_prefix_caching": True,
        "disable_log_stats": True,
        "use_tqdm_on_load": False,
    }
    if lora:
        rank = next(rank for rank in RANKS if rank >= spec.lora.rank)
        # With other targets its output layer takes adapters too, and then vLLM can't score prompts
        # on a CPU.
        arguments |= {
            "enable_lora": True,
            "max_loras": 1,
            "max_lora_rank": rank,
            "lora_target_modules": [*spec.lora.targets],
        }
    if quantised:
        arguments["quantization"] = "bitsandbytes"
    if cuda:
        arguments |= {"gpu_memory_utilization": settings.vllm.gpu_memory, "enable_sleep_mode": True}
    else:
        tokens = max(settings.cache_tokens, 4 * context)
        cache = min(
            settings.cache(device_memory()[2]),
            tokens * token_bytes(text_config(model), getattr(torch, spec.dtype)),
        )
        arguments |= {
            "enforce_eager": True,
            "block_size": CPU_BLOCK,
            "kv_cache_memory_bytes": cache,
        }
        # Its seeded requests can't be prefilled in chunks: torch's CPU generator doesn't rewind.
        arguments |= {
            "enable_chunked_prefill": False,
            "max_num_batched_tokens": max(CPU_PREFILL, context + 1),
        }
    return Launch(arguments, context, lora, not lora and not quantised, cuda)


def quiet_vllm() -> None:
    """vLLM's notices stay out of the user's terminal, its errors don't; what the user has set stays
    as it is.
    """
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    if not torch.cuda.is_available():
        # Else its worker would pin itself to cores that the trainer uses too.
        os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
