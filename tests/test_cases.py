"""Responses as models write them, in kinds: each is graded as a person grades it.

`golden/answers.jsonl` is the project's own; the shared cases were met by people who do this job.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from alphazero_llm_trainer.config.load import load_config
from alphazero_llm_trainer.problems.grading import GRADERS
from alphazero_llm_trainer.problems.source import open_problems
from alphazero_llm_trainer.types import Problem, Task

OWN = Path(__file__).parent / "golden" / "answers.jsonl"
SHARED = Path(__file__).parents[2] / "shared" / "cases" / "answers.jsonl"


@pytest.mark.parametrize("file", [OWN, SHARED], ids=["own", "shared"])
def test_every_response_is_graded_as_a_person_grades_it(file: Path) -> None:
    if not file.is_file():
        pytest.skip("the shared cases are not here")
    wrong = []
    for line in file.read_text(encoding="utf-8").splitlines():
        case = json.loads(line)
        [grade] = GRADERS[case["grade"]].grade_many([(case["response"], case["gold"])])
        if grade.correct != case["right"]:
            wrong.append((case, grade.verdict, grade.answer))
    assert wrong == []


def test_a_response_that_was_cut_needs_a_mark() -> None:
    """What is read more kindly than before is still no answer of a response that a limit cut."""
    grader = GRADERS["numbers"]
    for response in ("答案是18。", "So it weighs 18g.", "<answer>18</answer>", "9 + 9 = 18", "The answer is $18$."):
        assert grader.final_answer(response) is not None
        assert grader.final_answer(response, strict=True) is None
    for response in ("#### $18$", "#### 18 ✅", "#### m+n = 9+9 = 18", "<think>5</think>\\boxed{18}"):
        assert grader.grade_many([(response, "18")], strict=True)[0].correct
    assert GRADERS["choice"].final_answer("So it is C.\nDone.", strict=True) is None


def test_thinking_is_no_play_of_the_game_of_numbers() -> None:
    source = open_problems(load_config().problems.model_copy(update={"source": "numbers"}))
    task = Task(Problem("p", "Use 6, 1 and 4 once each to make 24.", "numbers"), "24")
    play = "6 * 4 = 24, 1 24\n24 * 1 = 24, 24\n#### 24"
    assert source.grade(f"<think>\n6 + 4 = 10\n#### 10\n</think>\n{play}", task).correct
    assert not source.grade(f"<think>\n{play}", task).correct
