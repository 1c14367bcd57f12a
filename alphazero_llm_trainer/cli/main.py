"""The console script `alphazero-llm-trainer`: its parser with every command, and its entry."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial

from .. import __version__
from .base import Parser, add_flags, run_command
from .compare import add_compare
from .critics import add_critic
from .eval import add_eval
from .export import add_export
from .fetch import add_fetch
from .info import add_info
from .merge import add_merge
from .report import add_report
from .sample import add_sample
from .search import add_search
from .serve import add_serve
from .sft import add_sft
from .train import add_train
from .view import add_view

PROGRAM = "alphazero-llm-trainer"
COMMANDS = (
    add_info, add_search,  # look around
    add_train, add_sft, partial(add_critic, kind="value"), partial(add_critic, kind="prm"),
    add_eval, add_compare, add_view, add_report,
    add_sample, add_export, add_fetch,  # data and models
    add_serve, add_merge,  # use the student
)  # fmt: skip
EPILOG = f"""\
{PROGRAM} COMMAND --help lists a command's options. The first line to try: {PROGRAM} search"""


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
    for add in COMMANDS:
        add(commands)
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
