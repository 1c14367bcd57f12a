"""What every loss eats: one response a row, token ids only; and how a round's trees become rows.

Trees -> responses -> credit (`credit.py`) -> rows -> minibatches: the same rows for the same trees,
whatever was killed in between.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import count, islice, zip_longest
from random import Random
from typing import TYPE_CHECKING

from ..engine.protocol import Verifier
from ..mcts.extract import OUTSIDE, Trajectory, step_values
from ..mcts.seeds import derive_seed
from ..policy.engine_tokens import EngineTokens
from ..rollouts import Collector, GradedTree
from ..types import STUDENT, Problem, Step
from .credit import (
    ADVANTAGE_CLIP,
    asymmetric,
    clamp,
    group_advantages,
    process_advantages,
    step_advantages,
    zero_variance,
)
from .rounds import RoundStats
from .start import Prepared

if TYPE_CHECKING:
    from ..policy.student import Student

# expert iteration and rft: different right responses of a question, those sampled most often first
RESPONSES = 4
DEMONSTRATION = 0.5  # weight of a replayed row in the loss; a policy row has 1


@dataclass(frozen=True, slots=True)
class TrainRow:
    """A prompt `[P]` and its response: `completion_ids`, `old_logprobs` (nats, the policy's that
    sampled it) and `advantages` are `[T]`; a likelihood weighs each token by its advantage.
    `reward` is the outcome that PPO's critic is trained on. `kind` is "policy", "demonstration" or
    "padding" (no data for a critic), `source` who wrote the response ("student", or the teachers
    that wrote one of its steps). AlphaZero's `targets` z and their `value_weights` `[T]` are of the
    states before the tokens. `index` is the row's number in its round, where repeats of a row
    share one.
    """

    prompt_ids: tuple[int, ...]
    completion_ids: tuple[int, ...]
    old_logprobs: tuple[float, ...]
    advantages: tuple[float, ...]
    kind: str = "policy"
    reward: float = 0.0
    source: str = STUDENT
    targets: tuple[float, ...] = ()
    value_weights: tuple[float, ...] = ()
    index: int = field(default=0, compare=False)


Minibatches = list[list[TrainRow]]
# A tree and those of its responses that training learns from.
Group = tuple[GradedTree, list[Trajectory]]


class RowBuilder:
    """Rows of round after round.

    Args:
        prepared: the run's configuration, size and demonstrations.
        student: the policy under training; it scores what it did not sample itself.
        collector: says what a response earned.
        verifier: scores steps for `train.credit: process`; else None.
    """

    def __init__(
        self,
        prepared: Prepared,
        student: Student,
        collector: Collector,
        verifier: Verifier | None = None,
    ) -> None:
        self.config, self.size, self.demonstrations = (
            prepared.config,
            prepared.size,
            prepared.demonstrations,
        )
        self.student, self.collector, self.verifier = student, collector, verifier
        self.indices = count()
        self.own: list[
            TrainRow
        ] = []  # good responses of all rounds so far, which supervised methods draw from

    def remember(self, trees: Sequence[GradedTree]) -> list[TrainRow]:
        """The good responses of a round's trees, which later rounds draw from too (all but `grpo`
        and `ppo`).
        """
        fresh = self.good(trees)
        self.own += fresh
        return fresh

    def minibatches(self, number: int, trees: list[GradedTree], stats: RoundStats) -> Minibatches:
        """One pass of round `number`: rows by minibatch. `stats` gets how many there are."""
        self.indices = count()
        if self.config.train.supervised:
            return self.supervised(number, trees, stats)
        rows = (
            self.sampled(number, trees)
            if self.config.train.method == "ppo"
            else self.credited(trees, stats)
        )
        rows = self.filled(number, trees, rows, stats)
        # In random order, but a question's rows together, so that packing them pays.
        Random(derive_seed(self.config.seed, "order", number)).shuffle(rows)
        return together(rows, self.config.train.optimizer.batch_size)

    def filled(
        self, number: int, trees: list[GradedTree], rows: list[TrainRow], stats: RoundStats
    ) -> list[TrainRow]:
        """The first rows that have room, demonstrations beside them and where rows lack:
        `size.rows_per_round` in all.
        """
        replay = self.size.rows_per_round - self.size.policy_rows if self.demonstrations else 0
        wanted = self.size.rows_per_round - replay
        stats.updates = self.size.updates_per_round
        stats.rows, stats.rows_unused = min(len(rows), wanted), max(len(rows) - wanted, 0)
        stats.rows_filled = wanted - stats.rows
        rows = rows[:wanted] + self.replayed(
            number, replay + (stats.rows_filled if self.demonstrations else 0)
        )
        return rows + [self.padding_row(trees)] * (self.size.rows_per_round - len(rows))

    # -- expert iteration, rft and legacy ----------------------------------------------------------

    def supervised(self, number: int, trees: list[GradedTree], stats: RoundStats) -> Minibatches:
        """Replayed rows and own good ones of all rounds so far, `batch_size` an update.

        The round's own good ones say how many updates: `epochs` passes over them, and
        `updates_per_round` at most.
        """
        settings, optimizer = self.config.train, self.config.train.optimizer
        fresh = self.remember(trees)
        rng = Random(derive_seed(self.config.seed, self.config.train.method, number))
        replay = round(optimizer.batch_size * self.size.share) if self.demonstrations else 0
        own = optimizer.batch_size - replay
        stats.updates = min(
            settings.updates_per_round, math.ceil(optimizer.epochs * len(fresh) / max(own, 1))
        )
        stats.rows, stats.rows_unused = len(fresh), 0
        made: Minibatches = []
        for _ in range(stats.updates):
            rows = self.replayed(rng.getrandbits(62), replay, scored=False)
            rows += (
                rng.sample(self.own, own) if len(self.own) >= own else rng.choices(self.own, k=own)
            )
            rows += self.beside(rng, optimizer.batch_size)
            made.append(rows)
        return made

    def beside(self, rng: Random, count: int) -> list[TrainRow]:
        """Rows that an update has beside its `count` ones: as many, or none."""
        return []

    def good(self, trees: Sequence[GradedTree]) -> list[TrainRow]:
        """The method's rows: each question's right responses, those sampled most often first; of
        `legacy` the best response of each question that has both better and worse ones, weighted by
        its reward.
        """
        if self.config.train.method != "legacy":
            return [
                self.row(tree, response, 1.0)
                for tree in trees
                for response in self.right(tree)[:RESPONSES]
            ]
        rows = []
        for tree in trees:
            rewards = [self.collector.reward(response) for response in tree.responses]
            if not zero_variance(rewards):
                ranked = zip(rewards, tree.responses, strict=True)
                # The first of equals.
                reward, best = max(ranked, key=lambda pair: (pair[0], pair[1].samples))
                rows.append(self.row(tree, best, reward))
        return rows

    def right(self, tree: GradedTree) -> list[Trajectory]:
        """A question's right responses, all different, those sampled most often first. Under a rule
        those that it could judge come before.
        """

        def order(response: Trajectory) -> tuple[bool, int]:
            return not tree.tree.checked(
                node for node in response.nodes if node != OUTSIDE
            ), -response.samples

        right = [response for response in self.collector.counted(tree.responses) if response.right]
        return sorted(right, key=order)

    # -- PPO ---------------------------------------------------------------------------------------

    def sampled(self, number: int, trees: list[GradedTree]) -> list[TrainRow]:
        """PPO's rows: sampled responses, as often as each was sampled, with what they earned.

        Whole questions, which share their prompt: those with right and wrong responses first, the
        rest in random order.
        """
        shuffled = Random(derive_seed(self.config.seed, "ppo", number)).sample(trees, len(trees))
        shuffled.sort(key=lambda tree: self.collector.zero_variance(tree.responses))
        rows: list[TrainRow] = []
        for tree in shuffled:
            for response in self.collector.counted(tree.responses):
                rows += [
                    self.row(tree, response, 0.0, self.collector.reward(response))
                ] * response.samples
        return rows

    # -- GRPO --------------------------------------------------------------------------------------

    def credited(self, trees: list[GradedTree], stats: RoundStats) -> list[TrainRow]:
        """Rows with a non-zero advantage: each group's strongest first, groups taking turns."""
        # A teacher's tokens are off-policy: without `train.teacher_rows` they are neither rows nor
        # in a baseline.
        groups = [(tree, self.collector.counted(tree.responses)) for tree in trees]
        groups = [
            group
            for group in groups
            if not zero_variance([self.collector.reward(response) for response in group[1]])
        ]
        queues = []
        for (tree, responses), advantages in zip(
            groups, self.advantages(groups, stats), strict=True
        ):
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

    def advantages(self, groups: Sequence[Group], stats: RoundStats) -> list[list[list[float]]]:
        """By `train.credit`: for each response of each group one number a token `[T]`."""
        train = self.config.train
        if train.credit == "step":
            return self.by_step(groups)
        processes = self.processes(groups, stats) if train.credit == "process" else None
        made = []
        for g, (_, responses) in enumerate(groups):
            rewards = [self.collector.reward(response) for response in responses]
            counts = [response.samples for response in responses]
            outcomes = group_advantages(rewards, counts)
            steps = (
                [[0.0] * len(response.token_ids) for response in responses]
                if processes is None
                else processes[g]
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

    def by_step(self, groups: Sequence[Group]) -> list[list[list[float]]]:
        """Step credit, in the currency of `train.reward`, over the root mean square of the round's
        step differences.
        """
        values = []  # (Q(child), V(parent)) of each step of each response of each group
        for tree, responses in groups:
            counts, sums = self.collector.node_values(tree.tree)
            values.append(
                [step_values(t, self.collector.reward(t), counts, sums) for t in responses]
            )
        differences = [q - v for group in values for steps in group for q, v in steps]
        scale = math.sqrt(math.fsum(d * d for d in differences) / max(len(differences), 1)) or 1.0
        return [
            [
                step_advantages(steps, t.lengths, scale=scale)
                for t, steps in zip(responses, group, strict=True)
            ]
            for (_, responses), group in zip(groups, values, strict=True)
        ]

    def processes(self, groups: Sequence[Group], stats: RoundStats) -> list[list[list[float]]]:
        """Process advantages of every response's tokens, group by group."""
        assert self.verifier is not None
        verifier, before = self.verifier, self.verifier.scored_tokens
        cutter = EngineTokens(self.student, 1.0, 1)
        # As many at once as trees are searched at once: the model's cache holds no more.
        gate = asyncio.Semaphore(self.config.search.concurrent)

        async def score(problem: Problem, steps: Sequence[Step]) -> list[float]:
            async with gate:
                return list((await verifier(problem, cutter.prompt_ids(problem), steps)).steps)

        steps = [[cutter.lines(r.token_ids, r.logprobs) for r in group] for _, group in groups]

        async def every() -> list[list[float]]:
            pairs = zip(groups, steps, strict=True)
            return await asyncio.gather(
                *(score(tree.task.problem, lines) for (tree, _), group in pairs for lines in group)
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

    # -- single rows -------------------------------------------------------------------------------

    def row(
        self,
        tree: GradedTree,
        response: Trajectory,
        credit: float | Sequence[float],
        reward: float = 0.0,
    ) -> TrainRow:
        """A response of a tree with its credit, of each token or of all alike."""
        ids, prompt = response.token_ids, self.student.prompt_ids(tree.task.problem.question)
        advantages = (credit,) * len(ids) if isinstance(credit, float) else tuple(credit)
        return TrainRow(
            prompt,
            ids,
            response.logprobs,
            advantages,
            reward=reward,
            source=response.source,
            index=next(self.indices),
        )

    def replayed(self, number: int, wanted: int, *, scored: bool = True) -> list[TrainRow]:
        """`wanted` demonstrations drawn by `number`; `scored` ones carry the student's
        log-probabilities of now.

        A constant positive advantage makes the policy gradient of such a row that of supervised
        training. A likelihood weighs it as much as the student's own rows.
        """
        if not wanted:
            return []
        rng = Random(derive_seed(self.config.seed, "replay", number))
        pairs = [self.student.worked(rng.choice(self.demonstrations)) for _ in range(wanted)]
        weight = DEMONSTRATION if scored else 1.0
        old = (
            asyncio.run(self.student.engine.score(pairs))
            if scored
            else [[0.0] * len(ids) for _, ids in pairs]
        )
        return [
            TrainRow(
                prompt,
                ids,
                tuple(logprobs),
                (weight,) * len(ids),
                "demonstration",
                index=next(self.indices),
            )
            for (prompt, ids), logprobs in zip(pairs, old, strict=True)
        ]

    def padding_row(self, trees: list[GradedTree]) -> TrainRow:
        """A row without advantage (only a KL penalty, where one is on, sees it): it fills a batch
        that the trees could not.
        """
        for tree in trees:
            for response in self.collector.counted(tree.responses):
                return replace(self.row(tree, response, 0.0), kind="padding")
        prompt = self.student.prompt_ids(trees[0].task.problem.question)
        eos = (self.student.engine.eos_id,)
        return TrainRow(prompt, eos, (0.0,), (0.0,), "padding", index=next(self.indices))


def together(rows: Sequence[TrainRow], size: int) -> Minibatches:
    """Minibatches of `size` rows that hold whole questions as far as they can.

    Questions stay in the order in which they first appear; rows of their own are spread evenly over
    the minibatches.
    """
    questions: dict[tuple[int, ...], list[TrainRow]] = {}
    for row in rows:
        questions.setdefault(row.prompt_ids, []).append(row)
    shared = [row for members in questions.values() if len(members) > 1 for row in members]
    alone = iter([members[0] for members in questions.values() if len(members) == 1])
    batches, made = len(rows) // size, Minibatches()
    for batch in range(batches):
        some = shared[batch * len(shared) // batches : (batch + 1) * len(shared) // batches]
        made.append([*some, *islice(alone, size - len(some))])
    return made
