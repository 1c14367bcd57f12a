"""GRPO (Shao et al. 2024): each response of a question against the others, a clipped ratio, and a
KL penalty where one is on.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...config.load import Config
from ...config.train import Rates, TrainConfig
from ...engine.protocol import Verifier
from ...errors import ConfigError
from ...policy.engine_tokens import EngineTokens
from ...problems.registry import open_source
from ...tree.arena import Tree
from ...tree.extract import Trajectory, step_values, turn_values
from ...tree.graded import GradedTree
from ...types import Problem, Steps
from ..credit import (
    ADVANTAGE_CLIP,
    asymmetric,
    clamp,
    group_advantages,
    process_advantages,
    step_advantages,
)
from ..earned import Earned
from ..rows import SampledRows
from ..stats import RoundStats
from ..train_row import TrainRow, TrainRows
from .base import Method, Objective

if TYPE_CHECKING:
    import torch

    from ..learner import Learner
    from ..losses import Coefficients, Streams

RowNumbers = dict[int, Sequence[float]]  # of a row's tokens, by the row's index in its round
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


class Grpo(Objective):
    """GRPO over rows that bring their advantages and the log-probabilities that they were sampled
    with.
    """

    kl_in_loss = True
    importance = True

    def __init__(self, settings: TrainConfig, model: Any) -> None:
        self.settings, self.model = settings, model
        self.pack: str = settings.pack
        # The reference policy is what the run started from: a copy of what is trained, put in for a
        # moment.
        from ..models import trained_state

        self.start = on_cpu(trained_state(model)) if settings.kl_coefficient else None
        self.reference: RowNumbers = {}

    def totals(self, rows: TrainRows) -> tuple[float, ...]:
        """How many tokens there are."""
        return (sum(row.own_tokens for row in rows),)

    def begin(self, learner: Any, rows: TrainRows, number: int) -> dict[str, float]:
        """Score a round's rows under the reference policy, where a KL penalty is on. Returns
        figures of the round.
        """
        import torch

        from ..models import load_trained_state, trained_state
        from ..scoring import Scorer

        if self.start is not None:
            now = on_cpu(trained_state(self.model))
            load_trained_state(self.model, self.start)
            scorer = Scorer(self.model)
            self.reference = by_row(
                learner, rows, lambda part: learner.score_under(scorer, part).logprobs
            )
            load_trained_state(self.model, now)
        own = [a for row in rows if row.kind == "policy" for a in row.own(row.advantages) if a]
        of_policy = torch.tensor([a for part in learner.ranks.gather(own) for a in part])
        if len(of_policy) < 2:
            return {}
        return {"advantage_mean": of_policy.mean().item(), "advantage_std": of_policy.std().item()}

    def advantages(self, rows: TrainRows) -> list[Sequence[float]]:
        """One number a token of each row."""
        return [row.advantages for row in rows]

    def coefficients(self) -> Coefficients:
        """The clip's bounds, and the KL's weight."""
        from ..losses import Coefficients

        train = self.settings
        return Coefficients(
            clip_low=train.clip_low, clip_high=train.clip_high, kl=train.kl_coefficient
        )

    def streams(self, rows: TrainRows) -> Streams:
        """Advantages into the policy gradient, the reference's log-probabilities into the KL."""
        from ..losses import Streams

        penalised = self.reference if self.kl_in_loss else {}
        return Streams(
            advantages=self.advantages(rows),
            old=[row.old_logprobs for row in rows],
            kl=[penalised[row.index] for row in rows] if penalised else (),
        )


def on_cpu(state: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Weights that wait, out of the device's memory."""
    return {name: value.cpu() for name, value in state.items()}


def by_row(
    learner: Learner,
    rows: TrainRows,
    compute: Callable[[TrainRows], torch.Tensor],
) -> RowNumbers:
    """What `compute` gives of rows' tokens, `[B, T]` of as many rows as a forward takes, by the
    rows' indices.
    """
    import torch

    numbers: RowNumbers = {}
    with torch.no_grad(), learner.autocast():
        for part in learner.parts_of(rows):
            for row, values in zip(part, compute(part), strict=True):
                numbers[row.index] = values[: len(row.completion_ids)].tolist()
    return numbers


def check_credit(config: Config) -> None:
    """Raise ConfigError where `train.credit: turn` has no turns, or `process` has turns in worlds."""
    source = open_source(config)
    if config.train.credit == "turn" and not source.worlds:
        raise ConfigError(
            f"train.credit is turn and source {source.name} has no turns: set it to step"
        )
    if config.train.process and source.worlds:
        raise ConfigError(
            f"train.credit is process, which scores lines, and source {source.name} has turns in "
            "worlds: set it to turn or group"
        )


def load_process(student: Any, config: Config) -> Verifier | None:
    """The process reward model that `train.credit: process` scores steps with."""
    if not config.train.process:
        return None
    from ...policy.critic import load_prm

    return load_prm(Path(str(config.train.prm)), student, config)


GRPO = Method(
    name="grpo",
    rows=CreditedRows,
    objective=lambda train, model, lora: Grpo(train, model),
    rates=Rates(large=1e-5),
    reads=frozenset(
        {
            "clip_high",
            "clip_low",
            "credit",
            "kl_coefficient",
            "negative_weight",
            "pack",
            "reward",
            "rows_per_round",
            "teacher_rows",
        }
    ),
    credits=("group", "step", "turn", "process"),
    flagged=True,
    compares=True,
    check=check_credit,
    load=load_process,
)
