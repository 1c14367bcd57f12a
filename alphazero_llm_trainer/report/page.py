"""One self-contained HTML page: a headline, charts, tables and texts; nothing is fetched or run;
light and dark.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path

STYLE = Path(__file__).parent / "assets" / "report.css"
NUMBER = re.compile(r"[-+$]?\d.{0,50}$|$")  # and an empty cell

Rows = Sequence[Sequence[str]]


def page(title: str, parts: Iterable[str]) -> str:
    """The whole document; `parts` are HTML already, `title` is text."""
    style = STYLE.read_text(encoding="utf-8")
    return (
        '<!doctype html>\n<html lang="en"><head><meta '
        f'charset="utf-8"><title>{escape(title)}</title>'
        '<meta http-equiv="Content-Security-Policy"'
        " content=\"default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action "
        "'none'\">"
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{style}</style></head><body>\n<h1>{escape(title)}</h1>\n"
        + "\n".join(parts)
        + "\n</body></html>\n"
    )


def framed(html: str) -> str:
    """A whole page inside a notebook's cell: its styles and scripts stay its own."""
    return f'<iframe srcdoc="{escape(html)}" style="width: 100%; height: 40em; border: 0"></iframe>'


def hero(big: str, verdict: str, kind: str, facts: Iterable[tuple[str, str]]) -> str:
    """What the page is about: one large number, what it means ("good", "bad" or ""), and a few
    facts by name.
    """
    cards = "".join(
        f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in facts
    )
    top = f'<p class="big">{escape(big)}</p><p class="verdict">{escape(verdict)}</p>'
    return f'<div class="hero {kind}">{top}</div><dl>{cards}</dl>'


def heading(words: str) -> str:
    return f"<h2>{escape(words)}</h2>"


def paragraph(words: str, kind: str = "") -> str:
    return f'<p class="{kind}">{escape(words)}</p>'


def table(rows: Rows) -> str:
    """A table, its head first; columns of numbers are right-aligned, a cell longer than 60
    characters wraps.
    """
    numeric = [all(map(NUMBER.match, column[1:])) for column in zip(*rows, strict=True)]

    def line(row: Sequence[str], tag: str) -> str:
        kinds = [
            "text" if len(cell) > 60 else "" if right else "left"
            for cell, right in zip(row, numeric, strict=True)
        ]
        return "".join(
            f'<{tag} class="{kind}">{escape(cell)}</{tag}>'
            for cell, kind in zip(row, kinds, strict=True)
        )

    body = "".join(f"<tr>{line(row, 'td')}</tr>" for row in rows[1:])
    head = f"<thead><tr>{line(rows[0], 'th')}</tr></thead>"
    return f'<div class="wide"><table>{head}<tbody>{body}</tbody></table></div>'


def figures(charts: Iterable[str], caption: str = "") -> str:
    """Charts side by side as far as there is room, with one caption."""
    shown = "".join(charts)
    return f'<div class="charts">{shown}</div>{paragraph(caption, "soft")}' if shown else ""


def folded(summary: str, inside: str) -> str:
    return f"<details><summary>{escape(summary)}</summary>{inside}</details>"


def link(target: str, words: str) -> str:
    return f'<p><a href="{escape(target)}">{escape(words)}</a></p>'
