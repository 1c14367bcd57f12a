"""The house holds together: imports go downward and in no circle, gold stays out of search, nothing
is fetched at import.
"""

import ast
import io
import re
import subprocess
import sys
import tokenize
from collections import defaultdict
from graphlib import TopologicalSorter
from importlib.util import resolve_name

import pytest
from tables import CHECKOUT

from alphazero_llm_trainer.cli.main import build_parser
from alphazero_llm_trainer.config.load import load_config
from alphazero_llm_trainer.config.shipped import read_yaml, recipe_names, shipped_path

PACKAGE = "alphazero_llm_trainer"
ROOT = CHECKOUT / PACKAGE


def module_name(path):
    """`mcts.seeds` for alphazero_llm_trainer/mcts/seeds.py; a package's own name for its
    __init__."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


FILES = sorted(ROOT.rglob("*.py"))
TREES = {module_name(path): ast.parse(path.read_text(encoding="utf-8")) for path in FILES}
PACKAGES = {module_name(path) for path in FILES if path.name == "__init__.py"}

FIRST = {"types", "errors", "files", "live"}  # files beside the rooms, which all may import
PROTOCOLS_ONLY = {"mcts", "problems"}  # of the engine
APART = {("eval", "learning"), ("serve", "learning"), ("environment", "learning"),
         ("report", "learning"), ("learning", "answering"), ("mcts", "problems"),
         ("problems", "mcts")}  # fmt: skip


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


# What docstrings name that isn't this package's: other projects', file formats' and a user's own.
OTHERS = set(
    """KEY NAME environment_factory exit H2O command runtime unparsed examples reward_range dev_v2
    assets auto context_fn create_masks_for_generate datasets extra_body fully_shard
    from_pretrained get_sequence_of_considered_visits gumbel_muzero_policy it model_fields_set
    null off on on_policy_distillation orient qtransform_completed_by_mix_value reasoning_tokens
    sdpa set_adapter stop_token_ids torchrun true alphazero_llm_trainer.sources pandas.DataFrame
    reward_model.ground_truth score.0.weight score.2.weight str.translate
    student.engine.set_policy verifiers.load_environment verifiers.v1.rollout
    verifiers.v1.episode.Episode train_vllm.py""".split()
)
MADE = ("json", "jsonl", "html", "parquet", "safetensors", "toml", "yaml")  # files that are written
FOREIGN_FLAGS = re.compile(r"--(env|run)\.|--tier")  # vf-eval's, and a flag that there isn't


def bound(tree):
    """The names that a module or a class binds at its top, imports too, and those of `self`."""
    for node in tree.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name
        elif isinstance(node, ast.Import | ast.ImportFrom):
            yield from ((alias.asname or alias.name).partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from (part.id for one in targets for part in ast.walk(one) if hasattr(part, "id"))
        elif hasattr(node, "body"):
            yield from bound(node)
    if isinstance(tree, ast.ClassDef):
        inside = (node for node in ast.walk(tree) if isinstance(node, ast.Attribute))
        yield from (node.attr for node in inside if ast.unparse(node.value) == "self")


def names_in(tree):
    """All names that stand in a module's code."""
    for node in ast.walk(tree):
        yield from {getattr(node, key, None) for key in ("id", "attr", "arg", "name")}


def quoted_in(code):
    """What docstrings and comments have in backticks."""
    for token in tokenize.generate_tokens(io.StringIO(code).readline):
        if token.type == tokenize.COMMENT or token.string.startswith('"""'):
            yield from re.findall(r"`([^`\n]+)`", token.string)


def keys_of(tree, before=""):
    """The keys of a YAML file, each after its sections."""
    for key, below in tree.items() if isinstance(tree, dict) else ():
        yield from (f"{before}{key}", *keys_of(below, f"{before}{key}."))


def homes_of_names():
    """What may stand before a dot, by name: modules, rooms and classes, with what they bind."""
    homes, bases = defaultdict(set), defaultdict(set)
    for name, tree in TREES.items():
        homes[name.rpartition(".")[2] or PACKAGE].update(bound(tree))
        homes[room(name)].add(name.rpartition(".")[2])
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                homes[node.name].update(bound(node))
                named = set(re.findall(r"\w+", " ".join(map(ast.unparse, node.bases))))
                bases[node.name] |= named - {node.name}
    for name in TopologicalSorter(bases).static_order():
        homes[name].update(*(homes[base] for base in bases[name]))
    homes["az"] = homes[PACKAGE]
    return homes


def test_names_that_docstrings_and_comments_quote_are_there():
    """`file.py`, `module.NAME`, `Class.method`, `section.key: value`, `--flag` and `name`: of the
    package, of its settings and commands, or of the module's own code."""
    files = [f"/{path.as_posix()}" for path in (*FILES, *(CHECKOUT / "benchmarks").rglob("*.py"))]
    homes, stale = homes_of_names(), set()
    keys = set(keys_of(load_config().model_dump()))
    for recipe in recipe_names():
        keys.update(keys_of(read_yaml(shipped_path(f"{recipe}.yaml"))))
    [commands] = [one.choices for one in build_parser()._actions if one.dest == "command"]
    flags = {flag for parser in commands.values() for flag in parser._option_string_actions}
    known = OTHERS.union(homes, *homes.values(), *(key.split(".") for key in keys))
    for path in FILES:
        own = set(names_in(TREES[module_name(path)]))
        for text in quoted_in(path.read_text(encoding="utf-8")):
            name = re.sub(r"\(.*\)$|(?<=\w)(: |=).*", "", text).removeprefix("config.")
            home, _, last = name.rpartition(".")
            if name.startswith("--") and name != "--":
                there = name in flags or FOREIGN_FLAGS.match(name)
            elif not re.fullmatch(r"[A-Za-z_]\w*([./]\w+)*", name) or name in OTHERS | keys:
                continue
            elif last == "py":
                there = any(file.endswith(f"/{name}") for file in files)
            elif "/" in name or last in MADE:
                continue
            elif home:
                outer = home.rpartition(".")[2]
                there = last in homes.get(outer, ()) or (outer in own and last in known | own)
            else:
                there = len(name) == 1 or name in known or name in own
            if not there:
                stale.add((module_name(path), text))
    assert not stale, sorted(stale)
