"""Tables as text: aligned for a terminal, and as Markdown. The first row is the head."""

from __future__ import annotations

from collections.abc import Sequence

from ..eval.metrics import Interval

BARS = "▁▂▃▄▅▆▇█"
Rows = Sequence[Sequence[str]]


def columns(rows: Rows, left: int = 1) -> str:
    """Aligned columns: the first `left` to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(f"{cell:{'<' if at < left else '>'}{widths[at]}}" for at, cell in enumerate(row)).rstrip()
        for row in rows
    )


def markdown(rows: Rows) -> str:
    """A Markdown table, aligned too."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [f"| {' | '.join(f'{cell:<{width}}' for cell, width in zip(row, widths, strict=True))} |" for row in rows]
    return "\n".join([lines[0], f"|{'|'.join('-' * (width + 2) for width in widths)}|", *lines[1:]])


def dot_plot(found: Sequence[Interval], width: int = 20) -> list[str]:
    """Each interval as `──●──`, on one scale from the least lower end to the greatest upper one."""
    least, most = min(one.low for one in found), max(one.high for one in found)

    def place(x: float) -> int:
        return round((x - least) / ((most - least) or 1.0) * (width - 1))

    drawn = []
    for one in found:
        low, dot, high = place(one.low), place(one.value), place(one.high)
        drawn.append((" " * low + "─" * (dot - low) + "●" + "─" * (high - dot)).ljust(width))
    return drawn


def spark(values: Sequence[float]) -> str:
    """A line of text that rises and falls with the values, from their least to their greatest."""
    least, span = min(values), (max(values) - min(values)) or 1.0
    return "".join(BARS[round((value - least) / span * (len(BARS) - 1))] for value in values)
