"""The `compare` command: two settings over seeds."""

from __future__ import annotations

import argparse
from typing import Any

from .base import add_command, check_out, print_json

EPILOG = """\
    alphazero-llm-trainer compare runs/grpo-1 runs/grpo-2 -- runs/rft-1 runs/rft-2

The gain is of the second setting over the first, on the same held-out problems. Its 95% interval is over problems and
seeds. Runs of a setting differ in their seed alone."""


def add_compare(commands: Any) -> None:
    about = "compare two trained settings over seeds"
    parser, _ = add_command(commands, "compare", run_compare, about, EPILOG)
    parser.dashes = "--against"


def run_compare(args: argparse.Namespace) -> int:
    """Print the gain and the runs; write the page where it is asked for."""
    check_out(args.out)
    from ..api.compare import compare

    result = compare(args.first, args.against, args.out)
    if args.json:
        print_json(result.facts)
        return 0
    print(result)
    if args.out is not None:
        print(f"report.html is in {args.out}")
    return 0
