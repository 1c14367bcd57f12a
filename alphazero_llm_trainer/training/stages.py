"""The stages of a generation that learn: the policy on its own trees, then a value and a PRM on the same trees."""

from __future__ import annotations

import gc
import json
import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from ..config.load import Config
from ..errors import CheckpointError, DataError, TrainingError
from ..files import FolderLock, read_object, write_json, write_whole
from ..live import Progress
from ..mcts.journal import read
from ..mcts.tree import Tree
from ..policy.folders import keeps_base
from ..policy.student import load_student
from ..policy.value_function import policy_fingerprint
from ..types import Cost, Task
from .arena import Side
from .check import RunData, load_data
from .loop import Run
from .run import RunFolder
from .source import outcome
from .value_run import Question, read_questions, save_value, split_by_question, train_value

if TYPE_CHECKING:
    from .prm_data import StepSet

Stop = Callable[[], bool]

STAGES, QUESTIONS = "stages.json", "questions.jsonl"
SMALLEST = 10  # questions that a value or a PRM is trained on


class LoopStopped(Exception):
    """The user asked to stop; finished stages stay."""


class GenerationRun(Run):
    """A training run on given questions."""

    def __init__(self, config: Config, stop: Callable[[], bool], progress: Progress, tasks: Sequence[Task]) -> None:
        super().__init__(config, stop, progress)
        self.given = list(tasks)

    def data(self) -> RunData:
        """See `Run.data`."""
        return load_data(self.config, self.given)


class Stages:
    """The finished stages of a folder."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / STAGES
        folder.mkdir(parents=True, exist_ok=True)
        self.facts: dict[str, Any] = {}
        if self.path.is_file():
            try:
                self.facts = read_object(self.path)
            except ValueError as error:
                raise CheckpointError(f"{self.path} is not JSON: remove that generation's folder") from error

    def once(self, name: str, work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """What stage `name` found, now or before; `seconds` is its last attempt's wall-clock."""
        if name not in self.facts:
            began = time.perf_counter()
            found = work()
            self.facts[name] = {"seconds": round(time.perf_counter() - began, 1)} | found
            write_json(self.path, self.facts)
        # Models and trainers refer to themselves; what a run froze is theirs too.
        gc.unfreeze()
        gc.collect()
        return self.facts[name]


# -- learning ----------------------------------------------------------------------------------------------------------


def learn_policy(
    config: Config, path: Path, tasks: Sequence[Task], champion: Side, stop: Stop, progress: Progress
) -> dict[str, Any]:
    """Trees with the champion and training on them; the facts of the candidate, whose weights are None where it failed."""
    folder, failed = RunFolder(path), None
    with FolderLock(path):
        card = folder.read_card() if folder.card.exists() else {}
        if "after" not in card:
            champion.load(config).engine.close()
            run = GenerationRun(config, stop, progress, tasks)
            run.load()
            try:
                done = run.execute(folder, resume=True)
            except TrainingError as error:
                failed = str(error)
            else:
                if done is None:
                    raise LoopStopped
                card = done
    facts: dict[str, Any] = {"weights": None, "kept": failed, "cost": Cost().as_dict()}
    if failed is None:
        student = load_student(config, path=trained(path, config))
        student.engine.close()
        facts = {
            "weights": policy_fingerprint(student.model),
            "kept": card["kept"],
            "cost": {key: value for key, value in card["search_cost"].items() if key != "seconds"},
            "training_seconds": card["seconds"]["training"],
        }
    outcomes = outcomes_of(folder.journal)
    counts = {kind: sum(found == kind for found in outcomes.values()) for kind in ("solved", "hopeless", "mixed")}
    counts["extended"] = sum(record["extensions"] > 0 for record in read(folder.journal))
    return facts | {"counts": counts, "outcomes": outcomes}


def trained(run: Path, config: Config) -> Path:
    """The folder that a run's student is loaded from again."""
    folder = RunFolder(run)
    return folder.adapter if keeps_base(config) else folder.student


