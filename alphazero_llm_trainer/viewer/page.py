"""Trees as one self-contained HTML file: no network, no library, data that can't become markup.

The page's own content-security policy lets exactly its script and style run, by their hashes, and
nothing be fetched.
"""

from __future__ import annotations

import base64
import hashlib
import heapq
import html
import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from operator import itemgetter
from pathlib import Path
from typing import Any

from ..types import Facts, JsonObject
from .record import page_payload, record_row

ASSETS = Path(__file__).parent / "assets"
SCRIPTS = ("model.js", "panel.js", "tree.js", "list.js", "app.js")
ASKING = (*SCRIPTS, "ask.js")  # of the page that asks a server
PAGE_BYTES = 12_000_000  # of embedded trees in one file; a browser opens that in seconds
OUTCOMES = ("mixed", "wrong", "ungraded", "right", "none", "failed")  # most interesting first
RUN_PAGE = "trees.html"  # the page of a run's folder
MOST_TREES = 1_000  # embedded in it
MOST_ROWS = 5_000  # questions in its list: a browser sorts and searches that many without a pause
SUMS = ("tokens", "simulations", "nodes")  # of a row, added up over all questions


def tree_page(record: Facts, *, title: str) -> str:
    """The page of one search tree (see `viewer.record` for what a record holds).

    Raises DataError where the record holds no tree.
    """
    facts = {"title": title, "rows": [{"number": 0, **asdict(record_row(record))}], "single": True}
    return _fill_page(title, facts, {0: _script_json(page_payload(record))})


def run_page(records: Iterable[Facts], *, title: str, limit: int) -> str:
    """The page of many searches: what came of them all, a list of `MOST_ROWS`, and the trees of at
    most `limit`.

    Where not all fit, those with mixed outcomes come first, then the wrong ones, larger trees
    before smaller ones. In memory are the rows, the embedded trees (`PAGE_BYTES`) and one record.
    """
    rows: list[JsonObject] = []
    kept: list[tuple[tuple[int, int, int], str]] = []  # a heap: the least interesting first
    size = 0
    for number, record in enumerate(records):
        line = record_row(record)
        rows.append({"number": number, **asdict(line)})
        place = rank_row(rows[-1])
        if limit < 1 or (len(kept) >= limit and place < kept[0][0]):
            continue
        text = _script_json(page_payload(record))
        heapq.heappush(kept, (place, text))
        size += len(text)
        while len(kept) > min(limit, MOST_ROWS) or (size > PAGE_BYTES and len(kept) > 1):
            size -= len(heapq.heappop(kept)[1])
    trees = {-place[2]: text for place, text in kept}
    known = {name: [line[name] for line in rows if line[name] is not None] for name in SUMS}
    totals = {
        "questions": len(rows),
        "left_out": len(rows) - len(trees),
        "outcomes": Counter(line["outcome"] for line in rows),
        "sums": {name: sum(values) for name, values in known.items() if values},
    }
    rows = sorted(heapq.nlargest(MOST_ROWS, rows, rank_row), key=itemgetter("number"))
    facts = {"title": title, "rows": rows, **totals, "single": False}
    return _fill_page(title, facts, dict(sorted(trees.items())))


EXAMPLE = (
    "Leo has 2 jars with 7 cards in each. Ana has 5 cards. "
    "How many cards do Leo and Ana have together?"
)
SEARCH_FORM = """\
<form id="ask" class="bar ask">
  <textarea id="question" rows="3" placeholder="{example}" aria-label="Question"></textarea>
  <label class="field">Method <select id="method">{methods}</select></label>
  <label class="field">Tokens <input id="budget" type="number" min="1" value="{budget}"></label>
  <button type="submit">Search</button>
  <button id="further" type="button" hidden>Search on from the selected step</button>
</form>
<p id="legend" class="note">Each card is a step, and what hangs on it goes on from there:
<b>2 · 1.00</b> means that 2 simulations went through it and earned 1.00 in the mean, and its colour
is that mean beside the other cards'. ⊘ crosses out a step that the verifier rejected, and “2 of 3
steps checked” beside an answer says how many of its steps the verifier could read.</p>
<p id="answer" class="answer" role="status"></p>"""


def ask_page(title: str, models: Sequence[str], budget: int, example: str = "") -> str:
    """The page that asks its own server, with one of `models` and so many tokens, and draws the
    tree as it grows; `example` is a question that it shows.
    """
    names = ((html.escape(name), html.escape(name.rpartition("@")[2])) for name in models)
    methods = "".join(f'<option value="{name}">{label}</option>' for name, label in names)
    facts = {"title": title, "rows": [], "single": True, "asks": True}
    form = SEARCH_FORM.format(
        methods=methods, budget=budget, example=html.escape(example or EXAMPLE)
    )
    return _fill_page(title, facts, {}, form, "connect-src 'self'; ")


def rank_row(line: Facts) -> tuple[int, int, int]:
    """How interesting a row is, larger for more."""
    return -OUTCOMES.index(line["outcome"]), line["nodes"], -line["number"]


def _fill_page(
    title: str, facts: JsonObject, trees: Mapping[int, str], form: str = "", more: str = ""
) -> str:
    # One function around all scripts: they share names with each other and nothing with the page.
    script = (
        '(() => {\n"use strict";\n'
        + "\n".join(map(_read_asset, ASKING if form else SCRIPTS))
        + "})();\n"
    )
    css = _read_asset("page.css")
    data = [f'<script type="application/json" id="facts">{_script_json(facts)}</script>']
    data += [
        f'<script type="application/json" id="tree-{n}">{text}</script>'
        for n, text in trees.items()
    ]
    filled = {
        # Half a character, which can't be written, becomes a question mark.
        "title": html.escape(title.encode(errors="replace").decode()),
        "policy": (
            f"default-src 'none'; {more}script-src {_text_hash(script)}; "
            f"style-src {_text_hash(css)}; img-src data:; base-uri 'none'; form-action 'none'"
        ),
        "style": css,
        "form": form,
        "data": "\n".join(data),
        "script": script,
    }
    # In one pass, so that what is filled in is never looked through for %%marks%%.
    return re.sub(r"%%(\w+)%%", lambda mark: filled[mark[1]], _read_asset("page.html"))


def _read_asset(name: str) -> str:
    return (ASSETS / name).read_text(encoding="utf-8")


def _script_json(value: Any) -> str:
    """JSON in ASCII that can stand inside a script element: nothing in it ends or opens one."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _text_hash(text: str) -> str:
    return "'sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() + "'"
