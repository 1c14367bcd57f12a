"""`report.html` of a folder that a command wrote: everything that its JSON files tell."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

from ..errors import DataError
from ..view_command import Reader, find_source
from ..viewer.page import MOST_TREES, RUN_PAGE, run_page
from .comparison import evaluation_parts, ladder_parts
from .generations import loop_parts, value_parts
from .page import heading, link, page
from .training import training_parts

Made = TypeVar("Made")
# What a folder's file says about it, and the sections it gives.
KINDS: dict[str, Callable[[Mapping[str, Any]], list[str]]] = {
    "ladder.json": ladder_parts,
    "loop.json": loop_parts,
    "results.json": evaluation_parts,
    "value.json": value_parts,
}
INSIDE = ("value/value.json", "champion/value/value.json")  # of a folder that holds more than one command's work
RUN, METRICS, JOURNAL = "run.json", "metrics.jsonl", "journal.jsonl"


def write_report(folder: Path, out: Path | None = None) -> Path:
    """Write `report.html` (and `trees.html` beside it, where the folder has a journal) into `out`, by default the folder.

    Raises:
        DataError: the folder has none of the files that a report is made of, or one that can't be read.
    """
    out = folder if out is None else out
    parts, title, under = parts_of(folder)
    if not parts:
        names = ", ".join([RUN, *KINDS])
        raise DataError(f"{folder} has none of {names}: name a folder that train, eval, ladder, loop or value wrote")
    for path in sorted(chain.from_iterable(folder.glob(pattern) for pattern in INSIDE)):
        inner, _, _ = parts_of(path.parent)
        parts += [heading(str(path.parent.relative_to(folder))), *inner]
    out.mkdir(parents=True, exist_ok=True)
    if (folder / JOURNAL).is_file():
        source = find_source(folder)
        trees = map(Reader(source, None), source)
        write(out / RUN_PAGE, run_page(trees, title=source.title, limit=MOST_TREES))
        if not (folder / RUN).is_file():  # a run's page leads there from its example trees
            parts.append(f"<p>{link(RUN_PAGE, 'All questions and trees')}</p>")
    images = [path.name for path in sorted(folder.glob("*.png"))] if out == folder else []
    if images:
        parts.append("<p>" + " ".join(link(name, name) for name in images) + "</p>")
    write(out / "report.html", page(title, under, parts))
    return out / "report.html"


def parts_of(folder: Path) -> tuple[list[str], str, str]:
    """A folder's sections, title and what stands under it; no sections where nothing in it is known."""
    card = load(folder / RUN)
    if card is not None and "method" in card and "config" in card:
        return told(lambda card: of_run(card, folder), card, folder / RUN)
    parts: list[str] = []
    for name, make in KINDS.items():
        found = load(folder / name)
        if found is not None:
            parts += told(make, found, folder / name)
    return parts, folder.name, ""


def of_run(card: Mapping[str, Any], folder: Path) -> tuple[list[str], str, str]:
    """A training run's sections, title and what stands under it."""
    under = f"{folder.name}, seed {card['seed']}, {card['questions']:,} training questions in {card['rounds']} rounds"
    parts = training_parts(card, lines_of(folder / METRICS), folder / JOURNAL)
    return parts, f"{card['method']} on {card['student']}", under


def told(make: Callable[[Mapping[str, Any]], Made], found: Mapping[str, Any], path: Path) -> Made:
    """What `make` makes of a file. Raises DataError where it is another file of that name."""
    try:
        return make(found)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise DataError(f"{path} is not what this version's commands write ({error!r}): name another folder") from error


def load(path: Path) -> dict[str, Any] | None:
    """A JSON mapping, or None where there is no such file."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise DataError(f"{path} can't be read as JSON: mend or remove it") from error
    return found if isinstance(found, dict) else None


def lines_of(path: Path) -> list[dict[str, Any]]:
    """The JSON lines of a file that a running process may be writing; a half-written last one is left out."""
    if not path.is_file():
        return []
    text = path.read_text(encoding="utf-8")
    try:
        return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]
    except ValueError as error:
        raise DataError(f"{path} has a line that is not JSON: remove that line") from error


def write(path: Path, text: str) -> None:
    """Write a file in one move."""
    temporary = path.with_name(path.name + ".part")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)
