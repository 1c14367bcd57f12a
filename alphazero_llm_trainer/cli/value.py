"""The `value` command: train a value function from searched trees and say whether it earns its place."""

from __future__ import annotations

import argparse
from typing import Any

from ..config.load import Config
from ..live import Progress
from .base import EXIT_STOPPED
from .judges import JudgeCommand, add_judge


def add_value(commands: Any) -> None:
    add_judge(
        commands,
        "value",
        run_value,
        help="train a value function from searched trees",
        data="journals, or folders of runs and samples, to learn from",
        kinds=("head", "network"),
        kind="a head on the policy, or a network of its own",
    )


def run_value(args: argparse.Namespace, config: Config, progress: Progress) -> int:
    """Train, print the held-out table and write the folder."""
    from ..eval.results import read_json
    from ..policy.value_function import FOLDER
    from ..report.folder import write_report
    from ..report.judges import value_text
    from ..training import value_run

    command = JudgeCommand(args, config, config.train.value, FOLDER, progress)
    paths = command.paths()
    if paths is None:
        return EXIT_STOPPED
    questions = value_run.read_questions(paths, command.student.model.config.vocab_size)
    parts = command.split(questions, "finished responses")
    command.begin(parts, "stop")

    def watch(line: dict[str, float]) -> None:
        command.record(
            line,
            f"step {line['step']:.0f}: loss {line['train_loss']:.4f}, held out {line['held_out_loss']:.4f};"
            f" Brier {line['train_brier']:.4f}, held out {line['held_out_brier']:.4f}",
        )

    valued = value_run.train_value(command.student, config, parts, command.out, watch, progress)
    value_run.save_value(command.out, valued, command.student, config, command.facts())
    write_report(command.out)
    card = read_json(command.out / FOLDER.card)
    command.show(card, value_text(card), "value.json, metrics.jsonl and report.html")
    return 0
