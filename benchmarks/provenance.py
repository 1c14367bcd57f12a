"""How old a figure is: the commit that it was measured on.

`write` puts it into the JSON of a benchmark, as `commit`, `clean` and `date`;
`scripts/results_pages.py` names it on the page. A command of the package that writes JSON knows no
commit; stamp its file, right after the run:

    uv run python benchmarks/provenance.py benchmarks/results/search_vs_greedy.json
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
CODE = ("alphazero_llm_trainer", "benchmarks", "config", "pyproject.toml", ":!benchmarks/results")


def git(*words: str) -> str | None:
    """What git says in this repository; None without git, outside of a repository, or where it
    fails.
    """
    try:
        done = subprocess.run(
            ["git", *words], cwd=ROOT, capture_output=True, text=True, check=False
        )
    except FileNotFoundError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def code() -> dict[str, Any]:
    """The commit that is checked out, and whether its code is as it was committed (`clean`);
    results don't count as code.
    """
    changed = git("status", "--porcelain", "--", *CODE)
    return {"commit": git("rev-parse", "HEAD"), "clean": None if changed is None else not changed}


# When the benchmark was imported, as its code was.
BEGAN = {**code(), "date": f"{datetime.now(UTC):%Y-%m-%d}"}


def make_parser(doc: str, name: str | None = None) -> argparse.ArgumentParser:
    """The parser of a benchmark's options: `--out` is `RESULTS`/NAME.json, None where no name is
    given.
    """
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    out = None if name is None else RESULTS / f"{name}.json"
    parser.add_argument("--out", type=Path, default=out, help="default: in benchmarks/results")
    return parser


def portable(word: str) -> str:
    """A word of a command; a folder of this machine is FOLDER."""
    return "FOLDER" if word.startswith("/") else word


def write(out: Path, figures: Mapping[str, Any]) -> None:
    """A benchmark's figures as JSON, with their age and the command that runs, where `figures` has
    none.
    """
    script, *words = sys.argv
    asked = f"uv run python benchmarks/{shlex.join((Path(script).name, *map(portable, words)))}"
    out.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"command": asked, **BEGAN, **figures}, indent=1, ensure_ascii=False)
    out.write_text(text + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", type=Path, help="JSON that a command has just written")
    args = parser.parse_args()
    write(args.file, json.loads(args.file.read_text(encoding="utf-8")))


if __name__ == "__main__":
    main()
