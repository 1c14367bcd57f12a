"""The pages of docs/results, and what README says was measured, from the JSON files of the
benchmarks.

    uv run python scripts/results_pages.py              # write them
    uv run python scripts/results_pages.py --check      # exit 1 where a page and its JSON differ

What stands on a page is declared in `results_pages.yaml`: sentences, and tables with the place of
their rows in a JSON and a template a column. Every figure, and every "better" or "no difference
shown", is a template:

    {summary[arm=tree].greedy:ci}      keys of the table's row or the JSON, a list's entry by a key
    {@engine.decode.0.batch:,}         from another JSON, a list's entry by its number
    {first over second:.1f}            a ratio
    {after.accuracy|test_greedy:ci}    the first that is there
    {$0}, {$1}                         in a table: the keys that stood at a `*` of `rows`

Formats are Python's, and `ci`, `gain`, `judged`, `verdict` of a value with its interval, `list` and
`count` of a list. Below a part stand the commit and day of its figures, and the command that
measured them: "there" is at that commit, where its script has gone since. A bullet of README that
is older than the last release says its day.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parent.parent
DATA, PAGES, README = ROOT / "benchmarks" / "results", ROOT / "docs" / "results", ROOT / "README.md"
CHANGELOG = ROOT / "CHANGELOG.md"
PACKAGE = ROOT / "alphazero_llm_trainer"
STUDENT = PACKAGE / "assets" / "student" / "manifest.json"
DECLARED = Path(__file__).with_suffix(".yaml")
REPOSITORY = "https://github.com/alphazero-llm-trainer/alphazero-llm-trainer"
BEGIN, END = "<!-- results: begin (scripts/results_pages.py) -->\n", "\n<!-- results: end -->"
WRITTEN = "<!-- Written by scripts/results_pages.py from its .yaml and JSON: change those. -->"
TEMPLATE = re.compile(r"\{([^{}:]+)(?::([^{}]*))?\}")
DOT = re.compile(r"\.(?![^\[]*\])")  # between two steps of a path; not inside of a condition
STEP = re.compile(r"([^\[\]]*)((?:\[[^\]]*\])*)$")


class PageError(Exception):
    """A declaration that asks for what no JSON has."""


class MissingError(Exception):
    """A figure that isn't there."""


# -- figures ---------------------------------------------------------------------------------------


def path_of(stem: str) -> Path:
    return STUDENT if stem == "student" else DATA / f"{stem}.json"


READ: dict[str, dict[str, Any]] = {}  # the JSON files that were asked for


def load(stem: str) -> dict[str, Any]:
    if stem not in READ:
        READ[stem] = json.loads(path_of(stem).read_text(encoding="utf-8"))
    return READ[stem]


def entries(
    value: Any, path: Sequence[str], keys: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], Any]]:
    """What lies at a path below `value`, with the keys that `*` stood for; nothing where one is
    missing.

    A step is a key, a number, or `*`, and then conditions `[key=pattern]` on the entries of its
    list.
    """
    if not path:
        yield keys, value
        return
    step = STEP.match(path[0])
    assert step is not None, path
    name, conditions = step.groups()
    below: list[tuple[tuple[str, ...], Any]] = []
    if name == "*":
        pairs = value.items() if isinstance(value, Mapping) else enumerate(value)
        below = [((*keys, str(key)), child) for key, child in pairs]
    elif isinstance(value, Mapping) and name in value:
        below = [(keys, value[name])]
    elif isinstance(value, list) and name.lstrip("-").isdigit():
        below = [(keys, value[int(name)])]
    if conditions:
        wanted = [condition.split("=", 1) for condition in conditions[1:-1].split("][")]
        below = [(key, entry) for key, many in below for entry in many if fits(entry, wanted)]
    for key, child in below:
        yield from entries(child, path[1:], key)


def fits(entry: Mapping[str, Any], wanted: Sequence[Sequence[str]]) -> bool:
    """Whether a list's entry has all values that are wanted, which are regular expressions."""
    return all(re.fullmatch(pattern, str(entry.get(key))) for key, pattern in wanted)


def lookup(path: str, row: Mapping[str, Any], data: Mapping[str, Any]) -> Any:
    """The figure at a path of the row, else of the JSON; None where neither has it."""
    for choice in path.split("|"):
        stem, _, rest = choice.removeprefix("@").partition(".")
        far = choice.startswith("@")
        for place in [load(stem)] if far else [row, data]:
            for _, value in entries(place, DOT.split(rest if far else choice)):
                return value
    return None


