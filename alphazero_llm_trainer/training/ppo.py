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

from ..config.sections import LoraConfig
from ..config.train import GrpoConfig, PpoConfig
from ..errors import ConfigError
from ..policy.adapters import CRITIC as CRITIC_ADAPTER
from ..policy.adapters import bind, own_parameters
from .credit import gae
from .grpo import MASKS_IN_4D, SearchGRPOTrainer, make_grpo_trainer, plan_padded
from .models import attach, deepen, learning_rate
from .packing import Work, spread, tensors

EXTRA_LAYERS = 1  # of the critic, where it is trained whole
CRITIC = "critic.safetensors"  # the critic's trained weights in a checkpoint


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
        critic = self.critic_parameters()
        for parameter in critic:
            parameter.requires_grad_(False)  # a critic in the policy's own layers is no part of the policy's group
        optimiser = super().create_optimizer(*args, **kwargs)
        for parameter in critic:
            parameter.requires_grad_(True)
        optimiser.add_param_group({"params": critic, "lr": self.ppo.critic_learning_rate, "weight_decay": 0.0})
        return optimiser

    def critic_parameters(self) -> list[torch.nn.Parameter]:
        return list(self.critic.trained().values())

    def values(self, inputs: dict[str, Any]) -> torch.Tensor:
        """The critic's `[B, T]` for a batch of TRL's."""
        for parameter in self.critic_parameters():
            parameter.requires_grad_(True)  # peft, switching to a reference adapter and back, freezes all others
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
        ours = of_policy(inputs).float()
        count = sum((of_policy(part).float().sum() for part in self.minibatch(inputs)), ours.new_zeros(())).clamp(
            min=1.0
        )
        values, old, returns = self.values(inputs), inputs["old_values"], inputs["returns"]
        limit = self.ppo.value_clip
        held = old + (values - old).clamp(-limit, limit)
        free, bound = (values - returns) ** 2, (held - returns) ** 2
        critic_loss = 0.5 * (torch.max(free, bound) * ours).sum() / count
        metrics = self._metrics["train"]
        parts = self.args.gradient_accumulation_steps  # the log takes a mean over them
        metrics["critic_loss"].append(parts * critic_loss.item())
        metrics["value_clip_fraction"].append(parts * (((bound > free) * ours).sum() / count).item())
        return loss + self.ppo.value_coefficient * critic_loss

    def training_step(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        # transformers clears the gradients of the model alone.
        if self._step % self.args.gradient_accumulation_steps == 0:
            for parameter in self.critic_parameters():
                parameter.grad = None
        return super().training_step(*args, **kwargs)

    def _clip_grad_norm(self, model: Any) -> Any:
        """The policy's gradients and the critic's, each by a norm of its own."""
        critic = self.critic_parameters()
        norm = torch.nn.utils.clip_grad_norm_(critic, self.ppo.max_grad_norm)
        self._metrics["train"]["critic_grad_norm"].append(norm.item())
        others = {id(parameter) for parameter in critic}
        policy = [p for p in model.parameters() if p.requires_grad and id(p) not in others]
        return self.accelerator.clip_grad_norm_(policy, self.args.max_grad_norm)

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        super()._save_checkpoint(model, trial)
        folder = Path(self._get_output_dir(trial=trial)) / f"checkpoint-{self.state.global_step}"
        state = {name: p.detach().clone().contiguous() for name, p in self.critic.trained().items()}
        save_file(state, folder / CRITIC)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        super()._load_from_checkpoint(resume_from_checkpoint, model)
        state = load_file(Path(resume_from_checkpoint) / CRITIC)
        with torch.no_grad():
            for name, parameter in self.critic.trained().items():
                parameter.copy_(state[name])


def of_policy(inputs: dict[str, Any]) -> torch.Tensor:
    """Which tokens `[B, T]` the policy sampled: the critic's data."""
    return inputs["completion_mask"].bool() & inputs["of_policy"]


def make_ppo_trainer(
    model: Any,
    tokenizer: Any,
    settings: PpoConfig,
    *,
    policy: PreTrainedModel,
    rows_per_round: int,
    lora: LoraConfig | None = None,
    **common: Any,
) -> SearchPPOTrainer:
    """As `make_grpo_trainer`; `policy` is the plain model inside `model`, which the critic starts as a copy of.

    Where adapters are trained, the critic is one too: `lora`.
    """
    rate = learning_rate(settings, model)
    if settings.critic_learning_rate is None:
        settings = settings.model_copy(update={"critic_learning_rate": rate})
    common_settings = settings.model_dump(include=set(GrpoConfig.model_fields)) | {"learning_rate": rate}
    shared = GrpoConfig(**common_settings, clip_low=settings.clip, clip_high=settings.clip)
    extra = settings.extra_layers
    if extra is None:
        extra = EXTRA_LAYERS if lora is None else 0
    critic = Critic(policy, extra, lora)
    trainer = make_grpo_trainer(
        model, tokenizer, shared, rows_per_round=rows_per_round, trainer_class=SearchPPOTrainer, **common
    )
    trainer.critic, trainer.ppo = critic, settings
    trainer.updates_per_round = settings.epochs * rows_per_round // settings.batch_size
    return trainer
