"""How large the house is: lines of the package by room against its budget, tests, benchmarks, keys, pages, one of everything.

    uv run python scripts/size.py

Lines are those of the files that git tracks, with blank ones and comments: Python, C and JavaScript. From the syntax
trees come counts of places in the text: a `Search(...)`, an app or server that is made, a function that weighs HRE and PRE.
"""

from __future__ import annotations

import ast
import shutil
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parent.parent
GIT = shutil.which("git") or "git"
PACKAGE = "alphazero_llm_trainer"
CODE = (".py", ".c", ".h", ".js")
# Rooms of docs/design.md with their budgets; files at the package's root are the room "root".
BUDGET = {
    "root": 900, "config": 600, "viewer": 1300, "engine": 4300, "policy": 1000, "teachers": 500, "mcts": 2200, "problems": 2200,
    "rewards": 400, "rollouts.py": 350, "scale": 400, "training": 3000, "eval": 1200, "environment": 1000, "serve": 1000,
    "report": 600, "api": 450, "cli": 1400,
}  # fmt: skip
APPS = {"Starlette", "FastAPI", "start_server", "start_unix_server", "HTTPServer", "ThreadingHTTPServer"}


def tracked(*places: str) -> list[Path]:
    listed = subprocess.run([GIT, "ls-files", *places], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [ROOT / name for name in listed.splitlines() if (ROOT / name).exists()]


def lines(paths: list[Path]) -> int:
    return sum(path.read_text(encoding="utf-8").count("\n") for path in paths)


def rooms(paths: list[Path]) -> Counter[str]:
    """Lines by room; `rollouts.py` is a room of its own."""
    found: Counter[str] = Counter()
    for path in paths:
        place = path.relative_to(ROOT / PACKAGE).parts
        alone = "rollouts.py" if place[0] == "rollouts.py" else "root"
        found[place[0] if len(place) > 1 else alone] += lines([path])
    return found


def nodes(paths: list[Path]) -> Iterator[ast.AST]:
    for path in paths:
        yield from ast.walk(ast.parse(path.read_text(encoding="utf-8")))


def makes(names: set[str]) -> Callable[[ast.AST], bool]:
    """Whether a node calls one of these."""
    return lambda node: (
        isinstance(node, ast.Call)
        and (node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")) in names
    )


def weighs_rewards(node: ast.AST) -> bool:
    """A function that reads both weights of the combined reward."""
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return False
    read = {one.attr for one in ast.walk(node) if isinstance(one, ast.Attribute)}
    return {"hre_weight", "pre_weight"} <= read


def keys(tree: object) -> int:
    """Keys below `tree`, sections counted too."""
    return sum(1 + keys(below) for below in tree.values()) if isinstance(tree, dict) else 0


def main() -> None:
    package = [path for path in tracked(PACKAGE) if path.suffix in CODE]
    python = [path for path in package if path.suffix == ".py"]
    print(f"{'room':14}{'lines':>8}{'budget':>8}")
    found = rooms(package)
    for room in [*BUDGET, *sorted(found.keys() - BUDGET.keys())]:
        print(f"{room:14}{found[room]:8,}{BUDGET.get(room, 0):8,}")
    for name, count, aim in (
        ("package lines", lines(package), 23_000),
        ("tests", lines([path for path in tracked("tests") if path.suffix == ".py"]), 13_000),
        (
            "benchmarks and scripts",
            lines([path for path in tracked("benchmarks", "scripts") if path.suffix == ".py"]),
            4_000,
        ),
        ("benchmarks", len([path for path in tracked("benchmarks") if path.suffix == ".py"]), 14),
        ("keys of training.yaml", keys(yaml.safe_load((ROOT / "config/training.yaml").read_text("utf-8"))), 130),
        ("result pages", len(tracked("docs/results/*.md")), 12),
        ("places that make a Search", sum(map(makes({"Search"}), nodes(python))), 2),
        ("HTTP apps", sum(map(makes(APPS), nodes(python))), 1),
        ("reward formulas", sum(map(weighs_rewards, nodes(python))), 1),
    ):
        print(f"{name:28}{count:8,}{aim:10,}")


if __name__ == "__main__":
    main()
