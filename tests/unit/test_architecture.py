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

FIRST = {"types", "errors", "files", "live"}  # files beside the rooms, which all may import
PROTOCOLS_ONLY = {"mcts", "problems"}  # of the engine
APART = {("eval", "learning"), ("serve", "learning"), ("environment", "learning"), ("report", "learning"),
         ("learning", "answering"), ("mcts", "problems"), ("problems", "mcts")}  # fmt: skip


def read_rooms():
    """By room, those that it may import: its row of the table in docs/design.md, and theirs."""
    design = (CHECKOUT / "docs/design.md").read_text(encoding="utf-8")
    table = design.partition("| May import |\n")[2].partition("\n\n")[0]
    rows = re.findall(r"^\| (`.+`) \| .* \|(.*)\|$", table, re.M)
    direct = {
        room: set(re.findall(r"`(\w+)`", others))
        for rooms, others in rows
        for room in re.findall(r"`(\w+)`", rooms)
    }
    reached = {}
    for room in TopologicalSorter(direct).static_order():  # raises CycleError, which names it
        reached[room] = FIRST.union(direct[room], *(reached[other] for other in direct[room]))
    return reached


ROOMS = read_rooms()


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
    mine, theirs = room(name), room(imported)
    if mine in PROTOCOLS_ONLY and theirs == "engine":
        return imported == "engine.protocol"
    return mine == theirs or theirs in ROOMS[mine]


def test_rooms_import_what_their_row_allows():
    inside = TREES.keys() - {"", "__main__"}
    assert {room(name) for name in inside} == ROOMS.keys(), "rooms of docs/design.md section 2"
    against = {(name, one) for name in inside for one in imports(name) if not may_import(name, one)}
    assert not against, "imports against docs/design.md section 2"


def test_answering_and_training_are_apart():
    assert not {(mine, theirs) for mine, theirs in APART if theirs in ROOMS[mine]}


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


def defined(tree):
    """The names that a module or a class binds at its top, and those of its methods' `self`."""
    for node in tree.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from (part.id for one in targets for part in ast.walk(one) if hasattr(part, "id"))


def test_files_and_modules_that_docstrings_and_comments_name_are_there():
    """`room/file.py`, and `room.module.NAME` where `room` is one of the package's."""
    others = {"file.py", "train_vllm.py", "hotpot_evaluate_v1.py"}  # a user's and other projects'
    files = [path for part in ("benchmarks", "scripts") for path in (CHECKOUT / part).rglob("*.py")]
    rooms, stale = {room(name) for name in TREES} | {"search", "rollouts"}, []
    for path in FILES:
        for quoted in re.findall(r"`([\w./]+)`", path.read_text(encoding="utf-8")):
            if quoted.endswith(".py") and quoted not in others:
                if not any(
                    f"/{file.as_posix()}".endswith(f"/{quoted}") for file in (*FILES, *files)
                ):
                    stale.append((path.name, quoted))
                continue
            module, _, name = quoted.rpartition(".")
            if room(quoted) not in rooms or not re.fullmatch(r"[A-Z]\w*", name):
                continue
            if module not in PACKAGES and name not in defined(TREES.get(module, ast.parse(""))):
                stale.append((path.name, quoted))
    assert not stale
