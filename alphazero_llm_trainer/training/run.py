"""A run's folder: what it is called, what is in it, and how a run that was cut off is found again."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from ..config.load import Config, flat, validate
from ..errors import CheckpointError, ConfigError
from ..files import make_folder, read_lines, read_object, write_json, write_whole
from ..problems.source import source_of
from ..types import Task

MOST_LETTERS = 500  # of a question in test.jsonl


class RunFolder:
    """Paths inside one run's folder; nothing is written elsewhere."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.card = path / "run.json"
        self.journal = path / "journal.jsonl"
        self.metrics = path / "metrics.jsonl"
        self.report = path / "report.html"
        self.answers = path / "test.jsonl"  # what was answered to the test problems before and after training
        self.student = path / "student"  # the final student, as a plain Hugging Face folder
        self.adapter = path / "adapter"  # its LoRA adapter, where one was trained
        self.best = path / "best.safetensors"

    def read_card(self) -> dict[str, Any]:
        """run.json. Raises CheckpointError when it isn't a run's."""
        try:
            card = read_object(self.card)
        except (OSError, ValueError) as error:
            raise CheckpointError(
                f"run folder {self.path} has no readable run.json: name another with --resume"
            ) from error
        if "config" not in card:
            raise CheckpointError(f"run folder {self.path} has a run.json without a config: name another with --resume")
        return card

    def write_card(self, card: dict[str, Any]) -> None:
        write_json(self.card, card)

    def config(self) -> Config:
        """The configuration that the run was started with."""
        return validate(self.read_card()["config"])

    def check_same(self, asked: Config, named: Iterable[str]) -> None:
        """Raise ConfigError where `asked` has another value than the run for one of the keys that are `named`, or below one."""
        stored, wanted = (dict(flat(config.model_dump(mode="json"))) for config in (self.config(), asked))
        sections = tuple(f"{key}." for key in named)
        changed = [
            f"{key} is {stored.get(key)!r} there and {value!r} here"
            for key, value in wanted.items()
            if stored.get(key) != value and f"{key}.".startswith(sections)
        ]
        if changed:
            raise ConfigError(
                f"a run goes on with the configuration in its {self.card}, and {'; '.join(changed[:3])}: leave out what"
                " differs, or train on from its student in another folder"
            )

    def append_metrics(self, line: dict[str, Any]) -> None:
        with self.metrics.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def read_metrics(self) -> list[dict[str, Any]]:
        """All whole lines; one that a crash cut is left out."""
        return read_lines(self.metrics)

    def forget_metrics_from(self, number: int) -> None:
        """Drop the lines of rounds that will be trained again."""
        kept = [line for line in self.read_metrics() if line.get("round", -1) < number]
        write_whole(self.metrics, "".join(json.dumps(line) + "\n" for line in kept))

    def write_answers(
        self, when: str, tasks: Sequence[Task], responses: Sequence[str], correct: Sequence[bool]
    ) -> None:
        """Add the final answers of `when` ("before" or "after") to test.jsonl: one line a problem, with its question."""
        lines = {line["id"]: line for line in read_lines(self.answers)}
        for task, response, right in zip(tasks, responses, correct, strict=True):
            problem = task.problem
            line = lines.setdefault(problem.id, {"id": problem.id, "question": problem.question[:MOST_LETTERS]})
            answer = source_of(problem).final_answer(response)
            line[when] = {"answer": answer, "correct": right}
        write_whole(self.answers, "".join(json.dumps(line) + "\n" for line in lines.values()))


def new_run(checkpoint_dir: Path) -> RunFolder:
    """The next numbered folder `run-001`, `run-002`, ... of `checkpoint_dir`."""
    taken = [int(p.name[4:]) for p in checkpoint_dir.glob("run-*") if p.name[4:].isdigit()]
    folder = checkpoint_dir / f"run-{max(taken, default=0) + 1:03d}"
    try:
        make_folder(folder, exist_ok=False)
    except OSError as error:
        raise ConfigError(
            f"--checkpoint-dir {checkpoint_dir} can't hold a run folder ({error.strerror}): name a writable folder"
        ) from error
    return RunFolder(folder)


def find_run(checkpoint_dir: Path, named: Path | None) -> RunFolder:
    """The run to resume: the named folder, or the newest of `checkpoint_dir`."""
    if named is not None:
        if not (named / "run.json").is_file():
            raise CheckpointError(f"--resume {named} has no run.json: name a run's folder, such as checkpoints/run-001")
        return RunFolder(named)
    runs = [path.parent for path in checkpoint_dir.glob("run-*/run.json") if path.parent.name[4:].isdigit()]
    if not runs:
        raise CheckpointError(f"--resume found no run in {checkpoint_dir}: start one without --resume")
    return RunFolder(max(runs, key=lambda path: int(path.name[4:])))
