"""What the `value` and `prm` commands share: their flags, their folder, trees of their own and a training's lines."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..config.load import Config
from ..errors import ConfigError, DataError
from ..files import FolderLock
from ..live import Progress, Stop
from .base import add_config_arguments, add_json, add_model, add_source, check_out, print_json, resolve, tell_loading

if TYPE_CHECKING:
    from ..config.train import PrmConfig, ValueConfig
    from ..policy.judge_folder import JudgeFolder
    from ..policy.student import Student
    from ..types import Task

SMALLEST = 10  # questions


def add_judge(
    commands: Any,
    name: str,
    run: Callable[[argparse.Namespace, Config, Progress], int],
    *,
    help: str,
    data: str,
    kinds: tuple[str, ...],
    kind: str,
) -> None:
    """The command `name` with the configuration of `train.NAME`; `data` and `kind` are the help of these flags."""
    parser = commands.add_parser(name, help=help)
    add_model(parser, "the policy")
    add_source(parser)
    parser.option(
        "-n",
        "--num",
        old=("--questions",),
        type=int,
        metavar="N",
        key=f"train.{name}.collect.questions",
        help="without --data: search so many questions first",
    )
    parser.add_argument("--data", type=Path, nargs="+", metavar="PATH", help=data)
    parser.option("--kind", choices=kinds, key=f"train.{name}.kind", help=kind)
    parser.add_argument("--out", type=Path, default=Path("checkpoints") / name, metavar="DIR", help="where it goes")
    add_json(parser)
    add_config_arguments(parser)

    def checked(args: argparse.Namespace) -> int:
        config = resolve(args)
        if args.data and args.num is not None:
            raise ConfigError("--num collects trees and --data names trees: give one of them")
        for path in args.data or ():
            if not path.exists():
                raise ConfigError(f"--data {path} is not there: name a journal, or a folder of train or sample")
        if (args.out / f"{name}.json").is_file():
            raise ConfigError(f"--out {args.out} holds a finished {name}: name another folder or remove it")
        check_out(args.out)
        with FolderLock(args.out), Progress(args.quiet) as progress:
            tell_loading(args, progress, "PyTorch and TRL", "trl")
            return run(args, config, progress)

    parser.set_defaults(run=checked)


class JudgeCommand:
    """One run of a judge's command: the student is loaded, the folder is there and open for a training."""

    def __init__(
        self,
        args: argparse.Namespace,
        config: Config,
        settings: ValueConfig | PrmConfig,
        form: JudgeFolder,
        progress: Progress,
    ) -> None:
        from ..policy.student import load_student
        from ..problems.load import opening
        from ..training.start import check_memory

        check_memory(config, settings.section, args.path)
        self.config, self.settings, self.out, self.data = config, settings, args.out, args.data
        self.json = args.json
        self.student: Student = load_student(config, path=args.path, opening=opening(config))
        self.progress, self.stop = progress, Stop()
        self.journal = self.out / "journal.jsonl"

    def paths(self) -> list[Path] | None:
        """Where the trees are: `--data`, or fresh questions that are searched into the folder; None when stopped."""
        from ..training.value_run import collect_trees

        if self.data:
            return self.data
        config, tasks = self.config, self.fresh()
        collect_trees(self.student, config, self.settings.collect, tasks, self.journal, self.stop, self.progress)
        if self.stop():
            self.progress.say("stopped; the same command goes on from here")
            return None
        return [self.out]

    def fresh(self) -> list[Task]:
        """Questions that neither warm-up nor a training run of the configured size has seen.

        Raises ConfigError where the source has too few of them.
        """
        from ..problems.load import tasks_of
        from ..training.size import used_questions

        wanted, used = self.settings.collect.questions, used_questions(self.config)
        tasks_of(self.config, "train", 1)  # what is wrong with the rows shows here
        try:
            tasks = tasks_of(self.config, "train", wanted, used)
        except DataError:
            tasks = []
        if len(tasks) < wanted:
            raise ConfigError(
                f"--questions is {wanted:,} and {self.config.problems.source} has {len(tasks):,} training questions beyond"
                f" the {used:,} that warm-up and a run of train.num_examples use: ask for fewer, or set train.num_examples"
                " to what your run used"
            )
        return tasks

    def split(self, questions: list[Any], what: str) -> tuple[list[Any], list[Any], list[Any]]:
        """Training, validation and test questions. Raises ConfigError for too few."""
        from ..training.value_run import split_by_question

        if len(questions) < SMALLEST:
            raise ConfigError(f"--data holds {len(questions)} questions with {what}: give at least {SMALLEST}")
        return split_by_question(questions, self.settings.validation_share, self.settings.test_share)

    def begin(self, parts: tuple[list[Any], list[Any], list[Any]], chosen: str) -> None:
        """Say what is about to be trained, and start the metrics anew."""
        training, validation, test = map(len, parts)
        self.progress.say(
            f"{self.settings.kind} over student {self.student.title}: {training:,} questions to train on,"
            f" {validation:,} to {chosen} and calibrate on, {test:,} to report on"
        )
        (self.out / "metrics.jsonl").unlink(missing_ok=True)
        self.progress.wait("rows for training")
        self.began = time.perf_counter()

    def record(self, line: dict[str, Any], text: str) -> None:
        """Take in a line of the metrics, shown as `text`. Raises KeyboardInterrupt once the user has asked to stop."""
        with (self.out / "metrics.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        self.progress.say(text)
        if self.stop():
            raise KeyboardInterrupt

    def show(self, card: dict[str, Any], text: str, files: str) -> None:
        """The end of the command: the card as JSON, or what it says as `text`."""
        if self.json:
            print_json(card)
        else:
            print(f"{text}\n{files} are in {self.out}")

    def facts(self) -> dict[str, Any]:
        """What the card says of the command."""
        command = " ".join([Path(sys.argv[0]).name, *sys.argv[1:]])
        return {"command": command, "seconds": round(time.perf_counter() - self.began, 1)}
