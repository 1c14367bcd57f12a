"""Turns in worlds: which credit is near the truth, and what a search over turns answers.

    uv run python benchmarks/turns.py credit answer --seeds 7 8 9 10 11

A student of each source is trained on its demonstrations. `credit` holds what each credit says of a
turn against its advantage under that student's own policy, from many more episodes out of the
states before and after it. `answer` compares methods of answering at equal tokens. PROTOCOL.md
(turns) says the rest. What was measured is kept in `--work`, and the same command goes on from it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import product
from pathlib import Path
from random import Random
from statistics import fmean
from typing import Any

import numpy as np
import provenance
from arms import Seed, accuracy, add_work, digits, read, side_by_side

from alphazero_llm_trainer.config.load import Config, load_config
from alphazero_llm_trainer.engine.protocol import Generated, Limits
from alphazero_llm_trainer.eval.attempt import MethodContext
from alphazero_llm_trainer.eval.cells import Benchmark, Cell, run_cell
from alphazero_llm_trainer.eval.metrics import repeats
from alphazero_llm_trainer.files import write_json
from alphazero_llm_trainer.learning.collector import Collector
from alphazero_llm_trainer.learning.credited_rows import by_step, credit_tokens
from alphazero_llm_trainer.learning.methods.by_name import method_of
from alphazero_llm_trainer.live import Progress
from alphazero_llm_trainer.mcts.seeds import derive_seed
from alphazero_llm_trainer.policy.proposals import make_steps
from alphazero_llm_trainer.policy.student import Student, load_student
from alphazero_llm_trainer.problems.hidden import row_after
from alphazero_llm_trainer.problems.load import opening, tasks_of
from alphazero_llm_trainer.problems.step_checks import Calculator
from alphazero_llm_trainer.rewards.turns import TurnPolicy
from alphazero_llm_trainer.tree.arena import ROOT
from alphazero_llm_trainer.tree.extract import OUTSIDE, Trajectory, turn_values
from alphazero_llm_trainer.tree.graded import GradedTree
from alphazero_llm_trainer.types import Problem, Step, Task, ids_of, text_of

SOURCES = ("hidden", "calc")
# The first problem and how many, of `credit`.
SPLITS = {
    "validation": (0, 40),
    "test": (30_000, 100),
    "first test": (30_000, 60),
    "again": (32_000, 100),
}
READ = {"hidden": ("first test",), "calc": ("test", "again")}
EQUAL = 48  # train problems that say how many chains take a tree's tokens
ROLLOUTS = 64  # of a reference value
TAKEN = 1  # responses of a question and design whose turns are held against the reference
# The package's own, and `siblings`: see `sibling_values`.
CREDITS = {
    "tree": ("turn", "step", "group", "siblings"),
    "chains": ("group", "turn", "step"),
}
TREE, GIGPO = ("tree", "turn"), ("chains", "gigpo")
CONCURRENT = 16  # questions
DRAWS = 2000  # of a bootstrap
# GiGPO's: what an advantage is divided by, the discount, the step's part beside the outcome's
# (None: that part alone), and what a state is known by.
VARIANTS = tuple(product(("deviation", "one"), (0.95, 1.0), (1.0, None), ("seen", "whole")))

BUDGET = 320  # tokens of an answer
ANSWERED = {"validation": (100, 100), "test": (31_000, 300)}
WARMTHS = (0.7, 1.0)
STEPWISE: dict[str, tuple[str, ...]] = {
    f"patience {patience}, first at {first}": (
        "step-rejection",
        f"search.verify.patience={patience}",
        f"search.verify.first_temperature={first}",
    )
    for patience in (2, 4, 8)
    for first in (0, 1)
}
TREES: dict[str, tuple[str, ...]] = {
    **{name: ("mcts", f"search.select={name}") for name in ("puct", "phs", "restart", "gumbel")},
    **{f"{name}, a vote": ("mcts", f"search.select={name}") for name in ("ucb1", "puct")},
}
WAYS: dict[str, dict[str, tuple[str, ...]]] = {
    "mcts": TREES,
    "step-rejection": STEPWISE,
    "majority": {"majority": ("majority",)},
    "greedy": {"greedy": ("greedy",)},
}

Turn = dict[str, Any]


# -- credit ----------------------------------------------------------------------------------------


def settings(source: str, seed: int, *more: str) -> Config:
    """How training by GRPO searches."""
    own = ["student=small", f"problems.source={source}", f"seed={seed}", "train.requeue_limit=0"]
    recipe = provenance.ROOT / "config" / "grpo_correctness.yaml"
    return load_config(recipe, overrides=[*own, *more])


def chains_of(count: int) -> tuple[str, ...]:
    return ("train.groups=chain", f"search.samples={count}")


def search(student: Student, config: Config, tasks: Sequence[Task]) -> list[GradedTree]:
    """The graded trees of tasks, in their order."""

    async def collect() -> list[GradedTree]:
        collector = Collector(student, config, method_of("grpo"), None)
        keyed = [(task.problem.id, task) for task in tasks]
        return [tree async for tree in collector.collect(keyed, config.seed)]

    made = {tree.key: tree for tree in asyncio.run(collect())}
    return [made[task.problem.id] for task in tasks]


def turns_in(response: Trajectory) -> list[tuple[int, int, int]]:
    """Of each turn of a response: where its tokens begin, where the given ones begin, their end."""
    mask, places, start = response.mask or (True,) * len(response.token_ids), [], 0
    for at in range(1, len(mask) + 1):
        if at == len(mask) or (mask[at] and not mask[at - 1]):
            given = start + sum(mask[start:at])
            places.append((start, given, at))
            start = at
    return places


def sibling_values(
    response: Trajectory, reward: float, counts: Sequence[int], sums: Sequence[float]
) -> list[tuple[float, float]]:
    """`turn_values`, but V is Q where no other turn was sampled at the same state: a turn that was
    never compared earns nothing.
    """
    values, parent = turn_values(response, reward, counts, sums), ROOT
    for at, node in enumerate(response.nodes):
        inside = node != OUTSIDE and counts[node] > 0
        if counts[parent] <= (counts[node] if inside else 1):
            values[at] = (values[at][0], values[at][0])
        parent = parent if node == OUTSIDE else node
    return values


def gigpo(
    problem: Problem, episodes: Sequence[tuple[Sequence[Step], float]], variant: tuple[Any, ...]
) -> list[list[float]]:
    """GiGPO's advantage of each turn of each episode of a group (Feng et al. 2025): the outcome's
    over the group, and that of the discounted return over all turns taken at one state.
    """
    norm, discount, omega, kind = variant
    groups: dict[Any, list[float]] = defaultdict(list)
    keyed = []
    for steps, reward in episodes:
        returns = [discount ** (len(steps) - 1 - at) * reward for at in range(len(steps))]
        states = [state_of(problem, steps[:at], kind) for at in range(len(steps))]
        keyed.append(list(zip(states, returns, strict=True)))
        for state, earned in keyed[-1]:
            groups[state].append(earned)
    outcomes = [reward for _, reward in episodes]
    return [
        [
            (0.0 if omega is None else over(reward, outcomes, norm))
            + (1.0 if omega is None else omega) * over(earned, groups[state], norm)
            for state, earned in turns
        ]
        for turns, (_, reward) in zip(keyed, episodes, strict=True)
    ]


def over(value: float, group: Sequence[float], norm: str) -> float:
    """A value less its group's mean, over its deviation or as it is."""
    spread = float(np.std(group)) if norm == "deviation" else 1.0
    return (value - fmean(group)) / spread if spread > 1e-9 else 0.0


