"""Where a value can show: searches under an exact value, the same with noise, a constant and none.

    uv run python benchmarks/value_gate.py --model checkpoints/pancake --source pancake --level 4

A trained student answers validation problems of one level by every search; under the value that it
carries too, where it does. The noise is planted: it is as large as makes the value tell so many of
two steps after one state (`--pairs`) right, and each state keeps its own. A game, level and budget
can show a learned value where the best search under the noisy one beats every search without one.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import combinations
from pathlib import Path
from random import Random
from statistics import fmean
from typing import Any

import provenance

EXAMPLES = provenance.ROOT / "examples"
sys.path.append(str(EXAMPLES))

import horn  # noqa: E402
from generations import ADAPTIVE, GAMES, STEPWISE, Game, Told, half  # noqa: E402

from alphazero_llm_trainer.config.load import load_config  # noqa: E402
from alphazero_llm_trainer.engine.protocol import Verifier  # noqa: E402
from alphazero_llm_trainer.eval.attempt import MethodContext  # noqa: E402
from alphazero_llm_trainer.eval.cells import Benchmark, Cell, run_cell  # noqa: E402
from alphazero_llm_trainer.eval.metrics import paired_bootstrap, repeats  # noqa: E402
from alphazero_llm_trainer.eval.results import interval_triple  # noqa: E402
from alphazero_llm_trainer.live import Progress  # noqa: E402
from alphazero_llm_trainer.policy.critic import Critic, CriticVerifier, load_value  # noqa: E402
from alphazero_llm_trainer.policy.folders import carried_value  # noqa: E402
from alphazero_llm_trainer.policy.student import Student, load_student  # noqa: E402
from alphazero_llm_trainer.policy.verifiers import Product  # noqa: E402
from alphazero_llm_trainer.problems import pancake  # noqa: E402
from alphazero_llm_trainer.problems.load import opening, tasks_of  # noqa: E402
from alphazero_llm_trainer.problems.step_checks import Calculator  # noqa: E402
from alphazero_llm_trainer.types import Problem  # noqa: E402

Value = Callable[[Problem, Sequence[str]], float]
FREE = {  # a method and its settings, for searches that read no value
    STEPWISE: (STEPWISE, ""),
    ADAPTIVE: (ADAPTIVE, ""),
    "puct": ("mcts", "puct"),
    "best-first": ("mcts", "best-first"),
    "phs": ("mcts", "phs"),
    "phs, Levin": ("mcts", "phs", "search.exploration=0"),
}
BY_VALUE = {
    **{f"puct, {c}": ("mcts", "puct", f"search.exploration={c}") for c in (0.1, 0.5)},
    **{
        f"puct of the largest, {c}": (
            "mcts",
            "puct",
            f"search.exploration={c}",
            "search.backup=max",
        )
        for c in (0.02, 0.05, 0.1)
    },
    "best-first": ("mcts", "best-first"),
    **{f"phs, {scale}": ("mcts", "phs", f"search.exploration={scale}") for scale in (1, 2, 4)},
}
WALKS = 5  # states of a problem whose steps are compared
DISCOUNTS = {"pancake": 0.95, "numbers": 1.0, "horn": 0.95}


def letters_of(problem: Problem, steps: Sequence[str]) -> frozenset[str] | None:
    known = horn.play(problem.question, steps)
    return None if known is None or horn.read_question(problem.question)[2] in known else known


def derivations(problem: Problem, known: frozenset[str]) -> list[str]:
    _, _, goal, rules = horn.read_question(problem.question)
    return [horn.write_rule(rule) for rule in horn.legal(rules, known) if rule[1] != goal]


GAMES["horn"] = Game(letters_of, derivations, horn.exact_value)
ADDRESSES = {"horn": f"{EXAMPLES / 'horn.py'}:Horn"}  # of sources that aren't built in


def noisy_distance(spread: float, discount: float) -> Value:
    """`discount` to the power of the flips that a row needs, which are `spread` off in the mean."""

    def value(problem: Problem, steps: Sequence[str]) -> float:
        row, _ = pancake.read_row(problem.question)
        after = pancake.play_flips(row, steps)
        if after is None or after == pancake.sort_row(row):
            return float(after is not None)
        noise = spread * Random(f"{problem.id} {after} noise").gauss(0, 1)
        return discount ** max(pancake.flip_distances(len(row))[after] + noise, 0.3)

    return value


def noisy_logit(source: str, spread: float, discount: float) -> Value:
    """The exact value of a source's game, its logit `spread` off in the mean."""
    game = GAMES[source]

    def value(problem: Problem, steps: Sequence[str]) -> float:
        exact = min(max(game.exact(problem, steps, discount), 1e-3), 1 - 1e-3)
        noise = Random(f"{problem.id} {game.state(problem, steps)} noise").gauss(0, 1)
        return 1 / (1 + math.exp(-math.log(exact / (1 - exact)) - spread * noise))

    return value


