"""The console script's `sample`: search many questions into a folder, on one machine or many."""

from __future__ import annotations

import argparse
from typing import Any

from ..config.load import Config, check_read
from ..live import Progress, Stop
from ..tree.extract import shortfall
from .base import (
    EXIT_STOPPED,
    add_command,
    check_least,
    print_json,
    resolve,
    tell_loading,
)

EPILOG = """\
One engine in this process batches all trees (search.concurrent of them). --workers 2 and more
start Ray with so many processes that do the same, on this machine or on the cluster at --address;
GPUs are shared among them. The trees are the same for the same seed.

DIR gets manifest.json, journal.jsonl (one finished tree a line, exactly one a question) and
set_aside.jsonl (questions that failed three times while they ran alone). Whatever dies, --resume
goes on, with more questions too: a small -n first tells the rate. The searches are those of GRPO
(config/sample.yaml): search.simulations and search.samples set a tree's size; in token mode give
more simulations, such as 60. Teachers propose steps, so token mode doesn't ask them. A tree names
its split; export and value refuse the trees of every split but train. The reward is correctness,
with --reward that too; --set rewards.use_student_model=true adds PRE and costs a frozen copy of
the student."""


def add_sample(commands: Any) -> None:
    def run(args: argparse.Namespace) -> int:
        return run_sample_command(args, resolve(args, recipe="sample.yaml"))

    about = "search many questions into a folder of tree journals"
    add_command(commands, "sample", run, about, EPILOG)


def run_sample_command(args: argparse.Namespace, config: Config) -> int:
    """Sample. 0 when every question has its tree or was set aside, 130 when the user stopped it."""
    check_least(1, num=args.num, workers=args.workers)
    check_least(0, start=args.start)
    from ..problems.load import tasks_of  # none of this needs torch
    from ..runs.sample import SampleJob, run_sample
    from ..runs.start import check_searches

    check_read(config, command="sample", searches="yes")
    check_searches(config)
    tasks = tasks_of(config, args.split, args.num, args.start)
    job = SampleJob(config, tasks, args.split, args.start, args.path, args.workers, args.address)
    with Progress(args.quiet) as progress, Stop(progress) as stop:
        if len(tasks) < args.num:
            progress.say(
                f"{config.problems.source} {args.split} has {len(tasks):,} questions from number "
                f"{args.start} on: these are sampled"
            )
        tell_loading(args, progress, config)
        summary = run_sample(job, args.out, resume=args.resume, stop=stop, progress=progress)
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
