"""Charts and tables of pages: what is drawn where, what a pointer and the keyboard are told, nothing fetched."""

from __future__ import annotations

import math
import re
from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from test_viewer import browser  # noqa: F401

from alphazero_llm_trainer.eval.metrics import Interval
from alphazero_llm_trainer.mcts.tree import Tree
from alphazero_llm_trainer.report.charts import WIDTH, Chart, ChartRow, line_chart, row_chart, standalone, ticks
from alphazero_llm_trainer.report.page import figures, hero, page, table
from alphazero_llm_trainer.report.tables import columns, markdown
from alphazero_llm_trainer.report.tree import outline
from alphazero_llm_trainer.types import RewardParts, Step

SVG = "{http://www.w3.org/2000/svg}"
NAME = '<b>"sft" & more</b>'


def shapes(chart: Chart) -> ElementTree.Element:
    """The chart as XML; what isn't well-formed raises."""
    return ElementTree.fromstring(chart.svg().replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1))


def labels(chart: Chart) -> list[str]:
    """What each area of the chart says."""
    return [element.get("aria-label", "") for element in shapes(chart).iter(f"{SVG}g") if element.get("class") == "at"]


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
        ChartRow("none right", Interval(0.0, 5e-19, 0.07), "plain", dots=[0.1]),
        ChartRow("not measured", Interval(math.nan, math.nan, math.nan)),
    ]
    chart = row_chart("Accuracy", rows, "accuracy [95%]", reference=0.5)
    drawn = shapes(chart)
    bars = [e for e in drawn.iter(f"{SVG}line") if (e.get("class") or "").startswith("bar")]
    dots = [e for e in drawn.iter(f"{SVG}circle") if e.get("r") == "5"]
    assert len(bars) == len(dots) == 2
    (low, high), (zero, _) = [(float(bar.get("x1", 0)), float(bar.get("x2", 0))) for bar in bars]
    assert zero == float(dots[1].get("cx", 0)) < low < high
    assert float(dots[0].get("cx", 0)) == pytest.approx(low + (high - low) / 3, abs=0.1)  # 0.5 between 0.25 and 1
    assert labels(chart) == [f"{NAME}: 0.500 [0.250, 1.000]; 12 tokens", "none right: 0.000 [0.000, 0.070]",
                             "not measured: unknown"]  # fmt: skip
    assert NAME not in chart.svg()


def test_lines_say_all_values_at_a_place_and_leave_out_what_is_no_number() -> None:
    series = {"reward": exact((10, 0.25), (20, math.nan), (30, 0.5)), NAME: [(10, Interval(0.4, 0.3, 0.6))], "none": []}
    chart = line_chart("Learning", series, "questions", (0.0, 1.0))
    assert chart is not None
    assert labels(chart) == [f"10 questions; reward: 0.25; {NAME}: 0.400 [0.300, 0.600]", "30 questions; reward: 0.5"]
    path = next(e for e in shapes(chart).iter(f"{SVG}path")).get("d", "")
    (_, first), (_, last) = [tuple(map(float, pair.split())) for pair in path[1:].split(" L")]
    assert first > last  # up is more
    assert line_chart("Learning", {"none": [], "nan": exact((1, math.nan))}, "questions") is None


@pytest.mark.parametrize("count", [1, 2, 400])
def test_everything_stays_inside(count: int) -> None:
    long = "a method with a name that is much too long for a telephone, calculator+prm"
    rows = [ChartRow(f"{long} {at}", Interval(at, at - 1, at + 1), notes=[long * 2]) for at in range(min(count, 12))]
    lines = line_chart("Lines", {f"{long} {at}": exact(*((x, x * at) for x in range(count))) for at in range(3)}, "x")
    for chart in (row_chart("Rows", rows, "x"), lines):
        assert chart is not None
        for element in shapes(chart).iter(f"{SVG}rect"):
            x, width = float(element.get("x", 0)), float(element.get("width", 0))
            assert x >= 0 and x + width <= WIDTH + 0.1
            assert element.get("class") == "tip" or 0 <= float(element.get("y", 0)) <= chart.height


