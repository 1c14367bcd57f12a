"""`compare`: two settings beside each other, each trained with several seeds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ..report.runs import Comparison, compare_runs

Runs = Sequence[str | Path] | str | Path


def compare(first: Runs, second: Runs, out: str | Path | None = None) -> Comparison:
    """How much better the second setting's students are than the first one's, on the same held-out
    problems; what the command `compare` prints.

    Args:
        first, second: finished run folders, or one; within a setting they differ in the seed alone.
        out: a folder for the page, report.html.

    Raises:
        DataError: the runs can't be compared.
    """
    sides = [[side] if isinstance(side, str | Path) else side for side in (first, second)]
    result = compare_runs(*([Path(folder) for folder in side] for side in sides))
    if out is not None:
        result.write(Path(out))
    return result
