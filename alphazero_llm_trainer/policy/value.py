"""Trained values as search sees them: a head over the policy's own hidden states, or a network with an engine of its own.

A value folder holds `value.json` (kind, figures, the weight of the rollouts, the hashes of the other files; written
last, so a folder without it was never finished) and `value.safetensors` (`weight` `[D]` and `bias` `[1]` of the last
layer, calibration included). A network's folder is a token-classification model too; where its base is quantised it
holds a LoRA adapter over that base instead of the model, and then it belongs to one policy as a head does.
"""

from __future__ import annotations

import copy
import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoModelForTokenClassification, PreTrainedModel

from ..config import Config
from ..errors import CheckpointError
from .inprocess import InProcessEngine
from .student import Student

CARD, LAST_LAYER, ADAPTER = "value.json", "value.safetensors", "adapter"


@dataclass(slots=True)
class EngineValue:
    """`policy.protocol.ValueFunction` over an engine with a value head; its states' keys and values are reused.

    `rollout_weight` is the fitted lambda of `Q = (1 - lambda)*Q_value + lambda*Q_rollout`: 1 where the value did not
    beat chance on held-out questions. `card` is value.json. `own` tells that the engine is the value's own (a network)
    and not the policy's.
    """

    engine: InProcessEngine
    rollout_weight: float
    card: dict[str, Any]
    own: bool

    async def __call__(self, token_ids: tuple[int, ...]) -> float:
        """V in [0, 1] of the state after these tokens, prompt included."""
        [value] = await self.engine.values([token_ids])
        return value


def policy_fingerprint(model: PreTrainedModel) -> str:
    """SHA-256 over the names, shapes and numbers of a policy's parameters: what a head was trained on."""
    digest = hashlib.sha256()
    for name, parameter in sorted(model.named_parameters()):
        digest.update(f"{name} {tuple(parameter.shape)} {parameter.dtype}\n".encode())
        digest.update(parameter.detach().contiguous().view(-1).view(torch.uint8).cpu().numpy().tobytes())
    return digest.hexdigest()


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
    if (not own or adapted) and card["policy"] != policy_fingerprint(student.model):
        raise CheckpointError(
            f"value {folder} was trained on other weights than student {student.name} has: name that student's folder,"
            " or train a value for this one"
        )
    engine = student.engine
    if own:
        engine = InProcessEngine(
            network_model(folder, student, adapted),
            eos_id=student.engine.eos_id,
            line_end_ids=student.engine.line_end_ids,
            settings=config.engine,
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


def network_model(folder: Path, student: Student, adapted: bool) -> PreTrainedModel:
    """A network as an engine takes it: its backbone under the student's output layer, which nobody asks here."""
    model: Any
    if adapted:
        model = copy.deepcopy(student.model)
        model.load_adapter(str(folder / ADAPTER))
        return model.eval()
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
