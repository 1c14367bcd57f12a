"""AlphaZero's loop on pancake sorting or the game of numbers, generation by generation, and what
each way of answering makes of its students.

    uv run alphazero-llm-trainer sft --model small --source pancake --out checkpoints/pancake
    uv run python benchmarks/generations.py --model checkpoints/pancake

Training: every arm goes on from the same student, in as many rounds and updates, and a round has as
many questions as take the same sampled and scored tokens (GRPO passes once over its rows):

- alphazero: `train --config alphazero`, policy and value on the trees that both searched;
- alphazero, Gumbel: Gumbel's improved policy is learnt, of trees that go on to their budget;
- constant value: the same trees searched under a constant, while the value is trained all the same,
  or its loss is left out too; expert iteration's tree, the default's;
- adaptive RFT: chains from the root until one is right, within the same tokens a question;
- step rejection: the same, but a rejected step alone is drawn again, and a chain that ends is the
  end;
- RFT of eight: the right ones of eight samples; GRPO: those eight, by correctness.

Answering: the tree under the value that was learnt, the same one permuted among siblings, the exact
one and a constant, against step rejection, adaptive best-of-n and beam search. Rates, temperatures
and questions a round are chosen on validation problems with the first seed. Every stage is a
command of the package, or a cell of answers; one that is there is not made again. PROTOCOL.md says
what is compared.

    uv run python benchmarks/generations.py speed --model START --out FILE

times generations of the recipe, and rounds of the default beside them.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import cache, partial
from itertools import combinations
from pathlib import Path
from random import Random
from statistics import fmean
from typing import Any, NamedTuple

import provenance
from arms import (
    EIGHT,
    Arm,
    Seed,
    accuracy,
    best,
    by_rate,
    curve_of,
    flags,
    less,
    make_options,
    read,
    rounds_of,
    side_by_side,
    spent_by,
)

from alphazero_llm_trainer.api.trees import read_trees
from alphazero_llm_trainer.config.load import load_config
from alphazero_llm_trainer.engine.protocol import Judgement, Verifier
from alphazero_llm_trainer.eval.attempt import MethodContext
from alphazero_llm_trainer.eval.cells import Benchmark, Cell, run_cell
from alphazero_llm_trainer.files import write_json
from alphazero_llm_trainer.learning.methods.alphazero import (
    order_steps,
    state_outcomes,
    state_values,
)
from alphazero_llm_trainer.live import Progress
from alphazero_llm_trainer.policy.critic import Critic, CriticVerifier, load_value
from alphazero_llm_trainer.policy.folders import carried_value
from alphazero_llm_trainer.policy.student import Student, load_student
from alphazero_llm_trainer.policy.verifiers import Product
from alphazero_llm_trainer.problems import numbers, pancake
from alphazero_llm_trainer.problems.load import opening, tasks_of
from alphazero_llm_trainer.problems.step_checks import Calculator
from alphazero_llm_trainer.types import Problem, Step, ids_of

AZ, RFT, STEP = "alphazero", "adaptive RFT", "step rejection"
UNGUIDED = f"train.method={Path(__file__).with_name('unguided.py').resolve()}:UNGUIDED"
CONSTANT = f"{UNGUIDED} search.select=best-first"
SAME = "rewards.step_penalty=0 search.simulations=1000"
SAME += " search.budget_tokens=720"  # as alphazero's recipe
# `size`: a question's tokens by a run that read no test problem; they set the tuning runs'
# questions alone.
ARMS = {
    AZ: Arm("alphazero", "", 5e-4, 467),
    "alphazero, Gumbel": Arm("alphazero", "train.credit=gumbel search.enough_correct=0", 5e-4, 720),
    "constant value": Arm("alphazero", CONSTANT, 5e-4, 410),
    "constant value, its loss left out": Arm(
        "alphazero", f"{CONSTANT} train.value_coefficient=0", 5e-4, 410
    ),
    "expert iteration's tree": Arm("expert_iteration", SAME, 5e-4, 520),
    RFT: Arm("expert_iteration", f"{SAME} search.select=restart", 5e-4, 520),
    STEP: Arm("expert_iteration", f"{SAME} search.enough_finished=1", 5e-4, 155),
    "RFT of eight": Arm("rft", "", 5e-4, 1240),
    "GRPO": Arm(
        "grpo",
        f"{EIGHT} train.rows_per_round=640 train.negative_weight=1",
        2.5e-4,
        1240,
    ),
}
BUDGETS, BUDGET = (240, 480, 960), 480  # of an answer; what systems are compared at
PUCT, PERMUTED = "puct", "puct, permuted"
ADAPTIVE, STEPWISE = "adaptive-best-of-n", "step-rejection"
VALUES = ("learned", "permuted", "exact", "constant")
FIRST = "search.select=best-first"
# Ways of answering: the method, whose value judges beside the rule ("": none), and settings.
WAYS: dict[str, tuple[str, ...]] = {
    "greedy": ("greedy", ""),
    ADAPTIVE: (ADAPTIVE, ""),
    STEPWISE: (STEPWISE, ""),
    "beam": ("beam", "learned"),
    PUCT: ("mcts", "learned"),
    **{f"puct, {value}": ("mcts", value) for value in VALUES[1:]},
    "best-first": ("mcts", "learned", FIRST),
    **{f"best-first, {value}": ("mcts", value, FIRST) for value in VALUES[1:]},
}
# Of `starts.py`: PUCT by its constant, under each value and under the rule alone, and PHS.
BY_CONSTANT: dict[str, tuple[str, ...]] = {
    "phs": ("mcts", "", "search.select=phs", "search.exploration=0"),
    **{
        f"puct {0.0125 * 2**power:g}, {value or 'none'}": (
            "mcts",
            value,
            "search.select=puct",
            f"search.exploration={0.0125 * 2**power:g}",
        )
        for power in range(10)
        for value in ("", *VALUES)
    },
}
PACED, NEAR = 4, 0.05  # runs that look for a rate's questions a round, and how near is enough
CHOOSING = (1000, 100)  # validation problems that choose a temperature: the first one, and how many
TEMPERATURES = (1.0, 0.7, 1.4)


def constant_of(value: str, constant: float) -> str:
    """The name of PUCT's way with a constant, under a value ("none": under the rule alone)."""
    return f"puct {constant:g}, {value}"


