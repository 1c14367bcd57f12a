"""Search that a value guides: one step a simulation, Q scaled by the tree, on the game of numbers
under its exact value.
"""

import asyncio
import math
import re
from collections import Counter
from functools import cache, lru_cache
from itertools import combinations
from random import Random

import pytest
from scripted import hashed_reward

from alphazero_llm_trainer.config.sections import SearchConfig
from alphazero_llm_trainer.engine.protocol import Judgement
from alphazero_llm_trainer.errors import ConfigError
from alphazero_llm_trainer.eval.named_verifiers import Product
from alphazero_llm_trainer.mcts.descent import BestFirst, Live
from alphazero_llm_trainer.mcts.driver import Search
from alphazero_llm_trainer.mcts.mcts import LeafEvaluation, Mcts
from alphazero_llm_trainer.mcts.select import best_first
from alphazero_llm_trainer.problems.numbers import Numbers, apply_move, play_moves, read_numbers
from alphazero_llm_trainer.problems.step_checks import Calculator
from alphazero_llm_trainer.tree.arena import ROOT, Tree
from alphazero_llm_trainer.types import Continuation, Cost, Step

GAMES = 30
BUDGET = 400


def legal(left):
    """Every step of random legal play from `left`: its line, the numbers after it, its chance."""
    chances = Counter()
    pairs = 0
    for first, second in combinations(range(len(left)), 2):
        a, b = max(left[first], left[second]), min(left[first], left[second])
        others = [n for at, n in enumerate(left) if at not in (first, second)]
        moves = [move for op in "+-*/" if (move := apply_move(a, op, b)) is not None]
        pairs += bool(moves)
        for a, op, b, c in moves:
            after = tuple(sorted([*others, c]))
            line = f"{a} {op} {b} = {c}, {' '.join(map(str, after))}\n"
            chances[line, after] += 1 / len(moves)
    return [(line, after, chance / pairs) for (line, after), chance in chances.items()]


legal = lru_cache(None)(legal)


@cache
def chance(left, target):
    """How likely random legal play from `left` ends at `target`: the exact value."""
    if len(left) == 1:
        return float(left == (target,))
    return math.fsum(p * chance(after, target) for _, after, p in legal(left))


def state(problem, steps):
    """The numbers left and the target."""
    numbers, target = read_numbers(problem.question)
    left = play_moves(numbers, [step.text for step in steps if not step.text.startswith("####")])
    return tuple(sorted(left.elements())), target


class RandomPlay:
    """A scripted student: random legal steps, none twice where they are `without` repeats, and the
    number that is left as the answer.
    """

    def prompt_ids(self, problem):
        return (1,)

    async def continuations(
        self,
        problem,
        steps,
        n,
        seed,
        limits,
        temperature=None,
        without=None,
    ):
        rng, made, so_far = Random(seed), [], list(steps)
        known = {ids for ids, _ in without or ()}
        ended = False
        while not ended and len(made) < limits.steps:
            left, _ = state(problem, so_far)
            if len(left) == 1:
                line, p, ended = f"#### {left[0]}", 1.0, True
            else:
                steps_ = [move for move in legal(left) if tokens_of(move[0]) not in known]
                [(line, _, p)] = rng.choices(
                    steps_ or legal(left), [m[2] for m in steps_ or legal(left)]
                )
            ids = tokens_of(line)
            step = Step(ids, (math.log(p), *[0.0] * (len(ids) - 1)), line)
            made.append(step)
            so_far.append(step)
        ids = sum(len(step.token_ids) for step in made)
        return [Continuation(tuple(made), ended)], Cost(sampled_tokens=ids, calls=1)


def tokens_of(line):
    """A token a digit and a sign, and one for the line's end."""
    return (*(ord(token[0]) for token in re.findall(r"\d|[-+*/=,#]+", line)), 0)


class Valued:
    """A verifier of V alone: a function of the numbers left and the target."""

    name, checks, guides, computes, scored_tokens = "value", False, True, False, 0

    def __init__(self, value):
        self.value = value

    async def __call__(self, problem, prompt_ids, steps):
        values = tuple(self.value(*state(problem, steps[: at + 1])) for at in range(len(steps)))
        return Judgement(
            values, values[-1] if values else 1.0, frozenset(range(len(steps))), values
        )


def solved(value, games=GAMES, **changes):
    """The share of games that a search under `value` solves within the budget."""
    settings = SearchConfig.model_validate(
        {"simulations": 1000, "budget_tokens": BUDGET, "verify": {"reserve": 0}, **changes}
    )
    judge = Product([Calculator(), Valued(value)])
    one = Search(RandomPlay(), None, settings, verifier=judge)

    async def every():
        tasks = Numbers((2,)).load("validation", games, 0)
        results = [await one.run(task.problem, seed) for seed, task in enumerate(tasks)]
        return [result.ended_by == "accepted" for result in results]

    return sum(asyncio.run(every())) / games


def noisy(spread):
    """The exact value's logit under noise that each state keeps."""

    def value(left, target):
        exact = min(max(chance(left, target), 1e-4), 1 - 1e-4)
        noise = math.sqrt(12) * (hashed_reward(f"{left} {target}") - 0.5)
        return 1 / (1 + math.exp(-math.log(exact / (1 - exact)) - spread * noise))

    return value


def test_a_right_value_wins_where_a_constant_one_does_not_and_noise_costs():
    exact, blurred, none = solved(chance), solved(noisy(3.0)), solved(lambda left, target: 0.5)
    assert exact >= 0.7 and none <= 0.35
    assert exact > blurred > none


def test_a_large_constant_drowns_what_the_value_says():
    assert solved(chance, exploration=0.1) >= 0.7
    assert solved(chance, exploration=2.0) <= 0.5


def test_best_first_takes_the_state_with_the_largest_value():
    assert solved(chance, select="best-first") >= 0.9
    assert solved(lambda left, target: 0.5, select="best-first") <= 0.5


def test_best_first_needs_a_rule():
    settings = SearchConfig(select="best-first")
    with pytest.raises(ConfigError, match=r"best-first.*verifier"):
        Search(RandomPlay(), None, settings)


def test_best_first_leaves_a_state_after_which_nothing_fits():
    """A draw that gave no step counts as one: else that state would be asked for ever."""
    tree = Tree()
    near, far = (tree.attach(ROOT, Step((i,), (0.0,), f"{i}\n")) for i in range(2))
    tree.V[ROOT], tree.V[near], tree.V[far] = 0.1, 0.9, 0.5
    for node in (near, far):
        tree.backup(node, tree.V[node])
    mcts = Mcts(tree, BestFirst(Live(tree, 4), best_first), 40)
    asked = Counter[int]()
    for _ in range(20):
        [leaf] = mcts.ask()
        asked[leaf.node] += 1
        mcts.tell(leaf, LeafEvaluation(value=0.0))
    assert asked[near] > asked[far] > asked[ROOT]
