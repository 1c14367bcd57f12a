"""The console script's smaller commands: `sft`, `search`, `info`."""

from __future__ import annotations

import argparse
from typing import Any


def add_sft(commands: Any) -> None: ...
def add_search(commands: Any) -> None: ...
def add_info(commands: Any) -> None: ...
