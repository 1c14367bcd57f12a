"""The page of a server's newest answers: a link to the tree of each. Nothing on it runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import quote

from .page import escape, fill, style
from .record import short

AGES = ((86_400, "d"), (3600, "h"), (60, "min"), (1, "s"))


@dataclass(frozen=True, slots=True)
class TraceLine:
    """An answer that has a tree. answer: None where none was stated; tokens: sampled; age: seconds since it was kept."""

    id: str
    question: str
    method: str
    answer: str | None
    tokens: int
    age: float


def traces_page(lines: Sequence[TraceLine], note: str) -> str:
    """The page of all traces in the order given, under a sentence about them."""
    css, policy = style()
    rows = "\n".join(map(_row, lines))
    return fill("traces.html", {"policy": policy, "style": css, "note": escape(note), "rows": rows})


def _row(line: TraceLine) -> str:
    target = escape("/traces/" + quote(line.id, safe="", errors="replace"))
    question = escape(short(line.question) or line.id)
    answer = "–" if line.answer is None else escape(short(line.answer))
    cells = (
        ("Question", "words question", f'<a class="clamp" href="{target}">{question}</a>'),
        ("Method", "words", escape(line.method)),
        ("Answer", "words", answer),
        ("Tokens", "", f"{line.tokens:,}"),
        ("Age", "", age(line.age)),
        ("ID", "words", f'<a href="{target}">{escape(line.id)}</a>'),
    )
    inside = "".join(f'<td class="{kind}" data-name="{name}">{cell}</td>' for name, kind, cell in cells)
    return f"<tr>{inside}</tr>"


def age(seconds: float) -> str:
    """`42 s`, `7 min`, `3 h` or `2 d`."""
    size, unit = next(((size, unit) for size, unit in AGES if seconds >= size), AGES[-1])
    return f"{int(max(seconds, 0) // size)} {unit}"
