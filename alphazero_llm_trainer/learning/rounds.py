"""A round of questions: searched, or read from the journal; on one process or on several."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from ..errors import RewardError
from ..live import StopAsked, StoppedError, run_until
from ..policy.backend import check_update
from ..policy.student import QUESTION
from ..tree.graded import FAILED_REWARD, GradedTree
from ..tree.journal import Journal
from ..types import JsonObject, Task
from .collector import Collector
from .prepared import Prepared
from .ranks import ONE_RANK, Ranks
from .stats import RoundStats

if TYPE_CHECKING:
    from ..policy.student import Student


class Rounds:
    """The rounds of a run: the same trees for the same weights, whatever was killed in between.

    Each process searches its share with an engine of its own; the first one has the journal, and
    gets all trees.

    Args:
        prepared: the run's size, seed and questions, of which round k takes the k-th slice.
        student: the policy under training; its engine takes new weights at the start of each round.
        collector: searches and grades.
        journal: where finished trees go, and come from after a restart; None on every process but
            the first.
        on_tree: called after each tree.
        stop: True once the user wants to end.
        ranks: the processes that share the run.
        sampled: tokens of the rounds before.
        value: AlphaZero's layer over the policy's states, which guides searches once it has learnt.
    """

    def __init__(
        self,
        prepared: Prepared,
        student: Student,
        collector: Collector,
        journal: Journal | None,
        *,
        on_tree: Callable[[GradedTree], None],
        stop: StopAsked,
        ranks: Ranks = ONE_RANK,
        sampled: int = 0,
        value: Any = None,
    ) -> None:
        self.value = value
        self.size, self.tasks, self.seed = prepared.size, prepared.questions, prepared.config.seed
        self.student, self.collector, self.journal = student, collector, journal
        self.on_tree, self.stop, self.ranks, self.sampled = on_tree, stop, ranks, sampled

    def rounds_left(self, start: int) -> Iterator[int]:
        """The numbers of the rounds from `start` on, until all questions are asked or
        `train.tokens` are sampled.
        """
        for number in range(start, self.size.rounds):
            if self.share(number) >= 1:
                return
            yield number

    def share(self, rounds: int) -> float:
        """How much of the run is done after so many rounds: of its questions, or of its tokens
        where that is more.
        """
        of_tokens = self.sampled / self.size.tokens if self.size.tokens else 0.0
        share: float = self.ranks.broadcast(max(rounds / self.size.rounds, of_tokens))
        return share

    def search(self, number: int) -> tuple[list[GradedTree], RoundStats]:
        """The graded trees of a round, in the order of its questions, and what they came out as.

        Beside the first process both are empty. Raises StoppedError where the user asked to stop,
        RewardError where the reward of every question so far failed.
        """
        began = time.perf_counter()
        student = self.student
        student.engine.set_policy(None, number)
        if self.value is not None and self.value.weight.any():
            self.collector.guide(self.value)
        if number:
            check_update(student.engine, student.model, student.prompt_ids(QUESTION))
        tasks, trees = (
            self.size.of_round(self.tasks, number),
            {tree.key: tree for tree in self.restore_trees(number)},
        )
        stats = RoundStats(number, reused_trees=len(trees))
        missing: list[str] = self.ranks.broadcast([key for key in tasks if key not in trees])
        if missing:
            share = {key: tasks[key] for key in self.ranks.share(missing)}
            for record in self.gather_records(share, number, trees):
                self.keep_tree(record, GradedTree.from_record(record, tasks[record["key"]]), trees)
        if self.collector.perplexity is not None:
            self.collector.perplexity.forget()
        if any(self.ranks.gather(self.stop())):
            raise StoppedError
        if not self.ranks.first:
            return [], stats
        ordered = [trees[key] for key in tasks]
        self.check_rewards(ordered)
        stats.search_seconds = time.perf_counter() - began
        stats.count(ordered, self.collector)
        self.sampled += stats.cost.sampled_tokens
        # Many trees wait at once: their seconds overlap, so the round's own are what it cost.
        stats.cost.seconds = stats.search_seconds
        return ordered, stats

    def gather_records(
        self, tasks: dict[str, Task], number: int, trees: dict[str, GradedTree]
    ) -> list[JsonObject]:
        """Search these questions of round `number`. The first process keeps its trees in `trees` as
        they end, and gets the others' records.
        """
        records: list[JsonObject] = []

        async def take_trees() -> None:
            async for tree in self.collector.collect(list(tasks.items()), self.seed):
                if tree.ended_by == "stopped":
                    continue
                record = tree.record(round=number, policy=self.student.engine.version)
                if self.ranks.first:
                    self.keep_tree(record, tree, trees)
                else:
                    records.append(record)

        def end_quietly() -> None:
            with suppress(StoppedError):  # all ranks look whether to stop, afterwards
                run_until(self.stop, take_trees())

        self.ranks.everywhere(end_quietly)
        gathered = self.ranks.gather(records)
        return [record for records in gathered for record in records] if self.ranks.first else []

    def keep_tree(self, record: JsonObject, tree: GradedTree, trees: dict[str, GradedTree]) -> None:
        """A new tree goes into the journal first."""
        assert self.journal is not None
        self.journal.append(record)
        trees[tree.key] = tree
        self.on_tree(tree)

    def restore_trees(self, number: int) -> list[GradedTree]:
        """The trees of a round that the journal has."""
        journal = self.journal if self.journal is not None else {}
        records = (
            (journal.get(key), task) for key, task in self.size.of_round(self.tasks, number).items()
        )
        return [
            GradedTree.from_record(record, task) for record, task in records if record is not None
        ]

    def check_rewards(self, trees: Sequence[GradedTree]) -> None:
        """Raise RewardError where the user's own reward has failed for every question of the run so
        far.
        """
        failed = [tree.failed_reward for tree in trees if tree.failed_reward is not None]
        records = self.journal.values() if self.journal is not None else ()
        if failed and all(str(record["ended_by"]).startswith(FAILED_REWARD) for record in records):
            raise RewardError(
                f"the reward failed for at least one response of each of {len(failed):,} "
                f"questions, which are left out; the first: {failed[0]}"
            )
