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
from collections.abc import Iterator, Mapping
from random import Random
from typing import Any, NamedTuple

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

Operation = tuple[int, str, int, int]  # left operand, one of + - * /, right operand, result


class ProblemKind(NamedTuple):
    """One kind of sentence: its phrasings, the operations that it adds to the worked solution, and
    the numbers that are drawn for it, each from a range.

    In `operations` stand numbers, the drawn ones by name, `have` for the current number of things
    and `it` for the result before. A subtrahend and a divisor that aren't drawn are chosen so that
    they fit.
    """

    phrasings: tuple[str, ...]
    operations: tuple[str, ...] = ()
    drawn: Mapping[str, tuple[int, int]] = {}


def operate(
    kind: ProblemKind, rng: Random, have: int
) -> tuple[list[Operation], dict[str, int]] | None:
    """A kind's operations on `have` things, and the numbers of its text; None where it doesn't
    fit them.
    """
    numbers = {"have": have}
    for name, (low, high) in kind.drawn.items():
        numbers[name] = rng.randint(low, high)
    operations = list[Operation]()
    for operation in kind.operations:
        left, op, right = operation.split()
        a = numbers[left]
        if right.isdigit():
            b = int(right)
        elif right in numbers:
            b = numbers[right]
        elif op == "-" and a >= 4:
            b = numbers[right] = rng.randint(2, min(12, a - 2))
        elif op == "/" and (divisors := [k for k in range(2, 7) if a % k == 0 and a > k]):
            b = numbers[right] = _pick(rng, divisors)
        else:
            return None
        if op == "/" and a <= b:
            return None
        numbers["it"] = apply(a, op, b)
        operations.append((a, op, b, numbers["it"]))
    return operations, numbers


def apply(a: int, op: str, b: int) -> int:
    """The result of `a op b`; -1 where a division has a remainder, which no number of things can
    be.
    """
    if op == "/":
        return a // b if b and a % b == 0 else -1
    return a + b if op == "+" else a - b if op == "-" else a * b


