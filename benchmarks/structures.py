"""Does the loop teach problems whose structure nobody trained on, or only structures that it knows?

    uv run python benchmarks/structures.py

A student is warmed up from scratch on demonstrations of held-in structures alone (`problems.hold_out: structures`), then
`train --use-grpo` teaches it on questions of held-in structures. Before and after, it answers greedily (a) test problems
of held-out structures and (b) test problems of held-in structures, whose worked solutions are new. Intervals are over
distinct worked solutions. The shipped student has seen every structure, so it takes no part.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from alphazero_llm_trainer.config.load import load_config  # noqa: E402
from alphazero_llm_trainer.eval.greedy import answer  # noqa: E402
from alphazero_llm_trainer.eval.metrics import paired_bootstrap, repeats, wilson  # noqa: E402
from alphazero_llm_trainer.policy.student import load_student  # noqa: E402
from alphazero_llm_trainer.problems import embedded  # noqa: E402

SETS = {"held-out structures": "test", "held-in structures, held-out numbers": "train"}  # the structures' split


def run(*arguments: str, result: Path) -> str:
    """One of the package's commands in a process of its own, unless its `result` is there; returns how a user writes it."""
    if result.exists():
        return " ".join(["alphazero-llm-trainer", *arguments])
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    script = str(Path(sys.executable).with_name("alphazero-llm-trainer"))
    subprocess.run([script, *arguments], cwd=ROOT, check=True, env=environment)
    return " ".join(["alphazero-llm-trainer", *arguments])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--num", type=int, default=1000, help="test problems of each set")
    parser.add_argument("--sft-steps", type=int, default=2000, help="updates of the warm-up")
    parser.add_argument("--num-examples", type=int, default=5760, help="training questions")
    parser.add_argument(
        "--work",
        type=Path,
        default=ROOT / "checkpoints" / "structures",
        help="where the runs go; finished ones are kept",
    )
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "structures.json")
    args = parser.parse_args()
    student, common = args.work / "sft", ["--seed", str(args.seed), "--set", "problems.hold_out=structures"]
    commands = [
        run("sft", *common, "--student", "embedded", "--out", str(student), "--eval-size", "100",
            "--set", f"train.sft.steps={args.sft_steps}", result=student / "manifest.json"),
        run("train", *common, "--use-grpo", "--model", str(student), "--num-examples", str(args.num_examples),
            "--out", str(args.work), "--eval-size", "0", result=args.work / "run-001" / "student"),
    ]  # fmt: skip
    trained = args.work / "run-001"
    card = json.loads((trained / "run.json").read_text(encoding="utf-8"))
    config = load_config(overrides=["student=embedded", f"seed={args.seed}"])
    folders = {"after SFT": student, "after GRPO": trained / "student"}
    sets = {name: embedded.load("test", args.num, structures=structures) for name, structures in SETS.items()}
    found: dict[str, dict[str, list[bool]]] = {name: {} for name in sets}
    for stage, folder in folders.items():
        policy = load_student(config, path=folder)
        for name, tasks in sets.items():
            found[name][stage] = answer(policy, tasks, max_tokens=config.search.max_tokens).first
    rows = []
    for name, tasks in sets.items():
        groups = repeats(tasks)
        row: dict[str, Any] = {"problems": name, "num": len(tasks), "distinct_solutions": len(set(groups))}
        row["structures"] = len({embedded.structure_of(task.problem.id) for task in tasks})
        for stage, correct in found[name].items():
            accuracy = wilson(sum(correct), len(correct), len(set(groups)))
            row[stage] = [accuracy.value, accuracy.low, accuracy.high]
        gain = paired_bootstrap(found[name]["after GRPO"], found[name]["after SFT"], groups=groups)
        row["gain"] = [gain.value, gain.low, gain.high]
        rows.append(row)
        print(
            f"{name:38} {row['structures']:3} structures, {row['distinct_solutions']:4} distinct solutions: SFT"
            f" {row['after SFT'][0]:.3f}, GRPO {row['after GRPO'][0]:.3f},"
            f" gain {gain.value:+.3f} [{gain.low:+.3f}, {gain.high:+.3f}]"
        )
    result = {
        "command": " ".join(["uv run python benchmarks/structures.py", *sys.argv[1:]]),
        "seed": args.seed,
        "sft_steps": args.sft_steps,
        "num_examples": args.num_examples,
        "training_seconds": card["seconds"]["training"],
        "sampled_tokens": card["search_cost"]["sampled_tokens"],
        "kept": card["kept"],
        "commands": [command.replace(str(args.work), "WORK") for command in commands],
        "rows": rows,
    }
    args.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
