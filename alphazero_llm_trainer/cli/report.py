"""The `report` command: what a folder that is there already holds, as a page."""

from __future__ import annotations

import argparse

from ..errors import ConfigError
from .base import check_save_files


def run_report(args: argparse.Namespace) -> int:
    """Write the page, and the files of --save."""
    from ..files import numbered_folders
    from ..report.eval_page import EvaluationTable
    from ..report.folder_page import RESULTS, write_report
    from ..report.runs import RunTable, read_runs
    from ..report.trees import load_json

    check_save_files(args)
    [folder, *others] = args.folders
    if others and args.out is None:
        raise ConfigError("--out is missing: name a folder for the page of several runs")
    if others or numbered_folders(folder, "seed"):
        print(RunTable(read_runs(args.folders, finished=False)).write(args.out or folder))
    else:
        print(write_report(folder, args.out))
    if args.save:
        results = load_json(folder / RESULTS)
        table = (
            RunTable(read_runs(args.folders, finished=False))
            if results is None
            else EvaluationTable(results)
        )
        table.save(*args.save)
    return 0
