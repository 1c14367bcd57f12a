"""The command `fetch`: a model of models.yaml onto this machine, before it is needed."""

from __future__ import annotations

import argparse
from typing import Any

from ..config.load import Config, resolve_name
from .base import add_config_arguments, resolve


def add_fetch(commands: Any) -> None:
    parser = commands.add_parser("fetch", help="download a model from the hub before it is needed")
    parser.add_argument(
        "name", metavar="NAME", help="a name of config/models.yaml, such as smollm2-135m"
    )
    add_config_arguments(parser)
    parser.set_defaults(run=lambda args: run_fetch(args, resolve(args)))


def run_fetch(args: argparse.Namespace, config: Config) -> int:
    """Fetch a model and print its folder."""
    name = resolve_name(config, args.name)
    from ..policy.fetch import fetch

    print(fetch(name, config.models[name]))
    return 0
