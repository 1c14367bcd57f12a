"""Python objects by address, `file.py:NAME`: the user's own code."""

from __future__ import annotations

import hashlib
import importlib.util
import sys
from functools import lru_cache
from pathlib import Path
from typing import Any

from ..errors import AlphaZeroError, ConfigError


@lru_cache(maxsize=16)
def own_object(address: str, key: str) -> Any:
    """The object at an address, `file.py:NAME`, whose file runs once in a process. `key` is the
    configuration's. Raises ConfigError as `load_object` does.
    """
    place, _, name = address.rpartition(":")
    if not place.endswith(".py") or not name:
        raise ConfigError(f"{key} is {address!r}: write file.py:NAME")
    return load_object(place, name, key)


def load_object(place: str, name: str, key: str) -> Any:
    """The object `name` of a Python file: the user's own code, which runs when it is loaded.

    It may import what lies beside it: the file's folder is looked at last. `key` is the
    configuration's, for messages. Raises ConfigError where it can't be loaded, with the code's own
    error.
    """
    file = at_home(place, key).resolve()
    if not file.is_file():
        raise ConfigError(f"{key} is '{place}:{name}' and {file} is not there: name a Python file")
    if str(file.parent) not in sys.path:
        sys.path.append(str(file.parent))
    spec = importlib.util.spec_from_file_location(f"_alphazero_user_{file.stem}", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    writes, sys.dont_write_bytecode = sys.dont_write_bytecode, True  # nothing is left beside it
    try:
        spec.loader.exec_module(module)
    except AlphaZeroError:
        raise
    except (Exception, SystemExit) as error:  # whatever the user's own file raises
        raise ConfigError(
            f"{key} is '{place}:{name}' and {place} can't be imported ({type(error).__name__}: "
            f"{error}): mend it"
        ) from error
    finally:
        sys.dont_write_bytecode = writes
    if not hasattr(module, name):
        public = [other for other in vars(module) if not other.startswith("_")]
        raise ConfigError(
            f"{key} is '{place}:{name}' and {place} has no {name}: it has "
            f"{', '.join(sorted(public)[:12])}"
        )
    return getattr(module, name)


def hash_code(*addresses: Any) -> dict[str, str]:
    """What decides beside the configuration: the hash of each file of the user's own code that is
    among addresses.
    """
    places = sorted({str(one).rpartition(":")[0] for one in addresses if ".py:" in str(one)})
    files = {place: Path(place).expanduser().read_bytes() for place in places}
    return {
        f"SHA-256 of {place}": hashlib.sha256(code).hexdigest() for place, code in files.items()
    }


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
