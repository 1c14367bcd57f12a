"""GRPO as `--use-grpo` has it beside GRPO by correctness and the default, from the shipped student on the same questions.

    uv run python benchmarks/recipes.py --work checkpoints/recipes

Each arm is a shipped recipe as it comes. Greedy accuracy on held-out problems before and after, over problems and seeds.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

from arms import Arm, Seed, figures, groups, less, options, outcomes  # noqa: E402

from benchmarks import provenance  # noqa: E402

STUDENT = ROOT / "alphazero_llm_trainer" / "assets" / "student"
ARMS = {"--use-grpo": "grpo", "--config grpo_correctness": "grpo_correctness", "the default": "expert_iteration"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--questions", type=int, default=1440, help="of each arm")
    options(parser, "recipes", first=30_000, num=1000)
    args = parser.parse_args()
    args.work = args.work.resolve()
    args.set = ["student=embedded", *args.set]
    start, summary = [Seed(seed, args) for seed in args.seeds], []
    for seed in start:
        seed.evaluate("start", STUDENT, ["greedy"])
    same = groups(start[0])
    for arm, recipe in ARMS.items():
        seeds = [Seed(seed, args, Path(recipe)) for seed in args.seeds]
        for seed in seeds:
            run = seed.train(recipe, Arm("", "train.save_every=480"), ("--model", str(STUDENT)), args.questions)
            seed.evaluate(recipe, run / "student", ["greedy"])
        row = figures(seeds, recipe, same)
        gain = less(outcomes(seeds, recipe), outcomes(start, "start"), same)
        summary.append(row | {"arm": arm, "gain": gain})
        print(f"{arm:26} {row['accuracy'][0]:.3f} {gain}", flush=True)
    facts = {"seeds": args.seeds, "first": args.first, "problems": args.num, "questions": args.questions}
    facts |= {"distinct": len(set(same)), "start": figures(start, "start", same)["accuracy"], "summary": summary}
    provenance.write(args.out, "recipes", facts)


if __name__ == "__main__":
    main()
