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
from ..errors import ConfigError
from ..live import Progress
from .base import Stop, add_config_arguments, resolve

if TYPE_CHECKING:
    from ..config.train import PrmConfig, ValueConfig
    from ..policy.judge_folder import JudgeFolder
    from ..policy.student import Student

SMALLEST = 10  # questions


def add_judge(
    commands: Any,
    name: str,
    run: Callable[[argparse.Namespace, Config], int],
    *,
    help: str,
    data: str,
    kinds: tuple[str, ...],
    kind: str,
) -> None:
    """The command `name` with the configuration of `train.NAME`; `data` and `kind` are the help of these flags."""
    parser = commands.add_parser(name, help=help)
    parser.add_argument("--out", type=Path, default=Path("checkpoints") / name, metavar="DIR", help="where it goes")
    parser.add_argument("--data", type=Path, nargs="+", metavar="PATH", help=data)
    parser.add_argument("--questions", type=int, metavar="N", help="without --data: search so many questions first")
    parser.add_argument("--kind", choices=kinds, help=kind)
    parser.add_argument("--path", type=Path, metavar="DIR", help="the policy's folder (default: the shipped student)")
    add_config_arguments(parser)

    def resolved(args: argparse.Namespace) -> int:
        given: dict[str, Any] = {} if args.kind is None else {"kind": args.kind}
        if args.questions is not None:
            given["collect"] = {"questions": args.questions}
        return run(args, resolve(args, {"train": {name: given}}))

    parser.set_defaults(run=resolved)


class JudgeCommand:
    """One run of a judge's command: the student is loaded, the folder is there and open for a training."""

    def __init__(
        self, args: argparse.Namespace, config: Config, settings: ValueConfig | PrmConfig, form: JudgeFolder
    ) -> None:
        from ..policy.student import load_student
        from ..problems.prompts import system_prompt

        self.config, self.settings, self.out, self.data = config, settings, args.out, args.data
        if args.data and args.questions is not None:
            raise ConfigError("--questions collects trees and --data names trees: give one of them")
        if (self.out / form.card).is_file():
            raise ConfigError(f"--out {self.out} holds a finished {form.name}: name another folder or remove it")
        self.student: Student = load_student(
            config, path=args.path, system_prompt=system_prompt(config.problems.source)
        )
        try:
            self.out.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"--out {self.out} can't be made ({error.strerror}): name a writable folder") from error
        self.progress, self.stop = Progress(), Stop()
        self.journal = self.out / "journal.jsonl"

    def paths(self) -> list[Path] | None:
        """Where the trees are: `--data`, or fresh questions that are searched into the folder; None when stopped."""
        from ..problems.load import tasks_of
        from ..train.value_run import collect_trees

        if self.data:
            return self.data
        config = self.config
        # Questions that neither warm-up nor a training run of the configured size has seen.
        start = config.train.demonstrations + config.train.num_examples if config.problems.source == "embedded" else 0
        tasks = tasks_of(config, "train", self.settings.collect.questions, start)
        collect_trees(self.student, config, self.settings.collect, tasks, self.journal, self.stop, self.progress)
        if self.stop():
            self.progress.say("stopped; the same command goes on from here")
            return None
        return [self.out]

    def split(self, questions: list[Any], what: str) -> tuple[list[Any], list[Any], list[Any]]:
        """Training, validation and test questions. Raises ConfigError for too few."""
        from ..train.value_run import split_by_question

        if len(questions) < SMALLEST:
            raise ConfigError(f"--data holds {len(questions)} questions with {what}: give at least {SMALLEST}")
        return split_by_question(questions, self.settings.validation_share, self.settings.test_share)

    def begin(self, parts: tuple[list[Any], list[Any], list[Any]], chosen: str) -> None:
        """Say what is about to be trained, and start the metrics anew."""
        training, validation, test = map(len, parts)
        self.progress.say(
            f"{self.settings.kind} over student {self.student.name}: {training:,} questions to train on,"
            f" {validation:,} to {chosen} and calibrate on, {test:,} to report on"
        )
        (self.out / "metrics.jsonl").unlink(missing_ok=True)
        self.began = time.perf_counter()

    def record(self, line: dict[str, Any], text: str) -> None:
        """Take in a line of the metrics, shown as `text`. Raises KeyboardInterrupt once the user has asked to stop."""
        with (self.out / "metrics.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        self.progress.say(text)
        if self.stop():
            raise KeyboardInterrupt

    def facts(self) -> dict[str, Any]:
        """What the card says of the command."""
        command = " ".join([Path(sys.argv[0]).name, *sys.argv[1:]])
        return {"command": command, "seconds": round(time.perf_counter() - self.began, 1)}
