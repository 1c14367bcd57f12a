"""The house holds together: who imports whom, which library lives where, nothing at import, no broad excepts."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from alphazero_llm_trainer.problems.source import BUILT_IN

PACKAGE = "alphazero_llm_trainer"
ROOM = Path(__file__).parents[1] / PACKAGE
FILES = sorted(ROOM.rglob("*.py"))


def module_name(path: Path) -> str:
    """`mcts.tree` for alphazero_llm_trainer/mcts/tree.py; a package's own name for its __init__."""
    parts = path.relative_to(ROOM).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


TREES = {module_name(path): ast.parse(path.read_text(encoding="utf-8")) for path in FILES}
PACKAGES = {module_name(path) for path in FILES if path.name == "__init__.py"}

# docs/design.md section 3.
LAYERS = {
    "types": 0, "errors": 0, "files": 0, "answers": 0, "live": 0,
    "config": 1,
    "viewer": 1,  # knows nothing but layer 0, so that server and reports may draw trees
    "engine": 2,
    "teachers": 2.5, "policy": 2.5,  # both stand on the engine, and neither knows the other
    "mcts": 3, "problems": 3,
    "rewards": 3.5,
    "rollouts": 4,
    "eval": 5, "scale": 5,
    "serve": 5.3, "environment": 5.6,  # both answer through eval.methods; the environment starts the same app
    "training": 6, "report": 6,
    "api": 7,
    "cli": 8,
}  # fmt: skip
# The rules need only what an engine promises, not an engine; `vf-eval alphazero-llm-trainer -s` is the training command.
EXCEPTIONS = {("environment.front_end", "cli.train")}
SEARCH_MAY_USE = {"engine.protocol"}


def imports(name: str, types: bool = True) -> Iterator[str]:
    """Every module that a module imports: at its top, inside functions and, unless `types` is False, for types alone."""
    package = name if name in PACKAGES else name.rpartition(".")[0]
    blocks = [
        node for node in TREES[name].body if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
    ]
    skipped = set() if types else {inner for block in blocks for inner in ast.walk(block)}
    for node in ast.walk(TREES[name]):
        if node in skipped:
            continue
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                base = f"{PACKAGE}.{package}".rstrip(".").split(".")
                source = ".".join([*base[: len(base) - node.level + 1], *([node.module] if node.module else [])])
            else:
                source = node.module or ""
            for alias in node.names:
                inner = f"{source}.{alias.name}"
                is_module = inner.removeprefix(f"{PACKAGE}.") in TREES and inner.startswith(PACKAGE)
                yield inner if is_module else source


def ours(name: str, types: bool = True) -> Iterator[str]:
    """What a module imports of this package, without the package's name."""
    for imported in imports(name, types):
        if imported == PACKAGE or imported.startswith(PACKAGE + "."):
            yield imported.removeprefix(PACKAGE).removeprefix(".")


def layer(name: str) -> float:
    return LAYERS[room_of(name)]


def room_of(name: str) -> str:
    return name.partition(".")[0]


def may_import(name: str, imported: str) -> bool:
    """docs/design.md section 3, row by row."""
    mine, theirs = layer(name), layer(imported)
    if (name, imported) in EXCEPTIONS:
        return True
    if room_of(name) == room_of(imported):
        return theirs <= mine
    if room_of(name) == "viewer":
        return theirs == 0
    if room_of(name) in ("mcts", "problems") and theirs >= 2:
        return imported in SEARCH_MAY_USE
    if mine == theirs and mine in (0, 6):
        return True  # answers and errors; runs and the reports they write: the cycle test keeps it one way
    return theirs < mine


SPECIAL = {"", "__main__"}  # the package itself and `python -m`: see their own test


def test_every_room_has_a_layer() -> None:
    assert {room_of(name) for name in TREES} - SPECIAL == set(LAYERS), "put it into docs/design.md section 3's table"


def test_the_root_is_small() -> None:
    assert {name for name in TREES if "." not in name and name not in PACKAGES} | {""} == {
        "", "__main__", "answers", "errors", "files", "live", "rollouts", "types"
    }  # fmt: skip


