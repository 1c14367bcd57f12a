"""The training run: evaluate, search and train in rounds with checkpoints, evaluate again, report."""

from __future__ import annotations

import copy
import gc
import logging
import math
import os
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from transformers import PrinterCallback, TrainerCallback, set_seed

from ..collect import Collector, GradedTree, Perplexity
from ..config.load import Config, resolve_name
from ..engine.protocol import Verifier
from ..errors import CheckpointError, ConfigError, StorageError, TrainingError
from ..eval.greedy import Answers, answer
from ..eval.metrics import mean_interval, paired_bootstrap, repeats, wilson
from ..files import check_space, storage_failure, sync_all
from ..live import Progress
from ..mcts.extract import endings
from ..mcts.journal import Journal
from ..policy.folders import trained_with, write_facts
from ..policy.student import frozen_student, load_student
from ..policy.value_function import EngineValue
from ..policy.weights import load_sealed, save_sealed
from ..problems.load import opening
from ..problems.source import open_source, source_of
from ..report.folder import write_report
from ..rewards.combined import outcome
from ..types import Cost, Task
from .check import RunData, load_data
from .checkpoint import newest, newest_whole, unseal, write_manifest
from .disk import DiskPlan, disk_plan
from .expert import make_expert_trainer
from .fsdp import Gathered, check_unpacked, uses_fsdp
from .grpo import make_grpo_trainer
from .hub import check_hub, upload
from .model_card import write_model_card
from .models import (
    Economy,
    check_full,
    learning_rate,
    load_trained_state,
    make_trainable,
    merged,
    save_adapter,
    trained_state,
)
from .ppo import make_ppo_trainer
from .preflight import preflight
from .progress import UpdateProgress, tell_round, tell_tree
from .ranks import InStep, Ranks, Saved, SharedSource, leading
from .rows import RowsOfRound
from .run import RunFolder
from .size import RunSize
from .source import Interrupted, RoundSource, RoundStats
from .track import check_tracker, open_tracker

# What torch's writer of zip files and safetensors' say where the operating system refused a write.
REFUSED_WRITES = ("PytorchStreamWriter", "unexpected pos", "I/O error")
UNTRACKED = ("models", "teacher_tiers")  # lists of what could be used, not parameters of a run