def triple(value: Any) -> tuple[float, float, float]:
    """A value with its 95% interval, however a JSON holds it."""
    if isinstance(value, Mapping):
        return value["value"], value["low"], value["high"]
    middle, low, high = value
    return middle, low, high


def verdict(value: Any) -> str:
    """What a paired difference says: its interval lies above zero, below it, or holds it."""
    _, low, high = triple(value)
    if low > 0:
        return "better"
    return "worse" if high < 0 else "no difference shown"


def listed(values: Sequence[Any]) -> str:
    texts = [f"{value:.3f}" if isinstance(value, float) else str(value) for value in values]
    return " and ".join(filter(None, [", ".join(texts[:-1]), *texts[-1:]])) or "none"


def shown(value: Any, how: str) -> str:
    """A figure in one of the script's formats, or in Python's."""
    match how:
        case "ci":
            return "{:.3f} [{:.3f}, {:.3f}]".format(*triple(value))
        case "gain":
            return "{:+.3f} [{:+.3f}, {:+.3f}]".format(*triple(value))
        case "judged":
            return f"{shown(value, 'gain')}, {verdict(value)}"
        case "verdict":
            return verdict(value)
        case "list":
            return listed(value)
        case "count":
            return f"{len(value):,}"
    return format(value, how)


def filled(text: str, row: Mapping[str, Any], data: Mapping[str, Any], strict: bool = True) -> str:
    """A text with its figures. A missing one is an error in a sentence, and empties a cell (not
    `strict`).
    """

    def key(match: re.Match[str]) -> str:
        """What `$0` or `$name` inside of a path stands for."""
        return str(row[match[0] if match[1].isdigit() else match[1]])

    def figure(match: re.Match[str]) -> str:
        path = re.sub(r"(?<=.)\$(\d|\w+)", key, match[1])
        parts = [lookup(part, row, data) for part in path.split(" over ")]
        if any(part is None for part in parts):
            raise MissingError(path)
        return shown(parts[0] if len(parts) == 1 else parts[0] / parts[1], match[2] or "")

    try:
        return TEMPLATE.sub(figure, text)
    except MissingError as error:
        if strict:
            raise PageError(f"no JSON has {error}, which {text!r} asks for") from None
        return ""


def table(declared: Mapping[str, Any], data: Mapping[str, Any]) -> list[str]:
    """A Markdown table. `names` renames the first key of `*`, and leaves out what it doesn't
    name.
    """
    columns: dict[str, str] = declared["columns"]
    names = declared.get("names")
    lines = []
    for keys, value in entries(data, DOT.split(declared["rows"])):
        if names is not None and keys[0] not in names:
            continue
        row = dict(value) if isinstance(value, Mapping) else {"value": value}
        row |= {f"${at}": key for at, key in enumerate(keys)}
        if names is not None:
            row["$0"] = names[keys[0]]
        cells = [filled(template, row, data, strict=False) for template in columns.values()]
        lines.append(f"| {' | '.join(cells)} |")
    if not lines:
        raise PageError(f"no JSON has rows at {declared['rows']!r}")
    head = [f"| {' | '.join(columns)} |", "|---|" + "---:|" * (len(columns) - 1)]
    return ["", filled(declared.get("caption", ""), {}, data), "", *head, *lines, ""]


# -- pages -----------------------------------------------------------------------------------------


def command(data: Mapping[str, Any]) -> tuple[str, bool]:
    """The command that measured a JSON, and whether its script or command is still there."""
    words = " ".join(data["command"].split()).removeprefix("uv run ")
    words = re.sub(r" --(out|work) FOLDER", "", words)
    program, name = words.split()[:2]
    places = {"python": ROOT / name, "alphazero-llm-trainer": PACKAGE / "cli" / f"{name}.py"}
    return f"uv run {words}", program not in places or places[program].exists()


def measured(stem: str, again: str | None = None) -> str:
    """The line below a part: commit and day of a JSON's figures, and a command (`again` in its
    place).
    """
    data = load(stem)
    file = path_of(stem).relative_to(ROOT).as_posix()
    at = {True: "at", False: "with uncommitted changes to", None: "at or before"}[data["clean"]]
    commit = f"[`{data['commit'][:7]}`]({REPOSITORY}/commit/{data['commit']}), {data['date']}"
    words, there = command(data) if again is None else (again, True)
    line = f"- [{path_of(stem).name}]({REPOSITORY}/blob/main/{file}) measured {at} {commit}"
    return f"{line}{':' if there else ', there by'} `{words}`" if words else line


