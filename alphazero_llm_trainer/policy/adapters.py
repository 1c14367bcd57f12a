"""One base, many adapters: which LoRA adapter of a shared model a forward computes with.

Policy, reference (no adapter), value network, critic and process reward model of a student that
trains adapters are adapters inside the modules of one model; peft and transformers put them there.
Outside of `use_adapter` the policy's own adapter is active, where there is one. Forwards are not
concurrent: engines and trainers share one thread.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import nn

from ..config.sections import LoraConfig
from ..errors import CheckpointError, ConfigError
from .folders import ADAPTER_CONFIG, adapter_file, read_note
from .weights import load_tensors, stored_dtypes

# Names of adapters; `value` and `prm` are those of critics.
POLICY = "default"
CRITIC = "critic"
START = "start"
LORA_PARTS = ("lora_A", "lora_B")
OF_EXPERTS = {"gate_proj", "up_proj", "down_proj", "w1", "w2", "w3"}
BASE = "base.json"  # beside them: the fingerprint of the base that the adapter was trained over

# Fields of adapter_config.json that don't say what is computed, or that the forwards here know:
# rank, scale, modules.
KNOWN = frozenset(
    {
        "r",
        "lora_alpha",
        "lora_dropout",
        "use_rslora",
        "rank_pattern",
        "alpha_pattern",
        "fan_in_fan_out",
        "target_modules",
        "exclude_modules",
        "layers_to_transform",
        "layers_pattern",
        "ensure_weight_tying",
        "peft_type",
        "auto_mapping",
        "base_model_name_or_path",
        "eva_config",
        "inference_mode",
        "megatron_core",
        "peft_version",
        "qalora_group_size",
        "revision",
        "task_type",
    }
)
# Of the others, values that change nothing. Starts that aren't listed change the base's own
# weights.
HARMLESS = {"bias": ("none",), "init_lora_weights": (True, "gaussian", "eva")}

_current: list[tuple[Any, str | None]] = []  # what `use_adapter` was entered with and not left yet


def adapter_layers(model: Any) -> list[Any]:
    """The modules of `model` that hold adapters."""
    return [
        module
        for module in model.modules()
        if hasattr(module, "lora_A") and hasattr(module, "active_adapters")
    ]


def _switch_layer(layer: Any, adapters: list[str]) -> None:
    """Have a layer compute with these adapters.

    The one private name of peft's that is used: its public `set_adapter` also decides what is
    trained, and takes no empty list.
    """
    layer._active_adapter = adapters


def activate_adapter(model: Any, adapter: str) -> None:
    """Have all layers of `model` compute with `adapter` from now on."""
    for layer in adapter_layers(model):
        _switch_layer(layer, [adapter])


@contextmanager
def restore_adapters(model: Any) -> Iterator[None]:
    """Inside, adapters may be put into `model`; afterwards those are active that were before."""
    before = {id(layer): layer.active_adapters for layer in adapter_layers(model)}
    try:
        yield
    finally:
        for layer in adapter_layers(model):
            _switch_layer(layer, before.get(id(layer), []))


@contextmanager
def use_adapter(model: Any, adapter: str | None) -> Iterator[None]:
    """Forwards of `model` compute with `adapter` (None: with the base alone); what was active
    before is restored.
    """
    before = [(layer, layer.active_adapters) for layer in adapter_layers(model)]
    for layer, _ in before:
        _switch_layer(layer, [] if adapter is None else [adapter])
    _current.append((model, adapter))
    try:
        yield
    finally:
        _current.pop()
        for layer, active in before:
            _switch_layer(layer, active)


def recompute_contexts() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    """`context_fn` of gradient checkpointing: the backward pass recomputes a layer under the
    forward's adapter.
    """
    return nullcontext(), use_adapter(*_current[-1]) if _current else nullcontext()


def bind_adapter(module: nn.Module, model: Any, adapter: str) -> None:
    """Every forward of `module`, which shares `model`'s layers, computes with this adapter."""
    entered: list[AbstractContextManager[None]] = []

    def enter(*_: Any) -> None:
        entered.append(use_adapter(model, adapter))
        entered[-1].__enter__()

    def leave(*_: Any) -> None:
        entered.pop().__exit__(None, None, None)

    module.register_forward_pre_hook(enter)
    module.register_forward_hook(leave, always_call=True)


class AdapterView:
    """`model` as an engine reads it, always under `adapter` (None: the base alone). Its weights are
    the model's own.
    """

    def __init__(self, model: Any, adapter: str | None) -> None:
        self.model, self.adapter, self.config = model, adapter, model.config
        # What the kernels pack.
        self.shared = model
        self.active = [] if adapter is None else [adapter]
        self.get_input_embeddings: Callable[[], Any] = model.get_input_embeddings
        self.get_output_embeddings: Callable[[], Any] = model.get_output_embeddings

    def base_model(self, **inputs: Any) -> Any:
        """The backbone's forward."""
        with use_adapter(self.model, self.adapter):
            return self.model.base_model(**inputs)


def own_parameters(model: Any, adapter: str) -> dict[str, nn.Parameter]:
    """The parameters of one adapter, by their names in `model`."""
    return {
        name: p
        for name, p in model.named_parameters()
        if f".{adapter}." in name and is_adapted(name)
    }


def is_adapted(name: str) -> bool:
    """True for the name of an adapter's parameter."""
    return any(f".{part}." in name for part in LORA_PARTS)


def base_parameters(model: Any) -> dict[str, nn.Parameter]:
    """The parameters that are no adapter's, by their names in a model without adapters."""
    return {
        name.replace(".base_layer.", "."): p
        for name, p in model.named_parameters()
        if not is_adapted(name)
    }


