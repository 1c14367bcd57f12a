"""Charts and tables of pages: what is drawn where, and what a pointer is told."""

from __future__ import annotations

import math
import re
from itertools import pairwise
from xml.etree import ElementTree

import pytest

from alphazero_llm_trainer.eval.metrics import Interval
from alphazero_llm_trainer.report.charts import Chart, ChartRow, line_chart, row_chart, ticks
from alphazero_llm_trainer.report.page import table
from alphazero_llm_trainer.report.tables import columns, markdown

SVG = "{http://www.w3.org/2000/svg}"
NAME = '<b>"sft" & more</b>'


def shapes(chart: Chart) -> ElementTree.Element:
    """The chart as XML; what isn't well-formed raises."""
    return ElementTree.fromstring(chart.svg().replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1))


def labels(chart: Chart) -> list[str]:
    """What the points of the chart say."""
    return [element.text for element in shapes(chart).iter(f"{SVG}title") if element.text]


def exact(*points: tuple[float, float]) -> list[tuple[float, Interval]]:
    return [(x, Interval(y, y, y)) for x, y in points]


# -- scales ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("low", "high"), [(0.0, 1.0), (0.48, 0.51), (-2.5, -2.4), (3.0, 3.0), (0.0, 0.0), (1e-9, 2e-9), (0, 123456)]
)
def test_ticks_are_round_and_hold_the_numbers(low: float, high: float) -> None:
    found = ticks(low, high)
    assert found[0] <= low + 1e-12 and found[-1] >= high - 1e-12 and 2 <= len(found) <= 7
    steps = {round((b - a) / (found[1] - found[0]), 6) for a, b in pairwise(found)}
    assert steps == {1.0}
    assert float(f"{found[1] - found[0]:.0e}") == pytest.approx(found[1] - found[0])  # one digit


# -- charts ------------------------------------------------------------------------------------------------------------


def test_rows_stand_where_their_values_are() -> None:
    rows = [
        ChartRow(NAME, Interval(0.5, 0.25, 1.0), notes=["12 tokens"]),
        ChartRow("none right", Interval(0.0, 5e-19, 0.07), "plain"),
        ChartRow("not measured", Interval(math.nan, math.nan, math.nan)),
    ]
    chart = row_chart("Accuracy", rows, "accuracy [95%]", reference=0.5)
    drawn = shapes(chart)
    bars = [e for e in drawn.iter(f"{SVG}line") if (e.get("class") or "").startswith("bar")]
    dots = [e for e in drawn.iter(f"{SVG}circle")]
    assert len(bars) == len(dots) == 2
    (low, high), (zero, _) = [(float(bar.get("x1", 0)), float(bar.get("x2", 0))) for bar in bars]
    assert zero == float(dots[1].get("cx", 0)) < low < high
    assert float(dots[0].get("cx", 0)) == pytest.approx(low + (high - low) / 3, abs=0.1)  # 0.5 between 0.25 and 1
    assert labels(chart) == [f"{NAME}: 0.500 [0.250, 1.000]; 12 tokens", "none right: 0.000 [0.000, 0.070]"]
    assert NAME not in chart.svg()


def test_lines_say_their_values_and_leave_out_what_is_no_number() -> None:
    series = {"reward": exact((10, 0.25), (20, math.nan), (30, 0.5)), NAME: [(10, Interval(0.4, 0.3, 0.6))], "none": []}
    chart = line_chart("Learning", series, "questions", (0.0, 1.0))
    assert chart is not None
    said = ["10 questions; reward: 0.25", "30 questions; reward: 0.5", f"10 questions; {NAME}: 0.400 [0.300, 0.600]"]
    assert labels(chart) == said
    path = next(e for e in shapes(chart).iter(f"{SVG}path")).get("d", "")
    (_, first), (_, last) = [tuple(map(float, pair.split())) for pair in path[1:].split(" L")]
    assert first > last  # up is more
    assert line_chart("Learning", {"none": [], "nan": exact((1, math.nan))}, "questions") is None


# -- tables ------------------------------------------------------------------------------------------------------------


def test_an_outcome_has_the_colour_that_it_has_in_the_viewer() -> None:
    points = exact((0, 0.5), (1, 0.6))
    chart = line_chart("t", {"wrong": points, "right": points, "mixed": points, "other": points}, "x")
    assert chart is not None
    lines = [element.get("class") for element in shapes(chart).iter(f"{SVG}path")]
    assert lines == ["line c1", "line c0", "line c6", "line c3"]  # orange, blue, purple


def test_tables_are_aligned() -> None:
    rows = [["method", "accuracy"], ["greedy", "0.5"], ["mcts", "0.75"]]
    assert columns(rows) == "method  accuracy\ngreedy       0.5\nmcts        0.75"
    assert markdown(rows).splitlines()[1:3] == ["|--------|----------|", "| greedy | 0.5      |"]
    found = table([["method", "gain"], [NAME, "+0.040 [-0.060, +0.140]"], ["mcts", ""]])
    assert re.findall(r'<td class="(\w*)">', found) == ["left", "", "left", ""]
    assert NAME not in found and "&lt;b&gt;" in found
