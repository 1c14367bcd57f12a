"""Tables as text: aligned for a terminal, and as Markdown. The first row is the head."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain

TextRows = Sequence[Sequence[str]]


def align_columns(rows: TextRows, left: int = 1) -> str:
    """Aligned columns: the first `left` to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(
            f"{cell:{'<' if at < left else '>'}{widths[at]}}" for at, cell in enumerate(row)
        ).rstrip()
        for row in rows
    )


def table_of(rows: Sequence[Mapping[str, str]], named: Sequence[str] = ()) -> list[list[str]]:
    """A table of `rows` with the columns `named`, or all, as far as a row has them; the head
    first.
    """
    head = list(dict.fromkeys(chain(*rows)))
    head = [name for name in named or head if name in head]
    return [head, *([row.get(name, "") for name in head] for row in rows)]
