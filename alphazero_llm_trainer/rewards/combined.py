"""The terminal reward of a response: correctness, perplexity and the user's own; its length and its
directions.
"""

from __future__ import annotations

from ..config.sections import RewardConfig
from ..errors import ConfigError
from ..grading.answers import is_final, without_thinking
from ..types import RewardParts

# Once a response with a step that a teacher proposed as likely right, or likely wrong.
RIGHT_BONUS = 0.1
WRONG_PENALTY = 0.05


def combined(
    hre: float | None,
    pre: float | None,
    custom: float | None = None,
    *,
    steps: int,
    right: int,
    wrong: int,
    weights: RewardConfig,
    answered: bool = True,
) -> RewardParts:
    """`clamp(mean_w(hre, pre, custom) - 0.01*steps + 0.1*[right > 0] - 0.05*[wrong > 0], 0, 1)`:
    THE reward.

    The mean has the weights of the parts that are on (HRE 0.4, PRE 0.6, one's own 1.0); the numbers
    are `rewards` of the configuration. A step costs a little, so that of two right responses the
    shorter one is better.

    Args:
        hre: correctness in [0, 1], or None when there is no gold.
        pre: perplexity reward in [0, 1], or None without a student model: then the other parts have
            all the weight.
        custom: the user's own reward in [0, 1], or None without one.
        steps: `steps_of` the response.
        right: how many of them were proposed as likely right.
        wrong: how many were proposed as likely wrong.
        weights: `rewards` of the configuration.
        answered: the response states an answer. One that states none has nothing of PRE and no
            bonus, so that it never earns more than a wrong one.

    The direction bonus and penalty count once a response, whatever the number of such steps:
    counted a step, a few well-meant proposals would lift a wrong answer above a right one. A
    response steered both ways gets both.

    Raises:
        ConfigError: no part is on, or those that are on weigh 0.
    """
    judged = [(hre, weights.hre_weight), (custom, weights.custom_weight)]
    likely = pre if answered or pre is None else 0.0
    total = mean([*judged, (likely, weights.pre_weight)])
    if total is None:
        raise ConfigError(
            f"rewards.hre_weight is {weights.hre_weight} and rewards.pre_weight is "
            f"{weights.pre_weight}, so the parts"
            " that are on weigh nothing: give hre_weight a value above 0 or use the student model"
        )
    total -= weights.step_penalty * steps
    total += RIGHT_BONUS * (answered and right > 0) - WRONG_PENALTY * (wrong > 0)
    return RewardParts(min(1.0, max(0.0, total)), hre, pre, custom, outcome(hre, custom, weights))


def steps_of(response: str) -> int:
    """Steps of a response's text, whoever wrote it and however a search cuts it: its lines that
    aren't blank, down to its final-answer line. Thinking has none.
    """
    count = 0
    for line in without_thinking(response).split("\n"):
        count += bool(line.strip())
        if is_final(line):
            break
    return count


def outcome(hre: float | None, custom: float | None, weights: RewardConfig) -> float | None:
    """Correctness and the user's own reward by their weights, in [0, 1]; None where the latter has
    no part in it.
    """
    if custom is None or weights.custom_weight == 0:
        return None
    return mean([(hre, weights.hre_weight), (custom, weights.custom_weight)])


def mean(parts: list[tuple[float | None, float]]) -> float | None:
    """The weighted mean of the parts that are there; None where they weigh nothing."""
    known = [(part, weight) for part, weight in parts if part is not None and weight > 0]
    total = sum(weight for _, weight in known)
    return sum(part * weight for part, weight in known) / total if known else None
