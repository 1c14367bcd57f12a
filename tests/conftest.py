"""Fixtures that several test files share."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The folder with the real rows: ALPHAZERO_DATA_DIR, else `../shared/data` beside the checkout; else a skip."""
    named = os.environ.get("ALPHAZERO_DATA_DIR")
    folder = Path(named) if named else Path(__file__).parents[2] / "shared" / "data"
    if not (folder / "gsm8k" / "train.jsonl").is_file():
        pytest.skip(f"no real rows: {folder / 'gsm8k'} is missing; set ALPHAZERO_DATA_DIR to the folder that has it")
    return folder
