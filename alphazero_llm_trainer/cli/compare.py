"""The `compare` command: two settings over seeds."""

from __future__ import annotations

import argparse

from .base import check_save_files, print_json


def run_compare(args: argparse.Namespace) -> int:
    """Print the gain and the runs; write the page where it is asked for."""
    check_save_files(args)
    from ..api.compare import compare

    result = compare(args.first, args.against, args.out)
    result.save(*args.save)
    if args.json:
        print_json(result.facts)
        return 0
    print(result)
    if args.out is not None:
        print(f"report.html is in {args.out}")
    return 0
