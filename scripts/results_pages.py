"""The pages of docs/results, and README's table of results, from the JSON files of the benchmarks.

    uv run python scripts/results_pages.py              # write them
    uv run python scripts/results_pages.py --check      # exit 1 where a page and its JSON differ
    uv run python scripts/results_pages.py --release    # and where a figure of README's is older than the code it speaks of

What stands on a page is declared in `results_pages.yaml`: headings, sentences, and tables with the place of their rows in a
JSON and a template a column. Every figure in them, and every "better" or "no difference shown" beside one, is a template that
this script fills, so that no sentence outlives a new measurement. A template is `{path}` or `{path:format}`:

    {summary[arm=search].greedy:ci}     keys from the JSON's root or the table's row; a list's entry by its number or a key
    {@ladder.problems:,}                from another JSON
    {first over second:.1f}             a ratio
    {after.accuracy|test_greedy:ci}     the first that is there
    {$0}, {$1}                          in a table: the keys that stood at a `*` of `rows`

Formats are Python's, and `ci`, `gain`, `judged`, `verdict` of a value with its interval, `list` and `count` of a list.

A part of a page names the commit its JSON was measured at, and which of the modules it depends on differ from it in the
working tree: a change of such a module and the page that tells it belong into one commit. Where git has no whole history (a
shallow clone, a source archive) these lines stay as the pages have them.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.provenance import git  # noqa: E402

DATA, PAGES, README = ROOT / "benchmarks" / "results", ROOT / "docs" / "results", ROOT / "README.md"
STUDENT = ROOT / "alphazero_llm_trainer" / "assets" / "student" / "manifest.json"
DECLARED = Path(__file__).with_suffix(".yaml")
REPOSITORY = "https://github.com/alphazero-llm-trainer/alphazero-llm-trainer"
PACKAGE = "alphazero_llm_trainer/"
MEASURED = "- **Measured"  # how the line on a JSON's age begins
OLDER = "Older than the code it speaks of:"  # how README's line on ages begins
# Rooms by the names that older JSON has for them.
NOW = {"train": "training", "search": "mcts", "train/": "training/", "search/": "mcts/"}
TEMPLATE = re.compile(r"\{([^{}:]+)(?::([^{}]*))?\}")
DOT = re.compile(r"\.(?![^\[]*\])")  # between two steps of a path; not inside of a condition
STEP = re.compile(r"([^\[\]]*)((?:\[[^\]]*\])*)$")


class PageError(Exception):
    """A declaration that asks for what no JSON has, or a JSON without an age."""


class MissingError(Exception):
    """A figure that isn't there."""


# -- figures -----------------------------------------------------------------------------------------------------------


READ: dict[str, dict[str, Any]] = {}  # the JSON files that were asked for


def load(stem: str) -> dict[str, Any]:
    if stem not in READ:
        path = STUDENT if stem == "student" else DATA / f"{stem}.json"
        READ[stem] = json.loads(path.read_text(encoding="utf-8"))
    return READ[stem]