# -- training
# --------------------------------------------------------------------------------------------------


def trained(seed: Seed, name: str, rate: float, questions: int) -> Path:
    """The folder of one arm's run at one learning rate, of so many questions a round."""
    arm, args = ARMS[name], seed.args
    words = ["--config", arm.method, "--source", args.source, "-n", str(args.rounds * questions)]
    settings = arm.at(rate, args.validation, questions, 1, args.updates)
    words += flags(*settings, "train.keep_best=false")
    return seed.train(f"{name} {rate:g} {questions}", args.model, *words)


def final(seed: Seed, name: str, chosen: dict[str, Any]) -> Path:
    """The folder of an arm's run as validation problems chose it."""
    return trained(seed, name, chosen["rate"], chosen["questions"])


def spent(line: dict[str, Any]) -> int:
    """Sampled and scored tokens of a round."""
    total: int = line["cost"]["sampled_tokens"] + line["cost"]["scored_tokens"]
    return total


def by_round(run: Path) -> list[float]:
    """Greedy accuracy on validation problems after each round."""
    return [reached for _, reached in curve_of(run)]


def questions_of(args: argparse.Namespace, run: Path) -> int:
    """How many questions take a round's tokens, as this run took them."""
    lines = rounds_of(run)
    a_question = sum(map(spent, lines)) / sum(line["questions"] for line in lines)
    return round(args.tokens / args.rounds / a_question)


# -- answering
# --------------------------------------------------------------------------------------------------


class Told:
    """`Verifier`: a value that nothing learnt."""

    name, checks, guides, computes, scored_tokens = "value", False, True, False, 0

    def __init__(self, value: Callable[[Problem, Sequence[str]], float]) -> None:
        self.value = value

    async def __call__(
        self, problem: Problem, prompt_ids: tuple[int, ...], steps: Sequence[Step]
    ) -> Judgement:
        texts = [step.text for step in steps]
        first = 1 if steps else 0
        states = [texts[:count] for count in range(first, len(texts) + 1)]
        values = tuple(self.value(problem, state) for state in states)
        return Judgement(values[: len(steps)], values[-1], frozenset(range(len(steps))), values)


