"""How old the figures of a page are: the commit of its JSON, and which of the modules it depends on differ now.

A module has changed when its files in the working tree are not those of the commit, so that a page is right in the commit that
holds it and the change together. Only names of modules are told: a page changes with the first change of each, and not again.
"""

from __future__ import annotations

from functools import cache

from benchmarks.provenance import ROOT, git

from .page import REPOSITORY, Row, listed

LINE = "- **Measured"  # how the line of a page begins; kept as it is where there is no history to read
SHORT = 7  # characters of a commit


class NoHistoryError(Exception):
    """The commit is not here, and can't be: no git, no repository of this project, or a shallow clone."""


class AgeError(Exception):
    """A JSON file without an age, or with one that can't be; says why and what to do."""


@cache
def whole_history() -> bool:
    """Whether this is the project's own repository with all commits."""
    top = git("rev-parse", "--show-toplevel")
    return top == str(ROOT) and git("rev-parse", "--is-shallow-repository") == "false"


@cache
def files_changed(commit: str) -> frozenset[str]:
    """The files that differ between a commit and the working tree, new ones among them."""
    if not whole_history():
        raise NoHistoryError
    since = git("diff", "--name-only", "--no-renames", commit, "--")
    if since is None:
        raise AgeError(f"commit {commit} is not in this repository's history: measure again")
    return frozenset([*since.splitlines(), *untracked()])


@cache
def untracked() -> tuple[str, ...]:
    return tuple((git("ls-files", "--others", "--exclude-standard") or "").splitlines())


def changed(data: Row) -> list[str]:
    """The modules that a JSON's figures depend on and that are not what they were, as a page names them."""
    if not {"commit", "clean", "date", "depends"} <= data.keys():
        raise AgeError(
            "doesn't say how old it is: run `uv run python benchmarks/provenance.py` on it (--name: see DEPENDS there)"
        )
    files = files_changed(data["commit"])
    found = (one for one in data["depends"] if any(f"{file}/".startswith(f"{one}/") for file in files))
    return [f"`{one.removeprefix('alphazero_llm_trainer/')}`" for one in found]


def stale(data: Row) -> bool:
    """Whether a figure is older than the code it speaks of, or of code that nobody has."""
    return data.get("clean") is False or bool(changed(data))


def line(data: Row, name: str = "") -> str:
    """The line of a page on the age of a JSON; `name` where it isn't the page's own."""
    of = f", {name}" if name else ""
    since = changed(data)
    commit = f"[`{data['commit'][:SHORT]}`]({REPOSITORY}/commit/{data['commit']}) ({data['date']})"
    how = {True: "at", False: "with uncommitted changes to", None: "at or before"}[data["clean"]]
    told = f"changed since: {listed(since)}" if since else "nothing that it depends on has changed since"
    return f"{LINE}{of}**: {how} {commit}; {told}"
