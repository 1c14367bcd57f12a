"""What each method minimises over a round's rows: the losses of `losses.py`, with what they need
beside the scores.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from ..config.train import TrainConfig
from .credit import gae
from .learner import Learner, Objective, mask_of, padded
from .losses import Figures, grpo_loss, value_loss, weighted_likelihood
from .models import load_trained_state, trained_state
from .rows import TrainRow
from .scoring import Scorer, Scores

if TYPE_CHECKING:
    from .critic import Critic

Numbers = dict[int, Sequence[float]]  # of a row's tokens, by the row's index in its round

VALUE_CLIP = (
    0.5  # how far a value may move from its estimate at sampling before the loss stops pulling
)
VALUE_COEFFICIENT = 0.5  # of the value loss beside the policy's


class Likelihood(Objective):
    """`sft`, `rft` and `legacy`: weighted likelihood of responses."""

    def totals(self, rows: Sequence[TrainRow]) -> tuple[float, ...]:
        """The sum of the weights."""
        return (sum(sum(row.advantages) for row in rows),)

    def loss(
        self, rows: Sequence[TrainRow], scores: Scores, totals: torch.Tensor
    ) -> tuple[torch.Tensor, Figures]:
        """See `weighted_likelihood`."""
        weights = padded([row.advantages for row in rows], scores.logprobs)
        return weighted_likelihood(scores.logprobs, weights, totals[0]), {}


class Grpo(Objective):
    """GRPO over rows that bring their advantages and the log-probabilities that they were sampled
    with.
    """

    kl_in_loss = True
    importance = True

    def __init__(self, settings: TrainConfig, model: Any) -> None:
        self.settings, self.model = settings, model
        self.pack: str = settings.pack
        # The reference policy is what the run started from: a copy of what is trained, put in for a
        # moment.
        self.start = on_cpu(trained_state(model)) if settings.kl_coefficient else None
        self.reference: Numbers = {}

    def totals(self, rows: Sequence[TrainRow]) -> tuple[float, ...]:
        """How many tokens there are."""
        return (sum(len(row.completion_ids) for row in rows),)

    def begin(self, learner: Learner, rows: Sequence[TrainRow], number: int) -> dict[str, float]:
        """Score a round's rows under the reference policy, where a KL penalty is on. Returns
        figures of the round.
        """
        if self.start is not None:
            now = on_cpu(trained_state(self.model))
            load_trained_state(self.model, self.start)
            scorer = Scorer(self.model)
            self.reference = by_row(
                learner, rows, lambda part: learner.score_under(scorer, part).logprobs
            )
            load_trained_state(self.model, now)
        own = [a for row in rows if row.kind == "policy" for a in row.advantages if a]
        of_policy = torch.tensor([a for part in learner.ranks.gather(own) for a in part])
        if len(of_policy) < 2:
            return {}
        return {"advantage_mean": of_policy.mean().item(), "advantage_std": of_policy.std().item()}

    def advantages(self, rows: Sequence[TrainRow]) -> list[Sequence[float]]:
        """One number a token of each row."""
        return [row.advantages for row in rows]

    def loss(
        self, rows: Sequence[TrainRow], scores: Scores, totals: torch.Tensor
    ) -> tuple[torch.Tensor, Figures]:
        """See `grpo_loss`."""
        logprobs = scores.logprobs  # [B, T], as is all that is padded
        penalised = bool(self.reference) and self.kl_in_loss
        return grpo_loss(
            logprobs,
            padded([row.old_logprobs for row in rows], logprobs),
            padded(self.advantages(rows), logprobs),
            mask_of(rows, logprobs),
            totals[0],
            clip_low=self.settings.clip_low,
            clip_high=self.settings.clip_high,
            kl_coefficient=self.settings.kl_coefficient,
            reference=padded([self.reference[row.index] for row in rows], logprobs)
            if penalised
            else None,
        )


class Ppo(Grpo):
    """PPO (Schulman et al. 2017): GAE from a critic's values, whitened; the KL penalty is in the
    reward (Ouyang et al. 2022, equation 2). Replayed demonstrations keep their constant advantage
    and are no data for the critic.
    """

    kl_in_loss = False

    def __init__(self, settings: TrainConfig, model: Any, critic: Critic) -> None:
        super().__init__(settings, model)
        self.critic = critic
        # Of the policy's rows, by index: advantages, returns and values at sampling.
        self.white: Numbers = {}
        self.returns: Numbers = {}
        self.values: Numbers = {}

    def totals(self, rows: Sequence[TrainRow]) -> tuple[float, ...]:
        """How many tokens there are, and how many of them the policy sampled: the critic's mean is
        over those.
        """
        sampled = sum(len(row.completion_ids) for row in rows if row.kind == "policy")
        return *super().totals(rows), max(sampled, 1.0)

    def extra(self) -> Mapping[str, torch.nn.Parameter]:
        """The critic's parameters."""
        return self.critic.trained()

    def begin(self, learner: Learner, rows: Sequence[TrainRow], number: int) -> dict[str, float]:
        """Values of all tokens under the critic of now, and what follows from them: advantages,
        returns.
        """
        super().begin(learner, rows, number)
        self.autocast = learner.autocast
        repeated = [row for row in rows if row.kind == "policy"]
        distinct = {row.index: row for row in repeated}
        self.values = by_row(learner, [*distinct.values()], self.critic)
        self.white, self.returns = {}, {}
        for index, row in distinct.items():
            rewards = [0.0] * len(row.completion_ids)
            if self.reference:
                gaps = zip(row.old_logprobs, self.reference[index], strict=True)
                rewards = [
                    -self.settings.kl_coefficient * (old - reference) for old, reference in gaps
                ]
            rewards[-1] += row.reward  # the outcome is earned at the last token
            lam = self.settings.gae_lambda
            self.white[index], self.returns[index] = gae(
                rewards, self.values[index], gamma=1.0, lam=lam
            )
        every = torch.tensor([a for row in repeated for a in self.white[row.index]])
        if not len(every):
            return {}
        mean, std = every.mean().item(), every.std(correction=0).item()
        # First the critic learns what to expect: its first rounds train it alone, and replay
        # demonstrations.
        waits = number < self.settings.critic_rounds
        for index, raw in self.white.items():
            self.white[index] = [0.0 if waits else (a - mean) / (std + 1e-8) for a in raw]
        return {"advantage_mean": mean, "advantage_std": std} | explained(repeated, self.values)

    def advantages(self, rows: Sequence[TrainRow]) -> list[Sequence[float]]:
        """The whitened ones, and what demonstrations bring."""
        return [self.white.get(row.index, row.advantages) for row in rows]

    def loss(
        self, rows: Sequence[TrainRow], scores: Scores, totals: torch.Tensor
    ) -> tuple[torch.Tensor, Figures]:
        """The policy's clipped loss without a KL of its own, and the critic's."""
        loss, figures = super().loss(rows, scores, totals)
        mask = mask_of(rows, scores.logprobs, "policy")
        if not mask.any():
            return loss, figures
        returns, old = (
            padded([numbers.get(row.index, ()) for row in rows], mask)
            for numbers in (self.returns, self.values)
        )
        with self.autocast():
            values = self.critic(rows)
        of_critic, more = value_loss(values, old, returns, mask, totals[1], VALUE_CLIP)
        return loss + VALUE_COEFFICIENT * of_critic, figures | more | {"critic_loss": of_critic}


def on_cpu(state: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Weights that wait, out of the device's memory."""
    return {name: value.cpu() for name, value in state.items()}


def by_row(
    learner: Learner,
    rows: Sequence[TrainRow],
    compute: Callable[[Sequence[TrainRow]], torch.Tensor],
) -> Numbers:
    """What `compute` gives of rows' tokens, `[B, T]` of as many rows as a forward takes, by the
    rows' indices.
    """
    numbers: Numbers = {}
    with torch.no_grad(), learner.autocast():
        for part in learner.parts_of(rows):
            for row, values in zip(part, compute(part), strict=True):
                numbers[row.index] = values[: len(row.completion_ids)].tolist()
    return numbers


def explained(rows: Sequence[TrainRow], values: Mapping[int, Sequence[float]]) -> dict[str, float]:
    """The critic's mean value of the tokens, and how much of the outcomes' variance it explains."""
    value = torch.tensor([v for row in rows for v in values[row.index]])
    earned = torch.tensor([row.reward for row in rows for _ in row.completion_ids])
    figures, variance = {"value_mean": value.mean().item()}, earned.var(correction=0).item()
    if variance > 0:
        figures["explained_variance"] = 1.0 - (earned - value).var(correction=0).item() / variance
    return figures
