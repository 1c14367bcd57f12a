"""llm-rl-agent's table, on the embedded student over seeds: base, SFT, PPO, GRPO with a PRM, and
MCTS at answering; beside them GRPO without the PRM, the default, expert iteration on trees, and what
tells its parts: step rejection (a tree ends at its first finished response) and greedy answers.

    uv run python benchmarks/ladder.py --work checkpoints/ladder

The base is the shipped student. SFT goes on from it on worked solutions; all other arms go on from
SFT's student on final answers alone, on 150,000 sampled tokens, or the questions that `train` asks
where those end first: the page has each arm's tokens. The PRM learns from trees of SFT's
student. Each arm has its own learning rate, the best on validation problems with the first seed.
Every stage is a command of the package, and one that has left its last file is not run again.

Primary (PROTOCOL.md): greedy accuracy of GRPO with a PRM less SFT. Second: trees less step
rejection.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import provenance
from arms import (
    Arm,
    Greedy,
    Seed,
    accuracy,
    best,
    digits,
    flags,
    less,
    make_options,
    on_validation,
    rate_and_size,
    read,
    side_by_side,
    spent_by,
)

from alphazero_llm_trainer.eval.metrics import repeats
from alphazero_llm_trainer.policy.folders import PACKAGED
from alphazero_llm_trainer.problems.load import tasks_of

SOLUTIONS, STEPS, BUDGET = 750, 350, 240  # SFT's solutions and updates; tokens of an answer
SFT, PPO, GRPO, PRM, TREES, MCTS = "SFT", "PPO", "GRPO", "GRPO, PRM", "trees", "MCTS"
JUDGES, CHOOSING = ("calculator", "prm", "calculator+prm"), 200  # validation problems choose one


OUTCOME = "train.reward=hre train.kl_coefficient=0"
SAVED = 5  # rounds between two measurements on validation problems
# `size`: the questions of a round; some 50 rounds sample an arm's tokens.
ARMS = {
    SFT: Arm("", "", 5e-4),
    PPO: Arm("ppo", f"{OUTCOME} train.rows_per_round=80", 2.5e-4, 16),
    GRPO: Arm("grpo", f"{OUTCOME} teachers.tier=none", 2.5e-4, 14),
    PRM: Arm("grpo", f"{OUTCOME} train.credit=process teachers.tier=none", 2.5e-4, 14),
    "greedy-right": Arm("rft", "search.samples=1 search.temperature=0", 1e-3, 130),
    "step rejection": Arm("", "search.enough_finished=1", 1e-3, 105),
    TREES: Arm("", "", 1e-3, 96),
}


def trained(seed: Seed, name: str, rates: dict[str, float]) -> Path:
    """The folder of an arm's student."""
    rate, args, arm = rates[name], seed.args, ARMS[name]
    label, shown = f"{name} {rate:g}", f"train.demonstrations={SOLUTIONS}"
    if name == SFT:
        settings = [*rate_and_size(rate, args.validation), shown, "train.optimizer.weight_decay=0"]
        settings += [f"train.sft_steps={STEPS}", f"train.evaluate_every={STEPS}"]
        return seed.sft(label, "--model", str(PACKAGED), *flags(*settings))
    settings = [shown, *arm.at(rate, args.validation, int(arm.size), SAVED)]
    if name == PRM:
        settings.append(f"train.prm={prm(seed, rates)}")
    words = [f"--use-{arm.method}"] * bool(arm.method)
    words += ["--tokens", str(args.tokens), *flags(*settings)]
    return seed.train(label, trained(seed, SFT, rates), *words) / "student"


def prm(seed: Seed, rates: dict[str, float]) -> Path:
    """The PRM of a seed's SFT student."""
    out = seed.folder("prm")
    words = ["prm", "--model", str(trained(seed, SFT, rates)), "-n", str(seed.args.questions)]
    words += ["--out", str(out), *flags(f"train.demonstrations={SOLUTIONS}")]
    seed.stage("prm", words, out / "report.html")
    return out


def answered(
    seed: Seed, name: str, rates: dict[str, float], judge: str, split: str = "test"
) -> dict[str, Any]:
    """MCTS under a judge by an arm's student, on the test problems or on those that choose it."""
    args, label = seed.args, f"{name}, {MCTS}, {judge}, {split}"
    out, first, num = seed.folder(label), args.first, args.num
    if split != "test":
        first, num = 0, min(CHOOSING, args.validation)
    words = ["eval", "--model", str(trained(seed, name, rates)), "--out", str(out)]
    words += ["--prm", str(prm(seed, rates))] * ("prm" in judge)
    words += ["--verifier", judge, "--methods", "mcts", "--budget-tokens", str(BUDGET)]
    words += ["--split", split, "-n", str(num), "--start", str(first)]
    words += ["--resume"] * (out / "cells").is_dir()
    seed.stage(label, words, out / "results.json")
    row: dict[str, Any] = read(out / "results.json")["rows"][0]
    return row