def state_of(problem: Problem, steps: Sequence[Step], kind: str) -> Any:
    """What the state after turns is known by: what the world shows last, or all that it is."""
    if problem.source == "hidden":
        row, left = row_after(problem, [step.text.removesuffix("\n") for step in steps])
        return row if kind == "seen" else (row, left)
    told = tuple(step.seen.text for step in steps if step.seen)
    return told[-1:] if kind == "seen" else told


class References:
    """Values of states under the policy, each of `ROLLOUTS` episodes and kept in a file."""

    def __init__(self, path: Path, student: Student, config: Config) -> None:
        self.path, self.search, self.seed = path, config.search, config.seed
        self.turns = TurnPolicy(student, config.search, make_steps(student, 1.0))
        self.known: dict[str, float] = {}
        if path.exists():
            lines = path.read_text(encoding="utf-8").splitlines()
            self.known = dict(map(json.loads, lines))

    async def value(self, problem: Problem, steps: Sequence[Step]) -> float:
        """The mean reward of episodes that go on after `steps`."""
        ids = ids_of(steps)
        key = " ".join([problem.id, *map(str, ids)])
        if key not in self.known:
            limits = Limits(self.search.max_depth - len(steps), self.search.max_tokens - len(ids))
            seed = derive_seed(self.seed, "reference", key)
            made, _ = await self.turns.continuations(problem, steps, ROLLOUTS, seed, limits)
            ends = [self.turns.ending(problem, text_of((*steps, *one.steps))) for one in made]
            self.known[key] = fmean(end.reward or 0.0 if end else 0.0 for end in ends)
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps([key, self.known[key]]) + "\n")
        return self.known[key]

    async def episode(self, tree: GradedTree, response: Trajectory) -> list[Step]:
        """A response's turns with what the world answered, played once more."""
        stage, steps = self.turns.stages[tree.task.problem.id], list[Step]()
        for start, given, end in turns_in(response):
            ids, logprobs = response.token_ids[start:given], response.logprobs[start:given]
            if end == given and response.verdict != "ended":
                step = Step(ids, logprobs, stage.turn_of(ids))  # a limit came before the world
            else:
                step, _ = await stage.act(steps, Generated(ids, logprobs, "stop"))
            if step.token_ids != response.token_ids[start:end]:
                raise SystemExit(f"{tree.key}: the world answers otherwise than the tree holds")
            steps.append(step)
        return steps

    async def advantages(
        self, problem: Problem, steps: Sequence[Step], reward: float
    ) -> list[tuple[float, float]]:
        """The advantage of each turn of an episode, and its variance."""
        states = range(len(steps))
        values = [await self.value(problem, steps[:at]) for at in states]
        spread = [value * (1 - value) / (ROLLOUTS - 1) for value in values]
        after, wide = [*values[1:], reward], [*spread[1:], 0.0]
        return [(after[at] - values[at], wide[at] + spread[at]) for at in states]