def part(declared: Mapping[str, Any]) -> list[str]:
    stem = declared["from"]
    data = load(stem)
    lines = [
        "",
        f"## {declared['heading']}",
        "",
        filled(declared.get("text", ""), {}, data).rstrip(),
        "",
    ]
    for each in declared.get("tables", ()):
        lines += table(each, data)
    lines += ["", filled(declared.get("after", ""), {}, data), ""]
    lines.append(measured(stem, declared.get("command")))
    return [*lines, *map(measured, declared.get("also", ()))]


def negative(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The table of what did not help. A row whose `gain` turns out better than nothing leaves
    it.
    """
    lines = ["", "| tried | against | result (95%) | page, or commit |", "|---|---|---|---|"]
    for row in rows:
        text = row.get("result", f"{{{row.get('gain')}:gain}}")
        if "gain" in row and verdict(lookup(row["gain"], {}, {})) == "better":
            continue
        where = ""
        if "page" in row:
            where = f"[{row['page']}]({row['page']}.md)"
        elif stem := re.search(r"@(\w+)\.", text):
            where = f"commit {load(stem[1])['commit'][:7]}"
        lines.append(f"| {row['what']} | {row['against']} | {filled(text, {}, {})} | {where} |")
    return lines


def page(declared: Mapping[str, Any], pages: Mapping[str, Any]) -> str:
    """A page as Markdown; its tables get the room of the table of contents."""
    lines = ["---", "hide: [toc]", "---", "", f"# {declared['title']}", "", WRITTEN, ""]
    lines += [filled(declared["intro"], {}, {}), ""]
    if "index" in declared:
        lines += ["| Page | In one line |", "|---|---|"]
        for name, other in pages.items():
            if "line" in other:
                lines.append(f"| [{other['title']}]({name}.md) | {filled(other['line'], {}, {})} |")
    for each in declared.get("parts", ()):
        lines += part(each)
    if "rows" in declared:
        lines += negative(declared["rows"])
    lines += ["", "## What this does not show", ""]
    lines += [f"- {filled(limit, {}, {})}" for limit in declared["limits"]]
    kept = [line for i, line in enumerate(lines) if line or lines[i - 1]]  # no two blank ones
    return "\n".join(kept) + "\n"


def releases() -> dict[str, str]:
    """The day of each release by its version, the last one first."""
    headings = re.findall(r"^## (\d\S*) - (\S+)$", CHANGELOG.read_text(encoding="utf-8"), re.M)
    return dict(headings)


def dated(bullet: str) -> str:
    """The day of a bullet's oldest figure, and the release before it; nothing where all figures are
    of the last release or younger.
    """
    days = releases()
    day = min(load(stem)["date"] for stem in re.findall(r"@(\w+)\.", bullet))
    version = next((version for version, released in days.items() if released <= day), None)
    if version == next(iter(days)):
        return ""
    return f" ({day}, after {version})" if version else f" ({day})"


def readme(bullets: Sequence[str], text: str) -> str:
    head, begin, rest = text.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        raise PageError(
            f"README.md has no place for results: write {BEGIN.strip()} and {END.strip()}"
        )
    lines = [f"- {filled(each, {}, {})}{dated(each)}" for each in bullets]
    return head + begin + "\n".join(lines) + end + tail


def files() -> dict[Path, str]:
    """Every file that this script owns, with the text that it should have."""
    declared = yaml.safe_load(DECLARED.read_text(encoding="utf-8"))
    pages = declared["pages"]
    texts = {PAGES / f"{name}.md": page(each, pages) for name, each in pages.items()}
    texts[README] = readme(declared["readme"], README.read_text(encoding="utf-8"))
    return texts


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--check", action="store_true", help="write nothing; exit 1 on a difference"
    )
    check = parser.parse_args().check
    try:
        texts = files()
    except (PageError, FileNotFoundError) as error:
        sys.exit(str(error))
    unread = {path.stem for path in DATA.glob("*.json")} - READ.keys()
    wrong = [f"benchmarks/results/{stem}.json is on no page" for stem in sorted(unread)]
    wrong += [
        f"docs/results/{path.name} is no page" for path in sorted({*PAGES.iterdir()} - {*texts})
    ]
    for path, text in texts.items():
        if path.exists() and path.read_text(encoding="utf-8") == text:
            continue
        if check:
            wrong.append(f"{path.relative_to(ROOT)} differs from what its JSON says")
        else:
            path.write_text(text, encoding="utf-8")
            print(f"wrote {path.relative_to(ROOT)}")
    if wrong:
        wrong.append("run `uv run python scripts/results_pages.py` and commit what it writes")
        sys.exit("\n".join(wrong))


if __name__ == "__main__":
    main()
