"""How large the house is: code tokens by room against budgets, tests, benchmarks, keys, pages, and
what must be open for a change (`reading_paths.yaml`).

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
from collections import Counter, defaultdict
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parent.parent
GIT = shutil.which("git") or "git"
PACKAGE = "alphazero_llm_trainer"
# Rooms with their budgets in code tokens; files at the package's root are the room "root".
BUDGET = {
    "root": 4_000,
    "grading": 8_000,
    "config": 6_000,
    "viewer": 3_000,
    "engine": 30_000,
    "chat": 6_500,
    "policy": 13_000,
    "tree": 5_500,
    "mcts": 14_000,
    "problems": 14_000,
    "rewards": 2_300,
    "answering": 400,
    "learning": 19_000,
    "runs": 19_000,
    "eval": 10_500,
    "environment": 8_500,
    "serve": 9_000,
    "report": 5_000,
    "api": 4_500,
    "cli": 8_000,
}
COUNTED = {tokenize.NAME, tokenize.OP, tokenize.NUMBER, tokenize.STRING}
# Python 3.12 cuts an f-string into tokens of its own: it counts as one, as it does before.
BEGIN, END = (getattr(tokenize, f"FSTRING_{name}", None) for name in ("START", "END"))


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


def tokens_of(text: str) -> int:
    """Code tokens of Python code."""
    skipped, count = docstrings(ast.parse(text)), 0
    inside = 0  # of so many f-strings
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        inside -= token.type == END
        counts = token.type in (*COUNTED, BEGIN) and token.start not in skipped
        count += counts and not inside
        inside += token.type == BEGIN
    return count


def tokens(paths: list[Path]) -> int:
    """Code tokens of Python files."""
    return sum(tokens_of(path.read_text(encoding="utf-8")) for path in paths)


def places(paths: list[Path]) -> dict[str, list[tuple[str, int]]]:
    """Files and their functions and classes by name: the file of each home, and its code tokens."""
    found = defaultdict(list)
    for path in paths:
        text, name = path.read_text(encoding="utf-8"), str(path.relative_to(ROOT / PACKAGE))
        found[name].append((name, tokens_of(text)))
        for node in ast.parse(text).body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                code = ast.get_source_segment(text, node) or ""
                found[node.name].append((name, tokens_of(code)))
    return found


def print_paths(paths: list[Path]) -> bool:
    """Print what must be open for each change; whether every name has one home."""
    known = places(paths)
    declared = yaml.safe_load(Path(__file__).with_name("reading_paths.yaml").read_text("utf-8"))
    lost = False
    print(f"\n{'to change a':18}{'files':>6}{'tokens':>8}{'aim':>8}")
    for change, path in declared.items():
        wrong = [name for name in path["open"] if len(known[name]) != 1]
        homes = [home for name in path["open"] for home in known[name]]
        files, count = len({file for file, _ in homes}), sum(size for _, size in homes)
        print(f"{change:18}{files:6}{count:8,}{path['aim']:8,}")
        if wrong:
            print(f"  not one home each, mend reading_paths.yaml: {', '.join(wrong)}")
        lost = lost or bool(wrong)
    return not lost


def rooms(paths: list[Path]) -> Counter[str]:
    """Code tokens by room."""
    sizes: Counter[str] = Counter()
    for path in paths:
        place = path.relative_to(ROOT / PACKAGE).parts
        sizes[place[0] if len(place) > 1 else "root"] += tokens([path])
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
        ("package", sum(sizes.values()), 192_000),
        ("tests", tokens(tracked("tests/*.py")), 130_000),
        ("benchmarks and scripts", tokens(tracked("benchmarks/*.py", "scripts/*.py")), 36_000),
        ("benchmarks", len([path for path in tracked("benchmarks") if path.suffix == ".py"]), 14),
        (
            "keys of training.yaml",
            keys(yaml.safe_load((ROOT / "config/training.yaml").read_text("utf-8"))),
            140,
        ),
        ("result pages", len(tracked("docs/results/*.md")), 8),
    ):
        print(f"{name:28}{count:8,}{aim:10,}")
    if not print_paths(python):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