async def held_against(
    references: References,
    tree: GradedTree,
    credits: Mapping[str, Any],
    design: str,
    config: Config,
) -> dict[str, Any]:
    """A question's tokens and, of some responses, each turn's credits and reference."""
    problem, turns = tree.task.problem, list[Turn]()
    every = [at for at, one in enumerate(tree.responses) for _ in range(one.samples)]
    taken = Random(f"{config.seed} {problem.id} {design}").sample(every, min(TAKEN, len(every)))
    async with references.turns.episode(problem):
        episodes = {
            at: (await references.episode(tree, tree.responses[at]), float(one.hre or 0.0))
            for at, one in enumerate(tree.responses)
        }
        told: dict[str, dict[int, list[float]]] = {
            name: {
                at: [tokens[at][place[0]] for place in turns_in(tree.responses[at])] for at in taken
            }
            for name, tokens in credits.items()
        }
        group = [episodes[at] for at in every]
        for variant in VARIANTS:
            made = gigpo(problem, group, variant)
            told[name_of(variant)] = {at: made[every.index(at)] for at in taken}
        for at in taken:
            for depth, (truth, variance) in enumerate(
                await references.advantages(problem, *episodes[at])
            ):
                said = {name: told[name][at][depth] for name in told}
                turns.append({"truth": truth, "variance": variance, "credits": said})
    cost = tree.cost
    return {
        "id": problem.id,
        "tokens": [cost.sampled_tokens, cost.given_tokens],
        "responses": sum(one.samples for one in tree.responses),
        "right": fmean(float(tree.responses[at].hre or 0.0) for at in every),
        "turns": turns,
    }


def name_of(variant: tuple[Any, ...]) -> str:
    norm, discount, omega, kind = variant
    part = "step alone" if omega is None else f"omega {omega:g}"
    return f"gigpo: over {norm}, discount {discount:g}, {part}, state {kind}"


