"""The `value` command: train a value function from searched trees and say whether it earns its place."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from ..config.load import Config
from .base import EXIT_STOPPED
from .judges import JudgeCommand, add_judge

if TYPE_CHECKING:
    from ..train.value_run import Valued


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


def run_value(args: argparse.Namespace, config: Config) -> int:
    """Train, print the held-out table and write the folder."""
    from ..policy.value import FOLDER
    from ..report.folder import write_report
    from ..train import value_run
    from ..train.report import draw_value_report

    command = JudgeCommand(args, config, config.train.value, FOLDER)
    paths = command.paths()
    if paths is None:
        return EXIT_STOPPED
    questions = value_run.read_questions(paths)
    parts = command.split(questions, "finished responses")
    command.begin(parts, "stop")

    def watch(line: dict[str, float]) -> None:
        command.record(
            line,
            f"step {line['step']:.0f}: loss {line['train_loss']:.4f}, held out {line['held_out_loss']:.4f};"
            f" Brier {line['train_brier']:.4f}, held out {line['held_out_brier']:.4f}",
        )

    valued = value_run.train_value(command.student, config, parts, command.out, watch)
    value_run.save_value(command.out, valued, command.student, config, command.facts())
    draw_value_report(command.out / "report.png", valued.fitted.curve, valued.figures, valued.reliability)
    write_report(command.out)
    print(held_out_table(valued))
    print(f"value.json, metrics.jsonl, report.png and report.html are in {command.out}")
    return 0


def held_out_table(valued: Valued) -> str:
    """The test questions' figures with 95% intervals over questions, and what they mean for search."""
    lines = [f"held out: {valued.questions['test']:,} questions, 95% intervals over questions"]
    lines += [f"  {name:34} {interval}" for name, interval in valued.figures.items()]
    lines.append("  sibling ranking: chance is 0.5; so is an AUC of 0.5")
    weight = valued.verdict.rollout_weight
    lines.append(
        f"on validation, {valued.verdict.why}: Q = {1 - weight:.2f}*value + {weight:.2f}*rollout (lambda {weight:.2f})"
    )
    return "\n".join(lines)
