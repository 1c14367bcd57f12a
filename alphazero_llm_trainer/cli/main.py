"""The console script `alphazero-llm-trainer`: its parser with every command, and its entry."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from importlib import import_module
from typing import Any

from .. import __version__
from ..eval.names import METHOD_NAMES
from .base import Parser, add_flags, read_flags, run_command

PROGRAM = "alphazero-llm-trainer"
# What runs a command, as FILE.FUNCTION of this folder: it is imported once the command is known.
COMMANDS = {
    "info": "info.run_info",
    "search": "search.run_search",
    "train": "train.run_train",
    "sft": "sft.run_sft",
    "value": "critics.run_critic",
    "prm": "critics.run_critic",
    "eval": "eval.run_eval",
    "compare": "compare.run_compare",
    "view": "view.run_view",
    "report": "report.run_report",
    "sample": "sample.sample_questions",
    "export": "export.run_export",
    "fetch": "fetch.run_fetch",
    "serve": "serve.run_serve",
    "merge": "merge.run_merge",
}
DEFAULTS: dict[str, dict[str, Any]] = {"eval": {"methods": [*METHOD_NAMES]}}
EPILOG = f"""\
{PROGRAM} COMMAND --help lists a command's options. The first line to try: {PROGRAM} search"""


def import_and_run(place: str, args: argparse.Namespace) -> int:
    """Run the command whose function is at `place`; its exit code."""
    file, _, name = place.partition(".")
    return getattr(import_module(f"{__package__}.{file}"), name)(args)


def build_parser() -> Parser:
    """The parser of `alphazero-llm-trainer` with all its commands; nothing runs."""
    parser = Parser(
        prog=PROGRAM, description="AlphaZero for language-model reasoning.", epilog=EPILOG
    )
    add_flags(parser, PROGRAM)
    parser.add_argument("--version", action="version", version=f"{PROGRAM} {__version__}")
    commands = parser.add_subparsers(
        title="commands", dest="command", metavar="COMMAND", parser_class=Parser
    )
    for name, run in COMMANDS.items():
        command = commands.add_parser(name, **read_flags()["about"][name])
        add_flags(command, name)
        command.set_defaults(run=partial(import_and_run, run), **DEFAULTS.get(name, {}))
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command that `argv` names (None: the process's arguments) and return its exit
    code.
    """
    argv = sys.argv[1:] if argv is None else argv
    parser = build_parser()
    if not [word for word in argv if word not in ("-q", "-v", "--quiet", "--verbose")]:
        parser.print_help()
        return 0
    return run_command(parser, argv)
