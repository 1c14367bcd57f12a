"""What a learned value adds, over starts: AlphaZero less the same trees under a constant, and its
search less the best one that reads no value.

    uv run python benchmarks/starts.py --model checkpoints/pancake

`--model` is the start that chooses, on validation problems alone: each arm's learning rate by the
mean of two seeds, its questions a round by its tokens, and the best search without a value. Then
the arms train from starts of their own, one of each of `--seeds`. A stage that is there is not made
again, and `--parts training` ends before the searches. PROTOCOL.md says what is compared.
"""

from __future__ import annotations

import json
from argparse import Namespace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import provenance
from arms import Seed, best, by_rate, less, make_options, side_by_side
from generations import (
    ADAPTIVE,
    ARMS,
    AZ,
    GAMES,
    PACED,
    STEP,
    STEPWISE,
    answers,
    by_generation,
    by_round,
    constant_of,
    questions_of,
    rounds_of,
    spent,
    told,
    trained,
)

CONSTANT, TREE = "constant value", "expert iteration's tree"
RATES, NEAR = (1e-3, 2e-3, 4e-3), 0.02
GUIDED = "best-first"  # under the learnt value, as the recipe searches
# Searches that read no value.
OTHERS = (
    STEPWISE,
    ADAPTIVE,
    "best-first, constant",
    "phs",
    *(constant_of("none", c) for c in (0.1, 0.4)),
)
VALIDATION = ("validation", 3000, 200)


def with_values(args: Namespace, **values: Any) -> Namespace:
    return Namespace(**vars(args) | values)


def choose_arm(args: Namespace, name: str) -> dict[str, Any]:
    """An arm's rate and its questions a round, with all that were tried."""
    seeds = [Seed(seed, with_values(args, work=args.work / "choice")) for seed in (7, 8)]
    questions = dict[float, int]()
    tokens = dict[float, float]()

    def train(rate: float) -> list[Path]:
        work = partial(trained, name=name, rate=rate, questions=questions[rate])
        return side_by_side(args.jobs, work, seeds)

    def reached(rate: float) -> float:
        questions[rate] = args.questions or round(args.tokens / args.rounds / ARMS[name].size)
        for _ in range(PACED):
            runs = train(rate)
            tokens[rate] = fmean(sum(map(spent, rounds_of(run))) for run in runs)
            wanted = round(fmean(questions_of(args, run) for run in runs))
            if args.questions or abs(wanted - questions[rate]) <= NEAR * wanted:
                break
            questions[rate] = wanted
        return fmean(by_round(run)[-1] for run in train(rate))

    rates = by_rate(reached, args.rates)
    tried = [
        {"rate": rate, "questions": questions[rate], "tokens": tokens[rate], "right": right}
        for rate, right in rates.items()
    ]
    rate = best(rates)
    return {"rate": rate, "questions": questions[rate], "tried": tried}


def choose_search(args: Namespace, student: Path) -> dict[str, Any]:
    """The best search that reads no value."""
    seed = Seed(7, with_values(args, work=args.work / "choice", set=args.answering))
    cells = answers(seed, student, VALIDATION, [(way, args.budget, 1.0) for way in OTHERS])
    tried = {way: fmean(cell.right) for way, cell in zip(OTHERS, cells, strict=True)}
    return {"without": max(tried, key=tried.__getitem__), "tried": tried}


