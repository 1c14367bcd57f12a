"""The command `fetch`: a model of models.yaml onto this machine, before it is needed."""

from __future__ import annotations

import argparse

from ..config.load import resolve_name
from .base import resolve_config


def run_fetch(args: argparse.Namespace) -> int:
    """Fetch a model and print its folder."""
    config = resolve_config(args)
    name = resolve_name(config, args.name)
    from ..policy.fetch import fetch_model

    print(fetch_model(name, config.models[name]))
    return 0
