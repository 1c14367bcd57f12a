"""The console script's `sample`: search many questions into a folder, on one machine or many."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..config.load import Config
from ..errors import ConfigError
from ..live import Progress, Stop
from .base import (
    EXIT_STOPPED,
    add_config_arguments,
    add_json,
    add_model,
    add_reward,
    add_source,
    check_least,
    check_out,
    print_json,
    resolve,
    tell_loading,
)

if TYPE_CHECKING:
    from ..scale.sample import SampleJob

EPILOG = """\
One engine in this process batches all trees (search.concurrent of them). --workers 2 and more start Ray with so many
processes that do the same, on this machine or on the cluster at --address; GPUs are shared among them. The trees are the
same for the same seed.

DIR gets manifest.json, journal.jsonl (one finished tree a line, exactly one a question) and set_aside.jsonl
(questions that failed three times while they ran alone). Whatever dies, --resume goes on.
The searches are those of GRPO (config/sample.yaml): search.simulations and search.samples set a tree's size; in token mode
give more simulations, such as 60. Teachers propose steps, so token mode doesn't ask them.
A tree names its split; export and value refuse the trees of every split but train.
The reward is correctness, with --reward that too; --set rewards.use_student_model=true adds PRE and costs a frozen copy
of the student."""

DRY_RUN_TREES = 16  # that --dry-run searches


def add_sample(commands: Any) -> None:
    parser = commands.add_parser("sample", help="search many questions into a folder of tree journals", epilog=EPILOG)
    parser.add_argument("--out", type=Path, metavar="DIR", help="where the trees go (needed, but for --dry-run)")
    add_model(parser)
    add_source(parser)
    add_reward(parser)
    parser.add_argument("--split", default="train", metavar="NAME", help="train, validation, arena or test")
    parser.add_argument("-n", "--num", type=int, default=100, metavar="N", help="questions")
    parser.add_argument("--start", type=int, default=0, metavar="N", help="number of the first question in the split")
    parser.option("--mode", choices=("step", "token"), key="search.mode", help="what a node of a tree is")
    parser.add_argument("--workers", type=int, default=1, metavar="W", help="processes that search; 1 needs no Ray")
    parser.add_argument("--address", metavar="HOST:PORT", help="a Ray cluster, or auto (default: one on this machine)")
    parser.add_argument(
        "--resume", action="store_true", help="go on with the run in --out; N may be larger than before"
    )
    parser.add_argument("--dry-run", action="store_true", help="search a few trees, estimate time and tokens of all")
    add_json(parser)
    add_config_arguments(parser)

    def run(args: argparse.Namespace) -> int:
        return run_sample_command(args, resolve(args, recipe="sample.yaml"))

    parser.set_defaults(run=run)


def run_sample_command(args: argparse.Namespace, config: Config) -> int:
    """Sample, or estimate. 0 when every question has its tree or was set aside, 130 when the user stopped it."""
    check_least(1, num=args.num, workers=args.workers)
    check_least(0, start=args.start)
    if args.out is None and not args.dry_run:
        raise ConfigError("--out is missing: name the folder that the trees go to")
    check_out(args.out)
    from ..problems.load import tasks_of  # none of this needs torch
    from ..scale.sample import SampleJob

    count = min(args.num, DRY_RUN_TREES) if args.dry_run else args.num
    tasks = tasks_of(config, args.split, count, args.start)
    job = SampleJob(config, tasks, args.split, args.start, args.path, args.workers, args.address)
    with Progress(args.quiet) as progress:
        return sample(args, job, progress)


def sample(args: argparse.Namespace, job: SampleJob, progress: Progress) -> int:
    """See `run_sample_command`; `job` is checked."""
    from ..mcts.journal import JOURNAL
    from ..scale.folder import bytes_of
    from ..scale.sample import run_sample
    from ..scale.totals import estimate, table

    config, tasks, stop = job.config, job.tasks, Stop()
    tell_loading(args, progress)
    if args.dry_run:
        with tempfile.TemporaryDirectory(prefix="alphazero-dry-run-") as folder:
            summary = run_sample(job, Path(folder), stop=stop, progress=progress)
            needed = args.num * bytes_of(Path(folder) / JOURNAL) // max(summary.trees, 1)
        if summary.status == "stopped":
            return EXIT_STOPPED
        if args.json:
            print_json({**summary.as_dict(), "disk_bytes": needed})
        else:
            print(estimate(summary, args.num, needed))
        return 0
    if len(tasks) < args.num:
        progress.say(
            f"{config.problems.source} {args.split} has {len(tasks):,} questions from number {args.start} on: these are sampled"
        )
    summary = run_sample(job, args.out, resume=args.resume, stop=stop, progress=progress)
    print_json(summary.as_dict()) if args.json else print(table(summary))
    if summary.status == "stopped":
        progress.say(f"stopped; go on with: --resume --out {args.out}")
        return EXIT_STOPPED
    return 0