def measure(args: Namespace, arms: dict[str, Any], ways: dict[str, Any]) -> dict[str, Any]:
    """The arms' students of each start, greedily, and AlphaZero's under searches."""

    def of_start(number: int) -> tuple[Seed, dict[str, Path]]:
        start = Seed(number, args).sft("start", "--model", "small", "--source", args.source)
        seed = Seed(number, with_values(args, model=start))
        runs = {
            name: trained(seed, name, arm["rate"], arm["questions"]) for name, arm in arms.items()
        }
        return seed, runs

    made = side_by_side(args.jobs, of_start, args.seeds)
    rows, figures = (args.split, args.first, args.num), list[dict[str, Any]]()
    greedy = {}
    for name in ("start", *arms):
        students = [
            seed.args.model if name == "start" else runs[name] / "student" for seed, runs in made
        ]
        asked = zip(made, students, strict=True)
        greedy[name] = [
            answers(seed, student, rows, [("greedy", args.budget, 1.0)])[0]
            for (seed, _), student in asked
        ]
        row = {"arm": name, **told(greedy[name])}
        if name != "start":
            row |= {
                "generations": by_generation([runs[name] for _, runs in made], GAMES[args.source])
            }
        figures.append(row)
        print(f"{name:26} {row['accuracy']} {row['by_seed']}", flush=True)

    def less_of(one: list[Any], other: list[Any]) -> list[float]:
        return less([cell.right for cell in one], [cell.right for cell in other], one[0].groups)

    facts: dict[str, Any] = {
        "alphazero_less": {name: less_of(greedy[AZ], greedy[name]) for name in arms if name != AZ},
        "arms": figures,
    }
    print(facts["alphazero_less"], flush=True)
    if not ways:
        return facts
    names = [GUIDED, ways["without"], f"{GUIDED}, permuted", f"{GUIDED}, exact"]
    asked_of = [(way, args.budget) for way in names]
    asked_of += [(way, budget) for budget in args.beside for way in names[:2]]
    answering, cells = list[dict[str, Any]](), {}

    def ask(way: str, budget: int, pair: tuple[Seed, dict[str, Path]]) -> Any:
        seed, runs = pair
        own = Seed(seed.seed, with_values(seed.args, set=args.answering))
        rows = (args.split, args.first + args.num, args.num)
        return answers(own, runs[AZ] / "student", rows, [(way, budget, 1.0)])[0]

    for way, budget in asked_of:
        cells[way, budget] = side_by_side(args.jobs, partial(ask, way, budget), made)
        row = {"way": way, "budget": budget, **told(cells[way, budget])}
        if way != GUIDED:
            row["learned_less_it"] = less_of(cells[GUIDED, budget], cells[way, budget])
        answering.append(row)
        print(f"{way:26} {budget:5} {row['accuracy']} {row.get('learned_less_it')}", flush=True)
    return facts | {"answering": answering}


def main() -> None:
    parser = make_options(__doc__, "starts", first=30_000, num=600)
    parser.set_defaults(seeds=[21, 22, 23, 24, 25])
    parser.add_argument("--model", type=Path, required=True, help="the start that chooses")
    parser.add_argument("--source", choices=tuple(GAMES), default="pancake")
    parser.add_argument("--split", default="test", help="of the problems that are answered")
    parser.add_argument(
        "--arms", nargs="+", choices=tuple(ARMS), default=(AZ, CONSTANT, TREE, STEP)
    )
    parts = ("training", "answering")
    parser.add_argument("--parts", nargs="+", choices=parts, default=parts)
    parser.add_argument("--answering", nargs="*", default=[], help="settings of the searches")
    parser.add_argument("--rates", type=float, nargs="+", default=RATES)
    parser.add_argument("--questions", type=int, help="of a round; default: as take --tokens")
    parser.add_argument("--tokens", type=int, default=400_000, help="that an arm's run takes")
    parser.add_argument("--rounds", type=int, default=4, help="of an arm: its generations")
    parser.add_argument("--updates", type=int, default=100, help="of a round, at most")
    parser.add_argument("--validation", type=int, default=300, help="problems that choose a rate")
    parser.add_argument("--budget", type=int, default=480, help="of an answer")
    parser.add_argument("--beside", type=int, nargs="*", default=(240, 960), help="budgets too")
    args = parser.parse_args()
    args.work, args.model = args.work.resolve(), args.model.resolve()
    arms = {name: choose_arm(args, name) for name in args.arms}
    print(json.dumps(arms), flush=True)
    first, az = Seed(7, with_values(args, work=args.work / "choice")), arms[AZ]
    ways = dict[str, Any]()
    if "answering" in args.parts:
        student = trained(first, AZ, az["rate"], az["questions"]) / "student"
        ways = choose_search(args, student)
        print(json.dumps(ways), flush=True)
    told_of = ("source", "seeds", "split", "first", "num", "rounds", "tokens", "updates", "budget")
    facts = {name: getattr(args, name) for name in told_of} | {"choices": arms, "searches": ways}
    provenance.write(args.out, facts | measure(args, arms, ways))


if __name__ == "__main__":
    main()
