"""The terminal reward of a response: correctness and perplexity, its length and the directions it was steered in."""

from __future__ import annotations

from ..config.sections import RewardConfig
from ..errors import ConfigError
from ..types import RewardParts


def combined(
    hre: float | None, pre: float | None, *, steps: int, right: int, wrong: int, weights: RewardConfig
) -> RewardParts:
    """The weighted mean of the parts that are on, minus a penalty a step, plus and minus the directions', in [0, 1].

    Args:
        hre: correctness in [0, 1], or None when there is no gold.
        pre: perplexity reward in [0, 1], or None without a student model: then the correctness has all the weight.
        steps: steps of the response.
        right: how many of them were proposed as likely right.
        wrong: how many were proposed as likely wrong.
        weights: `rewards` of the configuration.

    The direction bonus and penalty count once a response, whatever the number of such steps: counted a step, a few
    well-meant proposals would lift a wrong answer above a right one. A response steered both ways gets both.

    Raises:
        ConfigError: no part is on, or those that are on weigh 0.
    """
    parts = [
        (part, weight) for part, weight in ((hre, weights.hre_weight), (pre, weights.pre_weight)) if part is not None
    ]
    weight = sum(weight for _, weight in parts)
    if weight == 0:
        raise ConfigError(
            f"rewards.hre_weight is {weights.hre_weight} and rewards.pre_weight is {weights.pre_weight}, so the parts"
            " that are on weigh nothing: give hre_weight a value above 0 or use the student model"
        )
    total = sum(part * weight for part, weight in parts) / weight
    total -= weights.step_penalty * steps
    total += weights.right_bonus * (right > 0) - weights.wrong_penalty * (wrong > 0)
    return RewardParts(total=min(1.0, max(0.0, total)), hre=hre, pre=pre)