class Permuted(CriticVerifier):
    """V of each state's next sibling, in an order that is its parent's alone: what V says of a
    parent's children is kept, and of which child it says it is not.
    """

    def __init__(self, critic: Critic, student: Student, game: Game) -> None:
        super().__init__(critic, "value")
        self.tokenizer, self.game = student.tokenizer, game

    async def __call__(
        self, problem: Problem, prompt_ids: tuple[int, ...], steps: Sequence[Step]
    ) -> Judgement:
        if not steps:
            return await super().__call__(problem, prompt_ids, steps)
        states = []
        for count in range(1, len(steps) + 1):
            *before, last = [step.text for step in steps[:count]]
            text = last.replace(last.strip(), sibling(self.game, problem, before, last.strip()))
            ids = self.tokenizer(text, add_special_tokens=False)["input_ids"]
            states.append((*prompt_ids, *ids_of(steps[: count - 1]), *ids))
        values = tuple(await self.critic.values(states))
        return Judgement(values, values[-1], frozenset(range(len(steps))), values)


class Game(NamedTuple):
    """What a value that nothing learnt is made of: a state is a row, or the numbers left."""

    state: Callable[[Problem, Sequence[str]], Any]  # after steps, None where one isn't legal
    moves: Callable[[Problem, Any], list[str]]  # legal steps then, that don't end the game
    exact: Callable[[Problem, Sequence[str], float], float]  # V after steps, under a discount


def sibling(game: Game, problem: Problem, before: Sequence[str], step: str) -> str:
    """The next one of the legal steps that don't end the game, in an order that the state before it
    draws; the step itself where it is none of these.
    """
    state = game.state(problem, before)
    others = [] if state is None else game.moves(problem, state)
    if step not in others:
        return step
    Random(f"{problem.id} {state}").shuffle(others)
    return others[(others.index(step) + 1) % len(others)]


def row_of(problem: Problem, steps: Sequence[str]) -> str | None:
    return pancake.play_flips(pancake.read_row(problem.question)[0], steps)


def flips(problem: Problem, row: str) -> list[str]:
    rows = [(count, pancake.flip_row(row, count)) for count in range(2, len(row) + 1)]
    return [f"{count}:{after}" for count, after in rows if after != pancake.sort_row(row)]


def left_of(problem: Problem, steps: Sequence[str]) -> tuple[int, ...] | None:
    lines = [step for step in steps if not step.startswith("####")]
    left = numbers.play_moves(numbers.read_numbers(problem.question)[0], lines)
    return None if left is None else tuple(sorted(left.elements()))


def legal(left: tuple[int, ...]) -> list[list[numbers.Move]]:
    """The legal moves with each pair of the numbers left."""
    pairs = [(max(pair), min(pair)) for pair in combinations(left, 2)]
    tried = [[numbers.apply_move(a, op, b) for op in "+-*/"] for a, b in pairs]
    return [[move for move in moves if move is not None] for moves in tried]


def calculations(problem: Problem, left: tuple[int, ...]) -> list[str]:
    target = numbers.read_numbers(problem.question)[1]
    moves = [move for of_pair in legal(left) for move in of_pair]
    lines = [numbers.write_moves(left, [move]).split("\n")[0] for move in moves]
    return [line for line in dict.fromkeys(lines) if not line.endswith(f", {target}")]


@cache
def chance(left: tuple[int, ...], target: int) -> float:
    """The chance that random legal moves from the numbers `left` end at the target: the value of
    the play that supervised training teaches.
    """
    if len(left) == 1:
        return float(left == (target,))
    pairs, total = legal(left), 0.0
    for moves in pairs:
        for a, _, b, result in moves:
            others = list(left)
            others.remove(a)
            others.remove(b)
            total += chance(tuple(sorted([*others, result])), target) / len(moves)
    return total / len(pairs)


