"""The `export` command: tree journals as Parquet tables, or as episodes of verifiers."""

from __future__ import annotations

import argparse

from ..errors import DataError
from ..runs.export import SUFFIXES, export_rows
from .base import check_out, print_json


def run_export(args: argparse.Namespace) -> int:
    """Write one kind, or all of them, and say how many rows there are."""
    whole = args.kind == "all"
    data = args.run_folder or args.data
    if not data.is_dir():
        raise DataError(f"RUN {data} is no folder: name one that `sample` or `train` wrote")
    check_out(args.out, file=not whole)
    files = (
        {kind: args.out / f"{kind}{suffix}" for kind, suffix in SUFFIXES.items()}
        if whole
        else {args.kind: args.out}
    )
    counts = {}
    # First what trees of worlds are refused for, so that nothing is written then.
    for kind in sorted(files, key="value".__eq__):
        out = files[kind]
        count = export_rows(data, kind, out, every_token=args.every_token, any_split=args.any_split)
        counts[kind] = {"rows": count, "file": str(out)}
        if not args.json:
            print(f"{kind}: {count:,} rows in {out}")
    if args.json:
        print_json(counts)
    return 0
