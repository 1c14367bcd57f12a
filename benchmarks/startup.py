"""CPU seconds that commands take to start and end, as shares of importing torch and transformers.

    uv run python benchmarks/startup.py

Each command is a process of its own, run in turns with the others; the median of its user and system seconds is kept. The C
kernels are compiled before, as they are once in a machine's life.
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks import provenance  # noqa: E402

SCRIPT = [sys.executable, "-m", "alphazero_llm_trainer"]
BASE = "python -c 'import torch, transformers'"
COMMANDS = {
    BASE: [sys.executable, "-c", "import torch, transformers"],
    "--help": [*SCRIPT, "--help"],
    "info": [*SCRIPT, "info"],
    "search --simulations 0 (an error)": [*SCRIPT, "search", "--simulations", "0"],
    "search --index 7 --simulations 6": [*SCRIPT, "search", "--index", "7", "--simulations", "6"],
}


def cpu_seconds(command: list[str], folder: str) -> float:
    """User and system seconds of one process and its children."""
    before = os.times()
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run(command, cwd=folder, env=environment, capture_output=True, check=False)
    after = os.times()
    return after.children_user - before.children_user + after.children_system - before.children_system


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5, help="runs of each command after a first one that isn't counted")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "startup.json")
    args = parser.parse_args()
    seconds: dict[str, list[float]] = {name: [] for name in COMMANDS}
    with tempfile.TemporaryDirectory() as folder:
        for turn in range(args.runs + 1):
            for name, command in COMMANDS.items():
                taken = cpu_seconds(command, folder)
                if turn:
                    seconds[name].append(round(taken, 3))
    base = median(seconds[BASE])
    rows = [
        {"command": name, "cpu_seconds": taken, "median": median(taken), "share": median(taken) / base}
        for name, taken in seconds.items()
    ]
    for row in rows:
        print(f"{row['command']:40} {row['median']:7.2f} CPU seconds {row['share']:6.2f}")
    result = {
        "command": " ".join(["uv run python benchmarks/startup.py", *sys.argv[1:]]),
        "python": platform.python_version(),
        "runs": args.runs,
        "rows": rows,
    }
    provenance.write(args.out, "startup", result)


if __name__ == "__main__":
    main()
