"""PPO with an outcome reward: TRL's clipped loss on whitened GAE advantages, and a critic of its own.

Schulman et al. 2017, "Proximal policy optimization algorithms": clipped ratio, several epochs over each round's samples;
GAE as in Schulman et al. 2016; the value loss is clipped like the ratio (Engstrom et al. 2020 name it as part of the
common implementation). The outcome is earned at the last token, minus a KL penalty at every token where one is on
(Ouyang et al. 2022, equation 2).
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel

from ..errors import ConfigError
from ..train_sections import GrpoConfig, PpoConfig
from .credit import gae
from .grpo import SearchGRPOTrainer, make_grpo_trainer, plan_padded
from .models import load_trained_state, trained_state
from .packing import Work, spread, tensors

CRITIC = "critic.safetensors"  # the critic's trained weights in a checkpoint


class Critic(torch.nn.Module):
    """V of the state before each token: a copy of the policy's backbone under a linear layer that starts at V = 0.5.

    What is trained in the policy (all weights, or adapters) is trained in the copy. `extra_layers` more go on top, each
    an identity at first: a policy's last layer knows what it expects of the next token, and only layers above can hold
    that against the token that came.
    """

    def __init__(self, policy: PreTrainedModel, extra_layers: int = 0) -> None:
        super().__init__()
        backbone: Any = copy.deepcopy(policy.base_model)
        shape = backbone.config
        if extra_layers and getattr(policy, "is_quantized", False):
            raise ConfigError(f"train.ppo.extra_layers is {extra_layers} and the student is quantised: use 0")
        for index in range(shape.num_hidden_layers, shape.num_hidden_layers + extra_layers):
            layer = copy.deepcopy(backbone.layers[-1])
            layer.self_attn.layer_idx = index
            for name, parameter in layer.named_parameters():
                if "o_proj" in name or "down_proj" in name:
                    torch.nn.init.zeros_(parameter)
            layer.requires_grad_(True)
            backbone.layers.append(layer)
        shape.num_hidden_layers += extra_layers
        if shape._attn_implementation != "eager":
            shape._attn_implementation = "sdpa"  # it always computes packed rows: a mask of our own
        device = next(policy.parameters()).device
        self.backbone, self.config = backbone, shape
        self.score = torch.nn.Linear(shape.hidden_size, 1, device=device)
        torch.nn.init.zeros_(self.score.weight)
        torch.nn.init.constant_(self.score.bias, 0.5)

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor, keep: int) -> torch.Tensor:
        """`[B, T]` for rows `[B, P + T]`; the last `keep` columns are completions. Padding is 0."""
        made = plan_padded(input_ids, attention_mask, keep, Work.of(self.config))
        found = []
        for batch in made.batches:
            given = tensors(batch, self.backbone.dtype, input_ids.device)
            del given["shift_labels"]
            hidden = self.backbone(**given, use_cache=False).last_hidden_state
            found.append(self.score(hidden.to(self.score.weight.dtype))[..., 0])
        return spread(found, made.where)


class SearchPPOTrainer(SearchGRPOTrainer):
    """The rounds' rows under PPO. The critic is a parameter group of the one optimiser, and part of each checkpoint.

    Replayed demonstrations keep their constant advantage and are no data for the critic.
    """

    critic: Critic
    ppo: PpoConfig
    updates_per_round = 1

    def create_optimizer(self, *args: Any, **kwargs: Any) -> Any:
        optimiser = super().create_optimizer(*args, **kwargs)
        optimiser.add_param_group(
            {"params": self.critic_parameters(), "lr": self.ppo.critic_learning_rate, "weight_decay": 0.0}
        )
        return optimiser

    def critic_parameters(self) -> list[torch.nn.Parameter]:
        return [p for p in self.critic.parameters() if p.requires_grad]

    def values(self, inputs: dict[str, Any]) -> torch.Tensor:
        """The critic's `[B, T]` for a batch of TRL's."""
        ids = torch.cat((inputs["prompt_ids"], inputs["completion_ids"]), dim=1)
        mask = torch.cat((inputs["prompt_mask"], inputs["completion_mask"]), dim=1)
        return self.critic(ids, mask, inputs["completion_ids"].size(1))

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        out = super()._generate_and_score_completions(inputs)
        with torch.no_grad():
            values = self.values(out)
        ours = out["completion_mask"].bool() & out["of_policy"]
        penalty = torch.zeros_like(values)
        if "ref_per_token_logps" in out:
            gap = (out["old_per_token_logps"] - out["ref_per_token_logps"]) * ours
            self._metrics["train"]["kl"].append((gap.sum() / ours.sum().clamp(min=1)).item())
            penalty = self.ppo.kl_coefficient * gap
        advantages, returns = torch.zeros_like(values), torch.zeros_like(values)
        lengths = out["completion_mask"].sum(1).tolist()
        for i, (row, length) in enumerate(zip(inputs, lengths, strict=True)):
            earned = (-penalty[i, :length]).tolist()
            earned[-1] += row["outcome"]
            a, r = gae(earned, values[i, :length].tolist(), gamma=self.ppo.gamma, lam=self.ppo.gae_lambda)
            advantages[i, :length], returns[i, :length] = torch.tensor(a), torch.tensor(r)
        self.measure(out, advantages, values, ours, [row["outcome"] for row in inputs])
        if self.state.global_step < self.ppo.critic_rounds * self.updates_per_round:
            advantages.zero_()  # the critic is still learning what to expect
        elif ours.any():
            counted = advantages[ours]
            advantages = (advantages - counted.mean()) / (counted.std(correction=0) + 1e-8)
        out["advantages"] = torch.where(ours, advantages, out["advantages"])
        out["returns"], out["old_values"] = returns, values
        return out

    def measure(
        self,
        out: dict[str, Any],
        advantages: torch.Tensor,
        values: torch.Tensor,
        ours: torch.Tensor,
        outcomes: list[float],
    ) -> None:
        """Log the round's advantages before whitening, and how much of the outcomes' variance the critic explains."""
        if not ours.any():
            return
        metrics = self._metrics["train"]
        earned = torch.tensor(outcomes, device=values.device)[:, None].expand_as(values)[ours]
        metrics["advantage_mean"].append(advantages[ours].mean().item())
        metrics["advantage_std"].append(advantages[ours].std(correction=0).item())
        metrics["value_mean"].append(values[ours].mean().item())
        variance = earned.var(correction=0).item()
        if variance > 0:
            left = (earned - values[ours]).var(correction=0).item()
            metrics["explained_variance"].append(1.0 - left / variance)

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> torch.Tensor:
        beta, self.beta = self.beta, 0.0  # the KL penalty is in the reward
        loss = super()._compute_loss(model, inputs)
        self.beta = beta
        ours = (inputs["completion_mask"].bool() & inputs["of_policy"]).float()
        count = ours.sum().clamp(min=1.0)
        values, old, returns = self.values(inputs), inputs["old_values"], inputs["returns"]
        limit = self.ppo.value_clip
        held = old + (values - old).clamp(-limit, limit)
        free, bound = (values - returns) ** 2, (held - returns) ** 2
        critic_loss = 0.5 * (torch.max(free, bound) * ours).sum() / count
        metrics = self._metrics["train"]
        metrics["critic_loss"].append(critic_loss.item())
        metrics["value_clip_fraction"].append((((bound > free) * ours).sum() / count).item())
        return loss + self.ppo.value_coefficient * critic_loss

    def training_step(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        # transformers clears and clips the gradients of the model alone.
        self.critic.zero_grad(set_to_none=True)
        loss = super().training_step(*args, **kwargs)
        norm = torch.nn.utils.clip_grad_norm_(self.critic_parameters(), self.ppo.max_grad_norm)
        self._metrics["train"]["critic_grad_norm"].append(norm.item())
        return loss

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        super()._save_checkpoint(model, trial)
        folder = Path(self._get_output_dir(trial=trial)) / f"checkpoint-{self.state.global_step}"
        save_file({k: v.contiguous() for k, v in trained_state(self.critic).items()}, folder / CRITIC)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        super()._load_from_checkpoint(resume_from_checkpoint, model)
        load_trained_state(self.critic, load_file(Path(resume_from_checkpoint) / CRITIC))


def make_ppo_trainer(
    model: Any, tokenizer: Any, settings: PpoConfig, *, policy: PreTrainedModel, rows_per_round: int, **common: Any
) -> SearchPPOTrainer:
    """As `make_grpo_trainer`; `policy` is the plain model inside `model`, which the critic starts as a copy of."""
    shared = GrpoConfig(
        learning_rate=settings.learning_rate,
        batch_size=settings.batch_size,
        epochs=settings.epochs,
        clip_low=settings.clip,
        clip_high=settings.clip,
        kl_coefficient=settings.kl_coefficient,
        warmup_rounds=settings.warmup_rounds,
        max_grad_norm=settings.max_grad_norm,
        weight_decay=settings.weight_decay,
    )
    critic = Critic(policy, settings.extra_layers)
    trainer = make_grpo_trainer(
        model, tokenizer, shared, rows_per_round=rows_per_round, trainer_class=SearchPPOTrainer, **common
    )
    trainer.critic, trainer.ppo = critic, settings
    trainer.updates_per_round = settings.epochs * rows_per_round // settings.batch_size
    return trainer
