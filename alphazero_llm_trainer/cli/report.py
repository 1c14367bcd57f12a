"""The `report` command: what a folder that is there already holds, as a page."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from ..errors import ConfigError
from .base import check_out


def add_report(commands: Any) -> None:
    parser = commands.add_parser(
        "report",
        help="write report.html of a folder that train, eval or value wrote, or of several runs",
    )
    about = "such as checkpoints/run-001; several runs give one page, with --out"
    parser.add_argument("folders", type=Path, nargs="+", metavar="FOLDER", help=about)
    parser.add_argument("--out", type=Path, help="where the page goes (default: into the folder)")
    parser.set_defaults(run=run_report)


def run_report(args: argparse.Namespace) -> int:
    from ..report.folder import write_report
    from ..report.runs import write_runs

    check_out(args.out)
    if len(args.folders) == 1:
        print(write_report(args.folders[0], args.out))
    elif args.out is None:
        raise ConfigError("--out is missing: name a folder for the page of several runs")
    else:
        print(write_runs(args.folders, args.out))
    return 0
