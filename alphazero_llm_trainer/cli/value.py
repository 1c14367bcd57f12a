"""The `value` command: train a value function from searched trees and say whether it earns its place."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

from ..config.load import Config
from ..errors import ConfigError
from .base import EXIT_STOPPED, Stop, add_config_arguments, resolve

SMALLEST = 10  # questions


def add_value(commands: Any) -> None:
    parser = commands.add_parser("value", help="train a value function from searched trees")
    parser.add_argument("--out", type=Path, default=Path("checkpoints/value"), metavar="DIR", help="where it goes")
    parser.add_argument(
        "--data", type=Path, nargs="+", metavar="PATH", help="journals, or folders of runs and samples, to learn from"
    )
    parser.add_argument("--questions", type=int, metavar="N", help="without --data: search so many questions first")
    parser.add_argument("--kind", choices=("head", "network"), help="a head on the policy, or a network of its own")
    parser.add_argument("--path", type=Path, metavar="DIR", help="the policy's folder (default: the shipped student)")
    add_config_arguments(parser)

    def run(args: argparse.Namespace) -> int:
        value = {"kind": args.kind, "questions": args.questions}
        named = {key: given for key, given in value.items() if given is not None}
        return run_value(args, resolve(args, {"train": {"value": named}}))

    parser.set_defaults(run=run)


def run_value(args: argparse.Namespace, config: Config) -> int:
    """Train, print the held-out table and write the folder."""
    from ..eval.results import read_json
    from ..policy.student import load_student
    from ..policy.value import CARD
    from ..problems.prompts import system_prompt
    from ..report.folder import write_report
    from ..report.judges import value_text
    from ..train import value_run
    from ..train.report import Progress

    if args.data and args.questions is not None:
        raise ConfigError("--questions collects trees and --data names trees: give one of them")
    out: Path = args.out
    if (out / CARD).is_file():
        raise ConfigError(f"--out {out} holds a finished value: name another folder or remove it")
    student = load_student(config, path=args.path, system_prompt=system_prompt(config.problems.source))
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"--out {out} can't be made ({error.strerror}): name a writable folder") from error
    progress, stop = Progress(), Stop()
    paths = args.data
    if not paths:
        paths = [out]
        if not collect(student, config, out / "journal.jsonl", stop, progress):
            progress.say("stopped; the same command goes on from here")
            return EXIT_STOPPED
    questions = value_run.read_questions(value_run.journal_files(paths))
    value = config.train.value
    if len(questions) < SMALLEST:
        raise ConfigError(f"--data holds {len(questions)} questions with finished responses: give at least {SMALLEST}")
    parts = value_run.split_by_question(questions, value.validation_share, value.test_share)
    progress.say(
        f"{value.kind} over student {student.name}: {len(parts[0]):,} questions to train on, {len(parts[1]):,} to stop"
        f" and calibrate on, {len(parts[2]):,} to report on"
    )
    metrics = out / "metrics.jsonl"
    metrics.unlink(missing_ok=True)
    began = time.perf_counter()

    def watch(line: dict[str, float]) -> None:
        with metrics.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        progress.say(
            f"step {line['step']:.0f}: loss {line['train_loss']:.4f}, held out {line['held_out_loss']:.4f};"
            f" Brier {line['train_brier']:.4f}, held out {line['held_out_brier']:.4f}"
        )
        if stop():
            raise KeyboardInterrupt

    valued = value_run.train_value(student, config, parts, out, watch)
    seconds = round(time.perf_counter() - began, 1)
    command = " ".join([Path(sys.argv[0]).name, *sys.argv[1:]])
    value_run.save_value(out, valued, student, config, {"command": command, "seconds": seconds})
    write_report(out)
    print(value_text(read_json(out / CARD)))
    print(f"value.json, metrics.jsonl and report.html are in {out}")
    return 0


def collect(student: Any, config: Config, journal: Path, stop: Any, progress: Any) -> bool:
    """Search fresh training questions into `journal`; False when the user stopped it."""
    from ..problems.load import load_tasks
    from ..train.value_run import collect_trees

    source, wanted = config.problems.source, config.train.value.questions
    # Questions that neither warm-up nor a training run of the configured size has seen.
    start = config.train.demonstrations + config.train.num_examples if source == "embedded" else 0
    tasks = load_tasks(source, "train", wanted, path=config.dataset.path, levels=config.problems.levels, start=start)
    every = max(1, len(tasks) // 10)

    def tell(done: int) -> None:
        if done % every == 0:
            progress.say(f"searched {done:,}/{len(tasks):,} questions")

    collect_trees(student, config, tasks, journal, stop, tell)
    return not stop()
