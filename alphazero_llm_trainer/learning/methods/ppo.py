"""PPO (Schulman et al. 2017): sampled responses, and a critic of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING, Any

from ...config.sections import LoraConfig
from ...config.train import Rates, TrainConfig
from ...mcts.seeds import derive_seed
from ...tree.graded import GradedTree
from ..credit import gae
from ..rows import SampledRows
from ..size import CRITIC_ROUNDS
from ..stats import RoundStats
from ..train_row import TrainRow, TrainRows
from .base import Method, Totals
from .grpo import GRPO, Grpo, RowNumbers, by_row

if TYPE_CHECKING:
    import torch

    from ..critic_network import CriticNetwork
    from ..losses import Coefficients, Streams

# How far a value may move from its estimate at sampling before the loss stops pulling.
VALUE_CLIP = 0.5
VALUE_COEFFICIENT = 0.5  # of the value loss beside the policy's


class RewardedRows(SampledRows):
    """Rows that say what their responses earned: the critic makes advantages of that."""

    def sample_rows(
        self, number: int, trees: list[GradedTree], stats: RoundStats
    ) -> list[TrainRow]:
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
        self.estimates: RowNumbers = {}

    def totals(self, rows: TrainRows) -> Totals:
        """How many tokens there are, and how many of them the policy sampled: the critic's mean is
        over those.
        """
        sampled = sum(row.own_tokens for row in rows if row.kind == "policy")
        return *super().totals(rows), max(sampled, 1.0)

    def extra(self) -> Mapping[str, torch.nn.Parameter]:
        """The critic's parameters."""
        return self.critic.trained_parameters()

    def begin(self, learner: Any, rows: TrainRows, number: int) -> dict[str, float]:
        """Values of all tokens under the critic of now, and what follows from them: advantages,
        returns.
        """
        import torch

        super().begin(learner, rows, number)
        repeated = [row for row in rows if row.kind == "policy" and row.own_tokens]
        distinct = {row.index: row for row in repeated}
        self.estimates = by_row(learner, [*distinct.values()], self.critic)
        self.white, self.returns = {}, {}
        for index, row in distinct.items():
            rewards = [0.0] * row.own_tokens
            if self.reference:
                gaps = row.own([*zip(row.old_logprobs, self.reference[index], strict=True)])
                rewards = [
                    -self.settings.kl_coefficient * (old - reference) for old, reference in gaps
                ]
            rewards[-1] += row.reward  # the outcome is earned at the last own token
            lam = self.settings.gae_lambda
            numbers = gae(rewards, row.own(self.estimates[index]), gamma=1.0, lam=lam)
            self.white[index], self.returns[index] = (row.spread(column) for column in numbers)
        every = torch.tensor([a for row in repeated for a in row.own(self.white[row.index])])
        if not len(every):
            return {}
        mean, std = every.mean().item(), every.std(correction=0).item()
        waits = number < CRITIC_ROUNDS
        for index, raw in self.white.items():
            self.white[index] = [0.0 if waits else (a - mean) / (std + 1e-8) for a in raw]
        return {"advantage_mean": mean, "advantage_std": std} | value_figures(
            repeated, self.estimates
        )

    def advantages(self, rows: TrainRows) -> list[Sequence[float]]:
        """The whitened ones, and what demonstrations bring."""
        return [self.white.get(row.index, row.advantages) for row in rows]

    def values(self, rows: TrainRows) -> torch.Tensor | None:
        """The critic's, where there are rows that it learns from."""
        own = any(row.kind == "policy" and row.own_tokens for row in rows)
        return self.critic(rows) if own else None

    def coefficients(self) -> Coefficients:
        """The policy's clip, and the critic's."""
        return replace(super().coefficients(), value=VALUE_COEFFICIENT, value_clip=VALUE_CLIP)

    def streams(self, rows: TrainRows) -> Streams:
        """GRPO's without a KL of their own, and the critic's returns."""
        returns, estimates = (
            [numbers.get(row.index, ()) for row in rows]
            for numbers in (self.returns, self.estimates)
        )
        return replace(super().streams(rows), returns=returns, estimates=estimates)


def value_figures(rows: TrainRows, values: Mapping[int, Sequence[float]]) -> dict[str, float]:
    """The critic's mean value of the tokens, and how much of the outcomes' variance it explains."""
    import torch

    value = torch.tensor([v for row in rows for v in row.own(values[row.index])])
    earned = torch.tensor([row.reward for row in rows for _ in range(row.own_tokens)])
    figures, variance = {"value_mean": value.mean().item()}, earned.var(correction=0).item()
    if variance > 0:
        figures["explained_variance"] = 1.0 - (earned - value).var(correction=0).item() / variance
    return figures


def make_objective(train: TrainConfig, model: Any, lora: LoraConfig | None) -> Ppo:
    """PPO's, with a new critic."""
    from ..critic_network import CriticNetwork

    return Ppo(train, model, CriticNetwork(model, lora))


PPO = Method(
    name="ppo",
    rows=RewardedRows,
    objective=make_objective,
    rates=Rates(3e-4, 3e-4, 1e-5),
    reads=GRPO.reads - {"credit", "negative_weight"} | {"gae_lambda"},
    flagged=True,
    alone=True,
    critics=1,
)
