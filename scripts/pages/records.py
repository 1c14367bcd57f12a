"""Figures of README's table that are computed again from results by problem, rather than copied from a summary."""

from __future__ import annotations

from functools import cache

from alphazero_llm_trainer.eval.metrics import bootstrap_over_seeds, repeats
from alphazero_llm_trainer.problems import embedded

from .page import Triple, load, mean

Results = list[list[float]]  # [seeds, problems], 1 for right


def of_arm(study: str, arm: str) -> Results:
    """Greedy results of an arm; of `start` where the study has kept them."""
    data = load(study)
    found = [data["start_right"]] if arm == "start" else [run for run in data["runs"] if run["arm"] == arm]
    return [[float(one) for one in run["greedy"]] for run in found]


def accuracy(study: str, arm: str) -> float:
    return mean(mean(seed) for seed in of_arm(study, arm))


@cache
def search_less(arm: str, together: int = 1) -> Triple:
    """Expert iteration less another arm of `improvement`, over distinct problems and seeds.

    The interval holds at 95% for so many comparisons `together` (Bonferroni).
    """
    data = load("improvement")
    groups = repeats(embedded.load("test", data["problems"], start=data["first"]))
    both = of_arm("improvement", "search"), of_arm("improvement", arm)
    found = bootstrap_over_seeds(*both, confidence=1 - 0.05 / together, groups=groups)
    return found.value, found.low, found.high
