"""reasoning-gym's procedural tasks as sources (extra `tasks`): `reasoning-gym:NAME`.

An entry is `dataset[index]` of one endless stream a task. It belongs to the split that a stable
hash of its question names, so splits are disjoint by construction and an id,
`reasoning-gym:NAME/index`, gives the entry back. A response is graded by the task's own
`score_answer`, which may be anything in [0, 1]. Questions that come a second time are left out; a
task with few different questions has small splits.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from itertools import islice
from typing import Any

from ..config.sections import ProblemsConfig
from ..errors import ConfigError
from ..grading import answers
from ..grading.graders import Grade, Verdict
from ..types import JsonObject, Problem, Task
from .prompts import OPEN_PROMPT
from .source import Source, TaskResponses, split_of

STREAM = 1_000_000  # entries of a task
SHORTER = {"acre": 2_000, "word_ladder": 10_000}  # of tasks that make all entries at once
# In an entry's metadata: one of many right ones.
EXAMPLES = ("example_correct_answer", "example_answer", "possible_answer")
SEED = 0
TRIES = 400  # entries in a row that may be repeats before a split is at its end


class ReasoningGym(Source):
    """One of reasoning-gym's tasks."""

    opens = True
    grader = "exact"
    endless = True
    system_prompt = OPEN_PROMPT

    def __init__(self, task: str) -> None:
        self.task = task
        self.name = f"reasoning-gym:{task}"
        self.data = create_data_set(task)
        self._splits: dict[str, list[Task]] = {}
        self._streams: dict[str, Iterator[Task]] = {}

    @classmethod
    def open(cls, rest: str, problems: ProblemsConfig) -> Source:
        """The source of an address. The task's name is behind the colon."""
        if not rest:
            raise ConfigError(
                f"problems.source is {problems.source!r} without a task: "
                "write reasoning-gym:NAME, such as reasoning-gym:chain_sum"
            )
        return cls(rest)

    def load(self, split: str, count: int, start: int = 0) -> list[Task]:
        """At most `count` tasks of a split from its number `start` on; fewer, or none, where the
        split ends before that. A split is searched for in the stream, so its first tasks are the
        quickest.
        """
        known = self._splits.setdefault(split, [])
        stream = self._streams.setdefault(split, self.stream(split))
        known += islice(stream, max(start + count - len(known), 0))
        return known[start : start + count]

    def stream(self, split: str) -> Iterator[Task]:
        """The tasks of a split in the order of the stream."""
        seen: set[str] = set()
        repeated = 0
        for index in range(SHORTER.get(self.task, STREAM)):
            entry = self.data[index]
            repeated = repeated + 1 if entry["question"] in seen else 0
            if repeated >= TRIES:
                return
            if not repeated and split_of(str(entry["question"])) == split:
                yield self.as_task(entry, index)
            seen.add(entry["question"])

    def as_task(self, entry: JsonObject, index: int) -> Task:
        """An entry as a task. Where many answers are right its gold answer is an example, or ""
        where there is none.
        """
        examples = (entry["metadata"].get(name) for name in EXAMPLES)
        gold = next((answer for answer in (entry["answer"], *examples) if answer is not None), None)
        if isinstance(gold, dict):
            gold = json.dumps(gold)
        problem = Problem(f"{self.name}/{index}", str(entry["question"]), self.name)
        worked = entry["metadata"].get("answer_cot")
        return Task(problem, "" if gold is None else str(gold), worked, row=entry)

    def final_answer(self, response: str, strict: bool = False) -> str | None:
        """All that follows the last `####`, several lines where there are; else as
        `answers.extract` finds words.
        """
        stated = answers.after_mark(response)
        return stated if stated is not None else answers.extract(response, strict, words=True)

    def grade_many(self, pairs: TaskResponses, strict: bool = False) -> list[Grade]:
        """By the task's own `score_answer`; correct means 1."""
        return [self._grade(self.final_answer(response, strict), task) for response, task in pairs]

    def _grade(self, answer: str | None, task: Task) -> Grade:
        if answer is None:
            return Grade(Verdict.UNPARSED, None)
        index = int(task.problem.id.rpartition("/")[2])
        try:
            score = float(self.data.score_answer(answer=answer, entry=self.data[index]))
        except Exception:  # noqa: BLE001
            # The task's own code reads a model's text, and many tasks raise at what they can't
            # read.
            score = 0.0
        score = min(1.0, max(0.0, score))
        return Grade(Verdict.CORRECT if score == 1.0 else Verdict.WRONG, answer, partial=score)


def create_data_set(task: str) -> Any:
    """reasoning-gym's data set of a task. Raises ConfigError where the package or the task is
    missing.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import reasoning_gym
            from reasoning_gym.factory import DATASETS
    except ImportError as error:
        raise ConfigError(
            "problems.source needs reasoning-gym, which is not installed: install "
            "alphazero-llm-trainer[tasks]"
        ) from error
    if task not in DATASETS:
        raise ConfigError(
            f"problems.source is 'reasoning-gym:{task}': choose one of "
            f"{', '.join(sorted(DATASETS))}"
        )
    try:
        return reasoning_gym.create_dataset(task, size=SHORTER.get(task, STREAM), seed=SEED)
    except (AssertionError, ValueError, TypeError) as error:
        raise ConfigError(
            f"reasoning-gym:{task} can't be made on its own ({error}): choose another task"
        ) from error
