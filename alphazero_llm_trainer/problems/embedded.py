"""The embedded problems: a seeded generator of GSM8K-format word problems, for training and
evaluation without a hub.

A problem is a short story about one person's things: an opening, events, sometimes an irrelevant
sentence, and a closing that asks. Its worked solution has one `a op b = c` step a line and ends
with `#### N`.

**Splits are disjoint by construction.** A candidate belongs to the split that a stable hash of its
worked steps names; `build` draws candidates from a generator seeded by (split, level, index) until
one falls into the split that was asked for. So a worked solution, and with it a question, is in
exactly one split, whatever indices and levels are drawn.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random
from typing import Any

from ..errors import DataError
from ..types import Problem, Task
from .source import SPLITS

SOURCE = "embedded"
LEVELS = {1: (2,), 2: (3,), 3: (4,), 4: (5, 6)}  # level -> how many steps its solutions may have
DISTRACTOR_PROBABILITY = 0.3
MAX_RESULT = 60  # no intermediate result is larger; none is below 1

GIRLS = ("Ana", "Eva", "Lily", "Mia", "Zoe")
BOYS = ("Ben", "Leo", "Max", "Sam", "Tom")
THINGS = ("apples", "books", "cards", "coins", "marbles", "pens", "shells", "stamps")
CONTAINERS = (("bag", "bags"), ("basket", "baskets"), ("box", "boxes"), ("jar", "jars"))

Operation = tuple[int, str, int]  # left operand, one of + - * /, right operand
DrawnOperations = tuple[list[Operation], dict[str, int]]  # operations, and numbers of the text
Draw = Callable[[Random, int], DrawnOperations | None]  # of the current number of things


@dataclass(frozen=True, slots=True)
class ProblemKind:
    """One kind of sentence: how many steps it adds, its phrasings, and what it does to the current
    number of things.

    `draw(rng, have)` gives the operations and the numbers of the text, or None where the kind
    doesn't fit `have`.
    """

    steps: int
    draw: Draw
    phrasings: tuple[str, ...]


def _nothing(rng: Random, have: int) -> DrawnOperations:
    return [], {}


def _add(rng: Random, have: int) -> DrawnOperations:
    n = rng.randint(2, 12)
    return [(have, "+", n)], {"n": n}


def _subtract(rng: Random, have: int) -> DrawnOperations | None:
    if have < 4:
        return None
    n = rng.randint(2, min(12, have - 2))
    return [(have, "-", n)], {"n": n}


def _times(factor: int) -> Draw:
    return lambda rng, have: ([(have, "*", factor)], {})


def _half(rng: Random, have: int) -> DrawnOperations | None:
    return ([(have, "/", 2)], {}) if have % 2 == 0 and have > 2 else None


def _share(rng: Random, have: int) -> DrawnOperations | None:
    divisors = [k for k in range(2, 7) if have % k == 0 and have > k]
    if not divisors:
        return None
    k = _pick(rng, divisors)
    return [(have, "/", k)], {"k": k}


def _start(rng: Random, have: int) -> DrawnOperations:
    return [], {"have": rng.randint(4, 30)}


def _start_boxes(rng: Random, have: int) -> DrawnOperations:
    k, m = rng.randint(2, 5), rng.randint(2, 8)
    return [(k, "*", m)], {"k": k, "m": m}


def _start_sum(rng: Random, have: int) -> DrawnOperations:
    a, b = rng.randint(3, 25), rng.randint(2, 12)
    return [(a, "+", b)], {"a": a, "b": b}


def _start_compared(then: Draw) -> Draw:
    def draw(rng: Random, have: int) -> DrawnOperations | None:
        a = rng.randint(4, 25)
        drawn = then(rng, a)
        return None if drawn is None else (drawn[0], {"a": a, **drawn[1]})

    return draw


def _boxes(op: str) -> Draw:
    def draw(rng: Random, have: int) -> DrawnOperations:
        k, m = rng.randint(2, 5), rng.randint(2, 6)
        return [(k, "*", m), (have, op, k * m)], {"k": k, "m": m}

    return draw


def _together(then: Draw) -> Draw:
    def draw(rng: Random, have: int) -> DrawnOperations | None:
        drawn = then(rng, have)
        if drawn is None:
            return None
        return [drawn[0][0], (have, "+", apply(*drawn[0][0]))], drawn[1]

    return draw


def _price(rng: Random, have: int) -> DrawnOperations:
    k = rng.randint(2, 5)
    return [(have, "*", k)], {"k": k}


def _price_then_spend(rng: Random, have: int) -> DrawnOperations | None:
    k = rng.randint(2, 5)
    spent = _subtract(rng, have * k)
    return None if spent is None else ([(have, "*", k), spent[0][0]], {"k": k, **spent[1]})


def apply(a: int, op: str, b: int) -> int:
    """The result of `a op b`; -1 where a division has a remainder, which no number of things can
    be.
    """
    if op == "/":
        return a // b if b and a % b == 0 else -1
    return a + b if op == "+" else a - b if op == "-" else a * b


# Fields: A the person, S/s/o/p her pronouns (She, she, her, her), B C D other people, T things, U
# other things, box/boxes a container, and the numbers that `draw` gives.
OPENINGS = (
    ProblemKind(
        0,
        _start,
        (
            "{A} has {have} {T}.",
            "{A} starts the day with {have} {T}.",
            "{A} owns {have} {T}.",
            "There are {have} {T} in the room of {A}.",
        ),
    ),
    ProblemKind(
        1,
        _start_boxes,
        (
            "{A} has {k} {boxes} with {m} {T} in each.",
            "{A} fills {k} {boxes} with {m} {T} each.",
            "There are {m} {T} in each of the {k} {boxes} of {A}.",
        ),
    ),
    ProblemKind(
        1,
        _start_sum,
        (
            "{A} has {a} red {T} and {b} blue {T}.",
            "{A} gets {a} {T} on Monday and {b} {T} on Tuesday.",
            "{A} finds {a} {T} in the morning and {b} more in the evening.",
        ),
    ),
    ProblemKind(
        1,
        _start_compared(_add),
        (
            "{B} has {a} {T}. {A} has {n} more {T} than {B}.",
            "{B} owns {a} {T} and {A} owns {n} more than that.",
            "{A} has {n} more {T} than {B}, who has {a} {T}.",
        ),
    ),
    ProblemKind(
        1,
        _start_compared(_subtract),
        (
            "{B} has {a} {T}. {A} has {n} fewer {T} than {B}.",
            "{B} owns {a} {T} and {A} owns {n} fewer than that.",
            "{A} has {n} fewer {T} than {B}, who has {a} {T}.",
        ),
    ),
)
EVENTS = (
    ProblemKind(
        1,
        _add,
        (
            "{S} buys {n} more {T}.",
            "{D} gives {o} {n} {T}.",
            "Then {s} finds {n} more {T}.",
            "On the way home {s} gets {n} {T}.",
        ),
    ),
    ProblemKind(
        1,
        _subtract,
        (
            "{S} gives {n} {T} to {D}.",
            "Then {s} loses {n} {T}.",
            "{S} sells {n} of the {T}.",
            "{D} takes {n} {T} from {o}.",
        ),
    ),
    ProblemKind(
        1,
        _times(2),
        (
            "Then {s} doubles the number of {p} {T}.",
            "A week later {s} has twice as many {T}.",
            "{D} is kind and doubles the number of {p} {T}.",
        ),
    ),
    ProblemKind(
        1,
        _times(3),
        (
            "Then {s} triples the number of {p} {T}.",
            "A week later {s} has three times as many {T}.",
            "{D} is kind and triples the number of {p} {T}.",
        ),
    ),
    ProblemKind(
        1,
        _half,
        (
            "{S} gives half of {p} {T} to {D}.",
            "Then {s} loses half of the {T}.",
            "{S} sells half of the {T}.",
        ),
    ),
    ProblemKind(
        1,
        _share,
        (
            "{S} splits the {T} equally into {k} {boxes} and keeps only one {box}.",
            "{S} puts the {T} equally into {k} {boxes} and loses all but one {box}.",
            "{S} shares the {T} equally with friends, so that each of the {k} people gets "
            "the same.",
        ),
    ),
    ProblemKind(
        2,
        _boxes("+"),
        (
            "{S} buys {k} {boxes} with {m} {T} in each.",
            "{D} gives {o} {k} {boxes} of {m} {T} each.",
            "Then {s} gets {m} more {T} from each of {k} friends.",
        ),
    ),
    ProblemKind(
        2,
        _boxes("-"),
        (
            "{S} gives {m} {T} to each of {k} friends.",
            "Then {s} sells {k} {boxes} of {m} {T} each.",
            "{D} takes {k} {boxes} with {m} {T} in each from {o}.",
        ),
    ),
)
CLOSINGS = (
    ProblemKind(
        0,
        _nothing,
        (
            "How many {T} does {A} have now?",
            "How many {T} does {A} have in the end?",
            "What is the number of {T} that {A} has now?",
        ),
    ),
    ProblemKind(
        1,
        _share,
        (
            "{S} shares all the {T} equally among {k} friends. How many {T} does each friend get?",
            "{S} splits the {T} equally into {k} {boxes}. How many {T} are in each {box}?",
            "If {k} friends share the {T} equally, how many {T} does each friend get?",
        ),
    ),
    ProblemKind(
        1,
        _add,
        (
            "{C} has {n} more {T} than {A}. How many {T} does {C} have?",
            "How many {T} does {C} have if {C} has {n} more {T} than {A}?",
            "{C} has {n} {T}. How many {T} do {A} and {C} have together?",
        ),
    ),
    ProblemKind(
        1,
        _subtract,
        (
            "{C} has {n} fewer {T} than {A}. How many {T} does {C} have?",
            "How many {T} does {C} have if {C} has {n} fewer {T} than {A}?",
            "{C} has {n} {T}. How many more {T} than {C} does {A} have?",
        ),
    ),
    ProblemKind(
        2,
        _together(_add),
        (
            "{C} has {n} more {T} than {A}. How many {T} do {A} and {C} have together?",
            "{C} has {n} more {T} than {A}. What is the number of {T} they have together?",
            "How many {T} do {A} and {C} have together if {C} has {n} more than {A}?",
        ),
    ),
    ProblemKind(
        2,
        _together(_times(2)),
        (
            "{C} has twice as many {T} as {A}. How many {T} do {A} and {C} have together?",
            "{C} has twice as many {T} as {A}. What is the number of {T} they have together?",
            "How many {T} do {A} and {C} have together if {C} has twice as many as {A}?",
        ),
    ),
    ProblemKind(
        1,
        _price,
        (
            "{S} sells the {T} for {k} dollars each. How many dollars does {A} get?",
            "How many dollars does {A} get if {s} sells all the {T} for {k} dollars each?",
            "Each of the {T} costs {k} dollars. How many dollars do all the {T} cost together?",
        ),
    ),
    ProblemKind(
        2,
        _price_then_spend,
        (
            "{S} sells the {T} for {k} dollars each and spends {n} dollars. "
            "How many dollars does {A} have left?",
            "{S} sells all the {T} for {k} dollars each. Then {s} gives {n} dollars to {D}. How "
            "many dollars does {A} have left?",
            "{S} gets {k} dollars for each of the {T} and pays {n} dollars for lunch. How many "
            "dollars does {A} have now?",
        ),
    ),
)
DISTRACTORS = (
    "{D} is {n} years old.",
    "{C} has {n} {U}.",
    "It is {n} degrees outside.",
    "The way home takes {n} minutes.",
    "{S} reads {n} pages in the evening.",
)


@dataclass(frozen=True, slots=True)
class _Draft:
    kinds: list[ProblemKind]
    numbers: list[dict[str, int]]
    solution: str
    gold: int


def build(split: str, index: int, level: int) -> Task:
    """The task number `index` (from 0) of a split and level; the same arguments always give the
    same task: the first candidate of its own generator that belongs to the split.
    """
    rng = Random(f"{split}/{level}/{index}")
    while (plan := _draw_plan(rng, level)) is None or split_of(plan.solution) != split:
        pass
    question = _render(rng, plan)
    problem = Problem(f"{SOURCE}/{split}/{level}/{index}", question, SOURCE, level)
    return Task(problem, str(plan.gold), plan.solution)


def from_id(task_id: str) -> Task:
    """The task whose `problem.id` is `task_id`."""
    match = re.fullmatch(rf"{SOURCE}/({'|'.join(SPLITS)})/([1-4])/(\d+)", task_id)
    if match is None:
        raise DataError(
            f"id {task_id!r} is no embedded problem; write it as {SOURCE}/SPLIT/LEVEL/INDEX."
        )
    return build(match[1], int(match[3]), int(match[2]))


def split_of(solution: str) -> str:
    """The one split that a worked solution belongs to, from a stable hash of its text."""
    hashed = hashlib.blake2b(solution.encode(), digest_size=1).digest()[0]
    return SPLITS[hashed % len(SPLITS)]


def vocabulary_texts() -> Iterator[str]:
    """Texts that hold, between them, every piece of text the generator can write (numbers, for one,
    digit by digit).
    """
    openings = [phrasing for kind in OPENINGS for phrasing in kind.phrasings]
    others = [phrasing for kind in EVENTS + CLOSINGS for phrasing in kind.phrasings]
    numbers: dict[str, Any] = dict.fromkeys(("n", "k", "m", "a", "b", "have"), 1234567890)
    for i, things in enumerate(THINGS):
        girl, boy = GIRLS[i % len(GIRLS)], BOYS[i % len(BOYS)]
        for people in ([girl, boy, boy, boy], [boy, girl, girl, girl]):
            fields = _fields(people, things, things, CONTAINERS[i % len(CONTAINERS)]) | numbers
            yield from (p.format(**fields) for p in openings)
            yield from (f" {p}".format(**fields) for p in (*openings, *others, *DISTRACTORS))
    yield "1 + 2 = 3\n1 - 2 = 3\n1 * 2 = 3\n1 / 2 = 3\n#### 3"


def _pick(rng: Random, items: Any) -> Any:
    return items[int(rng.random() * len(items))]


def _draw_plan(rng: Random, level: int) -> _Draft | None:
    """Kinds, numbers and solution of one candidate, or None where the drawn kinds don't fit
    together.
    """
    opening, closing = _pick(rng, OPENINGS), _pick(rng, CLOSINGS)
    left = _pick(rng, LEVELS[level]) - opening.steps - closing.steps
    if left < 0:
        return None
    kinds = [opening]
    while left:
        event = _pick(rng, EVENTS)
        # The same kind twice in a row reads as a slip of the pen.
        if event.steps <= left and event is not kinds[-1]:
            kinds.append(event)
            left -= event.steps
    kinds.append(closing)

    have, lines, numbers = 0, [], []
    for kind in kinds:
        drawn = kind.draw(rng, have)
        if drawn is None:
            return None
        operations, fields = drawn
        numbers.append(fields)
        have = fields.get("have", have)
        for a, op, b in operations:
            have = apply(a, op, b)
            if not 1 <= have <= MAX_RESULT:
                return None
            lines.append(f"{a} {op} {b} = {have}")
    lines.append(f"#### {have}")
    return _Draft(kinds, numbers, "\n".join(lines), have)


def _render(rng: Random, plan: _Draft) -> str:
    people = [rng.sample(GIRLS, 3), rng.sample(BOYS, 3)]
    # Everybody else is of the other sex, so that a pronoun always means the story's person.
    first = rng.random() < 0.5
    others = people[first]
    names = [people[not first][0], *others]
    things, other_things = rng.sample(THINGS, 2)
    fields: dict[str, Any] = _fields(names, things, other_things, _pick(rng, CONTAINERS))
    sentences = [
        _pick(rng, kind.phrasings).format(**fields, **numbers)
        for kind, numbers in zip(plan.kinds, plan.numbers, strict=True)
    ]
    if rng.random() < DISTRACTOR_PROBABILITY:
        where = 1 + int(rng.random() * (len(sentences) - 1))
        sentences.insert(where, _pick(rng, DISTRACTORS).format(**fields, n=rng.randint(5, 40)))
    return " ".join(sentences)


def _fields(
    people: list[str], things: str, other_things: str, container: tuple[str, str]
) -> dict[str, Any]:
    girl = people[0] in GIRLS
    return {
        "A": people[0],
        "B": people[1],
        "C": people[2],
        "D": people[3],
        "S": "She" if girl else "He",
        "s": "she" if girl else "he",
        "o": "her" if girl else "him",
        "p": "her" if girl else "his",
        "T": things,
        "U": other_things,
        "box": container[0],
        "boxes": container[1],
    }
