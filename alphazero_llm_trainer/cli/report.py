"""The `report` and `compare` commands: pages about runs that are there already."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from ..errors import DataError
from ..files import refused, write_whole
from .base import add_json, check_out, print_json


def add_report(commands: Any) -> None:
    parser = commands.add_parser("report", help="write report.html of a folder that train, eval or value wrote")
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="such as checkpoints/run-001")
    parser.add_argument("--out", type=Path, metavar="DIR", help="where the page goes (default: into the folder)")
    parser.set_defaults(run=run_report)


def add_compare(commands: Any) -> None:
    parser = commands.add_parser("compare", help="two training runs side by side, paired by problem")
    parser.add_argument("runs", nargs=2, type=Path, metavar="RUN", help="such as checkpoints/run-001")
    parser.add_argument("--out", type=Path, metavar="FILE", help="also write the page there, with curves")
    add_json(parser)
    parser.set_defaults(run=run_compare)


def run_report(args: argparse.Namespace) -> int:
    from ..report.folder import write_report

    if not args.folder.is_dir():
        raise DataError(f"{args.folder} is not a folder: name one such as checkpoints/run-001")
    try:
        print(write_report(args.folder, args.out))
    except OSError as error:
        raise refused("--out", args.out or args.folder, error, "name another folder") from error
    return 0


def run_compare(args: argparse.Namespace) -> int:
    from ..report.compare import comparison_facts, comparison_page, comparison_text, load_runs

    check_out(args.out, file=True)
    runs = load_runs(args.runs)
    if args.json:
        print_json(comparison_facts(runs))
    else:
        print(comparison_text(runs))
    if args.out is not None:
        try:
            write_whole(args.out, comparison_page(runs))
        except OSError as error:
            raise refused("--out", args.out, error, "name another file") from error
        if not args.json:
            print(args.out)
    return 0
