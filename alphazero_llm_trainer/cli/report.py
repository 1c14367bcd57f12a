"""The `report` command: what a folder that is there already holds, as a page."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from .base import check_out


def add_report(commands: Any) -> None:
    parser = commands.add_parser(
        "report", help="write report.html of a folder that train, eval or value wrote"
    )
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="such as checkpoints/run-001")
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="where the page goes (default: into the folder)"
    )
    parser.set_defaults(run=run_report)


def run_report(args: argparse.Namespace) -> int:
    from ..report.folder import write_report

    check_out(args.out)
    print(write_report(args.folder, args.out))
    return 0
