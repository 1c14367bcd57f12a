"""Does search win with more tokens? Selection rules and simpler methods at equal tokens, from x1 to x32.

    uv run python benchmarks/search_budgets.py --work checkpoints/search_budgets

Tasks: the game of numbers (four and five of them) under its rules, where the first response that reaches the target ends
the work, once with nothing else to go by and once with the student's log-probability; embedded problems of 4 to 6 steps under
calculator and log-probability, where no response is accepted before the budget ends. Each method gets the same budget of
sampled and scored tokens, the same verifier and the same seeds. PUCT, UCB1 and Gumbel are the method `mcts` with
`search.select`. All draw without replacement, `steps repeat` with it (`search.verify.repeat`).

The students are trained first, into --work. A cell (task, method, budget) is kept as soon as it is finished, and the same
command goes on from there. Writes JSON with 95% intervals over distinct problems, for each method whether more tokens ever
hurt, and the gain of PUCT, the default, over the others. The primary comparison is the one with adaptive best-of-n.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shlex
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from alphazero_llm_trainer import __version__  # noqa: E402
from alphazero_llm_trainer.config.load import load_config  # noqa: E402
from alphazero_llm_trainer.engine.protocol import Verifier  # noqa: E402
from alphazero_llm_trainer.eval.attempt import MethodContext  # noqa: E402
from alphazero_llm_trainer.eval.cells import Benchmark, Cell, run_cell  # noqa: E402
from alphazero_llm_trainer.eval.metrics import Interval, paired_bootstrap, wilson  # noqa: E402
from alphazero_llm_trainer.eval.verifiers import Product, load_parts  # noqa: E402
from alphazero_llm_trainer.policy.student import load_student  # noqa: E402
from alphazero_llm_trainer.policy.value_function import policy_fingerprint  # noqa: E402
from alphazero_llm_trainer.problems.load import load_tasks, opening  # noqa: E402
from alphazero_llm_trainer.problems.source import open_source  # noqa: E402

WORK = Path("checkpoints") / "search_budgets"
RESULTS = ROOT / "benchmarks" / "results" / "search_budgets.json"
FACTORS = (1, 2, 4, 8, 16, 32)
BASE = "puct"  # the default, which the others are compared with
# Name -> the method of `eval`, and settings.
ARMS: dict[str, tuple[str, tuple[str, ...]]] = {
    BASE: ("mcts", ("search.select=puct",)),
    "puct, steps repeat": ("mcts", ("search.select=puct", "search.verify.repeat=true")),
    "gumbel": ("mcts", ("search.select=gumbel",)),
    "ucb1": ("mcts", ("search.select=ucb1",)),
    "dvts": ("dvts", ()),
    "step-rejection": ("step-rejection", ()),
    "adaptive-best-of-n": ("adaptive-best-of-n", ()),
}


@dataclass(frozen=True, slots=True)
class Setting:
    """A task: its student's folder in --work, the judge, and the tokens of x1, which are about one response."""

    name: str
    source: str
    levels: tuple[int, ...]
    student: str
    verifier: str
    tokens: int
    overrides: tuple[str, ...] = ()


RANKED = "calculator+log-probability"
SETTINGS = (
    Setting("numbers, rules", "numbers", (2, 3), "numbers", "calculator", 60),
    Setting("numbers, rules and log-probability", "numbers", (2, 3), "numbers", RANKED, 60),
    Setting("embedded, 4 to 6 steps", "embedded", (3, 4), "embedded", RANKED, 80, ("search.verify.accept_above=1.0",)),
)


def stages(work: Path) -> dict[str, list[str]]:
    """The command that trains each student, by the name of its folder in `work`."""
    sizes = "--eval-size 300 --set train.sft.validation_size=200"
    commands = {
        "numbers": f"sft --source numbers --model small -n 40000 {sizes} --set problems.levels=[2,3]"
        " --set train.sft.steps=3000 --set train.sft.evaluate_every=1000",
        "embedded": f"sft --model embedded -n 2000 {sizes} --set problems.levels=[3,4]"
        " --set train.sft.steps=1500 --set train.sft.evaluate_every=500",
    }
    return {name: [*command.split(), "--out", str(work / name)] for name, command in commands.items()}


