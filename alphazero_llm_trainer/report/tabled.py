"""Results as a table and a chart, for papers and other programs: CSV, PDF, SVG, pandas."""

from __future__ import annotations

import csv
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..files import make_folder, write_whole
from .charts import Chart, save_chart

if TYPE_CHECKING:
    import pandas as pd


class Tabled:
    """What has `records`, one a row, with numbers as numbers, and a `chart` of them."""

    __slots__ = ()

    @property
    def records(self) -> list[dict[str, Any]]:
        raise NotImplementedError

    @property
    def chart(self) -> Chart:
        raise NotImplementedError

    def plot(self) -> Any:
        """The chart as a figure of matplotlib; a notebook shows it."""
        return self.chart.figure

    def to_pandas(self) -> pd.DataFrame:
        """The records as a table of pandas."""
        import pandas as pd

        return pd.DataFrame(self.records)

    def save(self, *files: str | Path) -> None:
        """Write the table to each .csv of `files`, the chart to the others (.pdf, .svg, .png).

        Raises ConfigError where there is no chart to draw.
        """
        for file in map(Path, files):
            make_folder(file.parent)
            if file.suffix != ".csv":
                save_chart(self.chart, file)
                continue
            text, rows = StringIO(), self.records
            writer = csv.DictWriter(text, list(dict.fromkeys(key for row in rows for key in row)))
            writer.writeheader()
            writer.writerows(rows)
            write_whole(file, text.getvalue())
