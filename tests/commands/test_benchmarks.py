"""The benchmarks' own machinery: the plain search grows the package's trees, and what is counted is
what was done.
"""

import pytest
from support import tiny_llama

from alphazero_llm_trainer.config.load import load_config
from alphazero_llm_trainer.eval.cells import Cell
from alphazero_llm_trainer.problems.pancake import flip
from alphazero_llm_trainer.problems.source import open_source
from alphazero_llm_trainer.types import Problem
from benchmarks.generations import GAMES, sibling
from benchmarks.search import Arm, PlainSearch, Setting, Watched, run_arm, same
from benchmarks.value_gate import DISCOUNTS, NOISY, gate, pair_accuracy, spread_of


@pytest.mark.parametrize("reward", ["levels", "coin"])
def test_arms_agree_and_count_what_they_do(reward):
    sizes = {"trees": 2, "simulations": 20, "prompt": 9, "horizon": 5, "keep": 2, "reward": reward}
    slow, slow_trees = run_arm(Arm("plain", "plain", "greedy", **sizes))
    fast, fast_trees = run_arm(Arm("ours", "ours", "greedy", **sizes))
    assert same(fast_trees, slow_trees) == (2, 2)
    # The first expands the root.
    assert sum(visits for visits, _, _ in slow_trees[0].values()) == 19
    assert fast["simulations_in_all"] == slow["simulations_in_all"] == 40
    # Every simulation of the plain way computes at least its prompt: for its logits, and in its
    # rollout.
    assert slow["tokens_per_simulation"] > 9
    assert (
        fast["computed_tokens"] < slow["computed_tokens"] and fast["tokens_per_unique_token"] <= 1.0
    )
    assert fast["rows_per_forward"] > slow["rows_per_forward"] == 1.0


def test_unique_tokens_are_distinct_prefixes():
    setting = Setting(Arm("ours", "ours", "greedy", trees=2, prompt=3))
    responses = [{(1, 2, 3), (1, 2, 4), (1, 2), (7,)}, {(1, 2, 3, 9), (5, 1), (5, 2)}]
    for problem, found in zip(setting.problems, responses, strict=True):
        setting.responses[problem.id] = found
    prefixes = [
        {ids[:end] for ids in found for end in range(1, len(ids) + 1)} for found in responses
    ]
    assert setting.unique_tokens() == 2 * 3 + sum(map(len, prefixes))


def test_forwards_inside_generate_are_counted():
    model = tiny_llama(3)
    watched = Watched(model)
    search = PlainSearch(
        model,
        Arm("plain", "plain", "greedy", 1, simulations=1, horizon=4),
        lambda ids: False,
        lambda ids: 1.0,
    )
    search.run((5, 6, 7))
    work = watched.stop()
    response = work.forwards - 1  # one forward for the root's children, then one a token
    assert 1 <= response <= 4 and work.rows == work.forwards
    assert work.computed_tokens == 3 + 3 + (response - 1)
    search.run((5, 6, 7))
    assert watched.work.forwards == work.forwards


def test_each_step_has_one_other_legal_step_as_sibling():
    game = GAMES["pancake"]
    problem = Problem("one", "8 flips: 32145", "pancake", 1)
    flips = [f"{k}:{flip('41235', k)}" for k in range(2, 6)]
    others = [sibling(game, problem, ["4:41235\n"], step) for step in flips]
    assert sorted(others) == sorted(flips)
    assert all(other != step for other, step in zip(others, flips, strict=True))
    # What isn't the flip that it says, and what ends the game, is its own.
    assert sibling(game, problem, ["4:41235\n"], "3:12345") == "3:12345"
    assert sibling(game, problem, [], "3:12345") == "3:12345"
    assert {sibling(game, problem, [], f"{k}:{flip('32145', k)}")[0] for k in (2, 4, 5)} == set(
        "245"
    )


def test_numbers_have_siblings_and_the_chance_of_random_play():
    game, problem = (
        GAMES["numbers"],
        Problem("one", "Use 2, 3 and 4 once each to make 20.", "numbers", 1),
    )
    steps = game.moves(problem, game.state(problem, []))
    others = [sibling(game, problem, [], step) for step in steps]
    assert sorted(others) == sorted(steps) and all(map(str.__ne__, others, steps))
    after = [line for line in steps if line.startswith("3 + 2 = 5")]
    # Of the moves with 5 and 4, multiplication alone ends at 20.
    legal = game.moves(problem, game.state(problem, after))
    assert game.exact(problem, after, 1.0) == pytest.approx(1 / (len(legal) + 1))


@pytest.mark.parametrize("source", ["pancake", "numbers"])
def test_planted_noise_has_as_many_pairs_right_as_it_is_asked_for(source):
    tasks = open_source(load_config(overrides=[f"problems.source={source}"])).load("train", 12)
    problems, discount = [task.problem for task in tasks], DISCOUNTS[source]

    def reached(spread):
        value = NOISY[source](spread, discount)
        return pair_accuracy(GAMES[source], problems, value, discount)

    assert reached(0.0) > 0.98 and reached(1.0) > reached(4.0) > reached(16.0) > 0.4
    assert reached(spread_of(source, problems, 0.8, discount)) == pytest.approx(0.8, abs=0.02)


def test_a_gate_holds_the_best_search_by_a_value_against_the_best_that_reads_none():
    right = {
        ("none", "puct"): "0000", ("none", "phs"): "1000", ("constant", "best-first"): "1100",
        ("noisy", "puct"): "1000", ("noisy", "phs"): "1110", ("exact", "phs"): "1111",
    }  # fmt: skip
    cells = {key: Cell("", "mcts", 9, outcomes) for key, outcomes in right.items()}
    for cell in cells.values():
        cell.groups = [0, 1, 2, 3]
    found = gate(cells)
    assert found["without"] == ["constant", "best-first"]
    assert found["noisy"]["search"] == "phs" and found["noisy"]["less_without"][0] == 0.25
    assert found["exact"]["less_without"][0] == 0.5
