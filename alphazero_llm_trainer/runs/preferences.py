"""Step preferences in a JSON Lines file: what `prm --data FILE.jsonl` learns from beside searched
trees.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

from annotated_types import Len
from pydantic import BaseModel, StringConstraints, ValidationError, model_validator

from ..errors import DataError
from ..grading.answers import is_final
from ..policy.student import Student

StepIds = tuple[int, ...]
WANTED = "a row has prompt, chosen and rejected; the last two are lists of steps, or texts"


NonEmptyText = Annotated[str, StringConstraints(pattern=r"\S")]
PreferredResponse = NonEmptyText | Annotated[list[NonEmptyText], Len(1)]


class Preference(BaseModel):
    """Two responses to a question, the better one first: a list of steps each, or a text that is
    cut into steps.
    """

    prompt: NonEmptyText
    chosen: PreferredResponse
    rejected: PreferredResponse

    @model_validator(mode="after")
    def differs(self) -> Preference:
        """The pair, of which one response isn't a beginning of the other."""
        lines = [
            text.splitlines() if isinstance(text, str) else text
            for text in (self.chosen, self.rejected)
        ]
        if all(better == worse for better, worse in zip(*lines, strict=False)):
            raise ValueError("chosen and rejected differ in no step")
        return self

    def pairs(self, student: Student) -> Iterator[tuple[StepIds, StepIds]]:
        """Pairs of (better, worse) states, as the response's tokens down to them `[T]`: after the
        first step that differs, and at the ends. Raises DataError where the student reads both
        alike.
        """
        better, worse = written_steps(self.chosen, student), written_steps(self.rejected, student)
        if better == worse:
            raise DataError(
                f"the student has one reading of both responses to {self.prompt[:40]!r}: "
                "it lacks their words"
            )
        shared = 0
        while shared < min(len(better), len(worse)) and better[shared] == worse[shared]:
            shared += 1
        for length in (shared + 1, None):
            yield sum(better[:length], ()), sum(worse[:length], ())


def written_steps(response: str | list[str], student: Student) -> list[StepIds]:
    """The steps' tokens as the student writes them: a line end after each, the end token after a
    final answer.
    """
    steps: list[StepIds] = []
    for written in [response] if isinstance(response, str) else response:
        text = written.rstrip("\n")
        final = is_final(text.rpartition("\n")[2])
        ids = tuple(student.encode_part(text if final else text + "\n", sum(steps, ())))
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
        return b'"chosen"' in file.readline()


def read_preferences(path: Path) -> Iterator[Preference]:
    """The rows of a file. Raises DataError naming the line that is none."""
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                try:
                    yield Preference.model_validate_json(line)
                except ValidationError as error:
                    first = error.errors()[0]
                    field = "".join(f"{part}: " for part in first["loc"][:1])
                    raise DataError(
                        f"{path} line {number}: {field}{first['msg']}; {WANTED}"
                    ) from error
