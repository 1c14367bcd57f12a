"""Pancake sorting played against a world: the student says a move (how many numbers are turned
round), and the world answers with the row.

So a row is found out, never written off. The game ends with the row in order (reward 1) or with the
last flip that is allowed (reward 0). What is no move leaves the row as it is and takes a flip.
Splits, levels and questions are those of `pancake`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ..grading import answers
from ..types import Problem, Said, Task
from .pancake import Pancake, flip_row, read_row, sort_row
from .prompts import HIDDEN_PROMPT
from .worlds import ERROR, Seen, Start, Tooling


class Hidden(Pancake):
    """Generated problems of the game; each has a world."""

    name = "hidden"
    worlds = True
    system_prompt = HIDDEN_PROMPT
    default_levels = (1, 2)

    def task(self, task_id: str, row: str, steps: Sequence[str], level: int) -> Task:
        """The task of a row, with the steps of a game that sorts it where there is one. Its steps
        are the moves alone.
        """
        moves = [step.partition(":")[0] for step in steps]
        return super().task(task_id.replace("pancake", self.name, 1), row, moves, level)

    def world(self, task: Task, tooling: Tooling) -> FlipWorld:
        """The episode of a task."""
        return FlipWorld(task.problem, self.system_prompt)

    def turns(self, task: Task) -> list[Said]:
        """The student's turns of a demonstration."""
        return [Said(move) for move in (task.solution or "").splitlines()]

    def outcome(self, turn: str, seen: str) -> str:
        """What of an episode's last turn, and of what the world answered, states its answer. The
        row.
        """
        return seen

    def vocabulary_texts(self) -> Iterator[str]:
        """Texts with every word of the source, where a small vocabulary covers it; () where none
        does.
        """
        yield from super().vocabulary_texts()
        yield ERROR

    def final_answer(self, response: str, strict: bool = False) -> str | None:
        """The row in order that an episode ended with, or None where it ended otherwise."""
        row = answers.spoken(response).strip()
        return row if len(row) > 1 and row == "123456789"[: len(row)] else None

    def play(self, response: str, problem: Problem) -> tuple[bool | None, str | None]:
        """Whether the moves bring the row into order with the flips allowed, None where there is
        no move, and the answer.
        """
        moves = answers.spoken(response).split()
        if not moves:
            return None, None
        row, left = row_after(problem, moves)
        return row == sort_row(row) and left >= 0, self.final_answer(row)

    def check_step(self, problem: Problem, steps: Sequence[str]) -> bool:
        """Whether the last of the student's turns is a move, in a game that was not over."""
        row, left = row_after(problem, steps[:-1])
        return left > 0 and row != sort_row(row) and flip_by_move(row, steps[-1]) is not None

    def state(self, problem: Problem, steps: Sequence[str]) -> str | None:
        """What the state after right `steps` is known by: one that a search has reached already, by
        other steps and no more of them, is not searched twice.
        """
        row, _ = row_after(problem, steps)
        return None if row == sort_row(row) else row


@dataclass
class FlipWorld:
    """One game."""

    problem: Problem
    system_prompt: str | None
    moves: tuple[str, ...] = ()
    copies = True

    def fork(self) -> FlipWorld:
        """The same game, apart from this one."""
        return FlipWorld(self.problem, self.system_prompt, self.moves)

    async def open(self) -> Start:
        """Begin the episode, once."""
        system = [{"role": "system", "content": self.system_prompt}] if self.system_prompt else []
        return Start((*system, {"role": "user", "content": self.problem.question}))

    async def act(self, turn: str) -> Seen:
        """What a student's turn leads to."""
        before, _ = row_after(self.problem, self.moves)
        self.moves += (turn,)
        row, left = row_after(self.problem, self.moves)
        won = row == sort_row(row)
        wrong = flip_by_move(before, turn) is None
        text = f"{ERROR}: a move is a number from 2 to {len(row)}" if wrong else row
        over = won or left <= 0
        return Seen(
            ({"role": "user", "content": text},),
            over,
            float(won) if over else None,
            errors=("flip",) if wrong else (),
        )


def flip_by_move(row: str, move: str) -> str | None:
    """The row after a move; None for what is none."""
    count = move.strip()
    if not (count.isascii() and count.isdigit() and len(count) == 1):
        return None
    return flip_row(row, int(count)) if 2 <= int(count) <= len(row) else None


def row_after(problem: Problem, moves: Sequence[str]) -> tuple[str, int]:
    """The row after moves, up to the end of the game, and the flips left; below 0 where moves
    follow the end.
    """
    row, left = read_row(problem.question)
    over = False
    for move in moves:
        if over:
            return row, -1
        row = flip_by_move(row, move) or row
        left -= 1
        over = left == 0 or row == sort_row(row)
    return row, left
