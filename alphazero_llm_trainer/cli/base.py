"""What every command shares: the parser, the configuration's flags, Ctrl-C and the exit codes."""

from __future__ import annotations

import argparse
import logging
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from ..config.load import Config, load_config
from ..errors import EXIT_USER_ERROR, AlphaZeroError

EXIT_STOPPED = 130


class Parser(argparse.ArgumentParser):
    """argparse with this project's error policy: one sentence, exit code 2."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter, **kwargs)

    def error(self, message: str) -> NoReturn:
        sys.stderr.write(f"error: {message}: see {self.prog} --help\n")
        raise SystemExit(EXIT_USER_ERROR)


def add_config_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--student", metavar="NAME", help="a student of config/models.yaml, or auto")
    parser.add_argument("--config", metavar="FILE", type=Path, help="YAML with some of config/training.yaml's keys")
    parser.add_argument(
        "--set", metavar="KEY=VALUE", action="append", default=[], dest="overrides", help="override one key; repeatable"
    )
    parser.add_argument("--seed", type=int, metavar="N", help="seed of everything random")


def resolve(args: argparse.Namespace, extra: dict[str, Any] | None = None) -> Config:
    """The configuration of parsed arguments; flags win over `--set`, `--set` over `--config`."""
    flags: dict[str, Any] = {}
    if args.student is not None:
        flags["student"] = args.student
    if args.seed is not None:
        flags["seed"] = args.seed
    return load_config(args.config, [*args.overrides, flags, extra or {}])


class Stop:
    """Ctrl-C once asks the run to end at the next safe place; twice ends it at once."""

    def __init__(self) -> None:
        self.asked = False
        self.previous = signal.signal(signal.SIGINT, self.handle)

    def handle(self, number: int, frame: Any) -> None:
        self.asked = True
        signal.signal(signal.SIGINT, self.previous)
        sys.stderr.write("\nending at the next safe place; Ctrl-C again ends at once\n")

    def __call__(self) -> bool:
        return self.asked


def guarded(command: Callable[[], int]) -> int:
    """Run a command; an error the user can fix is one sentence and exit code 2."""
    # transformers' trainer imports it before our own modules can: it tells of kernels that a CPU could have.
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
    try:
        return command()
    except AlphaZeroError as error:
        sys.stderr.write(f"error: {error}\n")
        return EXIT_USER_ERROR
    except KeyboardInterrupt:
        sys.stderr.write("stopped\n")
        return EXIT_STOPPED