def exact_value(problem: Problem, steps: Sequence[str], discount: float = 1.0) -> float:
    """`discount` to the power of the flips that the row after legal `steps` still needs; 0 where
    that is more than are left.
    """
    row, flips = pancake.read_row(problem.question)
    after = pancake.play_flips(row, steps)
    if after is None:
        return 0.0
    needed = pancake.flip_distances(len(row))[after]
    return discount**needed if needed <= flips - len(steps) else 0.0


def chance_of(problem: Problem, steps: Sequence[str], _: float) -> float:
    """`chance` after these steps: every game has as many, so that no discount is."""
    left = left_of(problem, steps)
    return 0.0 if left is None else chance(left, numbers.read_numbers(problem.question)[1])


GAMES = {
    "pancake": Game(row_of, flips, exact_value),
    "numbers": Game(left_of, calculations, chance_of),
}


def judge(
    value: str, student: Student, critic: Critic | None, game: Game, discount: float
) -> Verifier:
    """The rule, and beside it a value ("": none)."""
    rule = Calculator()
    if value == "constant":
        return Product([rule, Told(half)])
    if value == "exact":
        return Product([rule, Told(lambda *state: game.exact(*state, discount))])
    if critic is None:
        return rule
    if value == "permuted":
        return Product([rule, Permuted(critic, student, game)])
    return Product([rule, CriticVerifier(critic, "value")]) if value else rule


def half(*state: Any) -> float:
    return 0.5


def answer(args: argparse.Namespace) -> None:
    """A student's cells, each written to its file as it ends."""
    base = [*args.set, f"seed={args.seed}", f"problems.source={args.source}"]
    config, place = carried_value(load_config(overrides=base), args.model)
    student = load_student(config, path=args.model, opening=opening(config))
    critic = None if place is None else load_value(place, student, config)
    benchmark = Benchmark(args.split, tasks_of(config, args.split, args.num, args.first))
    game = GAMES[args.source]
    for file, way, budget, temperature in json.loads(args.cells):
        method, value, *settings = (WAYS | BY_CONSTANT)[way]
        own = [*base, *settings, f"search.temperature={temperature}"]
        own += [f"search.discount={config.search.discount}"]
        discount, over = config.search.discount, load_config(overrides=own)
        context = MethodContext(student, judge(value, student, critic, game, discount), over)
        cell = asyncio.run(run_cell(context, benchmark, method, budget, Progress(quiet=True)))
        write_json(Path(file), asdict(cell))


def answers(
    seed: Seed, student: Path, rows: tuple[str, int, int], asked: Sequence[tuple[str, int, float]]
) -> list[Cell]:
    """Cells of a student on problems `rows` (split, first, how many): of each way, budget and
    temperature that is `asked`.
    """
    split, first, num = rows
    label = "start" if student == seed.args.model else student.parent.parent.name
    out = seed.folder(f"answers {label}") / f"{split} {first} {num}"
    files = [out / f"{way} {budget} {warmth:g}.json" for way, budget, warmth in asked]
    left = [
        (str(file), *cell) for file, cell in zip(files, asked, strict=True) if not file.exists()
    ]
    if left:
        out.mkdir(parents=True, exist_ok=True)
        words = ["answer", "--model", str(student), "--split", split, "--first", str(first)]
        words += ["--num", str(num), "--source", seed.args.source, "--cells", json.dumps(left)]
        seed.stage(f"answers {label}", words, Path(left[-1][0]), script=Path(__file__).resolve())
    return [Cell(**read(file)) for file in files]


def ways(name: str) -> list[str]:
    """The ways in which an arm's students answer: without a value of their own, those that need
    none.
    """
    return [way for way, (_, value, *_) in WAYS.items() if name == AZ or not value]


def system(name: str) -> str:
    """How an arm's students answer best, by what they have."""
    guided = ARMS[name].method == "alphazero" and UNGUIDED not in ARMS[name].settings
    return PUCT if guided else ADAPTIVE


def warmths(seed: Seed, name: str, run: Path) -> dict[str, dict[float, float]]:
    """The accuracy of each temperature that was tried for each way, on validation problems."""
    args, student = seed.args, run / "student"
    rows = ("validation", *args.choosing)
    tried = ways(name)[1:] if name in COMPARED else [system(name)]
    # At once, in one process.
    answers(seed, student, rows, [(way, BUDGET, one) for way in tried for one in args.temperatures])

    def reached(way: str, warmth: float) -> float:
        [cell] = answers(seed, student, rows, [(way, BUDGET, warmth)])
        return fmean(cell.right)

    return {way: by_rate(partial(reached, way), args.temperatures) for way in tried}


