"""How large the house is: code tokens by room against budgets, tests, benchmarks, keys, pages.

    uv run python scripts/size.py

Code tokens are names, operators, numbers and strings of the Python files that git tracks: no
comments, no docstrings, so that dense lines gain nothing. C and JavaScript aren't counted.
"""

from __future__ import annotations

import ast
import io
import shutil
import subprocess
import tokenize
from collections import Counter
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parent.parent
GIT = shutil.which("git") or "git"
PACKAGE = "alphazero_llm_trainer"
# Rooms of docs/design.md with their budgets in code tokens; files at the package's root are the
# room "root".
BUDGET = {
    "root": 6_000,
    "config": 4_000,
    "viewer": 3_000,
    "engine": 22_000,
    "policy": 9_000,
    "teachers": 3_500,
    "mcts": 18_000,
    "problems": 14_000,
    "rewards": 2_300,
    "rollouts.py": 3_000,
    "scale": 2_500,
    "training": 28_000,
    "eval": 9_000,
    "environment": 8_500,
    "serve": 7_000,
    "report": 5_000,
    "api": 3_500,
    "cli": 9_000,
}
COUNTED = {tokenize.NAME, tokenize.OP, tokenize.NUMBER, tokenize.STRING}


def tracked(*places: str) -> list[Path]:
    listed = subprocess.run(
        [GIT, "ls-files", *places], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    return [ROOT / name for name in listed.splitlines() if (ROOT / name).exists()]


def docstrings(tree: ast.AST) -> set[tuple[int, int]]:
    """Where docstrings begin: line and column."""
    places = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            if (
                isinstance(first, ast.Expr)
                and isinstance(first.value, ast.Constant)
                and isinstance(first.value.value, str)
            ):
                places.add((first.lineno, first.col_offset))
    return places


def tokens(paths: list[Path]) -> int:
    """Code tokens of Python files."""
    count = 0
    for path in paths:
        text = path.read_text(encoding="utf-8")
        skipped = docstrings(ast.parse(text))
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            count += token.type in COUNTED and token.start not in skipped
    return count


def rooms(paths: list[Path]) -> Counter[str]:
    """Code tokens by room; `rollouts.py` is a room of its own."""
    sizes: Counter[str] = Counter()
    for path in paths:
        place = path.relative_to(ROOT / PACKAGE).parts
        alone = "rollouts.py" if place[0] == "rollouts.py" else "root"
        sizes[place[0] if len(place) > 1 else alone] += tokens([path])
    return sizes


def keys(tree: object) -> int:
    """Keys below `tree`, sections counted too."""
    return sum(1 + keys(below) for below in tree.values()) if isinstance(tree, dict) else 0


def main() -> None:
    python = tracked(f"{PACKAGE}/*.py")
    print(f"{'room':14}{'tokens':>8}{'budget':>8}")
    sizes = rooms(python)
    for room in [*BUDGET, *sorted(sizes.keys() - BUDGET.keys())]:
        print(f"{room:14}{sizes[room]:8,}{BUDGET.get(room, 0):8,}")
    for name, count, aim in (
        ("package", sum(sizes.values()), 155_000),
        ("tests", tokens(tracked("tests/*.py")), 120_000),
        ("benchmarks and scripts", tokens(tracked("benchmarks/*.py", "scripts/*.py")), 30_000),
        ("benchmarks", len([path for path in tracked("benchmarks") if path.suffix == ".py"]), 14),
        (
            "keys of training.yaml",
            keys(yaml.safe_load((ROOT / "config/training.yaml").read_text("utf-8"))),
            130,
        ),
        ("result pages", len(tracked("docs/results/*.md")), 8),
    ):
        print(f"{name:28}{count:8,}{aim:10,}")


if __name__ == "__main__":
    main()
