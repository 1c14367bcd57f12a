"""Trained values as search sees them: a head over the policy's own hidden states, or a network with an engine of its own.

A value folder holds `value.json` (kind, figures, the weight of the rollouts, the hashes of the other files; written
last, so a folder without it was never finished) and `value.safetensors` (`weight` `[D]` and `bias` `[1]` of the last
layer, calibration included). A network's folder is a token-classification model too; where its base is quantised it
holds a LoRA adapter instead of the model, computes in the policy's own layers, and belongs to the policies of one base.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoModelForTokenClassification, PreTrainedModel

from ..config.load import Config
from ..engine.inprocess import InProcessEngine
from ..engine.protocol import Engine
from ..errors import CheckpointError
from .adapters import VALUE, AdapterView, fingerprint, load_adapter
from .student import Student

CARD, LAST_LAYER, ADAPTER = "value.json", "value.safetensors", "adapter"


@dataclass(slots=True)
class EngineValue:
    """`engine.protocol.ValueFunction` over an engine with a value head; its states' keys and values are reused.

    `rollout_weight` is the fitted lambda of `Q = (1 - lambda)*Q_value + lambda*Q_rollout`: 1 where the value did not
    beat chance on held-out questions. `card` is value.json. `own` tells that the engine is the value's own (a network)
    and not the policy's.
    """

    engine: Engine
    rollout_weight: float
    card: dict[str, Any]
    own: bool

    @property
    def computes(self) -> bool:
        """A head reads what the policy computed anyway."""
        return self.own

    async def __call__(self, token_ids: tuple[int, ...]) -> float:
        """V in [0, 1] of the state after these tokens, prompt included."""
        [value] = await self.engine.values([token_ids])
        return value


def policy_fingerprint(model: PreTrainedModel) -> str:
    """SHA-256 over the names, shapes and numbers of a policy's parameters: what a head was trained on."""
    return fingerprint(model)


def load_value(folder: Path, student: Student, config: Config) -> EngineValue:
    """The value function of a folder that the `value` command wrote, for searches with `student`.

    A head is set on the student's own engine; a network gets an engine of its own (`config.engine` sizes it).

    Raises:
        CheckpointError: the folder isn't finished, a file of it changed, or it doesn't belong to this student.
    """
    card = read_card(folder)
    weight, bias = last_layer(folder)
    width = student.model.config.hidden_size
    if weight.shape != (width,) or card["vocabulary"] != student.model.config.vocab_size:
        raise CheckpointError(
            f"value {folder} is of width {weight.numel()} for {card['vocabulary']} tokens, student {student.name} has"
            f" {width} and {student.model.config.vocab_size}: train a value for this student"
        )
    own, adapted = card["kind"] == "network", (folder / ADAPTER).is_dir()
    if (not own and card["policy"] != policy_fingerprint(student.model)) or (adapted and not on_base(card, student)):
        raise CheckpointError(
            f"value {folder} was trained on other weights than student {student.name} has: name that student's folder,"
            " or train a value for this one"
        )
    engine: Engine = student.engine
    if own:
        engine = InProcessEngine(
            network_model(folder, student, card if adapted else None),
            eos_id=student.engine.eos_id,
            line_end_ids=student.engine.line_end_ids,
            settings=config.engine,
            eos_ids=student.engine.eos_ids,
        )
    engine.set_value(weight, bias)
    return EngineValue(engine, card["rollout_weight"], card, own)


def read_card(folder: Path) -> dict[str, Any]:
    """value.json, after a check of every file it names."""
    try:
        card = json.loads((folder / CARD).read_text(encoding="utf-8"))
    except OSError as error:
        raise CheckpointError(f"value {folder} has no {CARD}: name a folder that `value` finished") from error
    except ValueError as error:
        raise CheckpointError(f"value {folder} has a broken {CARD}: train it again") from error
    wanted = {"kind", "policy", "vocabulary", "rollout_weight", "files"}
    if not isinstance(card, dict) or not wanted <= card.keys():
        raise CheckpointError(f"value {folder} has a broken {CARD}: train it again")
    for name, expected in card["files"].items():
        try:
            with (folder / name).open("rb") as file:
                found = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise CheckpointError(f"value {folder} lacks {name}: train it again") from error
        if found != expected:
            raise CheckpointError(f"value {folder} has a truncated or changed {name}: train it again")
    return card


def last_layer(folder: Path) -> tuple[torch.Tensor, float]:
    """Weight `[D]` and bias of V = sigmoid(weight.h + bias)."""
    try:
        tensors = load_file(folder / LAST_LAYER)
        return tensors["weight"].float(), float(tensors["bias"])
    except (OSError, SafetensorError, KeyError) as error:
        raise CheckpointError(f"value {folder} has no readable {LAST_LAYER}: train it again") from error


def on_base(card: dict[str, Any], student: Student) -> bool:
    """Whether an adapter's card names the base of `student`'s policy. Cards of version 0.3 name the policy instead."""
    if "base" in card:
        return card["base"] == fingerprint(student.model, None)
    return card["policy"] == policy_fingerprint(student.model)


def shared_model(folder: Path, student: Student, card: dict[str, Any], kind: str) -> Any:
    """The student's own layers under a folder's adapter, which is put beside those that are there."""
    digest = hashlib.sha256("".join(f"{name}{found}" for name, found in sorted(card["files"].items())).encode())
    name = f"{kind}-{digest.hexdigest()[:8]}"
    load_adapter(student.model, folder / ADAPTER, name)
    return AdapterView(student.model, name)


def network_model(folder: Path, student: Student, adapted: dict[str, Any] | None) -> Any:
    """A network as an engine takes it: its backbone under the student's output layer, which nobody asks here.

    `adapted` is the card of a network that is an adapter.
    """
    model: Any
    if adapted is not None:
        return shared_model(folder, student, adapted, VALUE)
    try:
        network: Any = AutoModelForTokenClassification.from_pretrained(folder, dtype=getattr(torch, student.spec.dtype))
    except (OSError, ValueError, RuntimeError) as error:
        raise CheckpointError(f"value {folder} has no readable network: train it again") from error
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(network.config)
    weight: Any = student.model.get_input_embeddings().weight
    setattr(model, model.base_model_prefix, network.base_model.to(weight.device))
    model.set_output_embeddings(student.model.get_output_embeddings())
    return model.eval()
