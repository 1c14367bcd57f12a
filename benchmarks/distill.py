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

import shutil
from pathlib import Path
from typing import Any

import provenance
from arms import (
    Arm,
    Greedy,
    Seed,
    accuracy,
    best,
    flags,
    less,
    make_options,
    on_validation,
    read,
    rounds_of,
    spent_by,
)
from safetensors.torch import load_file, save_file

from alphazero_llm_trainer.eval.metrics import repeats
from alphazero_llm_trainer.policy.folders import PACKAGED
from alphazero_llm_trainer.problems.load import tasks_of

DISTILL, RFT = "distill", "RFT"
ARMS = {
    DISTILL: Arm("distill", "train.teacher=embedded", 5e-4),
    RFT: Arm("rft", "train.updates_per_round=5 train.optimizer.epochs=1000", 5e-4),
}
ROUND = ("train.keep_best=false", "train.preflight=0")
QUESTIONS, MOST = 32, 100  # of a round; rounds at most

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
    """The folder of an arm's student at one learning rate."""
    args, arm = seed.args, ARMS[name]
    words = ["--config", arm.method, "--source", "embedded", "--tokens", str(args.tokens)]
    words += ["-n", str(QUESTIONS * MOST)]
    words += flags(*ROUND, *arm.at(rate, args.validation, QUESTIONS, MOST))
    return seed.train(f"{name} {rate:g}", rounded(args.work / "start"), *words) / "student"


def main() -> None:
    parser = make_options(__doc__, "distill", 52_000, 500)
    parser.add_argument("--tokens", type=int, default=40_000, help="sampled tokens of a run")
    parser.add_argument("--validation", type=int, default=300, help="problems that choose rates")
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    seeds = [Seed(seed, args) for seed in args.seeds]
    tried = {
        name: seeds[0].tune(
            arm, lambda rate, name=name: on_validation(trained(seeds[0], name, rate))
        )
        for name, arm in ARMS.items()
    }
    students = {
        name: [trained(seed, name, best(known)) for seed in seeds] for name, known in tried.items()
    }
    if args.train_only:
        return
    greedy = Greedy(args.work, ["student=embedded", "problems.source=embedded"])
    tasks = tasks_of(greedy.config, "test", args.num, args.first)
    right = {
        name: greedy.of_seeds(f"{name} {best(tried[name]):g}", seeds, some, tasks)
        for name, some in students.items()
    }
    same = repeats(tasks)
    summary: list[dict[str, Any]] = []
    for name, some in students.items():
        lines, costs = [rounds_of(one.parent) for one in some], [spent_by(one) for one in some]
        cards = [read(one.parent / "run.json") for one in some]
        summary.append(
            {
                "arm": name,
                "rate": best(tried[name]),
                "tried": tried[name],
                "greedy": accuracy(right[name], same),
                "sampled_tokens": [cost["tokens"] for cost in costs],
                "scored_tokens": [card["search_cost"]["scored_tokens"] for card in cards],
                "updates": [cost["updates"] for cost in costs],
                "first_kl": [each[0]["teacher_kl"] for each in lines],
                "last_kl": [each[-1]["teacher_kl"] for each in lines],
                "share": [each[-1]["teacher_share"] for each in lines],
            }
        )
    facts = {"seeds": args.seeds, "first": args.first, "problems": args.num, "tokens": args.tokens}
    facts["start"] = accuracy([greedy("start", args.work / "start", tasks)], same)
    facts["teacher"] = accuracy([greedy("teacher", PACKAGED, tasks)], same)
    facts |= {"summary": summary, "primary": less(right[DISTILL], right[RFT], same), "right": right}
    provenance.write(args.out, facts)


if __name__ == "__main__":
    main()