# -- both
# --------------------------------------------------------------------------------------------------

Cells = dict[tuple[str, int], Cell]  # by way and budget
# With every seed.
COMPARED = {AZ: (PUCT, PERMUTED), RFT: (ADAPTIVE, STEPWISE), STEP: (ADAPTIVE, STEPWISE)}


def measured(seed: Seed, name: str, run: Path, chosen: dict[str, dict[float, float]]) -> Cells:
    """A run's student on the test problems: greedily and as a system; with the first seed the two
    that are compared answer in every way.
    """
    args = seed.args
    asked = [("greedy", BUDGET), *((way, BUDGET) for way in COMPARED.get(name, (system(name),)))]
    if name in (AZ, RFT) and seed.seed == args.seeds[0]:
        asked += [(way, budget) for way in ways(name)[1:] for budget in args.budgets]
    asked = list(dict.fromkeys(asked))
    full = [(way, budget, best(chosen.get(way, {1.0: 0.0}))) for way, budget in asked]
    found = answers(seed, run / "student", (args.split, args.first, args.num), full)
    return dict(zip(asked, found, strict=True))


def told(cells: Sequence[Cell]) -> dict[str, Any]:
    """A way's accuracy and tokens over seeds, and each problem's."""
    right, same = [cell.right for cell in cells], cells[0].groups
    return {
        "accuracy": accuracy(right, same),
        "by_seed": [fmean(one) for one in right],
        "sampled_tokens": fmean(cell.sampled_tokens / len(same) for cell in cells),
        "scored_tokens": fmean(cell.scored_tokens / len(same) for cell in cells),
        "outcomes": [cell.outcomes for cell in cells],
        "tokens": [" ".join(map(str, cell.tokens)) for cell in cells],
    }


def orders(run: Path, game: Game) -> dict[int, dict[str, float]]:
    """By round, of its trees: how many of two steps after one state the value of the generation
    before has in the order of what came of them, and how many the exact value would have.
    """
    discount = read(run / "run.json")["config"]["search"]["discount"]
    found: dict[int, dict[str, list[float]]] = {}
    for saved in read_trees(run):
        tree, z = saved.tree, state_outcomes(saved.tree, discount)
        of_round = found.setdefault(
            saved.record["round"], {"value_pair_accuracy": [], "exact_pair_accuracy": []}
        )
        of_round["value_pair_accuracy"] += order_steps(tree, z)
        for node in state_values(tree, z):
            steps = [tree.text[at].strip() for at in tree.path(node)]
            tree.V[node] = game.exact(saved.problem, steps, discount)
        of_round["exact_pair_accuracy"] += order_steps(tree, z)
    return {
        number: {name: fmean(pairs) for name, pairs in of_round.items() if pairs}
        for number, of_round in found.items()
    }


def by_generation(runs: Sequence[Path], game: Game) -> list[dict[str, Any]]:
    """An arm's generations, each seed's: what they took, what the trees of their round came out as,
    and greedy accuracy on validation problems. `value_auc` is of the value of the generation before
    on these trees.
    """
    rows, lines = [], [rounds_of(run) for run in runs]
    ordered = [orders(run, game) for run in runs]
    greedy = [by_round(run) for run in runs]
    for generation, of_round in enumerate(zip(*lines, strict=True), 1):
        row: dict[str, Any] = {"generation": generation}
        row["tokens"] = [sum(map(spent, one[:generation])) for one in lines]
        row["updates"] = [sum(line["updates"] for line in one[:generation]) for one in lines]
        row["solved"] = [line["solved"] / line["questions"] for line in of_round]
        row["value_auc"] = [line["value_auc"] for line in of_round]
        for name in ("value_pair_accuracy", "exact_pair_accuracy"):
            row[name] = [one[generation - 1].get(name) for one in ordered]
        row["validation"] = [one[generation - 1] for one in greedy]
        rows.append(row)
    return rows


