"""Names of the package: a function says what it does, and a name has one home."""

import ast
import re
from collections import defaultdict

from tables import CHECKOUT

ROOT = CHECKOUT / "alphazero_llm_trainer"
TREES = {
    path.relative_to(ROOT).with_suffix("").as_posix(): ast.parse(path.read_text(encoding="utf-8"))
    for path in sorted(ROOT.rglob("*.py"))
}
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
MOST_WORDS = 0.25  # of the module-level functions have one word
# Words that end like a participle and are none, and verbs whose participle is spelt alike.
NO_PARTICIPLES = set("feed need seed speed embed shed".split())
PARTICIPLES = set(
    """begun bound broken brought built caught chosen dealt done drawn driven fallen fed forgotten
    found frozen given gone got grown heard held hidden kept known led left lost made meant met
    paid risen said sent seen shaken shown sold spent spoken stolen struck stuck taken taught
    thought thrown told torn undone unread won worn woven written""".split()
)
# The field's words, and what each module or command has.
HOMES = {
    "EPILOG", "T", "log", "main",  # of each command, each logger
    "train",  # the call, and the loop
}  # fmt: skip
FILES = {"__init__", "load"}  # `load`: of configurations and of problems, as the reference has it
COMMANDS = ("api", "cli")  # a command's file, or a call's, is called as the room's that does it


def functions(tree):
    """Every function and method with the names of what it stands in."""
    for node in ast.walk(tree):
        for child in ast.iter_child_nodes(node):
            if isinstance(child, FUNCTIONS):
                yield node, child


def bare_participle(name):
    word = name.strip("_")
    return word not in NO_PARTICIPLES and bool(
        word in PARTICIPLES or re.fullmatch(r"[a-z]+ed", word)
    )


def public_pages():
    """Modules that the reference shows, and the names of them it shows (None: all)."""
    text = (CHECKOUT / "docs/reference/api.md").read_text(encoding="utf-8")
    shown = {}
    for module, members in re.findall(
        r"^::: alphazero_llm_trainer\.([\w.]+)\n(?:    options:\n      members: \[(.*)\])?",
        text,
        re.M,
    ):
        shown[module.replace(".", "/")] = set(members.split(", ")) if members else None
    return shown


SHOWN = public_pages()


def is_shown(module, owner, name):
    """Whether the reference shows a function or method: its name is a promise."""
    if module not in SHOWN or name.startswith("_"):
        return False
    return SHOWN[module] is None or (owner or name) in SHOWN[module]


def test_few_functions_have_one_word():
    names = [
        node.name
        for tree in TREES.values()
        for node in tree.body
        if isinstance(node, FUNCTIONS) and not node.name.startswith("__")
    ]
    short = [name for name in names if "_" not in name.strip("_")]
    assert len(short) < MOST_WORDS * len(names), sorted(short)


def test_no_function_is_a_bare_participle():
    bare = [
        f"{module}.py:{node.lineno} {node.name}"
        for module, tree in TREES.items()
        for owner, node in functions(tree)
        if bare_participle(node.name)
        and not is_shown(module, getattr(owner, "name", None), node.name)
    ]
    assert not bare, bare


def top_names(tree):
    for node in tree.body:
        if isinstance(node, (*FUNCTIONS, ast.ClassDef)):
            yield node.name
        elif isinstance(node, ast.Assign):
            yield from (target.id for target in node.targets if isinstance(target, ast.Name))
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id


def test_a_top_level_name_has_one_home():
    homes = defaultdict(set)
    for module, tree in TREES.items():
        for name in top_names(tree):
            if name not in HOMES and not name.startswith("__"):
                homes[name].add(module)
    assert not {name: places for name, places in homes.items() if len(places) > 1}


def test_a_file_has_one_home():
    homes = defaultdict(list)
    for module in TREES:
        name = module.rpartition("/")[2]
        if name not in FILES and not module.startswith(COMMANDS):
            homes[name].append(module)
    several = {name: places for name, places in homes.items() if len(places) > 1}
    assert not several, several


def test_a_docstring_stands_alone():
    """None sends its reader elsewhere for what a function does."""
    sent_away = [
        f"{module}.py:{node.lineno} {node.name}"
        for module, tree in TREES.items()
        for _, node in functions(tree)
        if (ast.get_docstring(node) or "").startswith("See ")
    ]
    assert not sent_away, sent_away
