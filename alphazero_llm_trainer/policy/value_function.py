"""Trained values as search sees them: a head over the policy's own hidden states, or a network with an engine of its own.

A value folder (see `policy.judge_folder`) holds `value.json` (the weight of the rollouts among others) and `value.safetensors`
(`weight` `[D]` and `bias` `[1]` of the last layer, calibration included). A network's is a token-classification model too.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ..config.load import Config
from ..engine.protocol import Engine
from ..errors import CheckpointError
from .adapters import VALUE, AdapterView, fingerprint
from .judge_folder import JudgeFolder
from .student import Student, engine_over

FOLDER = JudgeFolder(
    "value",
    "value.json",
    "value.safetensors",
    frozenset({"rollout_weight"}),
    "name a folder that `value` finished",
    VALUE,
)


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


def policy_fingerprint(model: Any) -> str:
    """SHA-256 over the names, shapes and numbers of a policy's parameters: what a head was trained on."""
    return fingerprint(model)


def load_value(folder: Path, student: Student, config: Config) -> EngineValue:
    """The value function of a folder that the `value` command wrote, for searches with `student`.

    A head is set on the student's own engine; a network gets an engine of its own (`config.engine` sizes it).

    Raises:
        CheckpointError: the folder isn't finished, a file of it changed, or it doesn't belong to this student.
    """
    card = FOLDER.read_card(folder)
    weight, bias = last_layer(folder)
    width = student.model.config.hidden_size
    if weight.shape != (width,) or card["vocabulary"] != student.model.config.vocab_size:
        raise CheckpointError(
            f"value {folder} is of width {weight.numel()} for {card['vocabulary']} tokens, student {student.name} has"
            f" {width} and {student.model.config.vocab_size}: train a value for this student"
        )
    engine, own = student.engine, card["kind"] == "network"
    if own:
        from transformers import AutoModelForTokenClassification

        network = FOLDER.read_model(folder, student, card, AutoModelForTokenClassification)
        engine = engine_over(network_model(network, student), student, config)
    elif card["policy"] != policy_fingerprint(student.model):
        raise CheckpointError(
            f"value {folder} was trained on other weights than student {student.title} has: name that student's folder,"
            " or train a value for this one"
        )
    engine.set_value(weight, bias)
    return EngineValue(engine, card["rollout_weight"], card, own)


def last_layer(folder: Path) -> tuple[torch.Tensor, float]:
    """Weight `[D]` and bias of V = sigmoid(weight.h + bias)."""
    tensors = FOLDER.read_numbers(folder, "weight", "bias")
    return tensors["weight"].float(), float(tensors["bias"])


def network_model(network: Any, student: Student) -> Any:
    """A network as an engine takes it: its backbone under the student's output layer, which nobody asks here."""
    if isinstance(network, AdapterView):
        return network
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        model: Any = AutoModelForCausalLM.from_config(network.config)
    setattr(model, model.base_model_prefix, network.base_model)
    model.set_output_embeddings(student.model.get_output_embeddings())
    return model.eval()
