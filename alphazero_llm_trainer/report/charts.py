"""Charts by matplotlib as SVG elements: lines over a number, and values with intervals in rows.

Drawn for a phone's width, and scaled up elsewhere. Texts are the page's own: it colours them for
light and dark.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from io import StringIO
from pathlib import Path
from typing import Any

from markupsafe import Markup

from ..errors import ConfigError
from ..eval.metrics import Interval

BLUE, ORANGE, PURPLE, GREY = "#0072B2", "#D55E00", "#8B5CF6", "#808890"
MEANT = {"right": BLUE, "mixed": PURPLE, "wrong": ORANGE}  # as in the viewer
WIDTH, HEIGHT, ROW = 5.0, 2.9, 0.5  # inches of 72 px: a chart, and a row of one
STYLE: dict[Any, Any] = {
    "axes.edgecolor": GREY,
    "axes.grid": True,
    "axes.prop_cycle": f"cycler(color=['{BLUE}', '{ORANGE}', '#009E73', '#CC79A7'])",
    "axes.spines.right": False,
    "axes.spines.top": False,
    "font.size": 11,
    "grid.alpha": 0.3,
    "pdf.fonttype": 42,  # TrueType, as venues ask for
    "savefig.dpi": 300,
    "svg.fonttype": "none",  # texts stay texts
    "svg.hashsalt": "report",  # the same chart has the same bytes
    "text.parse_math": False,
    "xtick.color": GREY,
    "ytick.color": GREY,
}
NO_METADATA = dict.fromkeys(("Creator", "Date", "Format", "Type"))
Points = Sequence[tuple[float, Interval]]


class Chart(Markup):
    """A chart as an SVG element, and its `figure` of matplotlib, where there was something to
    draw.
    """

    figure: Any = None


def save_chart(chart: Chart, file: Path) -> None:
    """Write a chart as the kind of file that its name says. Raises ConfigError where there is
    none.
    """
    if chart.figure is None:
        raise ConfigError(
            f"--save {file} has no chart to write: it takes matplotlib, and runs with a "
            "train.validation_size"
        )
    import matplotlib as mpl

    with mpl.rc_context(STYLE):
        chart.figure.savefig(file, metadata=NO_METADATA if file.suffix == ".svg" else None)


def draw_chart(title: str, height: float, draw: Callable[[Any], None]) -> Chart:
    """A `<figure>` with what `draw` puts on the axes."""
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ModuleNotFoundError:
        return Chart("<p>{}: pip install matplotlib, and make the report again</p>").format(title)

    text = StringIO()
    with mpl.rc_context(STYLE):
        figure = Figure((WIDTH, height), layout="constrained")
        axes = figure.add_subplot()
        axes.set_title(title, loc="left", weight="bold")
        draw(axes)
        axes.locator_params(axis="x", nbins=5)
        figure.savefig(text, format="svg", transparent=True, metadata=NO_METADATA)
    elements = text.getvalue().partition("<svg ")[2]
    named = Chart('<figure><svg role="img" aria-label="{}" {}</figure>')
    chart = named.format(title, Markup(elements))  # noqa: S704
    chart.figure = figure
    return chart


def exact_interval(value: float) -> Interval:
    """A number that is no estimate."""
    return Interval(value, value, value)


def error_bars(intervals: Sequence[Interval]) -> list[list[float]]:
    """How far the ends are below and above: `[2, n]`, as matplotlib takes them."""
    return [[y.value - y.low for y in intervals], [y.high - y.value for y in intervals]]


def line_chart(
    title: str, series: Mapping[str, Points], x_label: str, include: Sequence[float] = ()
) -> Chart:
    """Named lines of (x, y), numbers alone; empty without a point. The y axis takes in the numbers
    `include`.
    """
    shown = {
        name: [(x, y) for x, y in line if math.isfinite(y.value)] for name, line in series.items()
    }
    shown = {name: line for name, line in shown.items() if line}

    def draw(axes: Any) -> None:
        for name, line in shown.items():
            xs, ys = zip(*line, strict=True)
            values, colour = [y.value for y in ys], MEANT.get(name)
            axes.errorbar(
                xs,
                values,
                error_bars(ys),
                color=colour,
                marker="o",
                markersize=4,
                elinewidth=0.8,
                label=name,
            )
            axes.update_datalim([(xs[0], value) for value in include])
        axes.autoscale_view()
        axes.set_xlabel(x_label)
        axes.xaxis.set_major_formatter(lambda x, _: show_number(x))
        if len(shown) > 1:
            axes.legend(frameon=False)

    return draw_chart(title, HEIGHT, draw) if shown else Chart()


def row_chart(
    title: str,
    rows: Mapping[str, Interval],
    label: str,
    reference: float | None = None,
    grey: str = "",
) -> Chart:
    """Values with their intervals, one below the other; a line at `reference`; `label` names the
    axis.

    The row of the name `grey` is what the others are compared with.
    """

    def draw(axes: Any) -> None:
        across = axes.get_yaxis_transform()  # x from 0 to 1 over the chart, y by rows
        for at, (name, value) in enumerate(rows.items()):
            axes.text(0, at - 0.25, name, transform=across)
            axes.text(1, at - 0.25, f"{value}", transform=across, ha="right")
            colour = GREY if name == grey else BLUE
            axes.errorbar(
                value.value, at, xerr=error_bars([value]), color=colour, marker="o", elinewidth=3
            )
        if reference is not None:
            axes.axvline(reference, color=GREY)
        axes.set_ylim(len(rows) - 0.5, -0.75)
        axes.yaxis.set_visible(False)
        axes.set_xlabel(label, loc="right")

    return draw_chart(title, 0.9 + ROW * len(rows), draw)


def show_number(value: float) -> str:
    """A number as people write it."""
    return f"{value:,.0f}" if value == int(value) or abs(value) >= 1000 else f"{value:.4g}"
