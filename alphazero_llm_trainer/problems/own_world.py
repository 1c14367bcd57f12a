"""A class of a user's own as a source of worlds: its public methods are the tools."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..config.sections import ProblemsConfig
from ..errors import DataError
from ..types import Problem, Task
from .source import split_of
from .task_list import TaskList, guess_tokens
from .worlds import ObjectWorld, Tooling, World


class OwnWorlds(TaskList):
    """The episodes of a class: `rows()` has a mapping a task, with a `question` and the columns
    that `reset` takes. A new object is made for each episode; `reward` grades it.

    Raises:
        DataError: the class has no rows, or one has no question.
    """

    worlds, gold_free = True, True

    def __init__(self, kind: Any, problems: ProblemsConfig) -> None:
        address = problems.source
        if not callable(getattr(kind, "rows", None)):
            raise DataError(
                f"{address} is a class of tools without `rows`: add a static method `rows` that "
                "returns mappings with a `question`, and with what `reset` takes"
            )
        self.kind, tasks = kind, list[Task]()
        for number, row in enumerate(kind.rows()):
            if not isinstance(row, Mapping) or not isinstance(row.get("question"), str):
                raise DataError(f"{address}, row {number} has no text `question`: give each one")
            question, gold = row["question"], row.get("answer", "")
            name = f"{address.rpartition('/')[2]}/{number}"
            tasks.append(Task(Problem(name, question, address), str(gold), row=row))
        by_split = dict[str, list[Task]]()
        for task in tasks:
            split = str(task.row.get("split") or split_of(task.problem.question))
            by_split.setdefault(split, []).append(task)
        prompt = problems.system_prompt
        super().__init__(
            by_split,
            address,
            "any",
            getattr(kind, "system_prompt", "") if prompt is None else prompt,
        )
        self.held = {task.problem.id: task for task in tasks}
        self.prompt_tokens += guess_tokens(kind.__doc__ or "")

    def world(self, task: Task, tooling: Tooling) -> World:
        """A new episode of a task, where the source has `worlds`."""
        messages = ({"role": "user", "content": task.problem.question},)
        return ObjectWorld(self.kind(), task.row, messages, tooling)

    def task_of(self, problem: Problem) -> Task:
        """The task of a problem for its world, which may have no gold answer."""
        return self.held.get(problem.id, Task(problem, ""))
