"""The game of numbers: reach a target from n numbers, each used once, with + - * / (Countdown; 24
is a case of it).

A step is `a op b = c, numbers left`, such as `6 * 4 = 24, 1 3`; the last one leaves the target
alone and is followed by `#### TARGET`. A level is how many numbers there are: 1 is three, 4 is six.

A problem is made by legal play: numbers are drawn and played at random until one is left, and that
one is the target. So every problem has a solution, the play itself is the worked one, and nothing
here solves a problem. Results are whole, from 1 to `LARGEST`; an order of play that only swaps the
numbers of a sum or a product is written with the larger number first.

Splits are disjoint by their numbers: the multiset of numbers belongs to the split that its hash
names.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from random import Random

from ..errors import DataError
from ..grading import answers
from ..types import Problem, Task
from .prompts import NUMBERS_PROMPT
from .source import Game, split_of

LEVEL_NUMBERS = {1: 3, 2: 4, 3: 5, 4: 6}  # level -> numbers
LARGEST_GIVEN, LARGEST = 20, 999
TARGETS = range(10, 100)

Move = tuple[int, str, int, int]  # a op b = c
_MOVE_STEP = re.compile(r"(\d{1,4}) ([-+*/]) (\d{1,4}) = (\d{1,4}), ?((?:\d{1,4}(?: |$))*)")
_NUMBERS_QUESTION = re.compile(r"Use ([\d ,and]+) once each to make (\d+)\.")


class Numbers(Game):
    """Generated problems of the game."""

    name = "numbers"
    system_prompt = NUMBERS_PROMPT

    def build(self, split: str, index: int, level: int) -> Task:
        """The task number `index` (from 0) of a split and level: the same on every call. The same
        on every machine.
        """
        task_id = f"numbers/{split}/{level}/{index}"
        rng = Random(task_id)
        while True:
            numbers = sorted(rng.randint(1, LARGEST_GIVEN) for _ in range(LEVEL_NUMBERS[level]))
            if split_of(" ".join(map(str, numbers))) != split:
                continue
            moves = random_play(rng, numbers)
            if moves is not None and moves[-1][3] in TARGETS:
                break
        target = moves[-1][3]
        *others, last = rng.sample(numbers, len(numbers))
        question = f"Use {', '.join(map(str, others))} and {last} once each to make {target}."
        problem = Problem(task_id, question, "numbers", level)
        return Task(problem, str(target), write_moves(numbers, moves))

    def play(self, response: str, problem: Problem) -> tuple[bool | None, str | None]:
        """Whether every line is legal play from the given numbers and the last one leaves the
        target alone, None where there is no line, and the answer.
        """
        answer = self.final_answer(response, strict=True)
        steps = [
            line
            for line in answers.spoken(response).split("\n")
            if line.strip() and not line.startswith("####")
        ]
        if answer is None and not steps:
            return None, None
        numbers, target = read_numbers(problem.question)
        left = play_moves(numbers, steps)
        return left == Counter([target]) and answer == str(target), answer

    def check_step(self, problem: Problem, steps: Sequence[str]) -> bool:
        """Whether the last step is legal play after the ones before it, and a final line states the
        target reached.
        """
        numbers, target = read_numbers(problem.question)
        *before, last = [line.strip() for line in steps]
        left = play_moves(numbers, before)
        if left is None:
            return False
        if last.startswith("####"):
            return left == Counter([target]) and last == f"#### {target}"
        return play_one(left, last) is not None

    def state(self, problem: Problem, steps: Sequence[str]) -> str | None:
        """What the state after right `steps` is known by: one that a search has reached already, by
        other steps and no more of them, is not searched twice. The numbers left, until the answer
        is stated.
        """
        left = play_moves(read_numbers(problem.question)[0], steps)
        return None if left is None else str(sorted(left.elements()))

    def vocabulary_texts(self) -> Iterable[str]:
        """Every word and digit: two problems of each size."""
        for level in LEVEL_NUMBERS:
            task = self.build("train", 0, level)
            yield f"{task.problem.question}\n{task.solution}"
        yield "0123456789 + 1 - 1 * 1 / 1 = 1, 1\n#### 1"


def random_play(rng: Random, numbers: Sequence[int]) -> list[Move] | None:
    """Random legal moves until one number is left; None where no move was legal."""
    left, moves = list(numbers), []
    while len(left) > 1:
        first, second = rng.sample(range(len(left)), 2)
        a, b = max(left[first], left[second]), min(left[first], left[second])
        legal = [move for op in "+-*/" if (move := apply_move(a, op, b)) is not None]
        if not legal:
            return None
        move = rng.choice(legal)
        moves.append(move)
        left = [n for at, n in enumerate(left) if at not in (first, second)] + [move[3]]
    return moves


def apply_move(a: int, op: str, b: int) -> Move | None:
    """The move `a op b`, or None where it is not legal: a result below 1, above `LARGEST`, or not
    whole.
    """
    if op == "/" and (b == 0 or a % b):
        return None
    result = {"+": a + b, "-": a - b, "*": a * b, "/": a // b if b else 0}[op]
    return (a, op, b, result) if 1 <= result <= LARGEST else None


def write_moves(numbers: Sequence[int], moves: Sequence[Move]) -> str:
    """Moves as a worked solution."""
    left, lines = Counter(numbers), []
    for a, op, b, c in moves:
        left = left - Counter([a]) - Counter([b]) + Counter([c])
        lines.append(f"{a} {op} {b} = {c}, {' '.join(map(str, sorted(left.elements())))}")
    return "\n".join([*lines, f"#### {moves[-1][3]}"])


def read_numbers(question: str) -> tuple[Counter[int], int]:
    """The given numbers and the target. Raises DataError for another text."""
    match = _NUMBERS_QUESTION.search(question)
    if match is None:
        raise DataError(
            f"{question!r} is no question of the game: write `Use 3, 5 and 7 once each to make 22.`"
        )
    return Counter(map(int, re.findall(r"\d+", match[1]))), int(match[2])


def play_moves(numbers: Counter[int], steps: Sequence[str]) -> Counter[int] | None:
    """The numbers left after `steps`, or None where one of them is not legal."""
    left: Counter[int] | None = numbers
    for step in steps:
        left = play_one(left, step) if left is not None else None
    return left


def play_one(left: Counter[int], step: str) -> Counter[int] | None:
    """The numbers left after one line `a op b = c, numbers left`; None where it is not legal or
    says other numbers.
    """
    match = _MOVE_STEP.fullmatch(step.strip())
    if match is None:
        return None
    a, op, b, c = int(match[1]), match[2], int(match[3]), int(match[4])
    used = Counter([a]) + Counter([b])
    if any(left[n] < count for n, count in used.items()) or apply_move(a, op, b) != (a, op, b, c):
        return None
    after = left - used + Counter([c])
    return after if after == Counter(map(int, match[5].split())) else None