def measured(setting: Setting, work: Path, num: int, start: int, seed: int, factors: Sequence[int]) -> dict[str, Any]:
    """All cells of a task, finished ones read back; returns its facts."""
    base = ["student=embedded", f"problems.source={setting.source}", f"seed={seed}"]
    base += [f"problems.levels={list(setting.levels)}", *setting.overrides]
    config = load_config(overrides=base)
    source = open_source(config)
    student = load_student(config, path=work / setting.student, opening=opening(config, source))
    parts = load_parts(setting.verifier.split("+"), student, config, None, None)
    judge: Verifier = parts[0] if len(parts) == 1 else Product(parts)
    benchmark = Benchmark(setting.name, load_tasks(source, "test", num, start=start))
    identity = [__version__, policy_fingerprint(student.model), benchmark.data_hash, seed, *base]
    rows, cells = [], {}
    for factor in factors:
        for arm, (method, own) in ARMS.items():
            config = load_config(overrides=[*base, *own])
            sampler = MethodContext(student, judge, config)
            budget = factor * setting.tokens
            cell = kept(
                work / "cells" / f"{setting.name} {arm} {budget}.json",
                [*identity, *own],
                sampler,
                benchmark,
                method,
                budget,
            )
            cells[arm, factor] = cell
            accuracy = wilson(cell.outcomes.count("1"), len(cell.outcomes), cell.distinct)
            rows.append(
                {"arm": arm, "factor": factor, "budget": budget, "accuracy": triple(accuracy)}
                | {"tokens": sum(cell.tokens) / num, "seconds": cell.seconds, "ended_by": cell.ended_by}
                | {"correct": cell.outcomes}
            )
            print(
                f"{setting.name:26} {arm:20} x{factor:<3} {accuracy!s:24} {rows[-1]['tokens']:7.0f} tokens", flush=True
            )
    return {
        "name": setting.name,
        "levels": setting.levels,
        "verifier": setting.verifier,
        "settings": setting.overrides,
        "tokens": setting.tokens,
        "problems": num,
        "start": start,
        "distinct": len(set(cells[BASE, factors[0]].groups)),
        "rows": rows,
        "steps": [growth(arm, cells, factors) for arm in ARMS],
        "minus": {
            arm: {str(factor): triple(gain(cells[BASE, factor], cells[arm, factor])) for factor in factors}
            for arm in ARMS
            if arm != BASE
        },
    }


def kept(
    path: Path, identity: Sequence[Any], sampler: MethodContext, benchmark: Benchmark, method: str, budget: int
) -> Cell:
    """The cell in `path` where it was measured on the same problems and weights, else a new one, written there."""
    if path.exists():
        stored = json.loads(path.read_text())
        if stored["identity"] == list(identity):
            return Cell(**stored["cell"])
    cell = asyncio.run(run_cell(sampler, benchmark, method, budget, lambda: False, lambda tokens: None))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"identity": identity, "cell": cell.as_dict()}))
    return cell


def gain(after: Cell, before: Cell) -> Interval:
    return paired_bootstrap(after.right, before.right, groups=after.groups)


def growth(arm: str, cells: Mapping[tuple[str, int], Cell], factors: Sequence[int]) -> dict[str, Any]:
    """What each doubling of the budget gained; `monotone` where no interval lies below 0."""
    gains = {str(more): triple(gain(cells[arm, more], cells[arm, less])) for less, more in pairwise(factors)}
    return {"arm": arm, "gains": gains, "monotone": all(high >= 0 for _, _, high in gains.values())}


def triple(found: Interval) -> list[float]:
    return [found.value, found.low, found.high]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num", type=int, default=200, help="test problems of a task")
    parser.add_argument("--start", type=int, default=0, help="number of the first one")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--work", type=Path, default=ROOT / WORK, help="students and cells")
    parser.add_argument("--factors", type=int, nargs="+", default=FACTORS, help="budgets, in multiples of a task's x1")
    parser.add_argument("--tasks", nargs="+", default=[one.name for one in SETTINGS], help="some of the tasks")
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    torch.set_num_threads(1)
    factors = sorted(args.factors)
    began, commands = time.perf_counter(), stages(args.work)
    settings = [setting for setting in SETTINGS if setting.name in args.tasks]
    needed = dict.fromkeys(setting.student for setting in settings)
    for name in needed:
        if not (args.work / name / "manifest.json").exists():
            print(" ".join(commands[name]), flush=True)
            subprocess.run([sys.executable, "-m", "alphazero_llm_trainer", *commands[name]], cwd=ROOT, check=True)
    tasks = [measured(setting, args.work, args.num, args.start, args.seed, factors) for setting in settings]
    result = {
        "command": f"uv run python benchmarks/search_budgets.py --num {args.num} --start {args.start}"
        f" --factors {' '.join(map(str, factors))} --tasks {shlex.join(args.tasks)}",
        "version": __version__,
        "seed": args.seed,
        "factors": factors,
        "seconds": time.perf_counter() - began,
        "made": {
            name: {"command": shlex.join(["alphazero-llm-trainer", *stages(WORK)[name]])}
            | {"test_greedy": json.loads((args.work / name / "manifest.json").read_text())["test_greedy"]}
            for name in needed
        },
        "tasks": tasks,
    }
    args.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    for task in tasks:
        for step in task["steps"]:
            print(f"{task['name']}: {step['arm']} is {'' if step['monotone'] else 'not '}monotone")
        value, low, high = task["minus"]["adaptive-best-of-n"][str(factors[-1])]
        print(f"{task['name']}: {BASE} - adaptive-best-of-n at x{factors[-1]}: {value:+.3f} [{low:+.3f}, {high:+.3f}]")


if __name__ == "__main__":
    main()
