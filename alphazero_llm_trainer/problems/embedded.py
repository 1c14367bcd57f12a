"""The embedded problems: a seeded generator of GSM8K-format word problems, for training and
evaluation without a hub.

A problem is a short story about one person's things: an opening, events, sometimes an irrelevant
sentence, and a closing that asks. Its worked solution has one `a op b = c` step a line and ends
with `#### N`.

**Splits are disjoint by construction.** A candidate belongs to the split that a stable hash of its
worked steps names; `build_task` draws candidates from a generator seeded by (split, level, index)
until one falls into the split that was asked for. So a worked solution, and with it a question, is
in exactly one split, whatever indices and levels are drawn.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from ..config.shipped import read_yaml
from ..errors import DataError
from ..types import JsonObject, Problem, Task
from .source import SPLITS

SOURCE = "embedded"
# Level -> how many steps its solutions may have.
LEVEL_STEPS = {
    1: (2,),
    2: (3,),
    3: (4,),
    4: (5, 6),
}
DISTRACTOR_PROBABILITY = 0.3
MAX_RESULT = 60  # no intermediate result is larger; none is below 1

Operation = tuple[int, str, int, int]  # left operand, one of + - * /, right operand, result


class ProblemKind(NamedTuple):
    """One kind of sentence: its phrasings, the operations that it adds to the worked solution, and
    the numbers that are drawn for it, each from a range: see stories.yaml.
    """

    phrasings: Sequence[str]
    operations: Sequence[str] = ()
    drawn: Mapping[str, tuple[int, int]] = {}


def draw_operations(
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
            b = numbers[right] = _pick_item(rng, divisors)
        else:
            return None
        if op == "/" and a <= b:
            return None
        numbers["it"] = apply_operation(a, op, b)
        operations.append((a, op, b, numbers["it"]))
    return operations, numbers


def apply_operation(a: int, op: str, b: int) -> int:
    """The result of `a op b`; -1 where a division has a remainder, which no number of things can
    be.
    """
    if op == "/":
        return a // b if b and a % b == 0 else -1
    return a + b if op == "+" else a - b if op == "-" else a * b


@cache
def words(part: str) -> list[Any]:
    """A list of stories.yaml: of people, things and containers."""
    listed: list[Any] = read_yaml(Path(__file__).with_name("stories.yaml"))[part]
    return listed


@cache
def kinds_of(part: str) -> list[ProblemKind]:
    """The kinds of sentences that stories.yaml lists as a part of a story."""
    return [ProblemKind(**kind) for kind in words(part)]


Story = list[tuple[ProblemKind, dict[str, int]]]  # kinds of sentences, and their numbers


def build_task(split: str, index: int, level: int) -> Task:
    """The task number `index` (from 0) of a split and level; the same arguments always give the
    same task: the first candidate of its own generator that belongs to the split.
    """
    rng = Random(f"{split}/{level}/{index}")
    while (drawn := _draw_story(rng, level)) is None or solution_split(drawn[1]) != split:
        pass
    story, solution = drawn
    question = _render_story(rng, story)
    problem = Problem(f"{SOURCE}/{split}/{level}/{index}", question, SOURCE, level)
    return Task(problem, solution.rpartition(" ")[2], solution)


def from_id(task_id: str) -> Task:
    """The task whose `problem.id` is `task_id`."""
    match = re.fullmatch(rf"{SOURCE}/({'|'.join(SPLITS)})/([1-4])/(\d+)", task_id)
    if match is None:
        raise DataError(
            f"id {task_id!r} is no embedded problem; write it as {SOURCE}/SPLIT/LEVEL/INDEX."
        )
    return build_task(match[1], int(match[3]), int(match[2]))


def solution_split(solution: str) -> str:
    """The one split that a worked solution belongs to, from a stable hash of its text."""
    hashed = hashlib.blake2b(solution.encode(), digest_size=1).digest()[0]
    return SPLITS[hashed % len(SPLITS)]


def vocabulary_texts() -> Iterator[str]:
    """Texts that hold, between them, every piece of text the generator can write (numbers, for one,
    digit by digit).
    """
    openings = [phrasing for kind in kinds_of("openings") for phrasing in kind.phrasings]
    others = kinds_of("events") + kinds_of("closings")
    later = [phrasing for kind in others for phrasing in kind.phrasings] + words("distractors")
    numbers: dict[str, Any] = dict.fromkeys(("n", "k", "m", "a", "b", "have"), 1234567890)
    girls, boys, containers = words("girls"), words("boys"), words("containers")
    for i, things in enumerate(words("things")):
        girl, boy = girls[i % len(girls)], boys[i % len(boys)]
        for people in ([girl, boy, boy, boy], [boy, girl, girl, girl]):
            fields = (
                _story_fields(people, things, things, containers[i % len(containers)]) | numbers
            )
            yield from (p.format(**fields) for p in openings)
            yield from (f" {p}".format(**fields) for p in (*openings, *later))
    yield "1 + 2 = 3\n1 - 2 = 3\n1 * 2 = 3\n1 / 2 = 3\n#### 3"


def _pick_item(rng: Random, items: Any) -> Any:
    return items[int(rng.random() * len(items))]


def _draw_story(rng: Random, level: int) -> tuple[Story, str] | None:
    """One candidate and its worked solution, or None where the drawn kinds don't fit together."""
    opening, closing = _pick_item(rng, kinds_of("openings")), _pick_item(rng, kinds_of("closings"))
    left = _pick_item(rng, LEVEL_STEPS[level]) - len(opening.operations) - len(closing.operations)
    if left < 0:
        return None
    kinds = [opening]
    while left:
        event = _pick_item(rng, kinds_of("events"))
        # The same kind twice in a row reads as a slip of the pen.
        if len(event.operations) <= left and event is not kinds[-1]:
            kinds.append(event)
            left -= len(event.operations)
    kinds.append(closing)

    have, lines, story = 0, list[str](), Story()
    for kind in kinds:
        drawn = draw_operations(kind, rng, have)
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


def _render_story(rng: Random, story: Story) -> str:
    people = [rng.sample(words("girls"), 3), rng.sample(words("boys"), 3)]
    # Everybody else is of the other sex, so that a pronoun always means the story's person.
    first = rng.random() < 0.5
    others = people[first]
    names = [people[not first][0], *others]
    things, other_things = rng.sample(words("things"), 2)
    fields: dict[str, Any] = _story_fields(
        names, things, other_things, _pick_item(rng, words("containers"))
    )
    sentences = [
        _pick_item(rng, kind.phrasings).format(**fields, **numbers) for kind, numbers in story
    ]
    if rng.random() < DISTRACTOR_PROBABILITY:
        where = 1 + int(rng.random() * (len(sentences) - 1))
        sentences.insert(
            where, _pick_item(rng, words("distractors")).format(**fields, n=rng.randint(5, 40))
        )
    return " ".join(sentences)


def _story_fields(
    people: list[str], things: str, other_things: str, container: list[str]
) -> JsonObject:
    pronouns = (
        ("She", "she", "her", "her") if people[0] in words("girls") else ("He", "he", "him", "his")
    )
    values = (*people, *pronouns, things, other_things, *container)
    return dict(zip((*"ABCDSsopTU", "box", "boxes"), values, strict=True))
