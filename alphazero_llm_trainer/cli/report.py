"""The `report` and `compare` commands: what runs that are there already reached."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from .base import add_json, check_out, print_json


def add_report(commands: Any) -> None:
    parser = commands.add_parser("report", help="write report.html of a folder that train, eval or value wrote")
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="such as checkpoints/run-001")
    parser.add_argument("--out", type=Path, metavar="DIR", help="where the page goes (default: into the folder)")
    parser.set_defaults(run=run_report)


def add_compare(commands: Any) -> None:
    parser = commands.add_parser("compare", help="two training runs side by side, paired by problem")
    parser.add_argument("runs", nargs=2, type=Path, metavar="RUN", help="such as checkpoints/run-001")
    add_json(parser)
    parser.set_defaults(run=run_compare)


def run_report(args: argparse.Namespace) -> int:
    from ..report.folder import write_report

    check_out(args.out)
    print(write_report(args.folder, args.out))
    return 0


def run_compare(args: argparse.Namespace) -> int:
    from ..report.compare import comparison_facts, comparison_text, load_runs

    runs = load_runs(args.runs)
    print_json(comparison_facts(runs)) if args.json else print(comparison_text(runs))
    return 0
