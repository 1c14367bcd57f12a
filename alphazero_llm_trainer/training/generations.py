"""Generations: trees and training from the champion, a value and a PRM on those trees, an arena, a gate; over again.

A generation's folder holds `stages.json`, the stages that are finished with what they found, written in one move. A
stage that isn't there is done again, from its start or, the policy's, from its own checkpoints; every stage depends on
the configuration and on earlier stages alone. So a loop that was killed ends as one that was not.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

from transformers import set_seed

from ..config.load import Config, resolve_name, validate
from ..errors import CheckpointError, ConfigError
from ..eval.cells import StoppedError, questions_hash
from ..files import read_object, write_json
from ..live import Progress
from ..mcts.driver import derive_seed
from ..policy.folders import ADAPTER_CONFIG, keeps_base
from ..policy.student import load_student
from ..policy.value_function import FOLDER as VALUE
from ..policy.value_function import policy_fingerprint
from ..problems.load import tasks_of
from ..problems.source import open_source
from ..types import Task
from .arena import Decision, Side, contest, costs, gate, meet, shown
from .check import demonstrations
from .contamination import Contamination
from .stages import (
    QUESTIONS,
    LoopStopped,
    Stages,
    emptied,
    learn_policy,
    learn_prm,
    learn_value,
    trained,
    write_questions,
)

CARD, DEMONSTRATIONS = "loop.json", "demonstrations.jsonl"

Stage = Callable[[str, Callable[[], dict[str, Any]]], dict[str, Any]]  # name, work -> what it found


class Loop:
    """A loop in one folder: `load`, then `execute`.

    Args:
        config: the resolved configuration.
        out: the loop's folder.
        stop: True once the user wants to end; the stage under way then ends at its next safe place.
        progress: told about every stage.
    """

    def __init__(
        self, config: Config, out: Path, stop: Callable[[], bool] = lambda: False, progress: Progress | None = None
    ) -> None:
        self.config, self.out, self.stop = config, out, stop
        self.progress = progress if progress is not None else Progress(quiet=True)
        self.source = open_source(config)

    # -- what there is -------------------------------------------------------------------------------------------------

    def load(self) -> None:
        """The first student and the data; what is wrong with either shows before a folder is made."""
        config, loop = self.config, self.config.loop
        start = None if config.train.student is None else Path(config.train.student)
        if config.train.lag:
            raise ConfigError("train.lag is 1 and a loop searches by itself: set train.lag=0")
        if keeps_base(config) and start is not None and not (start / ADAPTER_CONFIG).is_file():
            raise ConfigError(
                f"--model is the folder {start}, and generations that are adapters find their base by its name: set"
                f" models.{resolve_name(config)}.path={start} instead"
            )
        student = load_student(config, path=start)
        student.engine.close()
        self.first = Side(0, start, None, None, policy_fingerprint(student.model))
        self.demonstrations = demonstrations(config)
        last = config.train.first_question + loop.generations * loop.questions - 1
        if not self.source.endless:
            # Revisited questions need none of their own, but how many there will be isn't known.
            tasks_of(config, "train", 1, len(self.demonstrations) + last)
        self.arena(1)

    def opening(self) -> str:
        """What is about to run, in a few lines."""
        loop, trained = self.config.loop, ["policy"]
        student = self.config.train.student or resolve_name(self.config)
        trained += [f"value ({loop.value})"] * (loop.value != "none") + ["PRM"] * loop.prm
        return (
            f"student {student}, {self.config.train.method}, seed {self.config.seed}\n"
            f"{loop.generations} generations of {loop.questions:,} {self.source.name} questions; trained on the trees:"
            f" {', '.join(trained)}; arena: {loop.arena_size:,} problems, greedy and {loop.search}, at most"
            f" {loop.budget_tokens} tokens each"
        )

    def arena(self, number: int) -> list[Task]:
        """A generation's arena problems: fresh ones where the problems are generated, else always the same."""
        size = self.config.loop.arena_size
        start = (number - 1) * size if self.source.endless else 0
        return tasks_of(self.config, "arena", size, start)

    def folder(self, number: int) -> Path:
        return self.out / f"generation-{number:03d}"

    def side(self, number: int, stages: Stages) -> Side:
        """The candidate of a generation."""
        folder, policy = self.folder(number), stages.facts["policy"]
        prm, value = (folder / name if stages.facts.get(name, {}).get("trained") else None for name in ("prm", "value"))
        own = stages.facts.get("verifier", {}).get("chosen")
        return Side(number, trained(folder / "policy", self.config), prm, value, policy["weights"], own)

    # -- the whole loop ------------------------------------------------------------------------------------------------

    def execute(self) -> dict[str, Any]:
        """All generations, then the test split. Returns the run card. Raises LoopStopped."""
        self.out.mkdir(parents=True, exist_ok=True)
        if not (self.out / DEMONSTRATIONS).exists():
            write_questions(self.out / DEMONSTRATIONS, [("demonstration", task) for task in self.demonstrations])
        self.card: dict[str, Any] = self.new_card()
        champion, used = self.first, self.config.train.first_question
        known: dict[str, str] = {}  # what the questions of earlier generations last came out as
        for number in range(1, self.config.loop.generations + 1):
            record, champion = self.generation(number, champion, used, known)
            used += record["questions"]["fresh"]
            self.card["generations"].append(record)
            self.card["champion"] = champion.generation
            write_json(self.out / CARD, self.card)
            self.progress.say(
                f"generation {number}: {record['decision']}; {record['why']}; champion: generation {champion.generation}"
            )
        self.conclude(champion)
        return self.card

    def new_card(self) -> dict[str, Any]:
        config = self.config
        card = {
            "config": config.model_dump(mode="json"),
            "seed": config.seed,
            "student": resolve_name(config),
            "started_from": {"folder": config.train.student, "weights": self.first.weights},
            "demonstrations": {"problems": len(self.demonstrations), "sha256": questions_hash(self.demonstrations)},
            "generations": [],
            "champion": 0,
        }
        if (self.out / CARD).is_file():
            before = read_loop(self.out)["started_from"]["weights"]
            if before != self.first.weights:
                raise CheckpointError(
                    f"loop {self.out} was started from a student with other weights than"
                    f" {config.train.student or resolve_name(config)} has now: restore that student or start another loop"
                )
        write_json(self.out / CARD, card)
        return card

    def generation(self, number: int, champion: Side, used: int, known: dict[str, str]) -> tuple[dict[str, Any], Side]:
        """Generation `number` from `champion` on; returns its record and the champion after it."""
        stages, folder = Stages(self.folder(number)), self.folder(number)
        seed = derive_seed(self.config.seed, "generation", number) % 2**31
        tasks, revisited = self.questions(number, used, known)
        config = self.settings(seed, len(tasks), used, champion)
        stage = self.stage(stages, f"generation {number}/{self.config.loop.generations}: ", seed)
        policy = stage(
            "policy", lambda: learn_policy(config, folder / "policy", tasks, champion, self.stop, self.progress)
        )
        known |= policy["outcomes"]
        fresh = len(tasks) - revisited
        record: dict[str, Any] = {
            "generation": number,
            "seed": seed,
            "from": champion.generation,
            "weights": policy["weights"],
            "kept": policy["kept"],
            "questions": {"fresh": fresh, "first": used, "revisited": revisited, "sha256": questions_hash(tasks)}
            | policy["counts"],
            "costs": {"policy": policy["cost"] | {"seconds": policy["seconds"]}},
        }
        if policy["weights"] in (None, champion.weights):
            decision = Decision(False, f"there is no new candidate: {policy['kept']}")
        else:
            decision = self.judged(record, stages, stage, config, champion)
        record |= {"decision": "promoted" if decision.promoted else "rolled back", "why": decision.why}
        return record, self.side(number, stages) if decision.promoted else champion

    def judged(self, record: dict[str, Any], stages: Stages, stage: Stage, config: Config, champion: Side) -> Decision:
        """The candidate's value and PRM, its arena and the gate; `record` takes what they found."""
        number, folder = record["generation"], self.folder(record["generation"])
        bare = self.side(number, stages)
        if config.loop.value != "none":
            facts = stage("value", lambda: learn_value(config, folder / "value", bare, self.stop, self.progress))
            record["value"], record["costs"]["value"] = facts, {"seconds": facts["seconds"]}
        if config.loop.prm:
            facts = stage("prm", lambda: learn_prm(config, folder / "prm", bare, self.stop, self.progress))
            record["prm"], record["costs"]["prm"] = facts, {"seconds": facts["seconds"]}
        trained = self.side(number, stages)
        record["verifier"] = stage("verifier", lambda: self.verifier(trained))
        record["costs"]["verifier"] = {"seconds": record["verifier"]["seconds"]}
        record["contamination"] = stage("contamination", lambda: self.contamination(number))
        sides = {"champion": champion, "candidate": self.side(number, stages)}
        cells = self.duel(stage, sides, self.arena(number))
        found = contest(cells, "champion", "candidate", self.config.seed)
        record["costs"] |= costs(cells)
        record["arena"] = shown(cells, found)
        return gate(found["greedy"], found["search"], self.config.loop.margin)

    def stage(self, stages: Stages, prefix: str, seed: int) -> Stage:
        """What runs a stage once, unless the user has asked to stop."""

        def once(name: str, work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
            if name not in stages.facts:
                if self.stop():
                    raise LoopStopped
                self.progress.say(prefix + name)
            set_seed(seed)
            return stages.once(name, work)

        return once

    # -- stages --------------------------------------------------------------------------------------------------------

    def questions(self, number: int, used: int, known: dict[str, str]) -> tuple[list[Task], int]:
        """A generation's training questions in order, and how many of them are revisited.

        Of the earlier generations' questions those whose last outcomes were mixed are revisited, solved and hopeless ones
        never; the rest are fresh.
        """
        loop, start = self.config.loop, len(self.demonstrations)
        mixed = sorted(name for name, found in known.items() if found == "mixed")
        rng = Random(derive_seed(self.config.seed, "revisit", number))
        again = rng.sample(mixed, min(len(mixed), round(loop.revisit_share * loop.questions)))
        tasks: list[Task] = []
        if again:
            first = self.config.train.first_question
            seen = tasks_of(self.config, "train", used - first, start + first)
            by_id = {task.problem.id: task for task in seen}
            tasks = [by_id[name] for name in again]
        tasks += tasks_of(self.config, "train", loop.questions - len(tasks), start + used)
        rng.shuffle(tasks)
        return tasks, len(again)

    def settings(self, seed: int, questions: int, first: int, champion: Side) -> Config:
        """The configuration of a generation's own stages."""
        train = self.config.train
        own: dict[str, Any] = {
            "student": None if champion.student is None else str(champion.student),
            "num_examples": questions,
            "first_question": first,
            "eval_size": 0,  # the test split is read once, at the end of the loop
        }
        if train.grpo.credit == "process" and train.grpo.prm is None:
            credit = {"credit": "group"} if champion.prm is None else {"prm": str(champion.prm)}
            own["grpo"] = train.grpo.model_copy(update=credit)
        if self.config.loop.value != "none":
            own["value"] = train.value.model_copy(update={"kind": self.config.loop.value})
        update: dict[str, Any] = {"seed": seed, "train": train.model_copy(update=own)}
        if self.config.loop.guide and champion.value is not None and self.config.loop.value == "network":
            update["search"] = self.config.search.model_copy(update={"value": str(champion.value)})
        return self.config.model_copy(update=update)

    def contamination(self, number: int, test: Sequence[Task] = ()) -> dict[str, Any]:
        """Look for held-out problems in all training files so far."""
        held_out: dict[str, Sequence[Task]] = {
            "arena": [task for one in range(1, number + 1) for task in self.arena(one)],
            "validation": tasks_of(self.config, "validation", self.config.train.validation_size),
        }
        if test:
            held_out["test"] = test
        files = [self.out / DEMONSTRATIONS, *sorted(self.out.glob("generation-*/policy/journal.jsonl"))]
        files += sorted(self.out.glob(f"generation-*/*/{QUESTIONS}"))
        return Contamination(held_out).check(self.out, [path for path in files if path.is_file()])

    def verifier(self, side: Side) -> dict[str, Any]:
        """Which of its value and PRM a candidate searches under: what is right most often on validation problems.

        Neither, where `loop.verifier` alone is as good; without validation problems the PRM, where there is one. A value
        that did not beat chance on its own held-out questions isn't tried.
        """
        size = self.config.train.validation_size
        names: list[str | None] = [None]
        if side.value is not None and VALUE.read_card(side.value)["earned"]:
            names.append("value")
        if side.prm is not None:
            names.append("prm")
        if not size or len(names) == 1:
            return {"chosen": names[-1], "validation": {}}
        tasks = tasks_of(self.config, "validation", size)
        cells = {name: self.met(replace(side, own=name), tasks, self.config.loop.search) for name in names}
        right = {name: cell["outcomes"].count("1") for name, cell in cells.items()}
        found = {
            cell["verifier"]: {"right": right[name], "problems": len(tasks), **costs({"": cell})[""]}
            for name, cell in cells.items()
        }
        return {"chosen": max(names, key=right.__getitem__), "validation": found}

    def met(self, side: Side, tasks: Sequence[Task], method: str) -> dict[str, Any]:
        """A cell of one side. Raises LoopStopped."""
        try:
            return meet(side, self.config, tasks, method, self.stop)
        except StoppedError:
            raise LoopStopped from None

    def duel(self, stage: Stage, sides: dict[str, Side], tasks: Sequence[Task]) -> dict[str, dict[str, Any]]:
        """The sides' cells, greedy and searching, each a stage of its own."""
        return {
            f"{who} {kind}": stage(f"{who} {kind}", lambda side=side, method=method: self.met(side, tasks, method))  # type: ignore[misc]
            for kind, method in (("greedy", "greedy"), ("search", self.config.loop.search))
            for who, side in sides.items()
        }

    # -- the end -------------------------------------------------------------------------------------------------------

    def conclude(self, champion: Side) -> None:
        """The champion's copy; then the test split, read for the first time: champion against first student."""
        loop = self.config.loop
        if champion.generation:
            part = emptied(self.out / "champion.part")
            student, adapter = champion.student, None
            if student is not None and (student / ADAPTER_CONFIG).is_file():
                student, adapter = student.parent / "student", student  # the plain folder that was merged beside it
            sources = {"student": student, "adapter": adapter, "prm": champion.prm, "value": champion.value}
            for name, source in sources.items():
                if source is not None:
                    shutil.copytree(source, part / name)
            shutil.rmtree(self.out / "champion", ignore_errors=True)
            part.rename(self.out / "champion")
        if loop.test_size:
            tasks = tasks_of(self.config, "test", loop.test_size)
            stage = self.stage(
                Stages(self.out / f"test-{loop.generations:03d}"), "test split: ", self.config.library_seed
            )
            self.card["contamination"] = stage("contamination", lambda: self.contamination(loop.generations, tasks))
            cells = self.duel(stage, {"first student": self.first, "champion": champion}, tasks)
            found = contest(cells, "first student", "champion", self.config.seed)
            self.card["test"] = shown(cells, found) | {"costs": costs(cells)}
        write_json(self.out / CARD, self.card)


def read_loop(out: Path) -> dict[str, Any]:
    """loop.json. Raises CheckpointError where there is none."""
    try:
        card = read_object(out / CARD)
    except OSError as error:
        raise CheckpointError(f"--resume found no loop in {out}: leave --resume out to start one there") from error
    except ValueError as error:
        raise CheckpointError(f"loop {out} has a broken {CARD}: start another one") from error
    if not {"config", "started_from"} <= card.keys():
        raise CheckpointError(f"loop {out} has a broken {CARD}: start another one")
    return card


def stored_config(out: Path) -> Config:
    """The configuration that a loop was started with."""
    return validate(read_loop(out)["config"])
