"""Step preferences in a JSON Lines file: what `prm --data FILE.jsonl` learns from beside searched trees."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..answers import is_final
from ..errors import DataError
from ..files import parse_json
from ..policy.student import Student

Ids = tuple[int, ...]
WANTED = "a row has prompt, chosen and rejected; the last two are lists of steps, or texts"


@dataclass(frozen=True, slots=True)
class Preference:
    """Two responses to a question, the better one first: a list of steps each, or a text that is cut into steps."""

    question: str
    chosen: str | list[str]
    rejected: str | list[str]

    def pairs(self, student: Student) -> Iterator[tuple[Ids, Ids]]:
        """Pairs of (better, worse) states, as the response's tokens down to them `[T]`: after the first step that differs,
        and at the ends. Raises DataError where the student reads both alike."""
        better, worse = steps_of(self.chosen, student), steps_of(self.rejected, student)
        shared = 0
        while shared < min(len(better), len(worse)) and better[shared] == worse[shared]:
            shared += 1
        if better == worse:
            raise DataError(
                f"the student has one reading of both responses to {self.question[:40]!r}: it lacks their words"
            )
        yield joined(better[: shared + 1]), joined(worse[: shared + 1])
        yield joined(better), joined(worse)


def joined(steps: list[Ids]) -> Ids:
    """The tokens of all steps."""
    return tuple(token for step in steps for token in step)


def steps_of(response: str | list[str], student: Student) -> list[Ids]:
    """The steps' tokens as the student writes them: a line end after each, the end token after a final answer."""
    steps: list[Ids] = []
    for written in [response] if isinstance(response, str) else response:
        text = written.rstrip("\n")
        final = is_final(text.rpartition("\n")[2])
        ids = tuple(student.encode(text if final else text + "\n"))
        ends = student.engine.step_ends.parts(ids) if isinstance(response, str) else [len(ids)]
        steps += [ids[start:end] for start, end in zip([0, *ends], ends, strict=False)]
        if final:
            steps[-1] += (student.engine.eos_id,)
    return steps


def has_preferences(path: Path) -> bool:
    """Whether a file's first line is a step preference, and no tree."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        try:
            first = parse_json(file.readline())
        except ValueError:
            return False
    return isinstance(first, dict) and "key" not in first and bool(first.keys() & {"prompt", "chosen", "rejected"})


def read_preferences(path: Path) -> Iterator[Preference]:
    """The rows of a file. Raises DataError naming the line that is none."""
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                yield preference(line, f"{path} line {number}")


def preference(line: bytes, where: str) -> Preference:
    """One row. Raises DataError."""
    try:
        row = parse_json(line)
    except ValueError as error:
        raise DataError(f"{where} is not JSON ({error}): {WANTED}") from error
    if not isinstance(row, dict):
        raise DataError(f"{where} is a {type(row).__name__}: {WANTED}")
    for name in ("prompt", "chosen", "rejected"):
        if name not in row:
            raise DataError(f"{where} has no {name}, it has {', '.join(map(str, row))}: {WANTED}")
    question, chosen, rejected = (text_of(row[name], name, where) for name in ("prompt", "chosen", "rejected"))
    if not isinstance(question, str):
        raise DataError(f"{where} has a list as prompt: give the question's text, or a single user message")
    lines = [response.splitlines() if isinstance(response, str) else response for response in (chosen, rejected)]
    if all(better == worse for better, worse in zip(*lines, strict=False)):
        raise DataError(f"{where} has a chosen and a rejected response that differ in no step: leave the row out")
    return Preference(question, chosen, rejected)


def text_of(value: Any, name: str, where: str) -> str | list[str]:
    """A text, or the texts of a list; of a single message its content."""
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], dict):
        value = value[0].get("content")
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not texts or not all(isinstance(text, str) and text.strip() for text in texts):
        raise DataError(f"{where} has {name} {str(value)[:80]!r}: give a text, or a list of steps that are texts")
    return list(value) if isinstance(value, list) else str(value)