class Run:
    """One training run: `load`, then `execute` in a folder.

    Args:
        config: the resolved configuration.
        stop: True once the user wants to end; the run then ends at the next safe place and can be resumed.
        progress: told about trees, rounds and evaluations.
        ranks: the processes that share the run, of which this is rank 0 (or one that `follow`s); None where it is alone.
    """

    def __init__(
        self,
        config: Config,
        stop: Callable[[], bool] = lambda: False,
        progress: Progress | None = None,
        ranks: Ranks | None = None,
    ) -> None:
        self.config, self.ranks = on_chains(config) if config.train.method == "ppo" else config, ranks
        self.stop = stop if ranks is None else lambda: stop() or ranks.stopped
        self.progress = progress if progress is not None else Progress(quiet=True)
        self.size = RunSize.of(self.config)
        self.train_seconds = 0.0
        self.best: tuple[float, int] | None = None
        self.ends: Counter[str] = Counter()

    # -- the whole run -----------------------------------------------------------------------------------------------

    def load(self) -> None:
        """Data and models; what is wrong with either shows before a folder is made."""
        check_tracker(self.config.train.track)
        self.load_data()
        self.load_models()
        self.collector = Collector(self.student, self.config, self.perplexity, self.stop)
        self.verifier = self.load_verifier()
        value = self.collector.value
        if isinstance(value, EngineValue) and not value.own:
            raise ConfigError(
                f"search.value is {self.config.search.value}, a head over a policy that training changes: train a network"
            )
        gc.freeze()  # what is loaded stays: full collections needn't walk the libraries' objects again

    def preflight(self) -> str:
        """What to expect, from a few questions. Raises TrainingError where the run would learn nothing."""
        found = preflight(self.student, self.config, self.tasks[: self.config.train.preflight], self.progress)
        found.check(self.config)
        return found.line(self.size)

    def opening(self) -> str:
        """What is about to run, in a few lines."""
        config, train = self.config, self.config.train
        method: str = train.method
        if method == "grpo" and train.grpo.negative_weight == 0:
            method = "grpo (positives-only: rows below their group's average have weight 0)"
            if train.grpo.weighted_sft:
                method = "weighted SFT on responses above their group's average (grpo without ratio and negatives)"
        replay = f"{len(self.demonstrations):,} demonstrations replayed"
        if train.demonstrations and not self.demonstrations:
            replay += " (train.demonstration_share decides)"
        if config.problems.hold_out == "structures" and train.student is None and self.student.spec.path == "package":
            replay += (
                "\nthe shipped student has seen every structure: warm one up with `sft` under problems.hold_out first"
            )
        return (
            f"student {self.student.title} ({self.adapter} weights trained), {method}, seed {config.seed}\n"
            f"{len(self.tasks):,} {config.problems.source} questions in {self.size.rounds} rounds, {train.groups} groups,"
            f" teachers: {config.teachers.tier}, {replay}"
        )

    def execute(self, folder: RunFolder, resume: bool = False) -> dict[str, Any] | None:
        """Train and report in `folder`. Returns the run card, or None when the user stopped it first."""
        quiet_libraries()
        self.folder, self.tracker, status = folder, open_tracker(self.config.train.track, folder.path), "failed"
        try:
            card = self.train_and_report(resume)
            status = "finished" if card is not None else "stopped"
            return card
        finally:
            self.tracker.finish(status)
            self.student.engine.close()

    def train_and_report(self, resume: bool) -> dict[str, Any] | None:
        """`execute` under its tracker."""
        self.began = time.perf_counter()
        # Before anything is drawn at random (LoRA's first weights are): a resumed run must draw the same.
        set_seed(self.config.library_seed)
        self.trainable = make_trainable(self.student.model, self.student.spec, self.adapter)
        checkpoint, facts = self.start_of(resume)
        start = int(facts.get("rounds_done", 0))
        plan = self.disk(self.size.checkpoints_from(start))
        check_space(self.folder.path, plan.total, f"what this run writes ({plan})")
        card = self.folder.read_card() if self.folder.card.exists() else self.new_card()
        # A resumed run goes on with what its student was told.
        told = self.student.opening
        self.student.opening = replace(told, system_prompt=card.get("system_prompt", told.system_prompt))
        self.tracker.parameters({key: value for key, value in card["config"].items() if key not in UNTRACKED})
        before = self.before(card)
        self.folder.forget_metrics_from(start)
        self.restore_best(facts)
        self.train_seconds = facts.get("training_seconds", 0.0)
        # What the processes before this one took to their last checkpoint counts too.
        self.began -= facts.get("total_seconds", 0.0)
        journal = Journal(self.folder.journal)
        for line in journal.damaged:
            self.progress.say(f"{line} doesn't fit its hash: its tree is searched again")
        self.journal = journal
        self.collector.keep_books(self.folder.path)
        try:
            self.train(journal, checkpoint)
        except Interrupted:
            return None
        finally:
            journal.close()
            # However the run ends, its card says what the teachers did and took.
            card |= self.collector.ledgers()
            self.folder.write_card(card)
        if self.stop():
            return None
        card["seconds"] = {
            "total": round(time.perf_counter() - self.began, 1),
            "training": round(self.train_seconds, 1),
        }
        return self.conclude(card, before)

    def start_of(self, resume: bool) -> tuple[Path | None, dict[str, Any]]:
        """The checkpoint to go on from and its facts; (None, {}) for the first round.

        A run whose best weights are lost goes on from the first round too: its trees are in the journal, so that training
        alone is done again, and comes to the same weights.
        """
        checkpoint, facts = newest_whole(self.folder.path, self.progress.say) if resume else (None, {})
        if checkpoint is not None and facts.get("fsdp", False) != uses_fsdp():
            before, now = ("under", "without") if facts.get("fsdp") else ("without", "under")
            raise ConfigError(
                f"checkpoint {checkpoint} was written {before} FSDP and this launch is {now} it, which can't read its"
                f" optimiser: launch {before} FSDP"
            )
        if facts.get("best") is not None:
            try:
                load_sealed(self.folder.best)
            except CheckpointError as error:
                self.progress.say(f"{error}: training again from the first round, on the trees that are there")
                unseal(self.folder.path)  # their best weights are not those that the new training keeps
                return None, {}
        return checkpoint, facts

    def load_data(self) -> None:
        """Training questions, demonstrations and the two held-out sets, disjoint by split."""
        data = self.data()
        self.demonstrations, self.tasks = data.demonstrations, data.questions
        self.test, self.validation = data.test, data.validation

    def data(self) -> RunData:
        """What is trained and evaluated on."""
        return load_data(self.config)

    def load_models(self) -> None:
        """The student and, for PRE, its frozen copy."""
        config = self.config
        if config.train.push_to_hub is not None:
            check_hub(config.train.push_to_hub)
        economy, rows = Economy.of(config, config.models[resolve_name(config)]), config.train.settings.batch_size
        economy.split(rows // self.rank_count, f"train.{config.train.method}.batch_size")
        start = config.train.student
        self.student = load_student(config, path=None if start is None else Path(start), opening=opening(config))
        self.adapter = config.train.adapter or self.student.spec.adapter
        check_full(self.student.model, self.student.spec, self.adapter)
        if uses_fsdp() and self.ranks is not None:
            check_unpacked(config, self.student.spec)
        if not self.student.engine.capabilities.trainable:
            self.student.engine.close()
            raise ConfigError(
                f"engine.backend is {config.engine.backend}, whose server takes no new weights: set train.adapter=lora and"
                " start it with --enable-lora and VLLM_ALLOW_RUNTIME_LORA_UPDATING=1, or set engine.backend=vllm"
            )
        self.perplexity: Perplexity | None = None
        if config.rewards.use_student_model and config.rewards.pre_weight > 0:
            frozen = frozen_student(self.student, config, shared=self.adapter == "lora")
            self.perplexity = Perplexity(frozen, config.search.max_tokens)

    def load_verifier(self) -> Verifier | None:
        """The process reward model that `train.grpo.credit: process` scores steps with."""
        train = self.config.train
        if train.method != "grpo" or train.grpo.credit != "process":
            return None
        if train.grpo.prm is None:
            raise ConfigError(
                "train.grpo.credit is process and train.grpo.prm is null: name a process reward model's folder"
            )
        from ..policy.prm_verifier import load_prm

        return load_prm(Path(train.grpo.prm), self.student, self.config)

    def new_card(self) -> dict[str, Any]:
        config = self.config
        return {
            "config": config.model_dump(mode="json"),
            "student": resolve_name(config),
            "started_from": config.train.student,
            "system_prompt": self.student.opening.system_prompt,
            "shots": self.student.opening.shots,
            "adapter": self.adapter,
            "learning_rate": learning_rate(config.train.settings, self.trainable),
            "method": config.train.method,
            "positives_only": config.train.method == "grpo" and config.train.grpo.negative_weight == 0,
            "seed": config.seed,
            "rounds": self.size.rounds,
            "questions": len(self.tasks),
            "demonstrations": len(self.demonstrations),
            "engine": self.student.engine.facts,
        }

    # -- evaluation --------------------------------------------------------------------------------------------------

    def evaluate(self, tasks: Sequence[Task], doing: str | None = None) -> Answers:
        """Greedy answers of the student as it is now; the problems are counted on `progress` as what it is `doing`."""
        model = self.student.model
        training = model.training
        model.eval()
        self.student.engine.set_policy(None, self.student.engine.version)
        shown: dict[str, Any] = {} if doing is None or not tasks else {"progress": self.progress, "doing": doing}
        answers = answer(
            self.student, tasks, max_tokens=self.config.search.max_tokens, custom=self.collector.custom, **shown
        )
        self.student.engine.forget()
        self.student.engine.rest()
        model.train(training)
        return answers

    def keep_answers(self, when: str, answers: Answers) -> None:
        """What the held-out problems were answered, for the problems that flipped."""
        if self.test:
            responses = [samples[0] if samples else "" for samples in answers.responses]  # "": its prompt was too long
            self.folder.write_answers(when, self.test, responses, answers.first)

    def keep(self, accuracy: float, rounds_done: int) -> None:
        """Remember the weights of now as the best so far."""
        self.best = (accuracy, rounds_done)
        save_sealed(trained_state(self.trainable), self.folder.best)

    def before(self, card: dict[str, Any]) -> list[bool]:
        """The untrained student's results on the test problems; a resumed run reads them from its card."""
        if "before" not in card:
            answers = self.evaluate(self.test, "held-out problems before training")
            self.keep_answers("before", answers)
            card["before"] = summary(answers, self.test)
            if self.validation:
                answers = self.evaluate(self.validation, "validation before training")
                card["validation_before"] = self.score(answers)
            self.folder.write_card(card)
        self.validation_before = card.get("validation_before")
        return card["before"]["correct"]

    def validate(self, rounds_done: int) -> float | None:
        """The score on validation problems after `rounds_done` rounds; the best weights so far are kept."""
        if not self.validation:
            return None
        answers = self.evaluate(self.validation)
        accuracy = self.score(answers)
        if self.config.train.keep_best and (self.best is None or accuracy > self.best[0]):
            self.keep(accuracy, rounds_done)
        return accuracy

    def score(self, answers: Answers) -> float:
        """What the best weights are chosen by: accuracy, or with a reward of the user's own the mean outcome."""
        weights = self.config.rewards
        if not weights.own:
            return sum(answers.first) / len(answers.first)
        pairs = zip(answers.grades, answers.rewards, strict=True)
        known = [outcome(grade, reward, weights) for grade, reward in pairs if reward is not None]
        return sum(value or 0.0 for value in known) / len(known)

    def restore_best(self, facts: dict[str, Any]) -> None:
        """Go on from a checkpoint's best; at the start the untrained student is the one to beat."""
        if facts.get("best") is not None:
            self.best = (facts["best"][0], facts["best"][1])
        elif self.config.train.keep_best and self.validation_before is not None:
            self.keep(self.validation_before, 0)

    # -- training ----------------------------------------------------------------------------------------------------

    def train(self, journal: Journal, checkpoint: Path | None) -> None:
        """Run the remaining rounds through the method's trainer."""
        watch = _RoundWatch(self)
        kind = SharedSource if self.ranks is not None else RoundSource
        source = kind(
            self.student,
            self.config,
            self.collector,
            self.tasks,
            self.demonstrations,
            journal,
            size=self.size,
            verifier=self.verifier,
            on_tree=self.on_tree,
            on_round=watch.on_round,
            stop=self.stop,
        )
        watch.settle = source.settle
        rows: Any = {"grpo": source.grpo, "ppo": source.ppo}.get(self.config.train.method, source.expert)
        callbacks: list[Any] = [watch]
        if isinstance(source, SharedSource):
            assert self.ranks is not None
            source.ranks = self.ranks
            self.ranks.tell((str(self.folder.path), None if checkpoint is None else str(checkpoint)))
            self.ranks.listening = False
            rows = leading(rows, self.ranks, self.config.train.settings.batch_size)
            callbacks = [Saved(), watch, InStep(self.ranks)]
        self.progress.start(self.size.questions, len(journal.records))
        trainer = self.make_trainer(rows, self.folder.path, callbacks)
        began = time.perf_counter()
        try:
            trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
            if self.ranks is not None:
                self.ranks.listening = True
        except (OSError, ValueError, RuntimeError) as error:
            if failed_write(error):
                raise StorageError(
                    f"a checkpoint in {self.folder.path} can't be written ({str(error).splitlines()[0][:150]}): free some"
                    " space, then go on with --resume"
                ) from error
            if checkpoint is not None and trainer.state.global_step == 0:
                raise CheckpointError(
                    f"checkpoint {checkpoint} can't be loaded ({error}): use an earlier one"
                ) from error
            raise
        finally:
            source.close()
            self.progress.stop()
        self.train_seconds += time.perf_counter() - began

    def make_trainer(self, rows_of_round: RowsOfRound, place: Path, callbacks: list[Any]) -> Any:
        """The method's trainer, fed by `rows_of_round`; its checkpoints go to `place`."""
        config, train = self.config, self.config.train
        common: dict[str, Any] = {
            "rounds": self.size.rounds,
            "rows_of_round": rows_of_round,
            "output_dir": place,
            "save_every_rounds": self.size.save_every_rounds,
            "seed": config.library_seed,
            "callbacks": callbacks,
            "economy": Economy.of(config, self.student.spec, self.student.model),
        }
        tokenizer, model = self.student.tokenizer, self.trainable
        if uses_fsdp():
            if self.ranks is None:
                raise ConfigError(
                    "FSDP shards the weights of `train` alone, over 2 or more processes: launch without it"
                )
            # The trainer cuts its model up in place: an engine keeps the whole one, and the trainer gets a copy.
            whole = self.trainable if self.ranks.searches else None
            model = copy.deepcopy(self.trainable) if self.ranks.searches else self.trainable
            common["callbacks"] = [Gathered(whole, self.size.updates_per_round), *callbacks]
        if not train.supervised:
            common |= {"rows_per_round": self.size.rows_per_round, "max_completion": config.search.max_tokens}
        trainer: Any
        if train.method == "grpo":
            trainer = make_grpo_trainer(model, tokenizer, train.grpo, ranks=self.rank_count, **common)
        elif train.method == "ppo":
            lora = self.student.spec.lora if self.adapter == "lora" else None
            trainer = make_ppo_trainer(
                self.trainable, tokenizer, train.ppo, policy=self.student.model, lora=lora, **common
            )
        else:
            settings: Any = train.settings
            trainer = make_expert_trainer(model, tokenizer, settings, ranks=self.rank_count, **common)
        trainer.remove_callback(PrinterCallback)
        return trainer

    @property
    def rank_count(self) -> int:
        """How many processes train together."""
        return 1 if self.ranks is None else self.ranks.size

    def disk(self, checkpoints: int = 1) -> DiskPlan:
        """What the run writes with so many checkpoints."""
        model: Any = self.student.model
        dtype = self.config.train.merge_dtype
        saved = model.get_input_embeddings().weight.dtype if dtype == "auto" else getattr(torch, dtype)
        parameters = [p for p in self.trainable.parameters() if p.requires_grad]
        trained, shards = sum(p.numel() * p.element_size() for p in parameters), None
        if uses_fsdp():
            # accelerate shards weights in fp32 where the products are in bfloat16.
            upcast = Economy.of(self.config, self.student.spec, model).autocast
            shards = sum(p.numel() * (4 if upcast else p.element_size()) for p in parameters)
        return disk_plan(
            self.config.train,
            checkpoints,
            trained=trained,
            student=model.num_parameters() * saved.itemsize if self.adapter == "lora" else trained,
            layers=model.config.num_hidden_layers,
            lora=self.adapter == "lora",
            shards=shards,
        )

    def on_tree(self, tree: GradedTree) -> None:
        self.ends += endings(tree.tree)
        tell_tree(self.progress, tree)

    def record(self, line: dict[str, Any]) -> None:
        """Write a line of metrics, and tell the tracker."""
        self.folder.append_metrics(line)
        self.tracker.log(line, (line["round"] + 1) * self.size.questions_per_round)

    # -- the end -----------------------------------------------------------------------------------------------------

    def conclude(self, card: dict[str, Any], before: list[bool]) -> dict[str, Any]:
        """Take the best weights, evaluate them on the test problems once, write everything."""
        kept = "last"
        if self.best is not None:
            load_trained_state(self.trainable, load_sealed(self.folder.best))
            kept = f"best on validation ({self.best[0]:.3f} after round {self.best[1]})"
            if self.best[1] == 0:
                kept = f"the student as it was: no checkpoint beat its validation score of {self.best[0]:.3f}"
        self.student.model.eval()
        after = self.evaluate(self.test, "held-out problems after training")
        self.keep_answers("after", after)
        metrics = self.folder.read_metrics()
        total = Cost()
        for line in metrics:
            if "cost" in line:
                total.add(Cost(**line["cost"]))
        card["after"] = summary(after, self.test)
        gain = paired_bootstrap(after.first, before, groups=repeats(self.test)) if card["after"]["accuracy"] else None
        card["gain"] = None if gain is None else asdict(gain)
        card["reward_gain"] = reward_gain(card["before"], card["after"], self.test)
        card["failed_rewards"] = sum(line.get("failed_rewards", 0) for line in metrics)
        card["kept"] = kept
        card["search_cost"] = total.as_dict()
        card["ends"] = dict(self.ends)
        self.save_student()
        base = self.config.train.student or self.student.spec.path
        for place in (self.folder.student, self.folder.adapter):
            if place.is_dir():
                write_model_card(place, card, base, adapter=place == self.folder.adapter)
        self.folder.write_card(card)
        write_report(self.folder.path)
        test = {name: card[name]["accuracy"]["value"] for name in ("before", "after") if card[name]["accuracy"]}
        self.tracker.log({"test": test, "total": card["search_cost"]}, self.size.questions)
        folder = self.folder
        self.tracker.artifacts([folder.card, folder.metrics, folder.report, folder.adapter])
        if self.config.train.push_to_hub is not None:
            parts = {".": folder.student} | ({"adapter": folder.adapter} if self.adapter == "lora" else {})
            card["uploaded"] = upload(self.config.train.push_to_hub, parts)
            self.folder.write_card(card)
        return card

    def save_student(self) -> None:
        """`student/` is a plain folder that transformers loads; adapters go to `adapter/` too, as they were trained."""
        model: Any = self.student.model
        spec = trained_with(self.student, open_source(self.config).name)
        if self.adapter == "lora":
            save_adapter(model, self.student.spec.lora, self.folder.adapter)
            write_facts(self.folder.adapter, self.student.name, spec, adapter=True)
            sync_all(self.folder.adapter)
            model = merged(model, self.config.train.merge_dtype)
        model.save_pretrained(str(self.folder.student))
        self.student.tokenizer.save_pretrained(self.folder.student)
        write_facts(self.folder.student, self.student.name, spec)
        sync_all(self.folder.student)  # the card that says "finished" is written after it


class _RoundWatch(TrainerCallback):
    """Seals checkpoints, measures validation, writes metrics, stops on request and on a loss that is not finite."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.pending: dict[str, Any] = {}
        self.began = time.perf_counter()
        self.updates = UpdateProgress(run.progress, run.size.rounds)
        self.settle: Callable[[], bool] = lambda: True

    def on_round(self, stats: RoundStats) -> None:
        self.pending = stats.as_dict()
        self.updates.begin(stats.round, stats.updates)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.updates.step()
        if control.should_save or state.global_step == state.max_steps:
            check_space(self.run.folder.path, self.run.disk().next, "the next checkpoint")
        if self.run.stop():
            control.should_training_stop = True
        if state.global_step == state.max_steps:
            control.should_save = True

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any) -> None:
        logs = dict(logs or {})
        for name in ("loss", "grad_norm", "critic_loss"):
            value = logs.get(name)
            if value is not None and not math.isfinite(float(value)):
                saved = newest(self.run.folder.path)
                where = f"start from the last good checkpoint, {saved}" if saved is not None else "start again"
                raise TrainingError(
                    f"{name} is {value} at update {state.global_step}: lower the learning rate and {where}"
                )
        if not self.pending:
            return
        keep = {k.removeprefix("train/"): v for k, v in logs.items() if isinstance(v, int | float)}
        line = {**self.pending, "update": state.global_step, **{k: v for k, v in keep.items() if k not in self.pending}}
        self.run.record(line)
        done = line["round"] + 1
        if done % self.run.config.train.log_interval == 0 or done == self.run.size.rounds:
            tell_round(self.run.progress, line, self.run.size.rounds)
        self.pending = {}

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        run = self.run
        rounds_done = state.global_step // run.size.updates_per_round
        accuracy = run.validate(rounds_done)
        if accuracy is not None:
            run.record({"round": rounds_done - 1, "validation_accuracy": accuracy})
            what = "outcome" if run.config.rewards.own else "accuracy"
            run.progress.say(f"checkpoint after round {rounds_done}: validation {what} {accuracy:.3f}")
        # What was searched with weights that no checkpoint has must be whole before this one counts: a resumed run couldn't
        # search it again.
        if not self.settle():
            return
        folder = run.folder.path / f"checkpoint-{state.global_step}"
        # A checkpoint says that its rounds are done: their trees and figures are on the disk before it does.
        run.journal.sync()
        run.folder.sync_metrics()
        write_manifest(
            folder,
            {
                "rounds_done": rounds_done,
                "questions_done": min(rounds_done * run.size.questions_per_round, len(run.tasks)),
                "update": state.global_step,
                "fsdp": uses_fsdp(),
                "best": list(run.best) if run.best is not None else None,
                "training_seconds": run.train_seconds + time.perf_counter() - self.began,
                "total_seconds": time.perf_counter() - run.began,
                "config": run.config.model_dump(mode="json"),
            },
        )


def failed_write(error: Exception) -> bool:
    """Whether a library failed because the operating system refused to write: each says so in its own way."""
    known = isinstance(error, OSError) and storage_failure(error) is not None
    return known or any(words in str(error) for words in REFUSED_WRITES)


def on_chains(config: Config) -> Config:
    """PPO's questions: `train.ppo.samples` responses each, drawn from the root and never searched further."""
    train = config.train.model_copy(
        update={"groups": "chain", "chain_samples": config.train.ppo.samples, "requeue_limit": 0}
    )
    return config.model_copy(update={"train": train})


def summary(answers: Answers, tasks: Sequence[Task]) -> dict[str, Any]:
    """Accuracy with its interval (over `distinct` problems; None without gold), cost, and each problem's result for paired
    comparisons. With a reward of the user's own its mean, too, each problem's, and how many failed."""
    right, total, distinct = sum(answers.first), len(answers.first), len(set(repeats(tasks)))
    known = [reward for reward in answers.rewards if reward is not None]
    rewarded = {
        "reward": asdict(mean_interval(known)),
        "rewards": answers.rewards,
        "failed_rewards": total - len(known),
    }
    return {
        "accuracy": asdict(wilson(right, total, distinct))
        if any(task.gold or source_of(task.problem).gold_free for task in tasks)
        else None,
        "problems": total,
        "distinct": distinct,
        "tokens": answers.tokens,
        "seconds": round(answers.seconds, 2),
        "too_long": answers.skipped,
        "correct": answers.first,
        **(rewarded if known else {}),
    }


def reward_gain(before: dict[str, Any], after: dict[str, Any], tasks: Sequence[Task]) -> dict[str, Any] | None:
    """The paired gain in the user's own reward, over the problems where it failed neither time; None without one."""
    pairs = zip(before.get("rewards", ()), after.get("rewards", ()), repeats(tasks), strict=False)
    known = [(a, b, group) for b, a, group in pairs if b is not None and a is not None]
    if not known:
        return None
    later, earlier, groups = zip(*known, strict=True)
    numbers: dict[int, int] = {}
    return asdict(paired_bootstrap(later, earlier, groups=[numbers.setdefault(g, len(numbers)) for g in groups]))


def quiet_libraries() -> None:
    """Keep libraries' notices about themselves out of the user's terminal; their errors still show."""
    os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    for name in ("transformers", "trl", "accelerate", "peft", "datasets"):
        logging.getLogger(name).setLevel(logging.ERROR)