def entries(value: Any, path: Sequence[str], keys: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """What lies at a path below `value`, with the keys that `*` stood for; nothing where a key is missing.

    A step is a key, a number, or `*`, and then conditions `[key=pattern]` on the entries of the list that it leads to.
    """
    if not path:
        yield keys, value
        return
    step = STEP.match(path[0])
    assert step is not None, path
    name, conditions = step.groups()
    if name == "*":
        pairs = value.items() if isinstance(value, Mapping) else enumerate(value)
        found = [((*keys, str(key)), one) for key, one in pairs]
    elif isinstance(value, Mapping):
        found = [(keys, value[name])] if name in value else []
    else:
        found = [(keys, value[int(name)])] if isinstance(value, list) and name.lstrip("-").isdigit() else []
    if conditions:
        wanted = [condition.split("=", 1) for condition in conditions[1:-1].split("][")]
        found = [(keys, one) for keys, many in found for one in many if fits(one, wanted)]
    for more, one in found:
        yield from entries(one, path[1:], more)


def fits(entry: Mapping[str, Any], wanted: Sequence[Sequence[str]]) -> bool:
    """Whether a list's entry has all values that are wanted, which are regular expressions."""
    return all(re.fullmatch(pattern, str(entry.get(key))) for key, pattern in wanted)


def lookup(path: str, row: Mapping[str, Any], data: Mapping[str, Any]) -> Any:
    """The figure at a path of the row, else of the JSON; None where neither has it."""
    for choice in path.split("|"):
        if choice.isdigit() and choice not in row:
            return int(choice)
        stem, _, rest = choice.removeprefix("@").partition(".")
        places = [load(stem)] if choice.startswith("@") else [row, data]
        steps = DOT.split(rest if choice.startswith("@") else choice)
        for place in places:
            for _, value in entries(place, steps):
                return value
    return None


def triple(found: Any) -> tuple[float, float, float]:
    """A value with its 95% interval, however a JSON holds it."""
    if isinstance(found, Mapping):
        return found["value"], found["low"], found["high"]
    value, low, high = found
    return value, low, high


def verdict(found: Any) -> str:
    """What a paired difference says: its interval lies above zero, below it, or holds it."""
    _, low, high = triple(found)
    return "better" if low > 0 else "worse" if high < 0 else "no difference shown"


def listed(values: Sequence[Any]) -> str:
    *first, last = [f"{value:.3f}" if isinstance(value, float) else str(value) for value in values] or ["none"]
    return f"{', '.join(first)} and {last}" if first else last


def shown(value: Any, how: str) -> str:
    """A figure in one of the script's formats, or in Python's."""
    if how == "ci":
        return "{:.3f} [{:.3f}, {:.3f}]".format(*triple(value))
    if how == "gain":
        return "{:+.3f} [{:+.3f}, {:+.3f}]".format(*triple(value))
    if how == "judged":
        return f"{shown(value, 'gain')}, {verdict(value)}"
    if how == "verdict":
        return verdict(value)
    if how == "list":
        return listed(value)
    return f"{len(value):,}" if how == "count" else format(value, how)


def row_key(row: Mapping[str, Any], name: str) -> str:
    """What `$name` inside of a path stands for: a key that `*` stood for, or a figure of the row."""
    return str(row[f"${name}"] if name.isdigit() else row[name])


def filled(text: str, row: Mapping[str, Any], data: Mapping[str, Any], strict: bool = True) -> str:
    """A text with its figures. One that isn't there is an error in a sentence, and empties a cell (not `strict`)."""

    def figure(match: re.Match[str]) -> str:
        path, how = match[1], match[2] or ""
        path = re.sub(r"(?<=.)\$(\d|\w+)", lambda key: row_key(row, key[1]), path)
        parts = [lookup(part, row, data) for part in path.split(" over ")]
        if any(part is None for part in parts):
            raise MissingError(path)
        return shown(parts[0] if len(parts) == 1 else parts[0] / parts[1], how)

    try:
        return TEMPLATE.sub(figure, text)
    except MissingError as error:
        if strict:
            raise PageError(f"no JSON has {error}, which {text!r} asks for") from None
        return ""


def table(declared: Mapping[str, Any], data: Mapping[str, Any]) -> list[str]:
    """A Markdown table. `names` renames the first key that `*` stood for, and leaves out what it doesn't name."""
    columns: dict[str, str] = declared["columns"]
    lines = []
    names = declared.get("names")
    for keys, found in entries(data, DOT.split(declared["rows"])):
        if names is not None and keys[0] not in names:
            continue
        row = dict(found) if isinstance(found, Mapping) else {"value": found}
        row |= {f"${at}": key for at, key in enumerate(keys)}
        row |= {"$0": names[keys[0]]} if names is not None else {}
        lines.append(" | ".join(filled(template, row, data, strict=False) for template in columns.values()))
    if not lines:
        raise PageError(f"no JSON has rows at {declared['rows']!r}")
    head = [
        f"| {' | '.join(filled(name, {}, data) for name in columns)} |",
        "|".join(["", "---", *["---:"] * (len(columns) - 1), ""]),
    ]
    caption = [filled(declared["caption"], {}, data), ""] if "caption" in declared else []
    return ["", *caption, *head, *(f"| {line} |" for line in lines), ""]


# -- ages --------------------------------------------------------------------------------------------------------------


class NoHistoryError(Exception):
    """The commit is not here, and can't be: no git, no repository of this project, or a shallow clone."""


@cache
def files_changed(commit: str) -> frozenset[str]:
    """The files that differ between a commit and the working tree, new ones among them."""
    if git("rev-parse", "--show-toplevel") != str(ROOT) or git("rev-parse", "--is-shallow-repository") != "false":
        raise NoHistoryError
    since = git("diff", "--name-only", "--no-renames", commit, "--")
    if since is None:
        raise PageError(f"commit {commit} is not in this repository's history: measure again")
    return frozenset([*since.splitlines(), *(git("ls-files", "--others", "--exclude-standard") or "").splitlines()])


def changed(data: Mapping[str, Any]) -> list[str]:
    """The modules that a JSON's figures depend on and that are not what they were, by today's names."""
    if not {"commit", "clean", "date", "depends"} <= data.keys():
        raise PageError(f"a JSON of {data.get('command')} doesn't say how old it is: see benchmarks/provenance.py")
    files = files_changed(data["commit"])
    found = []
    for path in data["depends"]:
        if any(f"{file}/".startswith(f"{path}/") for file in files):
            room, slash, rest = path.removeprefix(PACKAGE).partition("/")
            found.append(f"`{NOW.get(room, room)}{slash}{rest}`")
    return found


def stale(data: Mapping[str, Any]) -> bool:
    """Whether a figure is older than the code it speaks of, or of code that nobody has."""
    return data.get("clean") is False or bool(changed(data))


def provenance(stem: str) -> list[str]:
    """The lines of a part on its command, its JSON, and its age."""
    data = load(stem)
    file = (STUDENT if stem == "student" else DATA / f"{stem}.json").relative_to(ROOT).as_posix()
    words = " ".join(data["command"].split())
    words = words if words.startswith("uv run ") else f"uv run {words}"
    script = re.search(r"benchmarks/\w+\.py", words)
    gone = " (at that commit: the script has gone since)" if script and not (ROOT / script[0]).exists() else ""
    since = changed(data)
    commit = f"[`{data['commit'][:7]}`]({REPOSITORY}/commit/{data['commit']}) ({data['date']})"
    how = {True: "at", False: "with uncommitted changes to", None: "at or before"}[data["clean"]]
    told = f"changed since: {listed(since)}" if since else "nothing that it depends on has changed since"
    return [
        f"{MEASURED}** [{stem}]({REPOSITORY}/blob/main/{file}): {how} {commit}; {told}",
        f"- **Command**: `{words}`{gone}",
    ]


# -- pages -------------------------------------------------------------------------------------------------------------


def part(declared: Mapping[str, Any], old: str) -> list[str]:
    """One part of a page; `old` is the page as it stands, whose lines on age are kept where there is no history."""
    stem = declared["from"]
    if stem != "student" and not (DATA / f"{stem}.json").exists():
        return ["", f"## {declared['heading']}", "", f"Not measured yet: `uv run python benchmarks/{stem}.py`.", ""]
    data = load(stem)
    lines = ["", f"## {declared['heading']}", "", filled(declared.get("text", ""), {}, data), ""]
    for one in declared.get("tables", ()):
        lines += table(one, data)
    if "after" in declared:
        lines += ["", filled(declared["after"], {}, data), ""]
    for one in (stem, *declared.get("also", ())):
        try:
            lines += provenance(one)
        except NoHistoryError:
            begin = f"{MEASURED}** [{one}]"
            kept = old.partition(begin)
            lines += [begin + line for line in [kept[2].partition("\n- **Command**")[0]] if kept[1]]
            lines += ["- **Command**" + kept[2].partition("- **Command**")[2].partition("\n")[0]] if kept[1] else []
    return lines


def negative(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The table of what did not help. A row whose `gain` turns out better than nothing leaves it."""
    lines = ["| tried | against | found (95%) | page, or commit |", "|---|---|---|---|"]
    for row in rows:
        if "gain" in row and verdict(lookup(row["gain"], {}, {})) == "better":
            continue
        found = filled(row.get("found", f"{{{row.get('gain')}:judged}}"), {}, {})
        link = f"[{row['page']}]({row['page']}.md)" if "page" in row else commit_of(row.get("gain") or row["found"])
        lines.append(f"| {row['what']} | {row['against']} | {found} | {link} |")
    return ["", *lines, ""]


def commit_of(text: str) -> str:
    """Where no page says it: the commit that the first JSON of a text was measured at."""
    stem = re.search(r"@(\w+)\.", text)
    return f"commit {load(stem[1])['commit'][:7]}" if stem else ""


def text_of(name: str, declared: Mapping[str, Any]) -> str:
    """A page as Markdown; its tables get the room of the table of contents."""
    path = PAGES / f"{name}.md"
    old = path.read_text(encoding="utf-8") if path.exists() else ""
    lines = ["---", "hide: [toc]", "---", "", f"# {declared['title']}", ""]
    lines += ["<!-- Written by scripts/results_pages.py from results_pages.yaml and JSON: change those. -->", ""]
    lines += [filled(declared["intro"], {}, {})]
    for one in declared.get("parts", ()):
        lines += part(one, old)
    lines += negative(declared["rows"]) if "rows" in declared else []
    lines += ["", "## What this does not show", "", *(f"- {filled(limit, {}, {})}" for limit in declared["limits"])]
    return squeezed(lines)


def squeezed(lines: Sequence[str]) -> str:
    """Lines as a file's text, without two blank ones in a row."""
    kept = [line for i, line in enumerate(lines) if line or (i and lines[i - 1])]
    return "\n".join(kept).rstrip() + "\n"


def index(declared: Mapping[str, Any], pages: Mapping[str, Any]) -> str:
    rows = [f"| [{page['title']}]({name}.md) | {filled(page['line'], {}, {})} |" for name, page in pages.items()]
    lines = ["# Results", "", "<!-- Written by scripts/results_pages.py: change results_pages.yaml. -->", ""]
    lines += [filled(declared["intro"], {}, {}), "", "| Page | In one line |", "|---|---|", *rows]
    return squeezed([*lines, "", *(f"- {filled(one, {}, {})}" for one in declared["limits"])])


def readme(declared: Mapping[str, Any], kept: str) -> str:
    """README with what was found in one sentence, and the table."""
    begin, end = "<!-- results: begin (scripts/results_pages.py) -->\n", "\n<!-- results: end -->"
    head, there, rest = kept.partition(begin)
    old, there_too, tail = rest.partition(end)
    if not there or not there_too:
        raise PageError(f"README.md has no place for results: write {begin.strip()} and {end.strip()} where it goes")
    columns = ("what", "without", "with", "difference (95%)", "problems, seeds, tokens", "what it doesn't show")
    lines = [filled(declared["found"], {}, {}), "", f"| {' | '.join(columns)} |", "|---|---|---|---|---|---|"]
    lines += [
        f"| {' | '.join(filled(cell, {}, load(row['from'])) for cell in row['cells'])} |" for row in declared["rows"]
    ]
    lines.append("")
    try:
        pages = dict.fromkeys(row["page"] for row in declared["rows"] if stale(load(row["from"])))
        links = [f"[{page.replace('_', ' ')}](docs/results/{page}.md)" for page in pages]
        lines += [f"{OLDER} {listed(links)}; the pages name the commit and what changed."] if links else []
    except NoHistoryError:
        lines += [line for line in old.splitlines() if line.startswith(OLDER)]
    return head + begin + "\n".join(lines) + end + tail


def files() -> tuple[dict[Path, str], set[str]]:
    """Every file that this script owns with the text that it should have, and the JSON files that none of them reads."""
    declared = yaml.safe_load(DECLARED.read_text(encoding="utf-8"))
    pages = declared["pages"]
    found = {PAGES / f"{name}.md": text_of(name, page) for name, page in pages.items()}
    found[PAGES / "index.md"] = index(declared["index"], pages)
    found[README] = readme(declared["readme"], README.read_text(encoding="utf-8"))
    return found, {path.stem for path in DATA.glob("*.json")} - READ.keys()


def not_releasable() -> list[str]:
    """Why README's table is not to be published: figures that are older than the code they speak of, or of no known age."""
    rows = yaml.safe_load(DECLARED.read_text(encoding="utf-8"))["readme"]["rows"]
    try:
        old = [stem for stem in dict.fromkeys(row["from"] for row in rows) if stale(load(stem))]
    except NoHistoryError:
        return ["README's table is of unknown age: clone with the whole history"]
    return [f"README's table: {stem}.json is older than its code, so measure it again" for stem in old]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 where a file differs")
    parser.add_argument("--release", action="store_true", help="--check, and exit 1 where README has an old figure")
    args = parser.parse_args()
    try:
        wanted, unread = files()
        wrong = not_releasable() if args.release else []
    except PageError as error:
        sys.exit(str(error))
    old, differing = len(wrong), [f"benchmarks/results/{stem}.json is on no page" for stem in sorted(unread)]
    differing += [f"{path.relative_to(ROOT)} is no page of results" for path in sorted({*PAGES.iterdir()} - {*wanted})]
    for path, text in wanted.items():
        if path.exists() and path.read_text(encoding="utf-8") == text:
            continue
        if args.check or args.release:
            differing.append(f"{path.relative_to(ROOT)} differs from what its JSON says")
        else:
            path.write_text(text, encoding="utf-8")
            print(f"wrote {path.relative_to(ROOT)}")
    if differing:
        differing.append("run `uv run python scripts/results_pages.py` and commit what it writes")
    if wrong[:old] or differing:
        sys.exit("\n".join([*wrong, *differing]))


if __name__ == "__main__":
    main()
