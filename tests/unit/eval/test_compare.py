"""What is read off the cells: counts, pairs, pass@k and maj@k, tables; and the folder that keeps
them.
"""

import asyncio

import pytest

from alphazero_llm_trainer.errors import CheckpointError, ConfigError, DataError
from alphazero_llm_trainer.eval.attempt import MethodContext
from alphazero_llm_trainer.eval.cells import SAMPLES_METHOD, Benchmark, Cell, run_cell
from alphazero_llm_trainer.eval.metrics import wilson
from alphazero_llm_trainer.eval.results import (
    EvalFolder,
    find_leaders,
    list_failures,
    pair_methods,
    pass_rows,
    summarise_cell,
)
from alphazero_llm_trainer.live import Progress
from alphazero_llm_trainer.problems.load import load_tasks
from alphazero_llm_trainer.problems.registry import source_of
from alphazero_llm_trainer.problems.step_checks import Calculator
from alphazero_llm_trainer.report.eval_page import evaluation_text


def cell(method, outcomes, budget=100, **more):
    n = len(outcomes)
    verdicts = ["correct" if one == "1" else "wrong" for one in outcomes]
    facts = {
        "answers": [{"question": f"{at}?", "gold": "1", "response": "2", "verdict": verdict}
                    for at, verdict in enumerate(verdicts)],
        "verdicts": {"correct": outcomes.count("1"), "wrong": outcomes.count("0")},
        "ended_by": {"finished": n}, "tokens": [40] * n, "sampled_tokens": 40 * n, "calls": n,
    }  # fmt: skip
    return Cell("embedded", method, budget, outcomes, **facts | more)


def sampled(correct, tokens):
    return Cell("embedded", SAMPLES_METHOD, 2, correct=correct, sampled_tokens=tokens)


# -- cells -----------------------------------------------------------------------------------------


def test_a_cell_adds_up(student, config):
    benchmark = Benchmark("embedded", load_tasks("embedded", "test", 30))
    context = MethodContext(student, Calculator(), config)
    found = asyncio.run(run_cell(context, benchmark, "best-of-n", 120, Progress(quiet=True)))
    assert len(found.outcomes) == 30 == sum(found.verdicts.values()) == sum(found.ended_by.values())
    right = found.outcomes.count("1")
    assert right == found.verdicts["correct"] > 0 and max(found.tokens) <= 120
    assert found.calls > 30 and found.cached_tokens > 0 and found.seconds > 0
    kept = [row["verdict"] == "correct" for row in found.answers]
    assert "".join(str(int(one)) for one in kept) == found.outcomes
    assert [row["tokens"] for row in found.answers] == found.tokens
    for row, task in zip(found.answers, benchmark.tasks, strict=True):
        assert (row["question"], row["gold"]) == (task.problem.question, task.gold)
        right_now = (
            row["response"] is not None
            and source_of(task.problem).grade(row["response"], task).correct
        )
        assert right_now == (row["verdict"] == "correct")
    row = summarise_cell(found)
    assert row["accuracy"][0] == right / 30 and row["most_tokens"] == max(found.tokens)
    assert row["sampled_tokens"] * 30 == found.sampled_tokens == sum(found.tokens)


# -- figures ---------------------------------------------------------------------------------------


def test_pairs_say_gain_loss_and_no_gain():
    base, better, worse = "0110" * 60, "1110" * 60, "0010" * 60
    methods = {
        "greedy": base, "best-of-n": better, "majority": worse, "adaptive-best-of-n": base,
        "mcts": base
    }  # fmt: skip
    cells = [cell(*one) for one in methods.items()]
    # The last has nothing to pair with.
    rows = pair_methods([*cells, cell("mcts", base, budget=200)])
    assert {row["budget"] for row in rows} == {100}
    said = {(row["method"], row["over"]): row["reading"] for row in rows}
    for over, reading in {"greedy": "no gain", "best-of-n": "loss", "majority": "gain"}.items():
        assert said["mcts", over] == reading
    assert ("mcts", "adaptive-best-of-n") in said
    assert ("best-of-n", "adaptive-best-of-n") not in said


