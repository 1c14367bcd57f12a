"""Does the loop teach? The arms side by side from the same student, over seeds, on the same held-out problems.

    uv run python benchmarks/improvement.py --seeds 7 8 9

Arms: GRPO and legacy, each with groups from search trees and with plain sampled (chain) groups, and the control: the
same training seconds spent on more supervised training over the same demonstrations. Prints a table with paired 95%
intervals and writes JSON with the commands.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from alphazero_llm_trainer.config.load import load_config  # noqa: E402
from alphazero_llm_trainer.eval.greedy import answer  # noqa: E402
from alphazero_llm_trainer.eval.metrics import paired_bootstrap, wilson  # noqa: E402
from alphazero_llm_trainer.policy.student import load_student, make_student  # noqa: E402
from alphazero_llm_trainer.problems.load import load_tasks  # noqa: E402
from alphazero_llm_trainer.train.sft import SftSettings, sft_rows, train_student  # noqa: E402

ARMS = {
    "grpo, tree groups": ["--use-grpo"],
    "grpo, chain groups": ["--use-grpo", "--set", "train.groups=chain"],
    "legacy, tree groups": ["--use-legacy"],
    "legacy, chain groups": ["--use-legacy", "--set", "train.groups=chain"],
}
CONTROL = "control: more SFT"


def environment() -> dict[str, str]:
    """Every arm gets one thread, so that two of them side by side don't disturb each other."""
    return {**os.environ, "OMP_NUM_THREADS": "1"}


def finished(directory: Path) -> dict[str, Any] | None:
    """The card of an arm's finished run: an interrupted benchmark goes on where it was."""
    for path in sorted(directory.glob("run-*/run.json")):
        card = json.loads(path.read_text())
        if "after" in card:
            return card
    return None


def train_arm(arm: str, seed: int, work: Path, extra: list[str]) -> dict[str, Any]:
    """One training run in a process of its own, as a row."""
    directory = work / f"{seed} {arm}".replace(" ", "-").replace(",", "")
    flags = [*ARMS[arm], "--seed", str(seed), *extra]
    command = [sys.executable, "train_vllm.py", *flags, "--checkpoint-dir", str(directory)]
    card = finished(directory)
    if card is None:
        subprocess.run(
            command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment()
        )
        card = finished(directory)
        assert card is not None
    return {
        "arm": arm,
        "seed": seed,
        "correct": card["after"]["correct"],
        "before": card["before"]["correct"],
        "training_seconds": card["seconds"]["training"],
        "total_seconds": card["seconds"]["total"],
        "sampled_tokens": card["search_cost"]["sampled_tokens"],
        "kept": card["kept"],
        "positives_only": card["positives_only"],
        "command": " ".join(["python train_vllm.py", *flags]),
    }


def control_arm(seed: int, seconds: float, rate: float, eval_size: int, work: Path) -> dict[str, Any]:
    """`control` in a process of its own."""
    out = work / f"control-{seed}-{rate}.json"
    command = [sys.executable, __file__, "--control", str(seed), str(seconds), str(rate)]
    command += ["--eval-size", str(eval_size), "--out", str(out), "--work", str(work)]
    subprocess.run(
        command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment()
    )
    return json.loads(out.read_text())


