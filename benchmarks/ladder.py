"""The ladder: Base, SFT, then from that SFT student RFT, PPO, GRPO and weighted SFT with process credit, and MCTS on top.

    uv run python benchmarks/ladder.py --work checkpoints/ladder --seeds 7 8 9

`arms.py` says how stages are run and tuned. Weighted SFT and its PRM are trained first: what the two sampled is what each
other rung samples, and its updates are theirs. Weighted SFT is GRPO without a ratio and without rows below their group's
average, which makes it supervised training on the better responses. Beside the rungs stands replay alone: as many updates on
the demonstrations that every rung replays, without a new question.

Primary, written down before the test problems were read (PROTOCOL.md): GRPO less RFT. All else are observations with intervals.
MCTS is held against repair (step rejection) and whole samples until one passes (adaptive best-of-n) with the same verifier and
tokens.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

from arms import REPLAY, Arm, Seed, a_response, climb, figures, groups, less, options, outcomes, read, sampled, updates  # noqa: E402

from benchmarks import provenance  # noqa: E402

METHODS, VERIFIER = ("mcts", "step-rejection", "adaptive-best-of-n"), "calculator+prm"
LAST = "weighted SFT"  # the rung that answers by search too
OF_ROUND = 96
ROUNDS = f"train.questions_per_round={OF_ROUND} train.save_every=960 train.requeue_limit=0"
RUNGS = {
    "RFT": Arm("rft", f"{ROUNDS} search.samples=8", 5e-4, 8),
    "PPO": Arm("ppo", f"{ROUNDS} search.samples=8", 2e-4, 8, 8 * OF_ROUND),
    "GRPO": Arm(
        "grpo",
        f"{ROUNDS} search.samples=8",
        5e-4,
        8,
        4 * OF_ROUND,  # half of a round's samples: the groups whose rewards differ
    ),
}
# One round over samples of the SFT student, then many passes.
WEIGHTED = Arm(
    "grpo",
    "search.samples=4 train.questions_per_round=4800 train.save_every=4800 train.rows_per_round=2900"
    " train.importance=false train.negative_weight=0 train.credit=process train.process_weight=0.25"
    " train.optimizer.learning_rate=1e-3 train.optimizer.warmup=1",
)
CRITIC = (
    "train.critic.questions=500",
    "search.simulations=3",
    "train.critic.wrong_steps=2",
    "train.optimizer.epochs=1",
)
CRITIC += ("train.evaluate_every=100",)
PRIMARY = ("GRPO", "RFT")


def stages(seed: Seed, factors: dict[str, float]) -> None:
    """All of one seed."""
    args = seed.args
    base, sft = seed.sft("base", "--set", f"train.sft_steps={args.base_steps}"), seed.sft("sft")
    start, prm = ("--model", str(sft)), seed.folder("prm")
    settings = [word for one in CRITIC for word in ("--set", one)]
    seed.stage("prm", ["prm", *start, "--out", str(prm), *settings], prm / "critic.json")
    last = seed.train(LAST, WEIGHTED, start, args.questions, [f"train.prm={prm}"])
    tokens = sampled(last) + read(prm / "critic.json")["sampled_tokens"]
    spent = {"tokens": tokens, "updates": updates(last), "a_response": a_response(last)}
    students = {"base": base, "sft": sft, **seed.tuned(RUNGS, start, spent, factors)}
    if args.train_only:
        return
    for name, student in students.items():
        seed.evaluate(name, student, ["greedy"])
    seed.evaluate(LAST, last / "student", ["greedy", *METHODS], "--verifier", VERIFIER, "--prm", str(prm))


def table(seeds: Sequence[Seed]) -> dict[str, Any]:
    """The rungs and the methods with intervals over problems and seeds, and the comparisons of PROTOCOL.md."""
    same, trained = groups(seeds[0]), (*RUNGS, LAST, REPLAY)
    rungs = [figures(seeds, name, same) for name in ("base", "sft", *trained)]
    methods = [figures(seeds, LAST, same, method) | {"name": method} for method in METHODS]
    mcts = outcomes(seeds, LAST, METHODS[0])
    for row in methods:
        row |= {"verifier": VERIFIER, "budget": seeds[0].args.budget}
        if row["name"] != METHODS[0]:
            row["mcts_gain"] = less(mcts, outcomes(seeds, LAST, row["name"]), same)
    gains = []
    pairs = [PRIMARY, *((name, "sft") for name in trained), *((name, REPLAY) for name in (*RUNGS, LAST)), (LAST, "RFT")]
    for one, other in pairs:
        gain = less(outcomes(seeds, one), outcomes(seeds, other), same)
        gains.append({"rung": one, "less": other, "gain": gain, "primary": (one, other) == PRIMARY})
        print(f"{one} less {other}: {gain[0]:+.3f} [{gain[1]:+.3f}, {gain[2]:+.3f}]", flush=True)
    return {"distinct": len(set(same)), "rungs": rungs, "methods": methods, "gains": gains}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    steps = 'updates of the undertrained student that "Base" is'
    parser.add_argument("--base-steps", type=int, default=600, help=steps)
    parser.add_argument("--questions", type=int, default=4800, help="of weighted SFT; its tokens are everyone's")
    options(parser, "ladder", first=30_000, num=500)
    args = parser.parse_args()
    args.work, args.of_round = args.work.resolve(), OF_ROUND
    seeds = [Seed(seed, args, ROOT / "benchmarks" / "ladder.yaml") for seed in args.seeds]
    factors = climb(seeds, stages, args.jobs)
    if not args.train_only:
        facts = {"seeds": args.seeds, "first": args.first, "problems": args.num, "budget": args.budget}
        provenance.write(args.out, "ladder", facts | {"rate_factors": factors} | table(seeds))


if __name__ == "__main__":
    main()
