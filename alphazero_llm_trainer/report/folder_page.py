"""`report.html` of a folder that a command wrote: everything that its JSON files tell."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from markupsafe import Markup

from ..errors import DataError
from ..files import make_folder, near_folder, read_lines, write_whole
from ..tree.journal import JOURNAL
from ..types import JsonObject
from ..viewer.page import MOST_TREES, RUN_PAGE, run_page
from .critics import critic_page
from .eval_page import evaluation_page
from .html import write_page
from .training import training_page
from .trees import TreeReader, load_json, records_of, title_of

RUN, RESULTS, METRICS = "run.json", "results.json", "metrics.jsonl"
# What a folder's file says about it, and what a page says of that and the folder's metrics.
PAGE_PARTS: dict[str, Callable[[JsonObject, list[JsonObject]], Markup]] = {
    RUN: training_page,
    RESULTS: lambda card, metrics: evaluation_page(card),
    "critic.json": critic_page,
}


def write_report(folder: Path, out: Path | None = None) -> Path:
    """Write `report.html` (and `trees.html` beside it, where the folder has a journal) into `out`,
    by default the folder.

    Raises:
        DataError: the folder has none of the files that a report is made of, or one that can't be
            read.
    """
    out = folder if out is None else out
    parts = folder_parts(folder)
    if not parts:
        fix = near_folder(folder, "name a folder that a command wrote")
        lacks = f"has none of {', '.join(PAGE_PARTS)}" if folder.is_dir() else "is no folder"
        raise DataError(f"{folder} {lacks}: {fix}")
    journal, trees = folder / JOURNAL, ""
    if journal.is_file():
        make_folder(out)
        records = map(TreeReader(journal), records_of(journal))
        write_whole(out / RUN_PAGE, run_page(records, title=title_of(journal), limit=MOST_TREES))
        trees = RUN_PAGE
    return write_page(out, folder.name, parts, trees)


def folder_parts(folder: Path) -> list[Markup]:
    """What a page says of a folder; nothing where nothing in it is known. Raises DataError for
    another file of a known name.
    """
    parts = list[Markup]()
    for name, part in PAGE_PARTS.items():
        card = load_json(folder / name)
        # An evaluation's card.
        if card is None or (name == RUN and not {"method", "config"} <= card.keys()):
            continue
        try:
            parts.append(part(card, read_lines(folder / METRICS)))
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise DataError(
                f"{folder / name} is not what this version's commands write ({error!r}): name "
                "another folder"
            ) from error
    return parts
