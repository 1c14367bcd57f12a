"""The network of every critic: PPO's, a value network and a PRM give one number at each state of a
response.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel

from ..config.load import Config
from ..config.sections import LoraConfig
from ..engine.device import text_config
from ..files import sync_all, write_json
from ..policy.adapters import CRITIC as CRITIC_ADAPTER
from ..policy.adapters import POLICY, bind_adapter, model_fingerprint, own_parameters
from ..policy.critic import ADAPTER, CARD, NUMBERS, file_hash
from ..types import Facts
from .models import attach_adapter, save_adapter
from .packing import Plan, Work, plan_rows
from .scoring import check_packs, choose_packing

if TYPE_CHECKING:
    from ..policy.student import Student


class Score(torch.nn.Linear):
    """A last layer in fp32 over hidden states of any precision: small updates are lost in bf16."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:  # the base class's name for it
        with torch.autocast(input.device.type, enabled=False):
            return super().forward(input.to(self.weight.dtype))


class CriticNetwork(torch.nn.Module):
    """A number at every state of a response: a policy's layers under a linear one, which says
    `start` everywhere at first.

    With `head` the layers are the policy's own, and stay as they are. Where the policy trains
    adapters (`lora`) they are one adapter more over its own layers, called `name`. Else they are a
    copy with `extra_layers` on top, each an identity at first: a policy's last layer knows what it
    expects of the next token, and only a layer above can hold that against the token that came.
    """

    def __init__(
        self,
        policy: PreTrainedModel,
        lora: LoraConfig | None = None,
        name: str = CRITIC_ADAPTER,
        extra_layers: int = 1,
        start: float = 0.5,
        head: bool = False,
    ) -> None:
        super().__init__()
        check_packs(policy, "a critic", "use another student, or a method without a critic")
        self.name, self.head, self.shared = name, head, lora is not None and not head
        own = self.head or self.shared
        backbone: Any = policy.base_model if own else copy.deepcopy(policy.base_model)
        self.config = copy.deepcopy(backbone.config) if own else backbone.config
        if self.head:
            pass
        elif lora is not None:
            attach_adapter(policy, lora, name)
            bind_adapter(self, policy, name)
        else:
            add_layers(backbone.requires_grad_(True), extra_layers)
        self.backbone, device = backbone, next(policy.parameters()).device
        # On the CPU and on CUDA alike: masks of such short sequences may be held in full.
        apart = choose_packing(policy, "auto", torch.device("cpu")) == "off"
        self.work = None if apart else Work.of(self.config)
        self.score = Score(self.config.hidden_size, 1, device=device)
        torch.nn.init.zeros_(self.score.weight)
        torch.nn.init.constant_(self.score.bias, start)

    def begin_from(self, folder: Path) -> None:
        """Take the last layer of a critic's folder."""
        tensors = load_file(folder / NUMBERS)
        with torch.no_grad():
            self.score.weight[0] = tensors["weight"]
            self.score.bias[0] = tensors["bias"]

    def trained_parameters(self) -> dict[str, torch.nn.Parameter]:
        """The parameters that training changes, by name: none of the policy's own."""
        if not (self.shared or self.head):
            return {name: p for name, p in self.named_parameters() if p.requires_grad}
        score = {f"score.{name}": p for name, p in self.score.named_parameters()}
        return score if self.head else own_parameters(self.backbone, self.name) | score

    def forward(self, rows: Sequence[Any]) -> torch.Tensor:
        """`[B, T]`: the number of the state before each response token; padding is 0. Rows have
        `prompt_ids` and `completion_ids`.

        Rows that share their beginnings are computed together, in sequences as long as sharing
        saves work (`packing.plan_rows`), where `scoring.choose_packing` has them packed.
        """
        made = plan_rows(rows, self.work)
        return made.spread([self.score(hidden)[:, 0] for hidden in self.hidden_states(made)])

    def hidden_states(self, made: Plan) -> Iterator[torch.Tensor]:
        """The hidden states `[M, H]` of the tokens before each response token, a forward at a
        time.
        """
        device = self.score.weight.device
        for part in made.forwards:
            inputs = part.inputs(self.config, self.backbone.dtype, device)
            hidden = self.backbone(**inputs, use_cache=False).last_hidden_state
            yield hidden.flatten(0, 1).index_select(0, part.at.to(device))  # of [G * N, H]


def add_layers(backbone: Any, extra_layers: int) -> None:
    """Put layers on top of a backbone in place, each an identity at first (its output projections
    are 0).

    Not on a backbone that is no list of equal layers.
    """
    shape = backbone.config
    kinds = getattr(shape, "layer_types", None) or []
    if len(set(kinds)) > 1 or not hasattr(backbone, "layers"):
        return
    for index in range(shape.num_hidden_layers, shape.num_hidden_layers + extra_layers):
        layer = copy.deepcopy(backbone.layers[-1])
        layer.self_attn.layer_idx = index
        for name, parameter in layer.named_parameters():
            if "o_proj" in name or "down_proj" in name:
                torch.nn.init.zeros_(parameter)
        backbone.layers.append(layer)
    shape.num_hidden_layers += extra_layers
    if kinds:
        shape.layer_types = kinds + kinds[-1:] * extra_layers


def save_critic(
    folder: Path, critic: CriticNetwork, card: Facts, student: Student, config: Config
) -> dict[str, Any]:
    """Write a critic's folder (see `policy.critic`), the card last; returns it with what it says of
    the folder.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / CARD).unlink(missing_ok=True)
    files = [NUMBERS]
    weight, bias = (
        tensor.detach().float().cpu() for tensor in (critic.score.weight[0], critic.score.bias)
    )
    save_file({"weight": weight, "bias": bias}, folder / NUMBERS)
    if critic.head:
        card = {**card, "head": True}
    elif critic.shared:
        files += [
            f"{ADAPTER}/{name}"
            for name in save_adapter(student.model, folder / ADAPTER, critic.name)
        ]
    else:
        # The format that an adapter was loaded from is no model's.
        critic.backbone.save_pretrained(folder, save_original_format=False)
        student.tokenizer.save_pretrained(folder)
        files += ["config.json", "model.safetensors"]
    whole = {
        "base": model_fingerprint(student.model, POLICY if critic.head else None),
        "student": student.name,
        "vocabulary": text_config(student.model).vocab_size,
        "seed": config.seed,
        **card,
        "files": {name: file_hash(folder / name) for name in files},
    }
    sync_all(folder)
    write_json(folder / CARD, whole)
    return whole
