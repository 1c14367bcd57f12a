"""A run's results on held-out problems: accuracy, cost, and paired gains."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from ..eval.greedy import Answers
from ..eval.metrics import mean_interval, paired_bootstrap, repeats, wilson
from ..problems.load import rows_hash
from ..problems.registry import is_gradable
from ..types import JsonObject, Task


def summarise_answers(answers: Answers, tasks: Sequence[Task]) -> JsonObject:
    """Accuracy with its interval (over `distinct` problems; None without gold), cost, and each
    problem's result for paired comparisons. With a reward of the user's own its mean, too, each
    problem's, and how many failed; without one the same of the grades, where the source gives
    partial credit.
    """
    total, groups = len(answers.first), repeats(tasks)
    gold = any(map(is_gradable, tasks))
    figures: JsonObject = {
        "accuracy": asdict(wilson(sum(answers.first), total, len(set(groups)))) if gold else None,
        "problems": total,
        "distinct": len(set(groups)),
        "tokens": answers.tokens,
        "seconds": round(answers.seconds, 2),
        "too_long": answers.skipped,
        "correct": answers.first,
        "groups": groups,
        "rows": rows_hash(tasks),
    }
    rewards = answers.rewards or ([*answers.grades] if answers.partial else [])
    known = [reward for reward in rewards if reward is not None]
    if known:
        figures |= {
            "reward": asdict(mean_interval(known)),
            "rewards": rewards,
            "failed_rewards": total - len(known),
        }
    return figures


def paired_gain(
    before: Sequence[float | None], after: Sequence[float | None], tasks: Sequence[Task]
) -> JsonObject | None:
    """The paired gain with its interval, over the problems that have a number both times; None
    where none has.
    """
    both = [pair for pair in zip(before, after, repeats(tasks), strict=False) if None not in pair]
    if not both:
        return None
    earlier, later, groups = zip(*both, strict=True)
    return asdict(paired_bootstrap(later, earlier, groups=groups))
