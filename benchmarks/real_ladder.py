"""A real language model taught on a laptop: SmolLM2-135M, supervised, then from its own samples, then asked in several ways.

    uv run alphazero-llm-trainer fetch smollm2-135m
    uv run python benchmarks/real_ladder.py --out runs/real

Each stage is a command of the package, in a folder of its own; what is finished is kept, so the same line goes on after a
stop. Embedded problems of levels 1 to 3: training questions and test problems never meet. From the supervised student, with as
many updates each: its own right samples (`rft`), expert iteration (`train` as it comes), GRPO with chains and with trees, all
over the same questions; expert iteration over three times the questions, which takes about as many tokens as `rft`; and more
supervision as a control. Then each student's answers to the same test problems and to real GSM8K rows, which none of them was
taught on.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from alphazero_llm_trainer.config.load import load_config  # noqa: E402
from alphazero_llm_trainer.eval.metrics import paired_bootstrap, repeats  # noqa: E402
from alphazero_llm_trainer.problems.load import tasks_of  # noqa: E402
from benchmarks import provenance  # noqa: E402

KEPT = (
    "test_before", "test_greedy", "test_pass_at_8", "test_mean_at_temperature_1", "gain", "steps", "rows", "seconds",
    "before", "after", "pairs", "kept", "questions", "rounds", "search_cost", "engine", "methods",
    "test", "kind", "why", "cost",
)  # fmt: skip
PROGRAM = [sys.executable, "-m", "alphazero_llm_trainer"]
ROUND, UPDATES = 96, 14  # questions of a round of each arm, and updates after it
VALIDATION = 300  # problems that choose an arm's checkpoint
CHAINS = ["--set", "train.groups=chain", "--set", "search.samples=8"]
RATE = "train.optimizer.learning_rate={}"
GRPO = ["--use-grpo", "--set", "train.optimizer.batch_size=16", "--set", "train.optimizer.epochs=2"]
GRPO += ["--set", RATE.format(1e-5), "--set", "train.optimizer.warmup=1", "--set", "train.rows_per_round=88"]
ARMS = {
    "rft": ["--use-rft", *CHAINS, "--set", RATE.format(5e-5)],
    "expert": ["--set", RATE.format(5e-5)],
    "expert-more": ["--set", RATE.format(5e-5)],
    "grpo": [*GRPO, *CHAINS],
    "grpo-trees": GRPO,
    "grpo-trees-hre": [
        *GRPO,
        "--set",
        "rewards.use_student_model=false",
    ],  # correctness alone, without the perplexity reward
}
MORE = {"expert-more": 3}  # times the questions, and as many more a round
AGAIN = {"rft": 8, "expert-more": 8}  # arms that are run with another seed as well, from the same SFT student
OVER = [(arm, "rft") for arm in ARMS if arm != "rft"] + [("grpo-trees", "grpo-trees-hre")]
LEVELS = ["--set", "problems.levels=[1,2,3]"]
EVERY = [*LEVELS, "--seed", "7"]


def stages(args: argparse.Namespace) -> dict[str, tuple[list[str], str, str]]:
    """Each stage's command, and the file and its key that tell that it is finished."""
    sft, rows = args.out / "sft", str(args.rows)
    size = ["--eval-size", str(args.problems)]
    warm = ["--set", "train.optimizer.learning_rate=1e-4", "--set", "train.optimizer.warmup=6"]
    warm += ["--set", "train.validation_size=50", *size, *EVERY]
    steps = ["--set", f"train.sft.steps={args.rows // 16}"]
    updates = args.questions // ROUND * UPDATES
    kept_out = ["--set", f"problems.hold_out={args.hold_out}"]
    found = {
        "sft": (
            ["sft", "--model", args.model, "-n", rows, "--out", str(sft), *steps, *warm],
            "manifest.json",
            "test_greedy",
        )
    }
    train = ["--set", f"train.demonstrations={rows}", "--set", f"train.validation_size={VALIDATION}"]
    for name, own in ARMS.items():
        times = MORE.get(name, 1)
        command = ["train", "--model", str(sft), "-n", str(times * args.questions), "--save-every", str(times * ROUND)]
        command += ["--set", f"train.questions_per_round={times * ROUND}", *train, *own]
        command += [*size, *LEVELS]
        for seed in (7, *([AGAIN[name]] if name in AGAIN else [])):
            folder = name if seed == 7 else f"{name}-{seed}"
            more = ["--seed", str(seed), "--out", str(args.out / folder)]
            found[folder] = ([*command, *more], "run-001/run.json", "after")
    # The control: as many updates as the arms make, on worked solutions that the SFT student hasn't seen as well.
    more = ["sft", "--model", str(sft), "-n", str(args.rows + 16 * updates), "--out", str(args.out / "more-sft")]
    found["more-sft"] = ([*more, "--set", f"train.sft.steps={updates}", *warm], "manifest.json", "test_greedy")
    students = {"base": args.model, "sft": sft, "more-sft": args.out / "more-sft"}
    students |= {name: args.out / name / "run-001" / "student" for name in ARMS}
    for source, prefix in (("embedded", "answers"), ("gsm8k", "gsm8k")):
        for name, folder in students.items():
            command = [
                "eval",
                "--model",
                str(folder),
                "--methods",
                "greedy",
                "--source",
                source,
                "--num",
                str(args.problems),
            ]
            command += ["--budget-tokens", "200", "--out", str(args.out / f"{prefix}-{name}"), *EVERY]
            found[f"{prefix}-{name}"] = (command, "results.json", "rows")
    methods = ["greedy", "majority", "best-of-n", "adaptive-best-of-n", "step-rejection", "mcts"]
    for name in ("sft", "rft", "expert-more"):
        folder = students[name]
        command = ["eval", "--model", str(folder), "--methods", *methods, "--verifier", "calculator"]
        command += ["--budget-tokens", *map(str, args.budgets), "--num", str(args.searched)]
        found[f"eval-{name}"] = ([*command, "--out", str(args.out / f"eval-{name}"), *EVERY], "results.json", "rows")
    if args.hold_out != "questions":  # stages kept from before this option must stay as they were
        found = {name: ([*command, *kept_out], last, key) for name, (command, last, key) in found.items()}
    return found


