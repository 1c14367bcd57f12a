"""200 responses of a real model (SmolLM2-135M), read one by one: the graders agree with every reading of their ends.

110 are greedy answers of the published model to GSM8K's first test questions (named by their numbers, the questions are not
kept here), 90 are samples of it after supervised training on embedded problems.
"""

from __future__ import annotations

import json
from pathlib import Path

from alphazero_llm_trainer.answers import extract
from alphazero_llm_trainer.problems.grading import GRADERS

ROWS = [json.loads(line) for line in (Path(__file__).parent / "golden" / "hand_grades.jsonl").read_text().splitlines()]


def test_every_response_is_graded_as_it_was_read():
    assert len(ROWS) == 200 and sum(row["right"] for row in ROWS) == 8
    grader = GRADERS["numbers"]
    for row in ROWS:
        [grade] = grader.grade_many([(row["response"], row["gold"])], strict=row["cut"])
        assert grade.correct == row["right"], (row["id"], row["why"])


def test_what_was_misread_is_a_response_that_was_cut():
    """Without the rule for cut responses one in three right answers to GSM8K was an accident."""
    lucky = [r for r in ROWS if not r["right"] and extract(r["response"]) == r["gold"]]
    assert [row["id"] for row in lucky] and all(row["cut"] for row in lucky)
