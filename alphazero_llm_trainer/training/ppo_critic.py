"""PPO's critic: the value of the state in which each token was chosen."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from transformers import PreTrainedModel

from ..config.sections import LoraConfig
from ..errors import ConfigError
from ..policy.adapters import CRITIC as CRITIC_ADAPTER
from ..policy.adapters import bind, own_parameters
from .models import attach, deepen
from .packing import spread, tensors
from .rows import TrainRow
from .scoring import MASKS_IN_4D, plan_rows

EXTRA_LAYERS = 1  # of the critic, where it is trained whole


class Critic(torch.nn.Module):
    """V of the state before each token: a copy of the policy's backbone under a linear layer that starts at V = 0.5.

    With `lora` it is no copy but an adapter of its own in the policy's layers, beside the policy's. `extra_layers` more
    go on top of a copy, each an identity at first: a policy's last layer knows what it expects of the next token, and
    only layers above can hold that against the token that came.
    """

    def __init__(self, policy: PreTrainedModel, extra_layers: int = 0, lora: LoraConfig | None = None) -> None:
        super().__init__()
        if extra_layers and lora is not None:
            raise ConfigError(
                f"train.ppo.extra_layers is {extra_layers} and the student trains adapters: use null or 0"
            )
        backbone: Any = policy.base_model if lora is not None else copy.deepcopy(policy.base_model)
        shape = copy.deepcopy(backbone.config) if lora is not None else backbone.config
        if lora is not None:
            attach(policy, lora, CRITIC_ADAPTER)
            bind(self, policy, CRITIC_ADAPTER)
        self.shared = lora is not None
        deepen(backbone, shape, extra_layers)
        if backbone.config._attn_implementation not in MASKS_IN_4D:
            # It always computes packed rows: a mask of our own.
            backbone.config._attn_implementation = "sdpa"
        device = next(policy.parameters()).device
        self.backbone, self.config = backbone, shape
        self.score = torch.nn.Linear(shape.hidden_size, 1, device=device)
        torch.nn.init.zeros_(self.score.weight)
        torch.nn.init.constant_(self.score.bias, 0.5)

    def trained(self) -> dict[str, torch.nn.Parameter]:
        """The parameters that training changes, by name: none of the policy's own."""
        if not self.shared:
            return {name: p for name, p in self.named_parameters() if p.requires_grad}
        score = {f"score.{name}": p for name, p in self.score.named_parameters()}
        return own_parameters(self.backbone, CRITIC_ADAPTER) | score

    def forward(self, rows: Sequence[TrainRow]) -> torch.Tensor:
        """`[B, T]` of rows' response tokens; padding is 0. Rows that share their beginnings are computed together."""
        made, device = plan_rows(rows, self.config), self.score.weight.device
        found = []
        for batch in made.batches:
            given = tensors(batch, self.backbone.dtype, device)
            del given["shift_labels"]
            hidden = self.backbone(**given, use_cache=False).last_hidden_state
            found.append(self.score(hidden.to(self.score.weight.dtype))[..., 0])
        return spread(found, made.where)


def make_critic(policy: PreTrainedModel, lora: LoraConfig | None) -> Critic:
    """The critic of a policy; where adapters are trained (`lora`), it is one too."""
    return Critic(policy, EXTRA_LAYERS if lora is None else 0, lora)
