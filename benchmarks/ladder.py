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

import argparse
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

from arms import (  # noqa: E402
    Seed,
    best,
    by_rate,
    less,
    metrics,
    options,
    read,
    sampled,
    updates,
    validation,
)
from improvement import SAVED, STUDENT, Greedy, flags  # noqa: E402

from alphazero_llm_trainer.eval.metrics import repeats  # noqa: E402
from alphazero_llm_trainer.problems.load import tasks_of  # noqa: E402
from benchmarks import provenance  # noqa: E402

SOLUTIONS, STEPS, BUDGET = 750, 350, 240  # SFT's solutions and updates; tokens of an answer
SFT, PPO, GRPO, PRM, TREES, MCTS = "SFT", "PPO", "GRPO", "GRPO, PRM", "trees", "MCTS"
JUDGES, CHOOSING = ("calculator", "prm", "calculator+prm"), 200  # validation problems choose one


@dataclass(frozen=True, slots=True)
class Rung:
    """What `train` is told, the learning rate that is tuned, and the questions of a round: some 50
    rounds sample an arm's tokens.
    """

    method: str
    settings: str
    rate: float
    questions: int = 0


OUTCOME = "train.reward=hre train.kl_coefficient=0"
ARMS = {
    SFT: Rung("", "", 5e-4),
    PPO: Rung("ppo", f"{OUTCOME} train.rows_per_round=80", 2.5e-4, 16),
    GRPO: Rung("grpo", f"{OUTCOME} teachers.tier=none", 2.5e-4, 14),
    PRM: Rung("grpo", f"{OUTCOME} train.credit=process teachers.tier=none", 2.5e-4, 14),
    "greedy-right": Rung("rft", "search.samples=1 search.temperature=0", 1e-3, 130),
    "step rejection": Rung("", "search.enough_finished=1", 1e-3, 105),
    TREES: Rung("", "", 1e-3, 96),
}


def trained(seed: Seed, name: str, rates: dict[str, float]) -> Path:
    """The folder of an arm's student."""
    rate, args = rates[name], seed.args
    label = f"{name} {rate:g}"
    shared = [
        f"train.optimizer.learning_rate={rate:g}",
        f"train.validation_size={args.validation}",
        f"train.demonstrations={SOLUTIONS}",
    ]
    if name == SFT:
        shared += [f"train.sft_steps={STEPS}", f"train.evaluate_every={STEPS}"]
        shared.append("train.optimizer.weight_decay=0")
        return seed.sft(label, "--model", str(STUDENT), *flags(*shared))
    arm = ARMS[name]
    start = trained(seed, SFT, rates)
    shared += [*arm.settings.split(), f"train.questions_per_round={arm.questions}"]
    shared.append(f"train.save_every={SAVED * arm.questions}")
    if name == PRM:
        shared.append(f"train.prm={prm(seed, rates)}")
    run = seed.folder(label) / "run-001"
    words = ["train", "--out", str(run.parent), "--model", str(start), "--eval-size", "0"]
    words += [*([f"--use-{arm.method}"] if arm.method else []), "--tokens", str(args.tokens)]
    begun = (run / "run.json").is_file()
    if begun:
        words = ["train", "--out", str(run.parent), "--resume", str(run)]
    else:
        words += flags(*shared)
    seed.stage(label, words, run / "report.html", configured=not begun)
    return run / "student"


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
        student = trained(seed, name, rates | {name: rate})
        if name == SFT:
            accuracy: float = read(student / "manifest.json")["validation_accuracy"]
            return accuracy
        return validation(student.parent)

    return by_rate(reached, [ARMS[name].rate * factor for factor in seed.args.factors])


def spent(student: Path) -> dict[str, int]:
    """Sampled tokens, questions and updates of an arm's training."""
    if student.name != "student":
        return {"tokens": 0, "questions": 0, "updates": read(student / "manifest.json")["steps"]}
    run = student.parent
    questions = sum(line.get("questions", 0) for line in metrics(run))
    return {"tokens": sampled(run), "questions": questions, "updates": updates(run)}


def before(name: str) -> str:
    """The rung that a rung goes on from."""
    if name.endswith(MCTS):
        return name.removesuffix(f", {MCTS}")
    return "base" if name == SFT else SFT


def table(seeds: Sequence[Seed], rates: dict[str, float], greedy: Greedy) -> dict[str, Any]:
    """Each rung over problems and seeds, and its gain over the one that it goes on from."""
    args = seeds[0].args
    test = tasks_of(seeds[0].loaded(), "test", args.num, args.first)
    same = repeats(test)
    right = {"base": [list(map(float, greedy("base", STUDENT, test)))]}
    for name in ARMS:
        students = [trained(seed, name, rates) for seed in seeds]
        keys = [f"{name} {rates[name]:g} {seed.seed}" for seed in seeds]
        answers = [greedy(key, one, test) for key, one in zip(keys, students, strict=True)]
        right[name] = [list(map(float, row)) for row in answers]
    facts: dict[str, dict[str, Any]] = {name: {} for name in right}
    for name in ARMS:
        costs = [spent(trained(seed, name, rates)) for seed in seeds]
        facts[name] = {key: round(fmean(cost[key] for cost in costs)) for key in costs[0]}
        facts[name]["rate"] = rates[name]
    by_judge = {one: answered(seeds[0], SFT, rates, one, "validation") for one in JUDGES}
    accuracy = {one: row["accuracy"][0] for one, row in by_judge.items()}
    judge = max(JUDGES, key=lambda one: accuracy[one])
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
        row = {"rung": name, **facts[name], "accuracy": less(outcomes, [[0.0] * args.num], same)}
        row["by_seed"] = [fmean(one) for one in outcomes]
        if name != "base":
            row |= {"over": before(name), "gain": less(outcomes, right[before(name)], same)}
        if name not in ("base", TREES) and not name.endswith(MCTS):
            row["trees_less_it"] = less(right[TREES], outcomes, same)
        row["outcomes"] = ["".join(str(int(one)) for one in of_seed) for of_seed in outcomes]
        found.append(row)
        print(f"{name:16} {row['accuracy'][0]:.3f} {row.get('gain', '')}", flush=True)
    cards = [read(prm(seed, rates) / "critic.json") for seed in seeds]
    told = {"pair_accuracy": [card["test"]["pair accuracy"] for card in cards]}
    told["sampled_tokens"] = [card["sampled_tokens"] for card in cards]
    judges = {"judge": judge, "judges_on_validation": accuracy}
    return {"distinct": len(set(same)), "rungs": found, "prm": told, **judges}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options(parser, "ladder", first=54_000, num=1000)
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
    with ThreadPoolExecutor(args.jobs) as pool:
        list(pool.map(lambda seed: [trained(seed, name, rates) for name in ARMS], seeds))
    if args.train_only:
        return
    facts = {"seeds": args.seeds, "first": args.first, "problems": args.num, "budget": BUDGET}
    facts["validation"] = tried
    greedy = Greedy(args.work, args.set)
    provenance.write(args.out, facts | table(seeds, rates, greedy))


if __name__ == "__main__":
    main()