NOISY = {
    "pancake": noisy_distance,
    **{source: partial(noisy_logit, source) for source in ("numbers", "horn")},
}


def siblings(game: Game, problem: Problem) -> Iterator[list[list[str]]]:
    """The steps, one of each pair's last, to all that one step leads to from states of random
    play.
    """
    rng = Random(f"{problem.id} walk")
    steps: list[str] = []
    for _ in range(WALKS):
        state = game.state(problem, steps)
        moves = [] if state is None else game.moves(problem, state)
        if not moves:
            return
        yield [[*steps, move] for move in moves]
        steps = [*steps, rng.choice(moves)]


def read_value(critic: Critic, student: Student, game: Game, problems: Sequence[Problem]) -> Value:
    """What a student's value says of the states that `pair_accuracy` compares."""
    asked = [(one, path) for one in problems for paths in siblings(game, one) for path in paths]
    states = []
    for problem, steps in asked:
        lines = "".join(f"{step}\n" for step in steps)
        written = student.tokenizer(lines, add_special_tokens=False)["input_ids"]
        states.append((*student.prompt_ids(problem.question), *written))
    values = asyncio.run(critic.values(states))
    told = {(one.id, *path): v for (one, path), v in zip(asked, values, strict=True)}
    return lambda problem, steps: told[problem.id, *steps]


def pair_accuracy(game: Game, problems: Sequence[Problem], value: Value, discount: float) -> float:
    """How many of two steps after one state `value` has in the order of the exact one; those that
    are worth the same aside.
    """
    right = list[bool]()
    for problem in problems:
        for states in siblings(game, problem):
            both = [(game.exact(problem, one, discount), value(problem, one)) for one in states]
            for (exact, told), (other, also) in combinations(both, 2):
                if exact != other:
                    right.append((exact > other) == (told > also) and told != also)
    return fmean(right)


def spread_of(source: str, problems: Sequence[Problem], pairs: float, discount: float) -> float:
    """The noise under which so many pairs are right, by bisection."""
    low, high = 0.0, 16.0
    for _ in range(12):
        middle = (low + high) / 2
        value = NOISY[source](middle, discount)
        reached = pair_accuracy(GAMES[source], problems, value, discount)
        low, high = (middle, high) if reached > pairs else (low, middle)
    return (low + high) / 2


def gate(cells: dict[tuple[str, str], Cell]) -> dict[str, Any]:
    """By value: its best search, less the best one that reads none (a constant one reads none)."""

    def best(values: Sequence[str]) -> tuple[str, str]:
        return max(
            (key for key in cells if key[0] in values), key=lambda key: fmean(cells[key].right)
        )

    alone = best(("none", "constant"))
    found: dict[str, Any] = {"without": list(alone)}
    for value in dict.fromkeys(name for name, _ in cells if name not in ("none", "constant")):
        key = best((value,))
        gain = paired_bootstrap(cells[key].right, cells[alone].right, groups=cells[key].groups)
        found[value] = {"search": key[1], "less_without": interval_triple(gain)}
    return found


