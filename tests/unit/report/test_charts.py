"""Charts and tables of pages: what is drawn, and how tables are aligned."""

import math
import re
from xml.etree import ElementTree

from alphazero_llm_trainer.eval.metrics import Interval
from alphazero_llm_trainer.report.charts import MEANT, exact_interval, line_chart, row_chart
from alphazero_llm_trainer.report.html import TEMPLATES
from alphazero_llm_trainer.report.text_table import align_columns

SVG = "{http://www.w3.org/2000/svg}"
NAME = '<b>"sft" & $more$</b>'


def texts(chart):
    """The texts of a chart; what isn't well-formed raises."""
    return [element.text for element in ElementTree.fromstring(chart).iter(f"{SVG}text")]


def test_rows_say_their_values():
    rows = {
        NAME: Interval(0.5, 0.25, 1.0),
        "none right": Interval(0.0, 5e-19, 0.07),
        "not measured": exact_interval(math.nan),
    }
    chart = row_chart("Accuracy", rows, "accuracy [95%]", reference=0.5)
    said = {
        "Accuracy",
        "accuracy [95%]",
        NAME,
        "0.500 [0.250, 1.000]",
        "0.000 [0.000, 0.070]",
        "unknown",
    }
    assert said <= set(texts(chart)) and NAME not in chart
    assert chart == row_chart("Accuracy", rows, "accuracy [95%]", reference=0.5)  # to the byte


def test_lines_leave_out_what_is_no_number():
    points = [(10, exact_interval(0.25)), (20, exact_interval(math.nan)), (30, exact_interval(0.5))]
    chart = line_chart(
        "Learning", {"right": points, NAME: points, "none": []}, "tokens", (0.0, 1.0)
    )
    assert {"Learning", "right", NAME, "tokens", "1.0"} <= set(
        texts(chart)
    ) and "none" not in texts(chart)
    assert MEANT["right"].lower() in chart and "nan" not in chart
    assert line_chart("Learning", {"none": [], "nan": points[1:2]}, "tokens") == ""


def test_tables_are_aligned():
    rows = [["method", "accuracy"], ["greedy", "0.5"], ["mcts", "0.75"]]
    assert align_columns(rows) == "method  accuracy\ngreedy       0.5\nmcts        0.75"
    table = TEMPLATES.get_template("pieces.html").module.table
    cells = table([["method", "gain"], [NAME, "+0.040 [-0.060, +0.140]"], ["mcts", ""]])
    assert re.findall(r'<td class="(\w*)">', cells) == ["left", "", "left", ""]
    assert NAME not in cells and "&lt;b&gt;" in cells
