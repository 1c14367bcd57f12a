"""Where things are, cases that are data (the tables in `cases/`), and JSON as tests read and write
it.
"""

import json
import socket
from pathlib import Path

import yaml

TESTS = Path(__file__).parent
CHECKOUT = TESTS.parent


def table(name):
    return yaml.safe_load((TESTS / "cases" / f"{name}.yaml").read_text("utf-8"))


def read_json(path):
    return json.loads(path.read_text("utf-8"))


def read_jsonl(path):
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def write_jsonl(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")


def free_port():
    """A port of 127.0.0.1 that nothing listens at."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]
