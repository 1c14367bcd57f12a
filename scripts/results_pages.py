"""The pages of docs/results, and README's table of results, from the JSON files of the benchmarks.

    uv run python scripts/results_pages.py              # write them
    uv run python scripts/results_pages.py --check      # exit 1 where a page and its JSON differ
    uv run python scripts/results_pages.py --release    # and where a figure of README's is older than the code it speaks of

A page is one function of `pages/`, with the name of its JSON file. Every figure is read from the JSON or computed from it,
and so is every "better" or "no difference shown" beside one, so that no sentence outlives a new measurement. README's
differences are computed again from results by problem, where the JSON has them.

A page says at which commit its JSON was measured and which of the modules it depends on have changed since. The working tree
counts: a change of such a module and the page that tells it belong into one commit. Where git has no whole history (a
shallow clone, a source archive) ages are left as the pages have them.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from pages import age, answers, engines, learning, negative, readme, real, robustness, trl
from pages.learning import learning_curves
from pages.page import (
    DATA,
    FROM_RULES_CHART,
    IMPROVEMENT_CHART,
    PAGES,
    README,
    REPOSITORY,
    ROOT,
    STUDENT,
    Page,
    Row,
    listed,
    load,
    load_if_there,
    recorded,
    splits,
)

# Stem of the JSON file, which is the function's name -> its page.
LEARNING = {page.__name__: page for page in (*learning.PAGES, *answers.PAGES, *real.PAGES, *trl.PAGES)}
MACHINERY = {page.__name__: page for page in (*engines.PAGES, *robustness.PAGES)}
# Page -> other JSON files that it is made of.
PARTS = {
    "from_rules": ("from_rules_large_rounds",),
    "real_ladder": ("real_ladder_first", "real_judges", "real_structures"),
    "vllm_cpu": ("step_search_vllm",),
    "search_budgets": ("search_budgets_embedded",),
}
NEGATIVE = "what_did_not_help"  # the page that is made of many


def file_of(stem: str) -> Path:
    return STUDENT if stem == "student" else DATA / f"{stem}.json"


def parts(stem: str) -> dict[str, Row]:
    """The JSON files of a page that are there, its own first."""
    found = {one: load_if_there(one) for one in (stem, *PARTS.get(stem, ()))}
    return {one: data for one, data in found.items() if data is not None}


def ages(stem: str, path: Path) -> list[str]:
    """The lines on how old a page's figures are; as the page in `path` has them where there is no history."""
    try:
        return [age.line(data, "" if one == stem else one) for one, data in parts(stem).items()]
    except age.NoHistoryError:
        old = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        return [line for line in old if line.startswith(age.LINE)]


def unrecorded(stem: str) -> list[str]:
    """The limit of a page of accuracies whose JSON has no results by problem."""
    if stem not in {*LEARNING, "lag"} - {"overlap", "student"}:
        return []
    bare = [f"`{one}.json`" for one, data in parts(stem).items() if not recorded(data)]
    return [f"Intervals of {listed(bare)} can't be computed again: no results by problem were kept."] if bare else []


def text_of(stem: str, page: Page) -> str:
    """A page as Markdown. Its tables get the room of the table of contents."""
    source = file_of(stem).relative_to(ROOT).as_posix()
    facts = {**page.facts, "Data": f"[`{source}`]({REPOSITORY}/blob/main/{source})"}
    return squeezed(
        [
            *("---", "hide: [toc]", "---", "", f"# {page.title}", ""),
            f"<!-- Written by scripts/results_pages.py from {source}: change those. -->",
            *("", page.intro, ""),
            *(f"- **{name}**: {text}" for name, text in facts.items()),
            *ages(stem, PAGES / f"{stem}.md"),
            *page.body,
            *("", "## What this does not show", ""),
            *(f"- {limit}" for limit in (*page.limits, *unrecorded(stem))),
        ]
    )


def squeezed(lines: Sequence[str]) -> str:
    """Lines as a file's text, without two blank ones in a row."""
    kept = [line for i, line in enumerate(lines) if line or (i and lines[i - 1])]
    return "\n".join(kept).rstrip() + "\n"


def repeats() -> str:
    """How much embedded test problems repeat training problems, over all figures."""
    shares = [row["share"][0] for row in load("overlap")["rows"]]
    default = splits("default")["of the default run"]["share"][0]
    return (
        f"Embedded test problems repeat training problems but for names, things and numbers: {default:.0%} do after the default"
        f" run, {min(shares):.0%} to {max(shares):.0%} in the figures here, each of which says its own ([overlap](overlap.md))."
    )


