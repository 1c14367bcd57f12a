"""Pancake sorting: bring a row of numbers into order by turning round its beginning.

A step is `k:row`, such as `3:421356789`: the first k numbers are turned round, and this is the row
then. The game is over with the step that leaves the row in order, so that row is the answer and the
end. A level is how many numbers there are and how many flips are allowed, see `LEVEL_FLIPS`.

No flip is against the rules, only a row that is not what its flip makes. So a rule can say which
steps are wrong, and not which ones lead anywhere.

Splits are disjoint by their rows: a row belongs to the split that its hash names.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from random import Random

from ..errors import DataError
from ..grading import answers
from ..types import Problem, Task
from .prompts import PANCAKE_PROMPT
from .source import Game, split_of

LEVEL_FLIPS = {1: (5, 8), 2: (7, 10), 3: (9, 12), 4: (9, 10)}  # level -> numbers, flips allowed

_FLIP_STEP = re.compile(r"([2-9]):([1-9]+)")
_ROW_QUESTION = re.compile(r"(\d+) flips: ([1-9]{2,9})")


class Pancake(Game):
    """Generated problems of the game: random rows."""

    name = "pancake"
    scratch = "sft_pancake.yaml"
    plays = True
    system_prompt = PANCAKE_PROMPT
    default_levels: tuple[int, ...] = (3,)

    def build(self, split: str, index: int, level: int) -> Task:
        """The task number `index` (from 0) of a split and level: the same on every call. The same
        on every machine.
        """
        task_id = f"pancake/{split}/{level}/{index}"
        row = random_row(Random(task_id), LEVEL_FLIPS[level][0], split)
        return self.task(task_id, row, (), level)

    def demonstrations(self, count: int) -> list[Task]:
        """Random legal games that end in order: random flips of the row in order, played backward,
        as many as are allowed at most.
        """
        tasks = []
        for index in range(count):
            level = self.levels[index % len(self.levels)]
            task_id = f"pancake/demonstration/{level}/{index}"
            tasks.append(self.task(task_id, *random_game(Random(task_id), level, "train"), level))
        return tasks

    def task(self, task_id: str, row: str, steps: Sequence[str], level: int) -> Task:
        """The task of a row, with the steps of a game that sorts it where there is one."""
        problem = Problem(task_id, f"{LEVEL_FLIPS[level][1]} flips: {row}", self.name, level)
        return Task(problem, sort_row(row), "\n".join(steps) or None)

    def final_answer(self, response: str, strict: bool = False) -> str | None:
        """The row in order that the last line leaves, or None where it leaves another one."""
        lines = answers.spoken(response).split()
        match = _FLIP_STEP.fullmatch(lines[-1]) if lines else None
        return match[2] if match is not None and match[2] == sort_row(match[2]) else None

    def play(self, response: str, problem: Problem) -> tuple[bool | None, str | None]:
        """Whether every line is the flip that it says, the last row is in order, and no more flips
        were made than are allowed, None where there is no line, and the answer.
        """
        steps = [line for line in answers.spoken(response).split("\n") if line.strip()]
        if not steps:
            return None, None
        row, flips = read_row(problem.question)
        right = play_flips(row, steps) == sort_row(row) and len(steps) <= flips
        return right, self.final_answer(response)

    def check_step(self, problem: Problem, steps: Sequence[str]) -> bool:
        """Whether the last step is the flip that it says, in a game that was not over."""
        row, flips = read_row(problem.question)
        return len(steps) <= flips and play_flips(row, steps) is not None

    def state(self, problem: Problem, steps: Sequence[str]) -> str | None:
        """What the state after right `steps` is known by: one that a search has reached already, by
        other steps and no more of them, is not searched twice. The row, until it is in order.
        """
        row = play_flips(read_row(problem.question)[0], steps)
        return None if row is None or row == sort_row(row) else row

    def vocabulary_texts(self) -> Iterable[str]:
        """Every word, digit and mark."""
        yield "0123456789 flips: 123456789\n9:987654321\n"


def sort_row(row: str) -> str:
    """The numbers of a row from the smallest to the largest: the goal."""
    return "".join(sorted(row))


def flip_row(row: str, count: int) -> str:
    """A row whose first `count` numbers are turned round."""
    return row[:count][::-1] + row[count:]


def random_flips(rng: Random, row: str, count: int) -> list[tuple[int, str]]:
    """`count` flips one after another, none of which undoes the one before it: how many numbers are
    turned round, and the row then.
    """
    moves, last = list[tuple[int, str]](), 0
    for _ in range(count):
        last = rng.choice([k for k in range(2, len(row) + 1) if k != last])
        row = flip_row(row, last)
        moves.append((last, row))
    return moves


def random_row(rng: Random, size: int, split: str) -> str:
    """A row of a split in any order but the right one."""
    goal = "123456789"[:size]
    while True:
        row = "".join(rng.sample(goal, size))
        if row != goal and split_of(row) == split:
            return row


def random_game(rng: Random, level: int, split: str) -> tuple[str, list[str]]:
    """A row of a split, made by random flips of the row in order, and the steps that undo them."""
    size, flips = LEVEL_FLIPS[level]
    goal = "123456789"[:size]
    while True:
        moves = random_flips(rng, goal, rng.randint(1, flips))
        rows = [goal, *(row for _, row in moves)]
        if goal not in rows[1:] and split_of(rows[-1]) == split:
            break
    return rows[-1], [f"{k}:{row}" for (k, _), row in zip(moves[::-1], rows[-2::-1], strict=True)]


def read_row(question: str) -> tuple[str, int]:
    """The row and the flips allowed. Raises DataError for another text."""
    match = _ROW_QUESTION.search(question)
    if match is None or sort_row(match[2]) != "123456789"[: len(match[2])]:
        raise DataError(
            f"{question!r} is no question of pancake sorting: write `12 flips: 936128547`, a row of"
            " the numbers from 1 on, each once"
        )
    return match[2], int(match[1])


def play_flips(row: str, steps: Sequence[str]) -> str | None:
    """The row after `steps`, or None where one of them is not the flip that it says, or follows
    the end of the game.
    """
    goal = sort_row(row)
    for step in steps:
        match = _FLIP_STEP.fullmatch(step.strip())
        if match is None or row == goal:
            return None
        count = int(match[1])
        if count > len(row) or match[2] != flip_row(row, count):
            return None
        row = match[2]
    return row


@lru_cache
def flip_distances(size: int) -> dict[str, int]:
    """The fewest flips that order each row of `size` numbers, by breadth-first search."""
    goal = "123456789"[:size]
    known, reached = {goal: 0}, [goal]
    while reached:
        before, reached = reached, []
        for row in before:
            for count in range(2, size + 1):
                after = flip_row(row, count)
                if after not in known:
                    known[after] = known[row] + 1
                    reached.append(after)
    return known
