"""The source's own rule as a verifier of steps: it needs no gold answer and no model."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import combinations

from ..engine.protocol import UNJUDGED, Judgement
from ..errors import ConfigError
from ..types import Problem, Step, StepCheck, Steps, TokenIds
from .registry import source_of
from .source import Source

SAID = {True: StepCheck.RIGHT, False: StepCheck.WRONG, None: StepCheck.UNCHECKED}


class Calculator:
    """0 for a step that the source's rule finds wrong (an equation isn't true, where it has no
    other), else 1.

    The total is 0 where a step is wrong, 1 where all steps that state something are right, and
    `UNJUDGED` where none could be checked; between those it falls with the share of unread ones.
    """

    name, checks, guides, computes, scored_tokens = "calculator", True, False, False, 0

    async def __call__(self, problem: Problem, prompt_ids: TokenIds, steps: Steps) -> Judgement:
        source, texts = source_of(problem), [step.text for step in steps]
        said = [
            check_turn(step) or check_last(source, problem, texts[: at + 1])
            for at, step in enumerate(steps)
        ]
        by_check = {
            check: frozenset(at for at, of_step in enumerate(said) if of_step is check)
            for check in StepCheck
        }
        right, wrong = by_check[StepCheck.RIGHT], by_check[StepCheck.WRONG]
        unread = by_check[StepCheck.UNCHECKED]
        total = 0.0
        if not wrong:
            total = 1 - UNJUDGED * len(unread) / len(right | unread) if right else UNJUDGED
        return Judgement(
            tuple(float(at not in wrong) for at in range(len(steps))),
            total,
            unread | by_check[StepCheck.NOTHING],
            state=None if wrong else source.state(problem, texts),
            unread=unread,
        )


def check_turn(step: Step) -> StepCheck | None:
    """What a turn's calls say of it: wrong where one gave an error. None without a call."""
    if step.seen is None or not (step.seen.calls or step.seen.errors):
        return None
    return StepCheck.WRONG if step.seen.errors else StepCheck.RIGHT


def check_last(source: Source, problem: Problem, texts: Sequence[str]) -> StepCheck:
    """What the source's rule says of the last of `texts`. Raises ConfigError for what is no
    verdict.
    """
    said = source.check_step(problem, texts)
    if said is None or isinstance(said, (bool, StepCheck)):
        return StepCheck(SAID.get(said, said))  # type: ignore[arg-type]
    raise ConfigError(
        f"check_step of source {source.name!r} says {said!r}: return True, False, None where it "
        "can't check the step, or types.StepCheck.NOTHING where the step states nothing"
    )


def check_states(problem: Problem, responses: Sequence[str]) -> None:
    """Raise ConfigError where two beginnings of these responses, of as many right steps, have one
    `Source.state` and a next step that only one of them may take, or that leads to two states: a
    search would leave one of them out.
    """
    source, beginnings, nexts = source_of(problem), defaultdict(set), defaultdict(set)

    def follow(steps: tuple[str, ...]) -> tuple[StepCheck, str | None]:
        check = check_last(source, problem, steps)
        return check, None if check is StepCheck.WRONG else source.state(problem, steps)

    for response in responses:
        lines = tuple(line for line in response.split("\n") if line.strip())
        for at in range(1, len(lines)):
            check, name = follow(lines[:at])
            if check is StepCheck.WRONG:
                break
            if name is not None:
                beginnings[at, name].add(lines[:at])
                nexts[at, name].add(lines[at])
    for (at, name), alike in beginnings.items():
        for one, other in combinations(sorted(alike), 2):
            for step in sorted(nexts[at, name]):
                if follow((*one, step)) != follow((*other, step)):
                    raise ConfigError(
                        f"`state` of source {source.name!r} says {name!r} after "
                        f"{' | '.join(one)!r} and after {' | '.join(other)!r}, but they differ: "
                        f"{step!r} isn't the same after both. Name different states differently, "
                        "or return None"
                    )
