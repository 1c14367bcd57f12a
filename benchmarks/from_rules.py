"""AlphaZero's claim: from the rules alone, does training on what search finds beat training on samples?

    uv run python benchmarks/from_rules.py --work checkpoints/from_rules

The game of numbers with five numbers. The start has seen random legal play and nothing else (`sft` on worked-backwards plays;
nothing here solves a problem). Every arm goes on from it and samples about the same number of tokens:

- search: right responses that a tree under the rules finds (`train.groups: verified`), which ends at the first one;
- sampling: right responses among eight samples, rejection-sampling fine-tuning, with as many updates and with half of them;
- GRPO over eight samples, and GRPO over trees without a rule.

Then each last student is asked on test problems that no arm has seen: greedy, eight samples, and search under the rules at
one budget. The primary comparisons, written down before the test problems were read: greedy accuracy of `search` less that
of each other arm, over problems and seeds, held to 95% together (Bonferroni). All else is secondary.

A finished run is kept, a stopped one goes on. Writes JSON with the curves over tokens.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from alphazero_llm_trainer import __version__  # noqa: E402
from alphazero_llm_trainer.config.load import load_config  # noqa: E402
from alphazero_llm_trainer.eval.attempt import MethodContext  # noqa: E402
from alphazero_llm_trainer.eval.cells import Benchmark, run_cell  # noqa: E402
from alphazero_llm_trainer.eval.greedy import answer  # noqa: E402
from alphazero_llm_trainer.eval.metrics import Interval, bootstrap_over_seeds, repeats, wilson  # noqa: E402
from alphazero_llm_trainer.policy.student import load_student  # noqa: E402
from alphazero_llm_trainer.problems.load import load_tasks  # noqa: E402
from alphazero_llm_trainer.problems.source import open_source  # noqa: E402
from alphazero_llm_trainer.problems.step_checks import Calculator  # noqa: E402

WORK = Path("checkpoints") / "from_rules"
RESULTS = ROOT / "benchmarks" / "results" / "from_rules.json"
GAME = ["--source", "numbers", "--set", "problems.levels=[3]"]
# Four and five numbers: on five alone the start would have fewer easy plays to learn the rules from.
START = (
    "sft --source numbers --model small -n 40000 --set problems.levels=[2,3] --eval-size 300"
    " --set train.sft.validation_size=200 --set train.sft.steps=3000 --set train.sft.evaluate_every=1000"
)
ROUNDS = 4
VALIDATION = 300  # problems that each checkpoint is measured on
EXPERT = "--use-rft --set train.rft.updates_per_round={} --set train.demonstrations=2000"
GRPO = "--use-grpo --set train.demonstrations=2000"
CHAINS = "--set train.groups=chain --set train.chain_samples=8 --set train.requeue_limit=0"
TREES = (
    "--set train.groups=verified --set search.budget_tokens=400 --set train.iterations=100"
    " --set search.data.enough_correct=1 --set search.select=puct"
)
# Name -> flags, and the questions of a run, so many that it samples about 2 M tokens.
ARMS: dict[str, tuple[str, int]] = {
    "search": (f"{EXPERT.format(300)} {TREES}", 6240),
    "sampling": (f"{EXPERT.format(300)} {CHAINS}", 3840),
    "sampling, half the updates": (f"{EXPERT.format(150)} {CHAINS}", 3840),  # it finds fewer rows to train on
    "grpo, samples": (f"{GRPO} {CHAINS}", 3840),
    "grpo, trees": (f"{GRPO} --set train.requeue_limit=0", 3120),
}


def environment() -> dict[str, str]:
    """One thread an arm, so that two of them side by side don't disturb each other."""
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}


def program(command: Sequence[str], quiet: bool = True) -> None:
    sink = subprocess.DEVNULL if quiet else None
    run = [sys.executable, "-m", "alphazero_llm_trainer", *command]
    subprocess.run(run, cwd=ROOT, check=True, env=environment(), stdout=sink, stderr=sink)