def test_imports_go_downward() -> None:
    upward = {
        (name, imported)
        for name in set(TREES) - SPECIAL
        for imported in ours(name)
        if imported and not may_import(name, imported)
    }
    assert upward == set(), "imports against docs/design.md section 3"


def test_nothing_imports_the_package_itself() -> None:
    """`from alphazero_llm_trainer import X` would load verifiers."""
    for name in TREES:
        assert "" not in ours(name), name


def test_the_package_imports_the_front_end_alone_and_its_main_the_commands() -> None:
    assert {name for name in ours("", types=False) if room_of(name) != "environment"} == set()
    assert not [node for node in TREES[""].body if isinstance(node, ast.ImportFrom) and node.level]
    assert set(ours("__main__")) == {"cli.main"}


def test_no_import_cycle() -> None:
    """Imports inside functions and for types count: two modules that need each other are one room with a wall in it."""
    graph = {name: {imported for imported in ours(name) if imported in TREES} for name in TREES}
    done: set[str] = set()

    def visit(name: str, path: tuple[str, ...]) -> None:
        assert name not in path, " -> ".join([*path, name])
        if name not in done:
            for imported in sorted(graph[name]):
                visit(imported, (*path, name))
            done.add(name)

    for name in graph:
        visit(name, ())


# -- outside libraries -------------------------------------------------------------------------------------------------

PLACES = {
    "trl": {"training.prm"},
    "peft": {"training.models"},
    "bitsandbytes": {"training.models"},
    "openai": {"teachers"},
    "vllm": {"engine"},
    "verifiers": {"environment"},
    "ray": {"scale"},
    "starlette": {"serve"},
    "uvicorn": {"serve"},
    "prometheus_client": {"serve"},
    "datasets": {"problems", "training.prm"},
    "yaml": {"config", "cli.base", "report"},
    "pyarrow": {"cli.export", "problems.rows"},
    "reasoning_gym": {"problems.gym"},
    "aiohttp": {"environment"},
    "rich": {"live"},
    "accelerate": {"training.learner", "training.tracking", "training.fsdp"},
    "math_verify": {"problems.math_worker"},
}
NO_TORCH = {"types", "errors", "files", "answers", "live", "config", "mcts", "rewards", "teachers",
            "rollouts", "eval.metrics", "eval.critic_figures", "viewer", "report",
            "cli.base", "cli.main", "cli.sample", "cli.export",
            "training.credit", "training.rows", "training.checkpoint", "training.run", "engine.protocol",
            "environment.argv", "environment.taskset_checks", "environment.taskset_scoring",
            "environment.taskset_source", "policy.chat",
            "scale"}  # fmt: skip


def within(name: str, places: set[str]) -> bool:
    return any(name == place or name.startswith(place + ".") for place in places)


@pytest.mark.parametrize("library", sorted(PLACES))
def test_each_outside_library_has_one_place(library: str) -> None:
    users = {name for name in TREES for imported in imports(name) if imported.partition(".")[0] == library}
    strangers = {name for name in users if not within(name, PLACES[library])}
    assert not strangers, f"{library} belongs to {sorted(PLACES[library])}"
    if library in ("trl", "peft", "openai", "verifiers", "datasets", "yaml"):
        assert users, f"nobody imports {library}: this test looks in the wrong place"


def test_what_needs_no_torch_has_none() -> None:
    heavy = {"torch", "transformers", "trl", "peft", "safetensors"}
    for name in TREES:
        if within(name, NO_TORCH):
            found = {imported.partition(".")[0] for imported in imports(name, types=False)} & heavy
            assert not found, f"{name} imports {found}"


# -- nothing at import -------------------------------------------------------------------------------------------------


