"""One self-contained HTML page: tables, figures and texts, no network, light and dark."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

STYLE = """
:root { color-scheme: light dark; --bg: #ffffff; --ink: #1a1d21; --soft: #5b6570; --line: #d9dee4; --card: #f6f8fa;
  --good: #17713a; --bad: #a8321f; --link: #0a5cad; }
@media (prefers-color-scheme: dark) { :root { --bg: #14171b; --ink: #e4e8ec; --soft: #9aa5b1; --line: #323942;
  --card: #1c2127; --good: #62c48a; --bad: #ef8e7b; --link: #7ab8f5; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 72rem; padding: 1.5rem 1.25rem 4rem; background: var(--bg); color: var(--ink);
  font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.5rem; margin: 0 0 .25rem; } h2 { font-size: 1.15rem; margin: 2.2rem 0 .6rem; }
p { margin: .4rem 0; max-width: 52rem; } .soft { color: var(--soft); } a { color: var(--link); }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: .9rem; font-variant-numeric: tabular-nums; }
th, td { padding: .28rem .7rem; border-bottom: 1px solid var(--line); text-align: right; white-space: nowrap; }
th { color: var(--soft); font-weight: 600; } th:first-child, td:first-child { text-align: left; padding-left: 0; }
td.text { text-align: left; white-space: normal; min-width: 16rem; }
figure { margin: .4rem 0; } figure svg { max-width: 100%; height: auto; display: block; }
figcaption { color: var(--soft); font-size: .85rem; }
pre { background: var(--card); border: 1px solid var(--line); border-radius: 6px; padding: .7rem .9rem; overflow-x: auto;
  font: 12.5px/1.45 ui-monospace, monospace; margin: .4rem 0; }
details { margin: .5rem 0; } summary { cursor: pointer; color: var(--link); }
.good { color: var(--good); } .bad { color: var(--bad); }
"""

Row = Sequence[str]


def page(title: str, under: str, parts: Iterable[str]) -> str:
    """The whole document; `parts` are HTML already, `title` and `under` are text."""
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{STYLE}</style></head><body>\n<h1>{escape(title)}</h1><p class=soft>{escape(under)}</p>\n"
        + "\n".join(parts)
        + "\n</body></html>\n"
    )


def heading(text: str) -> str:
    return f"<h2>{escape(text)}</h2>"


def paragraph(text: str, kind: str = "") -> str:
    return f'<p class="{kind}">{escape(text)}</p>' if kind else f"<p>{escape(text)}</p>"


def table(head: Row, rows: Iterable[Row]) -> str:
    """A table; the first column is left-aligned, a cell longer than 60 characters wraps."""
    top = "".join(f"<th>{escape(cell)}</th>" for cell in head)
    body = "".join("<tr>" + "".join(map(cell_of, row)) + "</tr>" for row in rows)
    return f'<div class="wide"><table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>'


def cell_of(text: str) -> str:
    return f'<td class="text">{escape(text)}</td>' if len(text) > 60 else f"<td>{escape(text)}</td>"


def figure(svg: str, caption: str = "") -> str:
    """An SVG with its caption, which is its name for a screen reader too."""
    named = svg.replace("<svg ", f'<svg aria-label="{escape(caption or "figure")}" ', 1)
    under = f"<figcaption>{escape(caption)}</figcaption>" if caption else ""
    return f"<figure>{named}{under}</figure>"


def preformatted(text: str) -> str:
    return f"<pre>{escape(text)}</pre>"


def folded(summary: str, inside: str) -> str:
    return f"<details><summary>{escape(summary)}</summary>{inside}</details>"


def link(target: str, text: str) -> str:
    return f'<a href="{escape(target)}">{escape(text)}</a>'


def number(value: float | None, digits: int = 3) -> str:
    return "" if value is None else f"{value:,.{digits}f}"


def interval(found: Sequence[float], sign: str = "") -> str:
    """`value [low, high]`."""
    value, low, high = found
    return f"{value:{sign}.3f} [{low:{sign}.3f}, {high:{sign}.3f}]"