N, K = {"n": (2, 12)}, {"k": (2, 5)}
BOXES = K | {"m": (2, 6)}
# Fields: A the person, S/s/o/p her pronouns (She, she, her, her), B C D other people, T things, U
# other things, box/boxes a container, and numbers.
OPENINGS = (
    ProblemKind(
        (
            "{A} has {have} {T}.",
            "{A} starts the day with {have} {T}.",
            "{A} owns {have} {T}.",
            "There are {have} {T} in the room of {A}.",
        ),
        (),
        {"have": (4, 30)},
    ),
    ProblemKind(
        (
            "{A} has {k} {boxes} with {m} {T} in each.",
            "{A} fills {k} {boxes} with {m} {T} each.",
            "There are {m} {T} in each of the {k} {boxes} of {A}.",
        ),
        ("k * m",),
        {"k": (2, 5), "m": (2, 8)},
    ),
    ProblemKind(
        (
            "{A} has {a} red {T} and {b} blue {T}.",
            "{A} gets {a} {T} on Monday and {b} {T} on Tuesday.",
            "{A} finds {a} {T} in the morning and {b} more in the evening.",
        ),
        ("a + b",),
        {"a": (3, 25), "b": (2, 12)},
    ),
    ProblemKind(
        (
            "{B} has {a} {T}. {A} has {n} more {T} than {B}.",
            "{B} owns {a} {T} and {A} owns {n} more than that.",
            "{A} has {n} more {T} than {B}, who has {a} {T}.",
        ),
        ("a + n",),
        {"a": (4, 25), "n": (2, 12)},
    ),
    ProblemKind(
        (
            "{B} has {a} {T}. {A} has {n} fewer {T} than {B}.",
            "{B} owns {a} {T} and {A} owns {n} fewer than that.",
            "{A} has {n} fewer {T} than {B}, who has {a} {T}.",
        ),
        ("a - n",),
        {"a": (4, 25)},
    ),
)
EVENTS = (
    ProblemKind(
        (
            "{S} buys {n} more {T}.",
            "{D} gives {o} {n} {T}.",
            "Then {s} finds {n} more {T}.",
            "On the way home {s} gets {n} {T}.",
        ),
        ("have + n",),
        N,
    ),
    ProblemKind(
        (
            "{S} gives {n} {T} to {D}.",
            "Then {s} loses {n} {T}.",
            "{S} sells {n} of the {T}.",
            "{D} takes {n} {T} from {o}.",
        ),
        ("have - n",),
    ),
    ProblemKind(
        (
            "Then {s} doubles the number of {p} {T}.",
            "A week later {s} has twice as many {T}.",
            "{D} is kind and doubles the number of {p} {T}.",
        ),
        ("have * 2",),
    ),
    ProblemKind(
        (
            "Then {s} triples the number of {p} {T}.",
            "A week later {s} has three times as many {T}.",
            "{D} is kind and triples the number of {p} {T}.",
        ),
        ("have * 3",),
    ),
    ProblemKind(
        (
            "{S} gives half of {p} {T} to {D}.",
            "Then {s} loses half of the {T}.",
            "{S} sells half of the {T}.",
        ),
        ("have / 2",),
    ),
    ProblemKind(
        (
            "{S} splits the {T} equally into {k} {boxes} and keeps only one {box}.",
            "{S} puts the {T} equally into {k} {boxes} and loses all but one {box}.",
            "{S} shares the {T} equally with friends, so that each of the {k} people gets "
            "the same.",
        ),
        ("have / k",),
    ),
    ProblemKind(
        (
            "{S} buys {k} {boxes} with {m} {T} in each.",
            "{D} gives {o} {k} {boxes} of {m} {T} each.",
            "Then {s} gets {m} more {T} from each of {k} friends.",
        ),
        ("k * m", "have + it"),
        BOXES,
    ),
    ProblemKind(
        (
            "{S} gives {m} {T} to each of {k} friends.",
            "Then {s} sells {k} {boxes} of {m} {T} each.",
            "{D} takes {k} {boxes} with {m} {T} in each from {o}.",
        ),
        ("k * m", "have - it"),
        BOXES,
    ),
)
CLOSINGS = (
    ProblemKind(
        (
            "How many {T} does {A} have now?",
            "How many {T} does {A} have in the end?",
            "What is the number of {T} that {A} has now?",
        ),
    ),
    ProblemKind(
        (
            "{S} shares all the {T} equally among {k} friends. How many {T} does each friend get?",
            "{S} splits the {T} equally into {k} {boxes}. How many {T} are in each {box}?",
            "If {k} friends share the {T} equally, how many {T} does each friend get?",
        ),
        ("have / k",),
    ),
    ProblemKind(
        (
            "{C} has {n} more {T} than {A}. How many {T} does {C} have?",
            "How many {T} does {C} have if {C} has {n} more {T} than {A}?",
            "{C} has {n} {T}. How many {T} do {A} and {C} have together?",
        ),
        ("have + n",),
        N,
    ),
    ProblemKind(
        (
            "{C} has {n} fewer {T} than {A}. How many {T} does {C} have?",
            "How many {T} does {C} have if {C} has {n} fewer {T} than {A}?",
            "{C} has {n} {T}. How many more {T} than {C} does {A} have?",
        ),
        ("have - n",),
    ),
    ProblemKind(
        (
            "{C} has {n} more {T} than {A}. How many {T} do {A} and {C} have together?",
            "{C} has {n} more {T} than {A}. What is the number of {T} they have together?",
            "How many {T} do {A} and {C} have together if {C} has {n} more than {A}?",
        ),
        ("have + n", "have + it"),
        N,
    ),
    ProblemKind(
        (
            "{C} has twice as many {T} as {A}. How many {T} do {A} and {C} have together?",
            "{C} has twice as many {T} as {A}. What is the number of {T} they have together?",
            "How many {T} do {A} and {C} have together if {C} has twice as many as {A}?",
        ),
        ("have * 2", "have + it"),
    ),
    ProblemKind(
        (
            "{S} sells the {T} for {k} dollars each. How many dollars does {A} get?",
            "How many dollars does {A} get if {s} sells all the {T} for {k} dollars each?",
            "Each of the {T} costs {k} dollars. How many dollars do all the {T} cost together?",
        ),
        ("have * k",),
        K,
    ),
    ProblemKind(
        (
            "{S} sells the {T} for {k} dollars each and spends {n} dollars. "
            "How many dollars does {A} have left?",
            "{S} sells all the {T} for {k} dollars each. Then {s} gives {n} dollars to {D}. How "
            "many dollars does {A} have left?",
            "{S} gets {k} dollars for each of the {T} and pays {n} dollars for lunch. How many "
            "dollars does {A} have now?",
        ),
        ("have * k", "it - n"),
        K,
    ),
)
DISTRACTORS = (
    "{D} is {n} years old.",
    "{C} has {n} {U}.",
    "It is {n} degrees outside.",
    "The way home takes {n} minutes.",
    "{S} reads {n} pages in the evening.",
)


