"""Making a loaded model trainable: full weights, or LoRA adapters through peft."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from peft import LoraConfig as PeftLora
from peft import inject_adapter_in_model
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from ..config.load import Config
from ..config.refusals import refuse_conflicts
from ..config.sections import LoraConfig, StudentModel
from ..config.train import LARGE, OptimizerConfig, Rates
from ..files import write_json
from ..policy.adapters import (
    BASE,
    POLICY,
    activate_adapter,
    adapter_layers,
    freeze_base,
    model_fingerprint,
    own_parameters,
    recompute_contexts,
    restore_adapters,
)
from ..policy.folders import ADAPTER_FILE
from ..policy.weights import Tensors, save_tensors, stored_dtypes
from .size import PROMPT, layer_sizes, rows_of_a_forward

if TYPE_CHECKING:
    from ..policy.student import Student

# What peft says of several adapters in a model, and of GPT-2, whose matrices are transposed.
SEVERAL = (
    "Already found a `peft_config`|You are trying to modify a model with PEFT|fan_in_fan_out is set"
)
BETAS = (0.9, 0.98)  # of AdamW
PREFIX = "base_model.model."  # of the names in an adapter's file


@dataclass(frozen=True, slots=True)
class MemoryOptions:
    """How a training saves memory. `micro_batch` is the rows of one forward; None: a whole
    minibatch.
    """

    micro_batch: int | None = None
    checkpointing: bool = False
    eight_bit: bool = False
    autocast: bool = False

    @classmethod
    def of(cls, config: Config, student: Student) -> MemoryOptions:
        """What the configuration says on this device; on a CPU as many rows as it has room for."""
        train, model = config.train, student.model
        cuda, quantised = torch.cuda.is_available(), student.spec.quantization != "none"
        rows, tokens = train.micro_batch, PROMPT + config.search.max_tokens
        if rows is None and not cuda:
            rows = rows_of_a_forward(train.optimizer.batch_size, tokens, *layer_sizes(model.config))
        return cls(
            rows,
            train.recomputes(cuda, quantised),
            train.in_eight_bits(cuda, quantised),
            computes_in_bfloat16(train.precision, student.spec, model),
        )


def computes_in_bfloat16(precision: str, spec: StudentModel, model: torch.nn.Module) -> bool:
    """Whether a training's products are in bfloat16, over weights and an optimiser as they are
    (`train.precision`).

    `auto`: on CUDA for bfloat16 students; on a CPU with AVX512-BF16, where training is faster in
    it, for models that are large enough to be bound by them.
    """
    if precision != "auto":
        return precision == "bfloat16"
    if torch.cuda.is_available():
        return spec.dtype == "bfloat16"
    return (
        torch.cpu._is_avx512_bf16_supported()
        and sum(p.numel() for p in model.parameters()) >= LARGE
    )


RECOMPUTE: dict[str, Any] = {"use_reentrant": False, "context_fn": recompute_contexts}


def learning_rate(settings: OptimizerConfig, model: torch.nn.Module, rates: Rates) -> float:
    """The learning rate for a model made trainable (`make_trainable`)."""
    adapter = "lora" if hasattr(model, "peft_config") else "full"
    return settings.rate(rates, sum(p.numel() for p in model.parameters()), adapter)


def make_trainable(model: PreTrainedModel, spec: StudentModel, adapter: str) -> PreTrainedModel:
    """The model with the parameters that training changes: all of them ("full") or the policy's
    adapter ("lora").

    The adapter lives inside `model`'s own modules, so an engine over `model` sees it at once; one
    that is there goes on.
    """
    check_full(model, spec, adapter)
    if adapter == "full":
        model.requires_grad_(True)
    else:
        attach_adapter(model, spec.lora, POLICY)
        activate_adapter(model, POLICY)
    return model


def make_optimizer(
    model: torch.nn.Module,
    extra: Iterable[torch.nn.Parameter],
    rate: float,
    weight_decay: float,
    eight_bit: bool,
) -> torch.optim.Optimizer:
    """AdamW over what is trained; norms and biases don't decay, nor does what is trained beside it.

    In eight bits the states of embeddings stay in 32, as bitsandbytes says (Dettmers et al. 2022,
    section 2.3).
    """
    beside = [*extra]
    known = {id(p) for p in beside}
    policy = [p for p in model.parameters() if p.requires_grad and id(p) not in known]
    groups = [
        {"params": [p for p in policy if p.ndim > 1], "weight_decay": weight_decay},
        {"params": [*(p for p in policy if p.ndim < 2), *beside], "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    if eight_bit:
        from bitsandbytes.optim import GlobalOptimManager, PagedAdamW8bit

        for module in model.modules():
            if isinstance(module, torch.nn.Embedding):
                GlobalOptimManager.get_instance().register_module_override(
                    module, "weight", {"optim_bits": 32}
                )
        return PagedAdamW8bit(groups, lr=rate, betas=BETAS)
    return torch.optim.AdamW(groups, lr=rate, betas=BETAS, fused=True)


def check_full(model: PreTrainedModel, spec: StudentModel, adapter: str) -> None:
    """Raise ConfigError where all weights are to be trained ("full") of a model that hasn't them:
    4-bit, or under LoRA.
    """
    refuse_conflicts(
        (), "full training", adapter=adapter, spec=spec, layered=bool(adapter_layers(model))
    )


def checkpoint_layers(model: PreTrainedModel) -> list[torch.nn.Module]:
    """Have the layers' activations computed again in the backward pass, whoever trains over them.
    Returns the layers.
    """
    # transformers 6 has the first name alone, versions before 5.24 the second.
    names = "activation_checkpointing_enable", "gradient_checkpointing_enable"
    enable: Any = next(filter(None, (getattr(model, name, None) for name in names)))
    enable(RECOMPUTE)
    return [layer for layer in model.modules() if isinstance(layer, GradientCheckpointingLayer)]


def without_dropout(layer: torch.nn.Module) -> None:
    """Have a layer, which is computed again where it is in training mode alone, compute what it
    does in inference.
    """
    modes: list[bool] = []

    def enter(layer: torch.nn.Module, _: Any) -> None:
        modes.append(layer.training)
        layer.training = False

    def leave(layer: torch.nn.Module, *_: Any) -> None:
        layer.training = modes.pop()

    layer.register_forward_pre_hook(enter)
    layer.register_forward_hook(leave, always_call=True)


def attach_adapter(model: PreTrainedModel, lora: LoraConfig, name: str) -> None:
    """Put an adapter beside the ones in `model` and make it trainable; what is active stays.

    One that is there goes on; a new one starts as the policy's own. peft's preparation of a
    quantised model isn't used: it casts embeddings and norms to fp32, another base.
    """
    own = own_parameters(model, name) or own_parameters(model, POLICY)
    begun = {key.replace(f".{POLICY}.", f".{name}."): p.detach().clone() for key, p in own.items()}
    started: Any = (
        model  # from an adapter's folder: its ranks, scales and modules may differ by layer
    )
    known = getattr(started, "peft_config", {}).get(POLICY)
    config = peft_config(lora) if known is None else copy.deepcopy(known)
    config.lora_dropout, config.inference_mode = lora.dropout, False
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", SEVERAL)
        with restore_adapters(model):
            inject_adapter_in_model(config, model, adapter_name=name)
    freeze_base(model)
    with torch.no_grad():
        for key, parameter in own_parameters(model, name).items():
            parameter.data = parameter.data.float()
            stored_dtypes(model).pop(key, None)
            parameter.requires_grad_(True)
            if key in begun:
                parameter.copy_(begun[key])


def peft_config(lora: LoraConfig) -> PeftLora:
    """peft's own configuration of `lora`."""
    return PeftLora(
        r=lora.rank,
        lora_alpha=lora.alpha,
        lora_dropout=lora.dropout,
        target_modules=list(lora.targets),
        bias="none",
        task_type="CAUSAL_LM",
    )


def save_adapter(model: Any, folder: Path, name: str = POLICY) -> list[str]:
    """Write one adapter as peft's own files, and what base it belongs to. Returns the files'
    names.
    """
    folder.mkdir(parents=True, exist_ok=True)
    state = {
        PREFIX + key.replace(f".{name}.", "."): p.detach().cpu().contiguous()
        for key, p in own_parameters(model, name).items()
    }
    save_tensors(state, folder / ADAPTER_FILE)
    config = copy.deepcopy(model.peft_config[name])
    config.inference_mode = True
    config.save_pretrained(str(folder))
    quantization = "nf4" if getattr(model, "is_loaded_in_4bit", False) else "none"
    facts = {"weights": model_fingerprint(model, None), "quantization": quantization}
    write_json(folder / BASE, facts)
    return [ADAPTER_FILE, "adapter_config.json", BASE]


def trained_state(model: Any) -> Tensors:
    """A copy of the parameters that training changes."""
    return {name: p.detach().clone() for name, p in model.named_parameters() if p.requires_grad}


def load_trained_state(model: Any, state: Tensors) -> None:
    """Put a copy made by `trained_state` back."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name in state:
                parameter.copy_(state[name])
