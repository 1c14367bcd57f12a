"""The console script's `view`: a run, a journal or one search as a self-contained HTML page."""

from __future__ import annotations

import argparse
import re
import webbrowser
from collections.abc import Iterable, Iterator
from pathlib import Path

from ..errors import ConfigError, DataError
from ..report.trees import TreeReader, chosen_records, records_of, title_of
from ..tree.journal import JOURNAL, journal_of
from ..types import JsonObject
from ..viewer.page import MOST_ROWS, MOST_TREES, RUN_PAGE, run_page, tree_page
from .base import check_least, check_out


def run_view(args: argparse.Namespace) -> int:
    """Write the page and say where it is."""
    check_least(1, trees=args.trees)
    check_out(args.out, file=True)
    path, question = journal_of(args.run_or_journal), args.question
    reader, title = TreeReader(path), title_of(path)
    records: Iterable[JsonObject] = records_of(path)
    if question is not None:
        records, title = chosen_records(path, question), f"{question} · {title}"
    if path.suffix == ".json" or (isinstance(records, list) and len(records) == 1):
        if args.trees is not None:
            raise ConfigError("--trees is of a list's page, and this is one tree: leave it out")
        text, what = tree_page(reader(next(iter(records))), title=title), "1 tree"
    else:
        count = 0

        def count_views() -> Iterator[JsonObject]:
            nonlocal count
            for record in records:
                count += 1
                yield reader(record)

        text = run_page(count_views(), title=title, limit=args.trees or MOST_TREES)
        if not count:
            raise DataError(
                f"{path} holds no finished tree: wait for its first one, or name another journal"
            )
        what = f"{count:,} questions"
        if count > MOST_ROWS:
            listed = "are listed (mixed outcomes first; --question ID shows any other)"
            what += f", of which {MOST_ROWS:,} {listed},"
    out = args.out or default_out(path, question)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(text, encoding="utf-8")
    print(f"{what} in {out} ({len(text) / 1e6:.1f} MB)")
    if args.open:
        webbrowser.open(out.resolve().as_uri())
    return 0


def default_out(path: Path, question: str | None) -> Path:
    """The folder's own page for a run, the journal's name with .html elsewhere; a question's id is
    added.
    """
    stem = Path(RUN_PAGE).stem if path.name == JOURNAL else path.stem
    if question is not None:
        stem += "-" + re.sub(r"[^\w.-]+", "-", question)
    return path.parent / f"{stem}.html"
