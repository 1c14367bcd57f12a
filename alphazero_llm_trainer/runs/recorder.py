"""What a run leaves behind: card, journal, figures, checkpoints, best weights and the student, in
its folder; and what it says meanwhile.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import torch

from ..config.load import resolve_name
from ..errors import CheckpointError, ConfigError
from ..eval.greedy import Answers, answer_tasks
from ..files import sync_path
from ..learning.collector import Collector
from ..learning.critic_network import save_critic
from ..learning.learner import Learner
from ..learning.methods.base import Objective
from ..learning.models import learning_rate, load_trained_state, trained_state
from ..learning.prepared import Prepared
from ..learning.ranks import Ranks
from ..learning.stats import RoundStats
from ..live import Progress, StopAsked
from ..policy.adapters import POLICY, model_fingerprint
from ..policy.folders import VALUE
from ..policy.student import Student
from ..policy.weights import load_tensors, save_tensors
from ..problems.load import rows_hash
from ..problems.registry import open_source
from ..rewards.combined import outcome
from ..tree.arena import Tree
from ..tree.extract import endings
from ..tree.graded import GradedTree
from ..tree.journal import Journal
from ..types import Cost, JsonObject, Task
from .folder import RunFolder, write_manifest
from .gain import paired_gain, summarise_answers
from .progress import show_round, show_tree
from .saving import save_student
from .tracking import Tracking
from .upload import upload_folders, write_model_card

VALIDATION = "validation"


class Recorder:
    """What is recorded of a run. Beside the first process it only takes its part in saving
    checkpoints.

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
        stop: StopAsked,
        ranks: Ranks,
        objective: Objective,
    ) -> None:
        self.objective = objective
        self.config, self.prepared, self.size = prepared.config, prepared, prepared.size
        self.student, self.adapter = student, adapter
        self.collector, self.folder, self.progress, self.stop, self.ranks = (
            collector,
            folder,
            progress,
            stop,
            ranks,
        )
        self.rows = rows_hash([*prepared.questions, *prepared.test, *prepared.validation])
        track = self.config.train.track if ranks.first else "none"
        self.tracking = Tracking(track, folder.path, self.config.model_dump(mode="json"))
        self.journal: Journal | None = None
        self.card: JsonObject = {}
        # The best validation score, and after how many rounds.
        self.best: tuple[float, int] | None = None
        self.ends: Counter[str] = Counter()
        self.train_seconds, self.sampled = 0.0, 0  # tokens, of the rounds before this process
        # The process, and what is counted as training next.
        self.began = self.since = time.perf_counter()

    # -- before the rounds -------------------------------------------------------------------------

    def begin(self, resume: bool) -> tuple[Path | None, int, int]:
        """Write the run's card and the results before training, where they are not there yet.

        Returns the checkpoint to go on from (None: the start), and how many updates and rounds were
        made before it.
        """
        checkpoint, facts = (
            self.folder.newest_checkpoint(self.progress.say) if resume else (None, {})
        )
        start = int(facts.get("rounds_done", 0))
        if not self.folder.card.exists():
            # Whatever stops the run from here on, it can be resumed.
            self.folder.write_card(self.new_card())
        self.card = self.folder.read_card()
        if self.card.get("rows", self.rows) != self.rows:
            raise ConfigError(
                f"the rows have other questions or answers than when the run in {self.folder.path} "
                "began: restore them, or begin a new run"
            )
        if self.card.get("weights") not in (None, self.weights()):
            raise CheckpointError(
                f"student {self.student.title} has other weights than when the run in "
                f"{self.folder.path} began: restore them, or begin a new run"
            )
        # A resumed run goes on with the system prompt that it began with: its trees are of that
        # one.
        opening = self.student.opening
        self.student.opening = replace(
            opening, system_prompt=self.card.get("system_prompt", opening.system_prompt)
        )
        if "before" not in self.card:
            self.card["before"] = self.measure_test("before")
            if self.prepared.validation:
                answers = self.evaluate(self.prepared.validation, "validation before training")
                self.card["validation_before"] = self.score(answers)
            self.folder.write_card(self.card)
        self.folder.forget_metrics_from(start)
        if facts.get("best") is not None:
            self.best = (facts["best"][0], facts["best"][1])
        elif self.config.train.keep_best and "validation_before" in self.card:
            # The untrained student is the one to beat.
            self.best = (self.card["validation_before"], 0)
            self.keep_best(0)
        self.train_seconds = facts.get("training_seconds", 0.0)
        # What the processes before this one took to their last checkpoint counts too.
        self.began -= facts.get("total_seconds", 0.0)
        self.journal = Journal(self.folder.journal)
        if resume:
            self.progress.say(
                f"going on after round {start}; {len(self.journal):,} trees are there"
            )
        self.collector.keep_ledgers(self.folder.path)
        costs = [line["cost"] for line in self.folder.read_metrics() if "cost" in line]
        self.sampled = sum(cost["sampled_tokens"] for cost in costs)
        tokens = 0  # of the trees that are there
        for record in self.journal.values():
            self.count_ends(Tree.from_dict(record["tree"]))
            tokens += record["cost"]["sampled_tokens"]
        limit = self.config.train.tokens
        if limit is None:
            self.progress.start(len(self.prepared.questions), len(self.journal), tokens=tokens)
        else:
            self.progress.start(limit, min(tokens, limit), unit="token")
        return checkpoint, facts.get("update", 0), start

    def weights(self) -> str:
        """A hash of the weights that the run starts from; those of a new adapter are its seed's."""
        begun = POLICY if self.student.adapter is not None else None
        return model_fingerprint(self.student.model, begun)

    def count_ends(self, tree: Tree) -> None:
        """Count how a tree's responses ended, but for games, where an end without an answer is one
        that wasn't won.
        """
        if not open_source(self.config).plays:
            self.ends += endings(tree)

    def new_card(self) -> JsonObject:
        """What run.json says from the beginning."""
        config = self.config
        return {
            "config": config.model_dump(mode="json"),
            "student": resolve_name(config),
            "started_from": config.train.student,
            "system_prompt": self.student.opening.system_prompt,
            "shots": self.student.opening.shots,
            "adapter": self.adapter,
            "learning_rate": learning_rate(
                config.train.optimizer, self.student.model, self.prepared.method.rates
            ),
            "method": config.train.method,
            "seed": config.seed,
            "questions": len(self.prepared.questions),
            "rows": self.rows,
            "weights": self.weights(),
            "validation_problems": len(self.prepared.validation),
            "demonstrations": len(self.prepared.demonstrations),
            "engine": self.student.engine.facts,
        }

    # -- round by round ----------------------------------------------------------------------------

    def tree(self, tree: GradedTree) -> None:
        """Show a tree that is in the journal now."""
        self.count_ends(tree.tree)
        show_tree(
            self.progress, tree, 1 if self.config.train.tokens is None else tree.cost.sampled_tokens
        )
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
            compares = self.prepared.method.compares
            show_round(self.progress, line, self.size.name(stats.round), compares)
        self.since = time.perf_counter()

    def checkpoint(self, learner: Learner, rounds_done: int, share: float) -> None:
        """Measure the student on validation problems, and save everything that the next round
        depends on, where that is due.

        `share` is how much of the run is done: a checkpoint ends it.
        """
        if rounds_done % self.size.save_every_rounds and share < 1:
            return
        folder = self.folder.checkpoint(self.questions_asked(rounds_done))
        if self.ranks.first:
            accuracy = self.validate(rounds_done)
            if accuracy is not None:
                self.write_metrics({"round": rounds_done - 1, "validation_accuracy": accuracy})
                what = "outcome" if self.config.rewards.own else "accuracy"
                self.progress.say(
                    f"checkpoint after round {rounds_done}: validation {what} {accuracy:.3f}"
                )
        learner.save(folder)
        if self.ranks.first:
            assert self.journal is not None
            # A checkpoint says that its rounds are done: their trees and figures are on the disk
            # before it does.
            self.journal.sync()
            sync_path(self.folder.metrics)
            facts = {
                "rounds_done": rounds_done,
                "update": learner.updates,
                "best": self.best,
                "training_seconds": self.train_seconds,
                "total_seconds": time.perf_counter() - self.began,
            }
            write_manifest(folder, facts)
            self.keep_best(rounds_done)
            count = self.config.train.keep_checkpoints
            if count is not None:
                self.folder.keep_newest(folder, count)
        self.since = time.perf_counter()

    def write_metrics(self, line: JsonObject) -> None:
        """Add a line to metrics.jsonl and the tracker."""
        self.folder.append_metrics(line)
        self.tracking.log(line, self.questions_asked(line["round"] + 1))

    def questions_asked(self, rounds: int) -> int:
        """How many questions so many rounds ask."""
        return min(rounds * self.size.questions_per_round, len(self.prepared.questions))

    # -- the student measured ----------------------------------------------------------------------

    def evaluate(self, tasks: Sequence[Task], doing: str = VALIDATION) -> Answers:
        """Greedy answers of the student as it is now; the problems are counted on `progress` as
        what it is `doing`.

        Raises StoppedError where the user ends that. A checkpoint's validation is not ended: the
        updates before it would be made again.
        """
        return answer_tasks(
            self.student,
            tasks,
            max_tokens=self.config.search.max_tokens,
            settings=self.config.search,
            custom=self.collector.custom,
            progress=self.progress,
            doing=doing,
            stop=None if doing == VALIDATION or self.ranks.size > 1 else self.stop,
        )

    def measure_test(self, when: str) -> JsonObject:
        """The test problems' results, "before" or "after" training."""
        answers = self.evaluate(self.prepared.test, f"held-out problems {when} training")
        return summarise_answers(answers, self.prepared.test)

    def validate(self, rounds_done: int) -> float | None:
        """The score on validation problems after `rounds_done` rounds; the best score so far is
        kept.
        """
        if not self.prepared.validation:
            return None
        accuracy = self.score(self.evaluate(self.prepared.validation))
        if self.config.train.keep_best and (self.best is None or accuracy > self.best[0]):
            self.best = (accuracy, rounds_done)
        return accuracy

    def score(self, answers: Answers) -> float:
        """What the best weights are chosen by: accuracy, or with a reward of the user's own the
        mean outcome.
        """
        weights = self.config.rewards
        if not weights.own:
            return sum(answers.first) / len(answers.first)
        pairs = zip(answers.grades, answers.rewards, strict=True)
        outcomes = [
            outcome(grade, reward, weights) for grade, reward in pairs if reward is not None
        ]
        return sum(value or 0.0 for value in outcomes) / len(outcomes)

    def keep_best(self, rounds_done: int) -> None:
        """Write the weights of now where those after so many rounds are the best so far.

        It comes after the checkpoint of that round is sealed: the weights of one that a kill cut
        off are nobody's best.
        """
        if self.best is not None and self.best[1] == rounds_done:
            save_tensors(
                trained_state(self.student.model) | {**self.objective.extra()}, self.folder.best
            )

    # -- after the rounds --------------------------------------------------------------------------

    def finish(self) -> JsonObject:
        """Take the best weights, evaluate them on the test problems once, write everything. Returns
        the run's card.
        """
        self.close_journal()
        card, total = self.card, time.perf_counter() - self.began
        card["seconds"] = {"total": round(total, 1), "training": round(self.train_seconds, 1)}
        card["kept"] = "last"
        if self.best is not None:
            best = load_tensors(self.folder.best)
            load_trained_state(self.student.model, best)
            with torch.no_grad():
                for name, parameter in self.objective.extra().items():
                    parameter.copy_(best[name])
            score, number = self.best
            card["kept_round"] = number
            kept = (
                f"round {number}" if number else "the untrained student, as no round was above it"
            )
            card["kept"] = (
                f"best checkpoint: {kept} "
                f"(validation {score:.3f}: the best of several measurements on other problems, "
                "so rather high beside `after`)"
            )
        before, after = card["before"], self.measure_test("after")
        rounds = [line for line in self.folder.read_metrics() if "cost" in line]
        cost = Cost()
        for line in rounds:
            cost.add(Cost(**line["cost"]))
        accurate = after["accuracy"] is not None
        card |= {
            "after": after,
            "gain": paired_gain(before["correct"], after["correct"], self.prepared.test)
            if accurate
            else None,
            "reward_gain": paired_gain(
                before.get("rewards", ()), after.get("rewards", ()), self.prepared.test
            ),
            "failed_rewards": sum(line.get("failed_rewards", 0) for line in rounds),
            "rounds": len(rounds),
            "questions": sum(line["questions"] for line in rounds),  # `train.tokens` ends it early
            "search_cost": cost.as_dict(),
            "ends": dict(self.ends),
        }
        # The card that says "finished" is written after it.
        source = open_source(self.config).name
        saved = save_student(
            self.student, self.adapter, source, self.folder.student, self.folder.adapter
        )
        # A value that has not learnt (the untrained student is kept) would mislead a search.
        if self.objective.value is not None and self.objective.critic.score.weight.any():
            facts = {
                "kind": "value",
                "rollout_weight": 0.0,  # V alone
                "discount": self.config.search.discount,
            }
            bases = {self.folder.student: saved, self.folder.adapter: self.student.model}
            for place, model in bases.items():
                if place.is_dir():
                    facts["base"] = model_fingerprint(model)
                    critic = self.objective.critic
                    save_critic(place / VALUE, critic, facts, self.student, self.config)
        base = self.config.train.student or self.student.spec.path
        for place in (self.folder.student, self.folder.adapter):
            if place.is_dir():
                write_model_card(place, card, base, adapter=place == self.folder.adapter)
        self.folder.write_card(card)
        test = {
            name: card[name]["accuracy"]["value"]
            for name in ("before", "after")
            if card[name]["accuracy"]
        }
        self.tracking.log({"test": test, "total": card["search_cost"]}, card["questions"])
        if self.config.train.push_to_hub is not None:
            parts = {".": self.folder.student} | (
                {"adapter": self.folder.adapter} if self.adapter == "lora" else {}
            )
            card["uploaded"] = upload_folders(self.config.train.push_to_hub, parts)
            self.folder.write_card(card)
        return card

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
            self.card |= self.collector.describe_ledgers()
            checker = self.card["terminal_checker"]
            if checker is not None and checker["cost"]["calls"] == 0:
                self.progress.say(
                    "teachers.terminal_checker: asked nothing, since every response ended by an "
                    "answer line or the end token"
                )
            self.folder.write_card(self.card)