def test_pass_at_k_of_a_table():
    row = pass_rows(sampled([[True, False], [False, False]], 80))
    assert row["pass@1"][0] == 0.25
    assert row["pass@2"] == [0.5, wilson(1, 2).low, wilson(1, 2).high]
    assert "pass@4" not in row and row["sampled_tokens"] == 40


def results_of(*cells):
    return {
        "command": "eval", "student": "tiny", "verifier": "calculator", "seed": 7,
        "rows": [summarise_cell(one) for one in cells], "pairs": pair_methods(cells),
        "leaders": find_leaders(cells),
        "failures": list_failures(cells),
        "at_k": [pass_rows(sampled([[True, False]], 8))],
        "benchmarks": {"embedded": {"problems": 4}}, "config": {"search": {"temperature": 1.0}},
    }  # fmt: skip


@pytest.mark.parametrize(
    "cells, said",
    [
        (
            (cell("greedy", "0011"), cell("majority", "0101")),
            "between greedy and majority; greedy has",
        ),
        (
            (cell("greedy", "0101"), cell("mcts", "0111")),
            "no difference shown between mcts and greedy; mcts has accuracy 0.750 [0.301, ",
        ),
        (
            (
                cell("greedy", "0" * 9 + "1"),
                cell("majority", "0111110110"),
                cell("mcts", "01" + "1" * 8),
            ),
            "no difference shown between mcts and majority; mcts has accuracy 0.900 [0.596, ",
        ),
        ((cell("greedy", "0" * 8), cell("mcts", "1" * 8)), "mcts is best, accuracy 1.000 [0.676, "),
        ((cell("mcts", "0111"),), "at 100 tokens: mcts has accuracy 0.750"),
        ((cell("mcts", "0000"),), "no method has a right answer"),
        ((cell("mcts", "0000", verdicts={"too long": 4}),), "4 of 4 questions don't fit"),
    ],
)
def test_what_came_of_it_is_said_in_a_sentence(cells, said):
    assert said in evaluation_text(results_of(*cells))


def test_failures_are_those_of_the_leader_at_the_largest_budget():
    cells = [
        cell("greedy", "01" * 15),
        cell("mcts", "1" * 30, 200),
        cell("greedy", "1" + "0" * 29, 200),
    ]
    found = list_failures(cells)["embedded"]
    assert (found["method"], found["budget"], found["count"]) == ("mcts", 200, 0)
    found = list_failures(cells[::2])["embedded"]
    assert (found["method"], found["count"]) == ("greedy", 29)
    assert [row["question"] for row in found["answers"]] == [f"{at}?" for at in range(1, 11)]


# -- the folder ------------------------------------------------------------------------------------


def test_the_folder_keeps_whole_cells_and_refuses_other_settings(tmp_path):
    identity, rows = {"seed": 7, "search": {"max_tokens": 160}}, {"embedded": {"data_hash": "aa"}}
    folder, kept = EvalFolder(tmp_path / "new"), cell("greedy", "01")
    folder.begin(identity, rows)
    folder.write(kept)
    folder.check_free()  # isn't finished, so it goes on
    folder.write_card({})
    with pytest.raises(ConfigError, match="--resume"):
        folder.check_free()
    with pytest.raises(CheckpointError, match="--resume"):
        EvalFolder.find(tmp_path, tmp_path / "none")

    def read(identity=identity, rows=rows):
        folder = EvalFolder.find(tmp_path, tmp_path / "new")
        folder.begin(identity, rows)
        return folder.read("embedded", "greedy", 100)

    assert read() == kept and folder.read("embedded", "greedy", 200) is None
    with pytest.raises(ConfigError, match=r"search\.max_tokens is 99.*160"):
        read({"seed": 7, "search": {"max_tokens": 99}})
    with pytest.raises(ConfigError, match="data_hash is 'cc'"):
        read(rows={"embedded": {"data_hash": "cc"}})
    for broken in ("{", "[]", '{"benchmark": "embedded", "asked": {}}'):
        folder.file("embedded", "greedy", 100).write_text(broken)
        with pytest.raises(DataError, match=r"embedded\.greedy\.100\.json is not what"):
            read()
