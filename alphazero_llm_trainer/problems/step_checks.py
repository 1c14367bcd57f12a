"""The source's own rule as a verifier of steps: it needs no gold answer and no model."""

from __future__ import annotations

from collections.abc import Sequence

from ..engine.protocol import Judgement
from ..types import Problem, Step
from .source import source_of


class Calculator:
    """1 for a step that the source's rule finds right (equations are true, where it has no other), else 0; the total is 1
    when all steps score 1."""

    name, computes, scored_tokens = "calculator", False, 0

    async def __call__(self, problem: Problem, prompt_ids: tuple[int, ...], steps: Sequence[Step]) -> Judgement:
        source, texts = source_of(problem), [step.text for step in steps]
        scores = tuple(float(source.check_step(problem, texts[: at + 1])) for at in range(len(steps)))
        return Judgement(scores, min(scores, default=1.0))