def credit(args: argparse.Namespace) -> None:
    """Write what the credits say of a student's turns, and what is true."""
    [seed], [source] = args.seeds, args.sources
    folder = args.work / f"seed-{seed}"
    student = load_student(
        config := settings(source, seed), path=folder / source, opening=opening(config)
    )

    def spent(config: Config) -> float:
        tasks = tasks_of(config, "train", EQUAL)
        return fmean(tree.cost.computed for tree in search(student, config, tasks))

    share = spent(config) / (spent(settings(source, seed, *chains_of(12))) / 12)
    count = math.ceil(share)
    references = References(folder / f"{source}.references.jsonl", student, config)
    for split in (*["validation"] * args.choose, *READ[source]):
        tasks, parts = problems_of(source, seed, split), {}
        references.turns.tasks |= {task.problem.id: task for task in tasks}
        for design, more in (("tree", ()), ("chains", chains_of(count))):
            own = settings(source, seed, *more)
            trees = search(student, own, tasks)
            kept = [tree for tree in trees if tree.responses]
            groups = [(tree.tree, tree.responses) for tree in kept]
            credits = {}
            for name in CREDITS[design]:
                known = name.replace("siblings", "turn")
                asked = settings(source, seed, *more, f"train.credit={known}")
                earned = Collector(student, asked, method_of("grpo"), None)
                if name == known:
                    credits[name] = credit_tokens(groups, earned)
                else:
                    credits[name] = by_step(groups, earned, sibling_values)
            if "group" in credits:  # as often as it was sampled: a row's weight is no credit
                for tree, made in zip(kept, credits["group"], strict=True):
                    made[:] = [
                        [one / response.samples for one in row]
                        for row, response in zip(made, tree.responses, strict=True)
                    ]

            async def hold(
                design: str, own: Config, kept: list[GradedTree], credits: dict[str, Any]
            ) -> list[dict[str, Any]]:
                gate = asyncio.Semaphore(CONCURRENT)

                async def one(at: int, tree: GradedTree) -> dict[str, Any]:
                    async with gate:
                        mine = {name: made[at] for name, made in credits.items()}
                        return await held_against(references, tree, mine, design, own)

                return list(await asyncio.gather(*map(one, range(len(kept)), kept)))

            parts[design] = asyncio.run(hold(design, own, kept, credits))
            print(source, seed, split, design, len(kept), flush=True)
        write_json(folder / f"{source}.{split}.json", {"chains": count, "parts": parts})


# -- figures of credits ----------------------------------------------------------------------------

# Of a question's turns: sums of credit squared, credit times reference, reference squared, its
# variance, credit, reference, turns, right signs, and turns whose sign is known.
CC, CA, AA, VV, C, A, N, RIGHT, KNOWN = range(9)


def sums_of(turns: Sequence[Turn], name: str) -> list[float]:
    """What a question adds to the figures of a credit."""
    sums = [0.0] * 9
    for turn in turns:
        said, truth, variance = turn["credits"][name], turn["truth"], turn["variance"]
        known = truth**2 > 4 * variance
        agrees = 0.5 if abs(said) < 1e-9 else float((said > 0) == (truth > 0))
        each = (said**2, said * truth, truth**2, variance, said, truth, 1, agrees * known, known)
        sums = [a + b for a, b in zip(sums, each, strict=True)]
    return sums


def error_of(sums: np.ndarray, scale: float) -> np.ndarray:
    """Squared error of scaled credit, over the mean square of the reference; both without the
    reference's own variance.
    """
    squares = scale**2 * sums[..., CC] - 2 * scale * sums[..., CA] + sums[..., AA]
    return (squares - sums[..., VV]) / (sums[..., AA] - sums[..., VV])


def correlation_of(sums: np.ndarray) -> np.ndarray:
    n = sums[..., N]
    both = sums[..., CA] / n - sums[..., C] * sums[..., A] / n**2
    one = sums[..., CC] / n - (sums[..., C] / n) ** 2
    other = sums[..., AA] / n - (sums[..., A] / n) ** 2
    return both / np.sqrt(np.maximum(one * other, 1e-12))


