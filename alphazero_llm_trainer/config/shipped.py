"""The YAML files that come with the package, and how YAML is read and laid over YAML."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from ..errors import ConfigError, suggest_nearest
from ..types import Facts, JsonObject, TokenIds


# libyaml is seven times faster.
class Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """YAML with the numbers of version 1.2: 1e-4 is a number, 010 is ten and 1:30 is text."""


INT, FLOAT = "tag:yaml.org,2002:int", "tag:yaml.org,2002:float"
Loader.yaml_implicit_resolvers = {
    first: [rule for rule in rules if rule[0] not in (INT, FLOAT)]
    for first, rules in Loader.yaml_implicit_resolvers.items()
}
Loader.add_implicit_resolver(INT, re.compile(r"[-+]?\d[\d_]*$"), list("-+0123456789"))
Loader.add_implicit_resolver(
    FLOAT,
    re.compile(r"[-+]?((\d[\d_]*\.?\d*|\.\d+)(e[-+]?\d+)?|\.inf)$|\.nan$", re.IGNORECASE),
    list("-+.0123456789"),
)
Loader.add_constructor(INT, lambda loader, node: int(node.value))


def shipped_path(name: str) -> Path:
    """The path of a shipped YAML file: `config/` in a checkout, `config_files/` in a wheel."""
    package = Path(__file__).parent.parent
    for folder in (package / "config_files", package.parent / "config"):
        if (folder / name).is_file():
            return folder / name
    raise ConfigError(
        f"config file {name} is not in the installation: reinstall alphazero-llm-trainer"
    )


def recipe_names() -> list[str]:
    """The names of the shipped YAML files."""
    return [file.stem for file in sorted(shipped_path("training.yaml").parent.glob("*.yaml"))]


def named_file(path: Path) -> Path:
    """The file that `--config` names: a file of the user's, or a shipped recipe by its name, such
    as grpo_correctness.
    """
    if path.suffix or path.exists():
        return path
    try:
        return shipped_path(f"{path}.yaml")
    except ConfigError:
        return path


@lru_cache(maxsize=1)
def key_comments() -> dict[str, str]:
    """The comment of each key of training.yaml, by its dotted name."""
    notes, path = dict[str, str](), list[str]()
    for line in shipped_path("training.yaml").read_text(encoding="utf-8").splitlines():
        key, _, note = line.partition(" # ")
        name = key.partition(":")[0]
        path[(len(name) - len(name.lstrip())) // 2 :] = [name.strip()]
        notes[".".join(path)] = note
    return notes


def parse_yaml(text: str) -> Any:
    """What a YAML text says. Raises YAMLError, or ValueError for a date that is none."""
    return yaml.load(text, Loader)  # noqa: S506 - a safe loader


@lru_cache(maxsize=16)
def find_lost(text: str) -> tuple[int, str] | None:
    """The line of what a YAML text says and its reader would not, and what that is; None where
    nothing is lost.

    It is a key that comes again, or what follows unquoted words after a `#`, or anything after a
    `##`, on their line or indented below it: it may be the end of a prompt. An anchor that holds
    itself counts as lost, too.
    """

    def walk(node: yaml.Node, above: TokenIds = (), column: int = 0) -> Iterator[tuple[int, str]]:
        if id(node) in above:
            yield node.start_mark.line, "the anchor holds itself: write out what it means"
            return
        above = (*above, id(node))
        if isinstance(node, yaml.MappingNode):
            names = [key.value for key, _ in node.value]
            for at, (key, value) in enumerate(node.value):
                if isinstance(key, yaml.ScalarNode) and key.value in names[:at]:
                    yield (
                        key.start_mark.line,
                        f"{key.value} comes twice, and the first is lost: join them",
                    )
                yield from walk(value, above, key.start_mark.column)
        elif isinstance(node, yaml.SequenceNode):
            for value in node.value:
                yield from walk(value, above, column)
        elif isinstance(node, yaml.ScalarNode) and node.style is None:
            line, _, below = text[node.end_mark.index :].partition("\n")
            rest, below = line.strip(), below.partition("\n")[0]
            if not rest and len(below) - len(below.lstrip(" ")) > column:
                rest = below.strip()
            if rest.startswith("#" if len(node.value.split()) > 1 else "##"):
                yield (
                    node.end_mark.line,
                    f"{show_value(rest)} is a comment: quote the text, or put the comment "
                    "elsewhere",
                )

    root = yaml.compose(text, yaml.SafeLoader)  # in Python: its marks count letters
    return None if root is None else next(walk(root), None)


def read_yaml(path: Path) -> JsonObject:
    """A YAML mapping, or ConfigError naming the file: also where something in it would be lost."""
    try:
        text = path.read_text(encoding="utf-8")
        loaded = parse_yaml(text)
    except OSError as error:
        fix = suggest_nearest(str(path), recipe_names(), "check the path")
        raise ConfigError(f"config file {path} can't be read ({error.strerror}): {fix}") from error
    except (yaml.YAMLError, ValueError) as error:
        place = getattr(error, "problem_mark", None)
        where = f" at line {place.line + 1}" if place is not None else ""
        raise ConfigError(
            f"config file {path} is not valid YAML{where}: mend it or leave it out"
        ) from error
    if (gone := find_lost(text)) is not None:
        raise ConfigError(f"config file {path}, line {gone[0] + 1}: {gone[1]}")
    if loaded is None:
        return {}
    if not isinstance(loaded, dict):
        raise ConfigError(
            f"config file {path} holds a {type(loaded).__name__}, not a mapping: "
            "write `key: value` lines"
        )
    return loaded


def merge_mappings(base: Facts, over: Facts, place: str = "") -> JsonObject:
    """`base` with `over` on top; mappings merge, everything else is replaced. `place` is where they
    are, for messages.

    Raises ConfigError where something else stands in the place of a mapping: later layers would
    hide that.
    """
    merged = dict(base)
    for key, value in over.items():
        old = merged.get(key)
        if isinstance(old, Mapping) and not isinstance(value, Mapping):
            raise ConfigError(
                f"{place}{key} is {show_value(value)}, which is a section: "
                "write its keys below it, or leave it out"
            )
        merged[key] = (
            merge_mappings(old, value, f"{place}{key}.") if isinstance(old, Mapping) else value
        )
    return merged


def show_value(value: Any) -> str:
    """A value for a message, cut where it is long."""
    text = repr(value)
    return text if len(text) <= 200 else text[:200] + "..."