def test_importing_the_package_loads_nothing_heavy() -> None:
    code = (
        "import sys\n"
        f"import {PACKAGE}\n"
        "heavy = {'torch', 'verifiers', 'transformers', 'trl', 'datasets', 'openai', 'pydantic', 'yaml', 'numpy'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
        f"assert {{'AlphaZeroEnv', 'AlphaZeroHarness', 'AlphaZeroTaskset'}} <= set({PACKAGE}.__all__)\n"
        f"import {PACKAGE}.cli.main\n"
        "assert not {'torch', 'verifiers', 'transformers'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60, cwd=ROOM.parent)


def module_level(tree: ast.AST) -> Iterator[ast.AST]:
    """Nodes that run when the module is imported."""
    for child in ast.iter_child_nodes(tree):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            for default in (*child.args.defaults, *(d for d in child.args.kw_defaults if d is not None)):
                yield default
                yield from module_level(default)
            continue
        yield child
        yield from module_level(child)


FORBIDDEN = {
    "open",
    "read_text",
    "read_bytes",
    "from_pretrained",
    "load_dataset",
    "getenv",
    "load_config",
    "manual_seed",
}


def test_no_module_reads_files_or_the_environment_when_it_is_imported() -> None:
    for name, tree in TREES.items():
        for node in module_level(tree):
            if isinstance(node, ast.Call):
                called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
                assert called not in FORBIDDEN, f"{name} line {node.lineno} calls {called} at import"
            if isinstance(node, ast.Attribute):
                assert node.attr != "environ", f"{name} line {node.lineno} reads the environment at import"


# -- errors ------------------------------------------------------------------------------------------------------------

# The places that may catch everything, each with its reason.
BROAD = {
    ("engine.inprocess", "_run"),  # a failed step is handed to every waiting caller
    ("config.objects", "load_object"),  # the user's own module may raise anything while it is imported
    ("rewards.custom", "__call__"),  # and so may the user's own reward
    ("environment.taskset_checks", "own_code"),  # so may somebody else's taskset
    ("problems.gym", "_grade"),  # a task's own grader reads a model's text
    ("policy.student", "read_tokenizer"),  # the tokenizers library has no error of its own
    ("policy.student", "load_model"),  # hub, safetensors and JSON failures share no base class
}


def broad_excepts(name: str) -> Iterator[tuple[str, str]]:
    def visit(node: ast.AST, function: str) -> Iterator[tuple[str, str]]:
        for child in ast.iter_child_nodes(node):
            inner = child.name if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef) else function
            if isinstance(child, ast.ExceptHandler):
                kinds = [] if child.type is None else ast.unparse(child.type).strip("()").split(", ")
                if child.type is None or {"Exception", "BaseException"} & set(kinds):
                    yield name, function
            suppresses = isinstance(child, ast.Call) and ast.unparse(child.func).endswith("suppress")
            if suppresses and {"Exception", "BaseException"} & {ast.unparse(argument) for argument in child.args}:
                yield name, function
            yield from visit(child, inner)

    yield from visit(TREES[name], "<module>")


def test_broad_excepts_are_the_named_ones() -> None:
    assert {place for name in TREES for place in broad_excepts(name)} == BROAD


# -- sources -----------------------------------------------------------------------------------------------------------

# Words that are a source's name and something else as well. `embedded` is the shipped student and the tier of its teacher,
# `numbers` and `math` are rules of grading, and `numbers` what a student computes in: what stands beside one must say so.
OTHER_THINGS = {
    "embedded": ("student", "tier", "chosen", "card", "Literal"),
    "numbers": ("rule", "student", "Literal"),
    "math": ("grader", "GRADERS", "Literal"),
}


def strings(node: ast.AST | None) -> set[str]:
    """The texts of a constant, or of a tuple, list or set of them."""
    parts = node.elts if isinstance(node, ast.Tuple | ast.List | ast.Set) else [node]
    return {part.value for part in parts if isinstance(part, ast.Constant) and isinstance(part.value, str)}


