"""`report.html` of a folder that a command wrote: everything that its JSON files tell."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..errors import DataError
from ..files import read_lines, read_object, write_whole
from ..mcts.journal import JOURNAL
from ..viewer.page import MOST_TREES, RUN_PAGE, run_page
from .critics import critic_parts
from .evaluation import evaluation_parts
from .page import link, page
from .training import training_parts
from .trees import TreeReader, records_of, title_of

RUN, METRICS = "run.json", "metrics.jsonl"
# What a folder's file says about it, and the sections it gives.
KINDS: dict[str, Callable[[dict[str, Any], Path], list[str]]] = {
    RUN: lambda card, folder: training_parts(card, read_lines(folder / METRICS)),
    "results.json": lambda card, folder: evaluation_parts(card),
    "critic.json": lambda card, folder: critic_parts(card, read_lines(folder / METRICS)),
}


def write_report(folder: Path, out: Path | None = None) -> Path:
    """Write `report.html` (and `trees.html` beside it, where the folder has a journal) into `out`,
    by default the folder.

    Raises:
        DataError: the folder has none of the files that a report is made of, or one that can't be
            read.
    """
    out = folder if out is None else out
    parts = parts_of(folder)
    if not parts:
        raise DataError(
            f"{folder} has none of {', '.join(KINDS)}: name a folder that a command wrote"
        )
    out.mkdir(parents=True, exist_ok=True)
    if (folder / JOURNAL).is_file():
        journal = folder / JOURNAL
        trees = map(TreeReader(journal), records_of(journal))
        write_whole(out / RUN_PAGE, run_page(trees, title=title_of(journal), limit=MOST_TREES))
        parts.insert(0, link(RUN_PAGE, "All questions and trees"))
    write_whole(out / "report.html", page(folder.name, parts))
    return out / "report.html"


def parts_of(folder: Path) -> list[str]:
    """A folder's sections; none where nothing in it is known. Raises DataError for another file of
    a known name.
    """
    parts: list[str] = []
    for name, sections in KINDS.items():
        card = load(folder / name)
        # An evaluation's card.
        if card is None or (name == RUN and not {"method", "config"} <= card.keys()):
            continue
        try:
            parts += sections(card, folder)
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise DataError(
                f"{folder / name} is not what this version's commands write ({error!r}): name "
                "another folder"
            ) from error
    return parts


def load(path: Path) -> dict[str, Any] | None:
    """A JSON mapping, or None where there is no such file. Raises DataError for anything else."""
    try:
        return read_object(path) if path.exists() else None
    except (OSError, ValueError) as error:
        raise DataError(
            f"{path} is not a readable JSON object: remove it, or name another folder"
        ) from error
