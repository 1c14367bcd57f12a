"""PPO's critic: the value of the state in which each token was chosen."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from transformers import PreTrainedModel

from ..config.sections import LoraConfig
from ..policy.adapters import CRITIC as CRITIC_ADAPTER
from ..policy.adapters import bind, own_parameters
from .models import attach, deepen
from .packing import Work, plan
from .rows import TrainRow
from .scoring import MASKS_IN_4D, check_packs


class Critic(torch.nn.Module):
    """V of the state before each token: a copy of the policy's backbone under a linear layer that starts at V = 0.5.

    Where the policy trains adapters (`lora`) it is no copy but one more of them in the policy's layers. Else one layer goes on
    top of the copy, an identity at first: a policy's last layer knows what it expects of the next token, and only a layer
    above can hold that against the token that came.
    """

    def __init__(self, policy: PreTrainedModel, lora: LoraConfig | None = None) -> None:
        super().__init__()
        check_packs(policy, "PPO's critic", "set train.method=grpo")
        backbone: Any = policy.base_model if lora is not None else copy.deepcopy(policy.base_model)
        shape = copy.deepcopy(backbone.config) if lora is not None else backbone.config
        if lora is not None:
            attach(policy, lora, CRITIC_ADAPTER)
            bind(self, policy, CRITIC_ADAPTER)
        else:
            deepen(backbone, shape, 1)
        self.shared = lora is not None
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
        made, weight = plan(rows, Work.of(self.config)), self.score.weight
        values = []
        for forward in made.forwards:
            inputs = forward.inputs(self.config, self.backbone.dtype, weight.device)
            hidden = self.backbone(**inputs, use_cache=False).last_hidden_state.flatten(0, 1)
            states = hidden.index_select(0, forward.at.to(weight.device))  # [M, H], of the tokens before
            values.append(self.score(states.to(weight.dtype))[:, 0])
        return made.spread(values)