def scale_of(sums: np.ndarray) -> float:
    """The factor of a credit with the least squared error."""
    total = sums.sum((0, 1))
    return float(total[CA] / total[CC]) if total[CC] else 0.0


def sums_by_seed(
    parts: Sequence[Mapping[str, Any]], design: str, name: str, groups: Mapping[str, int]
) -> np.ndarray:
    """`[S, G, 9]`: of each seed and distinct problem, by the problems' ids."""
    sums = np.zeros((len(parts), 1 + max(groups.values()), 9))
    for at, part in enumerate(parts):
        for row in part[design]:
            sums[at, groups[row["id"]]] += sums_of(row["turns"], name)
    return sums


def drawn_sums(sums: np.ndarray) -> Iterator[np.ndarray]:
    """The sums over questions and seeds, first as they are, then as the bootstrap draws them: the
    same draws for every credit.
    """
    yield sums.sum((0, 1))
    rng = np.random.default_rng(0)
    seeds, questions = sums.shape[:2]
    for _ in range(DRAWS):
        of_seeds = rng.multinomial(seeds, np.full(seeds, 1 / seeds))
        taken = rng.multinomial(questions, np.full(questions, 1 / questions))
        yield np.einsum("s,q,sqm->m", of_seeds, taken, sums)


def interval(values: Sequence[float] | np.ndarray) -> list[float]:
    """The first value with the interval of the others."""
    low, high = np.quantile(values[1:], [0.025, 0.975])
    return [float(values[0]), float(low), float(high)]


def problems_of(source: str, seed: int, split: str) -> list[Task]:
    first, num = SPLITS[split]
    half = "validation" if split == "validation" else "test"
    return tasks_of(settings(source, seed), half, num, first)


def groups_of(source: str, seed: int, split: str) -> dict[str, int]:
    """The number of each problem of a split, which repeats share, by its id."""
    tasks = problems_of(source, seed, split)
    return dict(zip((task.problem.id for task in tasks), repeats(tasks), strict=True))


def credit_table(args: argparse.Namespace, source: str, split: str) -> dict[str, Any]:
    """The figures of a source's credits over seeds."""

    folders = [args.work / f"seed-{seed}" for seed in args.seeds]
    cells = [read(folder / f"{source}.{split}.json") for folder in folders]
    choosing = [read(folders[0] / f"{source}.validation.json")["parts"]]
    test = [cell["parts"] for cell in cells]
    chosen_by, groups = (groups_of(source, args.seeds[0], one) for one in ("validation", split))

    def tuned(design: str, name: str) -> tuple[float, float]:
        sums = sums_by_seed(choosing, design, name, chosen_by)
        scale = scale_of(sums)
        return float(error_of(sums.sum((0, 1)), scale)), scale

    variants = {
        design: {name_of(one): tuned(design, name_of(one))[0] for one in VARIANTS}
        for design in CREDITS
    }
    best = {design: min(tried, key=tried.__getitem__) for design, tried in variants.items()}
    rows, errors, problems = [], {}, {}
    named = [(design, name, name) for design, names in CREDITS.items() for name in names]
    paper = name_of(("deviation", 0.95, 1.0, "seen"))
    for design, credit, name in [
        *named,
        *((design, "gigpo", best[design]) for design in CREDITS),
        ("chains", "gigpo as published", paper),
    ]:
        scale, sums = tuned(design, name)[1], sums_by_seed(test, design, name, groups)
        drawn = np.array(list(drawn_sums(sums)))
        errors[design, credit] = error_of(drawn, scale)
        mine = [part[design] for part in test]
        rows.append(
            {
                "design": design,
                "credit": credit,
                "variant": name,
                "scale": scale,
                "error": interval(errors[design, credit]),
                "by_seed": [float(error_of(one.sum(0), scale)) for one in sums],
                "squared_error": float(
                    (error_of(drawn[0], scale) * (drawn[0][AA] - drawn[0][VV])) / drawn[0][N]
                ),
                "correlation": interval(correlation_of(drawn)),
                "sign": interval(drawn[:, RIGHT] / drawn[:, KNOWN]),
                "turns": int(drawn[0][N]),
                "signs_known": int(drawn[0][KNOWN]),
                "truth_squared": float((drawn[0][AA] - drawn[0][VV]) / drawn[0][N]),
                "standard_error": math.sqrt(drawn[0][VV] / drawn[0][N]),
                "sampled": fmean(row["tokens"][0] for part in mine for row in part),
                "given": fmean(row["tokens"][1] for part in mine for row in part),
                "tokens": fmean(sum(row["tokens"]) for part in mine for row in part),
                "responses": fmean(row["responses"] for part in mine for row in part),
                "right": fmean(row["right"] for part in mine for row in part),
            }
        )
        if (design, credit) in (TREE, GIGPO):
            problems[design] = [
                [" ".join(f"{part:.4g}" for part in sums[:N]) for sums in of_seed]
                for of_seed in sums.tolist()
            ]
    for row in rows:
        row["gigpo_less_it"] = interval(errors[GIGPO] - errors[row["design"], row["credit"]])
        print(source, split, row["design"], row["credit"], row["error"], row["gigpo_less_it"])
    return {
        "source": source,
        "split": split,
        "seeds": args.seeds,
        "chains": [cell["chains"] for cell in cells],
        "problems": len(groups),
        "distinct": len(set(groups.values())),
        "rows": rows,
        "variants": variants,
        "primary": interval(errors[GIGPO] - errors[TREE]),
        "step_of_chains_less_of_trees": interval(errors["chains", "step"] - errors["tree", "step"]),
        "by_problem": problems,
        "tokens": {
            design: [" ".join(str(sum(row["tokens"])) for row in part[design]) for part in test]
            for design in CREDITS
        },
    }


