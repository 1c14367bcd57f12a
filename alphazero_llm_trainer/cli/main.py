"""The console script `alphazero-llm-trainer`: its parser with every command, and its entry."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from .. import __version__
from ..runs.export import ROLLOUTS
from ..viewer.page import MOST_ROWS
from .base import Parser, add_flags, read_flags, run_command
from .compare import run_compare
from .critics import run_critic
from .eval import add_methods, run_eval
from .export import run_export
from .fetch import run_fetch
from .info import run_info
from .merge import run_merge
from .report import run_report
from .sample import sample_questions
from .search import run_search
from .serve import KEY_VARIABLE, run_serve
from .sft import run_sft
from .train import add_method, run_train
from .view import run_view

PROGRAM = "alphazero-llm-trainer"
COMMANDS = {
    "info": run_info,
    "search": run_search,
    "train": run_train,
    "sft": run_sft,
    "value": run_critic,
    "prm": run_critic,
    "eval": run_eval,
    "compare": run_compare,
    "view": run_view,
    "report": run_report,
    "sample": sample_questions,
    "export": run_export,
    "fetch": run_fetch,
    "serve": run_serve,
    "merge": run_merge,
}
# What is in a command's parser beside its flags, and what its words name.
MORE = {"info": add_method, "train": add_method, "eval": add_methods}
HELP_WORDS = {"ROLLOUTS": ROLLOUTS, "KEY_VARIABLE": KEY_VARIABLE, "MOST_ROWS": MOST_ROWS}
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
    for name, run in COMMANDS.items():
        about = read_flags()["about"][name]
        command = commands.add_parser(
            name, **{key: text.format(**HELP_WORDS) for key, text in about.items()}
        )
        command.set_defaults(run=run)
        groups = add_flags(command, name)
        if name in MORE:
            MORE[name](command, groups)
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
