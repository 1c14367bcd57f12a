"""`python -m alphazero_llm_trainer` is the console script `alphazero-llm-trainer`."""

from __future__ import annotations

from .cli.main import main

if __name__ == "__main__":
    raise SystemExit(main())
