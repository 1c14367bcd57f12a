"""What the responses of a graded tree earned, and which of them training learns from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..config.load import Config
from ..tree.arena import Tree
from ..tree.extract import Trajectory, outcomes


@dataclass(frozen=True, kw_only=True)
class Searches:
    """What searches have to know of the method that learns from them.

    Args:
        supervised: it learns from responses as they are, whoever wrote them and when.
        ruled: under `train.groups: verified` it learns from right responses that the rule judged,
            and from nothing else.
        guided: a value that is trained with the policy says where to search (AlphaZero).
        worlds: its rows tell a student's own tokens from those that a world gave.
    """

    supervised: bool = False
    ruled: bool = False
    guided: bool = False
    worlds: bool = True


class Earned:
    """What responses earned, in the currency of `train.reward`, and which of them count.

    Args:
        config: `train` and `rewards` decide it.
        method: what learns from the trees.
    """

    def __init__(self, config: Config, method: Searches) -> None:
        self.config, self.method = config, method
        self.combined = credits_combined(config)

    def reward(self, trajectory: Trajectory) -> float:
        """What a trajectory earned for credit: `train.reward` picks correctness alone or the
        combined reward.
        """
        return trajectory.reward if self.combined else float(trajectory.hre or 0.0)

    def node_values(self, tree: Tree) -> tuple[Sequence[int], Sequence[float]]:
        """For each node a count and the sum of what it earned, in the currency of `reward`: with
        `hre` the responses through it and how many of them were right, with `combined` its visits
        and their rewards.
        """
        return (tree.N, tree.W) if self.combined else outcomes(tree, correctness=True)

    def select_responses(self, responses: Sequence[Trajectory]) -> list[Trajectory]:
        """Those of a tree's responses that training learns from: GRPO and PPO leave a teacher's out
        (`train.teacher_rows`).
        """
        every = self.method.supervised or self.config.train.teacher_rows
        return [response for response in responses if every or response.student]

    def zero_variance(self, responses: Sequence[Trajectory]) -> bool:
        """True when the responses that training learns from all earned the same: no signal."""
        rewards = {round(self.reward(response), 9) for response in self.select_responses(responses)}
        return len(rewards) < 2


def credits_combined(config: Config) -> bool:
    """Whether credit is made of the combined reward, and not of correctness alone: rewards of the
    user's own are what a run is for, unless `train.reward` says otherwise, and PRE is where
    correctness has no weight.
    """
    train, rewards = config.train, config.rewards
    return train.reward == "combined" or (
        train.reward is None and (rewards.own or rewards.hre_weight == 0)
    )


def measures_perplexity(config: Config, method: Searches) -> bool:
    """Whether a training measures PRE: GRPO and PPO do where their advantages are made of it."""
    if not config.rewards.measures:
        return False
    return method.supervised or credits_combined(config)
