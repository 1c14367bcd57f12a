"""The `report` command: what a folder that is there already holds, as a page."""

from __future__ import annotations

import argparse

from ..errors import ConfigError
from .base import check_out


def run_report(args: argparse.Namespace) -> int:
    from ..report.folder_page import write_report
    from ..report.runs import write_runs

    check_out(args.out)
    if len(args.folders) == 1:
        print(write_report(args.folders[0], args.out))
    elif args.out is None:
        raise ConfigError("--out is missing: name a folder for the page of several runs")
    else:
        print(write_runs(args.folders, args.out))
    return 0
