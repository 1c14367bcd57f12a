"""Fixtures that several test files share."""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


def pytest_configure(config: pytest.Config) -> None:
    """Nothing is kept in the user's own cache folder: the kernels are compiled once a session, for its processes too."""
    if "ALPHAZERO_CACHE_DIR" not in os.environ:
        folder = tempfile.TemporaryDirectory(prefix="alphazero-tests-")
        config.add_cleanup(folder.cleanup)
        os.environ["ALPHAZERO_CACHE_DIR"] = folder.name


@pytest.fixture(autouse=True)
def log_again() -> Iterator[None]:
    """`-q` silences the log for its process; here that is all tests' own."""
    yield
    logging.disable(logging.NOTSET)


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The folder with the real rows: ALPHAZERO_DATA_DIR, else `../shared/data` beside the checkout; else a skip."""
    named = os.environ.get("ALPHAZERO_DATA_DIR")
    folder = Path(named) if named else Path(__file__).parents[2] / "shared" / "data"
    if not (folder / "gsm8k" / "train.jsonl").is_file():
        pytest.skip(f"no real rows: {folder / 'gsm8k'} is missing; set ALPHAZERO_DATA_DIR to the folder that has it")
    return folder
