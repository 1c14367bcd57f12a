"""Python objects by address: `file.py:NAME` and `package.module:NAME`, the user's own code."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from typing import Any

from ..errors import AlphaZeroError, ConfigError


def load_object(place: str, name: str, key: str) -> Any:
    """The object `name` of a Python file or module: the user's own code, which runs when it is
    loaded.

    It may import what lies beside it: the file's folder, or the working directory for a module, is
    looked at last. `key` is the configuration's, for messages. Raises ConfigError where it can't be
    loaded, with the code's own error.
    """
    try:
        if place.endswith(".py"):
            file = at_home(place, key)
            if not file.is_file():
                raise ConfigError(
                    f"{key} is '{place}:{name}' and {file} is not there: name a Python file"
                )
            look_in(file.resolve().parent)
            spec = importlib.util.spec_from_file_location(
                f"_alphazero_user_{file.stem}", file.resolve()
            )
            assert spec is not None and spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            sys.modules[spec.name] = module
            spec.loader.exec_module(module)
        else:
            look_in(Path.cwd())
            module = importlib.import_module(place)
    except AlphaZeroError:
        raise
    except (
        Exception,
        SystemExit,
    ) as error:  # whatever the user's own module raises while it is imported
        raise ConfigError(
            f"{key} is '{place}:{name}' and {place} can't be imported ({type(error).__name__}: "
            f"{error}): mend it"
        ) from error
    if not hasattr(module, name):
        public = ", ".join(
            sorted(other for other in vars(module) if not other.startswith("_"))[:12]
        )
        raise ConfigError(f"{key} is '{place}:{name}' and {place} has no {name}: it has {public}")
    return getattr(module, name)


def at_home(place: str, key: str) -> Path:
    """A path with `~` written out; `key` is where it was given. Raises ConfigError where there is
    no such user.
    """
    try:
        return Path(place).expanduser()
    except RuntimeError as error:
        raise ConfigError(
            f"{key} is {place!r} and that user has no home here: write the whole path"
        ) from error


def look_in(folder: Path) -> None:
    """Let modules be imported from a folder, after all other places."""
    if str(folder) not in sys.path:
        sys.path.append(str(folder))
