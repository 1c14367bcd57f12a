"""A training run: it loads the models, says what is about to run, and goes through `learning.loop`
in a folder, from the start or from its newest checkpoint.
"""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from transformers import set_seed

from ..chat.teachers import is_remote
from ..config.load import SMALL, resolve_name
from ..engine.background import freeze_loaded
from ..engine.device import text_config
from ..errors import CheckpointError, ConfigError
from ..learning import loop
from ..learning.collector import Collector
from ..learning.earned import measures_perplexity
from ..learning.learner import Learner, RateSchedule
from ..learning.methods.base import Method, Objective
from ..learning.models import MemoryOptions, learning_rate, make_trainable
from ..learning.prepared import Prepared
from ..learning.probe import try_update
from ..learning.ranks import ONE_RANK, Ranks, check_unpacked, uses_fsdp
from ..learning.rounds import Rounds
from ..learning.rows import RowBuilder
from ..learning.size import CRITIC_ROUNDS
from ..learning.stats import RoundStats
from ..learning.train_row import Minibatches, TrainRow, TrainRows
from ..live import Progress, StopAsked, StoppedError
from ..policy.chat import check_prompts
from ..policy.folders import carried_value
from ..policy.student import frozen_student, load_student
from ..problems.load import opening
from ..rewards.perplexity import Perplexity
from ..tree.graded import GradedTree
from .folder import RunFolder
from .plan import describe_engine
from .preflight import affordable_questions, run_preflight
from .recorder import Recorder

FEW_UPDATES = 400  # below which no run of a small student was measured to gain anything


