"""The user's cache folder: compiled kernels and fetched models."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """ALPHAZERO_CACHE_DIR, else `alphazero-llm-trainer` in XDG_CACHE_HOME or `~/.cache`; it may not
    be there yet.

    Raises RuntimeError where the user has no home.
    """
    named = os.environ.get("ALPHAZERO_CACHE_DIR")
    if named:
        return Path(named).expanduser().absolute()
    base = os.environ.get("XDG_CACHE_HOME", "")
    # The XDG specification: a path that isn't absolute is to be ignored.
    return (Path(base) if os.path.isabs(base) else Path.home() / ".cache") / "alphazero-llm-trainer"