def measure(args: argparse.Namespace) -> None:
    """Every cell, written to `--out` as it ends; those that are there are not made again."""
    discount = DISCOUNTS[args.source]
    base = [
        *args.set,
        f"seed={args.seed}",
        f"problems.source={ADDRESSES.get(args.source, args.source)}",
    ]
    base += [f"search.discount={discount}", "search.temperature=1.0"]
    base += [] if args.level is None else [f"problems.levels=[{args.level}]"]
    config = load_config(overrides=base)
    tasks = tasks_of(config, "validation", args.num, args.first)
    problems, game = [task.problem for task in tasks], GAMES[args.source]
    spread = spread_of(args.source, problems, args.pairs, discount)
    noisy = NOISY[args.source](spread, discount)
    values: dict[str, Verifier] = {"constant": Told(half), "noisy": Told(noisy)}
    values["exact"] = Told(lambda problem, steps: game.exact(problem, steps, discount))
    reached = {"noisy": pair_accuracy(game, problems, noisy, discount)}
    student = load_student(config, path=args.model, opening=opening(config))
    _, place = carried_value(config, args.model)
    if place is not None:
        critic = load_value(place, student, config)
        values["learned"] = CriticVerifier(critic, "value")
        learned = read_value(critic, student, game, problems)
        reached["learned"] = pair_accuracy(game, problems, learned, discount)
    facts: dict[str, Any] = {
        "student": student.weights,
        **{
            name: getattr(args, name) for name in ("source", "level", "seed", "first", "num", "set")
        },
        "discount": discount,
        "noise": {"spread": spread, "pair_accuracy": reached["noisy"]},
        "pair_accuracy": reached,
    }
    known = json.loads(args.out.read_text(encoding="utf-8")) if args.out.is_file() else {}
    same = all(known.get(name) == fact for name, fact in facts.items())
    rows = known["rows"] if same and known else []
    groups = repeats(tasks)
    made = {(row["budget"], row["value"], row["search"]): row for row in rows}
    gates = dict[str, Any]()
    for budget in args.budgets:
        cells = dict[tuple[str, str], Cell]()
        for name in args.values:
            judge = Product([Calculator(), values[name]]) if name in values else Calculator()
            for search, (method, *settings) in (BY_VALUE if name in values else FREE).items():
                row = made.get((budget, name, search))
                if row is None:
                    select, *more = settings
                    chosen = [f"search.select={select}"] if select else []
                    over = load_config(overrides=[*base, *chosen, *more])
                    work = run_cell(
                        MethodContext(student, judge, over),
                        Benchmark("validation", tasks),
                        method,
                        budget,
                        Progress(quiet=True),
                    )
                    cell = asyncio.run(work)
                    row = {"budget": budget, "value": name, "search": search}
                    row |= {"accuracy": fmean(cell.right), "tokens": fmean(cell.tokens)}
                    row["outcomes"] = cell.outcomes
                    rows.append(row)
                    print(f"{budget:5} {name:9} {search:25} {row['accuracy']:.3f}", flush=True)
                    provenance.write(args.out, facts | {"rows": rows, "gate": gates})
                cells[name, search] = Cell("", method, budget, row["outcomes"], groups=groups)
        gates[str(budget)] = gate(cells)
        print(budget, gates[str(budget)], flush=True)
    provenance.write(args.out, facts | {"rows": rows, "gate": gates})


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, required=True, help="the student that answers")
    parser.add_argument("--source", choices=tuple(NOISY), default="pancake")
    parser.add_argument("--level", type=int, help="of the problems; default: the source's own")
    parser.add_argument("--budgets", type=int, nargs="*", default=(240, 480), help="of an answer")
    every = ("none", "constant", "noisy", "exact")
    parser.add_argument("--values", nargs="+", default=every, help="learned too, where one is")
    parser.add_argument("--num", type=int, default=200, help="validation problems")
    parser.add_argument("--first", type=int, default=4000, help="number of the first one")
    parser.add_argument("--pairs", type=float, default=0.8, help="that the noisy value has right")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--out", type=Path, required=True)
    measure(parser.parse_args())


if __name__ == "__main__":
    main()
