"""Charts as SVG: lines over a number, and values with intervals in rows. Sized for a phone, scaled up elsewhere.

A chart says its values where the pointer is or, through the arrow keys, where the focus is. Colours are the page's.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise

from ..eval.metrics import Interval

WIDTH = 360
LEFT, RIGHT = 36, 8  # margins of a line chart's plot
PLOT = 150  # height of a line chart's plot
TOP, ROW, MARGIN = 22, 40, 14  # of a row chart: where it begins, a row's height, beside the axis
LETTER = 6.3  # width to leave for a letter
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#B8860B", "#56B4E9", "#8B5CF6", "#7F7F7F", "#A0522D", "#20B2AA")
STYLE = (
    """
.chart { font: 11px system-ui, sans-serif; fill: var(--ink); }
.chart text { fill: var(--ink); } .chart .soft { fill: var(--soft); } .chart .title { font-size: 13px; font-weight: 600; }
.chart .grid { stroke: var(--line); } .chart .reference { stroke: var(--ink); }
.chart .line { fill: none; stroke: var(--hue); stroke-width: 1.8; } .chart .bar { stroke: var(--hue); stroke-width: 3; }
.chart .whisker { stroke: var(--hue); opacity: .55; } .chart .dot { fill: var(--hue); }
.chart .branches { fill: none; stroke: var(--soft); opacity: .5; }
.chart .at { outline: none; } .chart .at > * { opacity: 0; pointer-events: none; }
.chart .at > .area { pointer-events: all; fill: transparent; }
.chart .at:hover > *, .chart .at:focus > * { opacity: 1; }
.chart .at:hover > .area, .chart .at:focus > .area { fill: var(--ink); opacity: .06; }
.chart:has(.at:hover) .at:focus:not(:hover) > * { opacity: 0; }
.chart .tip { fill: var(--card); stroke: var(--line); }
.good { --hue: var(--good); } .bad { --hue: var(--bad); } .plain { --hue: var(--soft); }
"""
    + " ".join(f".c{at} {{ --hue: {colour}; }}" for at, colour in enumerate(COLOURS))
    + "\n"
)

Series = Mapping[str, Sequence[tuple[float, Interval]]]


@dataclass(frozen=True, slots=True)
class Chart:
    """A finished chart `WIDTH` wide: SVG elements in its coordinates, below its title."""

    title: str
    height: float
    marks: Sequence[str]

    def svg(self, place: str = "") -> str:
        """The element. `place` holds more attributes, for a chart inside another SVG."""
        return (
            f'<svg class="chart" {place} viewBox="0 0 {WIDTH} {self.height:g}" tabindex="0" role="group"'
            f' aria-label="{escape(self.title)}">{text(0, 13, self.title, "title")}{"".join(self.marks)}</svg>'
        )


def target(x: float, y: float, width: float, height: float, lines: Sequence[str], most: float, mark: str = "") -> str:
    """An area that says `lines`, and shows `mark`, when it is pointed at; `most` is the chart's height."""
    wrapped = [part for line in lines for part in textwrap.wrap(line, int((WIDTH - 16) / LETTER))]
    wide, high = max(len(line) for line in wrapped) * LETTER + 16, 15 * len(wrapped) + 9
    left = x + width / 2 + 8
    left = left if left + wide < WIDTH else max(0.0, left - wide - 16)
    below = y + height + 2
    # Beside the middle of a column; below a row, or above it.
    top = y + 4 if height > ROW else below if below + high < most else y - high - 2
    shown = "".join(text(left + 8, top + 16 + 15 * at, line) for at, line in enumerate(wrapped))
    return (
        f'<g class="at" tabindex="-1" role="img" aria-label="{escape("; ".join(lines))}">'
        f'<rect class="area" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"/>{mark}'
        f'<rect class="tip" x="{left:.1f}" y="{top:.1f}" width="{wide:.1f}" height="{high}" rx="4"/>{shown}</g>'
    )


