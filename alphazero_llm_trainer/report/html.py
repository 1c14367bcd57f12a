"""Pages from the templates in `assets`: each is one file, in which nothing is fetched or run."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from ..files import make_folder, write_whole

NUMBER = re.compile(r"[-+$]?\d.{0,50}$|$")  # and an empty cell

TableRows = Sequence[Sequence[str]]


def column_alignments(rows: TableRows) -> list[str]:
    """The class of each column of a table, whose head is first: "" (to the right) for numbers, else
    "left".
    """
    columns = zip(*rows, strict=True)
    return ["" if all(map(NUMBER.match, column[1:])) else "left" for column in columns]


TEMPLATES = Environment(
    loader=FileSystemLoader(Path(__file__).parent / "assets"),
    autoescape=True,
    trim_blocks=True,
    lstrip_blocks=True,
    undefined=StrictUndefined,
)
TEMPLATES.filters["alignments"] = column_alignments


def render_template(template: str, **facts: Any) -> Markup:
    """A template of `assets` with what it is about; texts are escaped, `Markup` isn't."""
    return Markup(TEMPLATES.get_template(template).render(facts))  # noqa: S704


def make_page(title: str, parts: Iterable[Markup], trees: str = "") -> str:
    """The whole page; `trees` is the page of its trees."""
    return str(render_template("page.html", title=title, parts=parts, trees=trees))


def write_page(folder: Path, title: str, parts: Iterable[Markup], trees: str = "") -> Path:
    """Write the page as `report.html` into `folder`, and say where it is."""
    make_folder(folder)
    write_whole(folder / "report.html", make_page(title, parts, trees))
    return folder / "report.html"


def frame_page(html: str) -> str:
    """A whole page inside a notebook's cell: its styles and scripts stay its own."""
    return f'<iframe srcdoc="{escape(html)}" style="width: 100%; height: 40em; border: 0"></iframe>'
