"""Is a held-out problem in a training file? Looked up in the files themselves, after they were written."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from ..errors import DataError
from ..mcts.journal import read
from ..problems.source import source_of
from ..types import Problem, Task


def normalised(question: str) -> str:
    """A question's words and numbers alone: no case, punctuation, white space or variant of a character tells it apart."""
    text = unicodedata.normalize("NFKC", question).casefold()
    return " ".join(re.findall(r"[^\W_]+|[-+*/=<>%^]", text))


class Contamination:
    """Held-out problems that no training file may have.

    Args:
        held_out: tasks by the name of their set ("arena", "validation", "test").
    """

    def __init__(self, held_out: dict[str, Sequence[Task]]) -> None:
        self.names = {name: len(tasks) for name, tasks in held_out.items()}
        self.texts = {normalised(t.problem.question): name for name, tasks in held_out.items() for t in tasks}
        self.ids = {t.problem.id: name for name, tasks in held_out.items() for t in tasks}

    def check(self, root: Path, files: Iterable[Path]) -> dict[str, Any]:
        """Read every record of `files` below `root` (JSON lines with a `problem`) and say what was looked at.

        Raises:
            DataError: a record's question is held out, or its worked solution belongs to another split than train.
        """
        counted = {str(path.relative_to(root)): sum(1 for _ in self._records(path)) for path in files}
        return {"held_out": self.names, "records": counted}

    def _records(self, path: Path) -> Iterator[None]:
        for record in read(path):
            problem = record.get("problem")
            if not isinstance(problem, dict) or not isinstance(problem.get("question"), str):
                raise DataError(f"training file {path} has a record {record['key']!r} without a question: restore it")
            question, name = problem["question"], str(problem.get("id", ""))
            found = self.texts.get(normalised(question)) or self.ids.get(name)
            if found is None:
                found = split_by_source(problem, record.get("solution"), path)
            if found is not None:
                raise DataError(
                    f"training file {path} has a question of the {found} split, {name}: {question!r}; remove that folder"
                    " and train again without it"
                )
            yield


def split_by_source(problem: dict[str, Any], solution: str | None, path: Path) -> str | None:
    """The split that a problem's source says its worked solution belongs to; None: train, or the source can't tell.

    Raises DataError for a question that isn't the one of its id.
    """
    task_id = str(problem.get("id", ""))
    known = Problem(task_id, problem["question"], str(problem.get("source") or task_id.partition("/")[0]))
    try:
        split = source_of(known).split_of(known.id, known.question, solution)
    except DataError as error:
        raise DataError(f"training file {path} has {error}: restore the file") from error
    return None if split == "train" else split
