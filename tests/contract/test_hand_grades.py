"""Every grader against people: responses as models write them, and all real rows."""

import json

import pytest
from tables import CHECKOUT, TESTS

from alphazero_llm_trainer.grading import answers
from alphazero_llm_trainer.grading.graders import GRADERS, Verdict
from alphazero_llm_trainer.problems.load import load_tasks
from alphazero_llm_trainer.problems.registry import source_of

GOLDEN = TESTS / "golden"
OWN = GOLDEN / "answers.jsonl"
SHARED = CHECKOUT.parent / "shared" / "cases" / "answers.jsonl"


@pytest.mark.parametrize("file", [OWN, SHARED], ids=["own", "shared"])
def test_every_response_is_graded_as_a_person_grades_it(file):
    if not file.is_file():
        pytest.skip("the shared cases are not here")
    wrong = []
    for line in file.read_text(encoding="utf-8").splitlines():
        case = json.loads(line)
        [grade] = GRADERS[case["grade"]].grade_many([(case["response"], case["gold"])])
        if grade.correct != case["right"]:
            wrong.append((case, grade.verdict, grade.answer))
    assert wrong == []


HAND_GRADES = list(map(json.loads, (GOLDEN / "hand_grades.jsonl").read_text().splitlines()))


def test_every_response_is_graded_as_it_was_read():
    """200 responses of SmolLM2-135M, read one by one: to GSM8K's first test questions, and after
    training on embedded ones.
    """
    assert len(HAND_GRADES) == 200 and sum(row["right"] for row in HAND_GRADES) == 8
    grader = GRADERS["numbers"]
    for row in HAND_GRADES:
        [grade] = grader.grade_many([(row["response"], row["gold"])], strict=row["cut"])
        assert grade.correct == row["right"], (row["id"], row["why"])


# -- real rows -------------------------------------------------------------------------------------


@pytest.mark.data
@pytest.mark.parametrize("source, rows", [("gsm8k", 1319), ("math", 500), ("hotpotqa", 250)])
def test_every_real_gold_is_correct_against_itself(data_dir, source, rows):
    real = load_tasks(source, "test", 10_000, path=str(data_dir))
    assert len(real) == rows
    grades = source_of(real[0].problem).grade_many([(f"#### {task.gold}", task) for task in real])
    assert [task.gold for task, grade in zip(real, grades, strict=True) if not grade.correct] == []


@pytest.mark.data
def test_every_real_math_solution_is_correct_and_no_other_gold_is(data_dir):
    real = load_tasks("math", "test", 500, path=str(data_dir))
    assert all(
        one.correct
        for one in GRADERS["math"].grade_many([(task.solution, task.gold) for task in real])
    )
    shifted = zip(real, [*real[1:], real[0]], strict=True)
    pairs = [
        (f"#### {other.gold}", task.gold)
        for task, other in shifted
        if not answers.equal(task.gold, other.gold)
    ]
    assert {one.verdict for one in GRADERS["math"].grade_many(pairs)} == {Verdict.WRONG}
