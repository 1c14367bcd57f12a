"""What vLLM reads new weights from: a LoRA adapter's folder, or a folder with all weights of a
model.
"""

from __future__ import annotations

import copy
import shutil
import tempfile
from pathlib import Path
from typing import Any

from safetensors.torch import save_file

from ..errors import ConfigError

ADAPTER = "default"  # peft's name of the adapter that training changes
HEAD = "lm_head.weight"  # the output layer's, in every family that models.yaml names
RANKS = (8, 16, 32, 64, 128, 256, 320, 512)  # the ones that vLLM's LoRA kernels are made for


def has_adapter(model: Any) -> bool:
    """True when peft put the policy's adapter into the model's layers."""
    return ADAPTER in (getattr(model, "peft_config", None) or {})


def write_adapter(model: Any, folder: Path) -> None:
    """The policy's adapter as peft writes one: its configuration and its tensors, under peft's
    names.

    Raises ConfigError for ranks or scales by layer, which vLLM leaves out without a word.
    """
    config = model.peft_config[ADAPTER]
    for field in ("rank_pattern", "alpha_pattern"):
        if getattr(config, field):
            raise ConfigError(
                f"the student's adapter has a {field}, and vLLM knows a single rank and scale: set"
                " engine.backend=inprocess, or start from the folder that `merge` makes of it"
            )
    folder.mkdir(parents=True)
    config.save_pretrained(str(folder))
    mark = f".{ADAPTER}."
    tensors = {
        f"base_model.model.{name.replace(mark, '.')}": parameter.detach().to("cpu").contiguous()
        for name, parameter in model.named_parameters()
        if ".lora_" in name and mark in name
    }
    save_file(tensors, folder / "adapter_model.safetensors")


def write_weights(model: Any, folder: Path) -> None:
    """All parameters under the model's own names, for an untied copy of it (`write_model`)."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {
        name: parameter.detach().to("cpu").contiguous()
        for name, parameter in model.named_parameters()
    }
    if model.config.tie_word_embeddings:
        tensors[HEAD] = model.get_output_embeddings().weight.detach().to("cpu").clone()
    save_file(tensors, folder / "model.safetensors")


def write_model(model: Any, folder: Path) -> None:
    """The model as a folder, with an output layer of its own where it shares the embedding's
    weights.

    vLLM's reload leaves a shared one behind: on a CPU its weights are a packed copy that keeps the
    old numbers.
    """
    write_weights(model, folder)
    shape = copy.deepcopy(model.config)
    shape.tie_word_embeddings = False
    shape.save_pretrained(str(folder))


class Versions:
    """Numbered folders below a temporary one, or below `parent` where the reader sees another
    `/tmp`.
    """

    def __init__(self, parent: str | None = None) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="alphazero-weights-", dir=parent))
        self.number = 0

    @property
    def newest(self) -> Path:
        """The newest version's folder; no other process's has its name."""
        return self.root / f"{self.root.name}-{self.number}"

    def next(self) -> Path:
        """The next version's folder, not made yet."""
        self.number += 1
        return self.newest

    def drop(self, folder: Path) -> None:
        """Remove a version that nobody serves any more."""
        shutil.rmtree(folder, ignore_errors=True)

    def close(self) -> None:
        """Remove everything."""
        self.drop(self.root)