class Run:
    """One training run: `load`, then `execute` in a folder.

    Args:
        prepared: its configuration, size and tasks.
        stop: True once the user wants to end; the run then ends at the next safe place and can be
            resumed.
        progress: shows trees, rounds and evaluations.
        ranks: the processes that share the run.
    """

    def __init__(
        self,
        prepared: Prepared,
        stop: StopAsked = lambda: False,
        progress: Progress | None = None,
        ranks: Ranks = ONE_RANK,
    ) -> None:
        self.prepared, self.config, self.size = prepared, prepared.config, prepared.size
        self.method: Method = prepared.method
        self.ranks, self.stop = ranks, stop
        self.progress = progress if progress is not None else Progress(quiet=True)

    # -- what it needs -----------------------------------------------------------------------------

    def load(self) -> None:
        """Load the models, make them trainable and try an update; what is wrong with them, and what
        doesn't fit, shows before a folder is made.
        """
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        for name in ("transformers", "accelerate", "peft"):  # their errors still show
            logging.getLogger(name).setLevel(logging.ERROR)
        self.ranks.everywhere(self.load_models)
        try:
            self.ranks.everywhere(self.make_trained)
        except BaseException:
            self.student.engine.close()
            raise

    def load_models(self) -> None:
        """The student, and what searches and rows take beside it."""
        config = self.config
        start = config.train.student
        self.student = load_student(
            config, path=None if start is None else Path(start), opening=opening(config)
        )
        guided = self.method.guided
        self.carried = carried_value(config, None, self.student)[1] if guided else None
        asked = [task.problem.question for task in self.prepared.questions]
        if (long := check_prompts(self.student, asked)) is not None:
            self.progress.say(long)
        self.adapter = config.train.adapter or self.student.spec.adapter
        if uses_fsdp():
            check_unpacked(config, self.student.spec)
        if not self.student.engine.capabilities.trainable:
            self.student.engine.close()
            raise ConfigError(
                f"engine.backend is {config.engine.backend}, whose server takes no new weights: "
                "set train.adapter=lora and start it with --enable-lora and "
                "VLLM_ALLOW_RUNTIME_LORA_UPDATING=1, or set engine.backend=vllm"
            )
        perplexity = None
        if measures_perplexity(config, self.method):
            frozen = frozen_student(self.student, config, shared=self.adapter == "lora")
            perplexity = Perplexity(frozen, config.search.max_tokens)
        self.collector = Collector(self.student, config, self.method, perplexity, self.stop)
        # The first process makes the rows.
        self.scorer = self.method.load(self.student, config) if self.ranks.first else None
        freeze_loaded()

    def make_trained(self) -> None:
        """What is trained, how fast, and what the method minimises; a value goes on from the one
        that the student carries. An update of the longest rows is tried.
        """
        # Before anything is drawn at random (LoRA's first weights are): a resumed run must draw the
        # same.
        set_seed(self.config.seed)
        train, size, student = self.config.train, self.size, self.student
        model = make_trainable(student.model, student.spec, self.adapter)
        lora = student.spec.lora if self.adapter == "lora" else None
        self.objective: Objective = self.method.objective(train, model, lora)
        if self.objective.value is not None and self.carried is not None:
            self.objective.critic.begin_from(self.carried)
        rate = learning_rate(train.optimizer, model, self.method.rates)
        schedule = RateSchedule(rate, size.warmup, size.updates)
        memory = MemoryOptions.of(self.config, student)
        self.learner = Learner(model, self.objective, memory, schedule, train.optimizer, self.ranks)
        student.engine.sleep()  # as it does during updates
        self.progress.wait("trying an update of the longest rows")
        try_update(self.learner, self.longest_rows())

    def longest_rows(self) -> list[TrainRow]:
        """A minibatch of the longest question's prompt with the longest response to it. The rows
        differ in their first token, so that packing shares nothing.
        """
        question = max((task.problem.question for task in self.prepared.questions), key=len)
        context = self.student.engine.capabilities.max_context
        prompt = self.student.prompt_ids(question)[1 : context - 1]
        ones = (1.0,) * min(self.config.search.max_tokens, context - 1 - len(prompt))
        ids, words = (0,) * len(ones), text_config(self.student.model).vocab_size
        return [
            TrainRow(
                (i % words, *prompt),
                ids,
                ones,
                ones,
                targets=ones,
                value_weights=ones,
                weights=ones,
                pi=ones,
                draws=ones,
            )
            for i in range(self.config.train.optimizer.batch_size)
        ]

    def preflight(self) -> str:
        """What a few questions show. Raises TrainingError where the run would learn nothing."""
        count = affordable_questions(self.config)
        if not count:
            return "pre-flight: left out of so short a run"
        tasks = self.prepared.questions[:count]
        return run_preflight(self.student, self.config, tasks, self.progress, self.stop)

    def opening(self) -> str:
        """What is about to run, in a few lines."""
        train, tier = self.config.train, self.config.teachers.tier
        place = f" at {self.config.teacher_tiers[tier].base_url}" if is_remote(self.config) else ""
        teachers = (
            f"teachers: {tier}{place}" if train.teacher is None else f"teacher: {train.teacher}"
        )
        planned = f"{len(self.prepared.questions):,} {self.config.problems.source} questions"
        if train.tokens is not None:
            planned = f"{train.tokens:,} sampled tokens, at most {planned}"
        return (
            f"student {self.student.title} ({self.adapter} weights trained), {train.method}, seed "
            f"{self.config.seed}\n"
            f"{planned} in {self.size.planned}, {train.groups} groups, {teachers}, "
            f"{len(self.prepared.demonstrations):,} demonstrations replayed, "
            f"engine: {describe_engine(self.config)}{self.few_updates()}{self.few_rounds()}"
        )

    def few_rounds(self) -> str:
        """A line where a run ends before its policy learns from what it drew."""
        if not self.method.critics or self.size.rounds > CRITIC_ROUNDS:
            return ""
        enough = CRITIC_ROUNDS * self.size.questions_per_round + 1
        return (
            f"\nthe first {CRITIC_ROUNDS} rounds train {self.method.name}'s critic alone, and this "
            "run has no more: the policy learns from its draws with --num-examples "
            f"{enough:,} or more"
        )

    def few_updates(self) -> str:
        """A line where a small student's run is so short that no gain is to be expected of it."""
        updates, count = self.size.updates, self.config.train.num_examples
        small = self.config.models[resolve_name(self.config)].path in SMALL
        if not small or self.config.train.tokens is not None or updates >= FEW_UPDATES:
            return ""
        enough = math.ceil(count * FEW_UPDATES / updates)
        return (
            f"\n{updates:,} updates are few, so expect no clear gain: the runs that were measured "
            f"(docs/results/training.md) made {FEW_UPDATES} or more, here --num-examples {enough:,}"
        )

    # -- the whole run -----------------------------------------------------------------------------

    def execute(self, folder: RunFolder, resume: bool = False) -> dict[str, Any] | None:
        """Train and report in `folder`. Returns the run card, or None when the user stopped it
        first, or beside rank 0.
        """
        set_seed(self.config.seed)  # whatever the pre-flight drew, which a resumed run hasn't
        recorder = self.recorder(folder)
        try:
            self.run_rounds(recorder, resume)
            self.progress.stop()
            return None if self.stop() or not self.ranks.first else recorder.finish()
        except StoppedError:
            return None
        finally:
            recorder.close()
            self.student.engine.close()

    def recorder(self, folder: RunFolder) -> Recorder:
        """What records the run in its folder."""
        return Recorder(
            self.prepared,
            self.student,
            self.adapter,
            self.collector,
            folder,
            progress=self.progress,
            stop=self.stop,
            ranks=self.ranks,
            objective=self.objective,
        )

    def run_rounds(self, recorder: Recorder, resume: bool) -> None:
        """All rounds that are left: of a resumed run, those after its newest checkpoint."""
        checkpoint, updates, start = self.ranks.on_first(lambda: recorder.begin(resume))
        rounds = Rounds(
            self.prepared,
            self.student,
            self.collector,
            recorder.journal,
            on_tree=recorder.tree,
            stop=self.stop,
            ranks=self.ranks,
            sampled=recorder.sampled,
            value=self.objective.value,
        )
        builder: RowBuilder = self.method.rows(
            self.prepared, self.student, self.collector, self.scorer
        )
        learner = self.learner
        if self.method.supervised:
            for number in range(start):
                builder.remember(rounds.restore_trees(number))
        if checkpoint is not None:
            try:
                learner.restore(checkpoint, updates)
            except (OSError, ValueError, RuntimeError, KeyError) as error:
                raise CheckpointError(
                    f"checkpoint {checkpoint} can't be loaded ({error}): launch as it was written, "
                    "with FSDP or without, or remove it"
                ) from error
            if self.ranks.first:
                # A kill may have come between the checkpoint and its best weights.
                recorder.keep_best(start)
        recorder.since = time.perf_counter()
        loop.train(rounds, RunLessons(self, builder), learner, recorder, start)
        if rounds.sampled < (self.size.tokens or 0):
            self.progress.say(
                f"all questions were asked after {rounds.sampled:,} of {self.size.tokens:,} "
                "sampled tokens: raise --num-examples for the rest"
            )


class RunLessons:
    """The rows of a run's rounds by `builder`, and the passes over them: `loop.Lessons`."""

    def __init__(self, run: Run, builder: RowBuilder) -> None:
        self.run, self.builder = run, builder

    def minibatches(self, number: int, trees: list[GradedTree], stats: RoundStats) -> Minibatches:
        """A round's minibatches: those of the first process, on all of them."""
        minibatches: Minibatches = self.run.ranks.on_first(
            lambda: self.builder.minibatches(number, trees, stats)
        )
        self.run.student.engine.sleep()  # updates come next, and they need the memory
        return minibatches

    def passes(self, number: int, minibatches: Minibatches) -> Iterator[TrainRows]:
        """The passes over a round's rows. Raises StoppedError where the user ends the run."""
        run = self.run
        # Supervised rows come once for each pass.
        epochs = 1 if run.method.supervised else run.config.train.optimizer.epochs
        updates = [*minibatches] * epochs
        with run.progress.within(
            len(updates),
            "update",
            f"round {run.size.name(number)}",
            held="after the update in hand",
        ):
            for minibatch in updates:
                if any(run.ranks.gather(run.stop())):
                    raise StoppedError
                yield minibatch
                run.progress.advance()