def control(seed: int, seconds: float, rate: float, eval_size: int, work: Path) -> dict[str, Any]:
    """More supervised training on the demonstrations for `seconds`, with a fresh learning-rate cycle from `rate`.

    It keeps its best weights on validation, as the training runs do.
    """
    config = load_config(overrides=["student=embedded", f"seed={seed}"])
    test = load_tasks("embedded", "test", eval_size)
    validation = load_tasks("embedded", "validation", config.train.validation_size)
    demonstrations = load_tasks("embedded", "train", config.train.demonstrations)
    student = load_student(config)

    def answers(model: Any, tasks: Any) -> list[bool]:
        fresh = make_student("embedded", model, student.tokenizer, student.spec, config, None)
        return answer(fresh, tasks, max_tokens=config.search.max_tokens).first

    settings = SftSettings(steps=10**6, learning_rate=rate, max_seconds=seconds, seed=seed, evaluate_every=200)
    result = train_student(
        student.model,
        sft_rows(demonstrations, student),
        student.tokenizer,
        settings,
        out_dir=work / "control",
        evaluate=lambda model: sum(answers(model, validation)) / len(validation),
    )
    return {
        "arm": CONTROL,
        "seed": seed,
        "correct": answers(student.model, test),
        "validation": max(e["accuracy"] for e in result["evaluations"]),
        "learning_rate": rate,
        "training_seconds": seconds,
        "sampled_tokens": 0,
        "updates": result["steps"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[7, 8, 9])
    parser.add_argument("--eval-size", type=int, default=1000)
    parser.add_argument("--arms", nargs="+", default=[*ARMS], choices=[*ARMS], metavar="ARM")
    parser.add_argument("--control-rates", type=float, nargs="+", default=[3e-3])
    parser.add_argument("--jobs", type=int, default=2, help="processes side by side, one thread each")
    parser.add_argument("--work", type=Path, default=ROOT / "checkpoints" / "improvement")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "improvement.json")
    parser.add_argument("--extra", nargs=argparse.REMAINDER, default=[], help="more flags for every training run")
    parser.add_argument("--control", type=float, nargs=3, metavar=("SEED", "SECONDS", "RATE"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    if args.control:
        seed, seconds, rate = args.control
        args.out.write_text(json.dumps(control(int(seed), seconds, rate, args.eval_size, args.work)))
        return
    extra = ["--eval-size", str(args.eval_size), *args.extra]

    def told(row: dict[str, Any]) -> dict[str, Any]:
        rate = f", rate {row['learning_rate']}" if "learning_rate" in row else ""
        accuracy = sum(row["correct"]) / len(row["correct"])
        line = f"seed {row['seed']}, {row['arm']}{rate}: {accuracy:.3f}, {row['training_seconds']:.0f} s of training"
        print(line, file=sys.stderr, flush=True)
        return row

    with ThreadPoolExecutor(args.jobs) as pool:
        wanted = [(arm, seed) for seed in args.seeds for arm in args.arms]
        rows = list(pool.map(lambda job: told(train_arm(*job, args.work, extra)), wanted))
        longest = {seed: max(row["training_seconds"] for row in rows if row["seed"] == seed) for seed in args.seeds}
        tries = [(seed, longest[seed], rate) for seed in args.seeds for rate in args.control_rates]
        controls = list(pool.map(lambda job: told(control_arm(*job, args.eval_size, args.work)), tries))
    for seed in args.seeds:
        # The control is its best rate, by validation.
        rows.append(max((c for c in controls if c["seed"] == seed), key=lambda c: c["validation"]))
    report(rows, controls, args)


def report(rows: list[dict[str, Any]], controls: list[dict[str, Any]], args: argparse.Namespace) -> None:
    """The table, and everything as JSON. Intervals are over problems."""
    before = {row["seed"]: row["before"] for row in rows if "before" in row}
    control_of = {row["seed"]: row["correct"] for row in rows if row["arm"] == CONTROL}
    base = mean_over_seeds([before[seed] for seed in args.seeds])
    first = before[args.seeds[0]]
    print(f"{len(args.seeds)} seeds, {args.eval_size:,} held-out problems; before: {wilson(sum(first), len(first))}")
    print(
        f"{'arm':22} {'after':>6}  {'gain over before':>24}  {'gain over control':>24}  {'seconds':>7}  {'tokens':>10}"
    )
    summary = []
    for arm in [*args.arms, CONTROL]:
        of_arm = [row for row in rows if row["arm"] == arm]
        after = [x for row in of_arm for x in row["correct"]]
        # The same problems come back with every seed: the bootstrap draws problems, each with its mean over seeds.
        by_problem = mean_over_seeds([row["correct"] for row in of_arm])
        gain = paired_bootstrap(by_problem, base)
        versus = None
        if arm != CONTROL:
            versus = paired_bootstrap(by_problem, mean_over_seeds([control_of[seed] for seed in args.seeds]))
        seconds = sum(row["training_seconds"] for row in of_arm) / len(of_arm)
        tokens = sum(row["sampled_tokens"] for row in of_arm) // len(of_arm)
        print(
            f"{arm:22} {sum(after) / len(after):6.3f}  {gain!s:>24}  {'' if versus is None else str(versus):>24}"
            f"  {seconds:7.0f}  {tokens:10,}"
        )
        summary.append(
            {
                "arm": arm,
                "accuracy": {"value": sum(after) / len(after)},
                "by_seed": {row["seed"]: sum(row["correct"]) / len(row["correct"]) for row in of_arm},
                "gain": vars_of(gain),
                "gain_over_control": None if versus is None else vars_of(versus),
                "training_seconds": seconds,
                "sampled_tokens": tokens,
            }
        )
    args.out.parent.mkdir(parents=True, exist_ok=True)
    command = "python benchmarks/improvement.py " + " ".join(sys.argv[1:])
    runs = [row for row in rows if row["arm"] != CONTROL] + controls
    for row in runs:
        for name in ("correct", "before"):
            if name in row:
                row[name] = "".join("1" if x else "0" for x in row[name])
    args.out.write_text(json.dumps({"command": command.strip(), "summary": summary, "runs": runs}, indent=1) + "\n")


def mean_over_seeds(results: list[list[bool]]) -> list[float]:
    """Each problem's mean result over the seeds."""
    return [sum(one) / len(one) for one in zip(*results, strict=True)]


def vars_of(interval: Any) -> dict[str, float]:
    return {"value": interval.value, "low": interval.low, "high": interval.high}


if __name__ == "__main__":
    main()
