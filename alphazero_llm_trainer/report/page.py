"""One self-contained HTML page: a headline, charts, tables and texts; nothing is fetched or run; light and dark."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterable, Sequence
from html import escape

from . import charts
from .charts import Chart

STYLE = (
    """
:root { color-scheme: light dark; --bg: #ffffff; --ink: #1a1d21; --soft: #5b6570; --line: #d9dee4; --card: #f6f8fa;
  --good: #17713a; --bad: #a8321f; --link: #0a5cad; }
@media (prefers-color-scheme: dark) { :root { --bg: #14171b; --ink: #e4e8ec; --soft: #9aa5b1; --line: #323942;
  --card: #1c2127; --good: #62c48a; --bad: #ef8e7b; --link: #7ab8f5; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 74rem; padding: 1.5rem 1rem 4rem; background: var(--bg); color: var(--ink);
  font: 15px/1.5 system-ui, sans-serif; overflow-wrap: anywhere; }
h1 { font-size: 1.1rem; margin: 0; } h2 { font-size: 1.2rem; margin: 2.4rem 0 .6rem; }
p { margin: .4rem 0; max-width: 52rem; } .soft { color: var(--soft); } a { color: var(--link); }
.hero { margin: 1.2rem 0 0; } .hero .big { font-size: clamp(2.2rem, 9vw, 4rem); font-weight: 650; line-height: 1.1;
  letter-spacing: -.02em; font-variant-numeric: tabular-nums; margin: 0; max-width: none; }
.hero .verdict { font-size: 1.15rem; } .good .verdict { color: var(--good); } .bad .verdict { color: var(--bad); }
dl { display: flex; flex-wrap: wrap; gap: .6rem; margin: 1rem 0 0; }
dl div { background: var(--card); border: 1px solid var(--line); border-radius: 8px; padding: .45rem .8rem; }
dt { color: var(--soft); font-size: .8rem; } dd { margin: 0; font-weight: 600; font-variant-numeric: tabular-nums; }
.charts { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 21rem), 1fr)); gap: 1.6rem 2rem;
  margin: .8rem 0; }
figure { margin: 0; max-width: 30rem; }
figure > svg { width: 100%; height: auto; display: block; overflow: visible; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: .9rem; font-variant-numeric: tabular-nums; margin: .6rem 0; }
th, td { padding: .28rem .7rem; border-bottom: 1px solid var(--line); text-align: right; white-space: nowrap; }
th { color: var(--soft); font-weight: 600; } th:first-child, td:first-child { text-align: left; padding-left: 0; }
@media (max-width: 30rem) { th, td { padding: .28rem .4rem; } td.left { white-space: normal; } }
.left, .text { text-align: left; } .text { white-space: normal; min-width: 16rem; }
pre { background: var(--card); border: 1px solid var(--line); border-radius: 6px; padding: .7rem .9rem; overflow-x: auto;
  font: 12.5px/1.45 ui-monospace, monospace; margin: .4rem 0; overflow-wrap: normal; }
details { margin: .5rem 0; } summary { cursor: pointer; color: var(--link); }
"""
    + charts.STYLE
)
NUMBER = re.compile(r"[-+$]?\d.{0,50}$|$")  # and an empty cell

Rows = Sequence[Sequence[str]]


def page(title: str, parts: Iterable[str]) -> str:
    """The whole document; `parts` are HTML already, `title` is text."""
    digest = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        '<meta http-equiv="Content-Security-Policy"'
        f" content=\"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'\">"
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{STYLE}</style></head><body>\n<h1>{escape(title)}</h1>\n" + "\n".join(parts) + "\n</body></html>\n"
    )


def hero(big: str, verdict: str, kind: str, facts: Iterable[tuple[str, str]]) -> str:
    """What the page is about: one large number, what it means ("good", "bad" or ""), and a few facts by name."""
    cards = "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in facts)
    top = f'<p class="big">{escape(big)}</p><p class="verdict">{escape(verdict)}</p>'
    return f'<div class="hero {kind}">{top}</div><dl>{cards}</dl>'


def heading(words: str) -> str:
    return f"<h2>{escape(words)}</h2>"


def paragraph(words: str, kind: str = "") -> str:
    return f'<p class="{kind}">{escape(words)}</p>'


def table(rows: Rows) -> str:
    """A table, its head first; columns of numbers are right-aligned, a cell longer than 60 characters wraps."""
    numeric = [all(map(NUMBER.match, column[1:])) for column in zip(*rows, strict=True)]

    def line(row: Sequence[str], tag: str) -> str:
        kinds = [
            "text" if len(cell) > 60 else "" if right else "left" for cell, right in zip(row, numeric, strict=True)
        ]
        return "".join(f'<{tag} class="{kind}">{escape(cell)}</{tag}>' for cell, kind in zip(row, kinds, strict=True))

    body = "".join(f"<tr>{line(row, 'td')}</tr>" for row in rows[1:])
    return f'<div class="wide"><table><thead><tr>{line(rows[0], "th")}</tr></thead><tbody>{body}</tbody></table></div>'


def figures(drawn: Iterable[Chart | None], caption: str = "") -> str:
    """Charts side by side as far as there is room, with one caption; None is left out."""
    shown = "".join(f"<figure>{chart.svg()}</figure>" for chart in drawn if chart is not None)
    return f'<div class="charts">{shown}</div>{paragraph(caption, "soft")}' if shown else ""


def folded(summary: str, inside: str, opened: bool = False) -> str:
    return f"<details{' open' * opened}><summary>{escape(summary)}</summary>{inside}</details>"


def link(target: str, words: str) -> str:
    return f'<p><a href="{escape(target)}">{escape(words)}</a></p>'