# -- answering -------------------------------------------------------------------------------------


def answer(args: argparse.Namespace) -> None:
    """Write the cells that are asked for, as each ends."""
    [seed], [source] = args.seeds, args.sources
    base = ["student=small", f"problems.source={source}", f"seed={seed}"]
    config = load_config(None, overrides=base)
    folder = args.work / f"seed-{seed}"
    student = load_student(config, path=folder / source, opening=opening(config))
    for split, group, way, warmth in json.loads(args.cells):
        file = cell_file(folder, source, split, way, warmth)
        if file.exists():
            continue
        first, num = ANSWERED[split]
        method, *own = WAYS[group][way]
        told = load_config(None, overrides=[*base, *own, f"search.temperature={warmth}"])
        verifier = None if way.endswith("a vote") or not own else Calculator()
        tasks = tasks_of(told, split, num, first)
        context = MethodContext(student, verifier, told, tasks=tasks)
        cell = asyncio.run(
            run_cell(context, Benchmark(source, tasks), method, BUDGET, Progress(quiet=True))
        )
        write_json(file, asdict(cell))
        print(source, seed, split, way, warmth, fmean(cell.right), flush=True)


def cell_file(folder: Path, source: str, split: str, way: str, warmth: float) -> Path:
    return folder / "answers" / f"{source} {split} {way} {warmth:g}.json"


def answers(seed: Seed, source: str, asked: Sequence[tuple[str, str, str, float]]) -> list[Cell]:
    """Cells of a seed's student."""
    files = [cell_file(seed.path, source, split, way, warmth) for split, _, way, warmth in asked]
    left = [one for one, file in zip(asked, files, strict=True) if not file.exists()]
    if left:
        files[0].parent.mkdir(exist_ok=True)
        stage(seed, "answer", source, files[asked.index(left[-1])], "--cells", json.dumps(left))
    return [Cell(**read(file)) for file in files]


