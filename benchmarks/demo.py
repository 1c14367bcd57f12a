"""What README shows of a search: runs its command and keeps the lines that it prints.

uv run python benchmarks/demo.py        # some seconds; benchmarks/results/demo.json
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks import provenance  # noqa: E402

SEARCH = "search --index 7 --simulations 6"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "demo.json")
    args = parser.parse_args()
    command = [sys.executable, "-m", "alphazero_llm_trainer", *SEARCH.split()]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    print(done.stdout, end="")
    shown = f"uv run alphazero-llm-trainer {SEARCH}"
    provenance.write(args.out, "demo", {"shown": shown, "lines": done.stdout.splitlines()})


if __name__ == "__main__":
    main()
