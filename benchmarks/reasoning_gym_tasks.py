"""Every task of reasoning-gym as a source: does it load, print a prompt, and grade its own gold answer as 1.

    uv run python benchmarks/reasoning_gym_tasks.py
    uv run python benchmarks/reasoning_gym_tasks.py --tasks chain_sum countdown

Each task is a process of its own, with a limit of seconds: some build tables of gigabytes or load data from the network.
Gold answers are stated as a response states them, a line `#### ANSWER`, and graded as every response is.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import multiprocessing
import platform
import sys
import time
from importlib import metadata
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from reasoning_gym.factory import DATASETS

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from alphazero_llm_trainer.config.sections import ProblemsConfig  # noqa: E402
from alphazero_llm_trainer.errors import AlphaZeroError  # noqa: E402
from alphazero_llm_trainer.problems.source import open_problems  # noqa: E402
from benchmarks import provenance  # noqa: E402

SPLITS = ("train", "test")
FORK = multiprocessing.get_context("fork")


def look_at(task: str, count: int) -> dict[str, Any]:
    """What came of one task, in this process."""
    try:
        source = open_problems(ProblemsConfig(source=f"reasoning-gym:{task}"), None)
        loaded = {split: source.load(split, count) for split in SPLITS}
    except AlphaZeroError as error:
        return {"loads": False, "why": str(error)}
    tasks = [one for of_split in loaded.values() for one in of_split]
    shared = {one.problem.question for one in loaded["train"]} & {one.problem.question for one in loaded["test"]}
    named = [one for one in tasks if one.gold]
    scores = [grade.hre for grade in source.grade_many([(f"So it is\n#### {one.gold}", one) for one in named])]
    return {
        "loads": True,
        "tasks": len(tasks),
        "shared": len(shared),
        "longest_prompt": max((len(one.problem.question) for one in tasks), default=0),
        "with_gold": len(named),
        "gold_is_one": sum(score == 1.0 for score in scores),
        "least_score": min(scores, default=None),
    }


def why(row: dict[str, Any]) -> str | None:
    """Why a task falls short, in words; None where it doesn't."""
    if not row["loads"]:
        return str(row["why"])
    if not row["tasks"]:
        return "no question falls into the splits"
    if row["shared"]:
        return f"{row['shared']} questions are in both splits"
    if row["with_gold"] < row["tasks"]:
        return f"{row['tasks'] - row['with_gold']} of {row['tasks']} entries name no gold answer: many are right"
    if row["gold_is_one"] < row["with_gold"]:
        return (
            f"its own score_answer gives {row['with_gold'] - row['gold_is_one']} of {row['with_gold']} of its own gold"
            f" answers less than 1 ({row['least_score']:g} at the least)"
        )
    return None


def send(task: str, count: int, end: Connection) -> None:
    """`look_at`, in a process of its own; what a task raises or prints is its own affair."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        try:
            end.send(look_at(task, count))
        except Exception as error:  # noqa: BLE001 - it is the finding
            end.send({"loads": False, "why": f"{type(error).__name__}: {error}"})


def run(task: str, count: int, seconds: float) -> dict[str, Any]:
    """A task's row. The process is a fork, since reasoning-gym takes half a minute to import."""
    began = time.perf_counter()
    ours, theirs = FORK.Pipe(duplex=False)
    process = FORK.Process(target=send, args=(task, count, theirs), daemon=True)
    process.start()
    theirs.close()
    row: dict[str, Any] = {"loads": False, "why": f"{seconds:g} seconds were not enough"}
    if ours.poll(seconds):
        try:
            row = ours.recv()
        except EOFError:
            row["why"] = "its process died"
    process.kill()
    process.join()
    return {"task": task, **row, "why": why(row), "seconds": round(time.perf_counter() - began, 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", metavar="NAME", help="default: all")
    parser.add_argument("--num", type=int, default=10, help="problems of each split")
    parser.add_argument("--seconds", type=float, default=600.0, help="limit of a task")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "reasoning_gym.json")
    args = parser.parse_args()
    rows = []
    for task in args.tasks or sorted(DATASETS):
        rows.append(run(task, args.num, args.seconds))
        print(f"{task:36} {rows[-1]['seconds']:6.1f} s  {rows[-1]['why'] or 'fine'}", flush=True)
    facts = {
        "command": "python benchmarks/reasoning_gym_tasks.py",
        "version": metadata.version("reasoning-gym"),
        "problems_a_split": args.num,
        "splits": list(SPLITS),
        "seconds_a_task": args.seconds,
        "machine": f"{platform.system()} {platform.machine()}, Python {platform.python_version()}",
        "rows": rows,
    }
    provenance.write(args.out, "reasoning_gym", facts)
    fine = sum(row["why"] is None for row in rows)
    print(f"{fine} of {len(rows)} tasks load and grade all their own gold answers as 1; {args.out}")


if __name__ == "__main__":
    main()
