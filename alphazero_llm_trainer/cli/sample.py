"""The console script's `sample`: search many questions into a folder, on one machine or many."""

from __future__ import annotations

import argparse

from ..config.load import check_read
from ..live import Progress, Stop
from ..tree.extract import shortfall
from .base import (
    EXIT_STOPPED,
    check_least,
    print_json,
    resolve_config,
    tell_loading,
)


def sample_questions(args: argparse.Namespace) -> int:
    """Sample. 0 when every question has its tree or was set aside, 130 when the user stopped it."""
    config = resolve_config(args, recipe="sample.yaml")
    check_least(1, num=args.num, workers=args.workers)
    check_least(0, start=args.start)
    from ..problems.load import tasks_of  # none of this needs torch
    from ..runs import sample
    from ..runs.start import check_searches

    check_read(config, command="sample", searches="yes")
    config = check_searches(config, "sample")
    tasks = tasks_of(config, args.split, args.num, args.start)
    job = sample.SampleJob(
        config, tasks, args.split, args.start, args.path, args.workers, args.address
    )
    with Progress(args.quiet) as progress, Stop(progress) as stop:
        if len(tasks) < args.num:
            progress.say(
                f"{config.problems.source} {args.split} has {len(tasks):,} questions from number "
                f"{args.start} on: these are sampled"
            )
        tell_loading(args, progress, config)
        summary = sample.run_sample(job, args.out, resume=args.resume, stop=stop, progress=progress)
        if args.json:
            print_json(summary.as_dict())
        else:
            print(summary.text(args.out))
        short = shortfall(summary.ends, config.search.model_dump())
        if short is not None:
            progress.say(short)
        if summary.status == "stopped":
            progress.say(f"stopped; go on with: --resume --out {args.out}")
            return EXIT_STOPPED
    return 0
