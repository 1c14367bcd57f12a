"""Figures of a report as SVG text that takes the page's own text colour, so that it reads in light and dark."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..eval.metrics import Interval

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#B8860B", "#56B4E9", "#8B5CF6", "#7F7F7F", "#A0522D", "#20B2AA")
MARKERS = "osD^vP*X<>"
INK = "#010203"  # stands for the page's text colour
Point = tuple[float, float, float, float]  # x, y, the interval's low and high end


def draw(paint: Callable[[Any], None], columns: int = 1, width: float = 5.6, height: float = 3.6) -> str:
    """The SVG of a row of `columns` panels that `paint` fills; it gets one axis, or the list of them."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    ink = {name: INK for name in ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color")}
    style: Any = {**ink, "svg.fonttype": "none", "font.size": 10, "font.family": "sans-serif", "axes.spines.top": False}
    with plt.rc_context({**style, "axes.spines.right": False, "axes.titlesize": 11, "svg.hashsalt": "report"}):
        figure, axes = plt.subplots(
            1, columns, figsize=(width * columns, height), constrained_layout=True, squeeze=False
        )
        paint(axes[0][0] if columns == 1 else list(axes[0]))
        for axis in axes[0]:
            axis.grid(color=INK, alpha=0.12, linewidth=0.8)
            axis.set_axisbelow(True)
            axis.patch.set_alpha(0)
            if axis.get_legend() is not None:
                axis.get_legend().get_frame().set_alpha(0)
        text = io.StringIO()
        figure.savefig(text, format="svg", transparent=True, metadata={"Date": None})
        plt.close(figure)
    svg = text.getvalue()
    svg = svg[svg.index("<svg") :].replace(INK, "currentColor")
    size = f'role="img" style="width: {width * columns:.1f}in"'
    return re.sub(r'width="[\d.]+pt" height="[\d.]+pt"', size, svg, count=1)


def lines(axis: Any, series: Mapping[str, Sequence[tuple[float, float]]]) -> bool:
    """Named lines of (x, y); True where there was any."""
    shown = {name: points for name, points in series.items() if points}
    for at, (name, points) in enumerate(shown.items()):
        style = {"marker": "o", "markersize": 3.5} if len(points) < 25 else {}
        axis.plot(*zip(*points, strict=True), color=COLOURS[at % len(COLOURS)], label=name, linewidth=1.7, **style)
    if shown:
        axis.legend(fontsize=8.5, loc="best")
    return bool(shown)


def with_intervals(axis: Any, series: Mapping[str, Sequence[Point]], first: int = 0) -> None:
    """Named lines of points with their intervals, from colour `first` on."""
    for at, (name, points) in enumerate(series.items(), first):
        x, y, low, high = zip(*points, strict=True)
        errors = [[max(0.0, a - b) for a, b in zip(y, low, strict=True)]]
        errors.append([max(0.0, b - a) for a, b in zip(y, high, strict=True)])
        axis.errorbar(
            x, y, yerr=errors, label=name, color=COLOURS[at % len(COLOURS)], marker=MARKERS[at % len(MARKERS)],
            markersize=5, linewidth=1.5, elinewidth=0.9, capsize=2.5,
        )  # fmt: skip


def bars(axis: Any, rows: Sequence[tuple[str, float, float, float]]) -> None:
    """Named bars with intervals, each with its value above it."""
    for at, (_, *found) in enumerate(rows):
        y = Interval(*found)
        value, high = y.value, y.high
        axis.bar(
            at, value, yerr=[[value - y.low], [high - value]], capsize=5, color=COLOURS[at % len(COLOURS)], ecolor=INK
        )
        axis.text(at, high + 0.015, f"{value:.3f}", ha="center", fontsize=9)
    axis.set_xticks(range(len(rows)), [name for name, *_ in rows], fontsize=9)
    axis.set(ylim=(0, min(1.08, max(high for *_, high in rows) + 0.12)))


def reliability(axis: Any, points: Sequence[Sequence[float]]) -> None:
    """(mean V, mean outcome, share of the outcomes) of each bin of V against the diagonal."""
    axis.plot([0, 1], [0, 1], color=INK, linewidth=0.9, linestyle="--")
    axis.scatter(
        [v for v, _, _ in points], [o for _, o, _ in points], [20 + 400 * n for _, _, n in points], color=COLOURS[0]
    )
    axis.set(xlabel="V", ylabel="share of right responses", xlim=(0, 1), ylim=(0, 1), title="Value calibration")