def answer_table(seeds: Sequence[Seed], source: str) -> dict[str, Any]:
    """Methods of answering over problems and seeds, each as validation problems chose it."""
    grid = [
        ("validation", group, way, warmth)
        for group, ways in WAYS.items()
        for way in ways
        for warmth in (WARMTHS if group != "greedy" else (1.0,))
    ]
    reached: dict[str, dict[str, float]] = defaultdict(dict)
    for (_, group, way, warmth), cell in zip(grid, answers(seeds[0], source, grid), strict=True):
        reached[group][f"{way} at {warmth:g}"] = fmean(cell.right)
    asked = []
    for group, tried in reached.items():
        way, _, best = max(tried, key=tried.__getitem__).rpartition(" at ")
        asked.append(("test", group, way, float(best)))
    jobs = seeds[0].args.jobs
    cells = side_by_side(jobs, lambda seed: answers(seed, source, asked), seeds)
    right = {
        group: [of_seed[at].right for of_seed in cells] for at, (_, group, *_) in enumerate(asked)
    }
    rows, same = [], cells[0][0].groups
    for at, (_, group, way, warmth) in enumerate(asked):
        mine, num = [of_seed[at] for of_seed in cells], len(same)
        rows.append(
            {
                "method": group,
                "way": f"{way} at {warmth:g}",
                "validation": reached[group],
                "accuracy": accuracy(right[group], same),
                "by_seed": [fmean(one) for one in right[group]],
                "tree_less_it": accuracy(np.subtract(right["mcts"], right[group]).tolist(), same),
                **{
                    name: fmean(getattr(cell, name) / num for cell in mine)
                    for name in (
                        "sampled_tokens",
                        "given_tokens",
                        "turns",
                        "tool_calls",
                        "tool_errors",
                    )
                },
                "outcomes": digits(right[group]),
                "tokens": [" ".join(map(str, cell.tokens)) for cell in mine],
            }
        )
        print(
            source,
            group,
            rows[-1]["way"],
            rows[-1]["accuracy"],
            rows[-1]["tree_less_it"],
            flush=True,
        )
    [step] = (row for row in rows if row["method"] == "step-rejection")
    return {
        "seeds": [seed.seed for seed in seeds],
        "problems": len(same),
        "distinct": len(set(same)),
        "budget": BUDGET,
        "rows": rows,
        "primary": step["tree_less_it"],
    }


# -- both ------------------------------------------------------------------------------------------


def stage(seed: Seed, part: str, source: str, finished: Path, *more: str) -> None:
    """Run a part of this script for one student."""
    words = [f"one-{part}", "--seeds", str(seed.seed), "--sources", source]
    words += ["--work", str(seed.args.work), *more]
    script = Path(__file__).resolve()
    seed.stage(f"{source} {part}", words, finished, configured=False, script=script)


def student_of(seed: Seed, source: str) -> None:
    seed.sft(source, "--source", source, "--model", "small")


def main() -> None:
    parser = provenance.make_parser(__doc__, "turns")
    add_work(parser, "turns")
    parts = ("credit", "answer", "one-credit", "one-answer")
    parser.add_argument(
        "parts", nargs="+", choices=parts, help="one-: of one student, by the others"
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[7, 8, 9, 10, 11])
    parser.add_argument("--sources", nargs="+", choices=SOURCES, default=[*SOURCES])
    parser.add_argument("--jobs", type=int, default=2, help="students side by side")
    parser.add_argument("--choose", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--cells", help=argparse.SUPPRESS)
    args = parser.parse_args()
    args.work = args.work.resolve()
    if args.parts[0].startswith("one-"):
        {"one-credit": credit, "one-answer": answer}[args.parts[0]](args)
        return
    seeds = [Seed(seed, args) for seed in args.seeds]
    figures = read(args.out) if args.out.exists() else {}
    figures = {name: figures[name] for name in ("credit", "answer") if name in figures}
    pairs = [(seed, source) for seed in seeds for source in args.sources]
    side_by_side(args.jobs, lambda pair: student_of(*pair), pairs)
    if "credit" in args.parts:

        def measure(pair: tuple[Seed, str]) -> None:
            seed, source = pair
            last = seed.path / f"{source}.{READ[source][-1]}.json"
            stage(seed, "credit", source, last, *["--choose"] * (seed is seeds[0]))

        side_by_side(args.jobs, measure, pairs)
        figures["credit"] = [
            credit_table(args, source, split) for source in args.sources for split in READ[source]
        ]
    if "answer" in args.parts:
        figures["answer"] = {source: answer_table(seeds, source) for source in args.sources}
    provenance.write(args.out, figures)


if __name__ == "__main__":
    main()
