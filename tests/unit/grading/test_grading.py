"""Graders: each response is graded as a person grades it, whatever it holds, and whatever
math-verify does with it.
"""

import asyncio
import os
import signal
import threading

import pytest
from tables import table

from alphazero_llm_trainer.grading import graders
from alphazero_llm_trainer.grading.graders import GRADERS, LONGEST_ANSWER, Verdict, word_f1
from alphazero_llm_trainer.grading.math_verifier import MathVerifier, Request
from alphazero_llm_trainer.problems.registry import source_of
from alphazero_llm_trainer.types import Problem, Task

CASES = table("answers")
TOWER = r"9^{9^{9^{9}}}"  # sympy computes it, or would


def one(source, response, gold):
    """A source, and a response beside a task of it."""
    task = Task(Problem("p", "q", source), gold)
    return source_of(task.problem), response, task


def grade(source, response, gold, strict=False):
    source, response, task = one(source, response, gold)
    return source.grade(response, task, strict)


@pytest.fixture(scope="module")
def impatient():
    verifier = MathVerifier(timeout=1.0)
    yield verifier
    verifier.close()


# -- embedded and gsm8k ----------------------------------------------------------------------------


@pytest.mark.parametrize("source", ["embedded", "gsm8k", "user"])
@pytest.mark.parametrize("response, gold, loose, strict", CASES["graded_numbers"])
def test_numbers(source, response, gold, loose, strict):
    for verdict, cut in ((loose, False), (strict, True)):
        found = grade(source, response, gold, cut)
        assert found.verdict == verdict and found.f1 is None
        assert found.score == float(verdict == "correct") == float(found.correct)


# -- math ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("source, response, gold, strict, verdict", CASES["graded_cut"])
def test_what_is_read_of_a_response_that_was_cut_and_of_words(
    source, response, gold, strict, verdict
):
    assert grade(source, response, gold, strict).verdict == verdict


TOO_LONG = "#### " + "1+" * LONGEST_ANSWER + "1", "5", "unparsed"


@pytest.mark.parametrize("response, gold, verdict", [*CASES["graded_math"], TOO_LONG])
def test_math(response, gold, verdict):
    assert grade("math", response, gold).verdict == verdict


def test_an_answer_that_takes_too_long_kills_the_worker_and_grading_goes_on(impatient, monkeypatch):
    monkeypatch.setattr(graders, "shared_verifier", lambda: impatient)
    pairs = [
        (rf"\boxed{{{answer}}}", r"\frac{\sqrt{2}}{2}")
        for answer in (r"\frac1{\sqrt2}", TOWER, "7", r"2^{-1/2}")
    ]
    impatient([Request("x+1", "1+x", True)])
    first = impatient.process
    verdicts = [one.verdict for one in GRADERS["math"].grade_many(pairs)]
    assert verdicts == [Verdict.CORRECT, Verdict.TIMED_OUT, Verdict.WRONG, Verdict.CORRECT]
    assert first.poll() == -signal.SIGPROF and impatient.process.poll() is None


def test_what_cannot_be_read_costs_no_worker(impatient):
    impatient([Request("d+1", "1+d", True)])
    first, unread = impatient.process, Request(r"p\to q", r"q\to p", True)
    assert impatient([unread]) == ["unparsed"] and impatient.process is first


def test_a_worker_that_was_killed_from_outside_is_replaced(impatient):
    impatient([Request("a+1", "1+a", True)])
    impatient.process.kill()
    assert impatient([Request("a+b", "b+a", True), Request("a+b", "b-a", True)]) == [
        "correct",
        "wrong",
    ]


def test_a_worker_that_gets_no_turn_is_waited_for(impatient):
    impatient([Request("c+1", "1+c", True)])
    os.kill(impatient.process.pid, signal.SIGSTOP)
    threading.Timer(
        1.5 * impatient.timeout, os.kill, (impatient.process.pid, signal.SIGCONT)
    ).start()
    assert impatient([Request("c+2", "2+c", True)]) == ["correct"]


def test_the_event_loop_goes_on_while_math_verify_works(impatient, monkeypatch):
    monkeypatch.setattr("alphazero_llm_trainer.grading.graders.shared_verifier", lambda: impatient)

    source, response, task = one("math", rf"\boxed{{{TOWER}+1}}", "5")

    async def work():
        slow = asyncio.create_task(source.grade_async(response, task))
        ticks = 0
        while not slow.done():
            await asyncio.sleep(0.02)
            ticks += 1
        return (await slow).verdict, ticks

    verdict, ticks = asyncio.run(work())
    assert verdict == "timed-out" and ticks > 10


# -- hotpotqa --------------------------------------------------------------------------------------


@pytest.mark.parametrize("answer, gold, right, f1", CASES["graded_words"])
def test_hotpotqa(answer, gold, right, f1):
    found = grade("hotpotqa", f"A fact.\n#### {answer}", gold)
    assert found.correct is right and found.f1 == found.score == pytest.approx(f1)
    assert word_f1(answer, gold) == pytest.approx(f1)


@pytest.mark.parametrize("right, answer, gold", CASES["quantities"])
def test_a_number_with_a_unit_is_met_without_it_or_with_the_same(right, answer, gold):
    [found] = GRADERS["mixed"].grade_many([(f"#### {answer}", gold)])
    assert found.correct is right


def test_final_answers_and_votes():
    assert GRADERS["numbers"].final_answer("#### Ann has 70 dollars") == "70"
    assert GRADERS["math"].final_answer("#### Ann has 70 dollars") == "Ann has 70 dollars"
    assert GRADERS["math"].key("6+9i") != GRADERS["math"].key("6") == GRADERS["math"].key("6.0")


def test_a_choice_of_a_response_that_was_cut_needs_a_mark():
    assert GRADERS["choice"].final_answer("So it is C.\nDone.", strict=True) is None
