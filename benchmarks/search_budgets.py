"""Does search win with more tokens? A tree and simpler methods at equal tokens, from x1 to x32.

    uv run python benchmarks/search_budgets.py --work checkpoints/search_budgets

Tasks: the game of numbers (four and five of them) under its rules, where the first response that
reaches the target ends the work; embedded problems of 4 to 6 steps under calculator and
log-probability, where no response is accepted before the budget ends. Every method gets the same
budget of sampled and scored tokens, the same verifier, the same seeds and the same way of drawing
(without replacement; `steps repeat` draws with it). Each is tuned on validation problems in the
same way: patience and first draw at temperature 1, then the temperature, at the budget TUNED. PUCT,
UCB1 and Gumbel are the method `mcts` with `search.select`. PROTOCOL.md names the test problems and
the primary comparison.

An exhaustive solver's line stands beside the game: it is what one would really take there.

The students are trained first, into --work. A cell (task, method, budget) is kept as soon as it is
finished, and the same command goes on from there. Writes JSON with each problem's result and
tokens, 95% intervals over distinct problems, for each method whether more tokens ever hurt, and
PUCT less each other method with p-values (sign test, Holm over the methods).
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import math
import shlex
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from alphazero_llm_trainer import __version__  # noqa: E402
from alphazero_llm_trainer.config.load import load_config  # noqa: E402
from alphazero_llm_trainer.engine.protocol import Verifier  # noqa: E402
from alphazero_llm_trainer.eval.attempt import Attempt, MethodContext  # noqa: E402
from alphazero_llm_trainer.eval.cells import Benchmark, Cell, run_cell  # noqa: E402
from alphazero_llm_trainer.eval.methods import mcts  # noqa: E402
from alphazero_llm_trainer.eval.metrics import Interval, paired_bootstrap, wilson  # noqa: E402
from alphazero_llm_trainer.eval.verifiers import load_verifier  # noqa: E402
from alphazero_llm_trainer.live import Progress  # noqa: E402
from alphazero_llm_trainer.mcts.seeds import derive_seed  # noqa: E402
from alphazero_llm_trainer.policy.adapters import fingerprint  # noqa: E402
from alphazero_llm_trainer.policy.student import load_student  # noqa: E402
from alphazero_llm_trainer.problems.load import load_tasks, opening  # noqa: E402
from alphazero_llm_trainer.problems.numbers import apply, read_question  # noqa: E402
from alphazero_llm_trainer.problems.source import open_source  # noqa: E402
from alphazero_llm_trainer.tree.arena import Tree  # noqa: E402
from benchmarks import provenance  # noqa: E402

WORK = Path("checkpoints") / "search_budgets"
RESULTS = ROOT / "benchmarks" / "results" / "search_budgets.json"
FACTORS = (1, 2, 4, 8, 16, 32)
BASE = "puct"  # the default, which the others are compared with
PRIMARY = "step-rejection"
# Name -> the method of `eval`, its settings, and whether it reads `search.verify.patience`.
ARMS: dict[str, tuple[str, tuple[str, ...], bool]] = {
    BASE: ("mcts", ("search.select=puct",), True),
    "puct, steps repeat": ("mcts", ("search.select=puct", "search.verify.repeat=true"), True),
    "gumbel": ("mcts", ("search.select=gumbel",), True),
    "ucb1": ("mcts", ("search.select=ucb1",), True),
    PRIMARY: ("step-rejection", (), True),
    "restart": ("mcts", ("search.select=restart",), False),
    "adaptive-best-of-n": ("adaptive-best-of-n", (), False),
}
# What is tried; temperature 1 at first.
PATIENCE = (2, 4, 8)
FIRST = (0.0, 1.0)
TEMPERATURES = (0.7, 1.4)
TUNED = 16  # the factor at which methods are tuned


@dataclass(frozen=True, slots=True)
class Setting:
    """A task: its student's folder in --work, the judge, and the tokens of x1, which are about one
    response.
    """

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
    Setting(
        "embedded, 4 to 6 steps",
        "embedded",
        (3, 4),
        "embedded",
        RANKED,
        80,
        ("search.verify.accept_above=1.0",),
    ),
)


def stages(work: Path) -> dict[str, list[str]]:
    """The command that trains each student, by the name of its folder in `work`."""
    sizes = "--eval-size 300 --set train.validation_size=200"
    commands = {
        "numbers": f"sft --source numbers --model small -n 40000 {sizes} --set problems.levels=[2,3]"
        " --set train.sft_steps=3000 --set train.evaluate_every=1000",
        "embedded": f"sft --model embedded -n 5000 {sizes} --set problems.levels=[3,4]"
        " --set train.sft_steps=2500 --set train.evaluate_every=500",
    }
    return {
        name: [*command.split(), "--out", str(work / name)] for name, command in commands.items()
    }


class Bench:
    """One task: its student and verifier, and cells that are measured once."""

    def __init__(self, setting: Setting, work: Path, seed: int) -> None:
        self.setting, self.work = setting, work
        self.base = ["student=embedded", f"problems.source={setting.source}", f"seed={seed}"]
        self.base += [f"problems.levels={list(setting.levels)}", *setting.overrides]
        config = load_config(overrides=self.base)
        self.source = open_source(config)
        self.student = load_student(
            config, path=work / setting.student, opening=opening(config, self.source)
        )
        self.judge: Verifier = load_verifier(setting.verifier, self.student, config, None, None)

    def problems(self, split: str, num: int, start: int) -> Benchmark:
        return Benchmark(
            f"{self.setting.name}, {split}", load_tasks(self.source, split, num, start=start)
        )

    def context(self, own: Sequence[str]) -> MethodContext:
        return MethodContext(self.student, self.judge, load_config(overrides=[*self.base, *own]))

    def cell(self, benchmark: Benchmark, method: str, own: Sequence[str], factor: int) -> Cell:
        """The method's results; read from --work where they were measured on the same problems,
        weights and code's version.
        """
        budget = factor * self.setting.tokens
        identity = [
            __version__,
            fingerprint(self.student.model),
            benchmark.data_hash,
            *self.base,
            *own,
        ]
        path = (
            self.work
            / "cells"
            / f"{hashlib.sha256(repr([*identity, method, budget]).encode()).hexdigest()[:16]}.json"
        )
        if path.exists():
            return Cell(**json.loads(path.read_text())["cell"])
        cell = asyncio.run(
            run_cell(self.context(own), benchmark, method, budget, Progress(quiet=True))
        )
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"identity": identity, "cell": asdict(cell)}))
        return cell

    def tuned(self, arm: str, num: int) -> tuple[tuple[str, ...], list[dict[str, Any]]]:
        """The settings with the most right answers on validation problems (the first on ties), and
        all that were tried.
        """
        method, own, patient = ARMS[arm]
        benchmark, tried = self.problems("validation", num, 0), []

        def best(choices: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
            for choice in choices:
                if any(row["settings"] == choice for row in tried):
                    continue
                cell = self.cell(benchmark, method, [*own, *choice], TUNED)
                tried.append(
                    {
                        "settings": choice,
                        "right": cell.outcomes.count("1"),
                        "tokens": sum(cell.tokens) / num,
                    }
                )
                print(
                    f"{benchmark.name:26} {arm:20} {' '.join(choice)}: {tried[-1]['right']} of "
                    f"{num}",
                    flush=True,
                )
            return max(
                (row for row in tried if row["settings"] in choices), key=lambda row: row["right"]
            )["settings"]

        patience = [(f"search.verify.patience={n}",) for n in PATIENCE] if patient else [()]
        first = [(*one, f"search.verify.first_temperature={t}") for one in patience for t in FIRST]
        found = best([(*one, "search.temperature=1.0") for one in first])
        warmer = [(*found[:-1], f"search.temperature={t}") for t in TEMPERATURES]
        return best([found, *warmer]), tried


def measured(bench: Bench, args: argparse.Namespace, factors: Sequence[int]) -> dict[str, Any]:
    """All cells of a task, finished ones read back; returns its facts."""
    setting = bench.setting
    tuning = {arm: bench.tuned(arm, args.validation) for arm in ARMS}
    benchmark = bench.problems("test", args.num, args.start)
    rows, cells = [], {}
    for factor in factors:
        for arm, (method, own, _) in ARMS.items():
            cell = cells[arm, factor] = bench.cell(
                benchmark, method, [*own, *tuning[arm][0]], factor
            )
            accuracy = wilson(cell.outcomes.count("1"), len(cell.outcomes), cell.distinct)
            rows.append(
                {"arm": arm, "factor": factor, "budget": cell.budget, "accuracy": triple(accuracy)}
                | {"tokens": sum(cell.tokens) / args.num, "ended_by": cell.ended_by}
                | {"correct": cell.outcomes, "tokens_by_problem": cell.tokens}
            )
            print(
                f"{setting.name:26} {arm:20} x{factor:<3} {accuracy!s:24} "
                f"{rows[-1]['tokens']:7.0f} tokens",
                flush=True,
            )
    found = {
        "name": setting.name,
        "levels": setting.levels,
        "verifier": setting.verifier,
        "settings": setting.overrides,
        "tokens": setting.tokens,
        "problems": args.num,
        "start": args.start,
        "groups": cells[BASE, factors[0]].groups,
        "distinct": len(set(cells[BASE, factors[0]].groups)),
        "validation": args.validation,
        "tuned_at": TUNED,
        "tuned": {
            arm: {"settings": chosen, "tried": tried} for arm, (chosen, tried) in tuning.items()
        },
        "rows": rows,
        "steps": [growth(arm, cells, factors) for arm in ARMS],
        "minus": {
            arm: {str(factor): gain(cells[BASE, factor], cells[arm, factor]) for factor in factors}
            for arm in ARMS
            if arm != BASE
        },
        "p": {str(factor): adjusted(cells, factor) for factor in factors},
    }
    if setting.source == "numbers":
        found["solver"] = solved(benchmark)
        found["inner_nodes"] = inner_nodes(
            bench.context(tuning[BASE][0]), benchmark, TUNED * setting.tokens
        )
    return found


def sign_test(after: Sequence[float], before: Sequence[float]) -> float:
    """The two-sided p-value of paired right-or-wrong results `[n]` (McNemar 1947, exact): a
    binomial test of the problems on which the two differ; 1 where they differ on none.
    """
    gained = sum(a > b for a, b in zip(after, before, strict=True))
    lost = sum(a < b for a, b in zip(after, before, strict=True))
    n, least = gained + lost, min(gained, lost)
    # P(X <= least), X ~ Binomial(n, 1/2), on both sides
    return min(1.0, 2 * sum(math.comb(n, k) for k in range(least + 1)) / 2**n)


def holm(p_values: Sequence[float]) -> list[float]:
    """The p-values `[k]` adjusted for being k of them (Holm 1979): those at most .05 hold together
    at 5%.
    """
    adjusted, largest = [0.0] * len(p_values), 0.0
    for rank, i in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        # Never below a smaller one's.
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[i]))
        adjusted[i] = largest
    return adjusted


def adjusted(cells: Mapping[tuple[str, int], Cell], factor: int) -> dict[str, float]:
    """p-values of PUCT against each other method, adjusted for their number."""
    others = [arm for arm in ARMS if arm != BASE]
    values = [sign_test(cells[BASE, factor].right, cells[arm, factor].right) for arm in others]
    return dict(zip(others, holm(values), strict=True))


def solved(benchmark: Benchmark) -> dict[str, float]:
    """An exhaustive solver at the same games: how many it solves, and its time for one."""
    began = time.perf_counter()
    right = 0
    for task in benchmark.tasks:
        given, target = read_question(task.problem.question)
        right += solves(tuple(sorted(given.elements())), target, set())
    return {
        "right": right,
        "milliseconds": 1000 * (time.perf_counter() - began) / len(benchmark.tasks),
    }


def solves(left: tuple[int, ...], target: int, dead: set[tuple[int, ...]]) -> bool:
    """Whether legal play reaches `target` from the numbers `left`; `dead` are those that are known
    not to.
    """
    if len(left) == 1:
        return left[0] == target
    if left in dead:
        return False
    for i, j in combinations(range(len(left)), 2):
        rest = [n for at, n in enumerate(left) if at not in (i, j)]
        for op in "+-*/":
            move = apply(max(left[i], left[j]), op, min(left[i], left[j]))
            if move is not None and solves(tuple(sorted([*rest, move[3]])), target, dead):
                return True
    dead.add(left)
    return False


def inner_nodes(
    sampler: MethodContext, benchmark: Benchmark, budget: int, games: int = 100
) -> dict[str, int]:
    """What the tree knows of nodes that can still be drawn from: how many have been visited, and
    how many of them have a mean reward of 1. The rules reject what is illegal and say nothing of
    what is legal.
    """

    async def trees() -> list[Tree]:
        found = []
        for task in benchmark.tasks[:games]:
            seed = derive_seed(sampler.config.seed, task.problem.id)
            found.append(Tree())
            await mcts(Attempt(sampler, task.problem, seed, budget, tree=found[-1]))
        return found

    grown = asyncio.run(trees())
    live = [
        (tree, node)
        for tree in grown
        for node in range(1, len(tree))
        if tree.verdict[node] is None and tree.N[node]
    ]
    return {
        "games": games,
        "live": len(live),
        "sure": sum(tree.q(node) == 1.0 for tree, node in live),
    }


def gain(after: Cell, before: Cell) -> list[float]:
    return triple(paired_bootstrap(after.right, before.right, groups=after.groups))


def growth(
    arm: str, cells: Mapping[tuple[str, int], Cell], factors: Sequence[int]
) -> dict[str, Any]:
    """What each doubling of the budget gained; `monotone` where no interval lies below 0."""
    gains = {
        str(more): gain(cells[arm, more], cells[arm, less]) for less, more in pairwise(factors)
    }
    return {"arm": arm, "gains": gains, "monotone": all(high >= 0 for _, _, high in gains.values())}


def triple(found: Interval) -> list[float]:
    return [found.value, found.low, found.high]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--num", type=int, default=1000, help="test problems of a task")
    parser.add_argument("--start", type=int, default=20_000, help="number of the first one")
    parser.add_argument(
        "--validation", type=int, default=200, help="validation problems that methods are tuned on"
    )
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--work", type=Path, default=ROOT / WORK, help="students and cells")
    parser.add_argument(
        "--factors",
        type=int,
        nargs="+",
        default=FACTORS,
        help="budgets, in multiples of a task's x1",
    )
    parser.add_argument(
        "--tasks", nargs="+", default=[one.name for one in SETTINGS], help="some of the tasks"
    )
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    torch.set_num_threads(1)
    factors = sorted(args.factors)
    commands = stages(args.work)
    settings = [setting for setting in SETTINGS if setting.name in args.tasks]
    needed = dict.fromkeys(setting.student for setting in settings)
    for name in needed:
        if not (args.work / name / "manifest.json").exists():
            print(" ".join(commands[name]), flush=True)
            subprocess.run(
                [sys.executable, "-m", "alphazero_llm_trainer", *commands[name]],
                cwd=ROOT,
                check=True,
            )
    tasks = [measured(Bench(setting, args.work, args.seed), args, factors) for setting in settings]
    result = {
        "command": f"uv run python benchmarks/search_budgets.py --num {args.num} --start {args.start}"
        f" --validation {args.validation} --factors {' '.join(map(str, factors))} --tasks "
        f"{shlex.join(args.tasks)}",
        "version": __version__,
        "seed": args.seed,
        "factors": factors,
        "made": {
            name: {"command": shlex.join(["alphazero-llm-trainer", *stages(WORK)[name]])}
            | {
                "test_greedy": json.loads((args.work / name / "manifest.json").read_text())[
                    "test_greedy"
                ]
            }
            for name in needed
        },
        "tasks": tasks,
    }
    provenance.write(args.out, result)
    for task in tasks:
        for step in task["steps"]:
            print(f"{task['name']}: {step['arm']} is {'' if step['monotone'] else 'not '}monotone")
        value, low, high = task["minus"][PRIMARY][str(factors[-1])]
        print(
            f"{task['name']}: {BASE} - {PRIMARY} at x{factors[-1]}: {value:+.3f} [{low:+.3f}, "
            f"{high:+.3f}]"
        )


if __name__ == "__main__":
    main()
