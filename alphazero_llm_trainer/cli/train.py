"""The command `train`, and `train_vllm.py`: search -> grade -> train in rounds."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from ..config.load import Config, user_layers
from ..errors import ConfigError
from ..files import Folder, flatten_keys, numbered_folders
from ..live import Progress, Stop
from .base import (
    EXIT_STOPPED,
    Parser,
    add_flags,
    check_least,
    check_out,
    flag_layers,
    print_facts,
    print_json,
    read_flags,
    resolve_config,
    run_command,
    tell_loading,
)


def run_train(args: argparse.Namespace) -> int:
    from ..runs.start import load_run

    config = resolve_config(args, load=load_run)
    out = Path(config.train.checkpoint_dir)
    check_out(out, flag="--out")
    check_least(1, seeds=args.seeds)
    if args.seeds > 1:
        return run_seeds(args, [config.seed + number for number in range(args.seeds)], out)
    from ..api.train import resume_run, run_training
    from ..learning.size import rank_and_size

    folder = None
    if args.resume is not None:
        run = None if args.resume is True else Path(args.resume)
        folder, config = resume_run(config, run, named_keys(args))
    follows = rank_and_size()[0] > 0  # another process says what there is to say
    with Progress(args.quiet or follows) as progress, Stop(progress) as stop:
        if args.dry_run:
            return dry_run(args, config, folder, progress)
        done = run_training(
            config,
            folder,
            folder is not None,
            progress,
            stop,
            lambda: tell_loading(args, progress, config),
        )
        if follows:
            return 0 if done.finished else EXIT_STOPPED
        if not done.finished:
            progress.say(f"stopped; go on with: --resume {done.folder}")
            return EXIT_STOPPED
    if args.json:
        print_json({**done.card, "folder": str(done.folder)})
        return 0
    print(f"{done}\nstudent, metrics and report.html are in {done.folder}")
    if done.card.get("uploaded") is not None:
        print(f"uploaded to {done.card['uploaded']}")
    return 0


def run_seeds(args: argparse.Namespace, seeds: list[int], out: Path) -> int:
    """Train with each seed in a folder of its own below `out`, and compare them."""
    from ..runs.side_by_side import train_seeds

    if args.dry_run or args.resume not in (None, True):
        raise ConfigError("--dry-run and --resume RUN are of one run: leave out --seeds")
    words = [word for word in args.words if word != "--resume"]
    if getattr(args, "command", None) is not None:
        words.remove("train")
    if args.resume is None and (had := numbered_folders(out, "seed")):
        raise ConfigError(
            f"{had[0]} is there already: add --resume to go on, or name another --out"
        )
    with Progress(args.quiet) as progress, Stop(progress) as stop:
        if not train_seeds(words, seeds, out, progress, stop):
            progress.say("stopped; go on with the same command and --resume")
            return EXIT_STOPPED
    from ..report.runs import RunTable, read_runs

    table = RunTable(read_runs([out], finished=False))
    table.write(out)
    if args.json:
        print_json(table.records)
        return 0
    print(f"{table}\nreport.html is in {out}, each run in its seed's folder there")
    return 0


def dry_run(
    args: argparse.Namespace, config: Config, folder: Folder | None, progress: Progress
) -> int:
    """Print what a run would do, or what is left of the one in `folder`, and what keeps it from
    starting.
    """
    from ..runs.plan import plan_run
    from ..runs.start import check_start, prepare

    prepared = prepare(config)
    tell_loading(args, progress)
    print_facts(plan_run(prepared, None if folder is None else folder.path), args.json)
    check_start(prepared.config)
    if not args.json:
        print("# dry run: nothing was written and no model loaded; leave out --dry-run to train")
    return 0


def named_keys(args: argparse.Namespace) -> set[str]:
    """The keys that the flags set; where runs go is none of a run's own."""
    keys = {
        key
        for layer in user_layers(args.config, [*args.overrides, *flag_layers(args)])
        for key, _ in flatten_keys(layer)
    }
    if args.model:
        keys |= {"student", "train.student", "models"}
    return keys - {"train.checkpoint_dir"}


def train_main(argv: Sequence[str] | None = None) -> int:
    """`train_vllm.py`, and `vf-eval alphazero-llm-trainer -s -- ...`."""
    about = read_flags()["about"]["train"]
    parser = Parser(prog="train_vllm.py", description=about["description"], epilog=about["epilog"])
    add_flags(parser, "train")
    parser.set_defaults(run=run_train)
    return run_command(parser, argv)