def finished(done: Path, key: str) -> bool:
    """Whether the file has what a stage writes at its end."""
    return done.is_file() and key in json.loads(done.read_text(encoding="utf-8"))


def run(name: str, command: list[str], done: Path, key: str) -> float:
    """Run one stage unless it is finished; returns its wall seconds (0: it was finished before)."""
    if finished(done, key):
        return 0.0
    if (done.parent / "run.json").is_file():
        command = [*command, "--resume"] if command[0] == "eval" else ["train", "--resume", str(done.parent)]
    print(f"$ alphazero-llm-trainer {shlex.join(command)}", flush=True)
    began = time.monotonic()
    subprocess.run([*PROGRAM, *command], check=True, env={**os.environ, "PYTHONPATH": str(ROOT)})
    return time.monotonic() - began


def compared(right: dict[str, list[float]], args: argparse.Namespace) -> list[dict[str, Any]]:
    """Each arm's greedy accuracy less another's (`OVER`) with the same seeds, over problems: so few seeds have no interval."""
    chosen = [word for word in LEVELS if word != "--set"] + [f"problems.hold_out={args.hold_out}"]
    groups = repeats(tasks_of(load_config(overrides=chosen), "test", args.problems))
    found = []
    for arm, over in OVER:
        ends = [end for end in ("", f"-{AGAIN.get(arm)}") if arm + end in right and over + end in right]
        if ends:
            mean = [[sum(scores) / len(ends) for scores in zip(*(right[name + end] for end in ends), strict=True)]
                    for name in (arm, over)]  # fmt: skip
            less = paired_bootstrap(*mean, groups=groups)
            row = {"arm": arm, "over": over, "seeds": len(ends)}
            found.append(row | {"value": less.value, "low": less.low, "high": less.high})
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--out", type=Path, default=Path("runs") / "real")
    parser.add_argument("--rows", type=int, default=1008, help="worked solutions of the supervised stage")
    parser.add_argument("--questions", type=int, default=192, help="training questions of GRPO")
    parser.add_argument("--problems", type=int, default=500, help="test problems before and after GRPO")
    parser.add_argument("--searched", type=int, default=200, help="test problems of each method")
    parser.add_argument("--budgets", type=int, nargs="+", default=[100, 300], help="tokens a problem")
    parser.add_argument("--hold-out", default="questions", help="what the test holds out: questions or structures")
    parser.add_argument("--stages", nargs="+", help="some of them (default: all)")
    parser.add_argument("--result", type=Path, default=ROOT / "benchmarks" / "results" / "real_ladder.json")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    times_file = args.out / "seconds.json"
    times: dict[str, float] = json.loads(times_file.read_text()) if times_file.is_file() else {}
    found: dict[str, Any] = {}
    right: dict[str, list[float]] = {}
    for name, (command, last, key) in stages(args).items():
        if args.stages and name not in args.stages:
            continue
        done = args.out / name / last
        seconds = run(name, command, done, key)
        if seconds:
            times[name] = round(times.get(name, 0.0) + seconds, 1)
            times_file.write_text(json.dumps(times))
        facts = json.loads(done.read_text(encoding="utf-8"))
        found[name] = {key: facts[key] for key in KEPT if key in facts}
        if "after" in facts:
            right[name] = [float(one) for one in facts["after"]["correct"]]
        for measured in {"before", "after"} & facts.keys():
            found[name][measured]["correct"] = "".join(str(int(one)) for one in facts[measured]["correct"])
    options = f"--rows {args.rows} --questions {args.questions} --problems {args.problems} --searched {args.searched}"
    options += f" --budgets {' '.join(map(str, args.budgets))}"
    if args.hold_out != "questions":
        options += f" --hold-out {args.hold_out}"
    if args.stages:
        options += f" --stages {' '.join(args.stages)}"
    result = {
        "command": f"uv run python benchmarks/real_ladder.py {options}",
        "machine": platform.machine(), "cores": os.cpu_count(), "model": args.model, "seed": 7,
        "rows": args.rows, "questions": args.questions, "hold_out": args.hold_out, "round": ROUND, "updates": UPDATES,
        "validation": VALIDATION, "more": MORE, "again": AGAIN,
        "seconds": times, "stages": found, "arms": compared(right, args),
    }  # fmt: skip
    provenance.write(args.result, "real_ladder", result)


if __name__ == "__main__":
    main()
