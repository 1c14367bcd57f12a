"""The source's own rule as a verifier of steps: it needs no gold answer and no model."""

from __future__ import annotations

from collections.abc import Sequence

from ..engine.protocol import Judgement
from ..types import Problem, Step
from .source import source_of

UNJUDGED = 0.5  # the total of a response in which nothing was checked: it may be right or wrong


class Calculator:
    """0 for a step that the source's rule finds wrong (an equation isn't true, where it has no
    other), else 1; the total is 1 where all steps score 1 and one of them was checked, `UNJUDGED`
    where none was.
    """

    name, checks, guides, computes, scored_tokens = "calculator", True, False, False, 0

    async def __call__(
        self, problem: Problem, prompt_ids: tuple[int, ...], steps: Sequence[Step]
    ) -> Judgement:
        source, texts = source_of(problem), [step.text for step in steps]
        verdicts = [source.check_step(problem, texts[: at + 1]) for at in range(len(steps))]
        scores = tuple(1.0 if right is None else float(right) for right in verdicts)
        unchecked = frozenset(at for at, right in enumerate(verdicts) if right is None)
        total = min(scores) if len(unchecked) < len(steps) else UNJUDGED
        state = source.state(problem, texts) if all(scores) else None
        return Judgement(scores, total, unchecked, state=state)
