"""PPO (Schulman et al. 2017): sampled responses, and a critic of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from typing import TYPE_CHECKING, Any

from ...config.sections import LoraConfig
from ...config.train import Rates, TrainConfig
from ...mcts.seeds import derive_seed
from ...tree.graded import GradedTree
from ..credit import gae
from ..rows import SampledRows, TrainRow
from ..stats import RoundStats
from .base import Method
from .grpo import GRPO, Grpo, RowNumbers, by_row

if TYPE_CHECKING:
    import torch

    from ..critic import CriticNetwork
    from ..losses import Figures

# How far a value may move from its estimate at sampling before the loss stops pulling.
VALUE_CLIP = 0.5
VALUE_COEFFICIENT = 0.5  # of the value loss beside the policy's


class RewardedRows(SampledRows):
    """Rows that say what their responses earned: the critic makes advantages of that."""

    def sampled(self, number: int, trees: list[GradedTree], stats: RoundStats) -> list[TrainRow]:
        """Sampled responses, as often as each was sampled, with what they earned.

        Whole questions, which share their prompt: those with right and wrong responses first, the
        rest in random order.
        """
        shuffled = Random(derive_seed(self.config.seed, "ppo", number)).sample(trees, len(trees))
        shuffled.sort(key=lambda tree: self.collector.zero_variance(tree.responses))
        rows: list[TrainRow] = []
        for tree in shuffled:
            for response in self.collector.select_responses(tree.responses):
                rows += [
                    self.row(tree, response, 0.0, self.collector.reward(response))
                ] * response.samples
        return rows


# Rounds in which the critic learns what to expect: they train it alone, and replay demonstrations.
CRITIC_ROUNDS = 2


class Ppo(Grpo):
    """PPO (Schulman et al. 2017): GAE from a critic's values, whitened; the KL penalty is in the
    reward (Ouyang et al. 2022, equation 2). Replayed demonstrations keep their constant advantage
    and are no data for the critic.
    """

    kl_in_loss = False

    def __init__(self, settings: TrainConfig, model: Any, critic: CriticNetwork) -> None:
        super().__init__(settings, model)
        self.critic = critic
        # Of the policy's rows, by index: advantages, returns and values at sampling.
        self.white: RowNumbers = {}
        self.returns: RowNumbers = {}
        self.values: RowNumbers = {}

    def totals(self, rows: Sequence[TrainRow]) -> tuple[float, ...]:
        """How many tokens there are, and how many of them the policy sampled: the critic's mean is
        over those.
        """
        sampled = sum(len(row.completion_ids) for row in rows if row.kind == "policy")
        return *super().totals(rows), max(sampled, 1.0)

    def extra(self) -> Mapping[str, torch.nn.Parameter]:
        """The critic's parameters."""
        return self.critic.trained()

    def begin(self, learner: Any, rows: Sequence[TrainRow], number: int) -> dict[str, float]:
        """Values of all tokens under the critic of now, and what follows from them: advantages,
        returns.
        """
        import torch

        super().begin(learner, rows, number)
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
        waits = number < CRITIC_ROUNDS
        for index, raw in self.white.items():
            self.white[index] = [0.0 if waits else (a - mean) / (std + 1e-8) for a in raw]
        return {"advantage_mean": mean, "advantage_std": std} | explained(repeated, self.values)

    def advantages(self, rows: Sequence[TrainRow]) -> list[Sequence[float]]:
        """The whitened ones, and what demonstrations bring."""
        return [self.white.get(row.index, row.advantages) for row in rows]

    def loss(
        self, rows: Sequence[TrainRow], scores: Any, totals: torch.Tensor
    ) -> tuple[torch.Tensor, Figures]:
        """The policy's clipped loss without a KL of its own, and the critic's."""
        from ..learner import mask_of, padded
        from ..losses import value_loss

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


def explained(rows: Sequence[TrainRow], values: Mapping[int, Sequence[float]]) -> dict[str, float]:
    """The critic's mean value of the tokens, and how much of the outcomes' variance it explains."""
    import torch

    value = torch.tensor([v for row in rows for v in values[row.index]])
    earned = torch.tensor([row.reward for row in rows for _ in row.completion_ids])
    figures, variance = {"value_mean": value.mean().item()}, earned.var(correction=0).item()
    if variance > 0:
        figures["explained_variance"] = 1.0 - (earned - value).var(correction=0).item() / variance
    return figures


def objective(train: TrainConfig, model: Any, lora: LoraConfig | None) -> Ppo:
    """PPO's, with a new critic."""
    from ..critic import CriticNetwork

    return Ppo(train, model, CriticNetwork(model, lora))


PPO = Method(
    name="ppo",
    rows=RewardedRows,
    objective=objective,
    rates=Rates(3e-4, 3e-4, 1e-5),
    reads=GRPO.reads - {"credit", "negative_weight"} | {"gae_lambda"},
    about="PPO on sampled chains, with a critic",
    alone=True,
    critics=1,
)
