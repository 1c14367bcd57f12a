"""Does the loop teach? The arms side by side from the same student, over seeds, on the same held-out problems.

    uv run python benchmarks/improvement.py --seeds 7 8 9

Arms: GRPO and legacy, each with groups from search trees and with plain sampled (chain) groups, and the control: the
same training seconds spent on more supervised training over the same demonstrations. Prints a table with paired 95%
intervals and writes JSON with the commands.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from alphazero_llm_trainer.config import load_config  # noqa: E402
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


def train_arm(flags: list[str], seed: int, work: Path, extra: list[str]) -> dict[str, Any]:
    """One training run in a process of its own; its run card and command."""
    command = [sys.executable, "train_vllm.py", *flags, "--seed", str(seed), "--checkpoint-dir", str(work), *extra]
    before = set(work.glob("run-*"))
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    [folder] = set(work.glob("run-*")) - before
    return json.loads((folder / "run.json").read_text()) | {"command": ["python", *command[1:]]}


def control(seed: int, seconds: float, eval_size: int, work: Path) -> dict[str, Any]:
    """More supervised training on the demonstrations for `seconds`, with a fresh learning-rate cycle.

    Its best of three rates on validation is taken, each for the full time, so that the control is not handicapped.
    """
    config = load_config(overrides=["student=embedded", f"seed={seed}"])
    test = load_tasks("embedded", "test", eval_size)
    validation = load_tasks("embedded", "validation", config.train.validation_size)
    demonstrations = load_tasks("embedded", "train", config.train.demonstrations)
    best: tuple[float, Any, float] | None = None
    for rate in (3e-4, 1e-3, 3e-3):
        student = load_student(config)

        def validate(model: Any) -> float:
            fresh = make_student("embedded", model, student.tokenizer, student.spec, config, None)
            correct = answer(fresh, validation, max_tokens=config.search.max_tokens).first
            return sum(correct) / len(correct)

        settings = SftSettings(steps=10**6, learning_rate=rate, max_seconds=seconds, seed=seed, evaluate_every=300)
        rows = sft_rows(demonstrations, student.tokenizer)
        result = train_student(
            student.model, rows, student.tokenizer, settings, out_dir=work / "control", evaluate=validate
        )
        accuracy = max(e["accuracy"] for e in result["evaluations"])
        if best is None or accuracy > best[0]:
            best = (accuracy, student, rate)
    assert best is not None
    fresh = make_student("embedded", best[1].model, best[1].tokenizer, best[1].spec, config, None)
    answers = answer(fresh, test, max_tokens=config.search.max_tokens)
    return {"correct": answers.first, "validation": best[0], "learning_rate": best[2], "seconds": seconds}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[7, 8, 9])
    parser.add_argument("--eval-size", type=int, default=1000)
    parser.add_argument("--arms", nargs="+", default=[*ARMS, CONTROL], choices=[*ARMS, CONTROL])
    parser.add_argument("--work", type=Path, default=ROOT / "checkpoints" / "improvement")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "improvement.json")
    parser.add_argument("--extra", nargs="*", default=[], metavar="FLAG", help="more flags for every training run")
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    rows: list[dict[str, Any]] = []
    for seed in args.seeds:
        seconds = 0.0
        for arm in args.arms:
            began = time.perf_counter()
            if arm == CONTROL:
                card = control(seed, seconds, args.eval_size, args.work)
                row: dict[str, Any] = {"correct": card["correct"], "training_seconds": seconds, "sampled_tokens": 0}
                row["learning_rate"] = card["learning_rate"]
            else:
                card = train_arm(ARMS[arm], seed, args.work, ["--eval-size", str(args.eval_size), *args.extra])
                seconds = max(seconds, card["seconds"]["training"])
                row = {
                    "correct": card["after"]["correct"],
                    "before": card["before"]["correct"],
                    "training_seconds": card["seconds"]["training"],
                    "sampled_tokens": card["search_cost"]["sampled_tokens"],
                    "kept": card["kept"],
                    "command": card["command"],
                }
            rows.append({"arm": arm, "seed": seed, **row})
            print(
                f"seed {seed}, {arm}: {sum(row['correct']) / len(row['correct']):.3f} ({time.perf_counter() - began:.0f} s)",
                file=sys.stderr,
                flush=True,
            )
    report(rows, args)


def report(rows: list[dict[str, Any]], args: argparse.Namespace) -> None:
    """The table, and everything as JSON. Seeds are pooled problem by problem for the paired intervals."""
    before = {row["seed"]: row["before"] for row in rows if "before" in row}
    controls = {row["seed"]: row["correct"] for row in rows if row["arm"] == CONTROL}
    base = [x for seed in args.seeds for x in before[seed]]
    print(f"{len(args.seeds)} seeds x {args.eval_size:,} held-out problems; before: {wilson(sum(base), len(base))}")
    print(
        f"{'arm':22} {'after':>6}  {'gain over before':>24}  {'gain over control':>24}  {'seconds':>7}  {'tokens':>10}"
    )
    summary = []
    for arm in args.arms:
        of_arm = [row for row in rows if row["arm"] == arm]
        after = [x for row in of_arm for x in row["correct"]]
        gain = paired_bootstrap(after, base)
        versus = None
        if controls and arm != CONTROL:
            versus = paired_bootstrap(after, [x for row in of_arm for x in controls[row["seed"]]])
        seconds = sum(row["training_seconds"] for row in of_arm) / len(of_arm)
        tokens = sum(row["sampled_tokens"] for row in of_arm) // len(of_arm)
        print(
            f"{arm:22} {sum(after) / len(after):6.3f}  {gain!s:>24}  {'' if versus is None else str(versus):>24}"
            f"  {seconds:7.0f}  {tokens:10,}"
        )
        summary.append(
            {
                "arm": arm,
                "accuracy": vars_of(wilson(sum(after), len(after))),
                "by_seed": {row["seed"]: sum(row["correct"]) / len(row["correct"]) for row in of_arm},
                "gain": vars_of(gain),
                "gain_over_control": None if versus is None else vars_of(versus),
                "training_seconds": seconds,
                "sampled_tokens": tokens,
            }
        )
    args.out.parent.mkdir(parents=True, exist_ok=True)
    command = "python benchmarks/improvement.py " + " ".join(sys.argv[1:])
    for row in rows:
        row["correct"] = "".join("1" if x else "0" for x in row["correct"])
        if "before" in row:
            row["before"] = "".join("1" if x else "0" for x in row["before"])
        if "command" in row:
            row["command"] = " ".join(part for part in row["command"] if str(ROOT) not in part)
    args.out.write_text(json.dumps({"command": command.strip(), "summary": summary, "runs": rows}, indent=1) + "\n")


def vars_of(interval: Any) -> dict[str, float]:
    return {"value": interval.value, "low": interval.low, "high": interval.high}


if __name__ == "__main__":
    main()
