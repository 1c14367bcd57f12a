"""Under LoRA: the loss over all tokens of a response against the loss over some of them.

    uv run python benchmarks/token_loss.py --seeds 7 8 9

Full-token GRPO under LoRA can fail to beat its base (Lee and Tong 2025, "Token-efficient RL for LLM reasoning",
arXiv 2504.20834), where a loss over some tokens did. Arms: full weights for reference, then LoRA with the loss over all
tokens, over the fifth and the half of highest entropy in each minibatch (Wang et al. 2025, arXiv 2506.01939), and over a
random half drawn once a round. Same student, questions, rounds and seeds; LoRA arms run at each of `--rates`, and the
rate with the best validation accuracy, over the seeds together, counts. Prints a table with paired 95% intervals, writes
JSON. An interrupted benchmark goes on where it was.
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

from alphazero_llm_trainer.eval.metrics import paired_bootstrap  # noqa: E402

LORA = ["train.adapter=lora"]
ARMS = {
    "full weights, all tokens": [],
    "LoRA, all tokens": LORA,
    "LoRA, top-entropy half": [*LORA, "train.grpo.loss_tokens=entropy", "train.grpo.loss_share=0.5"],
    "LoRA, top-entropy fifth": [*LORA, "train.grpo.loss_tokens=entropy", "train.grpo.loss_share=0.2"],
    "LoRA, random half": [*LORA, "train.grpo.loss_tokens=random", "train.grpo.loss_share=0.5"],
}
ALL_TOKENS = "LoRA, all tokens"


def train(arm: str, seed: int, rate: float, args: argparse.Namespace) -> dict[str, Any]:
    """One training run in a process of its own, as a row."""
    directory = args.work / f"{seed} {arm} {rate}".replace(" ", "-").replace(",", "")
    flags = ["--use-grpo", "--seed", str(seed), "--num-examples", str(args.num_examples)]
    flags += ["--eval-size", str(args.eval_size)]
    for setting in [*ARMS[arm], f"train.grpo.learning_rate={rate}"]:
        flags += ["--set", setting]
    folder = directory / "run-001"
    card = json.loads((folder / "run.json").read_text()) if (folder / "run.json").exists() else {}
    if "after" not in card:
        resumed = ["--resume", str(folder)] if card else flags
        command = [sys.executable, "train_vllm.py", *resumed, "--checkpoint-dir", str(directory)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            command,
            cwd=ROOT,
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
        if done.returncode:
            raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
        card = json.loads((folder / "run.json").read_text())
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    measured = [line["validation_accuracy"] for line in lines if "validation_accuracy" in line]
    row = {
        "arm": arm,
        "seed": seed,
        "learning_rate": rate,
        "before": card["before"]["correct"],
        "correct": card["after"]["correct"],
        "validation": max(card["validation_before"], *measured),
        "last_validation": measured[-1],
        "kept": card["kept"],
        "seconds": card["seconds"]["training"],
        "sampled_tokens": card["search_cost"]["sampled_tokens"],
        "command": " ".join(["python train_vllm.py", *flags]),
    }
    accuracy = sum(row["correct"]) / len(row["correct"])
    print(f"seed {seed}, {arm}, rate {rate}: {accuracy:.3f}, {row['seconds']:.0f} s", file=sys.stderr, flush=True)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[7, 8, 9])
    parser.add_argument("--num-examples", type=int, default=2880)
    parser.add_argument("--eval-size", type=int, default=1000)
    parser.add_argument("--rates", type=float, nargs="+", default=[5e-4, 2e-3], help="learning rates of the LoRA arms")
    parser.add_argument("--full-rate", type=float, default=5e-4, help="learning rate of the full-weight arm")
    parser.add_argument("--jobs", type=int, default=2, help="processes side by side, one thread each")
    parser.add_argument("--work", type=Path, default=ROOT / "checkpoints" / "token_loss")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "token_loss.json")
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    wanted = [
        (arm, seed, rate)
        for seed in args.seeds
        for arm, settings in ARMS.items()
        for rate in (args.rates if settings else [args.full_rate])
    ]
    with ThreadPoolExecutor(args.jobs) as pool:
        rows = list(pool.map(lambda job: train(*job, args), wanted))
    report(rows, args)


def report(rows: list[dict[str, Any]], args: argparse.Namespace) -> None:
    """The table and JSON. Intervals are over problems, each with its mean over seeds."""
    chosen: dict[str, list[dict[str, Any]]] = {}
    for arm in ARMS:
        rates = {row["learning_rate"] for row in rows if row["arm"] == arm}
        by_rate = [[row for row in rows if row["arm"] == arm and row["learning_rate"] == rate] for rate in rates]
        chosen[arm] = max(by_rate, key=lambda some: sum(row["validation"] for row in some))
    reference = by_problem(chosen[ALL_TOKENS])
    print(
        f"{'loss over':26} {'rate':>7} {'before':>6} {'after':>6} {'gain over before':>24} {'over LoRA, all tokens':>24}"
    )
    summary = []
    for arm, some in chosen.items():
        after, before = by_problem(some), by_problem(some, "before")
        gain, versus = paired_bootstrap(after, before), paired_bootstrap(after, reference)
        rate = some[0]["learning_rate"]
        print(
            f"{arm:26} {rate:7.0e} {sum(before) / len(before):6.3f} {sum(after) / len(after):6.3f} {gain!s:>24}"
            f" {'' if arm == ALL_TOKENS else str(versus):>24}"
        )
        summary.append(
            {
                "arm": arm,
                "learning_rate": rate,
                "before": sum(before) / len(before),
                "after": sum(after) / len(after),
                "gain": vars_of(gain),
                "over_all_tokens": None if arm == ALL_TOKENS else vars_of(versus),
                "seconds": sum(row["seconds"] for row in some) / len(some),
            }
        )
    for row in rows:
        for name in ("correct", "before"):
            row[name] = "".join("1" if x else "0" for x in row[name])
    command = "python benchmarks/token_loss.py " + " ".join(sys.argv[1:])
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps({"command": command.strip(), "summary": summary, "runs": rows}, indent=1) + "\n")


def by_problem(rows: list[dict[str, Any]], key: str = "correct") -> list[float]:
    """Each problem's mean result over the seeds."""
    return [sum(one) / len(one) for one in zip(*(row[key] for row in rows), strict=True)]


def vars_of(interval: Any) -> dict[str, float]:
    return {"value": interval.value, "low": interval.low, "high": interval.high}


if __name__ == "__main__":
    main()