def test_an_svg_file_stands_alone() -> None:
    chart = row_chart("Rungs", [ChartRow("SFT", Interval(0.6, 0.5, 0.7))], "accuracy")
    root = ElementTree.fromstring(standalone([chart, chart]))
    assert [element.get("x") for element in root.iter(f"{SVG}svg")][1:] == ["24", str(24 + WIDTH + 24)]
    assert "--ink:" in (root.find(f"{SVG}style").text or "")  # type: ignore[union-attr]


# -- trees -------------------------------------------------------------------------------------------------------------


def test_a_tree_is_its_most_visited_steps_with_tokens_joined() -> None:
    tree = Tree()
    good, bad = (tree.attach(0, Step((at,), (-0.1,), text)) for at, text in enumerate(["3 +", "4 -"]))
    joined = tree.attach(good, Step((3,), (-0.1,), " 4 = 7\n"))
    ends = [tree.attach(joined, Step((4,), (-0.1,), "#### 7")), tree.attach(bad, Step((5,), (-0.1,), " 1 = 3\n"))]
    tree.attach(0, Step((9,), (-0.1,), "never visited"))
    for end, hre in zip(ends, (1.0, 0.0), strict=True):
        tree.finish(end, "answer", RewardParts(hre, hre, None))
    for _ in range(3):
        tree.backup(ends[0], 1.0)
    tree.backup(ends[1], 0.0)
    chart = outline(tree, "Mixed", f"{NAME} How many?")
    assert labels(chart) == [
        f"{NAME} How many?; mean reward 0.750, visits 4", "3 + 4 = 7; mean reward 1.000, visits 3",
        "✓ #### 7; mean reward 1.000, visits 3", "✗ 4 - 1 = 3; mean reward 0.000, visits 1",
    ]  # fmt: skip
    assert len(labels(outline(tree, "Mixed", "How many?", most=2))) == 2


# -- tables and pages --------------------------------------------------------------------------------------------------


def test_tables_are_aligned() -> None:
    rows = [["method", "accuracy"], ["greedy", "0.5"], ["mcts", "0.75"]]
    assert columns(rows) == "method  accuracy\ngreedy       0.5\nmcts        0.75"
    assert markdown(rows).splitlines()[1:3] == ["|--------|----------|", "| greedy | 0.5      |"]
    found = table([["method", "gain"], [NAME, "+0.040 [-0.060, +0.140]"], ["mcts", ""]])
    assert re.findall(r'<td class="(\w*)">', found) == ["left", "", "left", ""]
    assert NAME not in found and "&lt;b&gt;" in found


def test_arrow_keys_and_the_pointer_show_values(browser: Any, tmp_path: Path) -> None:  # noqa: F811
    from selenium.webdriver import ActionChains, Keys

    rows = [ChartRow("greedy", Interval(0.5, 0.4, 0.6)), ChartRow("mcts", Interval(0.7, 0.6, 0.8))]
    parts = [hero("0.7", NAME, "good", [("seed", "7")]), figures([row_chart("Accuracy", rows, "[95%]")])]
    (tmp_path / "page.html").write_text(page(NAME, parts), encoding="utf-8")
    browser.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride", {"width": 390, "height": 800, "deviceScaleFactor": 1, "mobile": False}
    )
    browser.get((tmp_path / "page.html").as_uri())
    shown = (
        "return [...document.querySelectorAll('.at')].filter(at => getComputedStyle(at.querySelector('.tip')).opacity > 0)"
        ".map(at => at.getAttribute('aria-label'))"
    )
    assert browser.execute_script(shown) == []
    ActionChains(browser).send_keys(Keys.TAB, Keys.ARROW_DOWN, Keys.ARROW_DOWN).perform()
    assert browser.execute_script(shown) == ["mcts: 0.700 [0.600, 0.800]"]
    ActionChains(browser).send_keys(Keys.ARROW_DOWN).perform()  # past the last: the first again
    assert browser.execute_script(shown) == ["greedy: 0.500 [0.400, 0.600]"]
    areas = browser.find_elements("css selector", ".at .area")
    ActionChains(browser).move_to_element(areas[1]).perform()
    assert browser.execute_script(shown) == ["mcts: 0.700 [0.600, 0.800]"]  # the pointer wins
    assert browser.execute_script("return document.documentElement.scrollWidth") == 390
    assert browser.execute_script("return performance.getEntriesByType('resource').length") == 0
    assert [entry["message"] for entry in browser.get_log("browser")] == []
