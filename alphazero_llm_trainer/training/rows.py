"""What every loss eats: one response a row, token ids only; and how a round's trees become rows.

Trees -> responses -> credit (`credit.py`) -> rows -> minibatches: the same rows for the same trees, whatever was killed in
between.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from random import Random
from typing import TYPE_CHECKING

from ..config.load import Config
from ..engine.protocol import Verifier
from ..mcts.extract import OUTSIDE, Trajectory, step_values
from ..mcts.seeds import derive_seed
from ..mcts.tree import ROOT, Tree
from ..policy.engine_tokens import EngineTokens
from ..rollouts import Collector, GradedTree
from ..types import STUDENT, Problem, Step, Task
from .credit import (
    ADVANTAGE_CLIP,
    asymmetric,
    clamp,
    group_advantages,
    policy_advantages,
    process_advantages,
    step_advantages,
    visit_distillation,
    zero_variance,
)
from .packing import together
from .rounds import RoundStats
from .size import RunSize

if TYPE_CHECKING:
    from ..policy.student import Student

RESPONSES = 4  # expert iteration and rft: different right responses of a question, those sampled most often first


@dataclass(frozen=True, slots=True)
class TrainRow:
    """A prompt `[P]` and its response: `completion_ids`, `old_logprobs` (nats, the policy's that sampled it) and `advantages`
    are `[T]`; a likelihood weighs each token by its advantage. `reward` is the outcome that PPO's critic is trained on. `kind`
    is "policy", "demonstration" or "padding" (no data for a critic), `source` who wrote the response ("student", or the
    teachers that wrote one of its steps), `index` the row's number in its round, where repeats of a row share one.
    """

    prompt_ids: tuple[int, ...]
    completion_ids: tuple[int, ...]
    old_logprobs: tuple[float, ...]
    advantages: tuple[float, ...]
    kind: str = "policy"
    reward: float = 0.0
    source: str = STUDENT
    index: int = field(default=0, compare=False)


Minibatches = list[list[TrainRow]]


class RowBuilder:
    """Rows of round after round.

    Args:
        student: the policy under training; it scores what it did not sample itself.
        collector: says what a response earned.
        demonstrations: worked solutions that are replayed, may be empty.
        verifier: scores steps for `train.credit: process`; else None.
    """

    def __init__(
        self,
        student: Student,
        config: Config,
        collector: Collector,
        demonstrations: Sequence[Task],
        size: RunSize,
        verifier: Verifier | None = None,
    ) -> None:
        self.student, self.config, self.collector = student, config, collector
        self.demonstrations, self.size, self.verifier = demonstrations, size, verifier
        self.indices = count()
        self._own: list[TrainRow] = []  # good responses of all rounds so far, which supervised methods draw from

    def remember(self, trees: Sequence[GradedTree]) -> list[TrainRow]:
        """The good responses of a round's trees, which later rounds draw from too (all but `grpo` and `ppo`)."""
        found = self.good(trees)
        self._own += found
        return found

    def minibatches(self, number: int, trees: list[GradedTree], stats: RoundStats) -> Minibatches:
        """One pass of round `number`: rows by minibatch. `stats` gets how many there are."""
        self.indices = count()
        if self.config.train.supervised:
            return self.supervised(number, trees, stats)
        rows = self.sampled(number, trees) if self.config.train.method == "ppo" else self.credited(trees, stats)
        rows = self.filled(number, trees, rows, stats)
        # In random order, but a question's rows together, so that packing them pays.
        Random(derive_seed(self.config.seed, "order", number)).shuffle(rows)
        size = self.config.train.optimizer.batch_size
        groups: dict[tuple[int, ...], int] = {}
        order = together([groups.setdefault(row.prompt_ids, len(groups)) for row in rows], len(rows) // size)
        return [[rows[i] for i in order[start : start + size]] for start in range(0, len(rows), size)]

    def filled(self, number: int, trees: list[GradedTree], rows: list[TrainRow], stats: RoundStats) -> list[TrainRow]:
        """The first rows that have room, demonstrations beside them and where rows lack: `size.rows_per_round` in all."""
        replay = self.size.rows_per_round - self.size.policy_rows if self.demonstrations else 0
        wanted = self.size.rows_per_round - replay
        stats.updates = self.size.updates_per_round
        stats.rows, stats.rows_unused = min(len(rows), wanted), max(len(rows) - wanted, 0)
        rows = rows[:wanted]
        stats.rows_filled = wanted - len(rows)
        rows += self.replayed(number, replay + (stats.rows_filled if self.demonstrations else 0))
        return rows + [self.padding_row(trees)] * (self.size.rows_per_round - len(rows))

    # -- expert iteration, rft and legacy ----------------------------------------------------------------------------------

    def supervised(self, number: int, trees: list[GradedTree], stats: RoundStats) -> Minibatches:
        """Replayed rows and own good ones of all rounds so far, `batch_size` an update.

        The round's own good ones say how many updates: `epochs` passes over them, and `updates_per_round` at most.
        """
        settings, optimizer = self.config.train, self.config.train.optimizer
        fresh = self.remember(trees)
        rng = Random(derive_seed(self.config.seed, self.config.train.method, number))
        replay = round(optimizer.batch_size * self.size.share) if self.demonstrations else 0
        own = optimizer.batch_size - replay
        stats.updates = min(settings.updates_per_round, math.ceil(optimizer.epochs * len(fresh) / max(own, 1)))
        stats.rows, stats.rows_unused = len(fresh), 0
        made: Minibatches = []
        for _ in range(stats.updates):
            rows = self.replayed(rng.getrandbits(62), replay, scored=False)
            rows += rng.sample(self._own, own) if len(self._own) >= own else rng.choices(self._own, k=own)
            made.append(rows)
        return made

    def good(self, trees: Sequence[GradedTree]) -> list[TrainRow]:
        """The method's rows: each question's right responses, those sampled most often first; of `legacy` the best response
        of each question that has both better and worse ones, weighted by its reward."""
        if self.config.train.method != "legacy":
            return [self.row(tree, found, 1.0) for tree in trees for found in self.right(tree)]
        rows = []
        for tree in trees:
            found = tree.responses
            rewards = [self.collector.reward(t) for t in found]
            if zero_variance(rewards):
                continue
            best = max(range(len(found)), key=lambda i: (rewards[i], found[i].samples, -i))
            rows.append(self.row(tree, found[best], rewards[best]))
        return rows

    def right(self, tree: GradedTree) -> list[Trajectory]:
        """A question's right responses that are learnt from, all different. Under a rule those that it could judge come
        first."""

        def order(one: Trajectory) -> tuple[bool, int]:
            return not tree.tree.checked(node for node in one.nodes if node != OUTSIDE), -one.samples

        found = sorted((t for t in self.collector.counted(tree.responses) if t.right), key=order)
        return found[:RESPONSES]

    # -- PPO ---------------------------------------------------------------------------------------------------------

    def sampled(self, number: int, trees: list[GradedTree]) -> list[TrainRow]:
        """PPO's rows: sampled responses, as often as each was sampled, with what they earned.

        Whole questions, which share their prompt: those with right and wrong responses first, the rest in random order.
        """
        shuffled = Random(derive_seed(self.config.seed, "ppo", number)).sample(trees, len(trees))
        shuffled.sort(key=lambda tree: self.collector.zero_variance(tree.responses))
        rows: list[TrainRow] = []
        for tree in shuffled:
            for found in self.collector.counted(tree.responses):
                rows += [self.row(tree, found, 0.0, self.collector.reward(found))] * found.samples
        return rows

    # -- GRPO --------------------------------------------------------------------------------------------------------

    def credited(self, trees: list[GradedTree], stats: RoundStats) -> list[TrainRow]:
        """Rows with a non-zero advantage: each group's strongest first, groups taking turns."""
        train = self.config.train
        # A teacher's tokens are off-policy: without `train.teacher_rows` they are neither rows nor in a baseline.
        groups = [(tree, self.collector.counted(tree.responses)) for tree in trees]
        groups = [
            (tree, found) for tree, found in groups if not zero_variance([self.collector.reward(t) for t in found])
        ]
        scale = self.step_scale(groups) if train.credit == "step" else 1.0
        processes = self.processes(groups, stats) if train.credit == "process" else [[] for _ in groups]
        queues = []
        for (tree, found), process in zip(groups, processes, strict=True):
            rows = [
                self.row(tree, t, asymmetric(a, train.negative_weight))
                for t, a in zip(found, self.advantages(tree.tree, found, scale, process), strict=True)
            ]
            rows = [row for row in rows if any(row.advantages)]
            rows.sort(key=lambda row: -max(abs(a) for a in row.advantages))
            queues.append(rows)
        turns = max((len(rows) for rows in queues), default=0)
        return [rows[turn] for turn in range(turns) for rows in queues if turn < len(rows)]

    def advantages(
        self, tree: Tree, found: list[Trajectory], scale: float, process: list[list[float]]
    ) -> list[list[float]]:
        """One number a token of each of a tree's responses, by `train.credit`."""
        train = self.config.train
        if train.credit == "step":
            return [
                step_advantages(values, t.lengths, scale=scale)
                for t, values in zip(found, self.step_values(tree, found), strict=True)
            ]
        if train.credit == "visits":
            return [self.distilled(tree, t) for t in found]
        rewards, counts = [self.collector.reward(t) for t in found], [t.samples for t in found]
        group = group_advantages(rewards, counts)
        if train.credit == "group":
            return [[count * a] * len(t.token_ids) for a, count, t in zip(group, counts, found, strict=True)]
        # The sum of both is clipped, and repeats weigh it afterwards.
        return [
            [count * clamp(a + train.process_weight * step, ADVANTAGE_CLIP) for step in steps]
            for count, a, steps in zip(counts, group, process, strict=True)
        ]

    def step_values(self, tree: Tree, found: list[Trajectory]) -> list[list[tuple[float, float]]]:
        """`(Q(child), V(parent))` of each response's steps, in the currency of `train.reward`."""
        counts, sums = self.collector.node_values(tree)
        return [step_values(t, self.collector.reward(t), counts, sums) for t in found]

    def step_scale(self, groups: list[tuple[GradedTree, list[Trajectory]]]) -> float:
        """The root mean square of the round's step differences."""
        values = [one for tree, found in groups for one in self.step_values(tree.tree, found)]
        differences = [q - v for of_response in values for q, v in of_response]
        if not differences:
            return 1.0
        return math.sqrt(math.fsum(d * d for d in differences) / len(differences)) or 1.0

    def distilled(self, tree: Tree, found: Trajectory) -> list[float]:
        """Visit credit of one response; tokens of a rollout have no siblings and get 0."""
        train, parent = self.config.train, ROOT
        choices, chosen, lengths, outside = [], [], [], 0
        for node, length in zip(found.nodes, found.lengths, strict=True):
            if node == OUTSIDE:
                outside += length
                continue
            siblings = [
                child
                for child in tree.children[parent]
                if (tree.N[child] or child == node) and (train.teacher_rows or tree.source[child] == STUDENT)
            ]
            policy = visit_distillation([tree.N[n] for n in siblings])
            own = [math.fsum(tree.logprobs[n]) for n in siblings]
            choices.append(list(zip(policy, own, strict=True)))
            chosen.append(siblings.index(node))
            lengths.append(length)
            parent = node
        return policy_advantages(choices, chosen, lengths) + [0.0] * outside

    def processes(
        self, groups: list[tuple[GradedTree, list[Trajectory]]], stats: RoundStats
    ) -> list[list[list[float]]]:
        """Process advantages of every response's tokens, group by group."""
        assert self.verifier is not None
        verifier, spent = self.verifier, self.verifier.scored_tokens
        cutter = EngineTokens(self.student, 1.0, 1)
        steps = [[cutter.lines(t.token_ids, t.logprobs) for t in found] for _, found in groups]

        async def scored() -> list[list[float]]:
            # As many at once as trees are searched at once: the model's cache holds no more.
            gate = asyncio.Semaphore(self.config.search.concurrent)

            async def read(problem: Problem, steps: Sequence[Step]) -> list[float]:
                async with gate:
                    return list((await verifier(problem, cutter.prompt_ids(problem), steps)).steps)

            pairs = zip(groups, steps, strict=True)
            reads = [read(tree.task.problem, response) for (tree, _), responses in pairs for response in responses]
            return await asyncio.gather(*reads)

        scores = iter(asyncio.run(scored()))
        stats.cost.scored_tokens += verifier.scored_tokens - spent
        return [
            process_advantages(
                [next(scores) for _ in found],
                [[len(step.token_ids) for step in one] for one in of_tree],
                [t.samples for t in found],
            )
            for (_, found), of_tree in zip(groups, steps, strict=True)
        ]

    # -- single rows -------------------------------------------------------------------------------------------------

    def row(
        self, tree: GradedTree, found: Trajectory, credit: float | Sequence[float], reward: float = 0.0
    ) -> TrainRow:
        """A response of a tree with its credit, of each token or of all alike."""
        advantages = (credit,) * len(found.token_ids) if isinstance(credit, float) else tuple(credit)
        prompt = self.student.prompt_ids(tree.task.problem.question)
        return TrainRow(
            prompt,
            found.token_ids,
            found.logprobs,
            advantages,
            reward=reward,
            source=found.source,
            index=next(self.indices),
        )

    def replayed(self, number: int, count: int, *, scored: bool = True) -> list[TrainRow]:
        """`count` demonstrations drawn by `number`; `scored` ones carry the student's log-probabilities of now.

        A constant positive advantage makes the policy gradient of such a row that of supervised training. A likelihood weighs
        it as much as the student's own rows.
        """
        if not count:
            return []
        rng = Random(derive_seed(self.config.seed, "replay", number))
        pairs = [self.student.worked(rng.choice(self.demonstrations)) for _ in range(count)]
        weight = self.config.train.demonstration_weight if scored else 1.0
        old = asyncio.run(self.student.engine.score(pairs)) if scored else [[0.0] * len(ids) for _, ids in pairs]
        return [
            TrainRow(prompt, ids, tuple(logprobs), (weight,) * len(ids), "demonstration", index=next(self.indices))
            for (prompt, ids), logprobs in zip(pairs, old, strict=True)
        ]

    def padding_row(self, trees: list[GradedTree]) -> TrainRow:
        """A row without advantage (only a KL penalty, where one is on, sees it): it fills a batch that the trees could not."""
        for tree in trees:
            for found in self.collector.counted(tree.responses):
                return replace(self.row(tree, found, 0.0), kind="padding")
        prompt = self.student.prompt_ids(trees[0].task.problem.question)
        eos = (self.student.engine.eos_id,)
        return TrainRow(prompt, eos, (0.0,), (0.0,), "padding", index=next(self.indices))