def tuned(seed: Seed, name: str, rates: dict[str, float]) -> dict[float, float]:
    """What each of an arm's rates reached on validation problems."""

    def reached(rate: float) -> float:
        return on_validation(trained(seed, name, rates | {name: rate}))

    return seed.tune(ARMS[name], reached)


def before(name: str) -> str:
    """The rung that a rung goes on from."""
    if name.endswith(MCTS):
        return name.removesuffix(f", {MCTS}")
    return "base" if name == SFT else SFT


def table(seeds: Sequence[Seed], rates: dict[str, float], greedy: Greedy) -> dict[str, Any]:
    """Each rung over problems and seeds, and its gain over the one that it goes on from."""
    args = seeds[0].args
    test = tasks_of(seeds[0].loaded(), "test", args.num, args.first)
    facts: dict[str, dict[str, Any]] = {"base": {}}
    same = repeats(test)
    right = {"base": [greedy("base", PACKAGED, test)]}
    for name in ARMS:
        students = [trained(seed, name, rates) for seed in seeds]
        right[name] = greedy.of_seeds(f"{name} {rates[name]:g}", seeds, students, test)
        costs = [spent_by(student) for student in students]
        facts[name] = {key: round(fmean(cost[key] for cost in costs)) for key in costs[0]}
        facts[name]["rate"] = rates[name]
    by_judge = {one: answered(seeds[0], SFT, rates, one, "validation") for one in JUDGES}
    reached = {one: row["accuracy"][0] for one, row in by_judge.items()}
    judge = max(JUDGES, key=lambda one: reached[one])
    for name in (SFT, PRM):
        rows = [answered(seed, name, rates, judge) for seed in seeds]
        rung = f"{name}, {MCTS}"
        right[rung] = [[float(digit) for digit in row["outcomes"]] for row in rows]
        means = {
            key: fmean(row[key] for row in rows) for key in ("sampled_tokens", "scored_tokens")
        }
        facts[rung] = means
    found = []
    for name, outcomes in right.items():
        row = {"rung": name, **facts[name], "accuracy": accuracy(outcomes, same)}
        row["by_seed"] = [fmean(one) for one in outcomes]
        if name != "base":
            row |= {"over": before(name), "gain": less(outcomes, right[before(name)], same)}
        if name not in ("base", TREES) and not name.endswith(MCTS):
            row["trees_less_it"] = less(right[TREES], outcomes, same)
        row["outcomes"] = digits(outcomes)
        found.append(row)
        print(f"{name:16} {row['accuracy'][0]:.3f} {row.get('gain', '')}", flush=True)
    cards = [read(prm(seed, rates) / "critic.json") for seed in seeds]
    told = {"pair_accuracy": [card["test"]["pair accuracy"] for card in cards]}
    told["sampled_tokens"] = [card["sampled_tokens"] for card in cards]
    judges = {"judge": judge, "judges_on_validation": reached}
    return {"distinct": len(set(same)), "rungs": found, "prm": told, **judges}


def main() -> None:
    parser = make_options(__doc__, "ladder", first=54_000, num=1000)
    parser.add_argument("--validation", type=int, default=500, help="validation problems")
    parser.add_argument("--tokens", type=int, default=150_000, help="that an arm samples")
    parser.add_argument("--questions", type=int, default=500, help="of the PRM's trees")
    args = parser.parse_args()
    args.work, args.set = args.work.resolve(), ["student=embedded", *args.set]
    seeds = [Seed(seed, args) for seed in args.seeds]
    rates: dict[str, float] = {}
    tried = {}
    for name in ARMS:
        tried[name] = tuned(seeds[0], name, rates)
        rates[name] = best(tried[name])
        print(name, rates[name], flush=True)
    side_by_side(args.jobs, lambda seed: [trained(seed, name, rates) for name in ARMS], seeds)
    if args.train_only:
        return
    facts = {"seeds": args.seeds, "first": args.first, "problems": args.num, "budget": BUDGET}
    facts["validation"] = tried
    greedy = Greedy(args.work, args.set)
    provenance.write(args.out, facts | table(seeds, rates, greedy))


if __name__ == "__main__":
    main()
