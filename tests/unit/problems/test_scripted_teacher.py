import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from alphazero_llm_trainer.errors import TeacherError
from alphazero_llm_trainer.grading import answers
from alphazero_llm_trainer.problems import embedded
from alphazero_llm_trainer.problems.calculator import check_equations
from alphazero_llm_trainer.problems.embedded_source import ScriptedTeacher
from alphazero_llm_trainer.types import Direction, Problem

tasks = st.builds(
    embedded.build_task, st.sampled_from(embedded.SPLITS), st.integers(0, 50), st.integers(1, 4)
)


def ask(teacher, task, steps, direction=Direction.RIGHT, seed=0):
    proposal = asyncio.run(teacher.propose(task.problem, steps, direction, seed))
    if proposal is not None:
        assert proposal.source == "teacher:scripted"
        assert proposal.direction is direction
    return None if proposal is None else proposal.text


@settings(deadline=None, max_examples=40)
@given(tasks, st.integers(0, 1000))
def test_right_steps_are_the_worked_solution(task, seed):
    teacher = ScriptedTeacher(0.0)
    steps = []
    while (step := ask(teacher, task, steps, seed=seed)) is not None:
        steps.append(step)
    assert "\n".join(steps) == task.solution
    assert teacher.ledger.calls == len(steps) + 1
    assert teacher.ledger.cost.dollars == 0


@settings(deadline=None, max_examples=40)
@given(tasks, st.integers(0, 1000))
def test_wrong_steps_differ_in_their_result(task, seed):
    solution = task.solution.split("\n")
    teacher = ScriptedTeacher(0.0)
    for n, right in enumerate(solution):
        wrong = ask(teacher, task, solution[:n], Direction.WRONG, seed)
        assert "\n" not in wrong
        assert not answers.equal(answers.extract(wrong), answers.extract(right))
        assert wrong == ask(teacher, task, solution[:n], Direction.WRONG, seed)


@settings(deadline=None, max_examples=40)
@given(tasks, st.integers(0, 1000))
def test_a_wrong_start_is_followed_through_and_not_repaired(task, seed):
    teacher = ScriptedTeacher(0.0)
    steps = [ask(teacher, task, [], Direction.WRONG, seed)]
    while (step := ask(teacher, task, steps, seed=seed)) is not None:
        steps.append(step)
    assert len(steps) <= len(task.solution.split("\n"))
    for step in steps[1:]:
        assert step.startswith("####") or check_equations(step) == (True,)


def test_error_rate_is_the_share_of_wrong_steps():
    task = embedded.build_task("train", 0, 2)
    right = task.solution.split("\n")[0]
    teacher = ScriptedTeacher(0.2)
    wrong = sum(ask(teacher, task, [], seed=seed) != right for seed in range(1000))
    assert 150 < wrong < 250
    assert all(ask(ScriptedTeacher(1.0), task, [], seed=seed) != right for seed in range(20))


def test_other_problems_are_refused():
    teacher = ScriptedTeacher(0.0)
    for problem in (Problem("gsm8k/train/0", "?", "gsm8k"), Problem("embedded/x", "?", "embedded")):
        with pytest.raises(TeacherError, match="use another tier"):
            asyncio.run(teacher.propose(problem, [], Direction.RIGHT, 0))
