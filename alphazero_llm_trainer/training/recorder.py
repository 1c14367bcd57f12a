"""What a run leaves behind: card, journal, figures, checkpoints and best weights, in its folder; and what it says meanwhile."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..config.load import resolve_name
from ..errors import ConfigError
from ..files import sync
from ..live import Progress
from ..mcts.extract import endings
from ..mcts.journal import Journal
from ..policy.student import Student
from ..problems.load import rows_hash
from ..rollouts import Collector, GradedTree
from .evaluation import Measured
from .learner import Learner
from .models import learning_rate
from .progress import show_round, show_tree
from .ranks import Ranks
from .rounds import RoundStats
from .run import RunFolder, write_manifest
from .start import Prepared
from .tracking import Tracking


class Recorder(Measured):
    """What is recorded of a run. Beside the first process it only takes its part in saving checkpoints.

    Args:
        prepared: the run's configuration, size and tasks.
        adapter: "lora" or "full", what is trained of the student.
        folder: the run's.
    """

    def __init__(
        self,
        prepared: Prepared,
        student: Student,
        adapter: str,
        collector: Collector,
        folder: RunFolder,
        *,
        progress: Progress,
        stop: Callable[[], bool],
        ranks: Ranks,
    ) -> None:
        self.config, self.prepared, self.size = prepared.config, prepared, prepared.size
        self.student, self.adapter = student, adapter
        self.collector, self.folder, self.progress, self.stop, self.ranks = collector, folder, progress, stop, ranks
        self.test, self.validation = prepared.test, prepared.validation
        self.rows = rows_hash([*prepared.questions, *prepared.test, *prepared.validation])
        track = self.config.train.track if ranks.first else "none"
        self.tracking = Tracking(track, folder.path, self.config.model_dump(mode="json"))
        self.journal: Journal | None = None
        self.card: dict[str, Any] = {}
        self.best: tuple[float, int] | None = None
        self.ends: Counter[str] = Counter()
        self.train_seconds, self.sampled = 0.0, 0  # tokens, of the rounds before this process
        self.began = self.since = time.perf_counter()  # the process, and what is counted as training next

    # -- before the rounds -------------------------------------------------------------------------------------------

    def begin(self, resume: bool) -> tuple[Path | None, int, int]:
        """Write the run's card and the results before training, where they are not there yet.

        Returns the checkpoint to go on from (None: the start), and how many updates and rounds were made before it.
        """
        checkpoint, facts = self.folder.newest_checkpoint(self.progress.say) if resume else (None, {})
        start = int(facts.get("rounds_done", 0))
        if not self.folder.card.exists():
            self.folder.write_card(self.new_card())  # whatever stops the run from here on, it can be resumed
        self.card = self.folder.read_card()
        if self.card.get("rows", self.rows) != self.rows:
            raise ConfigError(
                f"the rows have other questions or answers than when the run in {self.folder.path} began: restore them,"
                " or begin a new run"
            )
        self.before(self.card)
        self.folder.forget_metrics_from(start)
        self.restore_best(facts)
        self.train_seconds = facts.get("training_seconds", 0.0)
        # What the processes before this one took to their last checkpoint counts too.
        self.began -= facts.get("total_seconds", 0.0)
        self.journal = Journal(self.folder.journal)
        if resume:
            self.progress.say(f"going on after round {start}; {len(self.journal):,} trees are there")
        self.collector.keep_ledgers(self.folder.path)
        costs = [line["cost"] for line in self.folder.read_metrics() if "cost" in line]
        self.sampled = sum(cost["sampled_tokens"] for cost in costs)
        cost = self.student.engine.cost
        if self.config.train.tokens is None:
            self.progress.start(len(self.prepared.questions), len(self.journal), cost=cost)
        else:
            self.progress.start(self.config.train.tokens, self.sampled, unit="token", cost=cost)
        return checkpoint, facts.get("update", 0), start

    def new_card(self) -> dict[str, Any]:
        """What run.json says from the beginning."""
        config = self.config
        return {
            "config": config.model_dump(mode="json"),
            "student": resolve_name(config),
            "started_from": config.train.student,
            "system_prompt": self.student.opening.system_prompt,
            "shots": self.student.opening.shots,
            "adapter": self.adapter,
            "learning_rate": learning_rate(config.train, self.student.model),
            "method": config.train.method,
            "seed": config.seed,
            "questions": len(self.prepared.questions),
            "rows": self.rows,
            "demonstrations": len(self.prepared.demonstrations),
            "engine": self.student.engine.facts,
        }

    # -- round by round ----------------------------------------------------------------------------------------------

    def tree(self, tree: GradedTree) -> None:
        """Show a tree that is in the journal now."""
        self.ends += endings(tree.tree)
        show_tree(self.progress, tree, 1 if self.config.train.tokens is None else tree.cost.sampled_tokens)
        assert self.journal is not None
        every = self.config.train.log_interval
        if every is not None and len(self.journal) % every == 0:
            self.progress.say(self.progress.line())

    def round(self, stats: RoundStats, figures: dict[str, float]) -> None:
        """Write a round's line: on the terminal, in metrics.jsonl, to the tracker."""
        self.train_seconds += time.perf_counter() - self.since
        if self.ranks.first:
            line = asdict(stats) | figures
            self.write_metrics(line)
            compares = self.config.train.method in ("grpo", "legacy")
            show_round(self.progress, line, self.size.name(stats.round), compares)
        self.since = time.perf_counter()

    def checkpoint(self, learner: Learner, rounds_done: int, share: float) -> None:
        """Measure the student on validation problems, and save everything that the next round depends on, where that is due.

        `share` is how much of the run is done: a checkpoint ends it.
        """
        if rounds_done % self.size.save_every_rounds and share < 1:
            return
        folder = self.folder.checkpoint(learner.updates)
        if self.ranks.first:
            accuracy = self.validate(rounds_done)
            if accuracy is not None:
                self.write_metrics({"round": rounds_done - 1, "validation_accuracy": accuracy})
                what = "outcome" if self.config.rewards.own else "accuracy"
                self.progress.say(f"checkpoint after round {rounds_done}: validation {what} {accuracy:.3f}")
        learner.save(folder)
        if self.ranks.first:
            assert self.journal is not None
            # A checkpoint says that its rounds are done: their trees and figures are on the disk before it does.
            self.journal.sync()
            sync(self.folder.metrics)
            facts = {
                "rounds_done": rounds_done,
                "update": learner.updates,
                "best": self.best,
                "training_seconds": self.train_seconds,
                "total_seconds": time.perf_counter() - self.began,
            }
            write_manifest(folder, facts)
            self.keep_best(rounds_done)
        self.since = time.perf_counter()

    def write_metrics(self, line: dict[str, Any]) -> None:
        """Add a line to metrics.jsonl and the tracker."""
        self.folder.append_metrics(line)
        self.tracking.log(line, (line["round"] + 1) * self.size.questions_per_round)

    # -- after the rounds --------------------------------------------------------------------------------------------

    def finish(self) -> dict[str, Any]:
        """Write the results after training and the student. Returns the run's card."""
        self.close_journal()
        total = time.perf_counter() - self.began
        self.card["seconds"] = {"total": round(total, 1), "training": round(self.train_seconds, 1)}
        return self.conclude(self.card)

    def close(self) -> None:
        """Let go of the folder, however the run ended."""
        self.close_journal()
        self.progress.stop()
        self.tracking.finish()

    def close_journal(self) -> None:
        """Close the journal. However the run ends, its card says what the teachers did and took."""
        if self.journal is not None:
            self.journal.close()
            self.journal = None
            self.card |= self.collector.ledgers()
            self.folder.write_card(self.card)