def index(pages: Mapping[str, Page]) -> str:
    def rows(stems: Iterable[str]) -> list[str]:
        listing = (f"| [{pages[stem].title}]({stem}.md) | {pages[stem].headline} |" for stem in stems)
        return ["", "| Result | In one line |", "|---|---|", *listing, ""]

    return squeezed(
        [
            "# Results",
            "",
            "<!-- Written by scripts/results_pages.py: change it there. -->",
            "",
            "Every page here is written by `scripts/results_pages.py` from a JSON file that a benchmark wrote. Each names its"
            " problems, seeds, token cost and command. Intervals are 95%; differences are paired by problem.",
            "",
            f"[What did not help]({NEGATIVE}.md) has the negative results in one table.",
            "",
            "Each names the commit that it was measured at, and the modules it depends on that have changed since. Where the"
            ' JSON knows no commit it is "at or before" the one that last changed the file.',
            "",
            "Read three things with all of them.",
            "",
            "- The student is tiny and the problems are generated, except where a page names a real language model.",
            f"- {repeats()}",
            "- Nothing was measured on a GPU.",
            "",
            "## Learning and answering",
            *rows(stem for stem in LEARNING if stem in pages),
            "## Machinery",
            *rows(stem for stem in MACHINERY if stem in pages),
            "## Not measured yet",
            "",
            "This command exists and has not been run: `benchmarks/gpu.py` (speed and memory on CUDA).",
        ]
    )


def files() -> dict[Path, str]:
    """Every file that this script owns, with the text that it should have."""
    there = {stem: make for stem, make in {**LEARNING, **MACHINERY}.items() if file_of(stem).exists()}
    pages = {stem: make(load(stem)) for stem, make in there.items()}
    found = {PAGES / f"{stem}.md": text_of(stem, page) for stem, page in pages.items()}
    found[PAGES / "index.md"] = index(pages)
    found[FROM_RULES_CHART] = learning_curves(load("from_rules"))
    found[IMPROVEMENT_CHART] = learning_curves(load("improvement"))
    found[PAGES / f"{NEGATIVE}.md"] = squeezed(negative.page())
    found[README] = readme.filled(README.read_text(encoding="utf-8"))
    return found


def not_releasable() -> list[str]:
    """Why README's table is not to be published: figures that are older than the code they speak of, or of no known age."""
    try:
        old = [stem for stem in readme.STEMS if age.stale(load(stem))]
    except age.NoHistoryError:
        return ["README's table is of unknown age: clone with the whole history"]
    return [
        f"README's table: benchmarks/results/{stem}.json is older than its code, so measure it again" for stem in old
    ]


def no_age(stem: str) -> str | None:
    """Why the age of a JSON can't be known, by its own fault; None where it can, and for a file that isn't there."""
    try:
        if (data := load_if_there(stem)) is not None:
            age.changed(data)
    except age.NoHistoryError:
        pass
    except age.AgeError as error:
        return str(error)
    return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 where a file differs")
    parser.add_argument("--release", action="store_true", help="--check, and exit 1 where README has an old figure")
    args = parser.parse_args()
    check = args.check or args.release
    others = {"demo", *(one for stems in PARTS.values() for one in stems)}
    unknown = {path.stem for path in DATA.glob("*.json")} - {*LEARNING, *MACHINERY, *others}
    wrong = [f"benchmarks/results/{stem}.json has no page" for stem in sorted(unknown)]
    ageless = {stem: why for stem in (*LEARNING, *MACHINERY, *others) if (why := no_age(stem))}
    if ageless:
        sys.exit(
            "\n".join([*wrong, *(f"{file_of(stem).relative_to(ROOT)} {why}" for stem, why in sorted(ageless.items()))])
        )
    if not age.whole_history():
        print("ages were not checked: git has no whole history of this project here")
    wanted = files()
    wrong += [f"{path.relative_to(ROOT)} has no JSON file" for path in sorted(set(PAGES.glob("*.md")) - set(wanted))]
    for path, text in wanted.items():
        if path.exists() and path.read_text(encoding="utf-8") == text:
            continue
        if check:
            wrong.append(f"{path.relative_to(ROOT)} differs from its JSON file")
        else:
            path.write_text(text, encoding="utf-8")
            print(f"wrote {path.relative_to(ROOT)}")
    old = not_releasable() if args.release else []
    if wrong:
        sys.exit("\n".join([*old, *wrong, "run `uv run python scripts/results_pages.py` and commit what it writes"]))
    if old:
        sys.exit("\n".join(old))


if __name__ == "__main__":
    main()
