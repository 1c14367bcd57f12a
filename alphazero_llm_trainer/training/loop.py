"""The training run: search, grade, credit, update, in rounds, with checkpoints; before and after it the student is measured.

`Run.train` is AlphaZero in one function. What searches is in `rounds.py`, what becomes of trees in `rows.py`, what is minimised
in `objectives.py` and `losses.py`, an update in `learner.py`.
"""

from __future__ import annotations

import logging
import os
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from transformers import set_seed

from ..config.load import Config, resolve_name
from ..engine.background import freeze_loaded
from ..engine.protocol import Verifier
from ..errors import CheckpointError, ConfigError
from ..files import check_space, sync
from ..live import Progress, StoppedError
from ..mcts.extract import endings
from ..mcts.journal import Journal
from ..policy.critic import load_prm
from ..policy.student import frozen_student, load_student
from ..policy.weights import load_tensors
from ..problems.load import opening, rows_hash
from ..rewards.perplexity import Perplexity
from ..rollouts import Collector, GradedTree, measures_perplexity
from ..teachers.build import is_remote
from .checkpoint import newest_whole, write_manifest
from .evaluation import Measured
from .fsdp import check_unpacked, uses_fsdp
from .learner import Learner, Objective, Schedule, dealt
from .models import MemoryOptions, check_full, learning_rate, make_trainable
from .objectives import Grpo, Likelihood, Ppo
from .ppo_critic import Critic
from .preflight import preflight
from .progress import tell_round, tell_tree
from .ranks import ALONE, Ranks
from .rounds import Rounds, RoundStats
from .rows import Minibatches, RowBuilder
from .run import RunFolder
from .size import RunSize
from .start import check_libraries, check_run
from .tracking import Tracking


