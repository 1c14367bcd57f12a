"""On-policy distillation against RFT, at equal sampled tokens and updates: what either gives back to
a student whose weights were rounded.

    uv run python benchmarks/distill.py

Both arms go on from the shipped student with its matrices rounded to three bits, in as many rounds of
as many questions and samples, and make as many updates a round: `distill` learns the shipped
student's probabilities of what was drawn, `RFT` the draws that are right. A run ends after `--tokens`
sampled tokens; what the teacher scores is reported, and not held against it. Each has its own
learning rate, the best on validation problems with the first seed. Primary (PROTOCOL.md): greedy
accuracy of `distill` less `RFT`.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

from arms import Arm, Seed, best, by_rate, less, metrics, options, read, sampled, updates  # noqa: E402
from arms import validation as validated  # noqa: E402
from improvement import flags  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402

from alphazero_llm_trainer.config.load import load_config  # noqa: E402
from alphazero_llm_trainer.eval.greedy import answer  # noqa: E402
from alphazero_llm_trainer.eval.metrics import repeats  # noqa: E402
from alphazero_llm_trainer.policy.folders import PACKAGED  # noqa: E402
from alphazero_llm_trainer.policy.student import load_student  # noqa: E402
from alphazero_llm_trainer.problems.load import tasks_of  # noqa: E402
from benchmarks import provenance  # noqa: E402

DISTILL, RFT = "distill", "RFT"
ARMS = {
    DISTILL: Arm("distill", "train.teacher=embedded", 5e-4),
    RFT: Arm("rft", "train.updates_per_round=5 train.optimizer.epochs=1000", 5e-4),
}
ROUND = "train.questions_per_round=32 train.keep_best=false train.preflight=0"
MOST = 100  # rounds at most


BITS = 3  # of a number of the start's matrices, each row with a scale of its own


def rounded(folder: Path) -> Path:
    """The shipped student with its matrices rounded."""
    if not folder.is_dir():
        shutil.copytree(PACKAGED, folder)
        weights = load_file(PACKAGED / "model.safetensors")
        for name, weight in weights.items():
            if weight.dim() == 2:
                step = weight.abs().amax(1, keepdim=True) / (2 ** (BITS - 1) - 1)
                weights[name] = (weight / step).round() * step
        save_file(weights, folder / "model.safetensors", {"format": "pt"})
    return folder


def trained(seed: Seed, name: str, rate: float) -> Path:
    """The folder of an arm's run at one learning rate."""
    args, label = seed.args, f"{name} {rate:g}"
    run = seed.folder(label) / "run-001"
    words = ["train", "--config", ARMS[name].method, "--out", str(run.parent)]
    words += [
        "--model",
        str(rounded(args.work / "start")),
        "--source",
        "embedded",
        "--tokens",
        str(args.tokens),
    ]
    words += ["-n", str(32 * MOST), "--eval-size", "0", "--save-every", str(32 * MOST)]
    rated = f"train.optimizer.learning_rate={rate:g}"
    sized = f"train.validation_size={args.validation}"
    words += flags(*ARMS[name].settings.split(), *ROUND.split(), rated, sized)
    seed.stage(label, words, run / "report.html")
    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options(parser, "distill", 52_000, 500)
    parser.add_argument("--tokens", type=int, default=40_000, help="sampled tokens of a run")
    parser.add_argument("--validation", type=int, default=300, help="problems that choose rates")
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    seeds = [Seed(seed, args) for seed in args.seeds]
    tried = {
        name: by_rate(
            lambda rate, name=name: validated(trained(seeds[0], name, rate)),
            [arm.rate * factor for factor in args.factors],
        )
        for name, arm in ARMS.items()
    }
    runs = {
        name: [trained(seed, name, best(known)) for seed in seeds] for name, known in tried.items()
    }
    if args.train_only:
        return
    config = load_config(overrides=["student=embedded", "problems.source=embedded"])
    tasks = tasks_of(config, "test", args.num, args.first)

    def greedy(folder: Path | None) -> list[float]:
        """Right (1) or wrong (0) by test problem; None: of the shipped student."""
        student = load_student(config, folder, inference=True)
        made = answer(student, tasks, max_tokens=config.search.max_tokens)
        return [float(right) for [right] in made.correct]

    right = {name: [greedy(run / "student") for run in some] for name, some in runs.items()}
    same, zero = repeats(tasks), [[0.0] * args.num]
    summary: list[dict[str, Any]] = []
    for name, some in runs.items():
        lines = [[line for line in metrics(run) if "cost" in line] for run in some]
        summary.append(
            {
                "arm": name,
                "rate": best(tried[name]),
                "tried": tried[name],
                "greedy": less(right[name], zero, same),
                "sampled_tokens": [sampled(run) for run in some],
                "scored_tokens": [
                    read(run / "run.json")["search_cost"]["scored_tokens"] for run in some
                ],
                "updates": [updates(run) for run in some],
                "first_kl": [each[0]["teacher_kl"] for each in lines],
                "last_kl": [each[-1]["teacher_kl"] for each in lines],
                "share": [each[-1]["teacher_share"] for each in lines],
            }
        )
    provenance.write(
        args.out,
        {
            "seeds": args.seeds, "first": args.first, "problems": args.num, "tokens": args.tokens,
            "start": less([greedy(args.work / "start")], zero, same),
            "teacher": less([greedy(None)], zero, same), "summary": summary,
            "primary": less(right[DISTILL], right[RFT], same), "right": right,
        },
    )  # fmt: skip


if __name__ == "__main__":
    main()
