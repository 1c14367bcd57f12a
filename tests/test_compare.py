"""What is read off the cells: counts, pairs, pass@k and maj@k, tables; and the folder that keeps
them.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np
import pytest

from alphazero_llm_trainer.config.load import load_config
from alphazero_llm_trainer.errors import ConfigError, DataError
from alphazero_llm_trainer.eval.attempt import MethodContext
from alphazero_llm_trainer.eval.cells import SAMPLES, Benchmark, Cell, run_cell, run_samples
from alphazero_llm_trainer.eval.metrics import majority_at_k, paired_bootstrap, pass_at_k, wilson
from alphazero_llm_trainer.eval.results import (
    EvalFolder,
    at_k,
    paired,
    summary,
)
from alphazero_llm_trainer.live import Progress
from alphazero_llm_trainer.policy.student import load_student
from alphazero_llm_trainer.problems.load import load_tasks
from alphazero_llm_trainer.problems.step_checks import Calculator
from alphazero_llm_trainer.report.evaluation import result_text, results_markdown


def cell(method: str, outcomes: str, budget: int = 100, **more) -> Cell:
    n = len(outcomes)
    verdicts = {"correct": outcomes.count("1"), "wrong": outcomes.count("0")}
    return Cell(
        "embedded",
        method,
        budget,
        outcomes,
        verdicts,
        {"finished": n},
        [40] * n,
        40 * n,
        calls=n,
        **more,
    )


def sampled(correct: list[list[bool]], answers: list[list[str | None]], tokens: int) -> Cell:
    return Cell("embedded", SAMPLES, 2, correct=correct, answers=answers, sampled_tokens=tokens)


# -- cells
# --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def sampler() -> MethodContext:
    config = load_config(overrides=["student=embedded"])
    return MethodContext(load_student(config), Calculator(), config)


def test_a_cell_adds_up(sampler: MethodContext) -> None:
    tasks = load_tasks("embedded", "test", 30)
    progress = Progress(quiet=True)
    found = asyncio.run(run_cell(sampler, Benchmark("embedded", tasks), "best-of-n", 120, progress))
    assert len(found.outcomes) == 30 == sum(found.verdicts.values()) == sum(found.ended_by.values())
    assert found.outcomes.count("1") == found.verdicts["correct"] > 0
    assert (
        progress.work.finished_tokens == found.sampled_tokens == sum(found.tokens)
        and max(found.tokens) <= 120
    )
    assert found.calls > 30 and found.cached_tokens > 0 and found.seconds > 0
    row = summary(found)
    assert (
        row["accuracy"][0]
        == found.outcomes.count("1") / 30
        == wilson(found.outcomes.count("1"), 30).value
    )
    assert row["sampled_tokens"] == found.sampled_tokens / 30 and row["most_tokens"] == max(
        found.tokens
    )


def test_samples_are_graded_and_keyed(sampler: MethodContext) -> None:
    tasks = load_tasks("embedded", "test", 10)
    found = asyncio.run(run_samples(sampler, Benchmark("embedded", tasks), 4, Progress(quiet=True)))
    assert [len(row) for row in found.correct] == [4] * 10
    for rights, answers, task in zip(found.correct, found.answers, tasks, strict=True):
        assert rights == [answer == task.gold for answer in answers]


# -- figures
# --------------------------------------------------------------------------------------------------


def test_pairs_say_gain_loss_and_no_gain() -> None:
    rng = np.random.default_rng(0)
    base = "".join("01"[int(x < 0.5)] for x in rng.random(300))
    better = "".join("1" if at % 4 == 0 else old for at, old in enumerate(base))
    worse = "".join("0" if at % 4 == 0 else old for at, old in enumerate(base))
    cells = [
        cell("greedy", base),
        cell("best-of-n", better),
        cell("majority", worse),
        cell("adaptive-best-of-n", base),
        cell("mcts", base),
        cell("mcts", base, budget=200),
    ]
    rows = {(row["method"], row["over"]): row for row in paired(cells) if row["budget"] == 100}
    assert rows["mcts", "greedy"]["reading"] == "no gain" and rows["mcts", "greedy"]["gain"] == [
        0.0,
        0.0,
        0.0,
    ]
    assert (
        rows["mcts", "best-of-n"]["reading"] == "loss"
        and rows["mcts", "majority"]["reading"] == "gain"
    )
    assert ("mcts", "adaptive-best-of-n") in rows and (
        "best-of-n",
        "adaptive-best-of-n",
    ) not in rows
    expected = paired_bootstrap([float(x) for x in better], [float(x) for x in base])
    assert rows["best-of-n", "greedy"]["gain"] == [expected.value, expected.low, expected.high]
    assert not [row for row in paired(cells) if row["budget"] == 200]  # nothing to pair with


def test_pass_and_majority_at_k_of_a_table() -> None:
    row = at_k(sampled([[True, False], [False, False]], [["3", "4"], ["5", None]], 80))
    assert row["pass@1"][0] == pytest.approx(np.mean([pass_at_k(2, 1, 1), 0.0])) == 0.25
    assert row["pass@2"] == [0.5, wilson(1, 2).low, wilson(1, 2).high]
    assert (
        row["maj@1"][0] == 0.25 and row["maj@2"][0] == 0.25
    )  # of two different answers each is chosen half the time
    assert "pass@4" not in row and row["sampled_tokens"] == 40


def test_majority_at_k_equals_enumeration() -> None:
    answers = ["a", "b", "a", None, "c", "b", "a"]
    correct = [answer == "a" for answer in answers]
    for k in range(1, 8):
        shares = []
        for chosen in combinations(range(7), k):
            votes = [answers[i] for i in chosen if answers[i] is not None]
            most = max((votes.count(vote) for vote in votes), default=0)
            winners = {vote for vote in votes if votes.count(vote) == most}
            shares.append(("a" in winners) / len(winners) if winners else 0.0)
        assert majority_at_k(answers, correct, k) == pytest.approx(np.mean(shares))
    assert majority_at_k(answers, correct, 1) == pytest.approx(3 / 7)
    with pytest.raises(ValueError, match="k is 8"):
        majority_at_k(answers, correct, 8)
    many = ["a"] * 30 + ["b"] * 20
    assert majority_at_k(many, [one == "a" for one in many], 15) == pytest.approx(
        0.8, abs=0.08
    )  # drawn subsets


def of_benchmark(benchmark: str, method: str, outcomes: str, calls: int = 4) -> Cell:
    return replace(cell(method, outcomes), benchmark=benchmark, calls=calls)


def results_of(cells: list[Cell]) -> dict[str, Any]:
    rows = [summary(one) for one in cells]
    return {
        "command": "eval", "student": "tiny", "verifier": "calculator", "seed": 7, "rows": rows, "pairs": paired(cells),
        "at_k": [], "benchmarks": {one.benchmark: {"problems": 4} for one in cells},
    }  # fmt: skip


def test_methods_that_are_level_are_said_to_be() -> None:
    cells = [
        of_benchmark("math", "greedy", "0011", 4),
        of_benchmark("math", "majority", "0101", 12),
    ]
    said = result_text(results_of(cells)).splitlines()[0]
    assert said.startswith("math at 100 tokens: greedy, majority are level, accuracy 0.500 [")


def test_questions_that_do_not_fit_are_remarked() -> None:
    one = replace(of_benchmark("math", "majority", "0000", 0), verdicts={"too long": 4})
    assert "math: 4 of 4 questions don't fit the context" in result_text(results_of([one]))


def test_the_best_comes_first_and_the_tables_hold_every_row() -> None:
    cells = [
        cell("greedy", "0101"),
        cell("mcts", "0111"),
        cell("mcts", "1111", 200),
        cell("greedy", "0101", 200),
    ]
    results = {
        "command": "eval", "student": "tiny", "verifier": "calculator", "seed": 7, "rows": [summary(c) for c in cells],
        "pairs": paired(cells), "at_k": [at_k(sampled([[True, False]], [["3", "4"]], 8))],
        "benchmarks": {"embedded": {"problems": 4}}, "config": {"search": {"temperature": 1.0}},
    }  # fmt: skip
    said = result_text(results).splitlines()
    assert said[0].startswith(
        "embedded at 100 tokens: mcts is best, accuracy 0.750 [0.301, 0.954]; mcts took 40 tokens "
        "a problem, +0.250"
    )
    assert said[0].endswith("over greedy: no clear gain")
    assert [line.split()[0] for line in said[1:4]] == ["method", "mcts", "greedy"]
    nothing = results | {"rows": [summary(cell("mcts", "0000"))], "pairs": [], "at_k": []}
    assert result_text(nothing).startswith("embedded at 100 tokens: no method has a right answer\n")
    text = results_markdown(results)
    table = [
        line for line in text.splitlines() if line.startswith("| 100") or line.startswith("| 200")
    ]
    assert len(table) == 4 and "0.750 [0.301, 0.954]" in table[0] and "+0.250" in table[0]
    assert "pass@k" in text and "unparsed" not in text  # no answer was


# -- the folder
# --------------------------------------------------------------------------------------------------


def test_the_folder_keeps_whole_cells_and_refuses_other_settings(tmp_path) -> None:
    out = tmp_path / "eval-001"
    identity = {"seed": 7, "search": {"max_tokens": 160}}

    def rows(digest: str) -> dict[str, Any]:
        return {"embedded": {"problems": 2, "data_hash": digest}}

    folder = EvalFolder(out, identity, rows("aa"), resume=False)
    kept = cell("greedy", "01")
    folder.write(kept)
    assert (
        folder.read("embedded", "greedy", 100) == kept
        and folder.read("embedded", "greedy", 200) is None
    )
    with pytest.raises(ConfigError, match="--resume"):
        EvalFolder(out, identity, rows("aa"), resume=False)
    again = EvalFolder(out, identity, {**rows("aa"), "gsm8k": {"data_hash": "bb"}}, resume=True)
    assert again.read("embedded", "greedy", 100) == kept
    with pytest.raises(ConfigError, match=r"search\.max_tokens is 99.*160"):
        EvalFolder(out, {"seed": 7, "search": {"max_tokens": 99}}, {}, resume=True)
    with pytest.raises(ConfigError, match="embedded: data_hash is 'cc'"):
        EvalFolder(out, identity, rows("cc"), resume=True)
    assert json.loads((out / "run.json").read_text())["benchmarks"].keys() == {"embedded", "gsm8k"}
    with pytest.raises(ConfigError, match="found no"):
        EvalFolder(tmp_path / "none", identity, {}, resume=True)
    for broken in (
        "{",
        "[]",
        json.dumps({"benchmark": "embedded", "method": "greedy", "budget": 100, "tokens": 5}),
    ):
        folder.file("embedded", "greedy", 100).write_text(broken)
        with pytest.raises(
            DataError, match=r"embedded\.greedy\.100\.json is not what .*--resume measures it again"
        ):
            folder.read("embedded", "greedy", 100)
