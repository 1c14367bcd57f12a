"""Rows whose tokens have the advantages that their responses, steps or turns earned
(`train.credit`)."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from itertools import zip_longest

from ..policy.engine_tokens import EngineTokens
from ..tree.arena import Tree
from ..tree.extract import Trajectory, step_values, turn_values
from ..tree.graded import GradedTree
from ..types import Problem, Steps
from .credit import (
    ADVANTAGE_CLIP,
    asymmetric,
    clamp,
    group_advantages,
    process_advantages,
    step_advantages,
)
from .earned import Earned
from .rows import SampledRows
from .stats import RoundStats
from .train_row import TrainRow

# By the values of `train.credit` that tell steps apart.
BY_STEP = {"step": step_values, "turn": turn_values}


# A tree and those of its responses that training learns from.
Group = tuple[Tree, list[Trajectory]]


class CreditedRows(SampledRows):
    """Rows whose advantages are what they earned beside the others of their question."""

    def sample_rows(
        self, number: int, trees: list[GradedTree], stats: RoundStats
    ) -> list[TrainRow]:
        """Rows with a non-zero advantage: each group's strongest first, groups taking turns."""
        # A teacher's tokens are off-policy: without `train.teacher_rows` they are neither rows nor
        # in a baseline.
        graded = [tree for tree in trees if not self.collector.zero_variance(tree.responses)]
        groups = [(tree.tree, self.collector.select_responses(tree.responses)) for tree in graded]
        process = self.config.train.credit == "process"
        problems = [tree.task.problem for tree in graded]
        processes = self.processes(problems, groups, stats) if process else ()
        made = credit_tokens(groups, self.collector, processes)
        queues = []
        for tree, (_, responses), advantages in zip(graded, groups, made, strict=True):
            weighed = [
                asymmetric(tokens, self.config.train.negative_weight) for tokens in advantages
            ]
            rows = [
                self.row(tree, response, tokens)
                for response, tokens in zip(responses, weighed, strict=True)
            ]
            rows = [row for row in rows if any(row.advantages)]
            queues.append(sorted(rows, key=lambda row: -max(abs(a) for a in row.advantages)))
        return [row for turn in zip_longest(*queues) for row in turn if row is not None]

    def processes(
        self, problems: Sequence[Problem], groups: Sequence[Group], stats: RoundStats
    ) -> list[list[list[float]]]:
        """Process advantages of every response's tokens, group by group."""
        verifier, before = self.scorer, self.scorer.scored_tokens
        cutter = EngineTokens(self.student, 1.0, 1)
        # As many at once as trees are searched at once: the model's cache holds no more.
        gate = asyncio.Semaphore(self.config.search.concurrent)

        async def score(problem: Problem, steps: Steps) -> list[float]:
            async with gate:
                return list((await verifier(problem, cutter.prompt_ids(problem), steps)).steps)

        steps = [[cutter.lines(r.token_ids, r.logprobs) for r in group] for _, group in groups]

        async def every() -> list[list[float]]:
            pairs = zip(problems, steps, strict=True)
            return await asyncio.gather(
                *(score(problem, lines) for problem, group in pairs for lines in group)
            )

        scores = iter(asyncio.run(every()))
        stats.cost.scored_tokens += verifier.scored_tokens - before
        return [
            process_advantages(
                [next(scores) for _ in group],
                [[len(step.token_ids) for step in lines] for lines in group],
                [response.samples for response in responses],
            )
            for (_, responses), group in zip(groups, steps, strict=True)
        ]


def credit_tokens(
    groups: Sequence[Group], earned: Earned, processes: Sequence[Sequence[Sequence[float]]] = ()
) -> list[list[list[float]]]:
    """By `train.credit`: for each response of each group one number a token `[T]`, as often as it
    was sampled; `processes` are those of process credit.
    """
    train = earned.config.train
    if train.credit in BY_STEP:
        return by_step(groups, earned, BY_STEP[train.credit])
    made = []
    for g, (_, responses) in enumerate(groups):
        rewards = [earned.reward(response) for response in responses]
        counts = [response.samples for response in responses]
        outcomes = group_advantages(rewards, counts)
        steps = (
            processes[g]
            if processes
            else [[0.0] * len(response.token_ids) for response in responses]
        )
        # The sum of both is clipped, and repeats weigh it afterwards.
        weight = train.process_weight
        made.append(
            [
                [k * clamp(outcome + weight * step, ADVANTAGE_CLIP) for step in tokens]
                for k, outcome, tokens in zip(counts, outcomes, steps, strict=True)
            ]
        )
    return made


def by_step(
    groups: Sequence[Group], earned: Earned, values_of: Callable[..., list[tuple[float, float]]]
) -> list[list[list[float]]]:
    """Step or turn credit, in the currency of `train.reward`, over the root mean square of the
    round's differences.
    """
    values = []  # (Q(child), V(parent)) of each step of each response of each group
    for tree, responses in groups:
        counts, sums = earned.node_values(tree)
        values.append([values_of(t, earned.reward(t), counts, sums) for t in responses])
    differences = [q - v for group in values for steps in group for q, v in steps]
    scale = math.sqrt(math.fsum(d * d for d in differences) / max(len(differences), 1)) or 1.0
    return [
        [
            step_advantages(steps, t.lengths, scale=scale)
            for t, steps in zip(responses, group, strict=True)
        ]
        for (_, responses), group in zip(groups, values, strict=True)
    ]
