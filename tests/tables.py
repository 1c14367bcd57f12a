"""Cases that are data (the tables in `cases/`), and JSON as tests read and write it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml


def table(name: str) -> Any:
    file = Path(__file__).parent / "cases" / f"{name}.yaml"
    return yaml.safe_load(file.read_text("utf-8"))


def read_json(path: Path) -> Any:
    return json.loads(path.read_text("utf-8"))


def read_jsonl(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def write_jsonl(path: Path, rows: Iterable[Any]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
