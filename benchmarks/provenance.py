"""How old a figure is: the commit that it was measured on, and the modules that it depends on.

`write` puts both into the JSON of a benchmark, as `commit`, `clean`, `date` and `depends`; `scripts/results_pages.py` names the
commit on the page. A command of the package that writes JSON knows no commit; stamp its file, right after the run:

    uv run python benchmarks/provenance.py benchmarks/results/ladder.json
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
CODE = ("alphazero_llm_trainer", "benchmarks", "config", "pyproject.toml", ":!benchmarks/results")

SERVER = ("serve", "engine", "mcts", "eval/methods.py")
ANSWERS = ("mcts", "engine", "eval/methods.py", "eval/attempt.py", "answers.py")
TRAINING = ("training", "mcts", "rollouts.py", "rewards", "config/training.yaml", "config/expert_iteration.yaml")
EMBEDDED = ("problems/embedded.py", "problems/calculator.py")
# Of a benchmark, or of a command that writes JSON: files and folders of the package, and of config/.
DEPENDS: dict[str, tuple[str, ...]] = {
    "engine": ("engine", "mcts", "rollouts.py", "policy/student.py"),
    "improvement": (*TRAINING, *EMBEDDED, "eval/greedy.py"),
    "students": ("training/sft.py", "training/learner.py", *EMBEDDED),
    "kill_commands": ("cli", "training", "mcts/journal.py", "scale", "files.py"),
    "kill_test": ("scale", "mcts/journal.py", "files.py"),
    "ladder": (*TRAINING, *EMBEDDED, "eval/methods.py", "benchmarks/ladder.yaml"),
    "prompts": ("policy/chat.py", "problems/prompts.py", "answers.py", "problems/grading.py"),
    "real": (*TRAINING, "engine", "eval", "problems", "policy"),
    "real_engine": ("engine", "policy/student.py"),
    "real_training": ("training/sft.py", "training/models.py", "training/packing.py", "training/attention.py"),
    "reliability": ("serve", "training", "mcts/journal.py", "scale", "teachers", "files.py"),
    "search": ("mcts", "engine"),
    "search_budgets": (*ANSWERS, *EMBEDDED, "problems/numbers.py"),
    "serve": SERVER,
    "step_search_vllm": ("engine", "mcts"),
    "student": ("training/sft.py", "problems/embedded.py"),
    "vllm_contract": ("engine",),
}


def paths(name: str) -> list[str]:
    """What the figures of a benchmark depend on, from the root of the repository."""
    return [
        one if one.startswith(("config/", "benchmarks/")) else f"alphazero_llm_trainer/{one}" for one in DEPENDS[name]
    ]


def git(*words: str) -> str | None:
    """What git says in this repository; None without git, outside of a repository, or where it fails."""
    try:
        done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def code() -> dict[str, Any]:
    """The commit that is checked out, and whether its code is as it was committed (`clean`); results don't count as code."""
    changed = git("status", "--porcelain", "--", *CODE)
    return {"commit": git("rev-parse", "HEAD"), "clean": None if changed is None else not changed}


BEGAN = {**code(), "date": f"{datetime.now(UTC):%Y-%m-%d}"}  # when the benchmark was imported, as its code was


def measured(name: str) -> dict[str, Any]:
    """What the JSON of a benchmark says of its age."""
    return {**BEGAN, "depends": paths(name)}


def portable(word: str) -> str:
    """A word of a command; a folder of this machine is FOLDER."""
    return "FOLDER" if word.startswith("/") else word


def write(out: Path, name: str, found: Mapping[str, Any]) -> None:
    """A benchmark's figures as JSON, with their age and the command that runs, where `found` has none."""
    asked = f"uv run python benchmarks/{Path(sys.argv[0]).name} {shlex.join(map(portable, sys.argv[1:]))}".strip()
    out.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"command": asked, **measured(name), **found}, indent=1, ensure_ascii=False)
    out.write_text(text + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, help="JSON that a command has just written")
    parser.add_argument("--name", help="its name in DEPENDS (default: the file's)")
    args = parser.parse_args()
    found = json.loads(args.file.read_text(encoding="utf-8"))
    write(args.file, args.file.stem if args.name is None else args.name, found)


if __name__ == "__main__":
    main()