def decided_by_a_word(tree: ast.AST) -> Iterator[tuple[ast.AST, set[str], str]]:
    """Where a text decides: an operand of a comparison, a pattern of `match`, a key of a dictionary that is written out or
    looked up in, and an argument of startswith, endswith, get or pop. Each with its texts and what stands beside them."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            operands = [node.left, *node.comparators]
            words = set().union(*map(strings, operands))
            yield node, words, " ".join(ast.unparse(one) for one in operands if not strings(one))
        elif isinstance(node, ast.MatchValue):
            yield node, strings(node.value), ""
        elif isinstance(node, ast.Dict):
            yield node, set().union(*map(strings, node.keys)), ""
        elif isinstance(node, ast.Subscript):
            yield node, strings(node.slice), ast.unparse(node.value)
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", "") in ("startswith", "endswith", "get", "pop"):
            yield node, set().union(*map(strings, node.args)), ast.unparse(node.func)


def names_of_sources(tree: ast.AST) -> list[str]:
    """Each place that decides by a source's name, as `line 7: code`."""
    found = []
    for node, words, beside in decided_by_a_word(tree):
        # An address (`reasoning-gym:TASK`), or the beginning of a task's id (`gsm8k/`), begins with the name.
        named = {word for word in words if word.partition(":")[0].partition("/")[0] in SOURCES}
        named = {word for word in named if not any(thing in beside for thing in OTHER_THINGS.get(word, ()))}
        if isinstance(node, ast.Dict):
            named -= {"numbers"}  # what a model is computed in
        if named:
            found.append(f"line {getattr(node, 'lineno', '?')}: {ast.unparse(node)[:80]}")
    return found


SOURCES = set(BUILT_IN) - {"file", "hub"}  # forms of an address, and common words


def test_no_source_is_named_outside_its_room() -> None:
    named = {
        name: found
        for name, tree in TREES.items()
        if room_of(name) not in ("problems", "environment") and (found := names_of_sources(tree))
    }
    assert named == {}, "ask the source instead: problems.source.open_source"


@pytest.mark.parametrize(
    "code",
    [
        "problems.source == 'embedded'",
        "problem.source in ('math', 'hotpotqa')",
        "name != 'gsm8k'",
        "PROMPTS = {'embedded': 96, 'gsm8k': 320}",
        "PROMPTS['hotpotqa']",
        "task_id.startswith('embedded/')",
        "address.startswith('reasoning-gym:')",
        "match source:\n    case 'numbers': pass",
    ],
)
def test_a_named_source_is_noticed(code: str) -> None:
    assert names_of_sources(ast.parse(code)) != []


# -- answers and gold --------------------------------------------------------------------------------------------------


def test_one_module_reads_answers_out_of_text() -> None:
    """No second answer regex: patterns that look for an answer's marks are in answers.py alone."""
    for name, tree in TREES.items():
        if name == "answers":
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and ast.unparse(node.func).startswith("re.") and node.args:
                pattern = ast.unparse(node.args[0]).lower()
                assert not any(mark in pattern for mark in ("###", "boxed", "answer")), f"{name} line {node.lineno}"


def test_no_name_in_the_search_core_speaks_of_gold() -> None:
    for name, tree in TREES.items():
        if room_of(name) == "mcts":
            names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
            names |= {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
            names |= {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
            assert not {word for word in names if "gold" in word.lower() or word in ("Task", "solution")}, name


def test_only_the_training_collector_builds_the_oracle() -> None:
    """Everybody else who makes a terminal reward passes None for the gold answers, in so many letters."""
    calls = 0
    for name, tree in TREES.items():
        for function in ast.walk(tree):
            if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            for node in ast.walk(function):
                called = getattr(node, "func", None)
                if getattr(called, "id", getattr(called, "attr", "")) == "make_evaluate":
                    assert isinstance(node, ast.Call)
                    calls += 1
                    golds = [*node.args[2:3], *(word.value for word in node.keywords if word.arg == "tasks")]
                    if (name, function.name) == ("rollouts", "collect"):
                        continue
                    assert [ast.unparse(gold) for gold in golds] == ["None"], f"{name}.{function.name}"
    assert calls >= 2