def difference(one: Sequence[Cell], other: Sequence[Cell]) -> list[float]:
    return less([cell.right for cell in one], [cell.right for cell in other], one[0].groups)


def table(seeds: Sequence[Seed], chosen: dict[str, Any]) -> dict[str, Any]:
    """Each arm by generation and way, and what is compared."""
    args, jobs = seeds[0].args, [(seed, name) for seed in seeds for name in chosen]
    rows = (args.split, args.first, args.num)
    names = ("greedy", ADAPTIVE)
    start = answers(seeds[0], args.model, rows, [(way, BUDGET, 1.0) for way in names])

    def one(job: tuple[Seed, str]) -> tuple[Path, Cells]:
        seed, name = job
        run = final(seed, name, chosen[name])
        return run, measured(seed, name, run, chosen[name]["temperatures"])

    keys = [(name, seed.seed) for seed, name in jobs]
    made = dict(zip(keys, side_by_side(args.jobs, one, jobs), strict=True))
    arms, answering, cells = [], list[dict[str, Any]](), {}
    for name, choice in chosen.items():
        runs, cells[name] = zip(*(made[name, seed.seed] for seed in seeds), strict=True)
        arms.append({"arm": name, **choice, "generations": by_generation(runs, GAMES[args.source])})
        for way, budget in cells[name][0]:
            of_seeds = [of for of in cells[name] if (way, budget) in of]
            found = [of[way, budget] for of in of_seeds]
            answering.append({"arm": name, "way": way, "budget": budget, **told(found)})
            if name == AZ and way != PUCT and (PUCT, budget) in of_seeds[0]:
                puct = [of[PUCT, budget] for of in of_seeds]
                answering[-1]["puct_less_it"] = difference(puct, found)
            print(f"{name:20} {way:22} {budget:5} {answering[-1]['accuracy']}", flush=True)

    def at(name: str, way: str) -> list[Cell]:
        return [of[way, BUDGET] for of in cells[name]]

    for row in arms:
        name = row["arm"]
        row["greedy"] = told(at(name, "greedy"))["accuracy"]
        row["system"] = told(at(name, system(name)))["accuracy"]
        if AZ in chosen and name != AZ:
            row["alphazero_less_it"] = difference(at(AZ, "greedy"), at(name, "greedy"))
            row["puct_less_it"] = difference(at(AZ, PUCT), at(name, system(name)))
    compared = {}
    if {AZ, RFT} <= chosen.keys():
        compared["primary"] = difference(at(AZ, "greedy"), at(RFT, "greedy"))
        compared["second"] = difference(at(AZ, PUCT), at(RFT, ADAPTIVE))
        compared["less_step_rejection"] = difference(at(AZ, PUCT), at(RFT, STEPWISE))
    if {AZ, STEP} <= chosen.keys():
        compared["less_both"] = difference(at(AZ, PUCT), at(STEP, STEPWISE))
    if AZ in chosen:
        compared["learned_less_permuted"] = difference(at(AZ, PUCT), at(AZ, PERMUTED))
        first = cells[AZ][0]
        exact, constant = (first[f"puct, {value}", BUDGET] for value in ("exact", "constant"))
        compared["exact_less_constant"] = difference([exact], [constant])
    print(compared, flush=True)
    begun: dict[str, Any] = {way: told([cell]) for way, cell in zip(names, start, strict=True)}
    begun["validation"] = read(next(iter(made.values()))[0] / "run.json")["validation_before"]
    facts = {"distinct": start[0].distinct, "start": begun, **compared}
    return facts | {"arms": arms, "answering": answering}


