"""The `vf-eval` console script of this package; `python -m alphazero_llm_trainer.environment` is
the same.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from .front_end import run


def main(argv: Sequence[str] | None = None) -> int:
    """Run `vf-eval` with `argv` (None: the process's arguments) and return its exit code."""
    return run(list(sys.argv[1:] if argv is None else argv))


if __name__ == "__main__":
    raise SystemExit(main())
