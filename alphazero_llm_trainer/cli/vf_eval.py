"""The `vf-eval` console script of this package: it trains, or it evaluates in the environment."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from ..environment.front_end import run_front_end


def main(argv: Sequence[str] | None = None) -> int:
    """Run `vf-eval` with `argv` (None: the process's arguments) and return its exit code."""
    return run_front_end(sys.argv[1:] if argv is None else argv, call_train)


def call_train(argv: Sequence[str]) -> int:
    """Run the `train` command with `argv` (imported only now) and return its exit code."""
    from .train import train_main

    return train_main(argv)


if __name__ == "__main__":
    raise SystemExit(main())