def text(x: float, y: float, words: str, kind: str = "", anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" class="{kind}">{escape(words)}</text>'


def rule(kind: str, x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def dot(kind: str, x: float, y: float, radius: float = 3) -> str:
    return f'<circle class="dot {kind}" cx="{x:.1f}" cy="{y:.1f}" r="{radius:g}"/>'


def number(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) or abs(value) >= 1000 else f"{value:.4g}"


def ticks(low: float, high: float, most: int = 5) -> list[float]:
    """Round numbers from `low` or below to `high` or above."""
    if high <= low:
        low, high = low - (abs(low) or 1) / 10, high + (abs(high) or 1) / 10
    power = 10 ** math.floor(math.log10((high - low) / most))
    step = next(power * times for times in (1, 2, 5, 10) if (high - low) / (power * times) <= most)
    return [step * at for at in range(math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9) + 1)]


def shorten(words: str, width: float) -> str:
    """What of a text fits into so many units."""
    most = max(int(width / LETTER), 4)
    return words if len(words) <= most else words[: most - 1].rstrip() + "…"


def line_chart(title: str, series: Series, x_label: str, include: Sequence[float] = ()) -> Chart | None:
    """Named lines of (x, y); None without a point. The y axis takes in the numbers `include`."""
    shown = {name: [(x, y) for x, y in points if math.isfinite(y.value)] for name, points in series.items()}
    shown = {name: points for name, points in shown.items() if points}
    if not shown:
        return None
    found = [y for points in shown.values() for _, y in points]
    ys = ticks(min([*include, *(y.low for y in found)]), max([*include, *(y.high for y in found)]))
    xs = sorted({x for points in shown.values() for x, _ in points})
    marks, top = legend(list(shown)) if len(shown) > 1 else ([], 26.0)
    bottom, right = top + PLOT, WIDTH - RIGHT

    def across(x: float) -> float:
        return LEFT + (x - xs[0]) / ((xs[-1] - xs[0]) or 1) * (right - LEFT)

    def up(y: float) -> float:
        return bottom - (y - ys[0]) / (ys[-1] - ys[0]) * PLOT

    for y in ys:
        marks += [rule("grid", LEFT, up(y), right, up(y)), text(LEFT - 5, up(y) + 4, f"{y:.6g}", "soft", "end")]
    for x in ticks(xs[0], xs[-1]):
        if xs[0] <= x <= xs[-1]:
            marks.append(text(across(x), bottom + 14, number(x), "soft", "middle"))
    marks.append(text(right, bottom + 28, x_label, "soft", "end"))
    for at, points in enumerate(shown.values()):
        colour = f"c{at % len(COLOURS)}"
        path = " L".join(f"{across(x):.1f} {up(y.value):.1f}" for x, y in points)
        marks.append(f'<path class="line {colour}" d="M{path}"/>')
        if len(shown) <= 4:
            marks += [rule(f"whisker {colour}", across(x), up(y.low), across(x), up(y.high)) for x, y in points]
        if len(points) <= 30:
            marks += [dot(colour, across(x), up(y.value)) for x, y in points]
    edges = [LEFT, *((across(a) + across(b)) / 2 for a, b in pairwise(xs)), right]
    for x, (start, end) in zip(xs, pairwise(edges), strict=True):
        lines = [f"{name}: {said(y)}" for name, points in shown.items() for place, y in points if place == x]
        cross = rule("reference", across(x), top, across(x), bottom)
        marks.append(target(start, top, end - start, PLOT, [f"{number(x)} {x_label}", *lines], bottom, cross))
    return Chart(title, bottom + 34, marks)


def said(y: Interval) -> str:
    return str(y) if y.high > y.low else number(y.value)


def legend(names: Sequence[str]) -> tuple[list[str], float]:
    """Coloured names in lines, and where the plot below them begins."""
    marks, x, y = [], 0.0, 30.0
    for at, name in enumerate(names):
        width = len(name) * LETTER + 26
        if x and x + width > WIDTH:
            x, y = 0.0, y + 15
        marks += [dot(f"c{at % len(COLOURS)}", x + 5, y - 4, 4), text(x + 13, y, name)]
        x += width
    return marks, y + 12


@dataclass(frozen=True, slots=True)
class ChartRow:
    """A value of a row chart: its colour's class, what is said when it is pointed at, single values beside it."""

    name: str
    value: Interval
    colour: str = "c0"
    notes: Sequence[str] = ()
    dots: Sequence[float] = ()


def row_chart(
    title: str, rows: Sequence[ChartRow], label: str, reference: float | None = None, sign: str = ""
) -> Chart:
    """Values with their intervals, one below the other; a mark at `reference`; `label` names the axis."""
    known = [number for row in rows for number in (row.value.low, row.value.high, *row.dots) if math.isfinite(number)]
    known += [] if reference is None else [reference]
    axis = ticks(min(known, default=0.0), max(known, default=1.0))
    bottom = TOP + ROW * len(rows)

    def across(value: float) -> float:
        return MARGIN + (value - axis[0]) / (axis[-1] - axis[0]) * (WIDTH - 2 * MARGIN)

    marks = [text(across(tick), bottom + 15, f"{tick:{sign}.4g}" if tick else "0", "soft", "middle") for tick in axis]
    marks.append(text(WIDTH, bottom + 29, label, "soft", "end"))
    for at, row in enumerate(rows):
        y, value = TOP + ROW * at, format(row.value, sign)
        name = shorten(row.name, WIDTH - (len(value) + 2) * LETTER)
        marks += [text(0, y + 14, name), text(WIDTH, y + 14, value, anchor="end")]
        marks += [rule("grid", across(tick), y + 18, across(tick), y + 30) for tick in axis]
        if reference is not None:
            marks.append(rule("reference", across(reference), y + 18, across(reference), y + 30))
        if math.isfinite(row.value.value):
            marks += [rule(f"bar {row.colour}", across(row.value.low), y + 24, across(row.value.high), y + 24)]
            marks += [dot("plain", across(value), y + 24, 2) for value in row.dots]
            marks += [dot(row.colour, across(row.value.value), y + 24, 5)]
    for at, row in enumerate(rows):
        lines = [f"{row.name}: {format(row.value, sign)}", *row.notes]
        marks.append(target(0, TOP + ROW * at, WIDTH, ROW, lines, bottom))
    return Chart(title, bottom + 34, marks)


def standalone(charts: Sequence[Chart]) -> str:
    """An SVG file of charts side by side, with colours of its own on white."""
    width, height = (WIDTH + 24) * len(charts) + 24, max(chart.height for chart in charts) + 32
    places = [
        f'x="{24 + (WIDTH + 24) * at}" y="16" width="{WIDTH}" height="{c.height:g}"' for at, c in enumerate(charts)
    ]
    inside = "".join(chart.svg(place) for chart, place in zip(charts, places, strict=True))
    colours = ".chart { --ink: #1a1d21; --soft: #5b6570; --line: #d9dee4; --card: #f6f8fa; }"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height:g}" width="{width}" height="{height:g}">'
        f'<style>{STYLE}{colours}</style><rect width="{width}" height="{height:g}" fill="#fff"/>{inside}</svg>\n'
    )
