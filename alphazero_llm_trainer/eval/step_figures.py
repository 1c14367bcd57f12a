"""Does a process reward model tell good steps from bad ones? Pair accuracy and step AUC, beside the policy's own opinion.

Pure functions over numbers and texts; every interval is a 95% bootstrap over questions (`eval.value_figures.resampled`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ..policy.prm_verifier import TOTALS, total_of
from ..problems.calculator import consistent
from .metrics import Interval, area
from .value_figures import Pairs, States, auc, ranking, ranking_gain

_STEP = re.compile(r"(\d+) ([+*]) (\d+) = (\d+)")


def same_step(a: str, b: str) -> bool:
    """Whether two steps say the same: equal lines, or the operands of a sum or product swapped."""
    return _ordered(a) == _ordered(b)


def _ordered(line: str) -> str:
    match = _STEP.fullmatch(line.strip())
    if match is None:
        return line.strip()
    low, high = sorted((int(match[1]), int(match[3])))
    return f"{low} {match[2]} {high} = {match[4]}"


def follows_plan(solution: Sequence[str], prefix: Sequence[str], step: str) -> bool | None:
    """Whether `step` is what the worked solution has after `prefix`; None where the prefix has left it (not judged)."""
    at = len(prefix)
    if at >= len(solution) or not all(map(same_step, prefix, solution)):
        return None
    return same_step(step, solution[at])


@dataclass(frozen=True, slots=True)
class JudgedSteps:
    """Steps whose prefix is right, one entry each `[N]`.

    `question` numbers the question, `depth` counts the steps before it, `right` is 1 or 0, `draws` says how often it
    was sampled, `slip` tells that its arithmetic is false: a calculator catches that.
    """

    question: np.ndarray
    depth: np.ndarray
    right: np.ndarray
    draws: np.ndarray
    slip: np.ndarray

    def where(self, kept: np.ndarray) -> JudgedSteps:
        """The steps that a boolean mask `[N]` keeps."""
        return JudgedSteps(*(getattr(self, name)[kept] for name in self.__slots__))

    @classmethod
    def of(cls, entries: Sequence[tuple[int, int, float, float, str]]) -> JudgedSteps:
        """From (question, depth, right, draws, text) tuples."""
        columns = list(zip(*entries, strict=True)) if entries else [()] * 5
        return cls(
            np.array(columns[0], dtype=int),
            np.array(columns[1], dtype=int),
            np.array(columns[2], dtype=float),
            np.array(columns[3], dtype=float),
            np.array([not consistent(text) for text in columns[4]], dtype=bool),
        )


def step_auc(score: np.ndarray, steps: JudgedSteps, seed: int = 0, drawn: bool = False) -> Interval:
    """The probability that a right step scores above a wrong one; each distinct step counts once, or as often as drawn."""
    size = np.zeros(len(steps.right))
    count = steps.draws if drawn else np.ones(len(steps.right))
    states = States(steps.question, size, steps.right, count, steps.depth, size, size, size.astype(bool))
    return auc(score, states, seed)


def measure(
    scores: Mapping[str, np.ndarray],
    steps: JudgedSteps,
    pair_scores: Mapping[str, np.ndarray],
    pair_questions: np.ndarray,
    seed: int = 0,
) -> dict[str, dict[str, Interval]]:
    """Figures by name, then by scorer (the PRM and what it is held against).

    Args:
        scores: of the judged steps, `[N]` a scorer.
        pair_scores: of the chosen and the rejected step of each pair, `[P, 2]` a scorer, the first being what the others
            are held against; `pair_questions` `[P]`.
    """
    found: dict[str, dict[str, Interval]] = {"pair accuracy": {}}
    size = len(pair_questions)
    pairs = Pairs(np.arange(size), np.arange(size, 2 * size), pair_questions)
    flat = {name: both.T.reshape(-1) for name, both in pair_scores.items()}
    for name, score in flat.items():
        found["pair accuracy"][name] = ranking(score, pairs, seed)
    first, *others = flat
    if others:
        found[f"pair accuracy over {first}"] = {
            name: ranking_gain(flat[name], flat[first], pairs, seed) for name in others
        }
    kept = ~steps.slip | (steps.right > 0)
    masks = {"step AUC": np.ones(len(steps.right), dtype=bool), "step AUC, true arithmetic": kept}
    for depth in sorted(set(steps.depth.tolist())):
        masks[f"step AUC, step {depth + 1}"] = steps.depth == depth
    for name, score in scores.items():
        for figure, mask in masks.items():
            part = steps.where(mask)
            if 0 < part.right.sum() < len(part.right):
                found.setdefault(figure, {})[name] = step_auc(score[mask], part, seed)
        found.setdefault("step AUC, as drawn", {})[name] = step_auc(score, steps, seed, drawn=True)
    return found


def best_total(responses: Sequence[tuple[Sequence[float], float, int]]) -> tuple[str, dict[str, float]]:
    """The rule whose totals tell right responses from wrong ones best, and each rule's AUC over distinct responses.

    `responses` are (step scores, outcome, count). Without right and wrong ones it is the least step.
    """
    outcome = np.array([outcome for _, outcome, _ in responses])
    found = {
        rule: area(np.array([total_of(rule, steps) for steps, _, _ in responses]), outcome)
        if len(responses)
        else np.nan
        for rule in TOTALS
    }
    usable = [rule for rule in TOTALS if np.isfinite(found[rule])]
    return (max(usable, key=lambda rule: found[rule]) if usable else TOTALS[0]), found
