"""What is the best use of sampled tokens in training? Arms side by side from the shipped student, over seeds.

    uv run python benchmarks/improvement.py --work checkpoints/improvement

`arms.py` says how stages are run and tuned. The arm `search` is what `train` does where no method is named, on more questions:
right responses of trees under the source's rule, each tree ends at the first one, rejection-sampling fine-tuning. What it
samples and its updates are what the others get, on new questions with their final answers only:

- rule, one chain: the same rule and training, one chain a question: nothing is forked;
- rft, 8 samples: right ones among plain samples;
- grpo, trees; grpo, samples; ppo, samples;
- replay alone: the demonstrations that all arms replay, and no new question.

Primary, written down before the test problems were read (PROTOCOL.md): greedy accuracy of `search` less that of `rule, one
chain`, over problems and seeds. All else are observations with intervals.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

from arms import REPLAY, Arm, Seed, a_response, climb, figures, groups, less, options, outcomes, sampled, updates  # noqa: E402

from benchmarks import provenance  # noqa: E402

STUDENT = ROOT / "alphazero_llm_trainer" / "assets" / "student"  # by its folder: `sft --model embedded` begins anew
BASE, PRIMARY = "search", "rule, one chain"
OF_ROUND = 96
ROUNDS = f"train.questions_per_round={OF_ROUND} train.save_every=960 rewards.pre_weight=0"
CHAINS = f"{ROUNDS} train.groups=chain search.samples=8 train.requeue_limit=0"
RULE = "train.groups=verified search.enough_correct=1 search.simulations=1 train.requeue_limit=1"
ARMS = {
    "rft, 8 samples": Arm("rft", CHAINS, 5e-4, 8),
    "grpo, trees": Arm("grpo", ROUNDS, 5e-4, 9, 4 * OF_ROUND),
    "grpo, samples": Arm("grpo", CHAINS, 5e-4, 8, 4 * OF_ROUND),
    "ppo, samples": Arm("ppo", f"{ROUNDS} search.samples=8", 3e-4, 8, 8 * OF_ROUND),
    PRIMARY: Arm("rft", f"{ROUNDS} {RULE}", 5e-4, 1.3),
}


def stages(seed: Seed, factors: dict[str, float]) -> None:
    """All of one seed."""
    args, start = seed.args, ("--model", str(STUDENT))
    first = seed.train(BASE, Arm(""), start, args.questions, ROUNDS.split()[:2])
    spent = {"tokens": sampled(first), "updates": updates(first), "a_response": a_response(first)}
    students = {"start": STUDENT, BASE: first / "student", **seed.tuned(ARMS, start, spent, factors)}
    if not args.train_only:
        for name, student in students.items():
            seed.evaluate(name, student, ["greedy"])


def table(seeds: Sequence[Seed]) -> dict[str, Any]:
    """Each arm over problems and seeds, its gain, and `search` less it."""
    same = groups(seeds[0])
    start, summary = figures(seeds, "start", same), []
    for arm in (BASE, *ARMS, REPLAY):
        row = figures(seeds, arm, same)
        found = {"arm": arm, "tokens": row["training_tokens"], "updates": row["updates"]}
        found |= {"greedy": row["accuracy"], "greedy_by_seed": row["by_seed"]}
        found["greedy_gain"] = less(outcomes(seeds, arm), outcomes(seeds, "start"), same)
        if arm != BASE:
            found["search_minus_greedy"] = less(outcomes(seeds, BASE), outcomes(seeds, arm), same)
        if arm == PRIMARY:
            found["primary"] = found["search_minus_greedy"]
        summary.append(found | {"outcomes": row["outcomes"]})
        print(f"{arm:17} {row['accuracy'][0]:.3f} {found.get('search_minus_greedy', '')}", flush=True)
    return {"distinct": len(set(same)), "start": {"greedy": start["accuracy"]}, "summary": summary}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--questions", type=int, default=15_840, help="of `search`; its tokens are everyone's")
    options(parser, "improvement", first=30_000, num=1000)
    args = parser.parse_args()
    args.work, args.of_round = args.work.resolve(), OF_ROUND
    args.set = ["student=embedded", *args.set]
    seeds = [Seed(seed, args) for seed in args.seeds]
    factors = climb(seeds, stages, args.jobs)
    if not args.train_only:
        facts = {"seeds": args.seeds, "first": args.first, "problems": args.num, "questions": args.questions}
        provenance.write(args.out, "improvement", facts | {"rate_factors": factors} | table(seeds))


if __name__ == "__main__":
    main()