Story = list[tuple[ProblemKind, dict[str, int]]]  # kinds of sentences, and their numbers


def build(split: str, index: int, level: int) -> Task:
    """The task number `index` (from 0) of a split and level; the same arguments always give the
    same task: the first candidate of its own generator that belongs to the split.
    """
    rng = Random(f"{split}/{level}/{index}")
    while (drawn := _draw_story(rng, level)) is None or split_of(drawn[1]) != split:
        pass
    story, solution = drawn
    question = _render(rng, story)
    problem = Problem(f"{SOURCE}/{split}/{level}/{index}", question, SOURCE, level)
    return Task(problem, solution.rpartition(" ")[2], solution)


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


def _draw_story(rng: Random, level: int) -> tuple[Story, str] | None:
    """One candidate and its worked solution, or None where the drawn kinds don't fit together."""
    opening, closing = _pick(rng, OPENINGS), _pick(rng, CLOSINGS)
    left = _pick(rng, LEVELS[level]) - len(opening.operations) - len(closing.operations)
    if left < 0:
        return None
    kinds = [opening]
    while left:
        event = _pick(rng, EVENTS)
        # The same kind twice in a row reads as a slip of the pen.
        if len(event.operations) <= left and event is not kinds[-1]:
            kinds.append(event)
            left -= len(event.operations)
    kinds.append(closing)

    have, lines, story = 0, list[str](), Story()
    for kind in kinds:
        drawn = operate(kind, rng, have)
        if drawn is None:
            return None
        operations, numbers = drawn
        story.append((kind, numbers))
        have = numbers["have"]
        for a, op, b, have in operations:
            if not 1 <= have <= MAX_RESULT:
                return None
            lines.append(f"{a} {op} {b} = {have}")
    return story, "\n".join([*lines, f"#### {have}"])


def _render(rng: Random, story: Story) -> str:
    people = [rng.sample(GIRLS, 3), rng.sample(BOYS, 3)]
    # Everybody else is of the other sex, so that a pronoun always means the story's person.
    first = rng.random() < 0.5
    others = people[first]
    names = [people[not first][0], *others]
    things, other_things = rng.sample(THINGS, 2)
    fields: dict[str, Any] = _fields(names, things, other_things, _pick(rng, CONTAINERS))
    sentences = [_pick(rng, kind.phrasings).format(**fields, **numbers) for kind, numbers in story]
    if rng.random() < DISTRACTOR_PROBABILITY:
        where = 1 + int(rng.random() * (len(sentences) - 1))
        sentences.insert(where, _pick(rng, DISTRACTORS).format(**fields, n=rng.randint(5, 40)))
    return " ".join(sentences)


def _fields(
    people: list[str], things: str, other_things: str, container: tuple[str, str]
) -> dict[str, Any]:
    pronouns = ("She", "she", "her", "her") if people[0] in GIRLS else ("He", "he", "him", "his")
    words = (*people, *pronouns, things, other_things, *container)
    return dict(zip((*"ABCDSsopTU", "box", "boxes"), words, strict=True))
