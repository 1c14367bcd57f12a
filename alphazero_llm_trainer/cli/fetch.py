"""The command `fetch`: a model of models.yaml onto this machine, before it is needed."""

from __future__ import annotations

import argparse
from typing import Any

from ..config.load import Config, resolve_name
from .base import add_command, resolve


def add_fetch(commands: Any) -> None:
    def run(args: argparse.Namespace) -> int:
        return run_fetch(args, resolve(args))

    add_command(commands, "fetch", run, "download a model from the hub before it is needed")


def run_fetch(args: argparse.Namespace, config: Config) -> int:
    """Fetch a model and print its folder."""
    name = resolve_name(config, args.name)
    from ..policy.fetch import fetch

    print(fetch(name, config.models[name]))
    return 0
