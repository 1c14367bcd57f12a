"""A run that can begin."""

from __future__ import annotations

from dataclasses import dataclass

from ..config.load import Config
from ..types import Task
from .methods.base import Method
from .size import RunSize


@dataclass(frozen=True, slots=True)
class Prepared:
    """A run that can begin: configuration, size, tasks and method. `demonstrations` are worked
    solutions that are replayed.
    """

    config: Config
    method: Method
    size: RunSize
    demonstrations: list[Task]
    questions: list[Task]
    test: list[Task]
    validation: list[Task]
