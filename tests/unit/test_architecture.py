"""The house holds together: imports go downward and in no circle, gold stays out of search, nothing
is fetched at import.
"""

import ast
import re
import subprocess
import sys
from graphlib import TopologicalSorter
from importlib.util import resolve_name

import pytest
from tables import CHECKOUT

PACKAGE = "alphazero_llm_trainer"
ROOT = CHECKOUT / PACKAGE


def module_name(path):
    """`mcts.seeds` for alphazero_llm_trainer/mcts/seeds.py; a package's own name for its __init__."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


FILES = sorted(ROOT.rglob("*.py"))
TREES = {module_name(path): ast.parse(path.read_text(encoding="utf-8")) for path in FILES}
PACKAGES = {module_name(path) for path in FILES if path.name == "__init__.py"}

# docs/design.md section 2. Rooms of one number don't know each other, but for those of layer 0.
LAYERS = {
    "types": 0, "errors": 0, "files": 0, "live": 0,
    "grading": 0.3, "viewer": 0.5, "tree": 0.6, "config": 1,
    "engine": 2, "chat": 2.3, "policy": 2.5,
    "mcts": 3, "problems": 3, "rewards": 3.5,
    "answering": 4,
    "eval": 5, "serve": 5.3, "environment": 5.6,
    "learning": 6, "report": 6, "runs": 6.5,
    "api": 7, "cli": 8,
}  # fmt: skip
# `vf-eval alphazero-llm-trainer -s` is the training command.
UPWARD = {("environment.front_end", "cli.train")}
PROTOCOLS_ONLY = {"mcts", "problems"}  # of the engine


def imports(name):
    """Modules of this package that a module imports, inside functions and for types too."""
    home = f"{PACKAGE}.{name}".rstrip(".")
    package = home if name in PACKAGES else home.rpartition(".")[0]
    for node in ast.walk(TREES[name]):
        if isinstance(node, ast.Import):
            found = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            source = resolve_name("." * node.level + (node.module or ""), package)
            inner = [f"{source}.{alias.name}" for alias in node.names]
            found = [one if one.removeprefix(f"{PACKAGE}.") in TREES else source for one in inner]
        else:
            continue
        yield from (
            one.removeprefix(f"{PACKAGE}.") for one in found if one.startswith(f"{PACKAGE}.")
        )


def room(name):
    return name.partition(".")[0]


def may_import(name, imported):
    mine, theirs = LAYERS[room(name)], LAYERS[room(imported)]
    if room(name) in PROTOCOLS_ONLY and 2 <= theirs < mine:
        return imported == "engine.protocol"
    return room(name) == room(imported) or theirs < mine or theirs == mine == 0


def test_imports_go_downward():
    inside = TREES.keys() - {"", "__main__"}
    upward = {(name, one) for name in inside for one in imports(name) if not may_import(name, one)}
    assert upward == UPWARD, "imports against docs/design.md section 2"


def test_no_import_cycle():
    TopologicalSorter(
        {name: set(imports(name)) for name in TREES}
    ).prepare()  # raises CycleError, which names it


def python(*lines):
    subprocess.run(
        [sys.executable, "-c", "\n".join(lines)], check=True, timeout=120, cwd=ROOT.parent
    )


def test_the_package_and_its_search_load_nothing_heavy():
    heavy = "'torch', 'verifiers', 'transformers', 'trl', 'datasets', 'openai'"
    python(
        "import sys",
        f"import {PACKAGE}",
        f"found = {{{heavy}, 'pydantic', 'yaml', 'numpy'}} & set(sys.modules)",
        "assert not found, found",
        f"import {PACKAGE}.mcts.driver, {PACKAGE}.answering.searches, "
        f"{PACKAGE}.learning.collector, {PACKAGE}.viewer.page, {PACKAGE}.cli.main",
        f"found = {{{heavy}}} & set(sys.modules)",
        "assert not found, found",
    )


@pytest.mark.slow  # all libraries are loaded
def test_nothing_asks_the_network_when_it_is_imported():
    names = [f"{PACKAGE}.{name}" for name in TREES if name not in ("", "__main__")]
    python(
        "import importlib, socket",
        "def refuse(*given): raise AssertionError(f'asks for {given}')",
        "socket.socket.connect = socket.getaddrinfo = refuse",
        f"for name in {names!r}: importlib.import_module(name)",
    )


def test_no_name_in_the_search_core_speaks_of_gold():
    for name, tree in TREES.items():
        if room(name) in ("mcts", "tree") and name != "tree.graded":
            words = {
                getattr(node, key, "") for node in ast.walk(tree) for key in ("id", "attr", "arg")
            }
            assert not {
                word
                for word in words
                if word and ("gold" in word.lower() or word in ("Task", "solution"))
            }, name


def test_only_the_collector_may_reward_by_gold():
    """Whoever else makes a terminal reward passes None for the tasks, in so many letters."""
    makers = set()
    for name, tree in TREES.items():
        for node in ast.walk(tree):
            called = getattr(node, "func", None)
            if (
                isinstance(node, ast.Call)
                and getattr(called, "id", getattr(called, "attr", "")) == "make_evaluate"
            ):
                given = [
                    *node.args[2:3],
                    *(word.value for word in node.keywords if word.arg == "tasks"),
                ]
                makers |= {name} if [ast.unparse(one) for one in given] != ["None"] else set()
    assert makers == {"learning.collector"}


# Of whoever starts several processes: accelerate, torchrun, Ray.
LAUNCHERS = {"RANK", "LOCAL_RANK", "WORLD_SIZE", "ACCELERATE_USE_FSDP", "NO_PROXY"}


def test_every_variable_that_is_read_stands_in_the_example_of_an_environment():
    example = set(re.findall(r"^(\w+)=", (CHECKOUT / ".env.example").read_text("utf-8"), re.M))
    code = "\n".join(path.read_text("utf-8") for path in FILES)
    read = set(re.findall(r'environ(?:\.get\(|\[)"(\w+)"', code))
    constants = set(re.findall(r"environ(?:\.get\(|\[)([A-Z]\w+)", code))
    for name in constants:
        read |= set(re.findall(rf'\b{name}\b(?:, \w+)* = "(\w+)"', code))
    keys = (CHECKOUT / "config").glob("*.yaml")
    read |= {
        name
        for file in keys
        for name in re.findall(r"^\s*key_variable: ([A-Z_]+)", file.read_text("utf-8"), re.M)
    }
    assert {"OPENAI_BASE_URL", "ALPHAZERO_DATA_DIR", "OPENROUTER_API_KEY"} <= read
    assert read - LAUNCHERS - {"OMP_NUM_THREADS"} <= example


def test_no_code_of_a_models_folder_is_trusted():
    """transformers' auto classes ask on the terminal where nothing is said, and run it."""
    for name, tree in TREES.items():
        for call in ast.walk(tree):
            if not isinstance(call, ast.Call):
                continue
            said = {key.arg: ast.unparse(key.value) for key in call.keywords}
            auto = re.fullmatch(r"(Auto\w+|kind)\.from_pretrained", ast.unparse(call.func))
            expected = ("False",) if auto else ("False", None)
            assert said.get("trust_remote_code") in expected, (name, call.lineno)


def test_no_pattern_repeats_a_group_possessively():
    """Python 3.11.0 to 3.11.4 read `(?:ab?c)*+` wrongly; `(?>(?:ab?c)*)` is the same, and right."""
    possessive = re.compile(r"(?<!\\)\)[*+?]\+")
    for table in ROOT.rglob("*.toml"):
        assert not possessive.search(table.read_text(encoding="utf-8")), table
    for name, tree in TREES.items():
        for node in ast.walk(tree):
            text = getattr(node, "value", None)
            if isinstance(text, str):
                assert not possessive.search(text), (name, node.lineno)