def freeze_base(model: Any) -> None:
    """Nothing but adapters is trained."""
    for parameter in base_parameters(model).values():
        parameter.requires_grad_(False)


def unusual_fields(folder: Path) -> list[str]:
    """What an adapter's adapter_config.json has beyond LoRA of linear layers: fields with their
    values.
    """
    fields = read_note(folder, ADAPTER_CONFIG)
    if fields.get("peft_type") != "LORA":
        return [f"peft_type {fields.get('peft_type')!r}"]
    return [
        f"{field} {value!r}"
        for field, value in fields.items()
        if field not in KNOWN and value and value not in HARMLESS.get(field, ())
    ]


def not_plain(folder: Path, what: str) -> str:
    """What to do with an adapter that is more than LoRA of linear layers."""
    return (
        f"adapter {folder} has {what} in its {ADAPTER_CONFIG}, and beside a base only LoRA of its "
        f"layers' linear parts is computed: make a model of both with `merge --adapter {folder} "
        "--model BASE --out DIR`, and name that folder"
    )


def load_adapter(model: Any, folder: Path, name: str) -> None:
    """Put a saved adapter into `model` as `name`, for inference; what is active stays. One that is
    there stays too.

    Raises CheckpointError where the folder holds no adapter that fits, or more than LoRA of linear
    layers.
    """
    from transformers.pytorch_utils import Conv1D

    if name in getattr(model, "peft_config", {}):
        return
    for field in unusual_fields(folder):
        raise CheckpointError(not_plain(folder, field))
    trained = [p for name, p in model.named_parameters() if p.requires_grad and is_adapted(name)]
    try:
        with restore_adapters(model):
            # transformers would take PyTorch's file for a model's
            file = adapter_file(folder)
            state = load_tensors(file) if file.suffix == ".bin" else None
            report = model.load_adapter(str(folder), adapter_name=name, adapter_state_dict=state)
    except (OSError, ValueError, RuntimeError, KeyError, TypeError, SafetensorError) as error:
        raise CheckpointError(
            f"adapter {folder} can't be loaded over this student: train it again"
        ) from error
    lacking = {key for key in report.missing_keys if f".{name}." in key}
    faults = sorted(lacking | {*report.unexpected_keys})
    if faults:
        raise CheckpointError(
            f"adapter {folder} doesn't fit this student ({faults[0]} is on one side alone): name "
            "its own base with --model"
        )
    head = model.get_output_embeddings()
    for place, layer in model.named_modules():
        if hasattr(layer, "lora_A") and name in layer.scaling:
            linear = isinstance(layer.get_base_layer(), nn.Linear | Conv1D)
            if layer is head or not linear:
                raise CheckpointError(not_plain(folder, f"{place} among its target_modules"))
    freeze_base(model)
    for parameter in trained:
        parameter.requires_grad_(True)
    stored = stored_dtypes(model)
    if stored:  # a fingerprint takes its numbers as a base in its own precision would hold them
        stored |= dict.fromkeys(own_parameters(model, name), next(iter(stored.values())))


def shape_of(model: Any, lora: LoraConfig) -> LoraConfig:
    """`lora` with the largest rank and the modules of the policy's adapter in `model`, which goes
    on as it is.
    """
    adapter = model.peft_config[POLICY]
    targets = {
        name.rpartition(".")[2]
        for name, module in model.named_modules()
        if POLICY in getattr(module, "lora_A", ())
    }
    rank = max(adapter.r, *adapter.rank_pattern.values()) if adapter.rank_pattern else adapter.r
    return lora.with_values(rank=rank, alpha=adapter.lora_alpha, targets=tuple(sorted(targets)))


def fit_lora(model: Any, lora: LoraConfig, student: str) -> LoraConfig:
    """`lora` for the layers that `model` has: the default's names where it has them all, else every
    linear layer.

    The last layer, which makes logits of hidden states, is never one of them, nor are layers beside
    a mixture's experts whose names peft takes for those of the experts. Raises ConfigError where
    names of one's own are not this model's.
    """
    from transformers.pytorch_utils import Conv1D

    linear = {
        name.rpartition(".")[2]
        for name, module in model.base_model.named_modules()
        if isinstance(module, nn.Linear | Conv1D) and module is not model.get_output_embeddings()
    }
    if any(".experts." in name for name, _ in model.named_parameters()):
        linear -= OF_EXPERTS
    unknown = [name for name in lora.targets if name not in linear]
    if not unknown:
        return lora
    if lora.targets != LoraConfig().targets:
        raise ConfigError(
            f"models.{student}.lora.targets names {', '.join(unknown)}, and this model's linear "
            f"layers are called {', '.join(sorted(linear))}: name some of these"
        )
    return lora.with_values(targets=tuple(sorted(linear)))


def model_fingerprint(model: Any, adapter: str | None = POLICY) -> str:
    """SHA-256 over names, shapes and numbers of a model's parameters and of one of its adapters, if
    it has that.
    """
    digest, parameters = hashlib.sha256(), base_parameters(model)
    if adapter is not None:
        parameters |= own_parameters(model, adapter)
    stored = stored_dtypes(model)
    for name, held in sorted(parameters.items()):
        parameter: Any = held.to(stored[name]) if name in stored else held
        digest.update(f"{name} {tuple(parameter.shape)} {parameter.dtype}\n".encode())
        digest.update(tensor_bytes(parameter))
        state = getattr(parameter, "quant_state", None)
        if state is not None:  # of 4-bit weights, which are numbers of a block's scale
            digest.update(tensor_bytes(state.absmax))
    return digest.hexdigest()


def tensor_bytes(tensor: Any) -> bytes:
    """A tensor's bytes."""
    return tensor.detach().contiguous().view(-1).view(torch.uint8).cpu().numpy().tobytes()
