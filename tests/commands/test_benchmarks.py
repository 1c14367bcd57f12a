"""The benchmarks' own machinery: siblings, values and noise are what they say."""

import pytest
from generations import GAMES, exact_value, sibling
from turns import gigpo
from value_gate import DISCOUNTS, NOISY, gate, pair_accuracy, spread_of

from alphazero_llm_trainer.config.load import load_config
from alphazero_llm_trainer.eval.cells import Cell
from alphazero_llm_trainer.problems.pancake import flip_distances, flip_row
from alphazero_llm_trainer.problems.registry import open_source
from alphazero_llm_trainer.types import Problem, Step


def test_each_step_has_one_other_legal_step_as_sibling():
    game = GAMES["pancake"]
    problem = Problem("one", "8 flips: 32145", "pancake", 1)
    flips = [f"{k}:{flip_row('41235', k)}" for k in range(2, 6)]
    others = [sibling(game, problem, ["4:41235\n"], step) for step in flips]
    assert sorted(others) == sorted(flips)
    assert all(other != step for other, step in zip(others, flips, strict=True))
    # What isn't the flip that it says, and what ends the game, is its own.
    assert sibling(game, problem, ["4:41235\n"], "3:12345") == "3:12345"
    assert sibling(game, problem, [], "3:12345") == "3:12345"
    assert {sibling(game, problem, [], f"{k}:{flip_row('32145', k)}")[0] for k in (2, 4, 5)} == set(
        "245"
    )


def test_the_exact_value_is_what_the_best_play_reaches():
    table = flip_distances(6)
    assert (len(table), max(table.values())) == (720, 7)  # 6! rows; pancake numbers, OEIS A058986
    for row, needed in table.items():
        after = [table[flip_row(row, count)] for count in range(2, 7)]
        assert all(abs(needed - other) <= 1 for other in after)
        assert needed == 0 or min(after) == needed - 1
    problem = Problem("p", "4 flips: 31425", "pancake")
    assert flip_distances(5)["31425"] == 4
    values = [("", 1.0, 0.5**4), ("3:41325\n", 1.0, 0.5**3), ("4:24135\n", 0.0, 0.0)]
    for steps, sure, discounted in values:
        assert exact_value(problem, steps.splitlines()) == sure
        assert exact_value(problem, steps.splitlines(), 0.5) == discounted
    assert exact_value(problem, ["2:31425"]) == 0.0  # not a row that the flip makes


def test_numbers_have_siblings_and_the_chance_of_random_play():
    game = GAMES["numbers"]
    problem = Problem("one", "Use 2, 3 and 4 once each to make 20.", "numbers", 1)
    steps = game.moves(problem, game.state(problem, []))
    others = [sibling(game, problem, [], step) for step in steps]
    assert sorted(others) == sorted(steps) and all(map(str.__ne__, others, steps))
    after = [line for line in steps if line.startswith("3 + 2 = 5")]
    # Of the moves with 5 and 4, multiplication alone ends at 20.
    legal = game.moves(problem, game.state(problem, after))
    assert game.exact(problem, after, 1.0) == pytest.approx(1 / (len(legal) + 1))


@pytest.mark.parametrize(
    ("kind", "expected"),
    [("seen", [[0.25], [0.25, 0, 0.25], [-0.75]]), ("whole", [[1 / 3], [1 / 3, 0, 0], [-2 / 3]])],
)
def test_gigpo_holds_a_turns_return_against_those_of_its_state(kind, expected):
    problem = Problem("one", "8 flips: 32145", "hidden", 1)
    played = [("3", 1.0), ("223", 1.0), ("2", 0.0)]  # the second is back at the row, two flips on
    episodes = [([Step((), (), f"{move}\n") for move in moves], won) for moves, won in played]
    made = gigpo(problem, episodes, ("one", 1.0, None, kind))
    assert [pytest.approx(each) for each in expected] == made
    whole = gigpo(problem, episodes, ("one", 1.0, 1.0, kind))
    assert whole[2] == [pytest.approx(expected[2][0] - 2 / 3)]  # with the outcome's part


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
