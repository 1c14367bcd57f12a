"""The YAML files that come with the package, and how YAML is read and laid over YAML."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from ..errors import ConfigError

# libyaml's parser is seven times faster than the one in Python, and not in every build of PyYAML.
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def shipped(name: str) -> Path:
    """The path of a shipped YAML file: `config/` in a checkout, `config_files/` in a wheel."""
    package = Path(__file__).parent.parent
    for folder in (package / "config_files", package.parent / "config"):
        if (folder / name).is_file():
            return folder / name
    raise ConfigError(f"config file {name} is not in the installation: reinstall alphazero-llm-trainer")


def named_file(path: Path) -> Path:
    """The file that `--config` names: a file of the user's, or a shipped recipe by its name, such as grpo_correctness."""
    if path.suffix or path.exists():
        return path
    try:
        return shipped(f"{path}.yaml")
    except ConfigError:
        return path


@lru_cache(maxsize=64)
def shipped_section(place: str) -> Mapping[str, Any]:
    """A section of training.yaml; "" is the whole file. Nobody may change what this returns."""
    found = read_yaml(shipped("training.yaml"))
    for part in place.split(".") if place else ():
        found = found[part]
    return found


def parse_yaml(text: str) -> Any:
    """What a YAML text says. Raises YAMLError, or ValueError for a date that is none."""
    return yaml.load(text, LOADER)  # noqa: S506 - the safe loader, in C where it is there


def read_yaml(path: Path) -> dict[str, Any]:
    """A YAML mapping, or ConfigError naming the file."""
    try:
        loaded = parse_yaml(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"config file {path} can't be read ({error.strerror}): check the path") from error
    except (yaml.YAMLError, ValueError) as error:
        place = getattr(error, "problem_mark", None)
        where = f" at line {place.line + 1}" if place is not None else ""
        raise ConfigError(f"config file {path} is not valid YAML{where}: mend it or leave it out") from error
    if loaded is None:
        return {}
    if not isinstance(loaded, dict):
        raise ConfigError(
            f"config file {path} holds a {type(loaded).__name__}, not a mapping: write `key: value` lines"
        )
    return loaded


def merge(base: Mapping[str, Any], over: Mapping[str, Any], place: str = "") -> dict[str, Any]:
    """`base` with `over` on top; mappings merge, everything else is replaced. `place` is where they are, for messages.

    Raises ConfigError where something else stands in the place of a mapping: later layers would hide that.
    """
    merged = dict(base)
    for key, value in over.items():
        old = merged.get(key)
        if isinstance(old, Mapping) and not isinstance(value, Mapping):
            raise ConfigError(
                f"{place}{key} is {shown(value)}, which is a section: write its keys below it, or leave it out"
            )
        merged[key] = merge(old, value, f"{place}{key}.") if isinstance(old, Mapping) else value
    return merged


def shown(value: Any) -> str:
    """A value for a message, cut where it is long."""
    text = repr(value)
    return text if len(text) <= 200 else text[:200] + "..."
