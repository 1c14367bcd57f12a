"""Tasks in memory as a source: each question once, in one split, with a gold answer that its rule
reads."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from ..config.sections import ProblemsConfig
from ..errors import ConfigError, DataError
from ..grading import answers
from ..grading.graders import guess_grader, is_no_answer
from ..types import Task
from .prompts import SYSTEM_PROMPTS
from .row_columns import (
    as_task,
    columns_of,
    ids_in_several_places,
    name_unread,
    questions_in,
    settle_columns,
)
from .row_texts import Row, check_text
from .source import SPLIT_SHARES, SPLITS, Source, split_of

log = logging.getLogger(__name__)
QUESTION_SHOWN = 60  # letters of a question in a message
ROW_KEYS = ("question_column", "answer_column", "solution_column", "grade")


def guess_tokens(*texts: str) -> int:
    """Tokens of a chat of these texts, rather too many: two bytes each, and a template's own."""
    return sum(len(text.encode()) for text in texts) // 2 + 32


class TaskList(Source):
    """Tasks in memory as a source, graded by the rule that fits their gold answers.

    Args:
        tasks: the tasks, or a list for each split; what of validation, arena and test is missing
            there is cut off "train" by a hash of the questions, and so are tasks of no split ("").
        name: the source's name.
        grader: one of `graders.GRADERS`; None takes the one that fits the gold answers.
        system_prompt: what a chat model reads first; None takes the rule's.
        read: how its rows were read, for the line that says which rule grades them.
    """

    def __init__(
        self,
        tasks: Sequence[Task] | Mapping[str, Sequence[Task]],
        name: str,
        grader: str | None = None,
        system_prompt: str | None = None,
        read: str = "",
    ) -> None:
        by_split = drop_repeats(tasks if isinstance(tasks, Mapping) else {"": tasks}, name)
        divided = by_split.pop("") + by_split.pop("train")
        own = [split for split in by_split if by_split[split]]
        self.tasks = {split: by_split.get(split, []) for split in SPLITS}
        for task in divided:
            self.tasks[split_of(task.problem.question, own)].append(task)
        everything = [task for split in SPLITS for task in self.tasks[split]]
        golds = [gold for task in everything for gold in (task.gold, *task.others)]
        why = "its source or problems.grade says so"
        if grader is None:
            grader, why = guess_grader(golds)
        check_golds(golds, grader, name)
        self.name, self.grader = name, grader
        self.system_prompt = SYSTEM_PROMPTS[grader] if system_prompt is None else system_prompt
        check_tasks(everything, name)
        about = self.system_prompt or ""
        longest = (guess_tokens(about, task.problem.question) for task in everything)
        self.prompt_tokens = max(longest, default=0)
        if golds:
            sizes = ", ".join(
                f"{split} {len(tasks):,}" for split, tasks in self.tasks.items() if tasks
            )
            log.warning("%s: %s; %sgraded as %s, since %s", name, sizes, read, grader, why)

    def load(self, split: str, count: int, start: int = 0) -> list[Task]:
        """At most `count` tasks of a split from its number `start` on; fewer, or none, where the
        split ends before that.
        """
        return self.tasks[split][start : start + count]


def drop_repeats(by_split: Mapping[str, Sequence[Task]], name: str) -> dict[str, list[Task]]:
    """Tasks by split, with this source's name, each question once: in the split that is furthest
    from training. One line says how many were left out.

    Raises DataError where a question has two gold answers, ConfigError for an unknown split.
    """
    kept: dict[str, list[Task]] = {split: [] for split in (*SPLIT_SHARES, "")}
    unknown = by_split.keys() - kept.keys()
    if unknown:
        raise ConfigError(
            f"{name} has the splits {sorted(unknown)}: the splits are {', '.join(SPLITS)}"
        )
    gold: dict[str, str] = {}  # by question
    for split, tasks in kept.items():
        for task in by_split.get(split, ()):
            question = task.problem.question
            if question not in gold:
                gold[question] = task.gold
                tasks.append(rename_task(task, name))
            elif gold[question] != task.gold and not answers.equal(gold[question], task.gold):
                raise DataError(
                    f"{name} asks {question[:QUESTION_SHOWN]!r} twice, with the answer "
                    f"{gold[question][:QUESTION_SHOWN]!r} and with {task.gold[:QUESTION_SHOWN]!r}: "
                    "keep the right one"
                )
    left_out = sum(map(len, by_split.values())) - len(gold)
    if left_out:
        log.warning("%s: %s of its rows repeat others, and were left out", name, f"{left_out:,}")
    return kept


def rename_task(task: Task, name: str) -> Task:
    """The task with this source's name in its problem."""
    return replace(task, problem=replace(task.problem, source=name))


def check_golds(golds: Sequence[str], grader: str, name: str) -> None:
    """Raise DataError for a gold answer that the rule can't grade."""
    read = {"numbers": answers.gold_number, "choice": answers.letter}.get(grader)
    for gold in golds:
        if read is not None and gold.strip() and read(gold) is None:
            raise DataError(
                f"problems.grade is {grader!r} and {name} has the gold answer "
                f"{gold[:QUESTION_SHOWN]!r},"
                " which that rule can't read: mend it, or leave problems.grade out"
            )


def check_tasks(tasks: Sequence[Task], name: str) -> None:
    """Raise DataError for duplicate ids, empty questions and a gold answer of NaN.

    Other gold answers are looked at by who needs them (`load.check_gold`).
    """
    seen: set[str] = set()
    for task in tasks:
        where = f"source {name}, task {task.problem.id!r}"
        question = check_text(task.problem.question, where)[:QUESTION_SHOWN]
        if task.problem.id in seen:
            raise DataError(
                f"{where}, which asks {question!r}, has the id of another: give each its own, or "
                "leave the column out"
            )
        seen.add(task.problem.id)
        if is_no_answer(task.gold):
            raise DataError(
                f"{where}, which asks {question!r}, has the gold answer {task.gold!r}: "
                "write it or drop it"
            )


def from_rows(rows: Iterable[tuple[str, Row]], problems: ProblemsConfig) -> TaskList:
    """A source of rows, each with its split ("" for none)."""
    rows, tasks = [*rows], dict[str, list[Task]]()
    if not rows:
        raise DataError(
            f"{problems.source} has no rows: write one problem a row, with a question and an answer"
        )
    _, (first, where) = rows[0]
    shown = dict(first)  # a column may begin in a later row
    for _, (row, _) in rows:
        for column, value in row.items():
            if shown.get(column) in (None, ""):
                shown[column] = value
    columns = columns_of((shown, where), problems)
    rows = [(split, part) for split, row in rows for part in questions_in(row, columns)]
    columns = settle_columns(columns, [row for _, row in rows], problems.grade)
    repeated = ids_in_several_places([row for _, row in rows])
    for split, placed in rows:
        task = as_task(placed, columns, problems.source, repeated)
        tasks.setdefault(split, []).append(task)
    read = f"{columns}{name_unread(shown, columns)}; "
    source = TaskList(tasks, problems.source, problems.grade, problems.system_prompt, read)
    source.reads = ROW_KEYS
    return source
