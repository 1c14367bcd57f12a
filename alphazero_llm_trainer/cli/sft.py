"""The `sft` command: supervised training on worked solutions, from scratch or going on from a
student.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from ..config.load import Config, check_read
from ..files import Folder
from ..live import Progress
from ..policy.folders import from_scratch
from .base import (
    add_config_arguments,
    add_json,
    add_model,
    add_source,
    check_least,
    print_json,
    resolve,
    tell_loading,
)


def add_sft(commands: Any) -> None:
    parser = commands.add_parser(
        "sft", help="supervised training on worked solutions, from scratch or going on"
    )
    add_model(parser, "the student to go on from; embedded and small are trained from scratch")
    add_source(parser)
    parser.option(
        "-n",
        "--num",
        type=int,
        key="train.demonstrations",
        help="worked solutions to learn from",
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("checkpoints/sft"),
        help="where the student goes",
    )
    parser.option(
        "--eval-size",
        type=int,
        key="train.eval_size",
        help="test problems, measured at the end",
    )
    add_json(parser)
    add_config_arguments(parser)
    parser.set_defaults(run=lambda args: run_sft_command(args, configured(args)))


def configured(args: argparse.Namespace) -> Config:
    """The configuration over the recipe of a student that goes on, or the source's own of one from
    scratch.
    """
    config = resolve(args, recipe="sft.yaml")
    if args.path is None and from_scratch(config):
        from ..problems.registry import open_source

        config = resolve(args, recipe=open_source(config).scratch)
    return config


def run_sft_command(args: argparse.Namespace, config: Config) -> int:
    """Train on `train.demonstrations` worked solutions, select on validation, report on test."""
    check_least(1, eval_size=config.train.eval_size, num=config.train.demonstrations)
    scratch = args.path is None and from_scratch(config)
    check_read(config, command="sft", searches="no", scratch="yes" if scratch else "no")
    with Folder(args.out).lock(), Progress(args.quiet) as progress:
        tell_loading(args, progress, config)
        from ..runs.sft import supervise

        manifest = supervise(config, args.path, args.out, scratch, progress)
    if args.json:
        print_json(manifest)
        return 0
    from ..api.train import interval_of

    if not scratch:
        before, gain = interval_of(manifest["test_before"]), interval_of(manifest["gain"])
        print(f"before {before}, paired gain {gain:+}")
    test = manifest["test_greedy"]
    print(
        f"greedy accuracy on {test['problems']:,} test problems: {interval_of(test)}, pass@8 "
        f"{manifest['test_pass_at_8']['value']:.3f};"
        f" {manifest['seconds']:.0f} s of training; student in {args.out}"
    )
    return 0
