"""How a round's trees become the rows that losses read (`train_row.py`).

Trees -> responses -> credit (`credit.py`) -> rows -> minibatches: the same rows for the same trees,
whatever was killed in between.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from itertools import count, islice
from random import Random
from typing import TYPE_CHECKING, Any

from ..mcts.seeds import derive_seed
from ..rewards.demonstrations import Worked, work_out
from ..tree.extract import OUTSIDE, Trajectory
from ..tree.graded import GradedTree
from ..types import TokenIds
from .collector import Collector
from .prepared import Prepared
from .stats import RoundStats
from .train_row import Minibatches, TrainRow, TrainRows

if TYPE_CHECKING:
    from ..policy.student import Student

RESPONSES = 4  # of `GoodRows`: different ones of a question
DEMONSTRATION = 0.5  # weight of a replayed row in the loss; a policy row has 1


class RowBuilder:
    """Rows of round after round, a method's own.

    Args:
        prepared: the run's configuration, size and demonstrations.
        student: the policy under training; it scores what it did not sample itself.
        collector: says what a response earned.
        scorer: what the method loaded to score rows with beside the student (`Method.load`).
    """

    stream = "weights"  # the field of a row that its credit goes into

    def __init__(
        self,
        prepared: Prepared,
        student: Student,
        collector: Collector,
        scorer: Any = None,
    ) -> None:
        self.prepared, self.config, self.size = prepared, prepared.config, prepared.size
        self.demonstrations = prepared.demonstrations
        self.student, self.collector, self.scorer = student, collector, scorer
        self.indices = count()
        self.shown: dict[str, Worked] = {}  # demonstrations by their problems' ids

    def remember(self, trees: Sequence[GradedTree]) -> list[TrainRow]:
        """The rows of a round's trees that later rounds draw from too: none, unless the method says
        otherwise.
        """
        return []

    def minibatches(self, number: int, trees: list[GradedTree], stats: RoundStats) -> Minibatches:
        """One pass of round `number`: rows by minibatch. `stats` gets how many there are."""
        raise NotImplementedError

    def row(
        self,
        tree: GradedTree,
        response: Trajectory,
        credit: float | Sequence[float],
        reward: float = 0.0,
    ) -> TrainRow:
        """A response of a tree with its credit, of each token or of all alike."""
        ids = response.token_ids
        numbers = (credit,) * len(ids) if isinstance(credit, float) else credit
        return TrainRow(
            tree.prompt_ids,
            ids,
            response.logprobs,
            mask=response.mask,
            reward=reward,
            source=response.source,
            index=next(self.indices),
            **self.numbers_of(numbers),
        )

    def numbers_of(self, numbers: Sequence[float]) -> dict[str, Any]:
        """Numbers of a row's tokens as the field of a row that this method's loss reads."""
        return {self.stream: tuple(numbers)}

    def replay_rows(self, number: int, wanted: int, *, scored: bool = True) -> list[TrainRow]:
        """`wanted` demonstrations drawn by `number`; `scored` ones carry the student's
        log-probabilities of now.

        A constant positive advantage makes the policy gradient of such a row that of supervised
        training. A likelihood weighs it as much as the student's own rows.
        """
        if not wanted:
            return []
        rng = Random(derive_seed(self.config.seed, "replay", number))
        tasks = [rng.choice(self.demonstrations) for _ in range(wanted)]
        fresh = [task for task in tasks if task.problem.id not in self.shown]
        made = work_out(self.student, self.config.search, fresh)
        self.shown |= {task.problem.id: one for task, one in zip(fresh, made, strict=True)}
        shown = [self.shown[task.problem.id] for task in tasks]
        weight = DEMONSTRATION if scored else 1.0
        old = (
            asyncio.run(
                self.student.engine.score([(one.prompt_ids, one.token_ids) for one in shown])
            )
            if scored
            else [[0.0] * len(one.token_ids) for one in shown]
        )
        return [
            TrainRow(
                one.prompt_ids,
                one.token_ids,
                tuple(logprobs),
                kind="demonstration",
                index=next(self.indices),
                mask=one.mask,
                **self.numbers_of((weight,) * len(one.token_ids)),
            )
            for one, logprobs in zip(shown, old, strict=True)
        ]


class GoodRows(RowBuilder):
    """Rows of good responses, as they are, from all rounds so far."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.own: list[TrainRow] = []

    def remember(self, trees: Sequence[GradedTree]) -> list[TrainRow]:
        """The rows of a round's trees that later rounds draw from too."""
        fresh = self.good(trees)
        self.own += fresh
        return fresh

    def minibatches(self, number: int, trees: list[GradedTree], stats: RoundStats) -> Minibatches:
        """Replayed rows and own good ones of all rounds so far, `batch_size` an update, or fewer
        where there are fewer own ones: none comes twice in an update.

        The round's own good ones say how many updates: `epochs` passes over them, and
        `updates_per_round` at most. While there are few of all rounds, `buffer_passes` over those
        are the most.
        """
        self.indices = count()
        settings, optimizer = self.config.train, self.config.train.optimizer
        fresh = self.remember(trees)
        rng = Random(derive_seed(self.config.seed, self.prepared.method.name, number))
        replay = round(optimizer.batch_size * self.size.share) if self.demonstrations else 0
        own = min(optimizer.batch_size - replay, len(self.own))
        wanted = min(
            settings.updates_per_round, math.ceil(optimizer.epochs * len(fresh) / max(own, 1))
        )
        stats.updates = min(wanted, settings.buffer_passes * len(self.own) // max(own, 1))
        stats.updates_left_out = wanted - stats.updates
        stats.rows, stats.rows_unused = len(fresh), 0
        made: Minibatches = []
        for _ in range(stats.updates):
            rows = self.replay_rows(rng.getrandbits(62), replay, scored=False)
            rows += rng.sample(self.own, own)
            rows += self.beside(rng, optimizer.batch_size)
            made.append(rows)
        return made

    def beside(self, rng: Random, count: int) -> list[TrainRow]:
        """Rows that an update has beside its `count` ones: as many at most."""
        return []

    def good(self, trees: Sequence[GradedTree]) -> list[TrainRow]:
        """A round's rows: each question's right responses, those sampled most often first."""
        return [
            self.row(tree, response, 1.0)
            for tree in trees
            for response in self.right(tree)[:RESPONSES]
        ]

    def right(self, tree: GradedTree) -> list[Trajectory]:
        """A question's right responses, all different, those sampled most often first. Under a rule
        those that it could judge come before.
        """

        def order(response: Trajectory) -> tuple[bool, int]:
            return not tree.tree.checked(
                node for node in response.nodes if node != OUTSIDE
            ), -response.samples

        right = [
            response
            for response in self.collector.select_responses(tree.responses)
            if response.right
        ]
        return sorted(right, key=order)


class SampledRows(RowBuilder):
    """Rows of the round's own samples."""

    stream = "advantages"

    def sample_rows(
        self, number: int, trees: list[GradedTree], stats: RoundStats
    ) -> list[TrainRow]:
        """A round's rows with their credit, those to be taken first before the others."""
        raise NotImplementedError

    def minibatches(self, number: int, trees: list[GradedTree], stats: RoundStats) -> Minibatches:
        """One pass of round `number`: rows by minibatch."""
        self.indices = count()
        rows = self.fill_rows(number, trees, self.sample_rows(number, trees, stats), stats)
        # In random order, but a question's rows together, so that packing them pays.
        Random(derive_seed(self.config.seed, "order", number)).shuffle(rows)
        optimizer = self.config.train.optimizer
        made = split_rows(rows, optimizer.batch_size)
        stats.updates = optimizer.epochs * len(made)
        return made

    def fill_rows(
        self, number: int, trees: list[GradedTree], rows: list[TrainRow], stats: RoundStats
    ) -> list[TrainRow]:
        """The first rows that have room, and demonstrations beside them: `size.rows_per_round` in
        all where there are demonstrations, which fill up for rows that lack.
        """
        replay = self.size.rows_per_round - self.size.policy_rows if self.demonstrations else 0
        wanted = self.size.rows_per_round - replay
        stats.rows, stats.rows_unused = min(len(rows), wanted), max(len(rows) - wanted, 0)
        stats.rows_filled = wanted - stats.rows
        return rows[:wanted] + self.replay_rows(
            number, replay + (stats.rows_filled if self.demonstrations else 0)
        )


def split_rows(rows: TrainRows, size: int) -> Minibatches:
    """Minibatches of `size` rows that hold whole questions as far as they can. Rows that `size`
    doesn't divide make smaller ones, about alike.

    Questions stay in the order in which they first appear; rows of their own are spread evenly over
    the minibatches.
    """
    questions: dict[TokenIds, list[TrainRow]] = {}
    for row in rows:
        questions.setdefault(row.prompt_ids, []).append(row)
    shared = [row for members in questions.values() if len(members) > 1 for row in members]
    alone = iter([members[0] for members in questions.values() if len(members) == 1])
    batches, made = math.ceil(len(rows) / size), Minibatches()
    for batch in range(batches):
        some = shared[batch * len(shared) // batches : (batch + 1) * len(shared) // batches]
        room = (batch + 1) * len(rows) // batches - sum(map(len, made)) - len(some)
        made.append([*some, *islice(alone, max(room, 0))])
    return made