def train(arm: str, seed: int, work: Path, extra: Sequence[str]) -> dict[str, Any]:
    """The run card of one arm, trained unless it was before; its curve is in `curve`."""
    flags, questions = ARMS[arm]
    folder = work / f"{arm} {seed}".replace(", ", "-").replace(" ", "-")
    command = ["train", *GAME, *flags.split(), "-n", str(questions), "--seed", str(seed), *extra]
    if "--use-rft" in flags:
        command += ["--set", f"train.questions_per_round={questions // ROUNDS}"]
    command += ["--save-every", str(questions // ROUNDS), "--set", "rewards.pre_weight=0", "--eval-size", "0"]
    run = folder / "run-001"
    if not (run / "run.json").exists():
        program([*command, "--set", f"train.student={work / 'start'}", "--checkpoint-dir", str(folder)])
    elif "seconds" not in json.loads((run / "run.json").read_text()):
        program(["train", "--resume", str(run)])
    card = json.loads((run / "run.json").read_text())
    return {
        "arm": arm,
        "seed": seed,
        "command": shlex.join(["alphazero-llm-trainer", *command]),
        "kept": card["kept"],
        "questions": card["questions"],
        "sampled_tokens": card["search_cost"]["sampled_tokens"],
        "seconds": card["seconds"],
        "curve": curve(run),
    }


def curve(run: Path) -> list[list[float]]:
    """(tokens sampled so far, greedy accuracy on validation problems) after each checkpoint."""
    tokens, points = 0, []
    for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines():
        found = json.loads(line)
        tokens += found.get("cost", {}).get("sampled_tokens", 0)
        if "validation_accuracy" in found:
            points.append([tokens, found["validation_accuracy"]])
    return points


def measure(folder: Path, first: int, num: int, budget: int, seed: int) -> dict[str, str]:
    """Right or wrong on each test problem: greedy, one of eight samples, and search under the rules."""
    overrides = ["student=embedded", "problems.source=numbers", "problems.levels=[3]", f"seed={seed}"]
    config = load_config(overrides=overrides)
    source = open_source(config)
    tasks = load_tasks(source, "test", num, start=first)
    student = load_student(config, path=folder, system_prompt=source.system_prompt)
    limit = config.search.max_tokens
    greedy = answer(student, tasks, max_tokens=limit).first
    sampled = answer(student, tasks, max_tokens=limit, n=8, temperature=1.0, seed=seed).correct
    context = MethodContext(student, Calculator(), config)
    benchmark = Benchmark("numbers", tasks)
    cell = asyncio.run(run_cell(context, benchmark, "mcts", budget, lambda: False, lambda tokens: None))
    return {
        "greedy": written(greedy),
        "pass_at_8": written([any(row) for row in sampled]),
        "search": cell.outcomes,
        "sample": "".join(str(sum(row)) for row in sampled),
    }


def written(right: Sequence[bool]) -> str:
    return "".join("1" if one else "0" for one in right)


def measured(folder: Path, kept: Path, args: argparse.Namespace) -> dict[str, str]:
    """`measure` in a process of its own, kept in a file."""
    if not kept.exists():
        measure_only = ["--measure", str(folder), "--out", str(kept)]
        command = [sys.executable, __file__, *measure_only, "--first", str(args.first)]
        command += ["--num", str(args.num), "--budget", str(args.budget)]
        subprocess.run(command, check=True, env=environment())
    found = json.loads(kept.read_text())
    if len(found["greedy"]) != args.num:
        raise SystemExit(f"{kept} holds {len(found['greedy'])} problems and --num is {args.num}: remove it")
    return found


def compared(
    rows: Sequence[dict[str, Any]], arms: Sequence[str], kinds: Sequence[str], groups: Sequence[int]
) -> list[dict[str, Any]]:
    """Each arm's accuracy over problems and seeds, and the arm `search` less it; `primary` holds at 95% for all together."""
    found = {
        (arm, kind): [[float(one) for one in row[kind]] for row in rows if row["arm"] == arm]
        for arm in arms
        for kind in kinds
    }
    together = 1 - 0.05 / max(len(arms) - 1, 1)
    summary = []
    for arm in arms:
        mine = [row for row in rows if row["arm"] == arm]
        row: dict[str, Any] = {"arm": arm, "tokens": sum(one["sampled_tokens"] for one in mine) // len(mine)}
        for kind in kinds:
            row[f"{kind}_by_seed"] = [sum(one) / len(one) for one in found[arm, kind]]
            row[kind] = triple(bootstrap_over_seeds(found[arm, kind], [[0.0] * len(groups)], groups=groups))
            if arm != "search" and "search" in arms:
                over = bootstrap_over_seeds(found["search", kind], found[arm, kind], groups=groups)
                row[f"search_minus_{kind}"] = triple(over)
        if arm != "search" and "search" in arms:
            both = found["search", "greedy"], found[arm, "greedy"]
            row["primary"] = triple(bootstrap_over_seeds(*both, confidence=together, groups=groups))
        summary.append(row)
    return summary


def triple(found: Interval) -> list[float]:
    return [found.value, found.low, found.high]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[7, 8, 9])
    parser.add_argument("--arms", nargs="+", default=[*ARMS], choices=[*ARMS], metavar="ARM")
    parser.add_argument("--first", type=int, default=1000, help="number of the first test problem")
    parser.add_argument("--num", type=int, default=1000, help="test problems")
    parser.add_argument("--budget", type=int, default=400, help="tokens a problem, of the students with search")
    parser.add_argument("--jobs", type=int, default=2, help="runs side by side, one thread each")
    parser.add_argument("--work", type=Path, default=ROOT / WORK)
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--measure", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.measure:
        args.out.write_text(json.dumps(measure(args.measure, args.first, args.num, args.budget, 7)))
        return
    args.work = args.work.resolve()
    args.work.mkdir(parents=True, exist_ok=True)
    start = args.work / "start"
    if not (start / "manifest.json").exists():
        program([*START.split(), "--out", str(start)], quiet=False)

    def one(job: tuple[str, int]) -> dict[str, Any]:
        row = train(*job, args.work, ["--set", f"train.validation_size={VALIDATION}"])
        name = f"{job[0]} {job[1]}".replace(", ", "-").replace(" ", "-")
        row |= measured(args.work / name / "run-001" / "student", args.work / f"{name}-{args.first}.json", args)
        right = wilson(row["greedy"].count("1"), args.num)
        print(f"seed {row['seed']}, {row['arm']:14} {right!s} after {row['sampled_tokens']:,} tokens", flush=True)
        return row

    before = measured(start, args.work / f"start-{args.first}.json", args)
    with ThreadPoolExecutor(args.jobs) as pool:
        rows = list(pool.map(one, [(arm, seed) for seed in args.seeds for arm in args.arms]))
    source = open_source(load_config(overrides=["student=embedded", "problems.source=numbers", "problems.levels=[3]"]))
    groups = repeats(load_tasks(source, "test", args.num, start=args.first))
    result = {
        "command": f"uv run python benchmarks/from_rules.py --seeds {' '.join(map(str, args.seeds))}"
        f" --arms {shlex.join(args.arms)} --first {args.first} --num {args.num} --budget {args.budget} --jobs {args.jobs}",
        "version": __version__,
        "start": {
            kind: triple(wilson(before[kind].count("1"), args.num)) for kind in ("greedy", "pass_at_8", "search")
        },
        "start_command": START,
        "seeds": args.seeds,
        "first": args.first,
        "problems": args.num,
        "distinct": len(set(groups)),
        "validation_problems": VALIDATION,
        "budget": args.budget,
        "summary": compared(rows, args.arms, ("greedy", "pass_at_8", "search"), groups),
        "runs": rows,
    }
    args.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
