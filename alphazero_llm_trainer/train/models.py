"""Making a loaded model trainable: full weights, or LoRA adapters through peft."""

from __future__ import annotations

from typing import Any

import torch
from peft import LoraConfig as PeftLora
from peft import PeftModel, get_peft_model, prepare_model_for_kbit_training
from transformers import PreTrainedModel

from ..errors import ConfigError
from ..sections import LoraConfig, StudentModel


def make_trainable(
    model: PreTrainedModel, spec: StudentModel, adapter: str, task: str = "CAUSAL_LM"
) -> PreTrainedModel | PeftModel:
    """The model with the parameters that training changes: all of them ("full") or new adapters ("lora").

    The adapters live inside `model`'s own modules, so an engine over `model` sees them at once. `task` is peft's name of
    the model's task; for "TOKEN_CLS" the last layer is trained with the adapters.
    """
    if adapter == "full":
        if spec.quantization != "none":
            raise ConfigError(f"train.adapter is 'full' but the student is quantised ({spec.quantization}): use 'lora'")
        model.requires_grad_(True)
        return model
    if spec.quantization != "none":
        model = prepare_model_for_kbit_training(model, use_gradient_checkpointing=False)
    return get_peft_model(model, peft_config(spec.lora, task))


def peft_config(lora: LoraConfig, task: str = "CAUSAL_LM") -> PeftLora:
    """peft's own configuration of `lora`."""
    return PeftLora(
        r=lora.rank,
        lora_alpha=lora.alpha,
        lora_dropout=lora.dropout,
        target_modules=list(lora.targets),
        bias="none",
        task_type=task,
    )


def trained_state(model: Any) -> dict[str, torch.Tensor]:
    """A copy of the parameters that training changes."""
    return {name: p.detach().clone() for name, p in model.named_parameters() if p.requires_grad}


def load_trained_state(model: Any, state: dict[str, torch.Tensor]) -> None:
    """Put a copy made by `trained_state` back."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name in state:
                parameter.copy_(state[name])
