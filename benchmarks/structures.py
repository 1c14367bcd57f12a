"""Does training teach problems whose structure nobody trained on, or only structures that it knows?

    uv run python benchmarks/structures.py --work checkpoints/structures

A student is warmed up from scratch on demonstrations of held-in structures alone (`problems.hold_out: structures`); then the
arms of `improvement.py` teach it on questions of held-in structures. Each last student answers test problems of held-out
structures greedily (`greedy`), and test problems of held-in structures, whose worked solutions are new (`held_in`). Intervals
are over distinct worked solutions and seeds. The shipped student has seen every structure, so it takes no part.

The primary comparison, written down before the test problems were read: greedy accuracy on held-out structures of `search`,
less that of the student that it starts from (`greedy_gain` in the JSON). All else is secondary, `primary` in it too.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

from arms import Study, run, written  # noqa: E402
from improvement import ARMS  # noqa: E402

from alphazero_llm_trainer.config.load import load_config  # noqa: E402
from alphazero_llm_trainer.eval.greedy import answer  # noqa: E402
from alphazero_llm_trainer.policy.student import load_student  # noqa: E402
from alphazero_llm_trainer.problems import embedded  # noqa: E402
from alphazero_llm_trainer.types import Task  # noqa: E402

HOLD_OUT = "--set problems.hold_out=structures"
START = f"sft --student embedded {HOLD_OUT} --seed 7 --eval-size 100 --set train.sft.steps=2000"
TAKEN = ("search", "rft, 8 samples", "grpo, trees")


def held_out(count: int, first: int) -> list[Task]:
    return embedded.load("test", count, start=first, structures="test")


def held_in(count: int, first: int) -> list[Task]:
    return embedded.load("test", count, start=first, structures="train")


def structures(tasks: list[Task]) -> int:
    """How many structures the tasks have."""
    return len({embedded.structure_of(task.problem.id) for task in tasks})


def measure(folder: Path | None, problems: list[Task], args: argparse.Namespace) -> dict[str, str]:
    """Right or wrong on each test problem of both kinds, greedy."""
    config = load_config(overrides=["student=embedded"])
    student = load_student(config, path=folder)
    sets = {"greedy": problems, "held_in": held_in(args.num, args.first)}
    limit = config.search.max_tokens
    return {kind: written(answer(student, tasks, max_tokens=limit).first) for kind, tasks in sets.items()}


if __name__ == "__main__":
    run(
        Study(
            "benchmarks/structures.py",
            __doc__,
            {name: ARMS[name] for name in TAKEN},
            HOLD_OUT.split(),
            ("greedy", "held_in"),
            load_config().train.validation_size,
            held_out,
            measure,
            start=START,
            apart=960,
            facts={
                "start_command": START,
            },
            others={"held_in": held_in},
            count=structures,
        )
    )
