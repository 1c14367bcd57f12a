"""The `sft` command: supervised training on worked solutions, from scratch or going on from a
student.
"""

from __future__ import annotations

import argparse

from ..config.load import Config, check_read
from ..files import Folder
from ..live import Progress
from ..policy.folders import from_scratch
from .base import (
    check_least,
    print_json,
    resolve_config,
    tell_loading,
)


def configure_sft(args: argparse.Namespace) -> Config:
    """The configuration over the recipe of a student that goes on, or the source's own of one from
    scratch.
    """
    config = resolve_config(args, recipe="sft.yaml")
    if args.path is None and from_scratch(config):
        from ..problems.registry import open_source

        config = resolve_config(args, recipe=open_source(config).scratch)
    return config


def run_sft(args: argparse.Namespace) -> int:
    """Train on `train.demonstrations` worked solutions, select on validation, report on test."""
    config = configure_sft(args)
    check_least(1, eval_size=config.train.eval_size, num=config.train.demonstrations)
    scratch = args.path is None and from_scratch(config)
    from ..problems.registry import open_source, with_worlds

    searches = "play" if open_source(config).worlds else "no"
    check_read(config, command="sft", searches=searches, scratch="yes" if scratch else "no")
    with_worlds(config, "sft")
    with Folder(args.out).lock(), Progress(args.quiet) as progress:
        tell_loading(args, progress, config)
        from ..runs.sft import supervise_student

        manifest = supervise_student(config, args.path, args.out, scratch, progress)
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
