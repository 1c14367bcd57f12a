"""Rows of your own as a source: files (JSON, Parquet, CSV, a folder or a pattern of them), or a
data set of the hub.

Which columns hold question, answer and worked solution is said by `problems.question_column`,
`answer_column` and `solution_column`; without them the usual names are looked for. A `split`
column, the names of a folder's files, or the hub's own splits decide what is train and test; what a
data set doesn't have is cut off its train rows by `source.by_hash`. `problems.grade` names the rule
of `grading.GRADERS`; without it the gold answers decide (`grading.guess_grader`). One line says how
the rows are read, how many each split has, and which rule grades them and why.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence

from ..config.objects import at_home
from ..config.sections import ProblemsConfig
from ..errors import ConfigError, DataError
from ..types import Task
from .rows import Columns, Row, as_task, choices_at, each, from_json, load_hub, read_files, split_in, value_at
from .source import READ, Source, TaskList, by_hash, once

log = logging.getLogger(__name__)

PAIRS = (("body", "question"), ("instruction", "input"))  # a question in two columns: SVAMP, Alpaca
QUESTIONS = ("question.stem", "question", "question_stem", "problem", "prompt", "query", "input", "instruction")
ANSWERS = (
    "answer", "final_answer", "answers", "answerKey", "gold", "ground_truth", "gold_answer", "expected_answer",
    "correct_answer", "correct", "reward_model.ground_truth", "target", "output", "label", "result",
    "cop",
)  # fmt: skip
SOLUTIONS = ("solution", "rationale", "explanation", "reasoning", "steps", "completion")
CHOICES = ("choices", "options", "question.choices")
LETTERED = ("{}", "option_{}", "option{}", "Option {}", "choice_{}", "op{}")  # a choice in a column of its own
FEW = 0.5  # of the rows: a smaller share of training questions is worth a warning


class FileRows(TaskList):
    """The rows of a file, a folder or a pattern."""

    opens = True

    @classmethod
    def open(cls, rest: str, problems: ProblemsConfig, path: str | None) -> Source:
        """See `Source.open`: `rest` is the file."""
        return from_rows(read_files(str(at_home(rest, "problems.source"))), problems)


class HubRows(TaskList):
    """The rows of `hub:OWNER/NAME` or `hub:OWNER/NAME/CONFIGURATION`; nothing of the repository is
    executed."""

    opens = True

    @classmethod
    def open(cls, rest: str, problems: ProblemsConfig, path: str | None) -> Source:
        """See `Source.open`: `rest` names the data set."""
        parts = rest.split("/")
        if len(parts) not in (2, 3) or not all(parts) or any(part.startswith(".") for part in parts):
            raise ConfigError(
                f"problems.source is {problems.source!r}: write hub:OWNER/NAME or hub:OWNER/NAME/CONFIGURATION"
            )
        name, configuration = "/".join(parts[:2]), parts[2] if len(parts) == 3 else None
        by_split: dict[str, list[Row]] = {}
        for split, rows in load_hub(name, configuration, None, "name a local file").items():
            placed = [(row, f"{name} {split} row {number}") for number, row in enumerate(rows)]
            by_split.setdefault(split_in(split) or "", []).extend(placed)
        return from_rows(by_split, problems)


def from_rows(by_split: Mapping[str, Sequence[Row]], problems: ProblemsConfig) -> TaskList:
    """A source of rows by split; rows of the split "" are divided by hash, as are splits that are
    missing."""
    name, everything = problems.source, [row for rows in by_split.values() for row in rows]
    if not everything:
        raise DataError(f"{name} has no rows: write one problem a row, with a question and an answer")
    columns = columns_of(everything[0], problems)
    placed = [(split, row) for split, rows in by_split.items() for row in rows]
    made = each(placed, lambda one: (one[0], as_task(one[1], columns, name)))
    tasks = {wanted: [task for split, task in made if split == wanted] for wanted in by_split}
    source = TaskList(
        divided(once(tasks, name)), name, problems.grade, problems.system_prompt, how_read(columns, everything)
    )
    source.reads = READ
    sizes = {split: len(of_split) for split, of_split in source.tasks.items()}
    if any(by_split) and 0 < sizes["train"] < FEW * sum(sizes.values()):
        said = ", ".join(f"{split} {count:,}" for split, count in sizes.items())
        log.warning(
            "%s: %s of its %s rows are to train on (%s), as their splits say: change the split column or the files'"
            " names if you want more", name, f"{sizes['train']:,}", f"{sum(sizes.values()):,}", said,
        )  # fmt: skip
    return source


def how_read(columns: Columns, rows: Sequence[Row]) -> str:
    """How rows are read, in words."""
    more = "" if columns.more is None else f" and `{columns.more}`"
    first = from_json(value_at(rows[0][0], columns.question))
    said = [f"question is `{columns.question}`{more}{' (messages)' if isinstance(first, list) else ''}"]
    if columns.answer is None:
        said.append(f"answer is the last box or #### line of `{columns.solution}`")
    else:
        values = (value_at(row, columns.answer) for row, _ in rows)
        several = sum(len(set(map(str, one))) > 1 for one in map(listed, values))
        first_counts = f" (of {several:,} rows with several answers the first counts)" if several else ""
        said.append(f"answer is `{columns.answer}`{first_counts}")
    if columns.choices is not None:
        said.append(f"choices are `{columns.choices}`")
    return ", ".join(said)


def listed(value: object) -> Sequence[object]:
    """What stands in a list of answers; nothing of any other value."""
    if isinstance(value, Mapping):
        value = value.get("text", value.get("aliases"))
    return value if isinstance(value, list | tuple) else ()


def divided(tasks: Mapping[str, list[Task]]) -> dict[str, Sequence[Task]]:
    """Tasks by split, where those that are missing are cut off the rows that may be trained on."""
    given = {split: list(found) for split, found in tasks.items() if split}
    pool = [*tasks.get("", ()), *given.pop("train", ())]
    cut = by_hash(pool)
    for split in ("validation", "arena", "test"):
        if split in given:
            cut["train"] += cut[split]
            cut[split] = given[split]
    order = {id(task): at for at, task in enumerate(pool)}
    cut["train"].sort(key=lambda task: order[id(task)])
    return dict(cut)


def columns_of(row: Row, problems: ProblemsConfig) -> Columns:
    """The columns of question, answer, worked solution and choices. Raises DataError naming those
    that are there."""
    columns, where = row
    by_lower: dict[str, str] = {}
    for column in columns:
        by_lower.setdefault(str(column).lower(), str(column))

    def pick(given: str | None, usual: Iterable[str], what: str) -> str | None:
        if given is None:
            for name in usual:
                outer, dot, inner = name.partition(".")
                held = name if name in columns else by_lower.get(outer.lower(), "") + dot + inner
                if held in columns or value_at(columns, held) is not None:
                    return held
        elif given in columns or value_at(columns, given) is not None:
            return given
        if given is not None or what == "question":
            raise DataError(
                f"{where} has no column {given or what!r}, it has {', '.join(map(str, columns))}: name the right one with"
                f" problems.{what}_column (--{what}-column)"
            )
        return None

    pairs = [pair for pair in PAIRS if all(name in by_lower for name in pair)]
    question: str | None
    more = None
    if problems.question_column is None and pairs:
        question, more = (by_lower[name] for name in pairs[0])
    else:
        question = pick(problems.question_column, QUESTIONS, "question")
    answer = pick(problems.answer_column, (name for name in ANSWERS if name not in (question, more)), "answer")
    solution = pick(problems.solution_column, (name for name in SOLUTIONS if name != answer), "solution")
    if answer is None and solution is None:
        raise DataError(
            f"{where} has no column 'answer', it has {', '.join(map(str, columns))}: name the right one with"
            " problems.answer_column (--answer-column)"
        )
    assert question is not None
    choices = pick(None, CHOICES, "choices")
    if choices is None:
        choices = next((name for name in LETTERED if len(choices_at(columns, name)) > 1), None)
    return Columns(question, answer, solution, choices, more)
