"""What a page of results is, and the tables, figures and sentences that pages are made of."""

from __future__ import annotations

import html
import json
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from alphazero_llm_trainer.eval.metrics import wilson

ROOT = Path(__file__).resolve().parent.parent.parent
DATA = ROOT / "benchmarks" / "results"
PAGES = ROOT / "docs" / "results"
FROM_RULES_CHART = PAGES / "from_rules.svg"
IMPROVEMENT_CHART = PAGES / "improvement.svg"
README = ROOT / "README.md"
STUDENT = ROOT / "alphazero_llm_trainer" / "assets" / "student" / "manifest.json"
REPOSITORY = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["urls"]["Repository"]
EMBEDDED = "embedded test problems, levels 1 and 2 (2 and 3 steps)"
HARDER = "embedded test problems, levels 3 and 4 (4 to 6 steps)"
FIXED = "fixed in the benchmark"
TINY = "The student has 0.66 million parameters and the problems come from a generator. It says nothing about larger models."
# Of results that are older than draws without replacement.
REPEATED = "A step could be drawn again after the same prefix, as with `search.verify.repeat=true` now."
RATIOS = "Ratios carry over to another machine, absolute times do not."
FEW = 20  # characters that are results of problems, and not a word or a number
Triple = Sequence[float]  # a value with its 95% interval: value, low, high
Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Page:
    """A page: `headline` is its line in the index, `facts` say how it was measured, `limits` what it doesn't show."""

    title: str
    headline: str
    intro: str
    facts: Mapping[str, str]
    body: Sequence[str]
    limits: Sequence[str]


def table(rows: Iterable[Row], columns: Mapping[str, str]) -> list[str]:
    """A Markdown table. `columns` has a head and a `str.format` template a column; all but the first are right-aligned."""
    rule = "|".join(["---", *["---:"] * (len(columns) - 1)])
    body = (" | ".join(template.format_map(row) for template in columns.values()) for row in rows)
    return ["", f"| {' | '.join(columns)} |", f"|{rule}|", *(f"| {line} |" for line in body), ""]


def triple(found: Row) -> Triple:
    """An interval as a JSON holds it by name."""
    return found["value"], found["low"], found["high"]


def share(found: Triple) -> str:
    return f"{found[0]:.3f} [{found[1]:.3f}, {found[2]:.3f}]"


def gain(found: Triple) -> str:
    return f"{found[0]:+.3f} [{found[1]:+.3f}, {found[2]:+.3f}]"


def verdict(found: Triple) -> str:
    """What a paired difference says: its interval lies above zero, below it, or holds it."""
    return "better" if found[1] > 0 else "worse" if found[2] < 0 else "no difference shown"


def judged(found: Triple | None) -> str:
    """A paired difference with its verdict, for a cell; nothing for None."""
    return f"{gain(found)}<br>{verdict(found)}" if found else ""


def listed(names: Iterable[Any]) -> str:
    *first, last = [str(name) for name in names] or ["none"]
    return f"{', '.join(first)} and {last}" if first else last


def mean(values: Iterable[float]) -> float:
    found = list(values)
    return sum(found) / len(found)


def proportion(successes: int, trials: int) -> Triple:
    found = wilson(successes, trials)
    return found.value, found.low, found.high


def dots(rows: Sequence[tuple[str, Triple]], what: str) -> list[str]:
    """A dot plot with intervals as inline SVG: a row has its label, its figure, and a line below them."""
    low, high = min(found[1] for _, found in rows), max(found[2] for _, found in rows)
    width, height, edge = 420, 38, 8

    def x(value: float) -> str:
        return f"{2 * edge + (width - 4 * edge) * (value - low) / (high - low):.1f}"

    parts = [
        f'<svg class="dots" viewBox="0 0 {width} {height * len(rows) + 22}" role="img" aria-label="{html.escape(what)}">'
    ]
    for i, (label, found) in enumerate(rows):
        parts.append(
            f'<g transform="translate(0 {height * i})"><text x="{edge}" y="14">{html.escape(label)}</text>'
            f'<text class="figure" x="{width - edge}" y="14">{share(found)}</text>'
            f'<line class="axis" x1="{edge}" x2="{width - edge}" y1="26" y2="26"/>'
            f'<line class="interval" x1="{x(found[1])}" x2="{x(found[2])}" y1="26" y2="26"/>'
            f'<circle cx="{x(found[0])}" cy="26" r="4.5"/></g>'
        )
    parts.append(
        f'<text class="note" x="{edge}" y="{height * len(rows) + 16}">{html.escape(what)}, 95% intervals</text></svg>'
    )
    return ["", "".join(parts), ""]


def command(data: Row, otherwise: str = "") -> str:
    """The command that wrote a JSON file, as a person types it; `otherwise` where the file doesn't say."""
    words = " ".join(str(data.get("command") or otherwise).split())
    return f"`{words}`" if words.startswith("uv run ") else f"`uv run {words}`"


def seeds_of(data: Row) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {seed}" for name, seed in data["seeds"].items())


def note_of(data: Row) -> list[str]:
    return [f"Note of the run: {data['note']}."] if data.get("note") else []


def version_of(data: Row) -> list[str]:
    """Which version wrote a file; the files that don't say so are of the first one."""
    return [f"Measured with version {data.get('version', '0.1.0')}."]


def load(stem: str) -> dict[str, Any]:
    path = STUDENT if stem == "student" else DATA / f"{stem}.json"
    return json.loads(path.read_text(encoding="utf-8"))


def load_if_there(stem: str) -> dict[str, Any] | None:
    return load(stem) if stem == "student" or (DATA / f"{stem}.json").exists() else None


def recorded(data: Any, name: str = "") -> bool:
    """Whether a JSON holds results by problem: text of 0 and 1, numbers under `correct`, or a line a problem with one."""
    if isinstance(data, str):
        return len(data) >= FEW and not data.strip("01")
    if isinstance(data, dict):
        return any(recorded(found, key) for key, found in data.items())
    if not isinstance(data, list):
        return False
    lines = name == "correct" or (data and isinstance(data[0], dict) and isinstance(data[0].get("correct"), bool))
    return (bool(lines) and len(data) >= FEW) or any(map(recorded, data))


def splits(figure: str) -> dict[str, Row]:
    """How much the test problems of a figure repeat training problems, by student."""
    return {row["student"]: row for row in load("overlap")["rows"] if row["figure"] == figure}


def twins(figure: str) -> str:
    """What an accuracy on embedded problems has to be read with: the figure's own split."""
    rows = splits(figure)
    shares = {name: f"{row['share'][0]:.0%}" for name, row in rows.items()}
    row = next(iter(rows.values()))
    by = listed(f"{share} ({name})" for name, share in shares.items()) if len(rows) > 1 else listed(shares.values())
    return (
        f"Of its test problems {by} have a problem among those that the student was trained on that differs in names, things"
        f" and numbers only ([overlap](overlap.md)). {row['test_problems']:,} of them have {row['distinct_solutions']:,}"
        " distinct worked solutions: an interval over problems that doesn't count them so is a little too narrow."
    )