def speed(seed: Seed) -> dict[str, Any]:
    """Seconds of a generation of AlphaZero's loop on `--source` and of a round of the default on
    its own problems, as both recipes come, on one thread: validation, checkpoints and loading
    included. A stage that was stopped is to be begun in another `--work`.
    """
    args, rows = seed.args, list[dict[str, Any]]()
    recipes = {
        AZ: ["--config", AZ, "--model", str(args.model), "--source", args.source],
        "default": ["--model", "embedded"],
    }
    for name, words in recipes.items():
        run = seed.folder(f"speed {name}") / "run-001"
        asked = ["train", "--out", str(run.parent), *words, "--eval-size", "0"]
        seed.stage(f"speed {name}", [*asked, "-n", str(args.num)], run / "report.html")
        lines = rounds_of(run)
        row: dict[str, Any] = {"recipe": name, "questions": args.num, "rounds": len(lines)}
        row |= {key: sum(line[f"{key}_seconds"] for line in lines) for key in ("search", "update")}
        row |= {"seconds": read(run / "run.json")["seconds"]["total"]}
        made = spent_by(run / "student")["updates"]
        rows.append(row | {"tokens": sum(map(spent, lines)), "updates": made})
        print(rows[-1], flush=True)
    return {"rows": rows}


def choices(seed: Seed) -> dict[str, Any]:
    """What validation problems choose for each arm, with the first seed: its rate, its questions a
    round and its ways' temperatures, with all that were tried.
    """
    args = seed.args

    def of(name: str) -> dict[str, Any]:
        runs = dict[float, tuple[int, int, Path]]()  # tokens, questions a round

        def reached(rate: float) -> float:
            count, tried = round(args.tokens / args.rounds / ARMS[name].size), []
            for _ in range(PACED):
                run = trained(seed, name, rate, count)
                tried.append((sum(map(spent, rounds_of(run))), count, run))
                wanted = questions_of(args, run)
                if abs(wanted - count) <= NEAR * wanted:
                    break
                count = wanted
            runs[rate] = min(tried, key=lambda one: abs(one[0] - args.tokens))
            return by_round(runs[rate][2])[-1]

        rates = seed.tune(ARMS[name], reached)
        _, questions, run = runs[best(rates)]
        tried = [{"rate": rate, "tokens": runs[rate][0], "right": rates[rate]} for rate in rates]
        found = {"rate": best(rates), "tried": tried, "questions": questions}
        return found | {"temperatures": warmths(seed, name, run)}

    return dict(zip(args.arms, side_by_side(args.jobs, of, args.arms), strict=True))


def main() -> None:
    parser = make_options(__doc__, "generations", first=20_000, num=300)
    parser.add_argument(
        "stage",
        nargs="?",
        choices=["speed", "answer"],
        help="time the loop",
    )
    parser.add_argument("--seed", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--cells", help=argparse.SUPPRESS)
    parser.add_argument("--model", type=Path, required=True, help="the student that all go on from")
    parser.add_argument("--source", choices=tuple(GAMES), default="pancake")
    parser.add_argument("--split", default="test", help="of the problems that are answered")
    parser.add_argument("--arms", nargs="+", choices=tuple(ARMS), default=tuple(ARMS))
    parser.add_argument("--tokens", type=int, default=400_000, help="that an arm's run takes")
    parser.add_argument("--rounds", type=int, default=4, help="of an arm: its generations")
    parser.add_argument("--updates", type=int, default=100, help="of a round")
    parser.add_argument("--validation", type=int, default=300, help="problems that choose a rate")
    parser.add_argument("--budgets", type=int, nargs="+", default=BUDGETS, help="of an answer")
    parser.add_argument("--temperatures", type=float, nargs="+", default=TEMPERATURES)
    parser.add_argument("--choosing", type=int, nargs=2, default=CHOOSING, help="a temperature")
    args = parser.parse_args()
    args.work, args.model = args.work.resolve(), args.model.resolve()
    if args.stage == "answer":
        answer(args)
        return
    told_of = ("source", "seeds", "split", "first", "num", "rounds", "tokens", "updates", "budgets")
    seeds = [Seed(seed, args) for seed in args.seeds]
    if args.stage == "speed":
        provenance.write(args.out, {"source": args.source} | speed(seeds[0]))
        return
    chosen = choices(seeds[0])
    print(json.dumps(chosen), flush=True)
    if args.train_only:
        jobs = [(seed, name) for seed in seeds for name in args.arms]
        side_by_side(args.jobs, lambda job: final(*job, chosen[job[1]]), jobs)
        return
    facts = {name: getattr(args, name) for name in told_of}
    provenance.write(args.out, facts | {"budget": BUDGET} | table(seeds, chosen))


if __name__ == "__main__":
    main()
