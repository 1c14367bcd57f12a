"""Searching the next round while this one is trained on (`train.lag`): what it saves, and what older weights cost.

    uv run --extra scale python benchmarks/lag.py --work runs/lag

Each method is trained from the shipped student in three ways: in one process, with two search actors and an engine actor
beside the trainer (`--workers`), and the same with `train.lag` 1. Every process has one thread. The comparison, written down
before the test problems were read: greedy accuracy with lag 1 less lag 0, over problems and seeds. A finished run is kept, a
stopped one goes on. Writes JSON.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

from arms import program, triple  # noqa: E402

from alphazero_llm_trainer import __version__  # noqa: E402
from alphazero_llm_trainer.eval.metrics import bootstrap_over_seeds, repeats  # noqa: E402
from alphazero_llm_trainer.problems.load import load_tasks  # noqa: E402
from benchmarks import provenance  # noqa: E402

METHODS = {"expert iteration": [], "GRPO on trees": ["--use-grpo"]}
ACTORS = ["--workers", "2", "--set", "sample.engines=1"]
ARMS = {"one process": [], "actors": ACTORS, "actors, lag 1": [*ACTORS, "--set", "train.lag=1"]}


def train(method: str, arm: str, seed: int, args: argparse.Namespace) -> dict[str, Any]:
    """One run as a row, with its results on the test problems in `correct`."""
    command = ["train", "--student", "embedded", *METHODS[method], *ARMS[arm], "-n", str(args.questions)]
    command += ["--eval-size", str(args.num), "--seed", str(seed)]
    folder = args.work / f"{method} {arm} {seed}".replace(",", "").replace(" ", "-") / "run-001"
    if not (folder / "run.json").exists():
        program([*command, "--checkpoint-dir", str(folder.parent)])
    elif "after" not in json.loads((folder / "run.json").read_text()):
        program(["train", "--resume", str(folder), *ARMS[arm][:2]])
    card = json.loads((folder / "run.json").read_text())
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return {
        "method": method,
        "arm": arm,
        "seed": seed,
        "command": shlex.join(["alphazero-llm-trainer", *command]),
        "training_seconds": card["seconds"]["training"],
        "search_seconds": sum(line.get("search_seconds", 0.0) for line in lines),
        "sampled_tokens": card["search_cost"]["sampled_tokens"],
        "correct": [float(one) for one in card["after"]["correct"]],
    }


def summed(rows: list[dict[str, Any]], method: str, groups: list[int]) -> dict[str, Any]:
    """A method's seconds and accuracy in each way, and what lag 1 does to them."""
    of = {arm: [row for row in rows if (row["method"], row["arm"]) == (method, arm)] for arm in ARMS}
    right = {arm: [row["correct"] for row in found] for arm, found in of.items()}
    nothing = [[0.0] * len(groups)]
    return {
        "method": method,
        "arms": [
            {
                "arm": arm,
                "training_seconds": sum(row["training_seconds"] for row in found) / len(found),
                "search_seconds": sum(row["search_seconds"] for row in found) / len(found),
                "sampled_tokens": sum(row["sampled_tokens"] for row in found) // len(found),
                "greedy": triple(bootstrap_over_seeds(right[arm], nothing, groups=groups)),
            }
            for arm, found in of.items()
        ],
        "lag_1_less_lag_0": triple(bootstrap_over_seeds(right["actors, lag 1"], right["actors"], groups=groups)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[7, 8, 9])
    parser.add_argument("--questions", type=int, default=2880, help="training questions of a run")
    parser.add_argument("--num", type=int, default=1000, help="test problems")
    parser.add_argument("--work", type=Path, default=ROOT / "checkpoints" / "lag")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "lag.json")
    args = parser.parse_args()
    args.work = args.work.resolve()
    rows = []
    for seed in args.seeds:
        for method in METHODS:
            for arm in ARMS:
                row = train(method, arm, seed, args)
                rows.append(row)
                accuracy = sum(row["correct"]) / len(row["correct"])
                print(f"{method}, {arm}, seed {seed}: {row['training_seconds']:.0f} s, {accuracy:.3f}", flush=True)
    test = load_tasks("embedded", "test", args.num)
    groups = repeats(test)
    result = {
        "command": f"uv run --extra scale python benchmarks/lag.py --seeds {' '.join(map(str, args.seeds))}"
        f" --questions {args.questions} --num {args.num}",
        "version": __version__,
        "seeds": args.seeds,
        "problems": args.num,
        "distinct": len(set(groups)),
        "questions": args.questions,
        "methods": [summed(rows, method, groups) for method in METHODS],
        "runs": [row | {"correct": "".join(str(int(one)) for one in row["correct"])} for row in rows],
    }
    provenance.write(args.out, "lag", result)


if __name__ == "__main__":
    main()