def learn_value(config: Config, out: Path, side: Side, stop: Stop, progress: Progress) -> dict[str, Any]:
    """A value network on the generation's trees, in its folder."""
    emptied(out)
    student = side.load(config)
    settings = config.train.value
    with closing(student.engine):
        questions = read_questions([out.parent / "policy"])
        try:
            parts = split(questions, settings.validation_share, settings.test_share, out)
            valued = train_value(student, config, parts, out, watching(stop), progress)
        except DataError as error:
            return untrained(error)
    save_value(out, valued, student, config, {"generation": side.generation})
    return {
        "trained": True,
        "questions": valued.questions,
        "data_sha256": valued.data,
        "earned": valued.verdict.earned,
        "verdict": valued.verdict.why,
    }


def learn_prm(config: Config, out: Path, side: Side, stop: Stop, progress: Progress) -> dict[str, Any]:
    """A process reward model on the generation's trees, in its folder."""
    from .prm_data import read_sets, spoiled_demonstrations
    from .prm_run import save_prm, train_prm

    emptied(out)
    watch = watching(stop)
    student = side.load(config)
    settings = config.train.prm
    with closing(student.engine):
        sets = read_sets([out.parent / "policy"], student, settings)
        try:
            parts = split(sets, settings.validation_share, settings.test_share, out)
            parts[0].extend(spoiled_demonstrations(student, config, {judged.text for judged in sets}))
            trained = train_prm(student, config, parts, out, lambda kind, line: watch(line), progress)
        except DataError as error:
            return untrained(error)
    save_prm(out, trained, student, config, {"generation": side.generation})
    return {
        "trained": True,
        "questions": trained.questions,
        "pairs": trained.pairs,
        "data_sha256": trained.data,
        "validation_pairs": trained.validation,
    }


T = TypeVar("T", Question, "StepSet")


def split(found: Sequence[T], validation: float, test: float, out: Path) -> tuple[list[T], list[T], list[T]]:
    """Questions as training, validation and test, which are written down for the contamination check."""
    if len(found) < SMALLEST:
        raise DataError(f"{len(found)} questions have finished responses: {SMALLEST} are the least")
    parts: Any = split_by_question(found, validation, test)
    named = zip(("training", "validation", "test"), parts, strict=True)
    write_questions(out / QUESTIONS, [(part, one) for part, members in named for one in members])
    return parts


def untrained(error: DataError) -> dict[str, Any]:
    """The facts of a stage whose trees were too few or too much alike to learn from."""
    return {"trained": False, "why": str(error)}


def watching(stop: Stop) -> Callable[[dict[str, float]], None]:
    """Ends a training at its next evaluation once the user has asked to stop."""

    def watch(line: dict[str, float]) -> None:
        if stop():
            raise LoopStopped

    return watch


# -- files -------------------------------------------------------------------------------------------------------------


def outcomes_of(journal: Path) -> dict[str, str]:
    """What the questions of a journal came out as, by problem id."""
    found = {record["problem"]["id"]: outcome(Tree.from_dict(record["tree"], checked=True)) for record in read(journal)}
    return {name: kind for name, kind in found.items() if kind is not None}


def write_questions(path: Path, found: Sequence[tuple[str, Task | Question | StepSet]]) -> None:
    """One line a question with its part, its id and, of a task, its worked solution."""
    lines = []
    for part, one in found:
        if isinstance(one, Task):
            line: dict[str, Any] = {"problem": {"id": one.problem.id, "question": one.problem.question}}
            line["solution"] = one.solution
        else:
            line = {"problem": {"id": one.id, "question": one.text}}
        lines.append(json.dumps({"key": f"{part}/{line['problem']['id']}", "part": part} | line) + "\n")
    write_whole(path, "".join(lines))


def emptied(folder: Path) -> Path:
    """`folder`, new and empty: what a killed stage left there is gone."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder
