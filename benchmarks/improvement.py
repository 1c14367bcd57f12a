"""What is the best use of sampled tokens in training? Arms side by side from the shipped student, over seeds.

    uv run python benchmarks/improvement.py --work checkpoints/improvement

Every arm samples about as many tokens as `train`'s GRPO on trees did by default (1.15 M), on new questions with their final
answers only:

- search: right responses of trees under the source's rule, each tree ends at the first one, rejection-sampling fine-tuning;
- rule, one chain: the same rule and training, one chain a question: nothing is forked;
- rft, 8 samples: right ones among plain samples;
- grpo, trees and grpo, samples.

The primary comparisons, written down before the test problems were read: greedy accuracy of `search` less that of each
other arm, over problems and seeds, held to 95% together (Bonferroni). All else is secondary.

A finished run is kept, a stopped one goes on. Writes JSON with the curves over tokens.
"""

from __future__ import annotations

import argparse
import json
import math
import shlex
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

from from_rules import compared, curve, environment, program, triple, written  # noqa: E402

from alphazero_llm_trainer import __version__  # noqa: E402
from alphazero_llm_trainer.config.load import load_config  # noqa: E402
from alphazero_llm_trainer.eval.greedy import answer  # noqa: E402
from alphazero_llm_trainer.eval.metrics import repeats, wilson  # noqa: E402
from alphazero_llm_trainer.policy.student import load_student  # noqa: E402
from alphazero_llm_trainer.problems.load import load_tasks  # noqa: E402

RESULTS = ROOT / "benchmarks" / "results" / "improvement.json"
KINDS = ("greedy", "pass_at_8")
HRE = "--set rewards.pre_weight=0"
RFT = f"--use-rft {HRE}"
CHAINS = "--set train.groups=chain --set train.chain_samples={} --set train.requeue_limit=0"
RULE = "--set train.groups=verified --set search.data.enough_correct=1"
# Name -> flags, questions, and the questions of a round; so many that an arm samples about 1.1 M tokens, and each but GRPO's
# about 7,000 a round, on which it makes as many updates. `search` is what `train` does where no method is named, on more
# questions.
ARMS: dict[str, tuple[str, int, int]] = {
    "search": ("", 15840, 96),
    "rft, 8 samples": (f"{RFT} {CHAINS.format(8)}", 6400, 40),
    "grpo, trees": (f"--use-grpo {HRE} --set train.groups=tree", 5760, 96),
    "grpo, samples": (f"--use-grpo {HRE} {CHAINS.format(8)}", 6400, 96),
    "rule, one chain": (f"{RFT} {RULE} --set train.iterations=1 --set train.samples=1", 38400, 320),
}
CHECKPOINTS = 12  # at most


def slug(arm: str, seed: int) -> str:
    return f"{arm} {seed}".replace(", ", "-").replace(": ", "-").replace(" ", "-")


def train_arm(arm: str, seed: int, work: Path) -> dict[str, Any]:
    """One training run in a process of its own, as a row."""
    flags, questions, of_round = ARMS[arm]
    every = max(960, of_round * math.ceil(questions / of_round / CHECKPOINTS))
    command = ["train", *flags.split(), "-n", str(questions), "--set", f"train.questions_per_round={of_round}"]
    command += ["--save-every", str(every), "--seed", str(seed), "--student", "embedded", "--eval-size", "0"]
    run = work / slug(arm, seed) / "run-001"
    if not (run / "run.json").exists():
        program([*command, "--checkpoint-dir", str(run.parent)])
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
        "training_seconds": card["seconds"]["training"],
        "curve": curve(run),
    }


def measure(folder: Path | None, first: int, num: int) -> dict[str, str]:
    """Right or wrong on each test problem, greedy and as one of eight samples. No folder: the shipped student."""
    config = load_config(overrides=["student=embedded", "seed=7"])
    tasks = load_tasks("embedded", "test", num, start=first)
    student = load_student(config, path=folder)
    limit = config.search.max_tokens
    sampled = answer(student, tasks, max_tokens=limit, n=8, temperature=1.0, seed=7).correct
    return {
        "greedy": written(answer(student, tasks, max_tokens=limit).first),
        "pass_at_8": written([any(row) for row in sampled]),
    }


def measured(folder: Path | str, kept: Path, args: argparse.Namespace) -> dict[str, Any]:
    """`measure` in a process of its own, kept in a file."""
    if not kept.exists():
        command = [sys.executable, __file__, "--measure", str(folder), "--out", str(kept), "--work", str(args.work)]
        command += ["--first", str(args.first), "--num", str(args.num)]
        subprocess.run(command, check=True, env=environment(), stdout=subprocess.DEVNULL)
    return json.loads(kept.read_text())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[7, 8, 9])
    parser.add_argument("--arms", nargs="+", default=[*ARMS], choices=[*ARMS], metavar="ARM")
    parser.add_argument("--first", type=int, default=1000, help="number of the first test problem")
    parser.add_argument("--num", type=int, default=1000, help="test problems")
    parser.add_argument("--jobs", type=int, default=2, help="processes side by side, one thread each")
    parser.add_argument("--work", type=Path, default=ROOT / "checkpoints" / "improvement")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--train-only", action="store_true", help="train, and leave the test problems unread")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    args = parser.parse_args()
    torch.set_num_threads(1)
    args.work = args.work.resolve()
    args.work.mkdir(parents=True, exist_ok=True)
    if args.measure:
        folder = None if args.measure == "shipped" else Path(args.measure)
        args.out.write_text(json.dumps(measure(folder, args.first, args.num)))
        return

    def told(row: dict[str, Any]) -> dict[str, Any]:
        line = (
            f"seed {row['seed']}, {row['arm']:17} {row['training_seconds']:5.0f} s, {row['sampled_tokens']:9,} tokens"
        )
        print(line, flush=True)
        return row

    def tested(row: dict[str, Any]) -> dict[str, Any]:
        name = slug(row["arm"], row["seed"])
        folder = args.work / name / "run-001" / "student"
        return row | measured(folder, args.work / f"{name}-{args.first}.json", args)

    with ThreadPoolExecutor(args.jobs) as pool:
        wanted = [(arm, seed) for seed in args.seeds for arm in args.arms]
        rows = list(pool.map(lambda job: told(train_arm(*job, args.work)), wanted))
        if args.train_only:
            return
        rows = list(pool.map(tested, rows))
    report(rows, args)


def report(rows: list[dict[str, Any]], args: argparse.Namespace) -> None:
    """The table, and everything as JSON."""
    before = measured("shipped", args.work / f"shipped-{args.first}.json", args)
    groups = repeats(load_tasks("embedded", "test", args.num, start=args.first))
    summary = compared(rows, args.arms, KINDS, groups)
    for row in summary:
        print(f"{row['arm']:17} {row['greedy'][0]:.3f} {row['pass_at_8'][0]:.3f} {row.get('primary', '')}", flush=True)
    result = {
        "command": f"uv run python benchmarks/improvement.py --seeds {' '.join(map(str, args.seeds))}"
        f" --arms {shlex.join(args.arms)} --first {args.first} --num {args.num} --jobs {args.jobs}",
        "version": __version__,
        "start": {kind: triple(wilson(before[kind].count("1"), args.num)) for kind in KINDS},
        "seeds": args.seeds,
        "first": args.first,
        "problems": args.num,
        "distinct": len(set(groups)),
        "validation_problems": load_config().train.validation_size,
        "summary": summary,
        "runs": rows,
    }
    args.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
