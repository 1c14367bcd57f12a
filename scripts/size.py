"""How large the house is: code tokens by room, the sums beside their aims, and what must be open
for a change (`reading_paths.yaml`). It exits with 1 where a sum is above both its aim and its
record, or a name of a path is gone.

    uv run python scripts/size.py

Code tokens are names, operators, numbers and strings of the Python files that git tracks: no
comments, no docstrings, so that dense lines gain nothing. C and JavaScript aren't counted.
"""

from __future__ import annotations

import ast
import io
import shutil
import subprocess
import sys
import tokenize
from collections import Counter, defaultdict
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parent.parent
GIT = shutil.which("git") or "git"
PACKAGE = "alphazero_llm_trainer"
TESTS_SHARE = 0.72  # of the package as it is
# What each sum should be, and what it was when it was recorded: one above its aim may shrink and
# not grow (docs/design.md section 2: what an addition exceeds, it takes out elsewhere).
LIMITS = {
    "package": {"aim": 228_000, "record": 260_466},
    "tests": {"record": 204_600},  # its aim: TESTS_SHARE
    "benchmarks and scripts": {"aim": 46_000, "record": 47_527},
    "keys of training.yaml": {"aim": 140, "record": 142},
    "result pages": {"aim": 8, "record": 7},
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


def sums(package: int) -> dict[str, int]:
    """What is limited, as it is: the names of LIMITS."""
    keys_file = (ROOT / "config/training.yaml").read_text("utf-8")
    return {
        "package": package,
        "tests": tokens(tracked("tests/*.py")),
        "benchmarks and scripts": tokens(tracked("benchmarks/*.py", "scripts/*.py")),
        "keys of training.yaml": keys(yaml.safe_load(keys_file)),
        "result pages": len(tracked("docs/results/*.md")),
    }


def main() -> int:
    """Print the sizes, and last those that grew above their limits; the exit code: 1 where one
    did."""
    python = tracked(f"{PACKAGE}/*.py")
    sizes = rooms(python)
    for room, size in sizes.most_common():
        print(f"{room:28}{size:8,}")
    package = sizes.total()
    print(f"\n{'':28}{'now':>8}{'record':>10}{'aim':>10}")
    grown = []
    for name, size in sums(package).items():
        record = LIMITS[name]["record"]
        aim = LIMITS[name].get("aim", int(TESTS_SHARE * package))
        print(f"{name:28}{size:8,}{record:10,}{aim:10,}")
        if size > max(aim, record):
            grown.append(f"{name} by {size - max(aim, record):,}")
    whole = print_paths(python)
    if grown:
        print(f"grown, take as much out: {', '.join(grown)}", file=sys.stderr)
    return int(bool(grown) or not whole)


if __name__ == "__main__":
    sys.exit(main())
