"""Charts as SVG: lines over a number, and values with intervals in rows. Sized for a phone, scaled up elsewhere.

A mark says its value where the pointer is. Colours are the page's.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from ..eval.metrics import Interval

WIDTH = 360
LEFT, RIGHT = 36, 8  # margins of a line chart's plot
PLOT = 150  # height of a line chart's plot
TOP, ROW, MARGIN = 22, 40, 14  # of a row chart: where it begins, a row's height, beside the axis
LETTER = 6.3  # width to leave for a letter
COLOURS = 10  # classes c0, c1, ... of assets/report.css
MEANT = {"right": "c0", "mixed": "c6", "wrong": "c1"}  # blue, purple and orange, as in the viewer
Series = Mapping[str, Sequence[tuple[float, Interval]]]


@dataclass(frozen=True, slots=True)
class Chart:
    """A finished chart `WIDTH` wide: SVG elements in its coordinates, below its title."""

    title: str
    height: float
    marks: Sequence[str]

    def svg(self) -> str:
        head = f'<svg class="chart" viewBox="0 0 {WIDTH} {self.height:g}" role="img" aria-label="{escape(self.title)}">'
        return f"{head}{text(0, 13, self.title, 'title')}{''.join(self.marks)}</svg>"


def text(x: float, y: float, words: str, kind: str = "", anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" class="{kind}">{escape(words)}</text>'


def rule(kind: str, x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def dot(kind: str, x: float, y: float, said: str = "", radius: float = 3) -> str:
    """A point that says something where it is pointed at."""
    title = f"<title>{escape(said)}</title>"
    return f'<circle class="dot {kind}" cx="{x:.1f}" cy="{y:.1f}" r="{radius:g}">{title}</circle>'


def number(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) or abs(value) >= 1000 else f"{value:.4g}"


def ticks(low: float, high: float, most: int = 5) -> list[float]:
    """Round numbers from `low` or below to `high` or above."""
    if high <= low:
        low, high = low - (abs(low) or 1) / 10, high + (abs(high) or 1) / 10
    power = 10 ** math.floor(math.log10((high - low) / most))
    step = next(power * times for times in (1, 2, 5, 10) if (high - low) / (power * times) <= most)
    return [step * at for at in range(math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9) + 1)]


def line_chart(title: str, series: Series, x_label: str, include: Sequence[float] = ()) -> Chart | None:
    """Named lines of (x, y); None without a point. The y axis takes in the numbers `include`."""
    shown = {name: [(x, y) for x, y in points if math.isfinite(y.value)] for name, points in series.items()}
    shown = {name: points for name, points in shown.items() if points}
    if not shown:
        return None
    found = [y for points in shown.values() for _, y in points]
    ys = ticks(min([*include, *(y.low for y in found)]), max([*include, *(y.high for y in found)]))
    xs = sorted({x for points in shown.values() for x, _ in points})
    names = list(shown) if len(shown) > 1 else []
    top = 26.0 + 15 * len(names)
    bottom, right = top + PLOT, WIDTH - RIGHT

    def across(x: float) -> float:
        return LEFT + (x - xs[0]) / ((xs[-1] - xs[0]) or 1) * (right - LEFT)

    def up(y: float) -> float:
        return bottom - (y - ys[0]) / (ys[-1] - ys[0]) * PLOT

    marks = [text(13, 30 + 15 * at, name) for at, name in enumerate(names)]
    colours = [MEANT.get(name, f"c{at % COLOURS}") for at, name in enumerate(shown)]
    marks += [dot(colours[at], 5, 26 + 15 * at) for at in range(len(names))]
    for tick in ys:
        marks.append(rule("grid", LEFT, up(tick), right, up(tick)))
        marks.append(text(LEFT - 5, up(tick) + 4, f"{tick:.6g}", "soft", "end"))
    for x in ticks(xs[0], xs[-1]):
        if xs[0] <= x <= xs[-1]:
            marks.append(text(across(x), bottom + 14, number(x), "soft", "middle"))
    marks.append(text(right, bottom + 28, x_label, "soft", "end"))
    for colour, (name, points) in zip(colours, shown.items(), strict=True):
        path = " L".join(f"{across(x):.1f} {up(y.value):.1f}" for x, y in points)
        marks.append(f'<path class="line {colour}" d="M{path}"/>')
        marks += [rule(f"whisker {colour}", across(x), up(y.low), across(x), up(y.high)) for x, y in points]
        for x, y in points:
            value = str(y) if y.high > y.low else number(y.value)
            marks.append(dot(colour, across(x), up(y.value), f"{number(x)} {x_label}; {name}: {value}"))
    return Chart(title, bottom + 34, marks)


@dataclass(frozen=True, slots=True)
class ChartRow:
    """A value of a row chart: its colour's class, and what is said when it is pointed at."""

    name: str
    value: Interval
    colour: str = "c0"
    notes: Sequence[str] = ()


def row_chart(
    title: str, rows: Sequence[ChartRow], label: str, reference: float | None = None, sign: str = ""
) -> Chart:
    """Values with their intervals, one below the other; a mark at `reference`; `label` names the axis."""
    known = [number for row in rows for number in (row.value.low, row.value.high) if math.isfinite(number)]
    known += [] if reference is None else [reference]
    axis = ticks(min(known, default=0.0), max(known, default=1.0))
    bottom = TOP + ROW * len(rows)

    def across(value: float) -> float:
        return MARGIN + (value - axis[0]) / (axis[-1] - axis[0]) * (WIDTH - 2 * MARGIN)

    marks = [text(across(tick), bottom + 15, f"{tick:{sign}.4g}" if tick else "0", "soft", "middle") for tick in axis]
    marks.append(text(WIDTH, bottom + 29, label, "soft", "end"))
    for at, row in enumerate(rows):
        y, value = TOP + ROW * at, format(row.value, sign)
        most = int((WIDTH - (len(value) + 2) * LETTER) / LETTER)
        name = row.name if len(row.name) <= most else row.name[: most - 1] + "…"
        marks += [text(0, y + 14, name), text(WIDTH, y + 14, value, anchor="end")]
        marks += [rule("grid", across(tick), y + 18, across(tick), y + 30) for tick in axis]
        if reference is not None:
            marks.append(rule("reference", across(reference), y + 18, across(reference), y + 30))
        if math.isfinite(row.value.value):
            marks.append(rule(f"bar {row.colour}", across(row.value.low), y + 24, across(row.value.high), y + 24))
            said = "; ".join([f"{row.name}: {value}", *row.notes])
            marks.append(dot(row.colour, across(row.value.value), y + 24, said, 5))
    return Chart(title, bottom + 34, marks)
