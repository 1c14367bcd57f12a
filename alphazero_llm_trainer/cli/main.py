"""The console script `alphazero-llm-trainer`: its parser with every command, and its entry."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from .base import Parser, guarded
from .eval import add_eval
from .export import add_export
from .grade import add_grade
from .info import add_info
from .ladder import add_ladder
from .loop import add_loop
from .merge import add_merge
from .prm import add_prm
from .report import add_compare, add_report
from .sample import add_sample
from .search import add_search
from .serve import add_serve
from .sft import add_sft
from .train import add_train
from .value import add_value
from .view import add_view

COMMANDS = (
    add_train,
    add_sft,
    add_search,
    add_sample,
    add_export,
    add_view,
    add_value,
    add_prm,
    add_eval,
    add_ladder,
    add_loop,
    add_merge,
    add_serve,
    add_grade,
    add_report,
    add_compare,
    add_info,
)


def build_parser() -> argparse.ArgumentParser:
    """The parser of `alphazero-llm-trainer` with all its commands; nothing runs."""
    parser = Parser(prog="alphazero-llm-trainer", description="AlphaZero for language-model reasoning.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND", parser_class=Parser)
    for add in COMMANDS:
        add(commands)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command that `argv` names (None: the process's arguments) and return its exit code."""
    args = build_parser().parse_args(argv)
    return guarded(lambda: args.run(args))
