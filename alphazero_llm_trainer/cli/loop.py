"""The `loop` command: generations that are promoted when they are better and rolled back when they are not."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from ..config.load import Config
from ..errors import ConfigError
from ..files import FolderLock
from ..live import Progress, Stop
from .base import (
    EXIT_STOPPED,
    add_config_arguments,
    add_json,
    add_model,
    add_source,
    check_out,
    check_resumed,
    print_json,
    resolve,
    tell_loading,
)


def add_loop(commands: Any) -> None:
    parser = commands.add_parser(
        "loop",
        help="search, train, arena, promote or roll back, again",
        epilog="With nothing named: 3 generations of the embedded student. Sizes and the gate: section loop of training.yaml.",
    )
    parser.option(
        "--generations",
        type=int,
        metavar="N",
        key="loop.generations",
        help="how many; with --resume it may be more than before",
    )
    add_model(parser, "the first student", key="train.student")
    add_source(parser)
    parser.option("-n", "--num", type=int, metavar="N", key="loop.questions", help="training questions a generation")
    parser.add_argument("--out", type=Path, default=Path("checkpoints/loop"), metavar="DIR", help="where it goes")
    parser.add_argument("--resume", action="store_true", help="go on with --out")
    add_json(parser)
    add_config_arguments(parser)
    parser.set_defaults(run=lambda args: run_loop(args, resolve(args)))


def run_loop(args: argparse.Namespace, config: Config) -> int:
    """Run the generations, print the table, write loop.json and report.html."""
    check_out(args.out)
    with Progress(args.quiet) as progress:
        tell_loading(args, progress, "PyTorch and TRL", "trl")
        return run_generations(args, config, progress)


def run_generations(args: argparse.Namespace, config: Config, progress: Progress) -> int:
    """`run_loop` with what it is told on."""
    from ..report.folder import write_report
    from ..report.loop import result_text
    from ..training.generations import CARD, Loop
    from ..training.stages import LoopStopped

    out: Path = args.out
    if (out / CARD).is_file() and not args.resume:
        raise ConfigError(f"--out {out} holds a loop already: add --resume to go on with it, or name another folder")
    if args.resume:
        config = resumed(args, config, out)
    with FolderLock(out):
        loop = Loop(config, out, Stop(), progress)
        loop.load()
        progress.say(f"{loop.opening()}\nloop folder: {out}")
        try:
            card = loop.execute()
        except LoopStopped:
            progress.say(f"stopped; go on with: --resume --out {out}")
            return EXIT_STOPPED
        write_report(out)
    if args.json:
        print_json(card)
        return 0
    print(result_text(card))
    print(
        f"loop.json and report.html are in {out}"
        + (f", the champion is in {out / 'champion'}" if card["champion"] else "")
    )
    return 0


def resumed(args: argparse.Namespace, config: Config, out: Path) -> Config:
    """The stored configuration; more generations may be asked for. Raises ConfigError for any other difference."""
    from ..training.generations import stored_config

    stored = stored_config(out)
    if args.generations is not None:
        if args.generations < stored.loop.generations:
            raise ConfigError(
                f"--generations is {args.generations} and {out} has {stored.loop.generations}: name as many or more"
            )
        stored = stored.model_copy(update={"loop": stored.loop.model_copy(update={"generations": args.generations})})
    flags = {"model", "student", "path", "config", *args.keys} - {"generations"}
    given = bool(args.overrides) or any(getattr(args, name) is not None for name in flags)
    if given:
        check_resumed(config, stored, out)
    return stored