class Run(Measured):
    """One training run: `load`, then `execute` in a folder.

    Args:
        config: the resolved configuration.
        stop: True once the user wants to end; the run then ends at the next safe place and can be resumed.
        progress: told about trees, rounds and evaluations.
        ranks: the processes that share the run.
    """

    def __init__(
        self,
        config: Config,
        stop: Callable[[], bool] = lambda: False,
        progress: Progress | None = None,
        ranks: Ranks = ALONE,
    ) -> None:
        self.config, self.ranks, self.stop = config, ranks, stop
        self.progress = progress if progress is not None else Progress(quiet=True)
        self.size = RunSize(self.config)
        self.train_seconds, self.sampled = 0.0, 0  # tokens
        self.best: tuple[float, int] | None = None
        self.ends: Counter[str] = Counter()

    # -- the loop ----------------------------------------------------------------------------------------------------

    def train(self, rounds: Rounds, builder: RowBuilder, learner: Learner, start: int) -> None:
        """The rounds from number `start` on, until all questions are asked or `train.tokens` are sampled.

        Raises StoppedError where the user ends them.
        """
        for number in range(start, self.size.rounds):
            if self.ranks.tell(self.share(number)) >= 1:
                break
            began = time.perf_counter()
            trees, stats = rounds.search(number)  # search -> graded trees, into the journal
            rows = self.ranks.told(lambda: builder.minibatches(number, trees, stats))  # noqa: B023 - credit -> rows
            self.student.engine.sleep()
            self.sampled += stats.cost.sampled_tokens
            done = self.ranks.tell(self.share(number + 1))
            figures = self.learn(learner, rows, number, done)  # losses.py
            self.train_seconds += time.perf_counter() - began
            if self.ranks.first:
                self.record(stats, figures)
            if (number + 1) % self.size.save_every_rounds == 0 or done >= 1:
                self.checkpoint(learner, number + 1)

    def share(self, rounds: int) -> float:
        """How much of the run is done after so many rounds: of its questions, or of its tokens where that is more."""
        budget = self.config.train.tokens
        return max(rounds / self.size.rounds, 0.0 if budget is None else self.sampled / budget)

    def learn(self, learner: Learner, minibatches: Minibatches, number: int, done: float) -> dict[str, float]:
        """A round's updates; after it the learning rate stands where `done`, a share of the run, has it. Returns the means of
        their figures."""
        epochs = 1 if self.config.train.supervised else self.config.train.optimizer.epochs
        mine = [row for rows in minibatches for row in dealt(rows, self.ranks)]
        figures = learner.objective.begin(learner, mine, number)
        found: list[dict[str, float]] = []
        total, doing = epochs * len(minibatches), f"round {self.round_name(number)}"
        with self.progress.within(total, "update", doing, held="one"):
            for rows in [*minibatches] * epochs:
                if any(self.ranks.gather(self.stop())):
                    raise StoppedError
                found.append(learner.update(rows))
                self.progress.advance()
        # A round that found few rows makes fewer updates: the schedule goes by rounds, or by tokens.
        learner.skip(max(round(done * self.size.updates) - learner.updates, 0))
        learner.publish()
        return means(found) | figures | learner.objective.end()

    def checkpoint(self, learner: Learner, rounds_done: int) -> None:
        """Measure the student on validation problems, and save everything that the next round depends on."""
        folder = self.folder.path / f"checkpoint-{learner.updates}"
        if self.ranks.first:
            check_space(self.folder.path, learner.checkpoint_bytes, "the next checkpoint")
            accuracy = self.validate(rounds_done)
            if accuracy is not None:
                self.write_metrics({"round": rounds_done - 1, "validation_accuracy": accuracy})
                what = "outcome" if self.config.rewards.own else "accuracy"
                self.progress.say(f"checkpoint after round {rounds_done}: validation {what} {accuracy:.3f}")
        learner.save(folder)
        if not self.ranks.first:
            return
        assert self.journal is not None
        # A checkpoint says that its rounds are done: their trees and figures are on the disk before it does.
        self.journal.sync()
        sync(self.folder.metrics)
        write_manifest(
            folder,
            {
                "rounds_done": rounds_done,
                "update": learner.updates,
                "fsdp": uses_fsdp(),
                "best": list(self.best) if self.best is not None else None,
                "training_seconds": self.train_seconds,
                "total_seconds": time.perf_counter() - self.began,
            },
        )
        self.keep_best(rounds_done)

    def record(self, stats: RoundStats, figures: dict[str, float]) -> None:
        """A round's line: on the terminal, in metrics.jsonl, to the tracker."""
        line = asdict(stats) | figures
        self.write_metrics(line)
        compares = self.config.train.method in ("grpo", "legacy")
        tell_round(self.progress, line, self.round_name(line["round"]), compares)

    def round_name(self, number: int) -> str:
        """Round `number` as it is told; of how many is not known where tokens end the run."""
        return str(number + 1) if self.config.train.tokens else f"{number + 1}/{self.size.rounds}"

    def write_metrics(self, line: dict[str, Any]) -> None:
        self.folder.append_metrics(line)
        self.tracking.log(line, (line["round"] + 1) * self.size.questions_per_round)

    # -- what it needs -----------------------------------------------------------------------------------------------

    def load(self) -> None:
        """Data and models; what is wrong with either shows before a folder is made."""
        config = self.config
        check_libraries(config)
        data = check_run(config)
        self.demonstrations, self.tasks = data.demonstrations, data.questions
        self.test, self.validation = data.test, data.validation
        self.rows = rows_hash([*data.questions, *data.test, *data.validation])
        start, prm = config.train.student, config.train.prm
        self.student = load_student(config, path=None if start is None else Path(start), opening=opening(config))
        self.adapter = config.train.adapter or self.student.spec.adapter
        check_full(self.student.model, self.student.spec, self.adapter)
        if uses_fsdp():
            check_unpacked(config, self.student.spec)
        if not self.student.engine.capabilities.trainable:
            self.student.engine.close()
            raise ConfigError(
                f"engine.backend is {config.engine.backend}, whose server takes no new weights: set train.adapter=lora and"
                " start it with --enable-lora and VLLM_ALLOW_RUNTIME_LORA_UPDATING=1, or set engine.backend=vllm"
            )
        perplexity = None
        if measures_perplexity(config):
            frozen = frozen_student(self.student, config, shared=self.adapter == "lora")
            perplexity = Perplexity(frozen, config.search.max_tokens)
        self.collector = Collector(self.student, config, perplexity, self.stop)
        # The process reward model that `train.credit: process` scores steps with.
        self.verifier: Verifier | None = None
        if config.train.process and prm is not None:
            self.verifier = load_prm(Path(prm), self.student, config)
        freeze_loaded()

    def new_card(self) -> dict[str, Any]:
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
            "questions": len(self.tasks),
            "rows": self.rows,
            "demonstrations": len(self.demonstrations),
            "engine": self.student.engine.facts,
        }

    def make_learner(self) -> Learner:
        """What the method trains, minimises and how fast."""
        train, model, size = self.config.train, self.student.model, self.size
        objective: Objective
        if train.method == "grpo":
            objective = Grpo(train, model)
        elif train.method == "ppo":
            lora = self.student.spec.lora if self.adapter == "lora" else None
            objective = Ppo(train, model, Critic(model, lora))
        else:
            objective = Likelihood()
        warmup = min(train.optimizer.warmup * size.updates_per_round, size.updates // 4)
        return Learner(
            model,
            objective,
            MemoryOptions.of(self.config, self.student.spec, model),
            Schedule(learning_rate(train, model), warmup, size.updates),
            batch_size=train.optimizer.batch_size,
            weight_decay=train.optimizer.weight_decay,
            max_grad_norm=train.optimizer.max_grad_norm,
            ranks=self.ranks,
        )

    def preflight(self) -> str:
        """What a few questions show. Raises TrainingError where the run would learn nothing."""
        return preflight(self.student, self.config, self.tasks[: self.config.train.preflight], self.progress, self.stop)

    def opening(self) -> str:
        """What is about to run, in a few lines."""
        config, train = self.config, self.config.train
        method = "grpo without ratio and negatives: weighted SFT" if train.weighted_sft else train.method
        teachers: str = config.teachers.tier
        if is_remote(config):
            teachers += f" at {config.teacher_tiers[teachers].base_url}"
        text = (
            f"student {self.student.title} ({self.adapter} weights trained), {method}, seed {config.seed}\n"
            f"{self.planned()}, {train.groups} groups,"
            f" teachers: {teachers}, {len(self.demonstrations):,} demonstrations replayed"
        )
        if config.problems.hold_out == "structures" and train.student is None and self.student.spec.path == "package":
            text += (
                "\nthe shipped student has seen every structure: warm one up with `sft` under problems.hold_out first"
            )
        return text

    def planned(self) -> str:
        """How many questions, or tokens, the run takes."""
        questions, tokens = f"{len(self.tasks):,} {self.config.problems.source} questions", self.config.train.tokens
        if tokens is not None:
            return f"{tokens:,} sampled tokens, of {questions} at most, in rounds of {self.size.questions_per_round}"
        return f"{questions} in {self.size.rounds} round{'s' * (self.size.rounds > 1)}"

    # -- the whole run -----------------------------------------------------------------------------------------------

    def execute(self, folder: RunFolder, resume: bool = False) -> dict[str, Any] | None:
        """Train and report in `folder`. Returns the run card, or None when the user stopped it first, or beside rank 0."""
        quiet_libraries()
        self.folder, self.began = folder, time.perf_counter()
        self.journal: Journal | None = None
        self.tracking = Tracking("none", folder.path)
        try:
            # Before anything is drawn at random (LoRA's first weights are): a resumed run must draw the same.
            set_seed(self.config.library_seed)
            make_trainable(self.student.model, self.student.spec, self.adapter)
            if self.ranks.first:
                self.tracking = Tracking(self.config.train.track, folder.path)
            begun = self.ranks.told(lambda: self.begin(resume))
            self.run_rounds(*begun)
            self.progress.stop()
            if self.stop() or not self.ranks.first:
                return None
            self.close_books()
            self.card["seconds"] = {
                "total": round(time.perf_counter() - self.began, 1),
                "training": round(self.train_seconds, 1),
            }
            return self.conclude(self.card)
        except StoppedError:
            return None
        finally:
            self.close_books()
            self.progress.stop()
            self.tracking.finish()
            self.student.engine.close()

    def begin(self, resume: bool) -> tuple[Path | None, int, int]:
        """The run's card and the results before training, where they are not there yet, on the process that has the folder.

        Returns the checkpoint to go on from (None: the start), and how many updates and rounds were made before it.
        """
        checkpoint, facts = newest_whole(self.folder.path, self.progress.say) if resume else (None, {})
        if checkpoint is not None and facts.get("fsdp", False) != uses_fsdp():
            before, now = ("under", "without") if facts.get("fsdp") else ("without", "under")
            raise ConfigError(
                f"checkpoint {checkpoint} was written {before} FSDP and this launch is {now} it, which can't read its"
                f" optimiser: launch {before} FSDP"
            )
        start = int(facts.get("rounds_done", 0))
        if facts.get("best") is not None and facts["best"][1] != start:
            load_tensors(self.folder.best)  # a broken file shows now, and not after the last round
        if not self.folder.card.exists():
            self.folder.write_card(self.new_card())  # whatever stops the run from here on, it can be resumed
        self.card = self.folder.read_card()
        if self.card.get("rows", self.rows) != self.rows:
            raise ConfigError(
                f"the rows have other questions or answers than when the run in {self.folder.path} began: restore them,"
                " or begin a new run"
            )
        # A resumed run goes on with what its student was told.
        told = self.student.opening
        self.student.opening = replace(told, system_prompt=self.card.get("system_prompt", told.system_prompt))
        self.tracking.parameters(self.card["config"])
        self.before(self.card)
        self.folder.forget_metrics_from(start)
        self.restore_best(facts)
        self.train_seconds = facts.get("training_seconds", 0.0)
        # What the processes before this one took to their last checkpoint counts too.
        self.began -= facts.get("total_seconds", 0.0)
        self.journal = Journal(self.folder.journal)
        if resume:
            self.progress.say(f"going on after round {start}; {len(self.journal):,} trees are there")
        self.collector.keep_books(self.folder.path)
        costs = [line["cost"] for line in self.folder.read_metrics() if "cost" in line]
        self.sampled = sum(cost["sampled_tokens"] for cost in costs)
        counted: dict[str, Any] = {"cost": self.student.engine.cost, "base": self.size.questions_per_round}
        if self.config.train.tokens is None:
            self.progress.start(len(self.tasks), len(self.journal), **counted)
        else:
            counted["base"] *= self.config.search.max_tokens
            self.progress.start(self.config.train.tokens, self.sampled, unit="token", **counted)
        return checkpoint, facts.get("update", 0), start

    def run_rounds(self, checkpoint: Path | None, updates: int, start: int) -> None:
        """The rounds from number `start` on, from a checkpoint of so many updates."""
        shared: dict[str, Any] = {"on_tree": self.on_tree, "stop": self.stop, "ranks": self.ranks}
        rounds = Rounds(self.student, self.collector, self.tasks, self.journal, self.size, self.config.seed, **shared)
        builder = RowBuilder(self.student, self.config, self.collector, self.demonstrations, self.size, self.verifier)
        learner = self.make_learner()
        if self.config.train.supervised:
            for number in range(start):
                builder.remember(rounds.restored(number))
        if checkpoint is not None:
            try:
                learner.restore(checkpoint, updates)
            except (OSError, ValueError, RuntimeError, KeyError) as error:
                raise CheckpointError(
                    f"checkpoint {checkpoint} can't be loaded ({error}): use an earlier one"
                ) from error
            if self.ranks.first:
                self.keep_best(start)  # a kill may have come between the checkpoint and its best weights
        self.train(rounds, builder, learner, start)

    def close_books(self) -> None:
        """Close the journal. However the run ends, its card says what the teachers did and took."""
        if self.journal is not None:
            self.journal.close()
            self.journal = None
            self.card |= self.collector.ledgers()
            self.folder.write_card(self.card)

    def on_tree(self, tree: GradedTree) -> None:
        self.ends += endings(tree.tree)
        tell_tree(self.progress, tree, 1 if self.config.train.tokens is None else tree.cost.sampled_tokens)
        assert self.journal is not None
        every = self.config.train.log_interval
        if every is not None and len(self.journal) % every == 0:
            self.progress.say(self.progress.line())


def means(found: Sequence[dict[str, float]]) -> dict[str, float]:
    """The mean of each figure over the updates that have it: a minibatch of demonstrations alone has no critic's figures."""
    names = dict.fromkeys(name for one in found for name in one)
    values = {name: [one[name] for one in found if name in one] for name in names}
    return {name: sum(some) / len(some) for name, some in values.items()}


def quiet_libraries() -> None:
    """Keep libraries' notices about themselves out of the user's terminal; their errors still show."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    for name in ("transformers", "accelerate", "peft"):
        logging.getLogger(name).setLevel(logging.ERROR)
